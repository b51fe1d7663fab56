"""What a fix does to the training, in sentences: who trains what, and why a fix is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gradscope.fixing.gradients import Key, Line
from gradscope.fixing.runs import text_at, told_place
from gradscope.fixing.training import Change, Difference, owners
from gradscope.fixing.verify import Verdict
from gradscope.units import counted, short_path

_LOSS = re.compile(r"(.+?)\s*\.\s*backward\s*\(")
_OPTIMIZER = re.compile(r"([\w.\[\]'\"]+)\s*\.\s*step\s*\(")
_MOST_TEXT = 40


def refusal(difference: Difference, verdict: Verdict) -> str:
    """Return in one sentence what a fix would do to the training that it may not do."""
    lines = _known_lines(verdict)
    who = owners(difference.keys, verdict.comparison)
    loss = f"{_loss(difference.loss, lines)} ({_place(told_place(difference.loss, lines))})"
    step = _step(difference, verdict)
    match difference.change:
        case Change.UNTRAINED:
            was, now = difference.times
            but = f"only in {now} of {counted(was, 'step')}" if now else "not"
            return f"{who} would {but} be trained by {loss} any more{step}"
        case Change.LOST:
            rest = ", ".join(_loss(line, lines) for line in difference.rest) or "other losses"
            return f"{who} would get no gradient from {loss} any more, only from {rest},{step}"
        case Change.GAINED:
            return f"{who} would be trained by {loss}, which did not train it before,{step}"
        case Change.OTHER:
            return (
                f"{who} would get another gradient from {loss} than without the fix, where that"
                f" call works,{step}"
            )


def who_trains_what(verdict: Verdict) -> tuple[str, ...]:
    """Return for the parameters that the same losses train a line with their names and those."""
    known = _known_lines(verdict)
    groups: dict[tuple[int, frozenset[Line]], list[Key]] = {}
    for key, lines in sorted(verdict.trained.items()):
        groups.setdefault((key[0], lines), []).append(key)
    return tuple(
        f"{', '.join(dict.fromkeys(_loss(line, known) for line in sorted(lines)))} →"
        f" {owners(keys, verdict.comparison)}"
        for (_, lines), keys in groups.items()
        if lines
    )


def _known_lines(verdict: Verdict) -> set[Line]:
    """Return the lines of all backward calls of the unchanged program."""
    runs = (verdict.before, verdict.reference)
    return {call.line for run in runs if run is not None for call in run.training.calls}


def _loss(line: Line, lines: Iterable[Line]) -> str:
    """Return the loss that a line of the unchanged program runs backward, as written there; where
    a function does that for several, the call of it.
    """
    file, number = told_place(line, lines)
    text = text_at(file, number, {})
    found = _LOSS.search(text)
    shown = found[1] if found is not None else text
    return f"`{shown}`" if 0 < len(shown) <= _MOST_TEXT else f"line {number}"


def _step(difference: Difference, verdict: Verdict) -> str:
    """Return `` at `oG.step()` (train.py:21, Adam)``."""
    kinds = verdict.comparison.base.optimizers or verdict.after.training.optimizers
    number = difference.optimizer
    if number < 0 or number >= len(kinds):
        return ""
    if difference.step is None:
        return f" for the {kinds[number]} that holds it"
    steps = (step for step in verdict.comparison.base.steps if step.optimizer != number)
    lines = {difference.step.line, *(step.line for step in steps)}
    file, line = told_place(difference.step.line, lines)
    text = text_at(file, line, {})
    found = _OPTIMIZER.search(text)
    name = found[0] + ")" if found is not None else text
    shown = f"`{name}`" if 0 < len(name) <= _MOST_TEXT else "the step"
    return f" at {shown} ({_place((file, line))}, {kinds[number]})"


def _place(place: tuple[str, int]) -> str:
    return f"{short_path(place[0])}:{place[1]}"
