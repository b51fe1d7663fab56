"""What check, snapshot and a watch say of a call, and what the engine does with it, are the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import compiled_programs
import function_programs
import operator_programs
import pytest
import torch
from compiled_programs import Calls

import gradscope
from gradscope.api.scope import Scope
from gradscope.model import Certainty, NodeState, Severity
from tests.needs import needs

WORDS = {
    "GS101": ("backward through the graph a second time",),
    "GS104": ("compiled with non-empty donated buffers",),
    "GS201": ("modified by an inplace operation", "detached in-place"),
}
WRONG = {"GS101": NodeState.FREED, "GS201": NodeState.STALE}
PROGRAMS = [
    pytest.param(p, marks=needs(*compiled_programs.NEEDS.get(p.__name__, ())), id=p.__name__)
    for p in (*compiled_programs.PROGRAMS, *function_programs.PROGRAMS)
]
OPERATORS = [
    pytest.param(p, marks=needs(*operator_programs.NEEDS.get(name, ())), id=p.__name__)
    for name, programs in operator_programs.PROGRAMS.items()
    for p in programs
]
MODES = ("unwatched", "hooks", "light")


@pytest.fixture(autouse=True)
def compiler_forgets() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def raised_by(root: torch.Tensor, arguments: dict[str, object]) -> str:
    """The code of what the engine raises; empty where it runs."""
    try:
        root.backward(**arguments)
    except RuntimeError as error:
        return next(code for code, words in WORDS.items() if any(w in str(error) for w in words))
    return ""


def announced(scope: Scope | None) -> dict[str, int]:
    """How often each error was announced, with the certainty that is wanted."""
    found = [] if scope is None else scope.recording().findings
    errors = [f for f in found if f.severity is Severity.ERROR]
    assert all(f.certainty is Certainty.CERTAIN for f in errors), errors
    return {c: sum(f.count for f in errors if f.code == c) for c in WORDS}


@pytest.mark.full(but=30)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_all_agree(program: Callable[[], Calls], mode: str) -> None:
    agree(program, mode)


def agree(program: Callable[[], Calls], mode: str) -> None:
    watch = gradscope.watch(hooks=mode == "hooks")
    raised = 0
    with contextlib.nullcontext() if mode == "unwatched" else watch as scope:
        for number, (root, arguments) in enumerate(program(), 1):
            inputs = arguments.get("inputs")
            checked = {f.code for f in gradscope.check(root, **arguments)}
            nodes = gradscope.snapshot(root).nodes
            before = announced(scope)
            error = raised_by(root, arguments)
            after = announced(scope)
            raised += bool(error)
            assert checked == ({error} if error else set()), number
            wrong = {n.state for n in nodes if n.will_run} & {NodeState.FREED, NodeState.STALE}
            if error in WRONG:
                assert WRONG[error] in wrong, number
            elif not error and inputs is None and "harmless" not in program.__name__:
                assert not wrong, number
            if scope is not None:
                assert {c for c in after if after[c] > before[c]} == ({error} if error else set())
        if scope is not None:
            assert not scope.summary.notes
    assert raised or "harmless" in program.__name__


@pytest.mark.full(but=20)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", OPERATORS)
def test_all_agree_on_operators_and_functions(program: Callable[[], Calls], mode: str) -> None:
    agree(program, mode)
