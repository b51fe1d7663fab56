"""What trying fixes out has shown, as text: the rows of each, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gradscope.fixing.plan import Proposal
from gradscope.fixing.rehearsal import Line, Spot
from gradscope.fixing.runs import LINES_OF_OUTPUT, LossLog, Run, text_at, told_place
from gradscope.fixing.training import Comparison, Difference, TrainingChange, owners
from gradscope.fixing.verify import NEVER_CAME, Tried, Verdict, Verification
from gradscope.formatting import counted, gathered, nbytes, short_path
from gradscope.render.text import plain, print_lines, print_message, shorten, wrapped

_MOST_TEXT = 40  # characters of code within a sentence: a longer one is named by its line
_MORE_TIME = "give it more time (--timeout)"


def print_trial(trial: Verification, script: str, console: Console) -> None:
    """Print what the runs have shown: all that was tried, then the verdict on what is chosen."""
    verdict = trial.verdict
    calls = counted(verdict.bounds.calls, "backward call")
    until = f"{calls} each, and for {counted(round(verdict.bounds.seconds), 'second')} in all"
    what = "each fix" if len(trial.tried) > 1 else "the fix"
    if verdict.before.is_rank:
        what += ", as the only rank of a launcher"
    print_lines(console, [Text("tried out", style="bold")])
    _row("runs", f"{script} as it is, and with {what}, for at most {until}", console)
    for tried in trial.tried:
        _tried(tried, trial, console)
    print_lines(console, [Text()])
    for proposal in filter(verdict.never_came, verdict.plan.proposals):
        codes = " and ".join(dict.fromkeys(finding.code for finding in proposal.findings))
        _row(proposal.hazard, f"{codes}: {NEVER_CAME}", console)
    if verdict.fails:
        _output(verdict.after, console)
    end = Text("the fix holds", style="bold green")
    if not verdict.holds:
        end = Text(f"not verified: {why(verdict)}", style="bold red")
    print_lines(console, wrapped(end, console.width, console))


def _row(name: str, value: str, console: Console) -> None:
    print_message(Text(f"  {name:<7} ", style="dim"), value, console)


def _tried(tried: Tried, trial: Verification, console: Console) -> None:
    """Print what trying a candidate out has shown."""
    head = Text(f"fix {tried.candidate.number}", style="bold")
    if trial.is_recommended(tried.candidate) and tried.holds:
        head.append(" (recommended)", style="bold green")
    print_lines(console, [Text(), head])
    file, _ = tried.candidate.place
    _row("edit", f"{tried.candidate.fix.message}, in {Path(file).name}", console)
    verdict = tried.verdict
    if verdict is not None:
        _row(tried.proposal.hazard, _hazard(verdict, tried.proposal), console)
        new = dict.fromkeys(f"{each.severity} {each.code}" for each in verdict.new)
        _row("new", ", ".join(new) or "none", console)
        before = _end(verdict.before, verdict)
        _row("ends", f"{_end(verdict.after, verdict)} (before, {before})", console)
        for trains in _who_trains_what(verdict.comparison) or ("not known",):
            _row("trains", trains, console)
        losses = [_course(loss) for loss in verdict.after.losses]
        for loss in losses or ["not known: no backward() started from a single number"]:
            _row("loss", loss, console)
        _row("memory", _memory(verdict), console)
    _row("verdict", "holds" if tried.holds else f"not verified: {_why_of(tried)}", console)


def _hazard(verdict: Verdict, proposal: Proposal) -> str:
    if verdict.met(proposal) is None:
        calls = counted(verdict.before.calls, "backward call")
        return f"did not show without the fix either, in {calls}"
    if verdict.left(proposal) is not None:
        return "still there"
    return "gone" if verdict.reached else "not reached in time"


def _end(run: Run, verdict: Verdict) -> str:
    calls = counted(run.calls, "backward call")
    if run.exit_status is None:
        return f"stopped after {counted(round(run.seconds), 'second')} and {calls}"
    if run.exception:
        return f"raised {run.exception.partition(':')[0]} after {calls}"
    if run.exit_status < 0:
        return f"killed by signal {-run.exit_status} after {calls}"
    if run.exit_status == 0:
        how = "stopped" if run.calls >= verdict.bounds.calls else "normally,"
        return f"{how} after {calls}"
    return f"with exit status {run.exit_status} after {calls}"


def _course(loss: LossLog) -> str:
    """Return the course of a loss with the fix; one of several may rise because another falls."""
    course = f"{loss.first:.4g} in one call"
    if len(loss.values) > 1:
        n = loss.averaged
        of = f"mean of the first {n} and last {n} values" if n > 1 else "first and last value"
        course = f"{loss.first:.4g} → {loss.last:.4g} ({of}; no verdict)"
    return f"{_quoted(loss.text)} {course}".lstrip()


def _memory(verdict: Verdict) -> str:
    runs = [run.recording for run in (verdict.before, verdict.after)]
    if runs[1] is not None and not runs[1].header.hooks:
        return "not counted without hooks"
    first, last = (nbytes(run.summary.peak_saved_bytes if run else 0) for run in runs)
    # A run that failed was no further than to there.
    until = ", until it failed" if verdict.before.exception else ""
    return f"{last}, as before" if first == last else f"{last} (before, {first}{until})"


def _why_of(tried: Tried) -> str:
    """Return the first reason why a candidate is not verified."""
    if tried.verdict is None:
        return tried.proposal.problem or "no time was left for it; give more (--timeout)"
    return why(tried.verdict, (tried.proposal,))


def _output(run: Run, console: Console) -> None:
    """Print the end of what a failed run has printed."""
    lines = run.output.rstrip().splitlines()[-LINES_OF_OUTPUT:]
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
                none = "the program made no backward call as the only rank of a launcher"
                return f"{none}; what starts its ranks itself is tried in its first process alone"
            gone = f"the {proposal.hazard} did not occur this time without the fix either"
            return f"{gone}, so its absence with the fix proves nothing"
        if verdict.left(proposal) is not None:
            return f"{proposal.named} is still there"
    if verdict.comparison is None:
        return f"what it trains is not known: the rehearsal failed; {_MORE_TIME}"
    if verdict.refused:
        return _refusal(verdict.refused[0], verdict.comparison)
    if verdict.fails:
        return "with the fix the program fails in another way"
    if not verdict.reached:
        return f"with the fix the program did not reach the place of the failure; {_MORE_TIME}"
    new = ", ".join(dict.fromkeys(f"{each.severity} {each.code}" for each in verdict.new))
    return f"with the fix there is another finding: {new}"


def _refusal(difference: Difference, comparison: Comparison) -> str:
    """Return in one sentence what a fix would do to the training that it may not do."""
    lines = comparison.lines
    who = owners(difference.keys, comparison)
    loss = f"{_loss(difference.loss, lines)} ({_short(told_place(difference.loss, lines))})"
    step = _step(difference, comparison)
    match difference.change:
        case TrainingChange.UNTRAINED:
            was, now = difference.times
            but = f"only in {now} of {counted(was, 'step')}" if now else "not"
            return f"{who} would {but} be trained by {loss} any more{step}"
        case TrainingChange.LOST:
            rest = ", ".join(_loss(line, lines) for line in difference.rest) or "other losses"
            return f"{who} would get no gradient from {loss} any more, only from {rest},{step}"
        case TrainingChange.GAINED:
            return f"{who} would be trained by {loss}, which did not train it before,{step}"
        case TrainingChange.OTHER:
            return f"{who} would get another gradient from {loss} than without the fix,{step}"


def _who_trains_what(comparison: Comparison | None) -> tuple[str, ...]:
    """Return for the parameters that the same losses train a line with their names and those."""
    if comparison is None:
        return ()
    trained = comparison.trained
    groups = gathered(sorted(trained), lambda key: (key[0], trained[key]))
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
    return _quoted(text_at(file, number, {})) or f"line {number}"


def _quoted(text: str) -> str:
    """Return the loss of a statement that runs it backward; empty if that is long."""
    shown = text.partition(".backward(")[0]
    return f"`{shown}`" if 0 < len(shown) <= _MOST_TEXT else ""


def _step(difference: Difference, comparison: Comparison) -> str:
    """Return `` at `oG.step()` (train.py:21, Adam)``."""
    if difference.optimizer < 0:
        return ""
    steps = (step for step in comparison.before if step.optimizer != difference.optimizer)
    lines = {difference.step.line, *(step.line for step in steps)}
    file, line = told_place(difference.step.line, lines)
    text = text_at(file, line, {})
    shown = f"`{text}`" if 0 < len(text) <= _MOST_TEXT else "the step"
    return f" at {shown} ({_short((file, line))}, {comparison.optimizers[difference.optimizer]})"


def _short(place: Spot) -> str:
    return f"{short_path(place[0])}:{place[1]}"
