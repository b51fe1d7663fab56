"""What each command does, once the command line is understood; each returns its exit status."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gradscope._version import __version__
from gradscope.errors import GradscopeError
from gradscope.model import BackwardCall, Finding, Header, Recording, Severity
from gradscope.runner import Target, run_program
from gradscope.streams import SafeConsole, SafeStream, opened
from gradscope.uncaught import die_of_interrupt

if TYPE_CHECKING:
    from gradscope.watching import Scope


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


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of ``gradscope run``."""

    format: Format = Format.TEXT
    output: Path | None = None
    save: Path | None = None
    stop_after: int | None = None
    guard: bool = False
    hooks: bool = True
    fail_on: FailOn = FailOn.ERROR


def run(target: Target, options: RunOptions) -> int:
    """Run a program inside a watch, print its findings as they are made and a report at its end."""
    save = None if options.save is None else _made(options.save)
    header = Header(
        gradscope=__version__,
        torch="",
        python=platform.python_version(),
        script=str(target),
        argv=target.args,
        started=time.time(),
        hooks=options.hooks,
    )

    def start() -> AbstractContextManager[Scope]:
        import torch

        from gradscope.watching import watch

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


def report(files: Sequence[Path], format: Format, output: Path | None) -> int:  # noqa: A002 - the option's name
    """Print the reports of saved recordings."""
    from gradscope.recording import load

    recordings = [load(file) for file in files]
    show = _printer(format)
    with opened(output, sys.stdout) as stream:
        console = Console(file=stream)
        for file, recording in zip(files, recordings, strict=True):
            show(recording, console, file)
    return 0


def explain(code: str) -> int:
    """Print what a finding means, why it is bad and how it is cured."""
    from rich.markdown import Markdown

    from gradscope.rules import ALL_RULES

    wanted = next((rule for rule in ALL_RULES if code.lower() in (rule.code.lower(), rule.name)), None)
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
    from gradscope import storage

    path = save.absolute()
    storage.create(path).close()
    return path


class _Live:
    """What is said while the program runs: each finding the moment it is made, and how far a long run is."""

    def __init__(self, console: Console) -> None:
        from gradscope.render.progress import ProgressLine
        from gradscope.render.text import print_finding

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
        from gradscope.render.text import print_report

        return lambda recording, console, saved: print_report(recording, console, None if saved is None else str(saved))
    from gradscope.render import machine

    write = {Format.JSON: machine.to_json, Format.SARIF: machine.to_sarif, Format.GITHUB: machine.to_github}[format]

    def print_text(recording: Recording, console: Console, saved: Path | None) -> None:
        text = write(recording)
        console.file.write(text if text.endswith("\n") or not text else text + "\n")
        console.file.flush()

    return print_text


def _print_unwatched(options: RunOptions, console: Console) -> None:
    """The report of a program that never imported torch."""
    unsaved = f", and {options.save} was not written" if options.save is not None else ""
    text = f"gradscope: the program never imported torch: there was nothing to watch{unsaved}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _fails(findings: Iterable[Finding], fail_on: FailOn) -> bool:
    """Whether a finding is as severe as ``fail_on`` says, or worse."""
    severities = list(Severity)
    if fail_on is FailOn.NEVER:
        return False
    return any(severities.index(one.severity) <= severities.index(Severity(fail_on.value)) for one in findings)
