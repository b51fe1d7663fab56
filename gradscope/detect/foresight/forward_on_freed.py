"""GS103: announces the line that builds on a freed graph, where that could not be predicted."""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

import torch

from gradscope.code import source
from gradscope.collect.marks import Token, token_of
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.collect.walk import Walker
from gradscope.detect.foresight.lines import LineWatch
from gradscope.detect.foresight.reading import (
    MOST_MADE,
    MOST_NAMED,
    MOST_NODES,
    Effect,
    Held,
    Read,
    Wanted,
    foretell,
    tensors_of,
)
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.ahead.questions import start_before
from gradscope.program.sites import place_in, site_of, user_frames
from gradscope.program.tensors import held_node
from gradscope.rules import gs103

_MOST_EXPECTED = 64  # lines that are waited for at once; each is compared at every traced line
# Backward calls for which an expected line is waited for; every line is traced meanwhile.
_MOST_CALLS = 8


class _Expected(NamedTuple):
    """Where a read may build on a freed graph, and on the tensor of which node."""

    site: Site
    sequence_nr: int
    record: BackwardCall


class FreedWatch(Observer):
    """Makes the finding GS103.

    When a call frees nodes, wait for each line that would build on them. When that line is reached,
    check that the variable still holds the same tensor.
    """

    def __init__(self, watch: State, lines: LineWatch) -> None:
        self.watch = watch
        self._lines = lines
        self._expected: list[_Expected] = []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was told."""
        self._told: set[tuple[Site, Site | None]] = set()

    def expect(self, record: BackwardCall, found: list[tuple[Held, Read]]) -> None:
        """Wait for the lines that would build on what a call that begins will have freed."""
        coming = (_Expected(r.site, _number(held), record) for held, r in found if _builds(r))
        self._wait_for([*self._expected, *coming][:_MOST_EXPECTED])

    def _wait_for(self, expected: list[_Expected]) -> None:
        self._expected = expected
        self._lines.wait(self, bool(expected))

    def at_line(self, frame: FrameType) -> Iterable[Finding]:
        """Check whether the expected comes true: the very tensor, at that line, to be run
        backward.
        """
        recent = self.watch.calls - _MOST_CALLS
        if self._expected and self._expected[0].record.number < recent:
            self._wait_for([each for each in self._expected if each.record.number >= recent])
        found = [each for each in self._expected if each.site.line == frame.f_lineno]
        if not found:
            return ()
        here = place_in(frame).site
        own = here.file, here.function
        expected = {e.sequence_nr: e for e in found if (e.site.file, e.site.function) == own}
        if not expected or not torch.is_grad_enabled():
            return ()
        # Looked at once: a later call that frees will expect it again.
        self._wait_for([each for each in self._expected if each not in found])
        return self._examine(expected, user_frames(frame), here)

    def _examine(
        self, expected: dict[int, _Expected], frames: list[FrameType], here: Site
    ) -> list[Finding]:
        for held in tensors_of(frames):
            known = expected.get(_number(held))
            freed = _freed_in(held) if known is not None else []
            read = _read_here(held, frames, here.line) if freed else None
            if known is None or read is None:
                continue
            cause = (read.site, known.record.site)
            if cause not in self._told:
                self._told.add(cause)
                found = gs103.finding(self._facts(known, read, freed))
                # What is proposed once the call fails is to be the same.
                self.watch.foreseen.setdefault(known.record.number, found)
                return [found]
        return []

    def _facts(
        self, known: _Expected, read: Read, freed: list[tuple[str, Token]]
    ) -> gs103.ForwardOnFreed:
        site = known.record.site
        made = dict.fromkeys(filter(None, (site_of(token.place) for _, token in freed)))
        return gs103.ForwardOnFreed(
            read=read.site,
            holder=read.name,
            nodes=tuple(dict.fromkeys(name for name, _ in freed))[:MOST_NAMED],
            made=tuple(made)[:MOST_MADE],
            freed_by=known.record,
            next_call=read.backward,
            after=self.watch.calls,
            again=read.backward == site,
            carried=read.carried,
        )


def _read_here(held: Held, frames: list[FrameType], line: int) -> Read | None:
    """Return the read that was expected, if it comes and the tensor is still there."""
    wanted = Wanted([held], lambda other: bool(_freed_in(other)))
    found = foretell(wanted, start_before(frames[0], frames[0]), frames)
    reads = (read for each, read in found.reads if found.conditions is None and each is held)
    here = (read for read in reads if read.site.line == line and _builds(read))
    return next((read for read in here if not source.runs_a_part(read.backward)), None)


def _builds(read: Read) -> bool:
    """Return whether the read computes something new from the tensor."""
    return read.effect is not Effect.BACKWARD


def _number(held: Held) -> int:
    """Return the sequence number of the node of a tensor; nodes are never renumbered."""
    node = held_node(held.tensor)
    return -1 if node is None else node._sequence_nr()


def _freed_in(held: Held) -> list[tuple[str, Token]]:
    """Return the nodes of a tensor's graph that have lost what they saved, the nearest first."""
    walked = Walker(MOST_NODES).walk([held_node(held.tensor)])
    known = ((node, token) for node in walked if (token := token_of(node)) is not None)
    return [(node.name(), token) for node, token in known if token.freed_by is not None]
