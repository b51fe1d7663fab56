"""``gradscope.why``, and a watch that follows each tensor."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import gradscope
from gradscope.collect.tensor_tracer import TensorTracer
from gradscope.errors import GradscopeError
from tests.command import ran_well
from tests.zygote import python

X = torch.ones(3, 4)


class Net(nn.Module):
    hidden: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.encoder(x).relu()
        features = self.hidden.detach()  # the cut
        return features @ self.head.weight.T + self.head.bias


def line_of(text: str) -> int:
    lines, first = inspect.getsourcelines(inspect.getmodule(line_of))  # type: ignore[arg-type]
    return max(first, 1) + next(i for i, line in enumerate(lines) if line.rstrip().endswith(text))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_a_way_that_is_cut(net: Net) -> None:
    with gradscope.watch(ways=True):
        loss = net(X).pow(2).mean()
    answer = gradscope.why(net.encoder.weight, loss=loss)
    assert answer.arrives is False
    assert answer.cuts is not None
    ((site, operation, parameters),) = answer.cuts
    assert site is not None
    assert (site.line, operation, parameters) == (
        line_of("# the cut"), "detach", ("net.encoder.weight",)
    )  # fmt: skip
    first, *_ = str(answer).splitlines()
    assert first == "`net.encoder.weight` f32[8, 4]: no gradient arrives from `loss`"
    assert "behind the cut: `net.encoder.weight` (32 numbers)" in str(answer)
    states = [str(row.state) for row in answer.ways]
    assert states == ["gradient", "gradient", "cut", "no gradient"]


def test_a_gradient_arrives(net: Net) -> None:
    with gradscope.watch(ways=True):
        loss = net(X).pow(2).mean()
    answer = gradscope.why(net.head, loss)
    assert (answer.arrives, answer.cuts) == (True, ())
    assert "`net.head.*` (2 parameters): a gradient arrives from `loss`" in str(answer)
    whole = gradscope.why(net, loss)
    assert whole.arrives is False
    assert "`net.unused.*` (2 parameters): nothing was computed from them" in str(whole)


def test_a_loss_of_many_numbers(net: Net) -> None:
    losses = net(X).pow(2)
    assert gradscope.why(net.head.weight, losses).arrives is True


def test_of_the_calls_that_were_made(net: Net) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with gradscope.watch(ways=True):
        for _ in range(2):
            optimizer.zero_grad()
            net(X).pow(2).mean().backward()
            optimizer.step()
    assert gradscope.why(net.head).arrives is True
    text = " ".join(str(gradscope.why(net.head.weight)).split())
    assert "in 2 of 2 steps; optimizer.step() uses it" in text
    skipped = gradscope.why(net.encoder)
    assert skipped.arrives is False
    assert "; optimizer.step() skips them" in " ".join(str(skipped).split())


def test_of_a_tensor_that_was_computed(net: Net) -> None:
    with gradscope.watch(ways=True):
        loss = net(X).pow(2).mean()
        with torch.no_grad():
            target = net.encoder(X)
    cut = gradscope.why(net.hidden, loss)
    assert cut.arrives is False
    assert str(cut).startswith("`net.hidden` f32[3, 8]: no gradient arrives from `loss`")
    has = gradscope.why(net.hidden)
    assert (has.arrives, str(has)) == (
        True, "`net.hidden` has a graph: it leads to 2 leaves, `net.encoder.*`"
    )  # fmt: skip
    lacks = gradscope.why(target)
    assert lacks.arrives is False
    assert str(lacks).startswith("`target` has no graph: the way is cut")
    assert lacks.cuts is not None
    assert lacks.cuts[0].operation == "no_grad"


def test_without_a_watch_the_graph_is_what_is_known(net: Net) -> None:
    loss = net(X).pow(2).mean()
    answer = gradscope.why(net.encoder, loss)
    assert (answer.arrives, answer.cuts) == (False, None)
    first, last = str(answer).splitlines()
    assert first == "no edge of `loss` leads to `net.encoder.*`"
    assert last.endswith("only of code run under watch(ways=True)")
    assert gradscope.why(net.head, loss).arrives is True
    assert gradscope.why(net.head).arrives is None
    with torch.no_grad():
        assert gradscope.why(net.head, net(X).sum()).arrives is False
    net.requires_grad_(False)
    assert str(gradscope.why(net.head.bias)) == "`net.head.bias`: requires_grad is off"
    with pytest.raises(GradscopeError, match=r"run the code under gradscope.watch\(ways=True\)"):
        answer.draw()


@pytest.mark.parametrize("wrong", [3, nn.ReLU(), "loss", None])
def test_what_it_cannot_take(wrong: Any) -> None:
    with pytest.raises(GradscopeError, match="a tensor, or a module that has parameters"):
        gradscope.why(wrong)
    with pytest.raises(GradscopeError, match="loss is a list"):
        gradscope.why(torch.ones(1), [])  # type: ignore[arg-type]


def test_an_assertion_says_where_the_way_is_cut(net: Net) -> None:
    def failure() -> str:
        with pytest.raises(AssertionError) as raised:
            gradscope.assert_trains(loss, net.encoder)
        return str(raised.value)

    loss = net(X).pow(2).mean()
    assert failure().splitlines()[1:] == [
        "no edge of `loss` leads to `net.encoder.weight`",
        "where ways lead, and are cut, is known only of code run under watch(ways=True)",
    ]
    with gradscope.watch(ways=True):
        loss = net(X).pow(2).mean()
    assert "cut: detach" in failure()
    assert len(failure().splitlines()) <= 9


def _values(net: Net) -> list[Any]:
    loss = net(X).pow(2).mean()
    number, array = loss.item(), loss.detach().numpy()
    back = torch.from_numpy(array) + torch.tensor(number) + float(loss)
    parameter = nn.Parameter(torch.full((2,), number))
    return [number, array, back, parameter, np.asarray(array) * 2, loss.tolist()]


def test_what_it_follows_stays_as_it_is(net: Net) -> None:
    plain = _values(net)
    with gradscope.watch(ways=True):
        followed = _values(net)
    assert [*map(type, followed)] == [*map(type, plain)]
    assert [*map(repr, followed)] == [*map(repr, plain)]


def _replaced() -> list[object]:
    owners: list[tuple[Any, str]] = [
        *((torch, name) for name in ("compile", "from_numpy")),
        *((torch.inference_mode, name) for name in ("__enter__", "__exit__")),
        (torch.nn.Parameter, "__new__"),
        (torch.autograd.Function, "apply"),
        (torch.autograd.graph, "_engine_run_backward"),
        (torch.optim.Optimizer, "add_param_group"),
        (threading.Thread, "_bootstrap"),
    ]
    return [vars(owner).get(name) for owner, name in owners]


@pytest.mark.parametrize("ends", [lambda: None, lambda: 1 / 0])
def test_nothing_of_it_is_left(net: Net, ends: Callable[[], object]) -> None:
    before = _replaced()
    with suppress(ZeroDivisionError), gradscope.watch(ways=True), gradscope.watch(ways=True):
        assert len(_get_current_function_mode_stack()) == 2
        net(X).sum().backward()
        ends()
    assert _get_current_function_mode_stack() == []
    assert _replaced() == before


def test_what_fails_in_it_is_noted_and_the_program_goes_on(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorTracer, "_outs", int)  # no code of the program's, whose errors go on
    with gradscope.watch(ways=True) as scope:
        loss = net(X).pow(2).mean()
        loss.backward()
    assert net.head.weight.grad is not None
    (note,) = scope.summary.notes
    assert note.startswith("following tensors failed in gradscope (TypeError: ")
    assert gradscope.why(net.encoder, loss).cuts is None
    assert _get_current_function_mode_stack() == []


DEEP = """
import gradscope, torch
leaf = loss = torch.nn.Parameter(torch.zeros(1))
for _ in range(400_000):
    loss = loss + 1
print(gradscope.why(leaf, loss))
with gradscope.watch(ways=True):
    loss.backward()
del loss
"""


def test_a_deep_graph_is_not_destroyed_by_too_deep_a_recursion(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(DEEP)
    done = ran_well(python(), tmp_path / "deep.py")
    assert done.stdout == "the graph of `loss` is too large to be walked here\n"


def test_other_threads_are_followed(net: Net) -> None:
    found: list[torch.Tensor] = []
    with gradscope.watch(ways=True):
        worker = threading.Thread(target=lambda: found.append(net(X).sum()))
        worker.start()
        worker.join()
    assert gradscope.why(net.encoder, found[0]).cuts


def test_what_is_compiled_runs_as_it_is_written(net: Net) -> None:
    compiled = torch.compile(net, backend="eager")
    with gradscope.watch(ways=True):
        loss = compiled(X).sum()
        fresh = torch.compile(Net(), backend="eager")(X)
    assert gradscope.why(net.encoder, loss).cuts
    assert gradscope.why(fresh).arrives is True
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_a_picture(net: Net, tmp_path: Path) -> None:
    with gradscope.watch(ways=True):
        loss = net(X).pow(2).mean()
    answer = gradscope.why(net.encoder, loss)
    answer.draw(tmp_path / "way.svg")
    assert "detach" in (tmp_path / "way.svg").read_text()
    bundle = answer._repr_mimebundle_()
    assert bundle["text/plain"] == str(answer)
    assert bundle["image/svg+xml"].startswith("<?xml")
