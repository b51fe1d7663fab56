"""A watch with a budget looks at as many calls as that allows, and tells what comes of the others after the error."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from in_threads import in_a_thread
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradscope
from gradscope.api.scope import Scope
from gradscope.collect import state
from gradscope.collect.state import Overhead
from gradscope.errors import GradscopeError
from gradscope.model import Certainty
from tests import known
from tests.command import command, ran

NEARLY_NONE = 1e-6  # percent: only the first call is looked at


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self) -> torch.Tensor:
        loss: torch.Tensor = self.net(torch.randn(2, 4)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    @property
    def weights(self) -> list[float]:
        return [number for each in self.net.parameters() for number in each.flatten().tolist()]


def budget_of(scope: Scope) -> Overhead:
    return known(known(scope._session).state.budget)


def test_calls_pass_when_the_budget_is_spent() -> None:
    training, plain = Training(), Training()
    with gradscope.watch(budget=NEARLY_NONE) as scope:
        torch.manual_seed(1)
        for _ in range(20):
            training.step()
    torch.manual_seed(1)
    for _ in range(20):
        plain.step()
    assert training.weights == plain.weights
    summary = scope.recording().summary
    assert summary.backward_calls == 1
    assert summary.notes == (
        "19 backward calls not inspected (budget 1e-06 %); the totals exclude them",
    )


def test_without_a_budget_every_call_is_looked_at() -> None:
    training = Training()
    with gradscope.watch() as scope:
        for _ in range(20):
            training.step()
    assert (scope.summary.backward_calls, scope.summary.notes) == (20, ())


def test_what_is_spent_stays_within_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    budget = Overhead(10)
    now[0] = 1.0
    assert budget.left == pytest.approx(0.1)
    budget.spend(0.9)
    spent = 0.1 * state._AROUND + state._CACHES
    assert budget.left == pytest.approx(0.1 - spent)
    budget.rest()
    assert budget.before_clock == 0  # at a call a second it takes less until there is some left
    now[0] = 10 * spent
    assert budget.left == pytest.approx(0)


def test_calls_are_looked_at_again_when_there_is_some_left() -> None:
    training = Training()
    with gradscope.watch(budget=50) as scope:
        for _ in range(3):
            training.step()
        until = time.perf_counter() + 60
        while budget_of(scope).left < 0 and time.perf_counter() < until:
            time.sleep(0.01)
        budget_of(scope).before_clock = 0
        before = scope.summary.backward_calls
        training.step()
        assert scope.summary.backward_calls == before + 1


def test_backward_through_a_freed_graph_is_told_after_the_error() -> None:
    training = Training()
    with gradscope.watch(budget=NEARLY_NONE) as scope:
        for _ in range(5):
            loss = training.step()
        with pytest.raises(RuntimeError, match="second time"):
            (loss * 2).backward()  # fails
    (finding,) = [each for each in scope.findings if each.certainty is Certainty.CERTAIN]
    assert (finding.code, finding.missed) == ("GS101", False)
    assert "found after the error" in finding.label
    assert ("freed_by", "it was freed by a call that gradscope did not inspect") in [
        (related.role, related.message) for related in finding.related
    ]
    lines = Path(__file__).read_text().splitlines()
    assert finding.site is not None
    assert lines[finding.site.line - 1].endswith("# fails")


def test_what_a_call_has_kept_may_be_freed_by_one_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A view that was changed in place hides what it saved: a look has to ask whether it is there."""
    left = 1.0
    monkeypatch.setattr(Overhead, "left", property(lambda _: left))
    monkeypatch.setattr(Overhead, "rest", lambda _: None)
    with gradscope.watch(budget=1) as scope:
        changed = torch.ones(3, requires_grad=True).clone()
        changed[:2] = torch.ones(2)
        changed.backward(torch.ones(3), retain_graph=True)
        left = -1.0
        changed.backward(torch.ones(3))
        left = 1.0
        with pytest.raises(RuntimeError, match="a second time"):
            changed.backward(torch.ones(3))
    (finding,) = scope.findings
    assert (finding.code, finding.certainty) == ("GS101", "certain")
    said = [(related.role, related.message) for related in finding.related]
    assert said == [("freed_by", "it was freed by a call that gradscope did not inspect")]


def test_a_modified_saved_tensor_is_told_after_the_error() -> None:
    training = Training()
    with gradscope.watch(budget=NEARLY_NONE) as scope:
        for _ in range(5):
            training.step()
        loss = training.net(torch.randn(2, 4)).square().mean()
        training.optimizer.step()
        with pytest.raises(RuntimeError, match="inplace operation"):
            loss.backward()
    found = [each.code for each in scope.findings if each.certainty is Certainty.CERTAIN]
    assert found == ["GS201"]


def test_what_was_predicted_before_stays() -> None:
    with gradscope.watch(budget=NEARLY_NONE) as scope:
        hidden = torch.ones(3, requires_grad=True).exp()
        hidden.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            (hidden * 2).sum().backward()
    assert "GS101" in [each.code for each in scope.findings]


def test_calls_within_a_call_that_passes_pass_too() -> None:
    training = Training()

    def loss() -> torch.Tensor:
        x = torch.randn(2, 4, requires_grad=True)
        out: torch.Tensor = checkpoint(training.net, x, use_reentrant=True).square().mean()
        return out

    with gradscope.watch(budget=NEARLY_NONE) as scope:
        loss().backward()
        before = scope.summary.backward_calls
        for _ in range(3):
            loss().backward()
        assert budget_of(scope).within == 0
        assert scope.summary.backward_calls == before
        assert budget_of(scope).passed == 3


def test_calls_of_other_threads_pass_too() -> None:
    training = Training()
    with gradscope.watch(budget=NEARLY_NONE) as scope:
        training.step()
        in_a_thread(training.step)
        training.step()
        assert budget_of(scope).passed == 2


def test_what_another_thread_runs_meanwhile_is_no_call_around() -> None:
    """Of two calls in one thread, the outer is looked at after the error."""
    began, failed = Event(), Event()

    def meanwhile(_: torch.Tensor) -> None:
        began.set()
        failed.wait(10)

    with gradscope.watch(budget=NEARLY_NONE) as scope, ThreadPoolExecutor(1) as pool:
        loss = Training().step()
        slow = torch.ones(2, requires_grad=True).exp()
        slow.register_hook(meanwhile)
        other = pool.submit(slow.sum().backward)
        began.wait(10)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        failed.set()
        other.result()
        assert budget_of(scope).within == 0
    assert [(each.code, each.missed) for each in scope.findings] == [("GS101", False)]


def test_nothing_passes_when_the_watch_is_over() -> None:
    """Another tool may have put its own function around the watch's, which then stays."""
    training = Training()
    with gradscope.watch(budget=NEARLY_NONE) as scope:
        training.step()
        budget, stays = budget_of(scope), torch.autograd.graph._engine_run_backward
    loss = training.net(torch.randn(2, 4)).mean()
    stays((loss,), (torch.ones(()),), False, False, (), True, True)
    assert (budget.passed, budget.rests) == (0, False)


@pytest.mark.parametrize("budget", [0.0, -1, 101, "much"])
def test_a_budget_is_a_share(budget: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        gradscope.watch(budget=budget)


def test_the_environment_and_the_project_may_set_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text("[tool.gradscope]\nbudget = 3\n")
    with gradscope.watch() as scope:
        assert budget_of(scope).percent == 3
    monkeypatch.setenv("GRADSCOPE_BUDGET", "2.5")
    with gradscope.watch() as scope:
        assert budget_of(scope).percent == 2.5
    with gradscope.watch(budget=1) as scope:
        assert budget_of(scope).percent == 1
    with gradscope.watch(settings=False) as scope:  # as where fixes are tried
        assert known(scope._session).state.budget is None
    monkeypatch.delenv("GRADSCOPE_BUDGET")
    project.write_text("[tool.gradscope]\nbudget = 300\n")
    with pytest.raises(GradscopeError, match="budget"):
        gradscope.watch()


SCRIPT = """
import torch
state = torch.ones(3, requires_grad=True).exp()
for _ in range(4):
    torch.ones(3, requires_grad=True).exp().sum().backward()
state.sum().backward()
state.sum().backward()
"""


@pytest.mark.parametrize(
    ("budget", "status", "says"),
    [
        ("0.01", 1, "(budget 0.01 %); the totals exclude them"),
        ("0", 2, "Invalid value for '--budget'"),
    ],
)
def test_a_script_is_run_within_a_budget(
    budget: str, status: int, says: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = ran(*command("run", "--budget", budget, script))
    assert done.returncode == status
    assert says in " ".join(done.stderr.split())
    assert ("error[GS101]" in done.stderr) == (status == 1)
