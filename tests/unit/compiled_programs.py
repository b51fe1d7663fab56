"""Programs around torch.compile; each yields the backward calls to try: a root, and the call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.needs import DETACHED_IS_TOLD, DONATES_BUFFERS, TRACES_PAST_HOOKS, has

Calls = Iterator[tuple[Tensor, dict[str, Any]]]
PROGRAMS: list[Callable[[], Calls]] = []


NEEDS = {
    "retained_with_donated_buffers": (DONATES_BUFFERS,),
    "checkpoint_around": (TRACES_PAST_HOOKS,),
}
"""What of torch's a program needs, by its name."""


def program(calls: Callable[[], Calls]) -> Callable[[], Calls]:
    PROGRAMS.append(calls)
    return calls


def leaf(*size: int) -> Tensor:
    return torch.randn(*size, requires_grad=True)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Tensor]:
    made: Callable[..., Tensor] = torch.compile(function, backend="aot_eager", **options)
    return made


def compiling_autograd(backend: str) -> AbstractContextManager[None]:
    module: Any = torch._dynamo.compiled_autograd  # named without an underscore before torch 2.6
    enable = getattr(module, "_enable", None) or module.enable
    context: AbstractContextManager[None] = enable(torch.compile(backend=backend))
    return context


def checks_versions() -> bool:
    """Whether compiled backward calls raise for a stale tensor, and that can be told before.

    Torch 2.8 computes on; before 2.12 a look would put hooks on it, which the compiler would meet.
    """
    if not has(DETACHED_IS_TOLD):
        return False
    x = torch.ones(2, requires_grad=True)
    saved = x.exp()
    product = saved * 2
    with torch.no_grad():
        saved.add_(1)
    try:
        product.sum().backward()
    except RuntimeError:
        return True
    return False


def layer(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).tanh()


def twice(out: Tensor) -> Calls:
    yield out.sum(), {}
    yield out.pow(2).sum(), {}


@program
def two_losses() -> Calls:
    f, w = compiled(layer), leaf(4, 4)
    for _ in range(2):
        yield from twice(f(torch.randn(8, 4), w))


@program
def saves_nothing() -> Calls:
    yield from twice(compiled(lambda w: w.sum())(leaf(4)))


@program
def eager_backend() -> Calls:
    yield from twice(torch.compile(layer, backend="eager")(torch.randn(8, 4), leaf(4, 4)))


@program
def dynamic_shapes() -> Calls:
    f, w = compiled(layer, dynamic=True), leaf(4, 4)
    for size in (8, 5):
        yield from twice(f(torch.randn(size, 4), w))


@program
def recompiled() -> Calls:
    f, w = compiled(layer), leaf(4, 4)
    first = f(torch.randn(8, 4), w)
    second = f(torch.randn(5, 4), w)
    yield first.sum(), {}
    yield second.sum(), {}
    yield first.sum(), {}


@program
def graph_break() -> Calls:
    def broken(x: Tensor, w: Tensor) -> Tensor:
        h = (x @ w).tanh()
        torch._dynamo.graph_break()
        return (h @ w).sin()

    yield from twice(compiled(broken)(torch.randn(8, 4), leaf(4, 4)))


@program
def modules() -> Calls:
    made = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    made.compile(backend="aot_eager")
    yield from twice(made(torch.randn(8, 4)))
    yield from twice(compiled(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))(torch.randn(8, 4)))


@program
def amid_eager_code() -> Calls:
    w = leaf(4, 4)
    h = torch.sin(w) * 2
    yield from twice(compiled(layer)(h, w).exp())
    yield h.sum(), {}


@program
def two_regions() -> Calls:
    w, again = leaf(4, 4), compiled(lambda x, w: (x * w).sin())
    h = compiled(layer)(torch.randn(4, 4), w)
    first, second = again(h, w), again(h, w)
    apart = again(h.detach(), w)
    yield first.sum(), {}
    yield second.sum(), {}
    yield apart.sum(), {}


@program
def retained() -> Calls:
    f, w = compiled(layer), leaf(4, 4)
    out = f(torch.randn(8, 4), w)
    yield out.sum(), {"retain_graph": True}
    yield out.sum(), {}
    yield out.sum(), {}


@program
def retained_with_donated_buffers() -> Calls:
    f, w = compiled(lambda x, w: (torch.sin(x @ w) ** 2).mean()), leaf(4, 4)
    yield f(torch.randn(8, 4), w), {}
    out = f(torch.randn(8, 4), w)
    yield out, {"retain_graph": True}
    yield out, {}


@program
def restricted_to_inputs() -> Calls:
    v, w = leaf(8, 4), leaf(4, 4)
    h = compiled(layer)(torch.randn(8, 4), w)
    out = h * v
    yield out.sum(), {"inputs": [v]}
    yield h.sum(), {"inputs": [w]}
    yield h.sum(), {"inputs": [w]}


@program
def output_modified() -> Calls:
    out = compiled(layer)(torch.randn(8, 4), leaf(4, 4))
    with torch.no_grad():
        out.mul_(2)
    yield out.sum(), {}


@program
def input_modified() -> Calls:
    x = torch.randn(8, 4)
    out = compiled(layer)(x, leaf(4, 4))
    x.add_(1)
    yield out.sum(), {}


@program
def parameter_stepped() -> Calls:
    w, v = leaf(4, 4), leaf(4, 4)
    out = compiled(lambda x, w, v: layer(layer(x, w), v))(torch.randn(8, 4), w, v)
    with torch.no_grad():
        v.sub_(0.1)
    yield out.sum(), {}


@program
def input_modified_by_the_region() -> Calls:
    def modifies(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return (x @ w).tanh()

    yield from twice(compiled(modifies)(torch.randn(8, 4), leaf(4, 4)))


@program
def checkpoint_inside() -> Calls:
    def inner(x: Tensor, w: Tensor) -> Tensor:
        part: Tensor = checkpoint(layer, x, w, use_reentrant=False)
        return part.sin()

    yield from twice(compiled(inner)(torch.randn(8, 4), leaf(4, 4)))


@program
def checkpoint_around() -> Calls:
    f, w = compiled(layer), leaf(4, 4)
    yield from twice(checkpoint(f, torch.randn(8, 4), w, use_reentrant=False))
    yield from twice(checkpoint(f, leaf(8, 4), w, use_reentrant=True))


@program
def compiled_autograd() -> Calls:
    v, w = leaf(8, 4), leaf(4, 4)
    with compiling_autograd("aot_eager"):
        yield from twice(compiled(layer)(torch.randn(8, 4), w) * v)
        saved = v.exp()
        doubled = saved * 2
        with torch.no_grad():
            saved.add_(1)
        if checks_versions():
            yield doubled.sum(), {}


@program
def carried_state() -> Calls:
    f, w, h = compiled(layer), leaf(4, 4), torch.zeros(2, 4)
    for _ in range(3):
        h = f(h, w)
        yield h.sum(), {}
