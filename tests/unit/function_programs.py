"""Programs around Python Functions and torch.func; each yields the backward calls to try, as in compiled_programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from compiled_programs import Calls, leaf, twice
from torch import Tensor, nn
from torch.autograd import Function, forward_ad, functional
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

from tests import known

PROGRAMS: list[Callable[[], Calls]] = []


def program(calls: Callable[[], Calls]) -> Callable[[], Calls]:
    PROGRAMS.append(calls)
    return calls


def read(ctx: Any) -> tuple[Tensor, ...]:
    saved: tuple[Tensor, ...] = ctx.saved_tensors
    return saved


class ReadsInAFunction(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * read(ctx)[0].cos()


class ReadsInAMethod(ReadsInAFunction):
    @staticmethod
    def saved(ctx: Any) -> Tensor:
        return read(ctx)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ReadsInAMethod.saved(ctx).cos()


class ReadsByName(ReadsInAFunction):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        saved: Tensor = getattr(ctx, "saved_tensors")[0]  # noqa: B009 - a name in a text
        return gradient * saved.cos()


class ReadsNothing(ReadsInAFunction):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class SavesNothing(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        assert not ctx.saved_tensors
        return gradient * 2


class ForVmap(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        saved: Tensor = ctx.saved_tensors[0]
        return gradient * saved.cos()


@program
def functions_that_read() -> Calls:
    for function in (ReadsInAFunction, ReadsInAMethod, ReadsByName, SavesNothing):
        out = function.apply(leaf(3))  # type: ignore[no-untyped-call]
        yield out.sum(), {}
        yield out.sum(), {}


@program
def harmless_function() -> Calls:
    out = ReadsNothing.apply(leaf(3))  # type: ignore[no-untyped-call]
    yield out.sum(), {}
    yield out.sum(), {}


@program
def functions_under_transforms() -> Calls:
    yield from twice(vmap(ForVmap.apply)(leaf(4, 3)))
    w = leaf(3)
    yield from twice(vjp(lambda x: ForVmap.apply(x * w), torch.randn(3))[0])  # type: ignore[no-untyped-call]


def attached() -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A tensor with a graph, and a function that takes it from outside."""
    h = leaf(3).exp()
    return h, lambda x: (x * h).sin()


@program
def gradients_of_what_is_attached() -> Calls:
    h, f = attached()
    first, second = (grad(lambda x: f(x).sum())(torch.randn(3)) for _ in range(2))
    yield first.sum(), {}
    yield second.sum(), {}
    yield h.sum(), {}


@program
def gradients_of_what_is_freed() -> Calls:
    h, f = attached()
    yield h.sum(), {}
    yield grad(lambda x: f(x).sum())(torch.randn(3)).sum(), {}


@program
def pullback_of_what_is_attached() -> Calls:
    _, f = attached()
    out, pull, *_ = vjp(f, torch.randn(3))
    yield out.sum(), {}
    yield pull(torch.ones(3))[0].sum(), {}


@program
def jacobians_of_what_is_attached() -> Calls:
    _, f = attached()
    for of in (jacrev(f), jacfwd(f), hessian(lambda x: f(x).sum())):
        yield of(torch.randn(3)).sum(), {}


@program
def tangents_of_what_is_attached() -> Calls:
    _, f = attached()
    out, tangent, *_ = jvp(f, (torch.randn(3),), (torch.ones(3),))
    yield out.sum(), {}
    yield tangent.sum(), {}
    _, f = attached()
    out, push = linearize(f, torch.randn(3))
    yield out.sum(), {}
    yield push(torch.ones(3)).sum(), {}


@program
def dual_numbers() -> Calls:
    _, f = attached()
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(f(forward_ad.make_dual(torch.randn(3), torch.ones(3))))
    yield out.primal.sum(), {}
    yield known(out.tangent).sum(), {}


@program
def vmap_of_what_is_attached() -> Calls:
    _, f = attached()
    first, second = vmap(f)(torch.randn(4, 3)), vmap(f)(torch.randn(4, 3))
    yield first.sum(), {}
    yield second.sum(), {}


@program
def vmap_over_a_gradient() -> Calls:
    w = leaf(3)
    y = w.sin()
    vmap(lambda v: torch.autograd.grad(y, w, v, retain_graph=True)[0])(torch.eye(3))
    yield y.sum(), {}
    yield y.sum(), {}
    y = w.sin()
    torch.autograd.grad(y, w, torch.eye(3), is_grads_batched=True)
    yield y.sum(), {}


@program
def parameters_with_a_graph() -> Calls:
    model = nn.Linear(3, 3)
    given = {name: p.exp() for name, p in model.named_parameters()}

    def loss(given: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(model, given, (x,))
        return out.pow(2).sum()

    step = grad(loss)(given, torch.randn(2, 3))
    stepped = {name: given[name] - 0.1 * step[name] for name in given}
    yield loss(stepped, torch.randn(2, 3)), {}
    yield loss(stepped, torch.randn(2, 3)), {}


@program
def functional_of_what_is_attached() -> Calls:
    _, f = attached()
    x, v = torch.randn(3), torch.ones(3)
    yield functional.jacobian(f, x, create_graph=True).sum(), {}
    yield functional.jvp(f, x, v, create_graph=True)[1].sum(), {}
    _, f = attached()
    out, product = functional.hvp(lambda x: f(x).sum(), x, v, create_graph=True)
    yield out.sum(), {}
    yield product.sum(), {}


@program
def modified_under_transforms() -> Calls:
    h, f = attached()
    out = vjp(f, torch.randn(3))[0]
    with torch.no_grad():
        h.add_(1)
    yield out.sum(), {}
    x, w = torch.randn(4, 3), leaf(3)
    out = vmap(lambda x: (x * w).exp())(x)
    x.add_(1)
    yield out.sum(), {}
