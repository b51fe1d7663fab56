"""The fixes of a recording as text: each in words, as a diff, and what trying it out has shown."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from gradscope.fixing.patch import Change, unified_diff
from gradscope.fixing.proposals import Plan, Proposal
from gradscope.fixing.verify import Loss, Run, Verdict
from gradscope.model import Finding
from gradscope.render.text.finding import tag
from gradscope.render.text.snippets import location
from gradscope.render.text.terminal import (
    plain,
    print_lines,
    print_message,
    short_path,
    shorten,
    signs,
    wrapped,
)
from gradscope.units import counted, nbytes

_DIFF = {"+": "green", "-": "red", "@": "cyan"}
_MOST_OUTPUT_LINES = 15
_TRAINING = "this changes what is trained: no gradient goes through what it cuts off"


def print_plan(plan: Plan, console: Console) -> None:
    """Print every finding with its fix, and then the diff of all that apply."""
    for proposal in plan.proposals:
        _proposal(proposal, console)
    for note in plan.notes:
        _note("note", "bold cyan", note, console)
    for change in plan.changes:
        print_diff(change, console)
    if plan.changes:
        console.print()


def print_diff(change: Change, console: Console) -> None:
    """Print a diff, coloured for people, and as it is where a program reads it."""
    lines = unified_diff(change, short_path(change.file))
    if not console.is_terminal:
        text = "".join(lines)
        console.file.write(
            text.encode(console.encoding, "backslashreplace").decode(console.encoding)
        )
        return
    for line in lines:
        bold = line.startswith(("---", "+++"))
        text = plain(line.rstrip("\r\n").replace("\t", "    "), console)
        print_lines(console, [Text(text, style="bold" if bold else _DIFF.get(line[0], ""))])


def _proposal(proposal: Proposal, console: Console) -> None:
    """Print what is wrong, where, what to do, and what that changes."""
    for place, finding in enumerate(proposal.findings):
        _title(f"{proposal.number}." if place == 0 else "", finding, console)
    _note("fix", "bold green", proposal.fix.message, console)
    if proposal.changes_training:
        _note("note", "bold cyan", _TRAINING, console)
    if not proposal.fix.edits:
        _note("note", "bold cyan", "no edit is known that does this: it is yours to make", console)
    elif proposal.problem:
        _note("note", "bold cyan", f"this fix {proposal.problem}", console)
    console.print()


def _title(number: str, finding: Finding, console: Console) -> None:
    lead = Text.assemble(f"{number:<3}", tag(finding, console), ": ")
    print_message(lead, finding.message + _at(finding, console), console, "bold")


def _at(finding: Finding, console: Console) -> str:
    return f" at {location(finding.site, console)}" if finding.site is not None else ""


def _note(word: str, style: str, message: str, console: Console) -> None:
    print_message(Text.assemble((f"{word:>7}", style), ": "), message, console)


def print_verdict(verdict: Verdict, script: str, console: Console) -> None:
    """Print what the two runs have shown, and whether the fix is one."""
    until = (
        f"{counted(verdict.bounds.calls, 'backward call')} and {verdict.bounds.seconds:g} seconds"
    )
    print_lines(console, [Text("tried out", style="bold")])
    _row("runs", f"{script} as it is, and with the fix, each for at most {until}", console)
    for proposal in verdict.plan.applied:
        _row("hazard", _hazard(verdict, proposal), console)
    for finding in verdict.new:
        what = f"{finding.severity} {finding.code}{_at(finding, console)}: {finding.message}"
        _row("new", what, console)
    before, after = _end(verdict.before, verdict), _end(verdict.after, verdict)
    _row("ends", f"{after} (before, {before})", console)
    _losses(verdict, console)
    _row("memory", _memory(verdict), console)
    if verdict.fails:
        _output(verdict.after, console)
    end = Text("the fix holds", style="bold green")
    if not verdict.holds:
        end = Text(f"not verified: {_why(verdict)}", style="bold red")
    print_lines(console, wrapped(end, console.width, console))


def _row(name: str, value: str, console: Console) -> None:
    print_message(Text(f"  {name:<7} ", style="dim"), value, console)


def _hazard(verdict: Verdict, proposal: Proposal) -> str:
    codes = " and ".join(dict.fromkeys(finding.code for finding in proposal.findings))
    met, left = verdict.met(proposal), verdict.left(proposal)
    if met is None:
        calls = counted(verdict.before.calls, "backward call")
        return f"{codes}: did not show without the fix either, in {calls}"
    if left is not None:
        return f"still there: {left.code}{_when(left)} (before{_when(met)})"
    calls = counted(verdict.after.calls, "backward call")
    return f"gone: {codes}, in {calls} (before{_when(met)})"


def _when(finding: Finding) -> str:
    return f", at backward call {finding.backward_call:,}" if finding.backward_call else ""


def _end(run: Run, verdict: Verdict) -> str:
    calls = counted(run.calls, "backward call")
    if run.exit_status is None:
        return f"stopped after {verdict.bounds.seconds:g} seconds and {calls}"
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
        course = _course(loss, verdict, signs(console).arrow)
        _row("loss", f"{of} ({short_path(loss.file)}:{loss.line}): {course}", console)


def _course(loss: Loss, verdict: Verdict, arrow: str) -> str:
    """Return the course of a loss, and of the same without the fix, if it has as many values."""
    if len(loss.values) < 2:
        return f"{_number(loss.first)} in one call, which tells no course"
    measured = counted(len(loss.values), "call")
    if loss.averaged > 1:
        measured = f"mean of the first {loss.averaged} and the last {loss.averaged} of {measured}"
    course = f"{_number(loss.first)} {arrow} {_number(loss.last)} ({measured}): {loss.word}"
    same = verdict.before_of(loss)
    if same is None or len(same.values) != len(loss.values):
        return course
    return f"{course}; without the fix {_number(same.first)} {arrow} {_number(same.last)}"


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _memory(verdict: Verdict) -> str:
    runs = [run.recording for run in (verdict.before, verdict.after)]
    if runs[1] is not None and not runs[1].header.hooks:
        return "not counted without hooks"
    first, last = (nbytes(run.summary.peak_saved_bytes if run else 0) for run in runs)
    before = ", as before" if first == last else f" (before, {first})"
    return f"graphs held at most {last}{before}"


def _output(run: Run, console: Console) -> None:
    """Print the end of what a failed run has printed."""
    lines = run.output.rstrip().splitlines()[-_MOST_OUTPUT_LINES:]
    if lines:
        _row("output", "the last lines of the run with the fix:", console)
    for line in lines:
        shown = shorten(plain(line, console), console.width - 4, signs(console).ellipsis)
        print_lines(console, [Text(f"    {shown}", style="dim")])


def _why(verdict: Verdict) -> str:
    """Return the first reason why the fix is not verified."""
    for proposal in verdict.plan.applied:
        if verdict.met(proposal) is None:
            return (
                "the hazard did not show this time without the fix either, so its absence says"
                " nothing"
            )
        if verdict.left(proposal) is not None:
            return f"the hazard of fix {proposal.number} is still there"
    if verdict.fails:
        return "with the fix the program fails in another way"
    if not verdict.reached:
        return (
            "with the fix the program did not get as far as to where the hazard was; give it more"
            " time (--timeout)"
        )
    return "with the fix there is another finding"
