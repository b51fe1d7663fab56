"""GS102 and GS202: asks at each call and step whether it breaks what the code will still run
backward.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from gradscope.code import places, source
from gradscope.code.liveness import Effect, Read, call_at, iterators_at
from gradscope.code.statements import with_cached
from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.detect.foresight.evidence import shared_graph
from gradscope.detect.foresight.library_loops import codes_of, read_by_the_next_run
from gradscope.detect.foresight.loops import Loops
from gradscope.detect.foresight.objects import Objects
from gradscope.detect.foresight.outlook import Outlook, foretell, next_turn
from gradscope.detect.foresight.reading import Reading, may_stop_before
from gradscope.detect.foresight.schedule import Schedule
from gradscope.detect.foresight.shared_graphs import Freeing, Held, may_be_shared, tensors_of
from gradscope.detect.foresight.stale_graphs import StaleGraphs, need_of
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.drivers import runs_on
from gradscope.program.sites import Place, place_in, user_frames
from gradscope.program.tensors import storage_of
from gradscope.program.undisturbed import Uncollected
from gradscope.rules import gs102, gs202
from gradscope.rules.base import place
from gradscope.torch_private import cached_parametrizations

_MOST_FORESEEN = 10_000
_MOST_TURNS = 3  # of branches that are waited for at one call
_MOST_READ = 12  # tensors for which the code is read in one look


class Foresight(Observer):
    """Looks at the user's variables, and reads the code that will use them."""

    def __init__(self, watch: State) -> None:
        self.watch = watch
        self._schedule = Schedule()
        self._turns: dict[Place, int] = {}

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Ask of every held tensor that leads to what this call will free whether the code will run
        it backward.
        """
        if frame is None or not may_be_shared(call, look, record):
            return ()
        due = self._schedule.is_due(_kind(call, look))
        if not due and not call.woken:
            return ()
        with self._schedule, Uncollected():
            if retains_if_computed(frame):
                return ()
            return self._examine(call, look, record, user_frames(frame))

    def after_step(
        self, optimizer: Any, place: Place | None, frame: FrameType | None
    ) -> Iterable[Finding]:
        """Ask whether a graph that the code will still run backward has saved what the step
        changed.
        """
        watch = self.watch
        if frame is None or place is None or not watch.ledger.live_tensors or watch.is_running:
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
            ).needed(frames)
            if needed is None:
                return ()
            facts = needed.facts(place.site, watch.calls, gs202.By.STEP)
            return [gs202.finding(facts, need_of(watch, needed, frames))]

    def _set_alarm(self, call: Call, decided: list[tuple[FrameType, int]]) -> None:
        """Have the call looked at again when a branch that keeps it from harm will turn."""
        alarms, place = self.watch.alarms, call.place
        if place is None or self._turns.get(place, 0) >= _MOST_TURNS:
            return
        alarm = next_turn(decided) if decided else None
        if alarm is None:
            alarms.pop(place, None)
        elif alarm != alarms.get(place):
            alarms[place] = alarm
            self._turns[place] = self._turns.get(place, 0) + 1

    def _examine(
        self, call: Call, look: Look, record: BackwardCall, frames: list[FrameType]
    ) -> list[Finding]:
        freeing = Freeing(look)
        if not any(freeing.frees):
            return []
        reached = [held for held in tensors_of(frames) if freeing.trace(held)]
        outlooks: list[tuple[Held, Outlook]] = []
        loops = Loops()
        decided: list[tuple[FrameType, int]] = []
        for held in _likeliest(reached):
            outlook = foretell(held, frames, loops, decided=decided)
            if outlook is None and record.driven and runs_on(frames[0]):
                reading = read_by_the_next_run(held.paths, frames[0], codes_of(look))
                outlook = None if reading is None else Outlook(reading)
            if outlook is not None and not may_stop_before(outlook.reading, held, freeing):
                outlooks.append((held, outlook))
        self._set_alarm(call, decided)
        outlooks += _cached_over_loops(freeing, frames, record)
        coming = _nearest([entry for entry in outlooks if entry[1].comes])
        for chosen in (coming, outlooks):  # what comes in any case matters more
            found = [(held, outlook.reading) for held, outlook in chosen]
            facts = shared_graph(self.watch, look, record, freeing, found, reached, frames)
            if facts is not None:
                break
        else:
            return []
        if chosen is not coming:
            conditions = next(o.conditions for _, o in chosen if o.reading.read.site == facts.read)
            facts = replace(facts, conditions=conditions)
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


def _nearest(coming: list[tuple[Held, Outlook]]) -> list[tuple[Held, Outlook]]:
    """Return what comes with the backward call that fails first."""
    if not coming:
        return []
    first = min((outlook for _, outlook in coming), key=lambda outlook: outlook.when)
    return [one for one in coming if one[1].reading.backward == first.reading.backward]


def _likeliest(reached: list[Held]) -> list[Held]:
    """Return those to read the code for: of too many, not what stands inside the graph."""
    if len(reached) <= _MOST_READ:
        return reached
    roots_and_others = sorted(reached, key=lambda held: bool(held.own))
    return roots_and_others[:_MOST_READ]


def retains_if_computed(frame: FrameType) -> bool:
    """Return whether the call made in the frame computes ``retain_graph``, so that later ones may
    differ.
    """
    call = call_at(frame.f_code, frame.f_lasti)
    return call is not None and bool(call.computed & {"retain_graph", "create_graph"})


def _cached_over_loops(
    freeing: Freeing, frames: Sequence[FrameType], record: BackwardCall
) -> Iterator[tuple[Held, Outlook]]:
    """Yield what a call will free of the cache, if its loop runs again.

    Which modules the loop runs is not read: the cache keeps what they share until it is closed.
    """
    for name, tensor in cached_parametrizations():
        held = Held(tensor)
        if record.site is None or not freeing.trace(held):
            continue
        for frame in frames:
            here = place_in(frame).site
            loop = source.loop_around(here) if with_cached(here) is not None else None
            if loop is not None and not _is_over(frame, loop, held):
                yield held, _outlook(f"<cached {name}>", frame, loop, record.site)
                break


def _is_over(frame: FrameType, loop: source.Loop, held: Held) -> bool:
    """Return whether the innermost loop of a frame has no element left."""
    depths = iterators_at(frame.f_code, frame.f_lasti)
    if not depths or not isinstance(loop, ast.For):
        return False
    return Loops().of(frame, Objects(frame), held.tensor, ()).is_spent(max(depths))


def _outlook(name: str, frame: FrameType, loop: source.Loop, call: Site) -> Outlook:
    here = place_in(frame).site
    head = loop.test if isinstance(loop, ast.While) else loop.iter
    site = places.of_node(head, here.file, here.function)
    read = Read(name, site, Effect.FEEDS, name, call, after_back_edge=True)
    again = f"the loop at {place(site)} runs its module again"
    return Outlook(Reading(name, read, frame, again=True), comes=False, conditions=(again,))
