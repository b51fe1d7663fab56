"""Words the errors that torch's engine raises itself only where no saved-tensor hooks are."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from gradscope.collect.marks import Packed
from gradscope.collect.nodes import DETACHED_TEXT, held, kind_of
from gradscope.collect.slots import MODIFIED
from gradscope.program.tensors import node_of, shape_of, version_of
from gradscope.program.undisturbed import apart
from gradscope.torch_private import SAVED, current_node

DETACHED = (
    f"{DETACHED_TEXT}, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
"""torch's own words (torch/csrc/autograd/saved_variable.cpp)."""

PACK_HOOK_MODIFIES = (
    "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack "
    "hook cannot be modified by in-place operations as this can lead to unexpected side-effects. "
    "Please open an issue if you need to perform in-place operations on the input to a pack hook."
)


@functools.cache
def _dialect(anomaly_mode: bool) -> tuple[str, bool]:
    """Return the hint that this torch ends with, and whether it names nodes in full, as it did
    before it left ``Backward0`` out.
    """

    def ask() -> None:
        result = torch.ones((), requires_grad=True, device="cpu").tanh()
        node: Any = result.grad_fn
        result.add_(0)
        node._saved_result  # noqa: B018 - asked for the sake of its error

    words = r"which is output 0 of (\w+),.* instead\. (Hint: .*)"
    found = re.search(words, _error_of(ask), re.DOTALL)
    return ("", False) if found is None else (found[2], found[1].endswith("Backward0"))


def modified_in_place(packed: Packed) -> str:
    """Return the engine's text for a saved tensor that was modified in place.

    The saved tensor may be unpacked meanwhile, which must not be checked.
    """
    tensor = packed.tensor
    assert tensor is not None
    hint, _ = _dialect(torch.is_anomaly_enabled())
    return (
        f"{MODIFIED}: [{_type_and_sizes(tensor)}]{_output_of(packed)} "
        f"is at version {version_of(tensor)}; expected version {packed.version} instead. {hint}"
    )


def _output_of(packed: Packed) -> str:
    """``, which is output 0 of Sigmoid,`` where torch would say so."""
    saver = current_node()
    tensor = packed.tensor
    if not packed.original:
        tensor = None if saver is None else _restored(saver, packed)
    node = None if tensor is None else node_of(tensor)
    if tensor is not None and node is not None:
        name, number = node.name(), tensor.output_nr
    elif packed.output is not None:
        name, number = packed.output
    else:
        return ""
    return f", which is output {number} of {_engine_name(name)},"


def _restored(saver: Any, packed: Packed) -> torch.Tensor | None:
    """Read what torch makes of a saved tensor for the node that saved it."""
    for name, data in held(saver, kind_of(type(saver))):
        if data is packed:
            attribute, _, place = name.partition("[")
            read = "saved_tensors" if attribute == "tensors" else SAVED + attribute
            value: Any = getattr(saver, read)
            return value[int(place[:-1])] if place else value  # type: ignore[no-any-return]
    return None


def _engine_name(name: str) -> str:
    """Spell a node's name as the engine's messages do: SinBackward0 is Sin, PowBackward1 is
    Pow1.
    """
    in_full = _dialect(torch.is_anomaly_enabled())[1]
    parts = None if in_full else re.fullmatch(r"(.*)Backward(\d*)", name)
    return parts[1] + parts[2].removesuffix("0") if parts else name


def _type_and_sizes(tensor: torch.Tensor) -> str:
    """Spell type and sizes as the engine does, by having it fail on another tensor of that type."""
    shape = shape_of(tensor)
    if shape is None:  # a nested tensor: its parts' sizes are spelled as C++ prints a tensor
        return _spelled(torch.zeros_like(tensor.detach())) or str(tensor.type())
    if tensor.layout is not torch.strided:
        return _spelled(tensor.detach().clone())
    spelled = _spelled(torch.empty((0,), dtype=tensor.dtype, device=tensor.device))
    return f"{spelled.removesuffix(' [0]') or tensor.type()} {list(shape)}"


def _error_of(ask: Callable[[], None]) -> str:
    """Return the error that torch raises where no hooks are, and where no node is counted."""
    errors: list[str] = []

    def run() -> None:
        try:
            ask()
        except RuntimeError as error:
            errors.append(str(error))

    apart(run)
    return errors[0] if errors else ""


def _spelled(tensor: torch.Tensor) -> str:
    """Return what the engine's error has in brackets for this tensor, which is changed for that."""

    def ask() -> None:
        product = tensor * torch.ones((), requires_grad=True, device=tensor.device)
        node: Any = product.grad_fn
        tensor.mul_(1) if tensor.dtype is not torch.bool else tensor.logical_not_()
        node._saved_self  # noqa: B018 - asked for the sake of its error

    found = re.search(r"inplace operation: \[(.*)\] is at version", _error_of(ask), re.DOTALL)
    return found.group(1) if found else ""
