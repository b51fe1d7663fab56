"""Simulates changes on a rehearsal, and says what each mends and what it harms."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple

from gradscope.code import source
from gradscope.fixing.constructs import made_once
from gradscope.fixing.edits import unguarded
from gradscope.fixing.patch import TextEdits, block_with
from gradscope.fixing.rehearsal import Event, Kind, Option, Simulation, Spot, Trace
from gradscope.formatting import firsts, gathered
from gradscope.model import Applicability, Edit, Fix, FixKind

MOST = 3  # lines in a fix that say what the training loses: more are not read
CHANGES = Applicability.MAYBE_INCORRECT
CONSTANT = "it is a constant then: each loss trains what it does now, by its other ways alone"
TARGET = "it enters the loss as its target"
SPOILT = "what an earlier call has freed is trained through it no more"
OUTDATED = "what an earlier step has changed is trained through it no more"
UNSPOILT = "every gradient that a step needs stays as it is"
OTHER = "it is computed from what has been changed by then or is drawn anew: it may be another"
STALE = "it stays what it was at first, though steps change what it is computed from"
# Places on the path to what fails at which a cut is simulated, the first ones. Higher: a fix far
# from the error is found. Lower: the search ends sooner, because each simulation walks the graph of
# all iterations.
_MOST_CUTS = 400


class _CutEffect(NamedTuple):
    """What a cut at one place does to the training.

    It ``mends`` if the calls no longer fail. It is fruitful if each call still has something to
    reach, harmless if no step loses a gradient that it needs, and bearable if each line with a call
    still trains all of its leaves. ``takes`` counts the needed gradients that are lost, and the
    edges at which steps lose others.
    """

    hazards: int
    takes: tuple[int, int]
    mends: bool
    is_fruitful: bool
    is_harmless: bool
    is_bearable: bool


class WhatIf:
    """Simulates changes to a program, one at a time, to mend the calls that fail at one line."""

    def __init__(self, record: Trace, spot: Spot) -> None:
        self._record = record
        self._base = Simulation(record)
        at = [i for i in self._base.hazards if record.events[i].spot == spot]
        self._meant = frozenset(at or self._base.hazards)
        self._fail = min(self._meant, default=-1)
        self.is_only_read = self._base.are_only_read(self._meant)
        self._stale = tuple(e for i in sorted(self._meant) for e in record.events[i].stale)
        self._freed = set[int]().union(*(self._base.spent[i] for i in self._meant))
        self._broken = self._freed | {node for node, _, _ in self._stale}
        self.effect = cache(self._effect_of)
        self.value = cache(self._value_at)
        self._built_by = cache(self._nodes_of)

    @property
    def fails(self) -> bool:
        """Whether a call failed in the rehearsal, or would have."""
        return self._fail >= 0

    @property
    def _failing(self) -> Event:
        return self._record.events[self._fail]

    def _effect_of(self, place: int) -> _CutEffect:
        """Return what detaching the value of one place does."""
        cut, base = self._cut([place]), self._base
        return _CutEffect(
            hazards=len(cut.hazards),
            takes=(len(base.needed - cut.flows), cut.cut_in(base.used_nodes)),
            mends=self._mends(cut),
            is_fruitful=self._is_fruitful(cut),
            is_harmless=not self._harm(cut),
            is_bearable=self._is_bearable(cut),
        )

    def _value_at(self, place: int) -> frozenset[int]:
        """Return the places that read the same value for the same call; or, if no call runs it, in
        the same statement. They must be detached together: in ``h * h``, detaching one ``h`` leaves
        a path through the other.
        """
        record, found = self._record, {place}
        own = record.places[place].statement
        for node in record.given.get(place, ()):
            calls = self._calls_of.get(node, set())
            for other in self._reads[record.after[node][0]]:
                number, its = record.identities[other], self._calls_of.get(other, set())
                is_apart = bool(calls) or record.places[number].statement != own
                if calls & its or not is_apart:
                    found.add(number)
        return frozenset(found)

    @cached_property
    def _calls_of(self) -> dict[int, set[int]]:
        """The calls that run each node that stands for a place."""
        found = defaultdict[int, set[int]](set)
        for call, here in self._base.ran.items():
            for node in here & self._record.identities.keys():
                found[node].add(call)
        return found

    def lets_go(self, place: int, near: Iterable[int]) -> bool:
        """Return whether, with a cut, the values of some places that stay alive reach no leaf."""
        record, changed = self._record, self._cut([place])
        given = {node for number in near for node in record.given[number]}
        given = given.intersection(record.kept) or given
        return not record.leaves_of(record.reached(given, changed.cut, changed.cut_at))

    @cached_property
    def _reads(self) -> dict[int, list[int]]:
        """For each node, the nodes of the places that read its tensor or bound it to a name."""
        return gathered(self._record.identities, lambda node: self._record.after[node][0])

    @cached_property
    def is_built_once(self) -> bool:
        """Whether calls of several iterations fail at a part that was built only once, and that
        steps train, such as ``table = embed(words)`` before the loop.
        """
        record, first = self._record, sorted(self._meant)[:2]
        stale = {i: {node for node, _, _ in record.events[i].stale} for i in first}
        parts = [self._base.spent[i] | stale[i] for i in first]
        is_same = len(parts) > 1 and parts[0] == parts[1]
        kept = (self._all_built(file, nodes) for file, nodes, _ in self._guarded)
        is_kept = self._broken <= frozenset().union(*kept)
        return bool(parts) and (is_same or is_kept) and self._trains(parts[0])

    def _trains(self, nodes: Iterable[int]) -> bool:
        """Return whether nodes lead to what the program trains."""
        record = self._record
        trained = {leaf for e in record.events for leaf in e.leaves} | record.used_at_the_end
        return bool(record.leaves_of(record.reached(nodes)) & trained)

    @property
    def is_shared(self) -> bool:
        """Whether the line that fails says which of its calls is the last: the others keep what
        that one goes through.
        """
        events = self._record.events
        return len({events[i].keep for i in self._calls_by(self._failing.spot)}) > 1

    def _nodes_of(self, file: str, node: ast.AST) -> frozenset[int]:
        """Return the nodes that a statement or function has built, by whatever it called."""
        places, runs = self._record.places, self._record.runs
        own = (run for n, some in runs.items() if places[n].is_in(file, node) for run in some)
        return frozenset(chain(*(range(*run) for run in own)))

    @cached_property
    def _built_at(self) -> list[tuple[str, ast.stmt]]:
        """The statements that built what fails, the deepest first."""
        places = {*self._record.made, *self._record.identities.values()}
        known = {self._record.places[n].statement for n in places if n >= 0}
        built = {each: own for each in known if (own := self._built_by(*each)) & self._broken}
        return sorted(built, key=lambda each: (len(built[each]), each[0], each[1].lineno))

    @property
    def _ran(self) -> Iterable[tuple[str, ast.stmt]]:
        """The statements that built something, by whatever they called."""
        return dict.fromkeys(self._record.places[n].statement for n in self._record.runs)

    @cached_property
    def _guarded(self) -> list[tuple[str, list[ast.stmt], TextEdits]]:
        """What is built and stored only where there is none yet, or as an object is made, of what
        fails, and the edit that does so each time.
        """
        around = ((file, e) for file, node in self._built_at for e in _around(file, node))
        found = [(file, *unguarded(file, guard)) for file, guard in dict.fromkeys(around)]
        made = ((file, *made_once(file, node)) for file, node in self._built_at)
        found += firsts(made, lambda each: (each[0], *each[1])).values()  # most are of one method
        return [each for each in found if self._all_built(*each[:2]) & self._broken]

    def _builds(self, file: str, node: ast.AST) -> bool:
        """Return whether a statement computes something that has a graph."""
        return not self._built_by(file, node) <= self._record.identities.keys()

    def _all_built(self, file: str, nodes: Iterable[ast.AST]) -> frozenset[int]:
        return frozenset().union(*(self._built_by(file, node) for node in nodes))

    def _calls_by(self, spot: Spot) -> set[int]:
        """Return the calls of a line, and of what it calls."""
        events = self._record.events
        return {i for i in self._record.calls if spot in (events[i].spot, *events[i].stack)}

    def _run(self, change: Option) -> Simulation:
        return Simulation(self._record, change)

    def _are_in(self, file: str, nodes: Sequence[ast.AST], places: Iterable[int]) -> bool:
        return any(self._record.places[n].is_in(file, each) for n in places for each in nodes)

    def _kinds(self, numbers: Iterable[int]) -> frozenset[Kind]:
        return frozenset().union(*(self._record.kinds.get(n, frozenset()) for n in numbers))

    def _fix(
        self,
        kind: FixKind,
        message: str,
        edits: tuple[Edit, ...],
        changed: Simulation,
        *,
        varies: bool = False,
    ) -> Fix:
        """Return a fix with its effects; ``varies``: what it runs again may give something else."""
        by_hand = any(by < 0 or self._record.events[by].kind != "step" for _, by, _ in self._stale)
        is_other = varies or (by_hand and kind is FixKind.RECOMPUTE and not self._freed)
        effects = (*self._effects(changed)[:-1], OTHER) if is_other else self._effects(changed)
        return Fix(kind, message, edits, CHANGES, effects)

    def _places(self) -> list[int]:
        """Return the places on the way to what fails, of all calls up to it."""
        record = self._record
        roots = [r for i in record.calls if i <= self._fail for r in record.events[i].roots]
        reached = record.reached(roots)
        found = {record.identities[n] for n in reached if n in record.identities}
        found |= {place for (own, _), place in record.added.items() if own in reached}
        return sorted(found)[:_MOST_CUTS]

    def _cut(self, cuts: Iterable[int]) -> Simulation:
        return self._run(Option(cuts=self._values(cuts)))

    def _values(self, places: Iterable[int]) -> frozenset[int]:
        return frozenset(chain(*map(self.value, places)))

    def _mends(self, changed: Simulation) -> bool:
        left = set(changed.hazards)
        return not left & self._meant and left <= set(self._base.hazards)

    def _harm(self, changed: Simulation) -> bool:
        """Return whether a gradient that is needed changes, or a call has none to make."""
        lost = self._base.lost(changed, but=self._first)
        return not self._is_bearable(changed) or lost > 0

    def _is_bearable(self, changed: Simulation) -> bool:
        """Return whether each line goes on training all leaves that it has to."""
        return self._is_fruitful(changed) and self._base.needed <= changed.flows

    def _is_fruitful(self, changed: Simulation) -> bool:
        """Return whether each call has as much to make as it has now."""
        return set(self._base.fruitless) >= set(changed.fruitless)

    @cached_property
    def _first(self) -> set[object]:
        """The calls of the line that fails that came before, where each failing call needs a part
        of its own: what is carried on comes to be only then.

            h = enc(first)
            for x in data:
                h = cell(enc(x), h)  # with h.detach(), the first call trains `enc` by one way less
        """
        events = self._record.events
        if len(self._meant) < 2 or self.is_built_once:
            return set()
        before = (i for i in self._record.calls if i < self._fail)
        return {i for i in before if events[i].spot == self._failing.spot}

    def _effects(self, changed: Simulation) -> tuple[str, ...]:
        """Return what the training loses, in words."""
        lost = self._base.flows - changed.flows
        names = self._record.leaves
        told = [f"{names[n]} would get no gradient from line {at[1]}" for at, n in lost if names[n]]
        spoilt = SPOILT if self._freed else OUTDATED
        kept = spoilt if changed.cut_in(self._base.used_nodes) else UNSPOILT
        return (*sorted(told)[:MOST], kept)


def _around(file: str, node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements around one, and those before them in their blocks."""
    for each in source.enclosing(file, node.lineno):
        block = block_with(file, each)
        yield from block[: block.index(each) + 1]
