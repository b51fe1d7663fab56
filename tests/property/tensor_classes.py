"""Tensor subclasses of the random programs: one with ``__torch_function__``, one that wraps and dispatches."""

# mypy: allow-untyped-calls
# Part of torch is untyped.
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only


class Tagged(Tensor):
    """Says on which functions it was called; its results are tagged too."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


calls: list[str] = []
"""What the subclass and the modes have seen; part of a program's outcome."""


class Wrapper(Tensor):
    """Holds a plain tensor, on which each operation runs."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        return made

    def __init__(self, inner: Tensor) -> None:
        self.held = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *_: Any) -> Wrapper:
        return Wrapper(inner["held"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        calls.append(str(func))
        kwargs = kwargs or {}
        plain = tree_map_only(Wrapper, lambda t: t.held, (args, kwargs))
        out = tree_map_only(Tensor, Wrapper, func(*plain[0], **plain[1]))
        return return_and_correct_aliasing(func, args, kwargs, out)


class Wrap(Function):
    """From a plain tensor to a wrapper."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return Wrapper(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].held if isinstance(grads[0], Wrapper) else grads[0]


class Unwrap(Function):
    """From a wrapper back to the plain tensor."""

    @staticmethod
    def forward(ctx: Any, x: Wrapper) -> Tensor:
        return x.held.view_as(x.held)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return Wrapper(grads[0])


class CountingFunctions(TorchFunctionMode):
    """Notes every function of torch that runs in it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(getattr(func, "__name__", "?"))
        return func(*args, **(kwargs or {}))


class CountingOperations(TorchDispatchMode):
    """Notes every operation that runs in it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(str(func))
        return func(*args, **(kwargs or {}))


def tagged(x: Tensor, y: Tensor, k: int) -> Tensor:
    out = x.as_subclass(Tagged) * y + x.exp()
    return out if k % 2 else out.as_subclass(Tensor)


def wrapped(x: Tensor, y: Tensor, k: int) -> Tensor:
    a, b = map(Wrap.apply, plain(x, y))
    kinds = (lambda: a * b, lambda: a.sigmoid(), lambda: (a + 1).exp() * b)
    out: Tensor = Unwrap.apply(kinds[k % 3]())
    return out


def under_function_mode(x: Tensor, y: Tensor, k: int) -> Tensor:
    with CountingFunctions():
        return x.tanh() * y


def under_dispatch_mode(x: Tensor, y: Tensor, k: int) -> Tensor:
    with CountingOperations():
        return x.tanh() * y


def plain(*tensors: Tensor) -> list[Tensor]:
    return [tensor.as_subclass(Tensor) for tensor in tensors]


def nested_strided(x: Tensor, y: Tensor, k: int) -> tuple[Tensor, ...]:
    """A nested tensor of two rows, with an operation on it."""
    both = torch.nested.as_nested_tensor(plain(x, y[: 1 + k % 2]))
    return tuple((both * both if k % 3 else both.relu()).unbind())


def nested_jagged(x: Tensor, y: Tensor, k: int) -> tuple[Tensor, ...]:
    both = torch.nested.as_nested_tensor(plain(x, y[: 1 + k % 2]), layout=torch.jagged)
    out = (both * both if k % 3 else both.sigmoid()) + 1
    return (torch.nested.to_padded_tensor(out, 0.5),) if k % 2 else tuple(out.unbind())
