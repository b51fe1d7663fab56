"""Watching for many iterations leaves no tensor, node or storage behind, and costs no saved bytes."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any

import torch
from torch import nn

import gradscope


def live_objects() -> Counter[str]:
    gc.collect()
    kinds: Counter[str] = Counter()
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            kinds["tensors"] += 1
        elif (
            type(thing).__module__ == "gradscope.collect.saved_bytes"
            and "Packed" in type(thing).__name__
        ):
            kinds["packed"] += 1
        elif type(thing).__name__.endswith(("Backward0", "AccumulateGrad")):
            kinds["nodes"] += 1
    return kinds


def train(iterations: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(iterations):
        loss = net(torch.randn(4, 6)).pow(2).mean()
        if step % 5 == 4:
            continue  # a graph that no backward ever visits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_two_hundred_iterations_leave_nothing() -> None:
    with gradscope.watch() as scope:
        train(20)
        before = live_objects()
        train(200)
        assert live_objects() == before
        summary = scope.recording().summary
        assert summary.live_bytes == 0
        assert summary.freed_tensors + summary.dropped_tensors == summary.saved_tensors > 0
    assert not live_objects()["packed"]


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        _, y = ctx.saved_tensors
        return grads[0] * y


def test_an_output_that_a_function_saved_goes_with_a_graph_that_is_not_run() -> None:
    with gradscope.watch():
        x = torch.ones(3, requires_grad=True) * 1
        y = Exp.apply(x)  # type: ignore[no-untyped-call]
        last = weakref.ref(x), weakref.ref(y)
        del x, y
        gc.collect()
        assert [one() for one in last] == [None, None]


def peak_of_live_saved_bytes(watched: bool) -> int:
    """The most bytes of tensors alive at the end of a forward pass, by what Python's collector and torch report."""
    from torch.profiler import ProfilerActivity, profile

    def measure() -> int:
        net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)), nn.Tanh(), nn.Softmax(-1))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            net(torch.randn(32, 64)).sum().backward()
        live = peak = 0
        for event in profiler.profiler.kineto_results.events():
            if event.name() == "[memory]":
                live += event.nbytes()
                peak = max(peak, live)
        return peak

    torch.manual_seed(0)
    measure()
    if not watched:
        return measure()
    with gradscope.watch():
        return measure()


def test_the_peak_is_that_of_the_plain_run() -> None:
    assert peak_of_live_saved_bytes(watched=True) == peak_of_live_saved_bytes(watched=False) > 0
