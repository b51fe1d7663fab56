"""Reads what a tensor says about itself, without any code of the program's running: its place in a graph, memory, label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._dtype_abbrs import dtype_abbrs

PLAIN = frozenset({Tensor, torch.nn.Parameter})
"""Types whose attributes can be read without running code of the program's."""

_Get = Callable[[Tensor], Any]
_in_torch = torch._C.TensorBase.__dict__
_grad_fn: _Get = _in_torch["grad_fn"].__get__
_is_leaf: _Get = _in_torch["is_leaf"].__get__
_requires_grad: _Get = _in_torch["requires_grad"].__get__
_version: _Get = _in_torch["_version"].__get__
_grad: _Get = _in_torch["grad"].__get__


def node_of(tensor: Tensor) -> Node | None:
    """Return ``tensor.grad_fn``; None too for a view that torch refuses to use any more, which is no error until it is used."""
    try:
        node: Node | None = _read(tensor, _grad_fn)
    except RuntimeError:
        return None
    return node


def is_leaf(tensor: Tensor) -> bool:
    """Return ``tensor.is_leaf``; False for a view that torch refuses to use any more, which was computed from its base."""
    try:
        return bool(_read(tensor, _is_leaf))
    except RuntimeError:
        return False


def requires_grad(tensor: Tensor) -> bool:
    """Return ``tensor.requires_grad``; True for a view that torch refuses to use any more."""
    try:
        return bool(_read(tensor, _requires_grad))
    except RuntimeError:
        return True


def version_of(tensor: Tensor) -> int:
    """Return the tensor's version counter."""
    return int(_read(tensor, _version))


def grad_of(leaf: Tensor) -> Tensor | None:
    """Return ``leaf.grad``; asked of a tensor that is no leaf, torch warns."""
    grad: Tensor | None = _read(leaf, _grad)
    return grad


def _read(tensor: Tensor, get: _Get) -> Any:
    cls = type(tensor)
    if (cls is Tensor or cls is torch.nn.Parameter) and not torch._C._len_torch_function_stack():
        return get(tensor)
    with torch._C.DisableTorchFunction():
        return get(tensor)


def storage_of(tensor: Tensor) -> int:
    """Return what identifies the tensor's memory, the same for all that share it; 0 for sparse and opaque tensors."""
    with torch._C.DisableTorchFunction():
        try:
            return int(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return 0


def is_parameter(tensor: Tensor) -> bool:
    """True for a leaf that requires grad, and for a view of one (``weight.t()``): memory that the graph does not cost."""
    with torch._C.DisableTorchFunction():
        if is_leaf(tensor):
            return tensor.requires_grad
        base = tensor._base if tensor._is_view() else None
        return base is not None and base.is_leaf and base.requires_grad


def describe(tensor: Tensor) -> str:
    """Return dtype and shape as in ``f32[8, 32]``."""
    with torch._C.DisableTorchFunction():
        return f"{dtype_label(tensor)}[{', '.join(map(str, tensor.shape))}]"


def dtype_label(tensor: Tensor) -> str:
    """Return the dtype in the short spelling of torch's own tools: ``f32``."""
    return dtype_abbrs.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
