"""`gradscope run`: run a program inside a watch, print its findings and a report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gradscope.code.suppressing import Suppressor, write_baseline
from gradscope.commands.outputs import (
    LiveConsole,
    SafeStream,
    View,
    console_on,
    image,
    opened,
    page,
    print_line,
    printer,
    tell,
    writable,
)
from gradscope.errors import GradscopeError
from gradscope.launch.children import Children, Plan, own_file
from gradscope.launch.ending import die_of_interrupt
from gradscope.launch.runner import Ended, run_program
from gradscope.launch.target import Target, header_of
from gradscope.model import BackwardCall, Finding, Header, Recording
from gradscope.record.processes import merged
from gradscope.render.machine import Format
from gradscope.rules.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from gradscope.api.scope import Scope


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
    settings: Settings = DEFAULTS
    given: Path | None = None
    """What ``--save`` was given: ``save`` is the file of this process."""


def run(target: Target, options: RunOptions) -> int:
    """Run a program inside a watch, print its findings as they are made and a report at its end."""
    suppressor = Suppressor(options.settings)
    if options.settings.write_baseline is not None:
        writable(options.settings.write_baseline, "--write-baseline")
    header = header_of(target, options.hooks)
    options = _own(options, header)
    views = _views(options)
    save = None if options.save is None else _made(options.save)
    chosen = {"hooks": options.hooks, "guard": options.guard, "stop_after": options.stop_after}
    program = {"script": header.script, "argv": header.argv}
    children = Children(Plan.of(options.given, **chosen, **program), header)
    header = replace(header, run=children.plan.run)
    ended = None
    try:
        with opened(options.output, SafeStream(sys.stderr)) as stream, children:
            console = console_on(stream, kind=LiveConsole)
            live = _Live(console) if options.format is Format.TEXT else None
            show = live.report if live else printer(options.format)
            try:
                ended = run_program(
                    target, partial(_watch, options, header, save, live, suppressor)
                )
                recording, saved = _seen(ended, header, children, save)
                recording = suppressor.applied(recording)
                if recording.calls or ended.scope is not None:
                    show(recording, console, saved)
                    if options.settings.write_baseline is not None:
                        written = write_baseline(
                            options.settings.write_baseline, recording.findings, recording.sources
                        )
                        if live:
                            print_line(console, written)
                    for view in views:
                        view.write_if_possible(recording, console if live else None)
                elif live:
                    _print_unwatched(options, console, ended.failure, recording.summary.notes)
                else:
                    show(recording, console, None)
                if ended.failure is not None and (ended.scope is not None or not live):
                    _tell(ended.failure)
            except KeyboardInterrupt:  # not the program's: a second Ctrl-C cuts the report short
                die_of_interrupt()
    except GradscopeError as error:
        if ended is None or not ended.outcome.exit_status:
            raise
        tell(error)
        return ended.outcome.exit_status
    except Exception as failure:  # of ours: the program has ended, and its exit status stands
        if ended is None:
            raise
        _tell(failure)
        return ended.outcome.exit_status or 0
    if ended.interrupted:
        die_of_interrupt()
    if ended.outcome.exit_status or options.settings.write_baseline:
        return ended.outcome.exit_status or 0
    return int(any(map(options.settings.fail_on.includes, recording.findings)))


def _own(options: RunOptions, header: Header) -> RunOptions:
    """Return the options with the files of this process, one of several that were told the same."""
    output, save, html, draw = (
        own_file(file, header)
        for file in (options.output, options.save, options.html, options.draw)
    )
    return replace(options, given=options.save, output=output, save=save, html=html, draw=draw)


def _seen(
    ended: Ended, header: Header, children: Children, save: Path | None
) -> tuple[Recording, str | None]:
    """Return what this process and those that it started have done, and the files of that."""
    seen = ended.scope is not None
    own = ended.scope.recording() if ended.scope else Recording(header, ended.outcome)
    written = children.plan.recordings()
    children.plan.tidy()
    if save is not None and (not seen or (written and not (own.calls or own.findings))):
        save.unlink(missing_ok=True)
        save = None
    files = [*([] if save is None else [save]), *(file for file, _ in written)]
    if written:
        parts = [own] if own.calls or own.findings else []
        together = merged([*parts, *(recording for _, recording in written)])
        own = replace(together, header=own.header, outcome=ended.outcome)
    notes = (
        f"a process was started that is not watched; this watches it: {command}"
        for command in children.unwatched
    )
    summary = replace(own.summary, notes=(*own.summary.notes, *notes))
    kept = children.plan.is_kept and files
    return replace(own, summary=summary), " ".join(map(str, files)) if kept else None


def _views(options: RunOptions) -> list[View]:
    views = [] if options.html is None else [page(options.html, "--html")]
    return views if options.draw is None else [*views, image(options.draw, "--draw")]


def _watch(
    options: RunOptions,
    header: Header,
    save: Path | None,
    live: _Live | None,
    suppressor: Suppressor,
) -> AbstractContextManager[Scope]:
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
        settings=suppressor,
    )


def _made(save: Path) -> Path:
    """Return the absolute path of an empty recording, made now so that failing to write shows."""
    from gradscope.record import file as storage

    path = save.absolute()
    storage.create(path).close()
    return path


class _Live:
    """Prints each finding as soon as it is made, the progress, and the report at the end."""

    def __init__(self, console: Console) -> None:
        # Imported now: the program may leave no path to import it from.
        from gradscope.render.text.finding import print_finding
        from gradscope.render.text.progress import ProgressLine, begin_line
        from gradscope.render.text.report import print_report

        self._console = console
        self._print_finding, self._print_report = print_finding, print_report
        self._begin_line = begin_line
        self._printed: list[Finding] = []
        self._progress = ProgressLine()
        self._process = os.getpid()
        self._started = time.monotonic()

    def _begin(self) -> None:
        """Make room for lines of ours."""
        self._progress.erase()
        self._begin_line(self._console.file)

    def found(self, finding: Finding) -> None:
        """Print a finding; in a forked child, print nothing."""
        if os.getpid() == self._process:
            self._begin()
            self._print_finding(finding, self._console, before=self._printed)
            self._printed.append(finding)

    def called(self, call: BackwardCall) -> None:
        """Show that a backward call has ended."""
        if os.getpid() == self._process:
            self._progress.update(call.number, call.live_bytes, time.monotonic() - self._started)

    def report(self, recording: Recording, console: Console, saved: str | None) -> None:
        """Print the report; what was printed before takes one line a finding."""
        self._begin()
        printed = {finding.cause for finding in self._printed}
        self._print_report(recording, console, saved, printed)


def _tell(failure: Exception) -> None:
    """Say in one line what failed in gradscope; the program is not told."""
    tell(_words(failure))


def _words(failure: Exception) -> str:
    error = f"{type(failure).__name__}: {failure}"
    return f"a part of gradscope failed ({error}); see `gradscope doctor`, and please report this"


def _print_unwatched(
    options: RunOptions, console: Console, failure: Exception | None, notes: Sequence[str]
) -> None:
    """Print the report of a program that never imported torch, or could not be watched."""
    files = [str(file) for file in (options.save, options.html, options.draw) if file is not None]
    text = (
        "gradscope: the program never imported torch: there was nothing to watch"
        if failure is None
        else f"gradscope: the program ran unwatched: {_words(failure)}"
    )
    if files:
        text += f", and {' and '.join(files)} {'were' if len(files) > 1 else 'was'} not written"
    print_line(console, text)
    for note in notes:
        print_line(console, f"note: {note}")
