"""The file that a run writes as it goes: one line of JSON for each test, so that it can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracles.conformance.records import FileRun, Ran, Way


class Journal:
    """What was seen of each file, in each way, of each test; a later line replaces an earlier."""

    def __init__(self, path: Path, *, keep: bool) -> None:
        self._path = path.absolute()
        if not keep or not path.exists():
            path.write_text("")

    def add(self, file: str, way: Way, ran: Ran) -> None:
        """Write how a test went."""
        self._write({"file": file, "way": way.name, "ran": ran.as_data()})

    def problem(self, file: str, text: str) -> None:
        """Write why a file could not be run."""
        self._write({"file": file, "problem": text})

    def read(self) -> dict[str, FileRun]:
        """Return all that was written, by file."""
        runs: dict[str, FileRun] = {}
        for line in self._path.read_text().splitlines():
            told = json.loads(line)
            run = runs.setdefault(told["file"], FileRun(told["file"]))
            if "problem" in told:
                run.problem = told["problem"]
            else:
                ran = Ran.of(told["ran"])
                run.ran.setdefault(told["way"], {})[ran.name] = ran
        return runs

    def _write(self, told: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(told) + "\n")
