"""Runs the suite, the annotated programs and random ones with the torch and the Python at hand.

``python -m tests.oracles.compatibility --json FILE`` writes what came of it; with ``--only`` it does
one of the three and leaves what the file says of the others, and ``--report`` takes the tests from
reports that ``pytest --junitxml`` wrote. Its exit status is 1 if anything failed.
``docs/make_compatibility.py`` makes ``docs/compatibility.md`` from such files.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests import examples
from tests.oracles import comparing, forks, wild
from tests.oracles.forks import Task

ROOT = Path(__file__).parents[2]
PROGRAMS = (ROOT / "tests" / "cases", ROOT / "tests" / "corpus")
PARTS = ("suite", "cases", "random")
_FAULTS = ("missed", "wrong", "changed", "failures")
_HELD = re.compile(r"(\d[\d,]*) (\w+)")


def main(arguments: list[str]) -> int:
    """Do what the command line asks for, and write it down after each part."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part, not all three")
    parser.add_argument("--cases", type=Path, action="append", help="a folder of programs")
    parser.add_argument("--programs", type=int, default=2000, help="how many random programs")
    parser.add_argument("--workers", type=int, default=2, help="processes for the suite")
    parser.add_argument("--report", type=Path, nargs="+", help="the suite ran: its reports")
    options = parser.parse_args(arguments)
    result = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
    for part in options.only or PARTS:
        if part == "suite":
            result["suite"] = (
                outcomes(*options.report) if options.report else suite(options.workers)
            )
        elif part == "cases":
            result["cases"] = cases(options.cases or PROGRAMS)
        else:
            result["random"] = random_programs(options.programs)
        text = json.dumps(surroundings() | result | surroundings(), indent=1, sort_keys=True)
        options.json.write_text(text + "\n", encoding="utf-8")
    return int(any(map(bool, faults(result))))


def surroundings() -> dict[str, Any]:
    """Return what the parts ran on."""
    import torch

    from gradscope.collect import facts

    described = ""
    with suppress(OSError):  # no git
        command = ("git", "describe", "--always", "--dirty")
        described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return {
        "torch": torch.__version__.partition("+")[0],
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "revision": described.strip(),
        "facts_that_fail": [fact.statement for fact in facts.failing()],
    }


def suite(workers: int) -> dict[str, Any]:
    """Run all tests but the long ones; return how they ended."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "--full", "-p", "no:cacheprovider"]
        if workers > 1:
            command += ["-n", str(workers), "--dist", "worksteal"]
        subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, check=False)
        return outcomes(report)


def outcomes(*reports: Path) -> dict[str, Any]:
    """Return how the tests ended, from reports of pytest; what a later one has of a test counts."""
    ended: dict[str, tuple[str, str]] = {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            ended[f"{case.get('classname', '')}::{case.get('name', '')}"] = _end(case)
    counts: dict[str, Counter[str]] = {"skipped": Counter(), "xfailed": Counter()}
    for how, why in ended.values():
        counts.setdefault(how, Counter())[why] += 1
    return {
        "passed": sum(how == "passed" for how, _ in ended.values()),
        "failed": [name for name, (how, _) in ended.items() if how == "failed"],
        "skipped": counts["skipped"],
        "xfailed": counts["xfailed"],
    }


def _end(case: ElementTree.Element) -> tuple[str, str]:
    """Return how a test ended, and why it was skipped or expected to fail."""
    kinds = {child.tag: child for child in case}
    if "failure" in kinds or "error" in kinds:
        return "failed", ""
    if "skipped" not in kinds:
        return "passed", ""
    is_expected = kinds["skipped"].get("type") == "pytest.xfail"
    return "xfailed" if is_expected else "skipped", kinds["skipped"].get("message", "")


def cases(folders: Iterable[Path]) -> dict[str, Any]:
    """Run each program below the folders plain and watched; return what was found and differs."""
    with tempfile.TemporaryDirectory() as empty:
        return results_of(scripts(folders, Path(empty, "mended")))


def scripts(folders: Iterable[Path], empty: Path) -> Iterator[Path]:
    """Yield each program below the folders, and what its comments mend it to, which is written to another folder."""
    empty.mkdir()
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        yield path
        if text := examples.mended(path.read_text("utf-8")):
            (empty / path.name).write_text(text, "utf-8")
            yield empty / path.name


def results_of(programs: Iterable[Path]) -> dict[str, Any]:
    """Run each program plain and watched; return what was found and differs."""
    forks.preload("torch._dynamo")
    found: dict[str, list[str]] = {}
    differing: dict[str, str] = {}
    for script in programs:
        result = wild.judge(Task(script.absolute()))
        print(wild.line(result), flush=True)
        name = f"{script.parent.name}/{script.name}"
        found[name] = sorted(set(map(in_short, result["findings"])))
        problems = [*result["failures"], *not_expected(script, result["findings"])]
        if result["verdict"] != comparing.SAME:
            problems.append(f"{result['verdict']}: {result['how']}")
        if problems:
            differing[name] = "; ".join(problems)
    return {"run": len(found), "differing": differing, "findings": found}


def in_short(finding: dict[str, Any]) -> str:
    """Return a finding's certainty, code, line and the lines of its notes."""
    notes = " ".join(sorted(re.sub(r" \S*:", " ", note) for note in finding["notes"]))
    line = finding["at"].rpartition(":")[2]
    return f"{finding['certainty']} {finding['code']} {line}; {notes}".rstrip("; ")


def not_expected(script: Path, findings: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield what the first line of a case expects otherwise; other programs have no such line."""
    first = script.read_text("utf-8").partition("\n")[0]
    if not first.startswith("# expect:"):
        return
    expected = json.loads(first.removeprefix("# expect:"))
    code = {"double_backward": "GS101", "inplace": "GS201", "donated_buffer": "GS104"}.get(
        expected["error"]
    )
    errors = [one for one in findings if one["severity"] == "error"]
    if code is None:
        yield from (f"unexpected {one['code']} at {one['at']}" for one in errors)
        return
    lines = {one["at"].rpartition(":")[2] for one in errors if one["code"] == code}
    if str(expected["raise_line"]) not in lines:
        yield f"{code} at {sorted(lines) or 'no line'}, not at {expected['raise_line']}"


def random_programs(count: int) -> dict[str, Any]:
    """Run random programs against the engine; return the closing line and the number of faults."""
    command = [sys.executable, "-m", "tests.oracles.soak", "--programs", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="", flush=True)
    line = (done.stdout.splitlines() or [done.stderr[-300:]])[-1]
    figures = {name: int(figure.replace(",", "")) for figure, name in _HELD.findall(line)}
    return {
        "programs": figures.get("programs", 0),
        "faults": sum(figures[name] for name in _FAULTS) if set(_FAULTS) <= figures.keys() else 1,
        "closing_line": line,
    }


def faults(result: dict[str, Any]) -> list[Any]:
    """Return what is not as it should be; all are empty or 0 on a torch that is supported."""
    return [
        result.get("suite", {}).get("failed"),
        result.get("cases", {}).get("differing"),
        result.get("random", {}).get("faults"),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
