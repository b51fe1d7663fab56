"""Custom autograd Functions of every kind that the random programs use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SaveInput(Function):
    """Saves an input, and a Python number on the context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x * x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * x * (2 * ctx.scale), None


class SaveOutput(Function):
    """Saves its own output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = x.tanh()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return grads[0] * (1 - out * out)


class SaveIntermediate(Function):
    """Saves a tensor that is neither input nor output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        half = x.sigmoid()
        ctx.save_for_backward(half)
        return half + 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (half,) = ctx.saved_tensors
        return grads[0] * half


class SaveNothing(Function):
    """Saves nothing: it can be run backward any number of times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] + grads[0]


class KeepOnContext(Function):
    """Keeps its input as a plain attribute, where neither freeing nor version check reaches."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x.detach().clone()
        return x.abs()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.kept.sign()


class TwoOutputs(Function):
    """Has two outputs and saves both inputs; does not materialise missing gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return x + y, x * y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        x, y = ctx.saved_tensors
        total, product = grads
        zero = torch.zeros_like(x)
        total = zero if total is None else total
        product = zero if product is None else product
        return total + product * y, total + product * x


class WithIndex(Function):
    """Has a second output that is not differentiable, and saves it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        positive = x > 0
        ctx.mark_non_differentiable(positive)
        ctx.save_for_backward(positive)
        return x.clamp(min=0), positive

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (positive,) = ctx.saved_tensors
        return grads[0] * positive


class InPlace(Function):
    """Changes its input in place, says so, and saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * 3


class InPlaceSaved(Function):
    """Changes its input in place, says so, and saves the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.sigmoid_()
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return grads[0] * out * (1 - out)


class Once(Function):
    """Can be differentiated once only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * x * 2


class SeparateContext(Function):
    """Written in the newer style: ``forward`` without a context, ``setup_context`` beside it."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x.sin() * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grads[0] * y * x.cos(), grads[0] * x.sin()
