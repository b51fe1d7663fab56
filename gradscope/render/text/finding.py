"""A finding as text: in full the first time, in one line where it was printed before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gradscope.model import Certainty, Finding, Fix, Severity, Site
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
from gradscope.render.wording import alternative, reasons
from gradscope.units import counted, listed

_MOST_SAVED = 4
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
    related = () if announced else finding.related
    gutter = gutter_width(finding.site, *(one.site for one in related))
    print_message(
        Text.assemble(tag(finding, console), ": "), finding.message, console, style="bold"
    )
    if finding.site is None:
        print_message(Text(" " * gutter + " = ", style="dim"), finding.label, console)
    else:
        place = pointed(
            finding.site, finding.label, console, sources, style=look.terminal, gutter=gutter
        )
        print_lines(console, place)
    for one in related:
        print_note(one.message, console, one.site, sources, gutter)
    if finding.saved and not announced:
        print_note(_saved_tensors(finding), console)
    if finding.withdrawn:
        print_note(f"withdrawn: {finding.withdrawn}", console)
    if finding.suppression:
        print_note(f"suppressed {finding.suppression.reason}", console)
    if finding.count > 1:
        print_note(f"seen {finding.count:,} times", console)
    if finding.processes:
        print_note(f"met in {listed(finding.processes)}", console)
    if finding.missed:
        fault = "this is a fault of gradscope, which should have announced it before the call"
        print_note(fault, console)
    if announced is not None:
        at = f" at backward call {announced.backward_call:,}" if announced.backward_call else ""
        print_note(f"announced as {announced.code}{at}, see above", console)
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
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
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


def print_note(
    message: str,
    console: Console,
    site: Site | None = None,
    sources: Mapping[str, str] | None = None,
    gutter: int = 0,
) -> None:
    """Print a note, and the place it speaks of."""
    print_labelled("note", "bold cyan", message, console)
    if site is not None:
        print_lines(console, mentioned(site, console, sources, gutter=gutter))


def _saved_tensors(finding: Finding) -> str:
    """Return the first saved tensors, and their nodes if no note names those."""
    names = ", ".join(f"`{name}`" for name in finding.saved[:_MOST_SAVED])
    more = len(finding.saved) - _MOST_SAVED
    are = "the saved tensors are" if len(finding.saved) > 1 else "the saved tensor is"
    named = any(
        node in related.message for node in finding.nodes[:1] for related in finding.related
    )
    nodes = "" if named or not finding.nodes else f" of {listed(finding.nodes)}"
    return f"{are} {names}{f' and {more:,} more' if more > 0 else ''}{nodes}"
