"""Compares what two rehearsals trained: what a fix removes, and what it adds."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property, partial, reduce
from graphlib import TopologicalSorter
from itertools import chain
from operator import or_
from typing import NamedTuple, TypeAlias

from gradscope.code import source
from gradscope.fixing import patch
from gradscope.fixing.rehearsal import Event, Line, Simulation, Spot, Trace
from gradscope.formatting import firsts, gathered

Key: TypeAlias = tuple[int, int, str]
"""A leaf, the same in two runs of a program: its optimizer, and its position there. That of a leaf
without optimizer is -1; such leaves are told apart by their names, or by their order.
"""

Losses: TypeAlias = frozenset[Line]
"""The lines of the unchanged program that run some losses backward."""

Sums: TypeAlias = tuple[float, float]
"""The sum of a gradient, and that of its positive numbers."""

_MOST_NAMES = 3  # owners in a sentence, as `encoder.*`: more are counted
# Share of the magnitude of a gradient. It is far above the rounding of float32 (1.2e-7 for each
# operation), which depends on the order of a sum, so that another way to a parameter stands out.
# The rounding of bfloat16 (7.8e-3) may count as a difference.
_ROUNDING = 1e-3


class TrainingChange(StrEnum):
    """What a fix may do to the training of a parameter, the worst first."""

    UNTRAINED = "untrained"
    OTHER = "other"
    GAINED = "gained"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """A step of an optimizer, with the losses whose gradients it used for each leaf. In a program
    without optimizers (-1), each call counts as a step.
    """

    index: int
    optimizer: int
    line: Line
    losses: Mapping[Key, Losses]


class Difference(NamedTuple):
    """Parameters that a fix trains differently, the loss that it is about, and the first ``step``
    of their optimizer.
    """

    change: TrainingChange
    keys: tuple[Key, ...]
    loss: Line
    step: TrainingStep
    rest: tuple[Line, ...] = ()
    times: tuple[int, int] = (0, 0)

    @property
    def optimizer(self) -> int:
        """The optimizer that steps them."""
        return self.keys[0][0]


class _Trained:
    """What a rehearsal trained, by calls and leaves. Lines are those of the unchanged program, so
    that rehearsals with and without a fix can be compared.
    """

    def __init__(self, record: Trace, changes: Sequence[patch.Patch] = ()) -> None:
        self.record = record
        self._old = partial(patch.old_place, changes)
        self.seen = Simulation(record)
        self.ways = cache(self._ways)
        ends: dict[Line, list[int]] = defaultdict(list)
        self.built_before: dict[int, list[int]] = {}
        """For each call, how many nodes there were after each earlier call of its line."""
        for index in record.calls:
            event = record.events[index]
            self.built_before[index] = [*ends[event.stack]]
            ends[event.stack].append(event.nodes)

    def line(self, index: int) -> Line:
        """Return the line of a call or a step."""
        return tuple(self._old(*spot) for spot in self.record.events[index].stack)

    @cached_property
    def lines(self) -> dict[Line, int]:
        """The lines of all calls, each with its first one."""
        return firsts(self.record.calls, self.line)

    def key(self, leaf: int) -> Key:
        """Return what identifies a leaf in both runs: its position in an optimizer, or its name."""
        if leaf in self.record.owners:
            return (*self.record.owners[leaf], "")
        name = self.record.leaves[leaf]
        return -1, 0 if name else leaf, name

    def sums(self, step: Event) -> dict[Key, Sums]:
        """Return the sums of the gradients that a step used, by their leaves."""
        return dict(zip(map(self.key, step.leaves), step.gradients, strict=False))

    @cached_property
    def names(self) -> dict[Key, str]:
        """The names of the leaves, as far as they have one."""
        return {self.key(leaf): name for leaf, name in enumerate(self.record.leaves) if name}

    def carried(self, call: int) -> set[int]:
        """Return the leaves that a call reaches only through a state carried from iteration to
        iteration. A program that fails in the second iteration has never had this training, so a
        fix may take it away.
        """
        ends, leaf = self.built_before[call], self.record.leaf
        roots = self.record.events[call].roots

        def is_old(node: int, following: int) -> bool:
            return following not in leaf and bisect_right(ends, following) < len(ends)

        def is_far(node: int, following: int) -> bool:
            run = len(ends) if node < 0 else bisect_right(ends, node)
            return following not in leaf and run - bisect_right(ends, following) > 1

        through = self.record.leaves_of(self.record.reached(roots, is_far))
        return through - self.record.leaves_of(self.record.reached(roots, is_old))

    def made(self, node: int) -> Spot | None:
        """Return the line that has made a node."""
        place = self.record.made[node]
        return None if place < 0 or node in self.record.identities else self.spot(place)

    def spot(self, place: int) -> Spot:
        """Return the line of a place."""
        return self._old(self.record.places[place].file, self.record.places[place].line)

    def made_in(self, call: int) -> dict[Spot | None, list[int]]:
        """Return the nodes of a call by the lines that have made them."""
        return gathered(self.seen.ran[call], self.made)

    def is_carried(self, call: int) -> bool:
        """Return whether a call goes through what an earlier iteration of the loop around it has
        built. What was built before that loop, in the same iteration of an outer one, is not
        carried.
        """
        event, record = self.record.events[call], self.record
        lines = (self._old(*event.spot), *self.line(call))
        loops = ((file, each) for file, line in lines for each in source.loops_around(file, line))
        firsts = dict.fromkeys((file, loop.body[0].lineno) for file, loop in loops)
        heads = {self._old(each.file, each.line): n for n, each in enumerate(record.heads)}
        begun = [record.begun.get(heads[spot], []) for spot in firsts if spot in heads]
        inner, *outer = [[n for n in own if n < event.nodes] for own in begun] or [[]]
        since = max(chain.from_iterable(outer), default=0)
        alone = range(since, min((n for n in inner if n >= since), default=since))
        here = self.seen.ran[call] - record.leaf.keys() - record.identities.keys()
        return any(inner[0] <= n < inner[-1] and n not in alone for n in here) if inner else False

    def makers(self, call: int, *own: Spot) -> frozenset[int]:
        """Return the places that made the roots of a call, except places on its ``own`` lines."""
        passed = (None, *own)
        roots = self.record.events[call].roots
        reached = self.record.reached(roots, lambda n, _: n >= 0 and self.made(n) not in passed)
        return frozenset(self.record.made[n] for n in reached if self.made(n) not in passed)

    @cached_property
    def outdated(self) -> set[int]:
        """The nodes of a state, carried past a step, for which a call would fail."""
        seen = self.seen
        return set[int]().union(*(seen.ran[call] - seen.fresh[call] for call in seen.hazards))

    def _ways(self, index: int, *, without_outdated: bool) -> dict[Key, int]:
        """Return for each leaf how many nodes the calls differentiate for the gradient that a step
        uses.

        Nodes of a state carried past a step (not ``Simulation.fresh``) do not count, nor, if
        ``without_outdated``, nodes of one for which some other call would fail. Nor do nodes that
        saved nothing: a view has no derivative to compute.
        """
        record, used = self.record, self.seen.used[index]
        without = self.outdated if without_outdated else ()
        bits = {key: 1 << i for i, key in enumerate({self.key(leaf): None for leaf in used})}
        leads: dict[int, int] = defaultdict(int)
        for call in set[int]().union(*used.values()):
            ends = {n: leaf for n in self.seen.ran[call] if (leaf := record.leaf.get(n)) in used}
            ends = {n: bits[self.key(leaf)] for n, leaf in ends.items() if call in used[leaf]}
            nodes = self.seen.fresh[call].difference(without) | ends.keys()
            edges = {node: nodes.intersection(record.after[node]) for node in nodes}
            own: dict[int, int] = {}
            for node in TopologicalSorter(edges).static_order():
                own[node] = reduce(or_, map(own.__getitem__, edges[node]), ends.get(node, 0))
                leads[node] |= own[node]
        counts = _counted(to for node, to in leads.items() if record.saves[node])
        return {
            key: sum(1 << i for i, digit in enumerate(counts) if digit & bit)
            for key, bit in bits.items()
        }


def _counted(sets: Iterable[int]) -> list[int]:
    """Count in how many of these sets of bits each bit is. Return the binary digits of all counts,
    the lowest first: digit i of the count for a bit is this bit of number i. So a thousand
    parameters are counted at once.
    """
    digits: list[int] = []
    for carry in sets:
        for i, digit in enumerate(digits):
            digits[i], carry = digit ^ carry, digit & carry
        if carry:
            digits.append(carry)
    return digits


class Comparison:
    """Compares what a rehearsal of the program trained with a rehearsal after the ``changes``."""

    def __init__(self, base: Trace, after: Trace, changes: Sequence[patch.Patch]) -> None:
        self._base, self._after = _Trained(base), _Trained(after, changes)
        self._fails = min(self._base.seen.hazards, default=-1)
        """The first call of the unchanged program that would fail; -1 if none does."""
        self._changes = changes

    def __reduce__(self) -> tuple[type[Comparison], tuple[object, ...]]:
        """Pickle the two rehearsals only; the rest is computed again in the other process."""
        return Comparison, (self._base.record, self._after.record, self._changes)

    @property
    def _failing(self) -> Line:
        return () if self._fails < 0 else self._first[self._base.line(self._fails)]

    @cached_property
    def names(self) -> Mapping[Key, str]:
        """The names of the parameters, from either run."""
        return self._after.names | self._base.names

    @property
    def lines(self) -> Sequence[Line]:
        """The lines of the calls of the unchanged program."""
        return [*self._base.lines]

    @property
    def optimizers(self) -> Sequence[str]:
        """The classes of the optimizers, by their numbers."""
        return self._base.record.optimizers or self._after.record.optimizers

    @cached_property
    def _gone(self) -> set[Line]:
        return self._base.lines.keys() - self._after.lines.keys()

    def _losses_before(self, call: int) -> dict[Key, Losses]:
        """Return for the leaves of a call of the unchanged program its line."""
        run, loss = self._base, frozenset({self._first[self._base.line(call)]})
        leaves = run.record.leaves_of(run.seen.ran[call]) - run.carried(call)
        return {run.key(leaf): loss for leaf in leaves}

    @cached_property
    def _carried(self) -> set[tuple[Key, Line]]:
        """The leaves that losses of the unchanged program reach only through a carried state."""
        run = self._base
        calls = [(call, self._first[run.line(call)]) for call in run.record.calls]
        return {(run.key(leaf), line) for call, line in calls for leaf in run.carried(call)}

    @cached_property
    def _trained_before(self) -> Mapping[Key, Losses]:
        return _trained_in(self.before)

    def _losses_after(self, call: int) -> dict[Key, Losses]:
        """Return, for the leaves of a call of the changed program, the losses that give them
        gradients.

        If a fix adds several losses up for one call, those count whose part of the graph leads to
        the leaf, or else those that trained it before.
        """
        run, ran, losses = self._after, self._after.seen.ran[call], self._losses_of(call)
        found: dict[Key, set[Line]] = {run.key(leaf): set() for leaf in run.record.leaves_of(ran)}
        made = run.made_in(call)
        for line in losses if len(losses) > 1 else ():
            starts = [n for spot in self._made_of(line) for n in made.get(spot, ())]
            for leaf in run.record.leaves_of(run.record.reached(starts) & ran):
                found[run.key(leaf)].add(line)
        known = {key: losses & self._trained_before.get(key, losses) for key in found}
        return {key: frozenset(lines) or known[key] or losses for key, lines in found.items()}

    def _losses_of(self, call: int) -> Losses:
        """Return the losses of the unchanged program that a call of the changed one stands for: the
        loss of its own line, and those of calls that the fix removed, if the call's graph has their
        parts.
        """
        made, own = self._after.made_in(call), self._after.line(call)
        losses = {line for line in self._gone if self._made_of(line) & made.keys()}
        losses |= {own} if own in self._base.lines or not losses else set()
        return frozenset(self._first.get(line, line) for line in losses)

    @cached_property
    def _first(self) -> dict[Line, Line]:
        """The first line that runs the same loss backward, for all lines of the unchanged program.

        A loss is what one expression has made. That of a line that is gone cannot be told from one
        that is made of the same values, both where they are run backward.
        """
        known: dict[object, Line] = {}
        lines = self._base.lines.items()
        first = {line: known.setdefault(self._base.makers(i) or line, line) for line, i in lines}
        kept = {self._makers[line]: line for line in [*first][::-1] if line not in self._gone}
        return first | {g: first[kept[m]] for g in self._gone if (m := self._makers[g]) in kept}

    @cached_property
    def _makers(self) -> dict[Line, frozenset[int]]:
        """The places that have made the loss of each line of the unchanged program, but for those
        in the line itself.
        """
        return {line: self._base.makers(i, *line[:1]) for line, i in self._base.lines.items()}

    def _made_of(self, line: Line) -> frozenset[Spot]:
        return frozenset(map(self._base.spot, self._makers.get(line, ())))

    @cached_property
    def before(self) -> tuple[TrainingStep, ...]:
        """The steps of the unchanged program."""
        return tuple(_steps(self._base, self._losses_before))

    @cached_property
    def after(self) -> tuple[TrainingStep, ...]:
        """The steps of the changed program."""
        return tuple(_steps(self._after, self._losses_after))

    @cached_property
    def trained(self) -> Mapping[Key, Losses]:
        """The losses that train each parameter of an optimizer, with the changes."""
        return _trained_in(step for step in self.after if step.optimizer >= 0)

    @cached_property
    def homes(self) -> Mapping[Line, set[int]]:
        """The optimizers that step next after the losses of the unchanged program; of several those
        whose gradients it sets to zero right before a loss.
        """
        homes: dict[Line, set[int]] = defaultdict(set)
        zeroed: dict[Line, set[int]] = defaultdict(set)
        waiting: list[Line] = []
        has_stepped, run, there = False, self._base, set[int]()
        for index, event in enumerate(run.record.events):
            if event.kind == "call":
                line = self._first[event.stack]
                waiting = [*([] if has_stepped else waiting), line]
                gone = there & {*event.cleared} & run.record.owners.keys()
                zeroed[line] |= {run.record.owners[leaf][0] for leaf in gone}
                there = (there - gone) | run.record.leaves_of(run.seen.ran[index])
            elif event.kind == "step":
                for line in waiting:
                    homes[line].add(event.optimizer)
            has_stepped = event.kind == "step" or (has_stepped and event.kind != "call")
        return {line: (own & zeroed[line]) or own for line, own in homes.items()}

    # what differs

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """All that is trained otherwise, the worst first, each with all its parameters."""
        keys = dict.fromkeys(key for step in (*self.before, *self.after) for key in step.losses)
        found = [each for key in keys for each in self._of_leaf(key)]
        untrained = {each.keys for each in found if each.change is TrainingChange.UNTRAINED}
        merged: dict[object, Difference] = {}
        for each in sorted(found, key=lambda one: [*TrainingChange].index(one.change)):
            if each.change is TrainingChange.UNTRAINED or each.keys not in untrained:
                what = (each.change, each.loss, each.optimizer, each.rest)
                known = merged[what].keys if what in merged else ()
                merged[what] = each._replace(keys=(*known, *each.keys))
        return tuple(merged.values())

    @cached_property
    def is_equal(self) -> bool:
        """Whether the good steps use the same gradients, but for rounding: those before a call that
        would fail, or that goes through what an earlier run of its line has built; of an optimizer
        that had none before, those up to where a call differentiates what has been changed.
        """
        events, known = self._base.record.events, Counter[int]()
        carried = filter(self._base.is_carried, self._base.record.calls)
        fails = min([len(events), *carried, *self._base.seen.hazards])
        spoilt = next((i for i in self._base.seen.hazards if events[i].stale), len(events))
        stepped = {each.optimizer for each in events[:fails]}
        after = gathered(self._after.record.events, lambda event: event.optimizer)
        for index, event in enumerate(events):
            own = event.optimizer
            is_good = index < fails or (index < spoilt and own not in stepped)
            if own < 0 or not is_good or known[own] >= len(after.get(own, ())):
                continue
            sums = self._base.sums(event), self._after.sums(after[own][known[own]])
            known[own] += 1
            if any(_differ(sums[0].get(key), sums[1].get(key)) for key in sums[0] | sums[1]):
                return False
        return True

    @property
    def carries(self) -> bool:
        """Whether calls of the changed program go through what earlier iterations have built."""
        return any(map(self._after.is_carried, self._after.record.calls))

    @property
    def keeps(self) -> bool:
        """Whether the changed program keeps what several calls share, and no later one frees."""
        record, kept = self._after.record, set[int]()
        times = Counter(node for own in self._after.seen.ran.values() for node in own)
        for place, call in enumerate(record.calls):
            if not record.events[call].keep:
                kept -= self._after.seen.ran[call]
            elif 2 * place <= len(record.calls):  # what frees a later one may not be reached
                kept |= self._after.seen.ran[call] - record.leaf.keys()
        return any(record.saves[node] and times[node] > 1 for node in kept)

    def _pairs(self, key: Key) -> list[tuple[TrainingStep, TrainingStep]]:
        """Return the steps of a leaf's optimizer, those of both runs side by side; if the changed
        program should have come to the first one and did not, that with nothing that it trains.
        """
        runs = self.before, self.after
        base, after = ([step for step in run if step.optimizer == key[0]] for run in runs)
        if base and not after:
            record, step = self._after.record, base[0]
            if record.failed and record.calls:
                is_missing = bool(self._losses_of(record.calls[-1]) & step.losses.get(key, set()))
            else:
                before = [call for call in self._base.record.calls if call < step.index]
                is_missing = len(record.calls) > len(before)
            after = [replace(step, losses={})] if is_missing else []
        return list(zip(base, after, strict=False))

    def _of_leaf(self, key: Key) -> Iterator[Difference]:
        """Compare the losses that trained one leaf, step by step."""
        nothing: Losses = frozenset()
        pairs = self._pairs(key)
        base = [step.losses.get(key, nothing) for step, _ in pairs]
        after = [step.losses.get(key, nothing) for _, step in pairs]
        counts = {
            line: (sum(line in lines for lines in base), sum(line in lines for lines in after))
            for line in sorted(nothing.union(*base, *after))
        }
        was, now = trained = sum(map(bool, base)), sum(map(bool, after))
        # Whoever reads the gradients of a leaf that nothing steps may want those of some calls.
        if (was and 2 * now <= was) if key[0] >= 0 else (was > 1 and 4 * now <= was):
            main = max(counts, key=lambda line: counts[line][0])
            yield Difference(TrainingChange.UNTRAINED, (key,), main, pairs[0][0], (), trained)
            return
        for line, (was, now) in counts.items() if key[0] >= 0 else ():
            step = pairs[0][0]
            if was and 2 * now <= was:
                rest = tuple(other for other in counts if counts[other][1] > now)
                yield Difference(TrainingChange.LOST, (key,), line, step, rest, (was, now))
            is_new = 2 * was < now and (key, line) not in self._carried
            if is_new or (now and self._is_of_others(key, line)):
                yield Difference(TrainingChange.GAINED, (key,), line, step, (), (was, now))
        less = [step for step, other in pairs if self._has_less_ways(key, step, other)]
        if 2 * len(less) > len(pairs):
            yield Difference(TrainingChange.OTHER, (key,), min(less[0].losses[key]), less[0])

    def _has_less_ways(self, key: Key, step: TrainingStep, other: TrainingStep) -> bool:
        """Return whether losses that train a leaf in both runs do it with the changes by less ways;
        those through what a call would fail at have to go.
        """
        losses = step.losses.get(key)
        if not losses or losses != other.losses.get(key) or key[0] < 0 or self._fails < 0:
            return False
        before = self._base.ways(step.index, without_outdated=self._failing in losses)
        return self._after.ways(other.index, without_outdated=False).get(key, 0) < before[key]

    def _is_of_others(self, key: Key, line: Line) -> bool:
        """Return whether a loss that failed at first belongs to other optimizers than a
        parameter's, which had stepped before and was trained without it.
        """
        if self._failing != line:
            return False
        homes = self.homes.get(line, set())
        worked = [s for s in self.before if s.index < self._fails and s.losses.get(key)]
        is_new = worked and not any(line in step.losses[key] for step in worked)
        return bool(homes and is_new) and key[0] not in homes


def _steps(run: _Trained, losses_of: Callable[[int], dict[Key, Losses]]) -> Iterator[TrainingStep]:
    """Yield the steps of a run, or its calls if it has no optimizer."""
    record = run.record
    losses = {call: losses_of(call) for call in record.calls}
    for index, event in enumerate(record.events):
        if not record.optimizers and event.kind == "call":
            yield TrainingStep(index, -1, run.line(index), losses[index])
        elif event.kind == "step" and event.optimizer >= 0:
            found: dict[Key, Losses] = defaultdict(frozenset)
            for leaf, calls in run.seen.used.get(index, {}).items():
                key = run.key(leaf)
                for call in calls:
                    found[key] |= losses[call].get(key, frozenset())
            yield TrainingStep(index, event.optimizer, run.line(index), found)


def _differ(one: Sums | None, other: Sums | None) -> bool:
    """Return whether two gradients differ by more than rounding, as far as that is known."""
    (one_sum, one_part), (other_sum, other_part) = one or (0, 0), other or (0, 0)
    scale = max(one_part, one_part - one_sum, other_part, other_part - other_sum)
    return max(abs(one_sum - other_sum), abs(one_part - other_part)) > _ROUNDING * scale


def _trained_in(steps: Iterable[TrainingStep]) -> dict[Key, Losses]:
    """Return the losses that train each leaf in at least half of the steps that use it."""
    counts: dict[Key, Counter[Line]] = defaultdict(Counter)
    times: Counter[Key] = Counter()
    for step in steps:
        for key, losses in step.losses.items():
            counts[key].update(losses)
            times[key] += 1
    return {
        key: frozenset(line for line, often in of.items() if 2 * often >= times[key])
        for key, of in counts.items()
    }


def owners(keys: Iterable[Key], comparison: Comparison) -> str:
    """Return parameters as people write them: ``G.*``, ``D.0.weight``, or how many they are."""
    every, wanted = comparison.names, dict.fromkeys(keys)
    names = [every[key] for key in wanted if key in every]
    mine, everything = {*names}, [*every.values()]
    told = [*dict.fromkeys(f"`{_owner(name, mine, everything)}`" for name in names)]
    unnamed = len(wanted) - len(names)
    if len(told) > _MOST_NAMES:
        told = [*told[:_MOST_NAMES], f"{len(told) - _MOST_NAMES} more"]
    if unnamed:
        told.append(f"{unnamed} parameters without a name" if unnamed > 1 else "one parameter")
    return f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else told[0]


def _owner(name: str, mine: set[str], everything: Sequence[str]) -> str:
    """Return the outermost module all of whose parameters are ``mine``, or the parameter."""
    parts = name.split(".")
    for length in range(1 + (parts[0] == "self"), len(parts)):
        head = ".".join(parts[:length]) + "."
        inside = {other for other in everything if other.startswith(head)}
        if len(inside) > 1 and inside <= mine:
            return f"{head}*"
    return name
