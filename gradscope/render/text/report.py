"""The report for people: findings, backward calls, totals, and the next command to type."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console
from rich.text import Text

from gradscope.model import Cause, Recording, Summary
from gradscope.render.text.calls import calls_table
from gradscope.render.text.finding import print_finding, print_list, print_note, tally
from gradscope.render.text.terminal import (
    plain,
    print_lines,
    print_message,
    shorten,
    signs,
    wrapped,
)
from gradscope.render.theme import SEVERITIES
from gradscope.units import counted, nbytes


def print_report(
    recording: Recording,
    console: Console,
    saved: str | None = None,
    printed: Collection[Cause] = (),
) -> None:
    """Print the whole report; ``saved`` is the path of the recording, if there is one.

    Findings whose causes are in ``printed`` were printed on this console before: one line each.
    """
    findings = [finding for finding in recording.findings if not finding.suppression]
    for place, finding in enumerate(findings):
        if finding.cause not in printed:
            print_finding(finding, console, recording.sources, findings[:place])
    if again := [finding for finding in findings if finding.cause in printed]:
        print_lines(console, [Text("findings", style="bold")])
        print_list(again, console)
        print_lines(console, [Text()])
    if recording.calls:
        print_lines(
            console,
            [Text("backward calls", style="bold"), *calls_table(recording.calls, console), Text()],
        )
        print_lines(console, [Text("totals", style="bold")])
        _totals(recording.summary, console)
        print_lines(console, [Text()])
    for note in recording.summary.notes:
        print_note(note, console)
    _outcome(recording, console)
    _headline(recording, console)
    _next(recording, console, saved)


def _totals(s: Summary, console: Console) -> None:
    """Print what was built and saved, what graphs released of it, and what memory came back."""
    held = s.freed_bytes - s.returned_bytes
    elsewhere = f"; {nbytes(held)} still held by others" if held > 0 else ""
    freed, dropped = nbytes(s.freed_bytes), nbytes(s.dropped_bytes)
    end, peak = nbytes(s.live_bytes), nbytes(s.peak_saved_bytes)
    rows = {
        "nodes": f"{s.nodes:,} built, {s.nodes_destroyed:,} destroyed",
        "saved tensors": f"{s.saved_tensors:,} saved, {nbytes(s.saved_bytes)}",
        "released by the graph": f"{s.freed_tensors:,} freed in backward, {freed}",
        "memory returned": f"{nbytes(s.returned_bytes)} of those{elsewhere}",
        "dropped": f"{s.dropped_tensors:,} went with their graph, {dropped}",
        "held by graphs": f"{end} at the end, {peak} at the peak",
    }
    if not s.dropped_tensors:
        del rows["dropped"]
    if s.predicted:
        rows["predictions"] = f"predicted {s.predicted:,}, came true {s.came_true:,}"
    width = max(map(len, rows))
    for name, value in rows.items():
        print_message(Text(f"  {name:<{width}}  ", style="dim"), value, console)


def _outcome(recording: Recording, console: Console) -> None:
    """Print how the run ended, if it ended early or raised."""
    outcome = recording.outcome
    if not outcome.finished:
        print_note("the recording ends here: the run was stopped before it could finish", console)
    elif outcome.exception:
        raised = outcome.exception.splitlines()[0]
        raised = shorten(raised, 2 * console.width - 40, signs(console).ellipsis)
        print_note(f"the script raised {raised}", console)


def _headline(recording: Recording, console: Console) -> None:
    """Print the result in one line."""
    calls = recording.summary.backward_calls
    if not recording.findings:
        if calls == 0:
            print_lines(console, [Text("no backward call was made, so there is nothing to report")])
            return
        checked = f"no problem found in {counted(calls, 'backward call')}"
        print_lines(console, [Text(checked, style="bold green")])
        return
    found = [finding.severity for finding in recording.findings if finding.counts]
    parts = tally(recording.findings)
    style = SEVERITIES[min(found, key=lambda severity: severity.rank)].terminal if found else "bold"
    line = Text.assemble((", ".join(parts), style), f" in {counted(calls, 'backward call')}")
    print_lines(console, wrapped(line, console.width, console))


def _next(recording: Recording, console: Console, saved: str | None) -> None:
    """Print what to type next."""
    commands = []
    findings = [finding for finding in recording.findings if not finding.suppression]
    if findings:
        gravest = min(findings, key=lambda finding: finding.severity.rank)
        commands.append(f"gradscope explain {gravest.code}")
    if saved is not None:
        if any(finding.fix is not None and finding.fix.edits for finding in findings):
            commands.append(f"gradscope fix {saved}")
        commands.append(f"gradscope report {saved}")
    for place, command in enumerate(commands):
        lead = "      " if place else "next: "
        print_lines(console, [Text.assemble((lead, "dim"), plain(command, console))])
