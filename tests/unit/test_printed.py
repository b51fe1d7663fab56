"""What ``print`` shows of graphs, saved tensors, findings and calls."""

from __future__ import annotations

import pytest
import torch

import gradscope


def test_graph() -> None:
    a, b = torch.rand(2, requires_grad=True), torch.rand(2)
    loss = (a * b).exp().sum()
    assert str(gradscope.snapshot(loss)).splitlines() == [
        "backward graph of loss f32[]: 4 nodes (2 live); it holds 16 B of saved tensors",
        "           node            state       saved                      next",
        "loss  [0]  SumBackward0    bufferless                             → [1]",
        "      [1]  ExpBackward0    live        result f32[2]  8 B         → [2]",
        "      [2]  MulBackward0    live        other f32[2]  8 B          → [3]",
        "                                       (not needed: self)",
        "      [3]  AccumulateGrad  leaf        gradient goes to a f32[2]",
    ]


def test_graph_without_saved_tensors() -> None:
    loss = torch.rand(2, requires_grad=True).sum()
    assert "2 nodes; it saved nothing: backward may run any number of times" in str(
        gradscope.snapshot(loss)
    )


def test_graph_that_is_very_large_is_cut() -> None:
    y = torch.rand(2, requires_grad=True)
    for _ in range(300):
        y = y + 1
    printed = str(gradscope.snapshot(y))
    assert printed.endswith("… and 101 more nodes")
    assert len(printed.splitlines()) == 203


def test_what_is_not_needed_is_not_said_of_a_freed_node() -> None:
    a, b = torch.rand(2, requires_grad=True), torch.rand(2)
    loss = (a * b).sum()
    assert gradscope.snapshot(loss).nodes[1].unneeded == ("self",)
    loss.backward()
    assert gradscope.snapshot(loss).nodes[1].unneeded == ()


def test_what_a_backward_call_built_names_the_node_that_it_differentiates() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())
    with gradscope.watch() as scope:
        x = torch.rand(4, 2, requires_grad=True)
        x.register_hook(lambda grad: grad * grad.exp())
        y = net(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        slope.sum().backward()
        graph = scope.recording().graphs[2]
    first = test_what_a_backward_call_built_names_the_node_that_it_differentiates.__code__
    forward = f"{__file__.rpartition('/')[2]}:{first.co_firstlineno + 5}"
    found = {(n.name, n.module, n.differentiates) for n in graph.nodes if n.saved}
    assert {
        ("TanhBackward0", "net.1", ""),
        ("TanhBackwardBackward0", "net.1", f"TanhBackward0 of {forward}"),
        ("MmBackward0", "net.0", f"AddmmBackward0 of {forward}"),
        ("ExpBackward0", None, ""),  # the program's own, in a hook
    } <= found
    assert f"TanhBackward0 of {forward}" in str(graph)


def test_saved_tensors() -> None:
    a = torch.rand(2, requires_grad=True)
    loss = (a * a).exp().sum()
    assert str(gradscope.saved_tensors(loss)).splitlines() == [
        "node          saved          bytes         state  variable",
        "ExpBackward0  result f32[2]  8 B           saved",
        "MulBackward0  other f32[2]   8 B (a leaf)  saved  a",
        "MulBackward0  self f32[2]    8 B (a leaf)  saved  a",
    ]
    loss.backward()
    assert repr(gradscope.saved_tensors(loss)) == "no saved tensor is there"


def test_check() -> None:
    loss = torch.rand(2, requires_grad=True).exp().sum()
    assert str(gradscope.check(loss)).startswith("backward would run")
    assert not gradscope.check(loss)
    loss.backward()
    assert str(gradscope.check(loss)).startswith("error[GS101]: backward through a freed graph\n")
    assert repr(gradscope.check(loss)).startswith("error[GS101]")


def test_check_of_one_loss_twice_says_to_run_the_forward_again() -> None:
    with gradscope.watch():
        loss = torch.rand(2, requires_grad=True).exp().sum()
        loss.backward()
        assert "run the forward pass again" in str(gradscope.check(loss))


def test_holders() -> None:
    kept = [torch.rand(2, requires_grad=True).exp()]
    printed = str(gradscope.holders(kept[0]))
    assert (
        printed
        == "kept[0], from a local variable of test_holders() in test_printed.py, holds this tensor"
    )


def test_calls_findings_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    with gradscope.watch(on_call=print, on_finding=print) as scope:
        assert str(scope.findings) == "no finding"
        loss = torch.rand(2, requires_grad=True).exp().sum()
        loss.backward()
        running = str(scope)
        loss = torch.rand(2, requires_grad=True).exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError):
            loss.backward()
    said = capsys.readouterr().out
    calls = [line for line in said.splitlines() if line.startswith("call ")]
    assert calls[0].startswith("call 1  loss.backward()  test_printed.py:")
    assert calls[0].endswith("built 2  destroyed 0  run 3  freed 1 (8 B)  retained 0 B")
    assert calls[2].endswith("freed 0 (0 B)  retained 0 B  raised RuntimeError")
    assert "nothing found in 1 backward call; too short to say whether graphs grow" in running
    assert str(scope).endswith("next: gradscope explain GS101")
    assert str(scope.findings) in str(scope)
    assert str(scope.findings[-1]) in said
    assert str(scope.findings[-1]).startswith("error[GS101]: backward through a freed graph\n")


def test_summary() -> None:
    with gradscope.watch() as scope:
        loss = torch.rand(2, requires_grad=True).exp().sum()
        loss.backward()
        expected = [
            "nodes          2 built, 0 destroyed, 2 alive",
            "saved tensors  1 saved, 1 freed by backward",
            "held           0 B now, 8 B at the peak",
        ]
        assert str(scope.summary).splitlines() == expected
    assert str(scope.summary).splitlines() == expected
