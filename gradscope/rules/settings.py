"""What a user sets for all commands: `[tool.gradscope]` in pyproject.toml, under the options."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any

from gradscope.errors import GradscopeError, meant
from gradscope.model import Finding, Severity
from gradscope.rules import by_code


class FailOn(StrEnum):
    """Lowest severity of a finding that makes the exit status 1, or a test fail."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"
    NEVER = "never"

    def includes(self, finding: Finding) -> bool:
        """Return whether a finding that counts is at or above it."""
        if self is FailOn.NEVER or not finding.counts:
            return False
        return finding.severity.rank <= Severity(self.value).rank


@dataclass(frozen=True, slots=True)
class Settings:
    """What counts: ``ignored`` says of each code where that was asked for.

    ``per_file`` has patterns with their codes, relative to ``folder``. With ``write_baseline``, all
    findings of today are written there, and none counts.
    """

    ignored: Mapping[str, str] = field(default_factory=dict)
    fail_on: FailOn = FailOn.ERROR
    baseline: Path | None = None
    write_baseline: Path | None = None
    folder: Path = Path()
    per_file: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def overridden(
        self,
        ignore: Iterable[str] | None = None,
        fail_on: FailOn | None = None,
        baseline: Path | None = None,
        write_baseline: Path | None = None,
    ) -> Settings:
        """Return the settings with what options say; raise GradscopeError for unknown codes."""
        codes = [code for part in ignore or () for code in part.split(",") if code.strip()]
        return replace(
            self,
            ignored={**self.ignored, **{by_code(code).code: "--ignore" for code in codes}},
            fail_on=fail_on or self.fail_on,
            baseline=self.baseline if baseline is None else baseline.absolute(),
            write_baseline=None if write_baseline is None else write_baseline.absolute(),
        )

    def pattern_for(self, code: str, file: str) -> str | None:
        """Return the first pattern under which a code is ignored in a file."""
        try:
            path = PurePath(os.path.relpath(file, self.folder)).as_posix()
        except ValueError:  # on another drive
            return None
        return next(
            (
                pattern
                for pattern, codes in self.per_file.items()
                if code in codes
                and (fnmatch(path, pattern) or fnmatch(PurePath(path).name, pattern))
            ),
            None,
        )


DEFAULTS = Settings()


def settings_at(folder: Path | None = None) -> Settings:
    """Return the settings of the nearest pyproject.toml, from a folder upwards, that has some: by
    default from the working directory.

    Raise GradscopeError where they are wrong.
    """
    try:
        folder = folder or Path.cwd()
    except OSError:  # it was deleted
        return DEFAULTS
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
            return _Reader(file).settings(table)
    return DEFAULTS


class _Reader:
    """Reads the table of a file; names the file in what it raises."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._keys = {
            "ignore": self._codes,
            "fail-on": self._fail_on,
            "baseline": self._path,
            "per-file-ignores": self._per_file,
        }

    def settings(self, table: Any) -> Settings:
        read: dict[str, Any] = {}
        for key, value in self._table(table, "[tool.gradscope]").items():
            if key not in self._keys:
                raise self._wrong(f"has no setting {key!r}{meant(key, self._keys)}")
            read[key] = self._keys[key](value, key)
        asked = f"ignore in {self._file.name}"
        return Settings(
            ignored=dict.fromkeys(read.get("ignore", ()), asked),
            fail_on=read.get("fail-on", FailOn.ERROR),
            baseline=read.get("baseline"),
            folder=self._file.parent,
            per_file=read.get("per-file-ignores", {}),
        )

    def _wrong(self, what: str) -> GradscopeError:
        return GradscopeError(f"{self._file}: [tool.gradscope] {what}")

    def _table(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(f"needs a table for {key}, not {value!r}")
        return value

    def _codes(self, value: Any, key: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(code, str) for code in value):
            raise self._wrong(f'needs a list of codes for {key}, as ["GS303"], not {value!r}')
        try:
            return tuple(by_code(code).code for code in value)
        except GradscopeError as error:
            raise self._wrong(f"{key}: {error}") from None

    def _per_file(self, value: Any, key: str) -> dict[str, tuple[str, ...]]:
        table = self._table(value, key)
        return {pattern: self._codes(codes, f'"{pattern}"') for pattern, codes in table.items()}

    def _fail_on(self, value: Any, key: str) -> FailOn:
        if value not in list(FailOn):
            raise self._wrong(f"needs one of {', '.join(FailOn)} for {key}, not {value!r}")
        return FailOn(value)

    def _path(self, value: Any, key: str) -> Path:
        if not isinstance(value, str):
            raise self._wrong(f"needs a file's path for {key}, not {value!r}")
        return self._file.parent / value
