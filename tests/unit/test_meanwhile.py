"""Threads and hooks that share a graph: what is certain, and what no look before a call can see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from in_threads import in_a_thread
from torch import Tensor

import gradscope
from gradscope.api.watch import current
from gradscope.detect import hazards
from gradscope.model import Certainty, Finding
from tests import known

HOOKS = pytest.mark.parametrize("hooks", [True, False])


def leaf() -> Tensor:
    return torch.ones(3, requires_grad=True)


def notes(finding: Finding) -> dict[str, str]:
    return {one.role: one.message for one in finding.related}


@HOOKS
def test_what_another_thread_freed_before_is_certain(hooks: bool) -> None:
    with gradscope.watch(hooks=hooks) as scope:
        loss = leaf().exp().sum()
        in_a_thread(loss.backward, name="worker")
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    (found,) = scope.findings
    assert (found.code, found.certainty) == ("GS101", Certainty.CERTAIN)
    assert "backward call 1 in thread 'worker'" in notes(found)["freed_by"]
    assert not hooks or "created" in notes(found)


@HOOKS
def test_what_another_thread_will_run_is_certain(hooks: bool) -> None:
    raised: list[BaseException] = []
    with gradscope.watch(hooks=hooks) as scope:
        loss = leaf().exp().sum()
        loss.backward()
        in_a_thread(lambda: _kept(loss.backward, raised), name="worker")
    (found,) = (f for f in scope.findings if f.certainty is Certainty.CERTAIN)
    assert (found.code, len(raised)) == ("GS101", 1)
    assert "backward call 1 in thread 'MainThread'" in notes(found)["freed_by"]


def _kept(run: Callable[[], object], raised: list[BaseException]) -> None:
    try:
        run()
    except RuntimeError as error:
        raised.append(error)


@HOOKS
def test_two_threads_of_a_pool_are_as_certain(hooks: bool) -> None:
    with gradscope.watch(hooks=hooks) as scope, ThreadPoolExecutor(2) as pool:
        loss = leaf().exp().sum()
        pool.submit(loss.backward).result()
        with pytest.raises(RuntimeError, match="second time"):
            pool.submit(loss.backward).result()
    (found,) = scope.findings
    assert (found.code, found.certainty) == ("GS101", Certainty.CERTAIN)
    assert ", in thread 'ThreadPool" in found.label  # no line of the user's calls it there


def freed_in_a_thread(shared: Tensor) -> None:
    with torch.enable_grad():
        in_a_thread(shared.sum().backward, name="rival")


def freed_in_a_hook(shared: Tensor) -> None:
    with torch.enable_grad():
        shared.sum().backward()


def modified_in_a_thread(shared: Tensor) -> None:
    in_a_thread(lambda: shared.detach().add_(1), name="rival")


def modified_in_a_hook(shared: Tensor) -> None:
    shared.detach().add_(1)


@HOOKS
@pytest.mark.parametrize(
    ("meanwhile", "code", "role", "words"),
    [
        (freed_in_a_thread, "GS101", "freed_by", "backward call 2, in thread 'rival', while"),
        (freed_in_a_hook, "GS101", "freed_by", "backward call 2, made inside of this one"),
        (modified_in_a_thread, "GS201", "modified_by", "by a hook, or by another thread"),
        (modified_in_a_hook, "GS201", "modified_by", "by a hook, or by another thread"),
    ],
)
def test_what_happens_while_a_call_runs_is_told_as_that(
    meanwhile: Callable[[Tensor], None], code: str, role: str, words: str, hooks: bool
) -> None:
    with gradscope.watch(hooks=hooks) as scope:
        shared = leaf().exp()
        doubled = shared * 2
        doubled.register_hook(lambda gradient: meanwhile(shared))
        with pytest.raises(RuntimeError):
            doubled.sum().backward()
    (found,) = (f for f in scope.findings if f.backward_call == 1)
    assert (found.code, found.certainty, found.missed) == (code, Certainty.OBSERVED, False)
    assert words in notes(found)[role]
    assert not hooks or "created" in notes(found)


@HOOKS
def test_threads_that_race_are_never_a_miss(hooks: bool) -> None:
    raised: list[BaseException] = []
    with gradscope.watch(hooks=hooks) as scope:
        for _ in range(20):
            shared = leaf().exp().sin().cos()
            losses = [(shared * k).sum() for k in (1, 2)]
            threads = [
                threading.Thread(target=_kept, args=(loss.backward, raised)) for loss in losses
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert raised
    found = scope.recording().findings
    assert sum(f.count for f in found if f.code == "GS101") == len(raised)
    assert not [f for f in found if f.missed]


def test_an_error_that_was_predicted_is_no_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hazards, "examine", lambda evidence: [])
    with gradscope.watch() as scope:
        out = leaf().exp()
        out.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.mean().backward()
    predicted, raised = scope.findings
    assert predicted.code == "GS102"
    assert (raised.code, raised.missed, raised.fix) == ("GS101", False, predicted.fix)
    assert predicted.announces(raised)


def test_an_error_that_nobody_saw_coming_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hazards, "examine", lambda evidence: [])
    loss = leaf().exp().sum()
    with gradscope.watch(hooks=False) as scope:
        loss.backward()
        session = known(current())
        session.state.foretold.clear()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    assert [f.missed for f in scope.findings if f.code == "GS101"] == [True]
