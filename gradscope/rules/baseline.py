"""A baseline: the findings that a project has already, so that only new ones count.

A finding is known by its code, its file and the text of its line, so that lines may move.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

from gradscope.errors import GradscopeError

_KIND = "gradscope baseline"
_VERSION = 1


class Entry(NamedTuple):
    """A known finding; the file is relative to the baseline's folder."""

    file: str
    code: str
    line: str


class Baseline:
    """The entries of a file, and which of them were met."""

    def __init__(self, file: Path, entries: Iterable[Entry] = ()) -> None:
        self.file = file
        self.entries = frozenset(entries)
        self.met: set[Entry] = set()

    def entry(self, code: str, file: str, line: str) -> Entry:
        """Return the entry for a finding at a line of text."""
        if not file.startswith("<"):
            with suppress(ValueError):  # on another drive
                file = PurePath(os.path.relpath(file, self.file.parent)).as_posix()
        return Entry(file, code, " ".join(line.split()))

    def knows(self, entry: Entry) -> bool:
        """Return whether an entry is in the file, and note that it was met."""
        known = entry in self.entries
        if known:
            self.met.add(entry)
        return known

    def write(self, entries: Iterable[Entry]) -> None:
        """Write the file; raise GradscopeError if that fails."""
        rows = [entry._asdict() for entry in sorted(set(entries))]
        text = json.dumps({"kind": _KIND, "version": _VERSION, "findings": rows}, indent=1)
        try:
            self.file.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise GradscopeError(f"cannot write {self.file}: {error.strerror}") from None


def read_baseline(file: Path) -> Baseline:
    """Read a baseline; raise GradscopeError if it cannot be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["kind"] != _KIND or content["version"] != _VERSION:
            raise ValueError
        return Baseline(file, [Entry(**row) for row in content["findings"]])
    except FileNotFoundError:
        raise GradscopeError(
            f"there is no baseline {file}; `gradscope run --write-baseline {file} …` writes it"
        ) from None
    except OSError as error:
        raise GradscopeError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise GradscopeError(
            f"{file} is no baseline of this gradscope; write it again with --write-baseline"
        ) from None
