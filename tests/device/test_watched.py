"""A watch on a device: what the program does is the same, and what is said of it is what is said on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import gradscope
from gradscope.api.scope import Scope
from gradscope.api.watch import current
from gradscope.detect.lookahead import Schedule
from tests import device, known
from tests.device.forked import on_device

Step = Callable[[], None]


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


class ByFunc(Function):
    """Differentiates in its backward by ``torch.func``, which refuses default hooks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
            slope: torch.Tensor = torch.func.grad(lambda t: (t**3).sum())(x)
        return grads[0] * slope


@pytest.mark.full
@on_device()
def test_a_hook_and_a_function_may_refuse_default_hooks() -> None:
    grads = []
    for watched in (False, True):
        x = torch.arange(3.0, device="sim").requires_grad_()
        y = ByFunc.apply(x)  # type: ignore[no-untyped-call]
        y.register_hook(lambda g, x=x: g * torch.func.grad(lambda t: (t**2).sum())(x.detach()))
        if watched:
            with gradscope.watch() as scope:
                y.sum().backward()
            assert scope.summary.notes[:-1] == ()
        else:
            y.sum().backward()
        grads.append(known(x.grad).tolist())
    assert grads[0] == grads[1] == [0.0, 6.0, 48.0]


@pytest.mark.full
@on_device()
def test_the_program_sees_its_own_pairs_of_hooks_and_none_of_ours() -> None:
    top: Any = torch._C._autograd._top_saved_tensors_default_hooks
    met = []

    def look(grad: torch.Tensor) -> None:
        top = torch._C._autograd._top_saved_tensors_default_hooks
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            met.append((top(True), top(True) is None))

    with gradscope.watch():
        x = torch.ones(3, device="sim", requires_grad=True)
        x.register_hook(look)
        x.sum().backward()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert [seen[1] for seen in met] == [False]
    assert top(True) is None


@pytest.mark.full
@on_device()
def test_the_error_of_a_stale_tensor_has_torch_s_words() -> None:
    texts = []
    for watching in (nullcontext(), gradscope.watch()):
        with watching as scope:
            x = torch.ones(3, device="sim", requires_grad=True)
            y = x.exp()
            y.add_(1)
            with pytest.raises(RuntimeError) as raised:
                y.sum().backward()
        texts.append(str(raised.value))
    assert scope is not None
    assert texts[0] == texts[1]
    assert "is at version 1; expected version 0 instead. Hint" in texts[1]
    assert [f.code for f in scope.findings] == ["GS202", "GS201"]
    assert not any("gradscope" in note for note in scope.summary.notes)


@on_device()
def test_a_call_in_a_thread_of_the_engine_belongs_to_the_call_that_is_open() -> None:
    net = small_net().to("sim")
    with gradscope.watch() as scope:
        h = torch.ones(2, 4, device="sim", requires_grad=True)
        checkpoint(net, h, use_reentrant=True).sum().backward()
        outer, inner = sorted(scope.recording().calls, key=lambda call: call.number)
    assert inner.parent == outer.number
    assert inner.thread == outer.thread == threading.current_thread().name
    assert inner.site == outer.site is not None
    assert threading.active_count() == 1
    assert (scope.summary.nodes, outer.oldest_generation) == (7, None)


def penalty(net: nn.Sequential) -> torch.Tensor:
    x = torch.randn(4, 4, device=next(net.parameters()).device, requires_grad=True)
    out = net(x)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss: torch.Tensor = out.mean() + (grad.norm(dim=1) - 1).pow(2).mean()
    return loss


@pytest.mark.full
@on_device()
def test_nodes_that_torch_numbers_alike_are_apart_and_have_lines() -> None:
    net = small_net().to("sim")
    with gradscope.watch() as scope:
        loss = penalty(net)
        loss.backward()
        recording = scope.recording()
    nodes = max((graph.nodes for graph in recording.graphs.values()), key=len)
    numbers = [node.sequence_nr for node in nodes if node.sequence_nr is not None]
    assert len(set(numbers)) == len(numbers)
    assert {node.variable for node in nodes if node.variable} == {
        *(f"net.{name}" for name, _ in net.named_parameters() if name != "2.bias"),
        *("net.2.bias", "x"),
    }
    built = [node for node in nodes if (node.sequence_nr or 0) >= 2**40 and node.saved]
    assert len(built) >= 3
    lines = {node.site.line for node in built if node.site}
    first = penalty.__code__.co_firstlineno
    assert lines == {first + 3}
    assert all(node.site for node in built)
    forward = {node.differentiates.rpartition(" of ")[2] for node in built}
    assert forward == {f"test_watched.py:{first + 2}"}


@pytest.mark.full
@on_device()
def test_a_node_that_saved_only_a_number_is_not_taken_for_one_of_the_engine_s() -> None:
    def built(where: str) -> int:
        with gradscope.watch() as scope:
            x = torch.ones(3, device=where, requires_grad=True)
            y = x.exp()

            @torch.enable_grad()
            def hook(grad: torch.Tensor) -> None:
                y.sum().backward(retain_graph=True)

            for _ in range(3):
                h = x.tan()
                h.register_hook(hook)
                h.sum().backward()
                (x * 2).sum().backward()
        return scope.summary.nodes

    assert built("sim") == built("cpu") == 16


def gradient_penalty() -> Step:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        penalty(net).backward()
        optimizer.step()

    return step


def reentrant_checkpoints() -> Step:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        h = torch.randn(2, 4, requires_grad=True)
        for _ in range(3):
            h = checkpoint(net, h, use_reentrant=True)
        h.sum().backward()
        optimizer.step()

    return step


def tensor_hooks() -> Step:
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        h = net[1](net[0](torch.randn(2, 4)))
        h.register_hook(lambda grad: grad * 2 + (grad**2).sum())
        net[2](h).sum().backward()
        optimizer.step()

    return step


def run_steps(make: Callable[[], Step], count: int = 40) -> tuple[Scope, int]:
    """Run a loop under a watch; return that, and how many calls were recognized without hooks."""
    step = make()
    # Which calls are woken depends on the time that there was to read ahead: here there is none.
    with (
        mock.patch.object(Schedule, "has_time", return_value=False),
        gradscope.watch() as scope,
    ):
        for _ in map(int, range(count)):  # of which it is not known how many are left
            step()
        light = known(current()).state.guarded
    return scope, light


@pytest.mark.full(but=1)
@pytest.mark.parametrize("make", [gradient_penalty, reentrant_checkpoints, tensor_hooks])
@on_device()
def test_calls_are_as_light_as_on_the_cpu_and_totals_are_the_same(make: Callable[[], Step]) -> None:
    on_cpu, light = run_steps(make)
    device.make_on("sim")
    on_sim, light_on_sim = run_steps(make)
    assert light_on_sim == light > 25
    for name in ("saved_tensors", "saved_bytes", "freed_tensors", "freed_bytes", "nodes"):
        assert getattr(on_sim.summary, name) == getattr(on_cpu.summary, name), name
    summary = on_sim.summary
    gone = summary.freed_bytes + summary.dropped_bytes
    assert summary.saved_bytes == gone + summary.live_bytes
    assert not on_sim.findings
    assert not on_cpu.findings


@pytest.mark.full
@pytest.mark.parametrize("make", [gradient_penalty, reentrant_checkpoints, tensor_hooks])
@on_device()
def test_nothing_is_read_from_the_device(make: Callable[[], Step]) -> None:
    device.make_on("sim")
    sim = device.load()
    step = make()
    for _ in range(3):
        step()
    before = sim.waits(), sim.downloads()
    sim.forbid_waiting(True)
    with gradscope.watch() as scope:
        for _ in range(30):
            step()
    assert (sim.waits(), sim.downloads()) == before
    assert not any("failed" in note for note in scope.summary.notes)


@on_device(2)
def test_the_report_tells_the_bytes_of_each_device() -> None:
    with gradscope.watch() as scope:
        one = torch.ones(250, device="sim:0", requires_grad=True)
        two = torch.ones(500, device="sim:1", requires_grad=True)
        (one.exp().sum() + two.exp().sum().to("sim:0")).backward()
    saved = [s for g in scope.recording().graphs.values() for n in g.nodes for s in n.saved]
    assert {(s.device, s.nbytes) for s in saved} == {("sim:0", 1_000), ("sim:1", 2_000)}
    assert any(note.startswith("all tensors on sim:1 took") for note in scope.summary.notes)
