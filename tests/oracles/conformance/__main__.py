"""The command ``python -m tests.oracles.conformance PATH/TO/test [FILES…]``."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tests.oracles.conformance.forks import Forks
from tests.oracles.conformance.journal import Journal
from tests.oracles.conformance.records import AGAIN, PLAIN, WATCHED, WAYS, FileRun
from tests.oracles.conformance.suite import load
from tests.oracles.conformance.table import lines
from tests.oracles.conformance.verdict import verdicts

FILES = ("test_autograd.py",)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracles.conformance",
        description="Run tests of a PyTorch checkout plain and watched, and compare.",
    )
    add = parser.add_argument
    add("folder", type=Path, help="the folder `test` of a PyTorch checkout")
    add("files", nargs="*", help=f"files in it, or FILE::PATTERN of test names ({FILES[0]})")
    ways = [way.name for way in WATCHED]
    add("--ways", nargs="+", choices=ways, default=ways, help="how to watch them")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    add("--shard", type=int, default=100, help="tests in one process")
    add("--bound", type=float, default=120, help="seconds for one test")
    add("--skip", action="append", default=[], help="a name or pattern of tests to leave out")
    add("--skip-list", type=argparse.FileType(), help="a file of such names, one a line")
    add("--json", type=Path, help="write each test as it ends, a line of JSON each")
    add("--resume", action="store_true", help="go on with what --json has already")
    add("--log", default=os.devnull, help="where the tests' own output goes")
    asked = parser.parse_args(given)
    if not asked.folder.is_dir():
        parser.error(
            f"{asked.folder} is not a folder: give the folder `test` of a PyTorch checkout"
        )
    for path in (asked.folder / file.partition("::")[0] for file in asked.files):
        if not path.is_file():
            parser.error(f"{path} is not there: name files relative to {asked.folder}")
    if asked.resume and asked.json is None:
        parser.error("--resume needs --json FILE, the file to go on with")
    if asked.skip_list is not None:
        asked.skip += asked.skip_list.read().split()
    return asked


def run_file(given: argparse.Namespace, asked: str, journal: Journal) -> None:
    """Run one file in all ways, in a separate process."""
    process = os.fork()
    if not process:
        status = 1
        try:
            _run_here(given, asked, journal)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(process, 0)
    if status:
        code = os.waitstatus_to_exitcode(status)
        journal.problem(asked, f"the process that loads it ended with {code}")


def _run_here(given: argparse.Namespace, asked: str, journal: Journal) -> None:
    file, _, pattern = asked.partition("::")
    streams = sys.stdout, sys.stderr
    try:
        with open(given.log, "a") as log:
            sys.stdout = sys.stderr = log
            cases = load(given.folder.resolve(), file)
    except BaseException as error:
        journal.problem(asked, f"{type(error).__name__}: {error}"[:500])
        return
    finally:
        sys.stdout, sys.stderr = streams
    names = [
        name
        for name in cases
        if fnmatch(name, f"*{pattern}*") and not any(fnmatch(name, each) for each in given.skip)
    ]
    if not names:
        journal.problem(asked, "it has no tests of that name")
        return
    known = journal.read().get(asked, FileRun(asked)).ran
    shards = []
    for i in range(0, len(names), given.shard):
        for way in (PLAIN, *(WAYS[name] for name in given.ways), AGAIN):
            left = [n for n in names[i : i + given.shard] if n not in known.get(way.name, {})]
            shards += [(way, left)] if left else []
    gc.collect()
    gc.freeze()  # so that no collection in a fork goes through, and so copies, what was loaded
    forks = Forks(
        cases,
        lambda way, ran: journal.add(asked, way, ran),
        jobs=given.jobs,
        bound=given.bound,
        log=given.log,
    )
    forks.run(shards)


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; return 1 where something differs."""
    asked = arguments(given)
    asked.files = asked.files or list(FILES)
    with tempfile.TemporaryDirectory(prefix="conformance") as folder:
        journal = Journal(asked.json or Path(folder, "journal"), keep=asked.resume)
        for file in asked.files:
            run_file(asked, file, journal)
        runs = [run for file, run in journal.read().items() if file in asked.files]
    print("\n".join(lines(runs)))
    judged = [verdict for run in runs for verdict in verdicts(run)]
    return int(not judged or any(not each.is_good for each in judged))


if __name__ == "__main__":
    sys.exit(main())
