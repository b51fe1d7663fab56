"""What each command does, once the command line is understood; each returns its exit status."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gradscope.commands.outputs import SafeConsole, SafeStream, opened
from gradscope.commands.views import Image, Page, page_and_picture
from gradscope.errors import GradscopeError
from gradscope.launch.runner import Target, header_of, run_program
from gradscope.launch.uncaught import die_of_interrupt
from gradscope.model import BackwardCall, Finding, Recording, Severity

if TYPE_CHECKING:
    from gradscope.api.watch import Scope
    from gradscope.fixing import Plan


_WIDEST = 1_000
"""Columns for a tree that goes to a file or another program, which can take lines of any length."""


class Format(StrEnum):
    """How a report is written: for people, or for machines."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


class FailOn(StrEnum):
    """The least severity of a finding that makes the exit status 1."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"
    NEVER = "never"


class Engine(StrEnum):
    """What lays a picture out: the best there is, the one inside, graphviz's ``dot``, or plain rows."""

    AUTO = "auto"
    WASM = "wasm"
    DOT = "dot"
    SIMPLE = "simple"


class Theme(StrEnum):
    """The colours of a picture."""

    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of ``gradscope run``."""

    format: Format = Format.TEXT
    output: Path | None = None
    save: Path | None = None
    html: Path | None = None
    draw: Path | None = None
    stop_after: int | None = None
    guard: bool = False
    hooks: bool = True
    fail_on: FailOn = FailOn.ERROR


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """The options of ``gradscope draw``."""

    call: int | None = None
    focus: str | None = None
    depth: int | None = None
    expand: tuple[str, ...] = ()
    fold: bool = True
    sites: bool = False
    engine: Engine = Engine.AUTO
    theme: Theme = Theme.LIGHT


@dataclass(frozen=True, slots=True)
class FixOptions:
    """The options of ``gradscope fix``; None for ``stop_after`` is what the findings need."""

    finding: str | None = None
    verify: bool = False
    write: bool = False
    stop_after: int | None = None
    timeout: float = 600


def run(target: Target, options: RunOptions) -> int:
    """Run a program inside a watch, print its findings as they are made and a report at its end."""
    views = page_and_picture(options.html, options.draw)
    save = None if options.save is None else _made(options.save)
    header = header_of(target, options.hooks)

    def start() -> AbstractContextManager[Scope]:
        import torch

        from gradscope.api.watch import watch

        return watch(
            raise_on="error" if options.guard else None,
            hooks=options.hooks,
            save=save,
            stop_after=options.stop_after,
            on_finding=live.found if live else None,
            on_call=live.called if live else None,
            header=replace(header, torch=str(torch.__version__)),
        )

    with opened(options.output, SafeStream(sys.stderr)) as stream:
        console = SafeConsole(file=stream)
        show = _printer(options.format)
        live = _Live(console) if options.format is Format.TEXT else None
        try:
            ended = run_program(target, start)
            if live:
                live.end()
            if ended.scope is not None:
                recording = ended.scope.recording()
                show(recording, console, save)
                for view in views:
                    view.write_if_possible(recording, console if live else None)
            else:
                recording = Recording(header, ended.outcome)
                if save is not None:
                    save.unlink(missing_ok=True)
                if live:
                    _print_unwatched(options, console)
                else:
                    show(recording, console, None)
        except KeyboardInterrupt:  # not the program's: a second Ctrl-C cuts the report short
            die_of_interrupt()
    if ended.interrupted:
        die_of_interrupt()
    return ended.outcome.exit_status or int(_fails(recording.findings, options.fail_on))


def report(
    files: Sequence[Path],
    format: Format,  # noqa: A002 - the option's name
    output: Path | None,
    html: Path | None = None,
) -> int:
    """Print the reports of saved recordings, or write that of one as a page."""
    from gradscope.record.writer import load

    if html is not None:
        if len(files) > 1:
            raise GradscopeError(
                "--html takes one recording: name one, and another --html file for each further one"
            )
        Page(html, "--html").write(load(files[0]), Console(file=sys.stdout))
        return 0
    recordings = [load(file) for file in files]
    show = _printer(format)
    with opened(output, sys.stdout) as stream:
        console = Console(file=stream)
        for file, recording in zip(files, recordings, strict=True):
            show(recording, console, file)
    return 0


def draw(file: Path, output: Path | None, request: DrawRequest) -> int:
    """Draw a graph of a saved recording: to a file, or as a tree."""
    from gradscope.api.draw import DrawOptions, recording_tree
    from gradscope.record.writer import load

    options = DrawOptions(
        focus=request.focus,
        depth=request.depth,
        expand=request.expand,
        fold=request.fold,
        sites=request.sites,
        engine=request.engine.value,
        theme=request.theme.value,
    )
    console = Console(file=sys.stdout)
    if output is not None:
        Image(output, "--output", call=request.call, options=options).write(load(file), console)
        return 0
    unicode = console.encoding.lower().startswith("utf")
    tree = recording_tree(load(file), call=request.call, plain_ascii=not unicode, **options)
    if not console.is_terminal:
        console.width = _WIDEST
    console.print(tree)
    return 0


def fix(file: Path, options: FixOptions) -> int:
    """Show the fixes of a recording as a diff; try them out or write them where that is asked for."""
    from gradscope import fixing
    from gradscope.record.writer import load
    from gradscope.render.text.fixes import print_plan, print_verdict

    recording = load(file)
    console = Console(file=sys.stdout, highlight=False)
    if not recording.findings and options.finding is None:
        console.print(f"nothing to fix: no finding in {file}", markup=False, soft_wrap=True)
        return 0
    plan = fixing.plan(recording, options.finding)
    print_plan(plan, console)
    if not (options.verify or options.write):
        if plan.changes:
            _print_next_of_fix(file, options, console)
        return 0
    if not plan.changes:
        console.print("nothing to try out: no fix here can be applied as an edit", soft_wrap=True)
        return 1
    bounds = fixing.Bounds(
        options.stop_after or fixing.default_calls(plan.applied), options.timeout
    )
    try:
        verdict = fixing.verify(plan, recording, bounds, _telling(console))
    except KeyboardInterrupt:
        die_of_interrupt()
    print_verdict(verdict, " ".join((recording.header.script, *recording.header.argv)), console)
    if not verdict.holds:
        return 1
    return _write_fix(plan, console) if options.write else 0


def _write_fix(plan: Plan, console: Console) -> int:
    from gradscope import fixing
    from gradscope.fixing.proposals import CODE

    if any(change.file == CODE for change in plan.changes):
        console.print(
            "nothing written: the program was given with -c, and is in no file", soft_wrap=True
        )
        return 1
    fixing.write(plan.changes)
    for change in plan.changes:
        console.print(f"written: {change.file}", markup=False, soft_wrap=True)
    return 0


def _telling(console: Console) -> Callable[[str], None]:
    """What says which run goes on, to whoever waits at a terminal."""
    return (
        (lambda doing: console.print(f"{doing} ...", style="dim"))
        if console.is_terminal
        else lambda doing: None
    )


def _print_next_of_fix(file: Path, options: FixOptions, console: Console) -> None:
    only = f" --finding {options.finding}" if options.finding else ""
    command = f"gradscope fix {shlex.quote(str(file))}{only}"
    console.print(f"next: {command} --verify", markup=False, soft_wrap=True)
    console.print(f"      {command} --write", markup=False, soft_wrap=True)


def explain(code: str) -> int:
    """Print what a finding means, why it is bad and how it is cured."""
    from rich.markdown import Markdown

    from gradscope.rules import ALL_RULES

    wanted = next(
        (rule for rule in ALL_RULES if code.lower() in (rule.code.lower(), rule.name)), None
    )
    if wanted is None:
        known = ", ".join(rule.code for rule in ALL_RULES)
        raise GradscopeError(
            f"there is no finding {code!r}; the codes are {known} (`gradscope rules` tells them apart)"
        )
    console = Console(file=sys.stdout)
    if console.is_terminal:
        console.print(Markdown(wanted.explain))
    else:
        console.print(wanted.explain.strip(), markup=False, highlight=False, soft_wrap=True)
    return 0


def rules() -> int:
    """List all findings with their severities."""
    from rich.table import Table

    from gradscope.rules import ALL_RULES

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("code", no_wrap=True)
    table.add_column("severity", no_wrap=True)
    table.add_column("name and meaning")
    for rule in ALL_RULES:
        table.add_row(rule.code, rule.severity.value, f"{rule.name}: {rule.summary}")
    Console(file=sys.stdout).print(table)
    return 0


def _made(save: Path) -> Path:
    """Make an empty recording, to hear now and not after hours that it cannot be written; its absolute path."""
    from gradscope.record import file as storage

    path = save.absolute()
    storage.create(path).close()
    return path


class _Live:
    """What is said while the program runs: each finding the moment it is made, and how far a long run is."""

    def __init__(self, console: Console) -> None:
        from gradscope.render.text.progress import ProgressLine
        from gradscope.render.text.report import print_finding

        self._console = console
        self._print_finding = print_finding
        self._progress = ProgressLine()
        self._process = os.getpid()
        self._started = time.monotonic()

    def found(self, finding: Finding) -> None:
        """Print a finding; a forked child says nothing."""
        if os.getpid() == self._process:
            self._progress.erase()
            self._print_finding(finding, self._console)

    def called(self, call: BackwardCall) -> None:
        """Take note of a backward call."""
        if os.getpid() == self._process:
            self._progress.update(call.number, call.live_bytes, time.monotonic() - self._started)

    def end(self) -> None:
        """Leave the terminal as it was."""
        self._progress.erase()


def _printer(format: Format) -> Callable[[Recording, Console, Path | None], None]:  # noqa: A002
    """What prints a recording, all that it needs imported: the program may leave no path to import it from."""
    if format is Format.TEXT:
        from gradscope.render.text.report import print_report

        return lambda recording, console, saved: print_report(
            recording, console, None if saved is None else str(saved)
        )
    from gradscope.render.machine import json as machine

    write = {
        Format.JSON: machine.to_json,
        Format.SARIF: machine.to_sarif,
        Format.GITHUB: machine.to_github,
    }[format]

    def print_text(recording: Recording, console: Console, saved: Path | None) -> None:
        text = write(recording)
        console.file.write(text if text.endswith("\n") or not text else text + "\n")
        console.file.flush()

    return print_text


def _print_unwatched(options: RunOptions, console: Console) -> None:
    """The report of a program that never imported torch."""
    files = [str(file) for file in (options.save, options.html, options.draw) if file is not None]
    unsaved = (
        f", and {' and '.join(files)} {'were' if len(files) > 1 else 'was'} not written"
        if files
        else ""
    )
    text = f"gradscope: the program never imported torch: there was nothing to watch{unsaved}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _fails(findings: Iterable[Finding], fail_on: FailOn) -> bool:
    """Whether a finding is as severe as ``fail_on`` says, or worse."""
    severities = list(Severity)
    if fail_on is FailOn.NEVER:
        return False
    return any(
        severities.index(one.severity) <= severities.index(Severity(fail_on.value))
        for one in findings
    )
