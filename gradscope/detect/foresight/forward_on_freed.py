"""GS103: announces the line that builds on a freed graph, where that could not be predicted."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from dis import opmap
from types import FrameType

import torch

from gradscope.code import source
from gradscope.collect.calls import Call
from gradscope.collect.marks import Token, token_of
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.collect.walk import Walker
from gradscope.detect.foresight.lines import LineWatch
from gradscope.detect.foresight.reading import Effect, Outlook, Read, Reading, Wanted, foretell
from gradscope.detect.foresight.schedule import Schedule
from gradscope.detect.foresight.shared_graphs import Held, tensors_of
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.ahead.questions import start_before
from gradscope.program.sites import place_in, site_of, user_frame, user_frames
from gradscope.program.tensors import held_node
from gradscope.rules import gs103

_MOST_NODES = 2_000  # that may be touched in one look
_MOST_MADE = 3
_MOST_NAMED = 20
_MOST_EXPECTED = 64
_MOST_CALLS = 8  # backward calls that an expected line is waited for
_FOR_ITER = opmap["FOR_ITER"]


@dataclass(frozen=True, slots=True)
class _Expected:
    """A read that may build on a freed graph, and on the tensor of which node."""

    read: Read
    sequence_nr: int
    record: BackwardCall


class ForwardOnFreed(Observer):
    """Makes the finding GS103.

    When a call frees nodes, remember each line that would build on them. When that line is reached,
    check that the variable still holds the same tensor.
    """

    def __init__(self, watch: State, lines: LineWatch) -> None:
        self.watch = watch
        self._lines = lines
        self._schedule = Schedule()
        self._expected: dict[int, list[_Expected]] = {}  # by line
        self._coming: list[_Expected] = []
        self._told: set[tuple[Site, Site | None]] = set()

    def expect(self, record: BackwardCall, found: list[tuple[Held, Outlook]]) -> None:
        """Remember the lines that would build on what a call that begins frees."""
        self._coming = [
            _Expected(outlook.reading.read, _number(held), record)
            for held, outlook in found
            if _builds(outlook.reading)
        ]

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Wait for the remembered lines, now that the nodes are freed."""
        if call.parent is not None:
            return ()
        coming, self._coming = self._coming, []
        if record.exception is None and record.freed_tensors:
            self._forget(record.number - _MOST_CALLS)
            for expected in coming:
                if sum(map(len, self._expected.values())) < _MOST_EXPECTED:
                    self._expected.setdefault(expected.read.site.line, []).append(expected)
            if self._expected:
                self._lines.wait(self, True)
                self._lines.turn_on(frame)
        return ()

    def after_guarded(self, call: Call) -> Iterable[Finding]:
        """Do the same after a call on a recognized graph."""
        if self._coming or self._expected:
            self.after_call(call, call.record, user_frame(sys._getframe()))
        return ()

    def _forget(self, number: int) -> None:
        """Stop waiting for what was expected at older calls."""
        for line, expected in tuple(self._expected.items()):
            self._expected[line] = [e for e in expected if e.record.number >= number]
            if not self._expected[line]:
                del self._expected[line]
        self._lines.wait(self, bool(self._expected))

    def at_line(self, frame: FrameType) -> Iterable[Finding]:
        """Check whether the expected comes true: the very tensor, at that line, to be run
        backward.
        """
        found = self._expected.get(frame.f_lineno)
        if not found:
            return ()
        here = place_in(frame).site
        expected = {
            e.sequence_nr: e
            for e in found
            if (e.read.site.file, e.read.site.function) == (here.file, here.function)
        }
        if (
            not expected
            or not torch.is_grad_enabled()
            or frame.f_code.co_code[frame.f_lasti] == _FOR_ITER
        ):
            return ()  # in its later iterations a loop does not read again what it runs over
        # Looked at once: a later call that frees will expect it again.
        del self._expected[frame.f_lineno]
        self._lines.wait(self, bool(self._expected))
        with self._schedule:
            return self._examine(expected, user_frames(frame), here)

    def _examine(
        self, expected: dict[int, _Expected], frames: list[FrameType], here: Site
    ) -> list[Finding]:
        for held in tensors_of(frames):
            known = expected.get(_number(held))
            freed = _freed_in(held) if known is not None else []
            if known is None or not freed:
                continue
            reading = _read_here(held, frames)
            if reading is None or reading.read.site.line != here.line or not _builds(reading):
                continue
            if source.runs_a_part(reading.backward):
                continue
            cause = (reading.read.site, known.record.site)
            if cause in self._told:
                continue
            self._told.add(cause)
            return [self._found(self._facts(known, reading, freed))]
        return []

    def _found(self, facts: gs103.ForwardOnFreed) -> Finding:
        found = gs103.finding(facts)
        # What is proposed once the call fails is to be the same.
        self.watch.foreseen.setdefault(facts.freed_by.number, found)
        return found

    def _facts(
        self, known: _Expected, reading: Reading, freed: list[tuple[str, Token]]
    ) -> gs103.ForwardOnFreed:
        site = known.record.site
        made = dict.fromkeys(
            s for s in (site_of(token.place) for _, token in freed) if s is not None
        )
        return gs103.ForwardOnFreed(
            read=reading.read.site,
            holder=reading.name,
            nodes=tuple(dict.fromkeys(name for name, _ in freed))[:_MOST_NAMED],
            made=tuple(made)[:_MOST_MADE],
            freed_by=known.record,
            next_call=reading.backward,
            after=self.watch.calls,
            again=reading.backward == site,
            carried=reading.carried,
        )


def _read_here(held: Held, frames: list[FrameType]) -> Reading | None:
    """Return the read that was expected, if it comes and the tensor is still there."""
    wanted = Wanted([held], lambda other: bool(_freed_in(other)))
    found = foretell(wanted, start_before(frames[0], frames[0]), frames).outlooks
    return next((o.reading for each, o in found if o.comes and each is held), None)


def _builds(reading: Reading) -> bool:
    """Return whether the read computes something new from the tensor."""
    return reading.read.effect is not Effect.BACKWARD


def _number(held: Held) -> int:
    """Return the sequence number of the node of a tensor; nodes are never renumbered."""
    node = held_node(held.tensor)
    return -1 if node is None else node._sequence_nr()


def _freed_in(held: Held) -> list[tuple[str, Token]]:
    """Return the nodes of a tensor's graph that have lost what they saved, the nearest first."""
    found = []
    for node in Walker(_MOST_NODES).walk([held_node(held.tensor)]):
        token = token_of(node)
        if token is not None and token.freed_by is not None:
            found.append((node.name(), token))
    return found
