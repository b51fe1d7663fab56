"""`gradscope fix`: show the fixes of a recording, verify them, apply them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gradscope.commands.outputs import console_on, print_line, printer
from gradscope.errors import GradscopeError
from gradscope.formatting import counted
from gradscope.launch.fork_server import Workshop, improved, started, told
from gradscope.launch.runner import die_of_interrupt
from gradscope.model import Finding, Recording
from gradscope.render.text import begin_line, show_progress
from gradscope.render.wording import fix_command
from gradscope.rules.settings import Format, Settings, Suppressor

if TYPE_CHECKING:
    from gradscope.fixing.plan import Plan


def fix(file: Path, args: tuple[str, ...], settings: Settings) -> int:
    """Show the fixes of a recording, or of a script that is run for it, as a diff; try them out or
    write them if asked to.
    """
    if settings.format is not Format.TEXT and (settings.verify or settings.write):
        raise GradscopeError("--verify and --write print a text: leave --format out")
    end = time.monotonic() + settings.timeout
    with Workshop(partial(_tell, end=end)) as workshop:
        return _fix(file, args, settings, end, workshop)


def _fix(
    file: Path, args: tuple[str, ...], settings: Settings, end: float, workshop: Workshop
) -> int:
    from gradscope.fixing import plan as plans
    from gradscope.fixing.constructs import with_edits
    from gradscope.fixing.runs import Bounds
    from gradscope.fixing.verify import default_calls
    from gradscope.render.text.fixes import print_changes, print_plan
    from gradscope.render.text.verification import print_trial

    console = console_on(sys.stdout)
    is_text = settings.format is Format.TEXT
    recorded = with_edits(_recorded(file, args, settings, workshop))
    suppressor, by_name = Suppressor(settings), bool(settings.finding or settings.picks)
    recording, record = suppressor.of_findings(recorded), None
    if settings.rehearse and (by_name or any(f.is_to_rehearse for f in recording.findings)):
        began = time.monotonic()
        recorded, record = improved(recorded, end, workshop, sandboxed=settings.sandboxed)
        begin_line(sys.stderr)
        recording = suppressor.of_findings(recorded)
        if is_text:
            took = counted(round(time.monotonic() - began), "second")
            bound = f"of at most {counted(round(settings.timeout), 'second')} (--timeout)"
            print_line(console, f"searched for {took}, {bound}")
    if not is_text:
        if settings.finding is not None:
            chosen = plans.plan(recording, settings.finding).proposals
            named = {finding.cause for proposal in chosen for finding in proposal.findings}
            found = tuple(each for each in recording.findings if each.cause in named)
            recording = replace(recording, findings=found)
        printer(settings.format)(recording, console, None)
        return 0
    suppressed = [finding for finding in recording.findings if finding.suppression]
    if len(suppressed) == len(recording.findings) and not by_name:
        are = f", {_suppressed(suppressed)}" if suppressed else ""
        print_line(console, f"nothing to fix: no finding in {file}{are}")
        return 0
    plan = plans.plan(recording, settings.finding, settings.picks)
    if suppressed and not by_name:
        print_line(console, f"left out: {_suppressed(suppressed)}")
    print_plan(plan, console, brief=settings.write and not settings.verify)
    following = partial(fix_command, recording.header, file="" if _is_script(file) else str(file))
    if not (settings.verify or settings.write):
        print_changes(plan, console)
        _print_next(plan, settings, following, console)
        return 0
    if not plan.can_be_tried:
        none = "no fix here can be applied as an edit"
        why = "advice is followed only if it is named" if plan.advice else none
        print_line(console, f"nothing to try out: {why}")
        _print_next(plan, settings, following, console)
        return 1
    for number in settings.picks:
        if not plan.candidate(number).can_be_tried:
            print_line(console, f"nothing to try out: fix {number} has no edit that can be applied")
            return 1
    left = max(end - time.monotonic(), 1.0)
    bounds = Bounds(settings.stop_after or default_calls(plan.proposals), left)
    given = plan, recording.header, bounds, told, settings.picks, record, started
    try:
        trial = workshop.do("verify.try_out", *given, every=settings.verify)
    except KeyboardInterrupt:
        die_of_interrupt()
    begin_line(sys.stderr)
    print_changes(trial.verdict.plan, console)
    print_trial(trial, " ".join((recording.header.script, *recording.header.argv)), console)
    if not trial.verdict.holds:
        return 1
    return _write_fix(trial.verdict.plan, console) if settings.write else 0


def _tell(doing: str, end: float) -> None:
    """Say on a terminal what is in progress, and for how long that may go on."""
    left = max(0, round(end - time.monotonic()))
    show_progress(f"gradscope {doing} (at most {left} s; Ctrl-C leaves it)", sys.stderr)


def _recorded(
    file: Path, args: tuple[str, ...], settings: Settings, workshop: Workshop
) -> Recording:
    """Return the recording in a file, or that of a script, which is run for it."""
    from gradscope.launch.interpreter import header_of
    from gradscope.record.processes import load_run

    if not _is_script(file):
        if args:
            raise GradscopeError(f"{file} is a recording, and takes no arguments: {' '.join(args)}")
        return load_run(file)
    workshop.tell(f"runs {file}")
    header = header_of((str(file), *args), hooks=True)
    recording: Recording = workshop.do("runs.recorded", header, settings.timeout / 2, started)
    begin_line(sys.stderr)
    return recording


def _is_script(file: Path) -> bool:
    return file.suffix == ".py" and file.exists()


def _print_next(
    plan: Plan, settings: Settings, command: Callable[..., str], console: Console
) -> None:
    """Print what tries the fixes that are shown out; of mere advice, what asks for one."""
    only = ["--finding", settings.finding] if settings.finding else []
    only += [word for number in settings.picks for word in ("--pick", str(number))]
    if not plan.can_be_tried:
        only = ["--finding", plan.advice[0]] if plan.advice else []
    if only or plan.can_be_tried:
        print_line(console, f"next: {command(*only, '--verify')}")
        print_line(console, f"      {command(*only, '--write')}")


def _suppressed(findings: Sequence[Finding]) -> str:
    """Return what a user has suppressed, and how to have it all the same."""
    codes = sorted({finding.code for finding in findings})
    return f"{counted(len(findings), 'suppressed finding')} (--finding {codes[0]} names one)"


def _write_fix(plan: Plan, console: Console) -> int:
    from gradscope.fixing.patch import write
    from gradscope.fixing.plan import CODE

    if any(change.file == CODE for change in plan.changes):
        print_line(console, "nothing written: the program was given with -c, and is in no file")
        return 1
    write(plan.changes)
    for change in plan.changes:
        print_line(console, f"written: {change.file}")
    return 0
