"""The simulated device does what tests rely on: threads of the engine's, separate sequence numbers, counters."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch

import gradscope
from tests import device, known
from tests.device.forked import on_device


@on_device(2)
def test_the_engine_has_a_thread_for_each_device() -> None:
    threads, numbers = {}, {}
    one = torch.ones(3, device="sim:0", requires_grad=True)
    two = torch.ones(3, device="sim:1", requires_grad=True)
    host = torch.ones(3, requires_grad=True)
    for name, tensor in (("one", one), ("two", two), ("host", host)):

        def note(grad: torch.Tensor, name: str = name) -> None:
            threads[name] = threading.get_ident()
            numbers[name] = torch._C._autograd._get_sequence_nr()

        tensor.register_hook(note)
    (one.tanh() + two.tanh().to("sim:0") + host.to("sim:0")).sum().backward()
    assert threads["host"] == threading.get_ident()
    assert len(set(threads.values())) == 3
    assert numbers["one"] == numbers["two"] == 0 < numbers["host"]
    assert known(one.grad).device == torch.device("sim", 0)


@pytest.mark.full
@on_device()
def test_what_makes_the_host_wait_is_counted_and_refused() -> None:
    sim = device.load()
    x = torch.ones(3, device="sim", requires_grad=True)
    (x * 2).sum().backward()
    assert (sim.waits(), sim.downloads()) == (0, 0)
    assert known(x.grad).tolist() == [2.0, 2.0, 2.0]
    x.sum().item()
    torch.sim.synchronize()  # type: ignore[attr-defined]
    assert sim.waits() >= 1
    assert sim.downloads() == 1
    sim.forbid_waiting(True)
    for read in (x.cpu, x.sum().item, x.nonzero):
        with pytest.raises(RuntimeError, match="the host waits"):
            read()


@pytest.mark.full
@on_device(2)
def test_memory_is_counted_by_device() -> None:
    sim = device.load(2)
    x = torch.ones(1_000, device="sim:1")
    y = x * 2
    assert (sim.memory_allocated(0), sim.memory_allocated(1)) == (0, 8_000)
    del y
    assert (sim.memory_allocated(1), sim.max_memory_allocated(1)) == (4_000, 8_000)


@pytest.mark.full
@on_device()
def test_networks_compute_what_they_compute_on_the_cpu() -> None:
    for make in (
        lambda: torch.nn.LSTM(3, 4),
        lambda: torch.nn.GRU(3, 4),
        lambda: torch.nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0),
    ):
        net, x = make(), torch.randn(2, 5, 3)
        results = []
        for where in ("cpu", "sim"):
            net.zero_grad()
            out = net.to(where)(x.to(where))
            (out[0] if isinstance(out, tuple) else out).sum().backward()
            results.append([p.grad.cpu() for p in net.parameters() if p.grad is not None])
        for on_host, on_sim in zip(*results, strict=True):
            torch.testing.assert_close(on_sim, on_host)


@on_device()
def test_memory_that_runs_out_on_the_device_is_explained_and_told_once_where_the_program_goes_on() -> (
    None
):
    sim = device.load()
    torch.manual_seed(0)
    layers = [(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(4)]
    model = torch.nn.Sequential(*itertools.chain(*layers)).to("sim")
    sim.limit_memory(sim.memory_allocated() + 8_000_000)

    def step(size: int) -> None:
        model(torch.randn(size, 256, device="sim")).mean().backward()

    with gradscope.watch() as scope:
        step(256)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            step(1024)
        step(512)
    with pytest.raises(torch.cuda.OutOfMemoryError), gradscope.watch() as ended:
        step(1024)
    for finding, said in (
        (scope.findings[0], "out of memory, but the program caught it"),
        (ended.findings[0], "out of memory"),
    ):
        assert finding.message == f"{said}: one batch is too large"
        assert [fix.kind for fix in finding.fixes][-1] == "smaller_batch"
    assert [len(each.findings) for each in (scope, ended)] == [1, 1]
