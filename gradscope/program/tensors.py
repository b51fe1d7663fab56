"""Reads where in a graph a tensor stands, without the program's own code seeing it."""

from __future__ import annotations

import torch
from torch.autograd.graph import Node
from torch.utils._dtype_abbrs import dtype_abbrs


def node_of(tensor: torch.Tensor) -> Node | None:
    """``tensor.grad_fn``; None too for a view that torch refuses to use any more, which is an error only when it is used."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.grad_fn
        except RuntimeError:
            return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``; False for a view that torch refuses to use any more, which was computed from its base."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.is_leaf
        except RuntimeError:
            return False


def requires_grad(tensor: torch.Tensor) -> bool:
    """``tensor.requires_grad``; True for a view that torch refuses to use any more."""
    with torch._C.DisableTorchFunction():
        try:
            return tensor.requires_grad
        except RuntimeError:
            return True


PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types whose attributes can be read without running code of the program's."""


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's version counter, read without the program's torch functions seeing it."""
    if type(tensor) in PLAIN and not torch._C._len_torch_function_stack():
        return tensor._version
    with torch._C.DisableTorchFunction():
        return tensor._version


def describe(tensor: torch.Tensor) -> str:
    """dtype and shape as in ``f32[8, 32]``."""
    with torch._C.DisableTorchFunction():
        return f"{dtype_label(tensor)}[{', '.join(map(str, tensor.shape))}]"


def dtype_label(tensor: torch.Tensor) -> str:
    """The dtype in the short spelling of torch's own tools: ``f32``."""
    return dtype_abbrs.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def storage_of(tensor: torch.Tensor) -> int:
    """What identifies the tensor's memory; tensors that share it have the same. 0 for sparse and opaque tensors."""
    with torch._C.DisableTorchFunction():
        try:
            return int(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return 0


def is_parameter(tensor: torch.Tensor) -> bool:
    """True for a leaf that requires grad, and for a view of one (``weight.t()``): memory that the graph does not cost."""
    with torch._C.DisableTorchFunction():
        if is_leaf(tensor):
            return tensor.requires_grad
        base = tensor._base if tensor._is_view() else None
        return base is not None and base.is_leaf and base.requires_grad
