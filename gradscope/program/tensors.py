"""Reads what a tensor says about itself, without any code of the program's running."""

from __future__ import annotations

import ctypes
import re
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import mul
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from gradscope.torch_private import (
    DisableTorchFunction,
    function_modes,
    read_grad,
    read_grad_fn,
    read_hooks_after,
    read_is_leaf,
    read_requires_grad,
    read_version,
)

T = TypeVar("T")

PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""Types whose attributes can be read without running code of the program's."""


class TensorRef(weakref.ref[Tensor]):
    """A weak reference of ours to a tensor: torch swaps tensors in spite of it (see hooks.py)."""

    __slots__ = ()


class TensorMap(Generic[T]):
    """What is known of tensors, by their identity; it holds none of them."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[TensorRef, T]] = {}

    def __setitem__(self, tensor: Tensor, known: T) -> None:
        self.known[id(tensor)] = TensorRef(tensor), known

    def get(self, tensor: Tensor) -> T | None:
        """Return what is known of a tensor."""
        known = self.known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def forget(self, tensor: Tensor) -> None:
        """Know nothing of a tensor any more."""
        self.known.pop(id(tensor), None)


_LETTERS = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}
_KIND = re.compile(r"^(float|int|uint|complex|bfloat)(?=\d)")


def node_of(tensor: Tensor) -> Node | None:
    """Return ``tensor.grad_fn``; None for a view that torch refuses to use any more."""
    try:
        return _read(tensor, read_grad_fn)  # type: ignore[no-any-return]
    except RuntimeError:
        return None


def why_unusable(tensor: Tensor) -> str | None:
    """Return torch's words for a view that it refuses to use any more; None of other tensors."""
    try:
        _read(tensor, read_grad_fn)
    except RuntimeError as error:
        return str(error)
    return None


def held_node(tensor: Tensor) -> Node | None:
    """Return the node that a variable's tensor leads to, and leave the tensor as it is.

    A view whose base was changed in place since has no node yet: torch would build it to answer,
    with a number of this thread and moment, and so change the order in which nodes run later. Its
    base's node, to which the new one will lead, stands for it.
    """
    base = _changed_base(tensor)
    return node_of(tensor if base is None else base)


def _changed_base(tensor: Tensor) -> Tensor | None:
    """Return the base of a view for which torch may have to build a node when it is asked."""
    with DisableTorchFunction():
        try:
            if not tensor._is_view() or tensor.is_inference() or not version_of(tensor):
                return None
        except RuntimeError:  # the collector shows a tensor that another thread takes apart
            return None
        base = tensor._base
        return base if base is not None and base.requires_grad else None


def is_held_leaf(tensor: Tensor) -> bool:
    """Return whether a variable's tensor is a leaf, and leave the tensor as it is.

    A view whose base was changed in place is not asked, see ``held_node``: it has a node, or will.
    """
    return _changed_base(tensor) is None and is_leaf(tensor)


def parameters_of(optimizer: Any) -> list[Tensor]:
    """Return the parameters of an optimizer; none of one that is gone."""
    groups = () if optimizer is None else optimizer.param_groups
    return [each for group in groups for each in group["params"]]


def leaves_of(nodes: Iterable[Any]) -> list[Tensor]:
    """Return the leaves whose gradient arrives at some of these nodes."""
    return [node.variable for node in nodes if type(node).__name__ == "AccumulateGrad"]


def is_leaf(tensor: Tensor) -> bool:
    """Return ``tensor.is_leaf``; False for a view that torch refuses to use any more.

    Of a saved tensor: torch asks the same before it uses it.
    """
    try:
        return bool(_read(tensor, read_is_leaf))
    except RuntimeError:
        return False


def requires_grad(tensor: Tensor) -> bool:
    """Return ``tensor.requires_grad``, without any code of a subclass."""
    return bool(_read(tensor, read_requires_grad))


def version_of(tensor: Tensor) -> int:
    """Return the tensor's version counter."""
    return int(_read(tensor, read_version))


def grad_of(leaf: Tensor) -> Tensor | None:
    """Return ``leaf.grad``; of a tensor that is not a leaf, torch warns."""
    return _read(leaf, read_grad)  # type: ignore[no-any-return]


def is_given(leaf: Tensor) -> bool:
    """Return whether a call that has ended may have given a leaf its gradient: a hook of the
    program's may have taken that away.
    """
    return grad_of(leaf) is not None or bool(_read(leaf, read_hooks_after))


def _read(tensor: Tensor, get: Callable[[Tensor], Any]) -> Any:
    cls = type(tensor)
    if (cls is Tensor or cls is torch.nn.Parameter) and not function_modes():
        return get(tensor)
    with DisableTorchFunction():
        return get(tensor)


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def storage_of(tensor: Tensor) -> int:
    """Return what identifies the tensor's memory; 0 for sparse and opaque tensors."""
    with DisableTorchFunction():
        try:
            return int(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return 0


Memory: TypeAlias = tuple[int, int]
"""Address and bytes."""

# Bytes in a page, and pages of a tensor that are read: 1 MiB, in less than a millisecond. A
# larger tensor is read in as many pages spread evenly, so a write to a few of its elements may go
# unseen.
_PAGE, _MOST_PAGES = 4_096, 256


def memory_of(tensor: Tensor) -> Memory | None:
    """Return where a tensor's elements lie; None on another device than the CPU, with gaps between
    them, or in a layout of its own.
    """
    if type(tensor) not in PLAIN:
        return None
    with DisableTorchFunction():
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_nested:
            return None
        length = 1  # of the elements that lie one after the other
        for stride, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if n > 1 and stride not in (0, length):
                return None
            length *= n if stride else 1
        size = tensor.element_size()
        last = tensor.storage_offset() + length
        if not tensor.numel() or last * size > tensor.untyped_storage().nbytes():
            return None
        try:
            return tensor.data_ptr(), length * size
        except RuntimeError:  # a tensor that stands for another
            return None


def checksum(memory: Memory) -> int:
    """Return a checksum of some memory, or of samples of very much."""
    found = 0
    for address, nbytes in _pages(memory):
        found = zlib.crc32((ctypes.c_char * nbytes).from_address(address), found)
    return found


# Elements of a tensor that are summed up, in blocks that are spread evenly: reading them takes the
# same time for each tensor that a checkpoint saves.
_BLOCKS, _BLOCK = 8, 32
# Elements have different weights, so that their order counts: ``x[torch.randperm(n)]`` has the same
# plain sum. A prime period does not repeat with the rows of a matrix.
_WEIGHTS = [1.0 + i % 61 for i in range(_BLOCKS * _BLOCK)]
_READ_AS: dict[torch.dtype, Any] = dict.fromkeys((torch.float32, torch.complex64), ctypes.c_float)
_READ_AS |= dict.fromkeys((torch.float64, torch.complex128), ctypes.c_double)
_READ_AS |= dict.fromkeys((torch.float16, torch.bfloat16, torch.int16), ctypes.c_int16)  # by bits
_READ_AS |= {torch.int64: ctypes.c_int64, torch.int32: ctypes.c_int32, torch.bool: ctypes.c_uint8}
"""No bytes: operations save their workspace as such, with whatever is in there."""


def sums_of(tensor: Tensor) -> tuple[float, float] | None:
    """Return a weighted sum of a tensor's elements, or of samples of many, and how large it may be:
    what is rounded otherwise changes it by little. None where the memory is not read.
    """
    number: Any = _READ_AS.get(tensor.dtype)
    memory = None if number is None else memory_of(tensor)
    if memory is None:
        return None
    size = ctypes.sizeof(number)
    length = memory[1] // size
    starts, most = range(1), length
    if length > len(_WEIGHTS):
        starts, most = range(0, length - _BLOCK, (length - _BLOCK) // (_BLOCKS - 1)), _BLOCK
    kind = number * most
    values = [v for at in starts for v in kind.from_address(memory[0] + at * size)[:]]
    return sum(map(mul, values, _WEIGHTS)), sum(map(abs, values)) * 32


def any_nonzero(tensor: Tensor) -> bool:
    """Return whether a tensor has another number than zero, or numbers that cannot be compared, as
    a sparse one has. This asks the device.
    """
    with torch.no_grad(), DisableTorchFunction():
        try:
            return bool((tensor != 0).any())
        except RuntimeError:
            return True


def is_zero(tensor: Tensor) -> bool | None:
    """Return whether all of a tensor is zero, or all samples of a very large one; None where its
    memory is not read.
    """
    memory = memory_of(tensor)
    if memory is None:
        return None
    return all(ctypes.string_at(at, n).count(0) == n for at, n in _pages(memory))


def _pages(memory: Memory) -> Iterator[Memory]:
    address, nbytes = memory
    if nbytes <= _PAGE * _MOST_PAGES:
        yield memory
        return
    for i in range(_MOST_PAGES):
        yield address + (nbytes - _PAGE) * i // (_MOST_PAGES - 1), _PAGE


def values_of(tensor: Tensor) -> Tensor:
    """Return the dense tensor that has the values of a sparse one; of others, the tensor itself."""
    with DisableTorchFunction():
        if tensor.layout is torch.sparse_coo:
            return tensor.detach()._values()
        return tensor.detach().values() if tensor.layout in _COMPRESSED else tensor


def is_parameter(tensor: Tensor) -> bool:
    """Return whether it is a leaf that requires grad, or a view of one: memory not the graph's."""
    with DisableTorchFunction():
        if not tensor._is_view():
            return tensor.requires_grad and tensor.is_leaf
        if is_held_leaf(tensor):
            return tensor.requires_grad
        base = tensor._base
        return base is not None and base.is_leaf and base.requires_grad


def shape_of(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the tensor's shape; None for a nested tensor, which has one for each of its parts.

    A size may also be a symbol, as the ragged one of a nested tensor is.
    """
    with DisableTorchFunction():
        try:
            shape = tuple(tensor.shape)
        except RuntimeError:
            return None
    return shape if {int}.issuperset(map(type, shape)) else None


def describe(tensor: Tensor) -> str:
    """Return dtype and shape as in ``f32[8, 32]``; ``f32[nested]`` for a nested tensor."""
    shape = shape_of(tensor)
    sizes = "nested" if shape is None else ", ".join(map(str, shape))
    with DisableTorchFunction():
        return labelled(sizes, tensor.dtype)


def labelled(sizes: str, dtype: object) -> str:
    """Return a dtype, or its name, with sizes behind it."""
    return f"{label_of(dtype)}[{sizes}]"


@cache
def label_of(dtype: object) -> str:
    """Return a dtype in the short spelling of torch's own tools: ``f32``."""
    name = str(dtype).removeprefix("torch.").replace("_", "")
    return _KIND.sub(lambda kind: _LETTERS[kind[0]], name) if name != "bool" else "b8"
