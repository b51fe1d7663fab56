"""A finding as text: in full the first time, in one line where it was printed before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from gradscope.model import Certainty, Finding, Fix, Severity
from gradscope.render.text.snippets import gutter_width, mentioned, pointed
from gradscope.render.text.terminal import (
    place_of,
    plain,
    print_labelled,
    print_lines,
    print_message,
    print_table,
    tail,
)
from gradscope.render.theme import SEVERITIES
from gradscope.render.wording import alternative, notes, reasons
from gradscope.units import counted, listed

_EXPLAIN_INDENT = " " * 6


def print_finding(
    finding: Finding,
    console: Console,
    sources: Mapping[str, str] | None = None,
    before: Sequence[Finding] = (),
) -> None:
    """Print one finding: its place, the places it names, what to do, and where to read more.

    ``before`` are the findings printed above; of one that they announced, print what is new.
    """
    look = SEVERITIES[finding.severity]
    announced = next((one for one in before if one.announces(finding)), None)
    said = notes(finding, announced)
    gutter = gutter_width(finding.site, *(site for _, site in said))
    lead = Text.assemble(tag(finding, console), ": ")
    print_message(lead, finding.message, console, style="bold")
    if finding.site is None:
        print_message(Text(" " * gutter + " = ", style="dim"), finding.label, console)
    else:
        place = pointed(
            finding.site, finding.label, console, sources, style=look.terminal, gutter=gutter
        )
        print_lines(console, place)
    for note, site in said:
        print_note(note, console)
        if site is not None:
            print_lines(console, mentioned(site, console, sources, gutter=gutter))
    if announced is not None:
        print_lines(console, [Text()])
        return
    if finding.fix is not None:
        print_help(finding.fix.message, finding.fix, console)
        for other in finding.alternatives:
            print_message(Text("  or: ", style="green"), alternative(other), console)
    explain = f"{_EXPLAIN_INDENT}explain: gradscope explain {plain(finding.code, console)}"
    print_lines(console, [Text(explain, style="dim"), Text()])


def print_help(message: str, fix: Fix, console: Console) -> None:
    """Print what to do, why, and what it means for the training."""
    print_message(Text("help: ", style="bold green"), message, console)
    for word, text in reasons(fix):
        print_labelled(word, "bold cyan", text, console)


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print findings one after the other; of those that are suppressed, how many there are."""
    shown = [finding for finding in findings if not finding.suppression]
    for place, finding in enumerate(shown):
        print_finding(finding, console, before=shown[:place])
    if len(shown) < len(findings):
        print_lines(console, [Text(", ".join(tally(findings)), style="dim"), Text()])


def print_list(findings: Sequence[Finding], console: Console) -> None:
    """Print a row for each finding: severity, code, place, name, and how often it was seen."""
    columns = Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold")
    table = Table(*columns, box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        seen = f", seen {finding.count:,} times" if finding.count > 1 else ""
        seen += ", withdrawn" if finding.withdrawn else ""
        seen += f", in {listed(finding.processes)}" if finding.processes else ""
        grows = finding.severity is Severity.WARNING and finding.certainty is Certainty.OBSERVED
        # The figures of what grows have changed since it was printed.
        text = f"{finding.name}: {finding.label}" if grows and finding.label else finding.name
        place = Text(tail(place_of(finding.site, console), console.width // 3))
        table.add_row(tag(finding, console), place, Text(plain(text, console) + seen))
    print_table(table, console)


def tally(findings: Iterable[Finding]) -> list[str]:
    """Return the findings counted: ``1 error``, ``2 warnings``, ``3 advice``, ``1 suppressed``."""
    found = list(findings)
    standing = Counter(finding.severity for finding in found if finding.counts)
    parts = [
        # Advice has no plural.
        f"{standing[one]:,} {one}" if one is Severity.ADVICE else counted(standing[one], one)
        for one in Severity
        if standing[one]
    ]
    if withdrawn := sum(bool(one.withdrawn) and not one.suppression for one in found):
        parts.append(f"{counted(withdrawn, 'prediction')} withdrawn")
    if suppressed := sum(one.suppression is not None for one in found):
        parts = [*(parts or ["no problem found"]), f"{suppressed:,} suppressed"]
    return parts


def tag(finding: Finding, console: Console) -> Text:
    """Return ``error[GS101]``."""
    look = SEVERITIES[finding.severity]
    return Text(f"{look.word}[{plain(finding.code, console)}]", style=look.terminal)


def print_note(message: str, console: Console) -> None:
    """Print a note."""
    print_labelled("note", "bold cyan", message, console)
