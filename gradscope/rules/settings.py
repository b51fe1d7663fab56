"""What a user sets for all commands: `[tool.gradscope]` in pyproject.toml, under the options."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
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
        for pattern, codes in self.per_file.items():
            if code in codes and any(fnmatch(p, pattern) for p in (path, PurePath(path).name)):
                return pattern
        return None


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


_KEYS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "ignore": ("ignored", 'a list of codes, as ["GS303"],', _codes),
    "fail-on": ("fail_on", f"one of {', '.join(FailOn)}", FailOn),
    "baseline": ("baseline", "a file's path", Path),
    "per-file-ignores": ("per_file", "a table of lists of codes", _per_file),
}
"""Of each key the field, what it needs, and what reads it."""
