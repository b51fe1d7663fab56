"""Watches each test of a pytest run, fails it for its findings, and lists them at the end."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from gradscope.code.source import called_name, calls_in, enclosing, spans
from gradscope.commands.outputs import print_line
from gradscope.errors import GradscopeError, attempting
from gradscope.formatting import counted
from gradscope.launch.runner import describe, when_torch_is_imported
from gradscope.model import (
    BackwardCall,
    Cause,
    Finding,
    Findings,
    Outcome,
    Severity,
    Suppression,
    SuppressionKind,
)
from gradscope.record.file import dumps, loads
from gradscope.render.printing import findings_text
from gradscope.render.text import console_in_memory, written_on
from gradscope.render.text.report import print_list, tally
from gradscope.render.wording import LOOKED_FOR
from gradscope.rules import by_code
from gradscope.rules.settings import FailOn, Settings, Suppressor, settings_at, write_baseline

if TYPE_CHECKING:
    from gradscope.api.scope import Scope

_EXPECTING = ("raises", "assertRaises", "assertRaisesRegex")
"""How pytest and unittest call what expects an exception."""


@dataclass
class Watched:
    """The watch on one test."""

    item: pytest.Item
    scope: Scope | None = None
    watching: ExitStack = field(default_factory=ExitStack)
    in_raises: set[Cause] = field(default_factory=set)
    """The errors that were met where the test expects an exception."""
    calls: int = 0
    failure: str = ""

    def begin(self) -> None:
        """Begin to watch, now or once the test imports torch."""
        self.watching.callback(when_torch_is_imported(self._enter))

    def _enter(self) -> None:
        with attempting(self._note):  # the test runs on unwatched
            from gradscope.api.watch import watch

            self.scope = self.watching.enter_context(
                watch(on_finding=self._found, on_call=self._called, settings=False)
            )

    def _note(self, failure: Exception) -> None:
        self.failure = f"{type(failure).__name__}: {failure}"

    def _found(self, finding: Finding) -> None:
        with attempting(self._note):  # the finding counts then
            if finding.severity is Severity.ERROR and _expects_exception(self.item):
                self.in_raises.add(finding.cause)

    def _called(self, call: BackwardCall) -> None:
        self.calls += call.count

    def end(self, error: BaseException | None) -> list[Finding]:
        """End the watch; return what was found, with the reasons for what does not count."""
        with attempting(self._note):
            if self.scope is not None:
                failure = None if error is None else self.scope.explain(error)
                text, ended = None if error is None else describe(error), time.time()
                self.scope.outcome = Outcome(
                    None, text, finished=True, ended=ended, failure=failure
                )
            self.watching.close()
        found = [] if self.scope is None else list(self.scope.findings)
        wanted = marked(self.item)
        by_name = wanted["allow"] | wanted["expect"]
        why = {one.cause: "as the test's marker names it" for one in found if one.code in by_name}
        why |= dict.fromkeys(self.in_raises, "as the test expects the exception")
        excused = [one for one in found if one.cause in why]
        for finding in found:  # what came true as an error that does not count
            came = next((one for one in excused if finding.is_fulfilled_by(one)), finding)
            why.setdefault(finding.cause, why.get(came.cause, ""))
        return [_suppressed(finding, why[finding.cause]) for finding in found]


def _suppressed(finding: Finding, reason: str) -> Finding:
    """Return a finding that does not count for what the test says; without that, as it is."""
    by_test = Suppression(SuppressionKind.IN_SOURCE, reason)
    return replace(finding, suppression=by_test) if reason else finding


def _expects_exception(item: pytest.Item) -> bool:
    """Return whether code of the user's that runs now stands in a ``pytest.raises`` or its like."""
    from gradscope.program.sites import user_frames

    return any(
        _is_expecting(statement, frame.f_lineno, item)
        for frame in user_frames(sys._getframe(1))
        for statement in enclosing(frame.f_code.co_filename, frame.f_lineno)
    )


def _is_expecting(statement: ast.stmt, line: int, item: pytest.Item) -> bool:
    if isinstance(statement, ast.With | ast.AsyncWith):
        entered = [one.context_expr for one in statement.items]
        calls = (call for call in calls_in(statement) if called_name(call) == "enter_context")
        entered += [part for call in calls if call.lineno < line for part in call.args]
        return line >= statement.body[0].lineno and any(_expects(one, item) for one in entered)
    if isinstance(statement, ast.Expr | ast.Assign):  # raises(RuntimeError, loss.backward)
        called = (call for call in calls_in(statement) if spans(call, line))
        return any(called_name(call) in _EXPECTING and len(call.args) > 1 for call in called)
    return False


def _expects(entered: ast.expr, item: pytest.Item) -> bool:
    """Return whether it is a call of ``raises``, or an argument of the test that came from one."""
    if isinstance(entered, ast.Call):
        return called_name(entered) in _EXPECTING
    arguments = getattr(item, "funcargs", {})
    value = arguments.get(entered.id) if isinstance(entered, ast.Name) else None
    return hasattr(value, "expected_exception") or hasattr(value, "expected_exceptions")


def marked(item: pytest.Item) -> dict[str, set[str]]:
    """Return the codes that the markers of a test allow and expect; raise UsageError for others."""
    wanted: dict[str, set[str]] = {"allow": set(), "expect": set()}
    for mark in item.iter_markers("gradscope"):
        if mark.args or mark.kwargs.keys() - wanted.keys():
            given = ", ".join([*map(repr, mark.args), *mark.kwargs])
            raise pytest.UsageError(
                f"{item.nodeid}: the marker gradscope takes allow=[…] and expect=[…], not {given}"
            )
        for key, codes in mark.kwargs.items():
            for code in [codes] if isinstance(codes, str) else codes:
                try:
                    wanted[key].add(by_code(code).code)
                except GradscopeError as error:
                    raise pytest.UsageError(f"{item.nodeid}: {error}") from None
    return wanted


class Watching:
    """The plugin of a run with ``--gradscope``; under xdist one a worker, and the controller's."""

    def __init__(self, config: pytest.Config) -> None:
        self._settings = _settings(config)
        self._suppressor = Suppressor(self._settings)
        self._watched: Watched | None = None
        self._ended: tuple[Watched, list[Finding]] | None = None
        self._findings: dict[str, list[Finding]] = {}
        self._calls, self._failed = 0, False
        self._failures: list[str] = []

    @property
    def scope(self) -> Scope | None:
        """The watch on the test that runs."""
        return None if self._watched is None else self._watched.scope

    def pytest_report_header(self) -> str:
        """Say that tests are watched."""
        return f"gradscope: watches every test, fails on {self._settings.fail_on}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the markers."""
        for item in items:
            marked(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Begin to watch before the fixtures are made."""
        self._watched = Watched(item)
        self._watched.begin()
        try:
            return (yield)
        except BaseException as error:
            self._end(error)
            raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """End the watch with the test, and fail it if something counts against it."""
        try:
            result = yield
        except BaseException as error:
            found = [finding for finding in self._end(error) if finding.counts]
            if found:
                item.add_report_section("call", "gradscope", findings_text(Findings(found)))
            raise
        found = self._end(None)
        missing = marked(item)["expect"] - {finding.code for finding in found}
        failing = [finding for finding in found if self._settings.fail_on.includes(finding)]
        if missing or failing:
            # The first line stands in pytest's short summary.
            parts = [f"{code} was expected, and not found" for code in sorted(missing)]
            parts += [f"{one.code} {one.name}" for one in failing]
            shown = f"\n\n{findings_text(Findings(failing))}" if failing else ""
            pytest.fail(f"gradscope: {', '.join(parts)}{shown}", pytrace=False)
        return result

    def _end(self, error: BaseException | None) -> list[Finding]:
        watched, self._watched = self._watched, None
        if watched is None:
            return []
        found = [self._suppressor.judged(finding) for finding in watched.end(error)]
        self._ended = watched, found
        return found

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put what was found into the test's report, which xdist hands to its controller."""
        report = yield
        ended, self._ended = self._ended, None
        if ended is not None:
            watched, found = ended
            if hasattr(report, "wasxfail"):
                found = [_suppressed(one, "as the test is marked as xfail") for one in found]
            vars(report)["gradscope"] = list(map(dumps, found)), watched.calls, watched.failure
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what was found in a test."""
        if not hasattr(report, "gradscope"):
            return
        texts, calls, failure = report.gradscope
        self._calls += calls
        self._failed |= report.failed
        if failure:
            self._failures.append(f"{report.nodeid}: not watched: {failure}")
        self._findings[report.nodeid] = [loads(Finding, text) for text in texts]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the findings of each test."""
        if not self._findings:
            return
        is_coloured, width = terminalreporter._tw.hasmarkup, terminalreporter._tw.fullwidth
        color = "standard" if is_coloured else None
        console = console_in_memory(width, force_terminal=is_coloured, color_system=color)
        for test, found in self._findings.items():
            if shown := [finding for finding in found if finding.counts]:
                print_line(console, test)
                print_list(shown, console)
        for line in self._failures:
            print_line(console, line)
        every = [finding for found in self._findings.values() for finding in found]
        if self._settings.write_baseline is not None:
            print_line(console, write_baseline(self._settings.write_baseline, every))
        calls, tests = counted(self._calls, "backward call"), counted(len(self._findings), "test")
        if found_in_all := ", ".join(tally(every)):
            print_line(console, f"{found_in_all} in {calls} of {tests}")
        elif self._failed:
            print_line(console, f"nothing found in {calls} of {tests}")
        else:
            print_line(console, f"no problem found in {calls} of {tests}: {LOOKED_FOR}")
        terminalreporter.section("gradscope", "=")
        for line in written_on(console).splitlines():
            terminalreporter.write_line(line)


def _settings(config: pytest.Config) -> Settings:
    """Return the settings of the project with what the options say."""
    fail_on, known, written = (
        config.getoption(f"gradscope_{name}") for name in ("fail_on", "baseline", "write_baseline")
    )
    try:
        asked = None if fail_on is None else FailOn(fail_on)
        settings = settings_at(config.rootpath).overridden(
            fail_on=FailOn.NEVER if written else asked, baseline=known, write_baseline=written
        )
        Suppressor(settings)
    except GradscopeError as error:
        raise pytest.UsageError(str(error)) from None
    return settings
