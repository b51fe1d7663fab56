"""What trying fixes out has shown, as text: a table of all, the reasons, the chosen in detail."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradscope.fixing.proposals import Proposal
from gradscope.fixing.rehearsal import Line, Spot
from gradscope.fixing.runs import Loss, Run, text_at, told_place
from gradscope.fixing.training import Change, Comparison, Difference, Key, owners
from gradscope.fixing.verify import NEVER_CAME, Trial, Tried, Verdict
from gradscope.model import Finding
from gradscope.render.text.fixes import at
from gradscope.render.text.terminal import (
    plain,
    print_lines,
    print_message,
    prose,
    shorten,
    wrapped,
)
from gradscope.render.wording import kind_of
from gradscope.units import counted, nbytes, short_path

_MOST_OUTPUT_LINES = 15
_LEAST_COLUMN = 24
_LABEL = 11
_LOSS = re.compile(r"(.+?)\s*\.\s*backward\s*\(")
_OPTIMIZER = re.compile(r"([\w.\[\]'\"]+)\s*\.\s*step\s*\(")
_MOST_TEXT = 40


def print_trial(trial: Trial, script: str, console: Console) -> None:
    """Print what the runs have shown: all that was tried, then what is chosen of it."""
    verdict = trial.verdict
    until = (
        f"{counted(verdict.bounds.calls, 'backward call')} each, and for"
        f" {counted(round(verdict.bounds.seconds), 'second')} in all"
    )
    several = len(trial.tried) > 1
    what = "each fix" if several else "the fix"
    if verdict.before.is_rank:
        what += ", as the only rank of a launcher"
    print_lines(console, [Text("tried out", style="bold")])
    _row("runs", f"{script} as it is, and with {what}, for at most {until}", console)
    if several:
        _tables(trial, console)
        for tried in trial.tried:
            if not tried.holds and not trial.is_recommended(tried.candidate):
                _row(f"fix {tried.candidate.number}", f"not verified: {_why_of(tried)}", console)
        numbers = ", ".join(str(p.chosen.number) for p in verdict.plan.applied)
        print_lines(console, [Text(f"with fix {numbers}", style="bold")])
    _details(verdict, console)
    end = Text("the fix holds", style="bold green")
    if not verdict.holds:
        end = Text(f"not verified: {why(verdict)}", style="bold red")
    print_lines(console, wrapped(end, console.width, console))


def _details(verdict: Verdict, console: Console) -> None:
    for proposal in filter(verdict.never_came, verdict.plan.proposals):
        _row("hazard", f"{_codes(proposal)}: {NEVER_CAME}", console)
    for proposal in verdict.plan.applied:
        _row("hazard", _hazard(verdict, proposal), console)
    for finding in verdict.new:
        what = f"{finding.severity} {finding.code}{at(finding, console)}: {finding.message}"
        _row("new", what, console)
    before, after = _end(verdict.before, verdict), _end(verdict.after, verdict)
    _row("ends", f"{after} (before, {before})", console)
    trained = _who_trains_what(verdict.comparison)
    if trained:
        _row("trains", "; ".join(trained), console)
    _losses(verdict, console)
    _row("memory", _memory(verdict), console)
    if verdict.fails:
        _output(verdict.after, console)


# the table: a column for each candidate


def _tables(trial: Trial, console: Console) -> None:
    """Print the candidates side by side, as many as the terminal has room for."""
    room = max((console.width - _LABEL - 2) // (_LEAST_COLUMN + 2), 1)
    width = (console.width - _LABEL - 2) // min(room, len(trial.tried)) - 2
    for start in range(0, len(trial.tried), room):
        shown = trial.tried[start : start + room]
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
        table.add_column(width=_LABEL)
        for tried in shown:
            table.add_column(_head(tried, trial), overflow="fold", width=width)
        rows: dict[str, Callable[[Tried], Text]] = {
            "edit": lambda tried: Text(_place(tried)),
            "hazard": lambda tried: Text(_hazard_cell(tried)),
            "new": lambda tried: Text(_new_cell(tried)),
            "trains": lambda tried: _trains_cell(tried, console),
            "loss": lambda tried: Text(_loss_cell(tried)),
            "memory": lambda tried: Text(
                _memory(tried.verdict).removeprefix("graphs held at most ")
            ),
            "verdict": _verdict_cell,
        }
        for name, cell in rows.items():
            table.add_row(Text(f"  {name}", style="dim"), *map(cell, shown))
        with console.capture() as capture:
            console.print(table)
        lines = [Text.from_ansi(line.rstrip()) for line in capture.get().splitlines()]
        print_lines(console, [Text(), *lines])
    print_lines(console, [Text()])


def _head(tried: Tried, trial: Trial) -> Text:
    head = Text(f"fix {tried.candidate.number}", style="bold")
    if trial.is_recommended(tried.candidate) and tried.holds:
        head.append(" (recommended)", style="bold green")
    return head


def _place(tried: Tried) -> str:
    file, line = tried.candidate.place
    return f"{kind_of(tried.candidate.fix)}\n{Path(file).name}:{line}"


def _hazard_cell(tried: Tried) -> str:
    if tried.verdict is None:
        return "not tried"
    if tried.verdict.met(tried.proposal) is None:
        return "did not show this time"
    if tried.verdict.left(tried.proposal) is not None:
        return "still there"
    return "gone" if tried.verdict.reached else "not reached in time"


def _new_cell(tried: Tried) -> str:
    found = tried.verdict.new if tried.verdict is not None else ()
    return ", ".join(dict.fromkeys(f"{each.severity} {each.code}" for each in found)) or "none"


def _trains_cell(tried: Tried, console: Console) -> Text:
    lines = _who_trains_what(tried.verdict.comparison) if tried.verdict else ()
    return Text("\n").join(prose(line, console) for line in lines or ("not known",))


def _loss_cell(tried: Tried) -> str:
    losses = tried.verdict.after.losses if tried.verdict is not None else ()
    shown = (f"{_number(loss.first)} → {_number(loss.last)}" for loss in losses)
    return "\n".join(shown) or "not known"


def _verdict_cell(tried: Tried) -> Text:
    if tried.holds:
        return Text("holds", style="bold green")
    return Text("not tried" if tried.verdict is None else "not verified", style="bold red")


def _why_of(tried: Tried) -> str:
    """Return the first reason why a candidate is not verified."""
    if tried.verdict is None:
        return tried.proposal.problem or "no time was left for it; give more (--timeout)"
    return why(tried.verdict, (tried.proposal,))


# what is chosen, in detail


def _row(name: str, value: str, console: Console) -> None:
    print_message(Text(f"  {name:<7} ", style="dim"), value, console)


def _hazard(verdict: Verdict, proposal: Proposal) -> str:
    codes = _codes(proposal)
    met, left = verdict.met(proposal), verdict.left(proposal)
    if met is None:
        calls = counted(verdict.before.calls, "backward call")
        return f"{codes}: did not show without the fix either, in {calls}"
    if left is not None:
        return f"still there: {left.code}{_when(left)} (before{_when(met)})"
    calls = counted(verdict.after.calls, "backward call")
    return f"gone: {codes}, in {calls} (before{_when(met)})"


def _codes(proposal: Proposal) -> str:
    return " and ".join(dict.fromkeys(finding.code for finding in proposal.findings))


def _when(finding: Finding) -> str:
    return f", at backward call {finding.backward_call:,}" if finding.backward_call else ""


def _end(run: Run, verdict: Verdict) -> str:
    calls = counted(run.calls, "backward call")
    if run.exit_status is None:
        return f"stopped after {counted(round(run.seconds), 'second')} and {calls}"
    if run.exception:
        return f"raised {run.exception.partition(':')[0]} after {calls}"
    if run.exit_status < 0:
        return f"killed by signal {-run.exit_status} after {calls}"
    if run.exit_status == 0:
        how = "stopped" if run.calls >= verdict.bounds.calls else "by itself,"
        return f"{how} after {calls}"
    return f"with exit status {run.exit_status} after {calls}"


def _losses(verdict: Verdict, console: Console) -> None:
    """Print the course of each loss with the fix, and how it was measured."""
    losses = verdict.after.losses
    if not losses:
        _row("loss", "not known: no backward() started from a single number", console)
    for loss in losses:
        of = f"`{loss.text}`" if loss.text else "the loss"
        course = _course(loss, verdict)
        _row("loss", f"{of} ({short_path(loss.file)}:{loss.line}): {course}", console)


def _course(loss: Loss, verdict: Verdict) -> str:
    """Return the course of a loss, and of the same without the fix, if it has as many values."""
    if len(loss.values) < 2:
        return f"{_number(loss.first)} in one call, which is too few for a trend"
    measured = counted(len(loss.values), "call")
    if loss.averaged > 1:
        measured = f"mean of the first {loss.averaged} and the last {loss.averaged} of {measured}"
    course = f"{_number(loss.first)} → {_number(loss.last)} ({measured}): {loss.word}"
    same = verdict.before_of(loss)
    if same is None or len(same.values) != len(loss.values):
        return course
    return f"{course}; without the fix {_number(same.first)} → {_number(same.last)}"


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _memory(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    runs = [run.recording for run in (verdict.before, verdict.after)]
    if runs[1] is not None and not runs[1].header.hooks:
        return "not counted without hooks"
    first, last = (nbytes(run.summary.peak_saved_bytes if run else 0) for run in runs)
    # A run that failed was no further than to there.
    until = ", until it failed" if verdict.before.exception else ""
    before = ", as before" if first == last else f" (before, {first}{until})"
    return f"graphs held at most {last}{before}"


def _output(run: Run, console: Console) -> None:
    """Print the end of what a failed run has printed."""
    lines = run.output.rstrip().splitlines()[-_MOST_OUTPUT_LINES:]
    if lines:
        _row("output", "the last lines of the run with the fix:", console)
    for line in lines:
        shown = shorten(plain(line, console), console.width - 4)
        print_lines(console, [Text(f"    {shown}", style="dim")])


def why(verdict: Verdict, proposals: Sequence[Proposal] = ()) -> str:
    """Return the first reason why the fix is not verified."""
    if not verdict.plan.applied:
        return NEVER_CAME
    for proposal in proposals or verdict.plan.applied:
        if verdict.met(proposal) is None:
            if verdict.before.is_rank and not verdict.before.calls:
                return (
                    "the program made no backward call as the only rank of a launcher; what starts"
                    " its ranks itself is tried in its first process alone"
                )
            return (
                "the hazard did not show this time without the fix either, so its absence says"
                " nothing"
            )
        if verdict.left(proposal) is not None:
            return f"the hazard of finding {proposal.number} is still there"
    if verdict.comparison is None:
        return "what it trains is not known: the rehearsal failed; give it more time (--timeout)"
    if verdict.refused:
        return _refusal(verdict.refused[0], verdict.comparison)
    if verdict.fails:
        return "with the fix the program fails in another way"
    if not verdict.reached:
        return (
            "with the fix the program did not reach the place of the hazard; give it more"
            " time (--timeout)"
        )
    return "with the fix there is another finding"


def _refusal(difference: Difference, comparison: Comparison) -> str:
    """Return in one sentence what a fix would do to the training that it may not do."""
    lines = comparison.lines
    who = owners(difference.keys, comparison)
    loss = f"{_loss(difference.loss, lines)} ({_short(told_place(difference.loss, lines))})"
    step = _step(difference, comparison)
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


def _who_trains_what(comparison: Comparison | None) -> tuple[str, ...]:
    """Return for the parameters that the same losses train a line with their names and those."""
    if comparison is None:
        return ()
    groups: dict[tuple[int, frozenset[Line]], list[Key]] = {}
    for key, lines in sorted(comparison.trained.items()):
        groups.setdefault((key[0], lines), []).append(key)
    return tuple(
        f"{', '.join(dict.fromkeys(_loss(line, comparison.lines) for line in sorted(lines)))} →"
        f" {owners(keys, comparison)}"
        for (_, lines), keys in groups.items()
        if lines
    )


def _loss(line: Line, lines: Iterable[Line]) -> str:
    """Return the loss that a line of the unchanged program runs backward, as written there; where
    a function does that for several, the call of it.
    """
    file, number = told_place(line, lines)
    text = text_at(file, number, {})
    found = _LOSS.search(text)
    shown = found[1] if found is not None else text
    return f"`{shown}`" if 0 < len(shown) <= _MOST_TEXT else f"line {number}"


def _step(difference: Difference, comparison: Comparison) -> str:
    """Return `` at `oG.step()` (train.py:21, Adam)``."""
    if difference.optimizer < 0:
        return ""
    steps = (step for step in comparison.before if step.optimizer != difference.optimizer)
    lines = {difference.step.line, *(step.line for step in steps)}
    file, line = told_place(difference.step.line, lines)
    text = text_at(file, line, {})
    found = _OPTIMIZER.search(text)
    name = found[0] + ")" if found is not None else text
    shown = f"`{name}`" if 0 < len(name) <= _MOST_TEXT else "the step"
    return f" at {shown} ({_short((file, line))}, {comparison.optimizers[difference.optimizer]})"


def _short(place: Spot) -> str:
    return f"{short_path(place[0])}:{place[1]}"
