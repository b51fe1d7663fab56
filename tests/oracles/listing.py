"""The scripts that an oracle is given, the results it keeps, and its command line."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.oracles import forks
from tests.oracles.forks import Task

_RUNS_BACKWARD = re.compile(r"\bbackward\(|autograd\.grad\(|\bgrad\(")


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the options that every command of this kind has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("scripts", type=Path, help="a folder, a script, or a file with a list")
    options.add_argument("--out", type=Path, help="results are kept here, and not made again")
    options.add_argument("--prelude", type=Path, help="a file to execute before each script")
    options.add_argument("--preload", default="", help="modules to import once, comma-separated")
    options.add_argument("--args", default="", help="arguments for every script")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=float, default=120, help="of each run")
    options.add_argument("--gibibytes", type=float, default=8, help="of each run")
    options.add_argument("--only", default="", help="scripts whose path contains this")
    return options


def tasks(options: argparse.Namespace) -> list[Task]:
    """Return what to run, and import what is to be imported once."""
    forks.preload(options.preload)
    prelude = options.prelude.absolute() if options.prelude else None
    common = Task(Path(), (), None, prelude, options.seed, options.seconds, options.gibibytes)
    everywhere = shlex.split(options.args)
    return [
        replace(common, script=script, arguments=(*own, *everywhere))
        for script, own in _scripts(options.scripts)
        if options.only in str(script)
    ]


def _scripts(source: Path) -> Iterator[tuple[Path, list[str]]]:
    if source.is_dir():
        for path in sorted(source.rglob("*.py")):
            if _RUNS_BACKWARD.search(path.read_text("utf-8", "replace")):
                yield path.absolute(), []
    elif source.suffix == ".py":
        yield source.absolute(), []
    else:
        for line in source.read_text("utf-8").splitlines():
            name, _, arguments = line.partition(".py")
            if name and not name.startswith("#"):
                yield Path(f"{name}.py").absolute(), shlex.split(arguments)


class Kept:
    """Results in a file, a line each; the last one with a key counts."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.results: dict[str, dict[str, Any]] = {}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                for line in path.read_text("utf-8").splitlines():
                    result = json.loads(line)
                    self.results[result["key"]] = result

    def add(self, key: str, result: dict[str, Any]) -> dict[str, Any]:
        """Keep a result."""
        self.results[key] = result = {"key": key, **result}
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
        return result


def key(task: Task, name: str = "") -> str:
    """Return what identifies a run: script, arguments and content."""
    text = task.text if task.text is not None else task.script.read_text("utf-8", "replace")
    digest = hashlib.sha256("\0".join([text, *task.arguments]).encode()).hexdigest()[:12]
    return f"{task.script}:{name}:{digest}"
