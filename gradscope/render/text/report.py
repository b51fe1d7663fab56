"""The terminal report: findings with caret snippets, the backward calls, totals, and the next command to type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from gradscope.model import Finding, Recording, Severity, Site, Summary
from gradscope.render.text.calls import calls_table
from gradscope.render.text.snippets import gutter_width, mentioned, pointed
from gradscope.render.text.terminal import plain, print_lines, say, shorten, signs, wrapped
from gradscope.render.theme import SEVERITIES
from gradscope.units import counted, listed, nbytes

_MOST_SAVED = 4
_EXPLAIN_INDENT = " " * 6


def print_finding(
    finding: Finding, console: Console, sources: Mapping[str, str] | None = None
) -> None:
    """Print one finding: its place, the places it speaks of, what to do, and where to read more."""
    look = SEVERITIES[finding.severity]
    gutter = gutter_width(finding.site, *(related.site for related in finding.related))
    title = Text.assemble((f"{look.word}[{plain(finding.code, console)}]", look.terminal), ": ")
    say(title, finding.message, console, style="bold")
    if finding.site is None:
        say(Text(" " * gutter + " = ", style="dim"), finding.label, console)
    else:
        print_lines(
            console,
            pointed(
                finding.site, finding.label, console, sources, style=look.terminal, gutter=gutter
            ),
        )
    for related in finding.related:
        _note(related.message, console, related.site, sources, gutter)
    if finding.saved:
        _note(_saved_tensors(finding), console)
    if finding.count > 1:
        _note(f"met {finding.count:,} times", console)
    if finding.caught:
        _note("the program caught the exception that this raised", console)
    if finding.missed:
        _note("this is a fault of gradscope, which should have said it before the call", console)
    if finding.fix is not None:
        say(Text("help", style="bold green").append(": "), finding.fix.message, console)
    explain = f"{_EXPLAIN_INDENT}explain: gradscope explain {plain(finding.code, console)}"
    print_lines(console, [Text(explain, style="dim"), Text()])


def print_report(recording: Recording, console: Console, saved: str | None = None) -> None:
    """Print the whole report; ``saved`` is the path of the recording, if there is one to come back to."""
    for finding in recording.findings:
        print_finding(finding, console, recording.sources)
    if recording.calls:
        print_lines(
            console,
            [Text("backward calls", style="bold"), *calls_table(recording.calls, console), Text()],
        )
        print_lines(console, [Text("totals", style="bold")])
        _totals(recording.summary, console)
        print_lines(console, [Text()])
    for note in recording.summary.notes:
        _note(note, console)
    _outcome(recording, console)
    _headline(recording, console)
    _next(recording, console, saved)


def _note(
    message: str,
    console: Console,
    site: Site | None = None,
    sources: Mapping[str, str] | None = None,
    gutter: int = 0,
) -> None:
    """A note, and the place it speaks of."""
    say(Text.assemble(("note", "bold cyan"), ": "), message, console)
    if site is not None:
        print_lines(console, mentioned(site, console, sources, gutter=gutter))


def _saved_tensors(finding: Finding) -> str:
    """The saved tensors concerned, the first few and how many more, and their nodes where no other note names them."""
    names = ", ".join(f"`{name}`" for name in finding.saved[:_MOST_SAVED])
    more = len(finding.saved) - _MOST_SAVED
    are = "the saved tensors are" if len(finding.saved) > 1 else "the saved tensor is"
    named = any(
        node in related.message for node in finding.nodes[:1] for related in finding.related
    )
    nodes = "" if named or not finding.nodes else f" of {listed(finding.nodes)}"
    return f"{are} {names}{f' and {more:,} more' if more > 0 else ''}{nodes}"


def _totals(s: Summary, console: Console) -> None:
    """What was built, saved, and became of it; released by the graph and returned to memory kept apart."""
    held = s.freed_bytes - s.returned_bytes
    elsewhere = f"; {nbytes(held)} still held by others" if held > 0 else ""
    rows = [
        ("nodes", f"{s.nodes:,} built, {s.nodes_destroyed:,} destroyed"),
        ("saved tensors", f"{s.saved_tensors:,} saved, {nbytes(s.saved_bytes)}"),
        (
            "released by the graph",
            f"{s.freed_tensors:,} freed in backward, {nbytes(s.freed_bytes)}",
        ),
        ("memory returned", f"{nbytes(s.returned_bytes)} of those{elsewhere}"),
    ]
    if s.dropped_tensors:
        rows.append(
            ("dropped", f"{s.dropped_tensors:,} went with their graph, {nbytes(s.dropped_bytes)}")
        )
    rows.append(
        (
            "held by graphs",
            f"{nbytes(s.live_bytes)} at the end, {nbytes(s.peak_saved_bytes)} at the peak",
        )
    )
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(Text(f"  {name:<{width}}  ", style="dim"), value, console)


def _outcome(recording: Recording, console: Console) -> None:
    """How the run ended, where that needs saying."""
    outcome = recording.outcome
    if not outcome.finished:
        _note("the recording ends here: the run was stopped before it could finish", console)
    elif outcome.exception:
        first_line = outcome.exception.splitlines()[0]
        _note(
            f"the script raised {shorten(first_line, 2 * console.width - 40, signs(console).ellipsis)}",
            console,
        )


def _headline(recording: Recording, console: Console) -> None:
    """The result in one line."""
    calls = recording.summary.backward_calls
    if not recording.findings:
        if calls == 0:
            print_lines(console, [Text("no backward call was made, so there is nothing to report")])
            return
        checked = f"no problem found in {counted(calls, 'backward call')}"
        print_lines(console, [Text(checked, style="bold green")])
        return
    found = Counter(finding.severity for finding in recording.findings)
    parts = [
        _counted_severity(severity, found[severity]) for severity in Severity if found[severity]
    ]
    worst = min(found, key=lambda severity: severity.rank)
    line = Text.assemble(
        (", ".join(parts), SEVERITIES[worst].terminal), f" in {counted(calls, 'backward call')}"
    )
    print_lines(console, wrapped(line, console.width, console))


def _counted_severity(severity: Severity, number: int) -> str:
    """``1 error``, ``2 warnings``; advice has no plural."""
    return f"{number:,} {severity}" if severity is Severity.ADVICE else counted(number, severity)


def _next(recording: Recording, console: Console, saved: str | None) -> None:
    """What to type next."""
    commands = []
    if recording.findings:
        gravest = min(recording.findings, key=lambda f: (f.severity.rank, f.caught))
        commands.append(f"gradscope explain {gravest.code}")
    if saved is not None:
        if any(finding.fix is not None and finding.fix.edits for finding in recording.findings):
            commands.append(f"gradscope fix {saved}")
        commands.append(f"gradscope report {saved}")
    for place, command in enumerate(commands):
        lead = "      " if place else "next: "
        print_lines(console, [Text.assemble((lead, "dim"), plain(command, console))])
