"""Compares what two runs of a program trained: what a fix takes away, and what it brings in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from gradscope.fixing.gradients import Call, Key, Line, Step, Training

Unit = frozenset[Line]
"""The lines of the unchanged program whose losses a call of the changed one is made of."""

_SAME = 1e-3
"""Relative difference up to which two norms of a gradient are taken for one."""
_MOST_NAMES = 3


class Change(StrEnum):
    """What a fix may do to the training of a parameter, the worst first."""

    UNTRAINED = "untrained"
    OTHER = "other"
    GAINED = "gained"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Difference:
    """Parameters that a fix trains otherwise, the loss that it is about, and the first ``step`` of
    their optimizer.
    """

    change: Change
    keys: tuple[Key, ...]
    loss: Line
    step: Step | None
    rest: tuple[Line, ...] = ()
    times: tuple[int, int] = (0, 0)

    @property
    def optimizer(self) -> int:
        """The optimizer that steps them."""
        return self.keys[0][0] if self.step is None else self.step.optimizer


@dataclass(frozen=True)
class Comparison:
    """What the ``base`` trained and the run ``after`` the fix did.

    ``before`` is the run as it is, up to the call that fails; ``reference`` the same in which that
    call goes on, if there is one. ``units`` says which losses a line of ``after`` stands for,
    ``is_exact`` whether the reference computes what the program would if nothing failed.
    """

    before: Training
    reference: Training | None
    after: Training
    units: Callable[[Line], Unit]
    is_exact: bool = True

    @cached_property
    def base(self) -> Training:
        """What the fixed program is measured by."""
        failed = self.before.failed
        if failed is None or self.reference is None:
            return self.before
        passed = any(
            call.number >= failed.number and not call.failed for call in self.reference.calls
        )
        return self.reference if passed else self.before

    def homes_of(self, loss: Line) -> set[int]:
        """Return the optimizers that step next after a loss of the unchanged program."""
        known = self.base.homes().get(loss)
        if known is not None:
            return known
        after = self.after.homes()
        return {one for line, of in after.items() if loss in self.units(line) for one in of}

    @cached_property
    def names(self) -> Mapping[Key, str]:
        """The names of the parameters, in whichever run they were found."""
        runs = (self.after, self.reference, self.before)
        return {k: n for run in runs if run is not None for k, n in run.names.items()}

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """All that is trained otherwise, the worst first, each with all its parameters."""
        found = [*self._by_steps(), *self._before_the_failure(), *self._of_failed_call()]
        found += self._without_optimizer()
        grave: dict[Key, Change] = {}
        order = list(Change)
        for each in found:
            for key in each.keys:
                worst = grave.get(key, each.change)
                grave[key] = min(worst, each.change, key=order.index)
        merged: dict[object, Difference] = {}
        for each in sorted(found, key=lambda one: order.index(one.change)):
            kept = tuple(
                key
                for key in each.keys
                if grave[key] is not Change.UNTRAINED or each.change is Change.UNTRAINED
            )
            what = (each.change, each.loss, each.optimizer, each.rest)
            known = merged.get(what)
            keys = tuple(dict.fromkeys((*(known.keys if known else ()), *kept)))
            if keys:
                merged[what] = Difference(
                    each.change, keys, each.loss, each.step, each.rest, each.times
                )
        return tuple(merged.values())

    def _by_steps(self) -> list[Difference]:
        found = []
        for optimizer in range(len(self.base.optimizers)):
            base, after = self.base.steps_of(optimizer), self.after.steps_of(optimizer)
            pairs = list(zip(base, after, strict=False))
            came = len(self.after.calls) - (self.after.failed is None)
            if base and not after and came >= base[0].after:
                found += self._of_missing_step(base[0])
            every = dict.fromkeys(key for pair in pairs for step in pair for key in step.calls)
            for key in every:
                found += self._of_parameter(key, pairs)
        return found

    def _of_missing_step(self, step: Step) -> list[Difference]:
        """Return what a step would have trained that the fixed program never comes to: if a call
        of it fails, what that call was for.
        """
        failed = self.after.failed
        asked = None if failed is None else self.units(failed.line)
        found = []
        for key in step.calls:
            lines = self._lines(self.base, step, key)
            if lines and (asked is None or asked & lines):
                line = min(asked & lines if asked else lines)
                found.append(Difference(Change.UNTRAINED, (key,), line, step, (), (1, 0)))
        return found

    def _of_parameter(self, key: Key, pairs: Sequence[tuple[Step, Step]]) -> list[Difference]:
        """Compare the losses that trained one parameter, step by step."""
        base = [self._lines(self.base, step, key) for step, _ in pairs]
        through_state = {n for step, _ in pairs for n in step.calls.get(key, ()) if n < 0}
        carried = {self.base.by_number[-number].line for number in through_state}
        after = [
            self._old_lines(key, step, lines, number, pairs)
            for number, ((_, step), lines) in enumerate(zip(pairs, base, strict=True))
        ]
        counts = {
            line: (sum(line in lines for lines in base), sum(line in lines for lines in after))
            for line in sorted({line for lines in (*base, *after) for line in lines})
        }
        step = pairs[0][0]
        trained = sum(map(bool, base)), sum(map(bool, after))
        if trained[0] and 2 * trained[1] <= trained[0]:
            main = max(counts, key=lambda line: counts[line][0])
            return [Difference(Change.UNTRAINED, (key,), main, step, (), trained)]
        found = []
        for line, (was, now) in counts.items():
            if was and 2 * now <= was:
                rest = tuple(other for other in counts if counts[other][1] > now)
                found.append(Difference(Change.LOST, (key,), line, step, rest, (was, now)))
            elif (2 * was < now and line not in carried) or (
                now and self._comes_from_elsewhere(key, line, step.optimizer)
            ):
                found.append(Difference(Change.GAINED, (key,), line, step, (), (was, now)))
        return found

    def _lines(self, run: Training, step: Step, key: Key) -> frozenset[Line]:
        numbers = step.calls.get(key, ())
        return frozenset(run.by_number[n].line for n in numbers if n in run.by_number)

    def _old_lines(
        self,
        key: Key,
        step: Step,
        before: frozenset[Line],
        number: int,
        pairs: Sequence[tuple[Step, Step]],
    ) -> frozenset[Line]:
        """Return the lines of the unchanged program whose losses a step's gradient is made of.

        Of a sum of losses, a loss that did not train the parameter counts only where the gradient
        differs.
        """
        found: set[Line] = set()
        for line in self._lines(self.after, step, key):
            unit = self.units(line)
            known = unit & before
            found |= known or unit
            if known and unit - known and self._differs(key, pairs[: number + 1]):
                found |= unit
        return frozenset(found)

    def _differs(self, key: Key, pairs: Sequence[tuple[Step, Step]]) -> bool:
        """Return whether the gradient is another from the first step on, where that can be told."""
        first, second = (step.sizes.get(key) for step in pairs[0])
        if first is None or second is None or not self._is_repeatable:
            return False
        return not _close(first, second)

    @cached_property
    def _is_repeatable(self) -> bool:
        """Whether two runs of the unchanged program computed the same, as far as both went."""
        if self.reference is None or not self.is_exact:
            return False
        pairs = zip(self.before.calls, self.reference.calls, strict=False)
        return all(_same_value(one, other) for one, other in pairs)

    def _comes_from_elsewhere(self, key: Key, line: Line, optimizer: int) -> bool:
        """Return whether a loss that failed at first belongs to other optimizers than the
        parameter's, which steps before it was trained by it.
        """
        failed = self.before.failed
        if failed is None or failed.line != line:
            return False
        homes = self.base.homes().get(line, set())
        steps = [step for step in self.before.steps_of(optimizer) if key in step.calls]
        if not homes or optimizer in homes or not steps:
            return False
        return not any(line in self._lines(self.before, step, key) for step in steps)

    def _before_the_failure(self) -> list[Difference]:
        """Return the parameters that get another gradient from a call that worked all along."""
        failed = self.before.failed
        if failed is None:
            return []
        found = []
        for optimizer in range(len(self.before.optimizers)):
            steps = zip(
                self.before.steps_of(optimizer), self.after.steps_of(optimizer), strict=False
            )
            for one, other in steps:
                for key in one.calls:
                    loss = self._same_losses(key, one, other)
                    sizes = one.sizes.get(key), other.sizes.get(key)
                    if loss is None or loss == failed.line or None in sizes:
                        continue
                    if not _close(sizes[0] or 0.0, sizes[1] or 0.0):
                        found.append(Difference(Change.OTHER, (key,), loss, one))
        return found

    def _same_losses(self, key: Key, one: Step, other: Step) -> Line | None:
        """Return a loss of two steps that used the same losses, each with the same value."""
        calls = [self.before.by_number.get(n) for n in one.calls[key]]
        same = [self.after.by_number.get(n) for n in other.calls.get(key, ())]
        if not calls or len(calls) != len(same):
            return None
        for call, twin in zip(calls, same, strict=True):
            if call is None or twin is None or self.units(twin.line) != {call.line}:
                return None
            if call.value is None or not _same_value(call, twin):
                return None
            if self.before.failed is not None and call.line == self.before.failed.line:
                return None
        return calls[0].line if calls[0] is not None else None

    def _of_failed_call(self) -> list[Difference]:
        """Return what the failed call was to train and does not, where no reference run tells."""
        failed = self.before.failed
        if failed is None or self.base is not self.before:
            return []
        trained = trained_by(self.after, self.units)
        own = self.homes_of(failed.line)
        stepping = {step.optimizer: step for step in self.after.steps}
        found = []
        for key in sorted(key for key in failed.reached if key[0] in stepping):
            losses = trained.get(key, frozenset())
            rest = tuple(sorted(losses))
            if not losses:
                found.append(Difference(Change.UNTRAINED, (key,), failed.line, None, (), (1, 0)))
            elif failed.line not in losses and key[0] in own:
                step = stepping[key[0]]
                found.append(Difference(Change.LOST, (key,), failed.line, step, rest, (1, 0)))
        return found

    def _without_optimizer(self) -> list[Difference]:
        """Return the leaves of a program without optimizers that get no gradient any more."""
        if self.base.optimizers:
            return []
        base = {
            self._named(self.base, key): key for call in self.base.calls for key in call.reached
        }
        found = []
        for name, key in base.items():
            was, now = self._share(self.base, name), self._share(self.after, name)
            if was[0] > 1 and now[0] * 4 * was[1] <= was[0] * now[1]:
                line = next(call.line for call in self.base.calls if key in call.reached)
                times = was[0], now[0]
                found.append(Difference(Change.UNTRAINED, (key,), line, None, (), times))
        return found

    def _named(self, run: Training, key: Key) -> str:
        return run.names.get(key, str(key))

    def _share(self, run: Training, name: str) -> tuple[int, int]:
        """Return how many of the calls reach a leaf, and how many calls there are."""
        calls = [call for call in run.calls if not call.failed or run is not self.after]
        reached = [any(self._named(run, key) == name for key in call.reached) for call in calls]
        return sum(reached), len(calls)


def trained_by(run: Training, units: Callable[[Line], Unit]) -> dict[Key, frozenset[Line]]:
    """Return for each parameter the losses that trained it in at least half of its steps."""
    counts: dict[Key, dict[Line, int]] = {}
    steps: dict[Key, int] = {}
    for step in run.steps:
        for key, numbers in step.calls.items():
            steps[key] = steps.get(key, 0) + 1
            of = counts.setdefault(key, {})
            lines = {run.by_number[n].line for n in numbers if n in run.by_number}
            for old in {old for line in lines for old in units(line)}:
                of[old] = of.get(old, 0) + 1
    return {
        key: frozenset(line for line, count in of.items() if 2 * count >= steps[key])
        for key, of in counts.items()
    }


def said_by(effects: Iterable[str], name: str) -> bool:
    """Return whether a sentence about the effects of a fix speaks of a parameter."""
    heads = {name, f"{first_part(name)}.*"} if name else set()
    return any(head in effect for effect in effects for head in heads)


def owners(keys: Iterable[Key], comparison: Comparison) -> str:
    """Return parameters as people write them: ``G.*``, ``D.0.weight``, or how many they are."""
    names = comparison.names
    known = comparison.after.parameters | comparison.base.parameters
    everything = [names[key] for key in known if key in names]
    wanted = list(dict.fromkeys(keys))
    mine = {names[key] for key in wanted if key in names}
    shown = dict.fromkeys(
        f"`{_owner(names[key], mine, everything)}`" for key in wanted if key in names
    )
    unnamed = sum(key not in names for key in wanted)
    told = list(shown)
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


def first_part(name: str) -> str:
    """Return what holds a parameter: ``G`` of ``G.0.weight``, ``self.net`` of ``self.net.bias``."""
    parts = re.split(r"[.\[]", name)
    return ".".join(parts[:2]) if parts[0] == "self" and len(parts) > 2 else parts[0]


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME * max(abs(one), abs(other), 1e-12)


def _same_value(one: Call, other: Call) -> bool:
    if one.value is None or other.value is None:
        return one.value is other.value
    return _close(one.value, other.value) or (one.value != one.value)
