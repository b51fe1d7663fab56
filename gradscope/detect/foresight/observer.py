"""GS102 and GS202: asks at each call and step whether it breaks what the code will still run
backward.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

from gradscope.code import source
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.detect.foresight.evidence import shared_graph
from gradscope.detect.foresight.forward_on_freed import FreedWatch
from gradscope.detect.foresight.reading import Wanted, foretell
from gradscope.detect.foresight.schedule import Schedule
from gradscope.detect.foresight.shared_graphs import Freeing, Held, may_be_shared, tensors_of
from gradscope.detect.foresight.stale_graphs import StaleGraphs, with_cure
from gradscope.detect.foresight.turning import Turning
from gradscope.model import BackwardCall, Finding
from gradscope.model.paths import Origin, Path
from gradscope.program.ahead.questions import hooks_of, start_after, start_at_call
from gradscope.program.sites import Place, place_in, user_frames
from gradscope.program.tensors import storage_of
from gradscope.program.undisturbed import Uncollected
from gradscope.rules import gs102, gs202
from gradscope.torch_private import cached_parametrizations

_MOST_FORESEEN = 10_000


class Foresight(Observer):
    """Looks at the user's variables, and reads the code that will use them; what is not certain
    yet is waited for ``later``.
    """

    def __init__(self, watch: State, later: FreedWatch) -> None:
        self.watch = watch
        self._later = later
        self._schedule = Schedule()
        self._turning = Turning()

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Ask of every held tensor that leads to what this call will free whether the code will run
        it backward.
        """
        if frame is None or not may_be_shared(call, look, record):
            return ()
        due = self._schedule.is_due(_kind(call, look))
        if not due and not (call.woken and self._schedule.has_time()):
            return ()
        with self._schedule, Uncollected():
            return self._examine(call, look, record, user_frames(frame))

    def after_step(
        self, optimizer: Any, place: Place | None, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Ask whether a graph that the code will still run backward has saved what the step
        changed.
        """
        watch = self.watch
        if frame is None or place is None or not watch.ledger.live_tensors or watch.call:
            return ()
        if not self._schedule.is_due((place, watch.ledger.live_tensors)):
            return ()
        with self._schedule, Uncollected():
            frames = user_frames(frame)
            watch.names.learn_variables(frames)
            changed = {
                storage_of(p) for group in optimizer.param_groups for p in group["params"]
            } - {0}

            def is_changed(packed: Packed) -> bool:
                return (
                    packed.is_stale
                    and packed.tensor is not None
                    and storage_of(packed.tensor) in changed
                )

            needed = StaleGraphs(
                watch, is_changed, lambda p: watch.names.of_tensor(p) or "a parameter"
            ).needed(start_after(frames[0]), frames)
            if needed is None:
                return ()
            facts = needed.facts(place.site, watch.calls, gs202.By.STEP)
            return [gs202.finding(with_cure(facts, watch, needed, frames))]

    def _examine(
        self, call: Call, look: Look, record: BackwardCall, frames: list[FrameType]
    ) -> list[Finding]:
        freeing = Freeing(look)
        if not any(freeing.frees):
            return []
        reached = [each for each in (*tensors_of(frames), *_cached()) if freeing.trace(each)]
        wanted = Wanted(reached, freeing.trace, freeing.comes_to)
        tensors = (each.tensor for each in reached)
        modules = self.watch.names.modules
        hooks = hooks_of(look.nodes, look.kinds, tensors, modules) if reached else ()
        start = start_at_call(frames[0], is_inner=call.parent is not None, hooks=hooks)
        foretold = foretell(wanted, start, frames)
        self.watch.unread.update(foretold.reasons)
        found = foretold.reads
        if not (found and foretold.comes):
            self._later.expect(record, found)
        turn = self._turning.next_turn(call.place, call.number, foretold.compared)
        self.watch.alarms[call.place] = turn
        if not found:
            return []
        facts = shared_graph(self.watch, look, record, freeing, found, reached, frames, start)
        conditions = None if foretold.comes else foretold.conditions
        facts = replace(facts, conditions=conditions, computed=_computes_retain(frames[0]))
        finding = gs102.finding(facts)
        if len(self.watch.foreseen) < _MOST_FORESEEN:
            self.watch.foreseen[record.number] = finding
        return [finding]


def _kind(call: Call, look: Look) -> Hashable:
    """Return what the code's future depends on: the place, and what kinds of nodes there are.

    Not how large they are, nor how many, as long as they do not become more and more.
    """
    sizes = len(look.nodes).bit_length(), look.oldest is None
    return call.place, call.exact, frozenset(look.kinds), sizes


def _computes_retain(frame: FrameType) -> bool:
    """Return whether the call made in the frame computes ``retain_graph``."""
    call = source.call_at(place_in(frame).site)
    return call is not None and any(
        each.arg in ("retain_graph", "create_graph") and not isinstance(each.value, ast.Constant)
        for each in call.keywords
    )


def _cached() -> list[Held]:
    """Return what ``parametrize.cached()`` keeps, which no variable leads to."""
    nowhere = Origin("unnamed", "", "", 0)
    found = cached_parametrizations()
    return [Held(each, [Path.of(nowhere, f"<cached {name}>", ())]) for name, each in found]
