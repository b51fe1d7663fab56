"""Write ``compatibility.md`` from the results that ``nox -s matrix`` leaves in ``compatibility/``.

``--check`` writes nothing: it fails if the page is not what the results say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from changes import report_changes

HEADS = (
    "torch",
    "Python",
    "tests passed",
    "skipped",
    "failed",
    "programs run",
    "the same watched",
    "findings alike",
    "random programs",
    "that differ",
)

DOCS = Path(__file__).parent
RESULTS = DOCS / "compatibility"
PINNED = "2.13.0", "3.11"
"""The torch and the Python that all others are compared with: constraints.txt has this torch."""

REASONS = json.loads((RESULTS / "reasons.json").read_text(encoding="utf-8"))
"""Why programs differ and tests are skipped: by program, or by the reason of a skip."""

NOTHING = "Nothing, in what was run."

BEFORE = """**Torch 2.11 and before** do not tell whether a saved tensor was detached in place. With
hooks in, gradscope knows. Without them (`--no-hooks`, or a loop in which they are suspended) the
error of a backward call that meets such a tensor is not announced, and `check` and `snapshot` of a
graph that no watch has seen do not show it. While backward calls are compiled (compiled autograd),
that is so of every tensor that was modified in place.

**Torch 2.8 and before** do not show what a saved tensor holds, and gradscope reads it by unpacking
it with a stand-in. A program that calls `register_hooks` on a single saved tensor
(`node._raw_saved_self.register_hooks(…)`) gets torch's error that hooks are there already:
gradscope's. Such a program needs `--no-hooks`. A graph that was built before `gradscope.watch()`
began, under hooks of the program's (a checkpoint's, for one), is not looked into: reading it would
run them. Where a program itself reads a saved field of a node (`node._saved_self`) that holds a
leaf, torch drops the hooks on this leaf, under any saved-tensor hooks and so under gradscope's.

**Torch 2.7 and before** give no line to a call in a compiled function that comes after a graph
break. The line that called the function is named instead.
"""
"""What no probe can find out, as seen with 2.4, 2.6, 2.8 and 2.10."""

PAGE = """# Compatibility

The table has what was run, with **torch {first} to {last}** and **Python {python_first} to
{python_last}**. No newer version is refused: `gradscope doctor` says whether what gradscope relies
on holds on yours, and what does not hold turns off just the parts that need it.

`nox -s matrix` makes an environment for each row and runs three things in it: the whole suite, the
annotated programs of `tests/cases` and `tests/corpus` (each plain and watched, which must print and
end the same), and random programs against the engine (what is called certain is raised, what is
raised was called first). `docs/make_compatibility.py` makes this page from the results.

| {heads} |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
{rows}

"Findings alike" counts the programs for which every finding is the same as with torch {pinned} and
Python {pinned_python}: certainty, line, and the lines of its notes. A dash stands for what was
not run.

A row may be put together from several states of the project: the whole suite of one, the tests that
failed then run again on a later one, and programs of another.

## What a version lacks

{before}
{lacks}

## Accelerators

There, autograd's engine runs backward nodes in separate threads, one for each device. No GPU was
at hand for this table: `tests/device` builds a simulated accelerator (with g++, else its tests are
skipped), on which the engine does the same, and `python -m tests.device.running` compares what is
said of each annotated program there and on the CPU. Off the CPU torch chooses other operators
for some modules (recurrent cells, for one), so that graphs and figures differ and both are right.
`python -m tests.device.side_by_side` does the same with random programs: of 5,000 all findings are
equal, and two run otherwise on the device without a watch, too.
Nothing that gradscope does in a steady loop waits for the device.

## Differences

{differences}
"""


def main(arguments: list[str]) -> int:
    """Write the page or compare it; return the exit status."""
    made = page(results())
    if arguments == ["--check"]:
        return report_changes({DOCS / "compatibility.md": made})
    (DOCS / "compatibility.md").write_text(made, encoding="utf-8")
    return 0


def results() -> list[dict[str, Any]]:
    """Return the results of all environments, the oldest torch first."""
    files = (path for path in RESULTS.glob("*.json") if path.name != "reasons.json")
    return sorted((json.loads(path.read_text(encoding="utf-8")) for path in files), key=versions)


def versions(result: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the versions of torch and of Python, as they are ordered."""
    torch, python = (tuple(map(int, result[name].split("."))) for name in ("torch", "python"))
    return torch, python


def minor(result: dict[str, Any]) -> str:
    """Return Python's version without the last number."""
    return str(result["python"].rpartition(".")[0])


def page(found: list[dict[str, Any]]) -> str:
    """Return the page."""
    (pinned,) = (one for one in found if (one["torch"], minor(one)) == PINNED)
    pythons = sorted({minor(one) for one in found}, key=lambda version: int(version[2:]))
    return PAGE.format(
        first=".".join(found[0]["torch"].split(".")[:2]),
        last=".".join(found[-1]["torch"].split(".")[:2]),
        python_first=pythons[0],
        python_last=pythons[-1],
        heads=" | ".join(HEADS),
        pinned=PINNED[0],
        pinned_python=PINNED[1],
        rows="\n".join(row(one, pinned) for one in found),
        before=BEFORE,
        lacks="\n".join(lack(one, pinned) for one in found if lack(one, pinned)) or NOTHING,
        differences="\n".join(
            difference(one, pinned) for one in found if unlike(one, pinned) or failed(one)
        )
        or "None.",
    )


def row(one: dict[str, Any], pinned: dict[str, Any]) -> str:
    """Return the row of an environment; a dash stands for what was not run there."""
    cells = [one["torch"], one["python"], *["-"] * 8]
    if "suite" in one:
        suite = one["suite"]
        cells[2:5] = suite["passed"], sum(suite["skipped"].values()), len(suite["failed"])
    if "cases" in one:
        run = one["cases"]["run"]
        cells[5:8] = run, run - len(one["cases"]["differing"]), run - len(unlike(one, pinned))
    if "random" in one:
        cells[8:] = one["random"]["programs"], one["random"]["faults"]
    return f"| {' | '.join(f'{c:,}' if isinstance(c, int) else c for c in cells)} |"


def unlike(one: dict[str, Any], pinned: dict[str, Any]) -> dict[str, tuple[list[str], list[str]]]:
    """Return the findings that only the pinned torch and only this one has, by program."""
    found = {}
    for name, findings in one.get("cases", {"findings": {}})["findings"].items():
        others = pinned["cases"]["findings"].get(name, findings)
        if findings != others:
            found[name] = (
                [finding for finding in others if finding not in findings],
                [finding for finding in findings if finding not in others],
            )
    return found


def failed(one: dict[str, Any]) -> list[str]:
    """Return the tests that fail in an environment."""
    names: list[str] = one.get("suite", {"failed": []})["failed"]
    return names


def title(one: dict[str, Any]) -> str:
    """Return what an environment is called."""
    return f"torch {one['torch']}, Python {one['python']}"


def lack(one: dict[str, Any], pinned: dict[str, Any]) -> str:
    """Return what does not hold in an environment, and the tests that are skipped only there."""
    rows = [f"- it is not so that {fact}" for fact in one["facts_that_fail"]]
    for reason, count in sorted(one.get("suite", {"skipped": {}})["skipped"].items()):
        if reason not in pinned.get("suite", {"skipped": {}})["skipped"]:
            tests = "a test" if count == 1 else f"{count} tests"
            rows.append(f"- {REASONS.get(reason, reason)} ({tests} skipped)")
    return "\n".join([f"**{title(one)}**", "", *rows, ""]) if rows else ""


def difference(one: dict[str, Any], pinned: dict[str, Any]) -> str:
    """Return what an environment finds otherwise, and the tests that fail, with the reasons."""
    rows = [f"**{title(one)}**", ""]
    for name, (without, more) in unlike(one, pinned).items():
        said = [f"not `{finding}`" for finding in without] + [f"`{finding}`" for finding in more]
        rows.append(f"- `{name}`: {', '.join(said)}. {REASONS[name]}")
    rows += [f"- A test fails, `{name}`. {REASONS[name]}" for name in failed(one)]
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
