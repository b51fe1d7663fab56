"""Decides which findings count, by pyproject.toml, options, comments and a baseline.

A baseline has the findings that a project has already, so that only new ones count. A finding is
known there by its code, its file and the text of its line, so that lines may move.
"""

from __future__ import annotations

import json
import os
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from gradscope.errors import GradscopeError, meant
from gradscope.formatting import Sources, counted, current_dir, line_at, short_path, source_lines
from gradscope.model import Finding, Recording, Severity, Suppression, SuppressionKind
from gradscope.rules import by_code


class FailOn(StrEnum):
    """Lowest severity of a finding that makes the exit status 1, or a test fail."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"
    NEVER = "never"

    def includes(self, finding: Finding) -> bool:
        """Return whether a finding that counts is at or above it."""
        counts = finding.counts and self is not FailOn.NEVER
        return counts and finding.severity.rank <= Severity(self.value).rank


class Format(StrEnum):
    """How a report is written: for people, or for machines."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"
    BRIEF = "brief"


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for: by options, the environment and pyproject.toml, each before the next.

    First comes which findings count. ``ignored`` says of each code where that was asked for;
    ``per_file`` has patterns with their codes, relative to ``folder``. With ``write_baseline``, all
    findings of today are written there, and none counts.

    ``budget`` is the share of the run's time that a watch may take, in percent; None for any. Then
    come where the report goes, how a program is watched, and how fixes are searched for:
    ``sandboxed`` runs end before they would change a file.
    """

    ignored: Mapping[str, str] = field(default_factory=dict)
    fail_on: FailOn = FailOn.ERROR
    baseline: Path | None = None
    write_baseline: Path | None = None
    folder: Path = Path()
    per_file: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    budget: float | None = None
    format: Format = Format.TEXT
    verbose: bool = False
    output: Path | None = None
    save: Path | None = None
    html: Path | None = None
    draw: Path | None = None
    metrics: Path | None = None
    stop_after: int | None = None
    guard: bool = False
    hooks: bool = True
    rehearse: bool = True
    sandboxed: bool = True
    timeout: float = 600
    finding: str | None = None
    picks: tuple[int, ...] = ()
    verify: bool = False
    write: bool = False

    def pattern_for(self, code: str, file: str) -> str | None:
        """Return the first pattern under which a code is ignored in a file."""
        try:
            path = PurePath(os.path.relpath(file, self.folder)).as_posix()
        except ValueError:  # on another drive
            return None
        names = path, PurePath(path).name
        patterns = (pattern for pattern, codes in self.per_file.items() if code in codes)
        return next((p for p in patterns if any(fnmatch(name, p) for name in names)), None)

    def overridden(self, ignore: Iterable[str] | None = None, **options: Any) -> Settings:
        """Return the settings with what options say, by the names of fields; those that are None
        say nothing. Raise GradscopeError for unknown codes.
        """
        codes = [code for part in ignore or () for code in part.split(",") if code.strip()]
        ignored = {**self.ignored, **{by_code(code).code: "--ignore" for code in codes}}
        given = {name: value for name, value in options.items() if value is not None}
        files = {name: given[name].absolute() for name in _BASELINES if name in given}
        return replace(self, ignored=ignored, **given | files)

    @property
    def of_watch(self) -> dict[str, Any]:
        """What a watch is given of them, in this process and in those that it starts."""
        raise_on = "error" if self.guard else None
        given = {"hooks": self.hooks, "stop_after": self.stop_after, "budget": self.budget}
        return given | {"raise_on": raise_on}


DEFAULTS = Settings()
_BASELINES = ("baseline", "write_baseline")
"""The files that are named in what is written later, perhaps from another folder."""


def settings_at(folder: Path | None = None) -> Settings:
    """Return the settings of the environment and of the nearest pyproject.toml, from a folder
    upwards, that has some: by default from the working directory.

    Raise GradscopeError where they are wrong.
    """
    project = _of_project(folder or Path(current_dir()))
    named = os.environ.get("GRADSCOPE_BUDGET")
    try:
        return replace(project, budget=percent(named)) if named else project
    except ValueError as error:
        raise GradscopeError(f"GRADSCOPE_BUDGET: {error}") from None


def _of_project(folder: Path) -> Settings:
    for above in (folder, *folder.parents):
        file = above / "pyproject.toml"
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "gradscope" not in text:
            continue
        try:
            table = tomllib.loads(text).get("tool", {}).get("gradscope")
        except tomllib.TOMLDecodeError as error:
            raise GradscopeError(f"cannot read {file}: {error}") from None
        if table is not None:
            return _read(file, table)
    return DEFAULTS


def _read(file: Path, table: Any) -> Settings:
    """Return the settings in the table of a file, which is named in what is raised."""
    wrong = f"{file}: [tool.gradscope]"
    if not isinstance(table, dict):
        raise GradscopeError(f"{wrong} needs to be a table, not {table!r}")
    read: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise GradscopeError(f"{wrong} has no setting {key!r}{meant(key, _KEYS)}")
        name, needs, reads = _KEYS[key]
        try:
            read[name] = reads(value)
        except GradscopeError as error:
            raise GradscopeError(f"{wrong} {key}: {error}") from None
        except (TypeError, ValueError):
            raise GradscopeError(f"{wrong} needs {needs} for {key}, not {value!r}") from None
    settings = Settings(folder=file.parent, **read)
    baseline = settings.baseline and file.parent / settings.baseline
    asked = dict.fromkeys(settings.ignored, f"ignore in {file.name}")
    return replace(settings, ignored=asked, baseline=baseline)


def _codes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(by_code(str(code)).code for code in value)


def _per_file(value: Any) -> dict[str, tuple[str, ...]]:
    return {pattern: _codes(codes) for pattern, codes in dict(value).items()}


def percent(value: Any) -> float:
    """Return a share in percent, more than 0; raise ValueError for another value."""
    with suppress(TypeError, ValueError):
        if 0 < float(value) <= 100:
            return float(value)
    raise ValueError(f"invalid budget {value!r}: use a percentage above 0, up to 100")


_KEYS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "ignore": ("ignored", 'a list of codes, as ["GS303"],', _codes),
    "fail-on": ("fail_on", f"one of {', '.join(FailOn)}", FailOn),
    "baseline": ("baseline", "a file's path", Path),
    "budget": ("budget", "a number of percent above 0", percent),
    "per-file-ignores": ("per_file", "a table of lists of codes", _per_file),
}
"""Of each key the field, what it needs, and what reads it."""


_COMMENT = re.compile(r"#\s*gradscope:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?")


class Suppressor:
    """Judges findings by comments, settings and a baseline."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        file = None if settings.write_baseline else settings.baseline
        self._known = frozenset[KnownFinding]() if file is None else read_baseline(file)

    def judged(self, finding: Finding, sources: Sources = None) -> Finding:
        """Return the finding with the reason for which it does not count, if there is one."""
        found = finding.suppression or self._suppression(finding, sources)
        return replace(finding, suppression=found)

    def of_findings(self, recording: Recording) -> Recording:
        """Return a recording with its findings judged."""
        findings = tuple(self.judged(one, recording.sources) for one in recording.findings)
        return replace(recording, findings=findings)

    def _suppression(self, finding: Finding, sources: Sources) -> Suppression | None:
        code, sites = finding.code, dict.fromkeys((finding.site, finding.step))
        for site in filter(None, sites):
            covered = range(site.line, max(site.line, site.end_line) + 1)
            called = {code.lower(), finding.name}
            for line, codes, text in suppressing(source_lines(site.file, sources)):
                if line in covered and (not codes or codes & called):
                    return Suppression(SuppressionKind.IN_SOURCE, f"by `{text}`")
            pattern = self.settings.pattern_for(code, site.file)
            if pattern is not None:
                return Suppression(SuppressionKind.EXTERNAL, f"by per-file-ignores of {pattern}")
        if code in self.settings.ignored:
            return Suppression(SuppressionKind.EXTERNAL, f"by {self.settings.ignored[code]}")
        file = self.settings.baseline
        if self._known and file and _entry(finding, file.parent, sources) in self._known:
            where = short_path(str(file))
            return Suppression(SuppressionKind.EXTERNAL, f"as known by the baseline {where}")
        return None


def suppressing(lines: Sequence[str]) -> Iterator[tuple[int, Set[str], str]]:
    """Yield the suppressing comments of a source: of each its line, the codes or names that it
    suppresses, in lower case (none: all), and its text.
    """
    if not any(map(_COMMENT.search, lines)):
        return
    try:
        for token in tokenize.generate_tokens((f"{line}\n" for line in lines).__next__):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found:
                codes = re.split(r"[,\s]+", (found["codes"] or "").lower())
                yield token.start[0], set(filter(None, codes)), found[0]
    except (tokenize.TokenError, SyntaxError, StopIteration):
        return  # no Python from here on


_KIND = "gradscope baseline"
_VERSION = 1  # of the file of a baseline: grows when an old reader would misread the new


class KnownFinding(NamedTuple):
    """A known finding; the file is relative to the baseline's folder."""

    file: str
    code: str
    line: str
    parameters: str = ""

    def as_row(self) -> dict[str, str]:
        """Return what the baseline's file has of it."""
        return {key: text for key, text in self._asdict().items() if text or key != "parameters"}


def _entry(finding: Finding, folder: Path, sources: Sources) -> KnownFinding:
    """Return a finding as an entry of a baseline in a folder."""
    site = finding.anchor
    parameters = " ".join(finding.parameters) if finding.step else ""
    if site is None:
        return KnownFinding("<unknown>", finding.code, "", parameters)
    file, text = site.file, line_at(source_lines(site.file, sources), site.line)
    if not file.startswith("<"):
        with suppress(ValueError):  # on another drive
            file = PurePath(os.path.relpath(file, folder)).as_posix()
    return KnownFinding(file, finding.code, " ".join(text.split()), parameters)


def write_baseline(file: Path, findings: Iterable[Finding], sources: Sources = None) -> str:
    """Write a baseline of the findings that count; return a line that says so.

    Raise GradscopeError if that fails.
    """
    entries = {_entry(finding, file.parent, sources) for finding in findings if finding.counts}
    rows = [entry.as_row() for entry in sorted(entries)]
    text = json.dumps({"kind": _KIND, "version": _VERSION, "findings": rows}, indent=1)
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise GradscopeError(f"cannot write {file}: {error.strerror}") from None
    return f"baseline: {short_path(str(file))} ({counted(len(entries), 'finding')})"


def read_baseline(file: Path) -> frozenset[KnownFinding]:
    """Read a baseline; raise GradscopeError if it cannot be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["kind"] != _KIND or content["version"] != _VERSION:
            raise ValueError
        return frozenset(KnownFinding(**row) for row in content["findings"])
    except FileNotFoundError:
        raise GradscopeError(
            f"there is no baseline {file}; `gradscope run --write-baseline {file} …` writes it"
        ) from None
    except OSError as error:
        raise GradscopeError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise GradscopeError(
            f"{file} is not a baseline this version can read; recreate it with --write-baseline"
        ) from None
