"""What a fix does to the training, in sentences: who trains what, and why a fix is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gradscope.fixing.gradients import Key, Line
from gradscope.fixing.runs import text_at
from gradscope.fixing.training import Change, Difference, owners
from gradscope.fixing.verify import Verdict
from gradscope.render.text.terminal import short_path

_LOSS = re.compile(r"(.+?)\s*\.\s*backward\s*\(")
_OPTIMIZER = re.compile(r"([\w.\[\]'\"]+)\s*\.\s*step\s*\(")
_MOST_TEXT = 40


def refusal(difference: Difference, verdict: Verdict) -> str:
    """Return in one sentence what a fix would do to the training that it may not do."""
    who = owners(difference.keys, verdict.comparison)
    loss = f"{_loss(difference.loss)} ({_place(difference.loss)})"
    step = _step(difference, verdict)
    match difference.change:
        case Change.UNTRAINED:
            was, now = difference.times
            when = f" in {now} of {was} steps" if now else ""
            but = f"only{when}" if now else "not"
            return f"{who} would {but} be trained by {loss} any more{step}"
        case Change.LOST:
            rest = ", ".join(map(_loss, difference.rest)) or "other losses"
            return f"{who} would get no gradient from {loss} any more, only from {rest},{step}"
        case Change.GAINED:
            return f"{who} would be trained by {loss}, which did not train it before,{step}"
        case Change.OTHER:
            return (
                f"{who} would get another gradient from {loss} than without the fix, where that"
                f" call works,{step}"
            )


def who_trains_what(verdict: Verdict, arrow: str) -> tuple[str, ...]:
    """Return for the parameters that the same losses train a line with their names and those."""
    groups: dict[tuple[int, frozenset[Line]], list[Key]] = {}
    for key, lines in sorted(verdict.trained.items()):
        groups.setdefault((key[0], lines), []).append(key)
    return tuple(
        f"{', '.join(_losses(lines))} {arrow} {owners(keys, verdict.comparison)}"
        for (_, lines), keys in groups.items()
        if lines
    )


def _losses(lines: Iterable[Line]) -> list[str]:
    return list(dict.fromkeys(map(_loss, sorted(lines))))


def _loss(line: Line) -> str:
    """Return the loss that a line of the unchanged program runs backward, as written there."""
    text = text_at(*line, {})
    found = _LOSS.search(text)
    shown = found[1] if found is not None else text
    if len(shown) > _MOST_TEXT or not shown:
        return f"line {line[1]}"
    return f"`{shown}`"


def _step(difference: Difference, verdict: Verdict) -> str:
    """Return `` before `oG.step()` (train.py:21), of an Adam``."""
    kinds = verdict.comparison.base.optimizers or verdict.after.training.optimizers
    number = difference.keys[0][0]
    if number < 0 or number >= len(kinds):
        return ""
    if difference.step is None:
        return f" for the {kinds[number]} that holds it"
    found = _OPTIMIZER.search(text_at(*difference.step, {}))
    name = f"`{found[1]}.step()`" if found is not None else "the step"
    return f" at {name} ({_place(difference.step)}, {kinds[number]})"


def _place(line: Line) -> str:
    return f"{short_path(line[0])}:{line[1]}"
