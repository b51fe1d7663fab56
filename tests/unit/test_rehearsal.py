"""Marked programs compute what they do, and a record is simulated as the engine would run it."""

from __future__ import annotations

import ast
import builtins
import operator
from typing import Any

import pytest

from gradscope.fixing.instrumentation import ADD, BEGIN, HEAD, MARK, RENEW, Instrumenter, Span
from gradscope.fixing.rehearsal import Event, Option, Simulation, Trace

PROGRAM = """
import functools, dataclasses

@dataclasses.dataclass(frozen=True)
class State:
    x: int = 3
    def moved(self, *, by: int = 2):
        return dataclasses.replace(self, x=self.x + by)

class Base:
    def name(self):
        return "base"

class Sub(Base):
    limit: int = 4
    def name(self):
        return super().name() + "+"

def squares(n):
    total = 0
    for i in range(n):
        total += i * i
        yield total

def outer():
    count = 0
    def inner(*args, key=lambda v: -v, **more):
        nonlocal count
        count += len(args) + len(more)
        return [key(a) for a in args if a is not None], count
    return inner

def kind(value):
    match value:
        case [x, *rest] if rest:
            return x, rest
        case {"a": y}:
            return y
        case State(x=z):
            return z
    return None

box = {"a": [1, 2, 3]}
box["a"][0] += 5
box["a"][1:] = [x for x in box["a"][1:] if (y := x) > 2]
first, *others = squares(5)
with __import__("contextlib").suppress(KeyError):
    box["b"]
text = f"{State().moved(by=4).x!r:>4} {Sub().name()} {kind([1, 2])} {kind({'a': 7})} {kind(State())}"
async def later():
    return [i async for i in source()]
async def source():
    for i in range(3):
        yield await ready(i)
async def ready(i):
    return i
import asyncio
result = (box, first, others, text, outer()(1, None, 2, z=3), y, asyncio.run(later()), -first if first else +1)
assert result, "never"
"""


def _run(tree: ast.Module) -> Any:
    space: dict[str, Any] = {"__name__": "builtins"}
    exec(compile(tree, "program.py", "exec"), space)
    return space["result"]


def test_a_marked_program_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def mark(number: int, begun: int | None, value: Any) -> Any:
        seen.append(number)
        return value

    def add(number: int, step: str, target: Any, value: Any) -> Any:
        seen.append(number)
        return getattr(operator, step)(target, value)

    monkeypatch.setattr(builtins, MARK, mark, raising=False)
    monkeypatch.setattr(builtins, BEGIN, lambda: 0, raising=False)
    monkeypatch.setattr(builtins, ADD, add, raising=False)
    monkeypatch.setattr(builtins, HEAD, lambda number, paths: None, raising=False)
    monkeypatch.setattr(builtins, RENEW, lambda value, owner: value, raising=False)
    marker = Instrumenter()
    marked = marker.marked(ast.parse(PROGRAM), "program.py")
    assert _run(marked) == _run(ast.parse(PROGRAM))
    assert len(set(seen)) > 60
    lines = PROGRAM.split("\n")
    texts = {
        lines[p.line - 1][p.column : p.end_column] for p in marker.places if p.line == p.end_line
    }
    assert {"total", "self.x", "super().name()", "key(a)", "i * i"} <= texts


def _place(line: int) -> Span:
    return Span("train.py", line, 0, line, 9)


def _call(line: int, *roots: int, cleared: tuple[int, ...] = (), keep: bool = False) -> Event:
    return Event("call", _place(line), roots=roots, cleared=cleared, keep=keep)


def _step(*leaves: int) -> Event:
    return Event("step", _place(99), leaves=leaves)


def gan() -> Trace:
    """Return a GAN's iteration: the losses of lines 21 and 26 share the generator's part.

    Nodes: 0, 1 accumulate into the generator's and the discriminator's weight; 2 is the generator;
    3 and 6 stand for ``fake`` as the two losses read it; 4 and 7 are the discriminator, 5 and 8 the
    losses.
    """
    after = [[], [], [0], [2], [3, 1], [4], [2], [6, 1], [7]]
    return Trace(
        places=[_place(21), _place(26)],
        kinds={0: frozenset({"tensor"}), 1: frozenset({"tensor"})},
        after=after,
        made=[-1] * len(after),
        saves=[False, False, True, False, True, True, False, True, True],
        leaf={0: 0, 1: 1},
        identities={3: 0, 6: 1},
        added={},
        events=[_call(22, 5, cleared=(0, 1)), _step(1), _call(27, 8, cleared=(0,)), _step(0)],
        leaves=["G.weight", "D.weight"],
    )


def test_the_second_call_of_a_gan_fails() -> None:
    simulation = Simulation(gan())
    assert simulation.hazards == [2]
    assert (("train.py", 22), 1) in simulation.needed
    assert (("train.py", 22), 0) not in simulation.needed


def test_cutting_what_no_step_needs_mends_it_and_loses_nothing() -> None:
    base = Simulation(gan())
    right = Simulation(gan(), Option(frozenset({0})))
    assert right.hazards == []
    assert base.lost(right) == 0
    assert base.needed <= right.flows


def test_cutting_the_other_loss_loses_what_trains_the_generator() -> None:
    base = Simulation(gan())
    wrong = Simulation(gan(), Option(frozenset({1})))
    assert wrong.hazards == []
    assert not base.needed <= wrong.flows


def test_a_kept_graph_can_be_run_again() -> None:
    at = frozenset(i for i, event in enumerate(gan().events) if event.spot == ("train.py", 22))
    kept = Simulation(gan(), Option(keeps=at))
    assert kept.hazards == []


def test_a_call_with_nothing_left_to_reach_is_told() -> None:
    record = gan()
    record.identities[5] = 7
    cut = Simulation(record, Option(frozenset({7})))
    assert cut.fruitless == [0]
