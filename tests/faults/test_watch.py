"""A watch that is interrupted at any moment, or left behind, leaves nothing and changes nothing."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch

import gradscope
from gradscope.api.watch import current
from gradscope.collect import notes
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes
from gradscope.collect.saved_bytes import Ledger
from gradscope.errors import GradscopeError
from gradscope.record.file import load
from tests import known
from tests.conftest import state_of_python, state_of_the_host
from tests.faults.tries import Tries, fault

_MOST_PASSES = 2000  # far more than fit between an alarm's setting and its coming


class AlarmError(Exception):
    """What the program's handler raises."""


def ring(*_: object) -> None:
    raise AlarmError


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = model(torch.ones(3, 4)).pow(2).sum()
    loss.backward()
    with suppress(RuntimeError):
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def interrupted(draw: Random, hooks: bool) -> tuple[int, int]:
    """Interrupt twelve passes, each once at a random moment; return how many raised, and what we noted of ourselves."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Torch imports parts of itself then, and catches whatever that raises.
    with gradscope.watch(hooks=hooks):
        train(model, optimizer)
    raised = 0
    with gradscope.watch(hooks=hooks) as scope:
        for _ in range(12):
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.random() * 0.01 + 1e-6)
                for _ in range(_MOST_PASSES):  # what a destructor met, the next call raises
                    train(model, optimizer)
            except AlarmError:
                raised += 1
        notes = [note for note in scope.recording().summary.notes if "please report" in note]
    return raised, len(notes)


@fault(
    "The watch",
    "a signal's handler raises at a random moment, in the program's code, torch's or gradscope's",
    "the program gets each one, none is printed or lost, nothing of gradscope is left, no part switched off",
    few=10,
    many=300,
)
def test_interrupted_at_random_moments(tries: Tries) -> None:
    before = state_of_the_host(), state_of_python()
    handler = signal.signal(signal.SIGALRM, ring)
    try:
        for number, draw in enumerate(tries):
            assert interrupted(draw, hooks=number % 4 != 3) == (12, 0)
            assert current() is None
            tries.came("each of 12 arrived")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert (state_of_the_host(), state_of_python()) == before


def test_interrupted_while_a_saved_tensor_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a handler raises in a destructor of ours is raised by the next backward call."""
    book = Ledger._book
    x = torch.ones(3, requires_grad=True)

    def booked(self: Ledger, packed: Packed) -> None:
        monkeypatch.undo()
        book(self, packed)
        ring()

    with gradscope.watch() as scope:
        y = x.exp()
        monkeypatch.setattr(Ledger, "_book", booked)
        with pytest.raises(AlarmError):
            y.sum().backward()
        assert not [note for note in scope.recording().summary.notes if "please" in note]
    assert x.grad is not None


def test_what_a_handler_raises_in_our_code_is_kept_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where Python can raise nothing, as in a generator that is dropped while we trace it."""
    monkeypatch.setattr(notes, "postponed", [])

    def raised(work: Callable[[], object]) -> BaseException:
        with pytest.raises((AlarmError, GradscopeError)) as caught:
            work()
        return caught.value

    def kept(error: BaseException | None) -> bool:
        return notes.take(SimpleNamespace(object=None, exc_value=error))

    in_ours = raised(lambda: Notes().attempt("", ring, None))
    assert kept(in_ours)
    assert not kept(raised(ring))
    assert not kept(None)
    assert not kept(raised(lambda: load(Path("of.no.file"))))  # ours, and of the program's doing
    assert notes.postponed == [in_ours]


@fault(
    "The watch",
    "a watch in a generator is collected before it ends, in the midst of a pass",
    "gradients are the same bit for bit, and nothing of gradscope is left",
    few=3,
    many=100,
)
def test_collected_in_a_generator(tries: Tries) -> None:
    before = state_of_the_host(), state_of_python()

    def watching() -> Iterator[None]:
        with gradscope.watch():
            yield

    def gradient(collect_at: int) -> torch.Tensor:
        kept: list[Iterator[None]] = [watching()]
        if collect_at >= 0:
            next(kept[0])
        x = torch.arange(3.0, requires_grad=True)
        y = x
        for number in range(4):
            if number == collect_at:
                kept.clear()
                gc.collect()
            y = (y * x).sin()
            y.register_hook(lambda g, n=number + 4: kept.clear() if n == collect_at else None)
        y.sum().backward()
        kept.clear()
        return known(x.grad)

    plain = gradient(-1)
    for draw in tries:
        assert torch.equal(gradient(draw.randrange(8)), plain)
        assert current() is None
        tries.came("the same")
    assert (state_of_the_host(), state_of_python()) == before


@fault(
    "The watch",
    "a watch is left in another thread than it was entered in, while workers it has seen go on",
    "the next tensor that is saved in a thread takes our pair out of it; the program's own pairs stay",
    few=1,
    many=10,
)
def test_left_in_another_thread(tries: Tries) -> None:
    before = state_of_the_host(), state_of_python()
    seen: list[torch.Tensor] = []

    def pass_through(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor

    def train() -> tuple[list[float], object]:
        x = torch.arange(3.0, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pass_through, lambda kept: kept):
            z = x * x
        (z * x).sum().backward()
        return known(x.grad).tolist(), top(False)

    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore: None)
    for _ in tries:
        with ThreadPoolExecutor(1) as worker, ThreadPoolExecutor(1) as other:
            watching = gradscope.watch()
            watching.__enter__()
            assert worker.submit(train).result()[0] == [0.0, 3.0, 12.0]
            train()
            other.submit(watching.__exit__, None, None, None).result()
            seen.clear()
            for run in (train, worker.submit(train).result):
                assert run() == ([0.0, 3.0, 12.0], None)
            assert len(seen) == 4
        tries.came("nothing is left")
    assert (state_of_the_host(), state_of_python()) == before


@fault(
    "The watch",
    "a watch is entered, never left, and dropped",
    "the program computes the same, the recording is readable, and leaving later takes all out",
    few=1,
    many=10,
)
def test_abandoned(tries: Tries, tmp_path: Path) -> None:
    before = state_of_the_host(), state_of_python()
    for _ in tries:
        entered = gradscope.watch(save=tmp_path / "run.gscope")
        entered.__enter__()
        leave = entered.__exit__
        del entered
        gc.collect()
        x = torch.arange(3.0, requires_grad=True)
        (x * x).sum().backward()
        assert known(x.grad).tolist() == [0.0, 2.0, 4.0]
        assert sum(call.count for call in load(tmp_path / "run.gscope").calls) == 1
        leave(None, None, None)
        assert (state_of_the_host(), state_of_python()) == before
        tries.came("the same")
