"""
Runs every program in its framework and prints the table of ``docs/frameworks.md``: ``python -m tests.frameworks.table``.

``--write`` writes the page. With names of programs, only their rows are made again. The status is 1 if
anything is not as the program's comments say.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.frameworks.trial import Program, Verdict, judge, programs

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
DISTRIBUTIONS = {"ignite": "pytorch-ignite"}
HEADER = """\
# In other people's frameworks

A program for each framework is run four times: as it is, with and without gradscope, and with a
mistake in the user's code, with and without gradscope. `tests/frameworks/programs/` has the
programs; a comment at the end of a line shows the mistake. `nox -s frameworks -- --write` installs
the frameworks into a separate environment and makes this page.

- **healthy**: nothing at or above a warning is found, and both runs of each pair print the same.
- **found**: torch raises, and gradscope announced it as certain before.
- **early**: it was predicted at least one backward call before.
- **line**: the findings point at the user's own line that the comments name.
- **not met**: what is wanted and not there yet.

| program | framework | healthy | found | early | line | not met |
|---|---|---|---|---|---|---|
"""


def versions(program: Program) -> str:
    """The first package that the program needs, with its version; else torch."""
    name = (program.needs or ["torch"])[0]
    try:
        found = version(DISTRIBUTIONS.get(name, name.replace("_", "-")))
    except PackageNotFoundError:
        found = "?"
    return f"{name} {found.partition('+')[0]}"


def row(program: Program, verdict: Verdict) -> str:
    is_line = verdict.heads == program.heads() and verdict.named
    answers = (
        verdict.silent and verdict.unchanged and not verdict.own_failures,
        verdict.raised and verdict.certain,
        verdict.early,
        is_line,
    )
    link = f"[{program.name}](../tests/frameworks/programs/{program.path.name})"
    cells = (link, versions(program), *("yes" if a else "no" for a in answers), program.lacks)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def known_rows() -> dict[str, str]:
    """The rows of the page as it is, by program."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    return {line[3:].partition("]")[0]: line for line in lines if line.startswith("| [")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; all if none is named")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    rows, wrong = known_rows(), []
    for program in programs():
        if options.names and program.name not in options.names:
            continue
        if program.missing:
            print(f"{program.name}: not installed: {', '.join(program.missing)}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            verdict = judge(program, Path(folder))
        rows[program.name] = row(program, verdict)
        print(rows[program.name], flush=True)
        if faults := program.faults(verdict):
            wrong.append(program.name)
            print(f"{program.name}: {', '.join(faults)}\n{verdict.text}", file=sys.stderr)
        if options.write:
            known = [rows[each.name] for each in programs() if each.name in rows]
            PAGE.write_text(HEADER + "\n".join(known) + "\n", encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
