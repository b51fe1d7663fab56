"""Try each fault of the tests many times; write the summary in ``reliability.md``.

``python docs/make_reliability.py`` runs the tests, which takes some minutes, keeps their records in
``tests/faults/records.json`` and writes the page. ``--check`` runs nothing: it fails if the page is
not what the records say, or if the records are not of the faults that the tests declare. The table
of torch's operators is made from what ``nox -s operators`` has left.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

from changes import report_changes

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit")]

TESTS = ("tests/faults", "tests/everywhere")

PAGE = """# Reliability

What goes wrong around a training run, how often that was tried, and what gradscope promises:

| what goes wrong | faults | tries | what holds in every try |
|---|---:|---:|---|
{rows}

Every try kept the promise. [Every fault](../tests/faults/records.json) has its promise and outcome:
`docs/make_reliability.py` runs the tests in `tests/faults` and `tests/everywhere` and writes them
down. Each change to gradscope tries each fault a few times more.

## torch's own operators

torch ships samples of its operators, modules and optimizers. `nox -s operators` runs them plain and
watched, with hooks and without: as functions, methods, in place, on lists of tensors, complex and
sparse. Then it asks what `check`, `uses` and the findings say before a second backward call, and
before one on a graph of which an input or a result was written or detached in place, and lets the
engine answer. Results, gradients and gradients of gradients are compared bit by bit.

| torch's samples of | entries | with a graph | programs | answers compared | out of sight | wrong |
|---|---:|---:|---:|---:|---:|---:|
{operators}

These are all 879 entries that torch 2.13 has. Out of sight is what a node saved as a list, or in
C++ that shows it to nobody (`torch._foreach_mul`), without hooks. `uses` is right to say of a
tensor not to change it if the engine refuses the graph after that, or computes other gradients
(`kron`, whose inputs it saves as memory with a version counter of its own).
[Every entry](../tests/oracles/operators.jsonl) has its answers.

Other tests of the same kind:

- Random programs: `python -m tests.oracles.soak --programs 20000` runs them plain and watched and
  compares everything that they compute, raise and leave behind.
- torch's own autograd tests, and scripts in a folder, plain and watched: `nox -s conformance`, `nox
  -s wild` ([contributing](../CONTRIBUTING.md)).
- [Versions](compatibility.md) of torch and Python, and [other people's frameworks](frameworks.md).
- [How it works](how-it-works.md) says what gradscope relies on, and its
  [limits](how-it-works.md#limits).
"""

PROMISES = {
    "The process": "Killed, interrupted or without a disk, the program ends as it would under "
    "`python`. The recording stays readable, and lacks at most the calls of the last 0.2 seconds.",
    "The program": "What it prints and raises, and its exit status, stay the same, whatever it "
    "does to signals, threads, forks, hooks and the end of the interpreter.",
    "The watch": "Dropped, interrupted or left in another thread, it leaves nothing behind, and "
    "gradients are the same bit for bit.",
    "What gradscope relies on, and gradscope itself": "Each fact and function fails once: output "
    "and exit status stay the same, and one line says what is lost.",
    "The recording": "Cut, damaged, foreign or hostile, commands show what is sound and say what "
    "is not, or refuse it in one line.",
    "What is shown": "Every text of a program is shown as text: nothing runs.",
}
"""What holds for all faults of a group."""


def main(arguments: list[str]) -> int:
    """Write the records and the page, or compare them; return the exit status."""
    from tests.faults.tries import RECORDS, WRITE

    if arguments == ["--check"]:
        records = json.loads(RECORDS.read_text(encoding="utf-8"))
        return report_changes({DOCS / "reliability.md": page(records)}) or report_others(records)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long or not long", *TESTS]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | {WRITE: str(RECORDS)}, check=False)
    if ran.returncode:
        return ran.returncode
    records = json.loads(RECORDS.read_text(encoding="utf-8"))
    known = declared()
    records = [one for one in records if (one["group"], one["fault"], one["promise"]) in known]
    RECORDS.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (DOCS / "reliability.md").write_text(page(records), encoding="utf-8")
    return 0


NAMES = {
    "operator": "operators",
    "foreach": "operations on lists",
    "module": "modules",
    "optimizer": "optimizers",
}


def operators() -> str:
    """Return what came of torch's samples: a row for each kind of them."""
    from tests.oracles.operators import kinds, read

    rows = []
    for kind, found in kinds(read(ROOT / "tests" / "oracles" / "operators.jsonl").values()):
        programs = sum(sum(one["variants"].values()) for one in found)
        sums = [sum(one[key] for one in found) for key in ("asked", "unseen")]
        asked, wrong = (sum(bool(one[key]) for one in found) for key in ("asked", "faults"))
        figures = (len(found), asked, programs, *sums, wrong)
        rows.append(f"| {NAMES[kind]} | " + " | ".join(f"{figure:,}" for figure in figures) + " |")
    return "\n".join(rows)


def page(records: list[dict[str, Any]]) -> str:
    """Return the page: a row for each group of faults, and one for each kind of torch's samples."""
    rows = []
    for group, found in groupby(records, lambda record: record["group"]):
        tries = [record["tried"] for record in found]
        rows.append(f"| {group} | {len(tries):,} | {sum(tries):,} | {PROMISES[group]} |")
    return PAGE.format(rows="\n".join(rows), operators=operators())


def declared() -> set[tuple[str, str, str]]:
    """Return group, name and promise of every fault that the tests declare."""
    from tests.faults.tries import faults

    for file in sorted(file for folder in TESTS for file in (ROOT / folder).glob("test_*.py")):
        importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    return {(one.group, one.what, one.promise) for one in faults.values()}


def report_others(records: list[dict[str, Any]]) -> int:
    """Print the faults that only the records or only the tests have; return 1 if there are any."""
    recorded = {(record["group"], record["fault"], record["promise"]) for record in records}
    known = declared()
    for _, what, _ in sorted(known ^ recorded):
        print(f"not in both, the tests and their records: {what}")  # noqa: T201
    return int(known != recorded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
