"""`gradscope run`: run a program inside a watch, print its findings and a report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console

from gradscope.commands.outputs import (
    ErrorStream,
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
from gradscope.fixing.constructs import with_edits
from gradscope.formatting import counted, listed
from gradscope.launch.children import ChildPlan, Children, own_file
from gradscope.launch.crash_reporter import is_possible, standing_by
from gradscope.launch.fork_server import Workshop, improved, untried
from gradscope.launch.interpreter import Target, header_of
from gradscope.launch.runner import Ended, die_of_interrupt, run_program
from gradscope.model import Finding, Outcome, Recording, Severity
from gradscope.record.file import Store, amend, create, load_from
from gradscope.record.loggers import MetricsFile
from gradscope.record.processes import merged
from gradscope.render.text import begin_line, show_progress
from gradscope.render.text.fixes import print_tried
from gradscope.render.text.report import print_finding, print_report
from gradscope.render.wording import fix_command
from gradscope.rules.settings import Format, Settings, Suppressor, write_baseline

# All that a report needs is imported before the program runs, which may leave no path to import it
# from.

# A run that took more seconds is rehearsed only by `gradscope fix`: a rehearsal may take as long,
# and the user waits for it.
_SOON = 30.0
# Seconds for a rehearsal and all tries, and for a run that took longer as many times its own:
# importing torch once more takes about 2 of them, and a try of a small program 0.1 to 0.2.
_MOST_TIME, _MOST_TIMES, _MOST_OF_ALL = 10.0, 3, 20.0
_LEAST_LEFT = 2.0  # seconds at the end of that time in which nothing more is begun
# How many times longer that may take on a busy machine, at most: a program that sleeps looks like
# one.
_MOST_BUSY = 4.0

# The exit status if the report cannot be written where it should be, and the program has no other
# status: the usual one for a usage error.
USED_WRONGLY = 2

_OPTIONS = (
    "--format --quiet --verbose --output --save --html --draw --metrics --stop-after"
    " --guard --no-hooks --budget --no-rehearsal --fail-on --ignore --baseline --write-baseline"
)
"""What a user may have meant for gradscope where a program refuses it."""


def run(target: Target, settings: Settings) -> int:
    """Run a program inside a watch, print its findings as they are made and a report at its end."""
    suppressor = Suppressor(settings)
    if settings.write_baseline is not None:
        writable(settings.write_baseline, "--write-baseline")
    began = header_of(target, settings.hooks)
    plan = ChildPlan.of(began, settings.save, settings.of_watch)
    header = replace(began, run=plan.run)
    children = Children(plan, header)
    files = ("output", "save", "html", "draw", "metrics")
    own: dict[str, Any] = {name: own_file(getattr(settings, name), header) for name in files}
    settings = replace(settings, **own)
    views = [] if settings.html is None else [page(settings.html, "--html")]
    views += [] if settings.draw is None else [image(settings.draw, "--draw")]
    metrics = settings.metrics and MetricsFile(writable(settings.metrics, "--metrics"))
    # Made now, so that failing to write shows, and for the standby.
    store = None
    if settings.save is not None or is_possible():
        store = create(settings.save and settings.save.absolute())
    ended = None
    stderr = ErrorStream()
    try:
        with opened(settings.output, stderr) as output:
            stream, is_text = cast(SafeStream, output), settings.format is Format.TEXT
            live = _Live(stream, stderr, settings.verbose) if is_text else None
            show = live.report if live else printer(settings.format)
            report = _Report(
                settings, suppressor, children, store, views, stream, stderr, live, show
            )
            watch = partial(plan.watch, header, save=store, log=metrics)
            start = partial(watch, on_finding=live.found if live else None, settings=suppressor)
            with standing_by(report.of_killed, report.files), children:
                try:
                    ended = run_program(target, start)
                    recording = report.of_ended(ended)
                except KeyboardInterrupt:  # not the program's: a second Ctrl-C ends the report
                    die_of_interrupt()
    except Exception as failure:  # the program's exit status stands
        if ended is None:
            raise
        is_wrong_use = isinstance(failure, GradscopeError)
        tell(failure if is_wrong_use else _words(failure), stderr)
        return ended.outcome.exit_status or (USED_WRONGLY if is_wrong_use else 0)
    status = ended.leave()
    if status == USED_WRONGLY and not recording.calls:
        slips = [word for word in header.argv if word.partition("=")[0] in _OPTIONS.split()]
        if slips:
            says = f"gradscope's own options go before {header.script}"
            tell(f"{header.script} was given {listed(slips)}: {says}", stderr)
    if status or settings.write_baseline:
        return status
    return int(any(map(settings.fail_on.includes, recording.findings)))


@dataclass(frozen=True, slots=True)
class _Report:
    """The report of a run: where it goes, in which format, and which files show it besides."""

    settings: Settings
    suppressor: Suppressor
    children: Children
    store: Store | None
    views: Sequence[View]
    stream: SafeStream
    stderr: ErrorStream
    live: _Live | None
    """Only of a text."""
    show: Callable[[Recording, Console, str | None], None]

    @property
    def files(self) -> list[int]:
        """The open files that the report is made from, and goes to."""
        files = [] if self.store is None else [self.store.fileno()]
        with suppress(OSError, ValueError):
            files.append(self.stream.fileno())
        return files

    def of_ended(self, ended: Ended) -> Recording:
        """Report on a program that has ended; return what was seen."""
        own = ended.scope.recording() if ended.scope is not None else None
        recording, files = self._seen(own, ended.outcome)
        recording = self._improved(recording, ended)
        for file in files:
            amend(file, recording)
        shown = self._report(recording, files, own is not None, ended.failure)
        if ended.failure is not None and (ended.scope is not None or not self.live):
            tell(_words(ended.failure), self.stderr)
        return shown

    def _improved(self, recording: Recording, ended: Ended) -> Recording:
        """Return the recording with its fixes rehearsed and tried, where that is soon done."""
        try:
            recording = with_edits(recording)
        except Exception as failure:  # the report comes all the same
            tell(_words(failure), self.stderr)
        findings = self.suppressor.of_findings(recording).findings
        open_ = [each for each in findings if each.is_to_rehearse]
        # For advice alone nobody is kept waiting: `gradscope fix` looks for an edit.
        waits = any(each.is_born or each.severity is not Severity.ADVICE for each in open_)
        if not (self.settings.rehearse and waits):
            return recording
        took = time.time() - (self.children.header.started or 0)
        # On a busy machine all takes longer than the processor is at it, by the same factor.
        busy = min(max(took / time.process_time(), 1.0), _MOST_BUSY)
        minutes = counted(round(took / 60), "minute")
        length = minutes if took > 90 else counted(round(took), "second")
        reasons = {
            f"the run takes {length}": took / busy > _SOON,
            "the run was interrupted": ended.interrupted,
            "memory would run out again": any(each.code == "GS401" for each in findings),
            "the run is one of several ranks": recording.header.rank is not None,
            "the run ends with --stop-after": self.settings.stop_after is not None,
        }
        fixing = fix_command(recording.header)
        if why := [reason for reason, holds in reasons.items() if holds]:
            return untried(recording, f"{why[0]}; `{fixing}` tries")
        self.children.leave()  # what is started now is ours
        progress = self.live.progress if self.live else lambda doing: None
        began = time.monotonic()
        most = max(_MOST_TIME, min(_MOST_TIMES * took / busy, _MOST_OF_ALL))
        end = began + busy * most
        with Workshop(progress, sys.modules) as workshop:
            recording = improved(recording, end, workshop)[0]
        looked = time.monotonic() - began
        more = "" if time.monotonic() < end - _LEAST_LEFT else f"; `{fixing}` takes more time"
        rest = (replace(f, untried=f.untried and f.untried + more) for f in recording.findings)
        said = f"looked for fixes: {looked:.1f} s (--no-rehearsal leaves it out)"
        summary = replace(recording.summary, notes=(*recording.summary.notes, said))
        return replace(recording, findings=tuple(rest), summary=summary)

    def of_killed(self, exit_status: int | None) -> None:
        """Report, from another process, on a program whose process has died."""
        try:
            own = None
            if self.store is not None:
                with suppress(GradscopeError):  # it had no torch
                    own = load_from(self.store.fileno())
            outcome = own.outcome if own and own.outcome.finished else Outcome(exit_status)
            own = own and replace(own, outcome=outcome)
            recording, files = self._seen(own, outcome)
            if self.live:
                print_line(console_on(self.stream), f"gradscope: {outcome.unfinished}")
            self._report(recording, files, own is not None, None)
        except Exception as failure:
            tell(_words(failure), self.stderr)

    def _seen(self, own: Recording | None, outcome: Outcome) -> tuple[Recording, list[Path]]:
        """Return what this process and those that it started have done, and the files of that."""
        children, header = self.children, self.children.header
        together = own or Recording(header, outcome)
        has_any = together.calls or together.findings
        written = children.plan.recordings()
        children.plan.tidy()
        save = None if self.store is None else self.store.path
        if save is not None and (own is None or (written and not has_any)):
            save.unlink(missing_ok=True)
            save = None
        files = [*([] if save is None else [save]), *(file for file, _ in written)]
        if written:
            parts = [together] if has_any else []
            together = merged([*parts, *(recording for _, recording in written)])
            together = replace(together, header=own.header if own else header, outcome=outcome)
        started = "the program started a process that is not watched; to watch it, run"
        failed = "following a process failed in gradscope"
        notes = [f"{started}: {command}" for command in children.unwatched]
        notes += [f"{failed} ({failure}); please report this" for failure in children.failures]
        named = self.settings.save
        if save is None and written and named is not None and "{" not in named.name:
            theirs = f"each process has its own file, {listed(file.name for file in files)}"
            notes.append(f"there is no {named}: {theirs}; `gradscope report {named}` joins them")
        if written and self.settings.metrics:
            notes.append("the logged metrics cover this process only, not those it started")
        summary = replace(together.summary, notes=(*together.summary.notes, *notes))
        return replace(together, summary=summary), files if children.plan.is_kept else []

    def _report(
        self, recording: Recording, files: Sequence[Path], seen: bool, failure: Exception | None
    ) -> Recording:
        recording = self.suppressor.of_findings(recording)
        self.stderr.at_end()
        if self.live and not (recording.calls or seen):
            console = console_on(self.stream)
            _print_unwatched(self.settings, console, failure, recording)
            return recording
        here = self.children.header.cwd + os.sep  # where the user types what comes next
        names = " ".join(str(file).removeprefix(here) for file in files)
        file, console = self._shown(recording, names or None)
        if recording.calls or seen:
            told = console if self.live else None
            if baseline := self.settings.write_baseline:
                written = write_baseline(baseline, recording.findings, recording.sources)
                if told:
                    print_line(told, written)
            for view in self.views:
                try:
                    view.write(recording, told)
                except GradscopeError as error:
                    tell(f"{view.file} was not written: {error}", self.stderr)
        if file is not None:
            raise GradscopeError(f"stderr cannot be written any more; the report is in {file}")
        return recording

    def _shown(self, recording: Recording, saved: str | None) -> tuple[Path | None, Console]:
        """Print the report where it can be read; return the file that was made for it, if any."""
        for stream in dict.fromkeys((self.stream, self.stderr)):
            console = console_on(stream)
            self.show(recording, console, saved)
            stream.flush()
            if not stream.is_lost:
                return None, console
        suffix = ".txt" if self.live else f".{self.settings.format}"
        path = Path(self.children.header.cwd) / f"gradscope-report-{os.getpid()}{suffix}"
        with opened(path, self.stderr) as last:
            self.show(recording, console_on(last), saved)
        return path, console


class _Live:
    """Prints each finding as soon as it is made, and the report at the end."""

    def __init__(self, stream: SafeStream, stderr: SafeStream, verbose: bool) -> None:
        self._verbose = verbose
        self._console = console_on(stream)
        self._stream = stream
        self._printed: list[Finding] = []
        self._stderr = cast(TextIO, stderr)
        self._process = os.getpid()

    def found(self, finding: Finding) -> None:
        """Print a finding; in a forked child, print nothing."""
        if os.getpid() == self._process and not self._stream.is_diverted:
            begin_line(self._console.file)
            print_finding(finding, self._console, before=self._printed)
            self._printed.append(finding)

    def progress(self, doing: str) -> None:
        """Say what is done after the program's end."""
        show_progress(f"gradscope {doing} (Ctrl-C leaves it)", self._stderr)

    def report(self, recording: Recording, console: Console, saved: str | None) -> None:
        """Print the report; what was printed before takes one line a finding."""
        for stream in dict.fromkeys((self._stderr, self._console.file)):
            begin_line(stream)
        here = console.file is self._console.file
        printed = {finding.cause: finding for finding in self._printed if here}
        for finding in filter(lambda each: each.is_born, recording.findings):
            old = printed.get(finding.cause, finding)
            if (old.related, old.site) != (finding.related, finding.site):
                del printed[finding.cause]  # a rehearsal has shown more since
        known = [(f, printed[f.cause]) for f in recording.findings if f.cause in printed]
        better = [f for f, old in known if f.fix != old.fix]
        print_tried(better, console)
        print_report(recording, console, saved, printed, verbose=self._verbose)


def _words(failure: Exception) -> str:
    """Return in one line what failed in gradscope; the program is not told."""
    error = f"{type(failure).__name__}: {failure}"
    return f"internal error in gradscope ({error}); run `gradscope doctor`, and please report this"


def _print_unwatched(
    settings: Settings, console: Console, failure: Exception | None, recording: Recording
) -> None:
    """Print the report of a program that never imported torch, or could not be watched.

    Of one that has failed before, Python has told all, unless files are missing now.
    """
    asked = (settings.save, settings.html, settings.draw, settings.metrics)
    files = [str(file) for file in asked if file is not None]
    ended = recording.outcome
    is_failed = bool(ended.exit_status or ended.exception)
    text = "gradscope: the program never imported torch: there was nothing to watch"
    if is_failed:
        text = "gradscope: the program ended before it imported torch"
    if failure is not None:
        text = f"gradscope: the program ran unwatched: {_words(failure)}"
    if files:
        text += f", and {' and '.join(files)} {'were' if len(files) > 1 else 'was'} not written"
    if files or failure is not None or not is_failed:
        print_line(console, text)
    for note in recording.summary.notes:
        print_line(console, f"note: {note}")
