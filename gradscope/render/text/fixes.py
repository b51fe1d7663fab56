"""The fixes of a recording as text: what could be done, and the chosen one as a diff."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

from rich.console import Console
from rich.text import Text

from gradscope.fixing.patch import Patch, apply, read, unified_diff
from gradscope.fixing.plan import Candidate, Plan, Proposal
from gradscope.formatting import escaped, gathered, short_path
from gradscope.model import Finding
from gradscope.render.text import (
    location,
    plain,
    print_labelled,
    print_lines,
    print_message,
    write_text,
)
from gradscope.render.text.report import print_help, tag
from gradscope.render.wording import reasons, with_safety

_DIFF = {"+": "green", "-": "red", "@": "cyan"}


def print_plan(plan: Plan, console: Console, brief: bool = False) -> None:
    """Print every finding: what is wrong, where, and what could be done, each with what it
    changes; in ``brief`` only where nothing is.
    """
    for proposal in plan.proposals:
        for place, finding in enumerate(proposal.findings):
            number = f"{proposal.number}." if place == 0 else ""
            lead = Text.assemble(f"{number:<3}", tag(finding, console), ": ")
            at = f" at {location(finding.site, console)}" if finding.site is not None else ""
            print_message(lead, finding.message + at, console, "bold")
        is_told = not (brief and proposal.applies)
        for candidate in proposal.candidates if is_told else ():
            _candidate(candidate, proposal, console)
        if proposal.finding.untried and is_told:
            _note("note", "bold cyan", proposal.finding.untried, console)
        console.print()


def print_changes(plan: Plan, console: Console) -> None:
    """Print the diff of all that is chosen and applies."""
    for note in plan.notes:
        _note("note", "bold cyan", note, console)
    for change in plan.changes:
        print_diff(change, console)
    if plan.changes:
        console.print()


def print_tried(findings: Iterable[Finding], console: Console) -> None:
    """Print the fixes that were tried and held, each with its diff."""
    for fix in {each.fix.edits: each.fix for each in findings if each.fix}.values():
        if fix.edits:
            print_help(with_safety(fix.message, fix), fix, console)
        for file, own in gathered(fix.edits, lambda edit: edit.file).items():
            with suppress(OSError, SyntaxError, ValueError):
                print_diff(apply(read(file), own), console)
        console.print()


def print_diff(change: Patch, console: Console) -> None:
    """Print a diff, coloured for people, and as it is where a program reads it."""
    lines = unified_diff(change, short_path(change.file))
    if not console.is_terminal:  # `patch` must find the lines again, form feeds in them too
        write_text("".join(re.sub(r".+", _harmless, line) for line in lines), console)
        return
    for line in lines:
        bold = line.startswith(("---", "+++"))
        text = plain(line.rstrip("\r\n").replace("\t", "    "), console)
        print_lines(console, [Text(text, style="bold" if bold else _DIFF.get(line[0], ""))])


def _harmless(line: re.Match[str]) -> str:
    body = line[0].removesuffix("\r")
    return escaped(body, keep="\t\f") + line[0][len(body) :]


def _candidate(candidate: Candidate, proposal: Proposal, console: Console) -> None:
    fix = candidate.fix
    is_chosen = candidate.number == proposal.chosen.number
    lead = f"fix {candidate.number}" if len(proposal.candidates) > 1 else "fix"
    style = "bold green" if is_chosen else "green"
    _note(lead, style, with_safety(fix.message, fix), console)
    for word, text in reasons(fix):
        _note(word, "bold cyan", text, console)
    problem = proposal.problem if is_chosen else candidate.problem
    if not fix.edits:
        _note("note", "bold cyan", "no automatic edit is available: do it by hand", console)
    elif problem:
        _note("note", "bold cyan", f"this fix {problem}", console)


def _note(word: str, style: str, message: str, console: Console) -> None:
    print_labelled(f"{word:>7}", style, message, console)
