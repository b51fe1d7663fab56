"""
Runs a program of ``programs/`` as it is and with its hazard, each plain and watched, and judges what came of it.

A program is healthy as it stands. Its comments say what is to come:

- ``# needs: lightning``: the packages that it imports; ``# processes: 2``: how many run it at once;
- ``# hazard: <statement>`` at the end of a line: the statement takes the place of the line's code, and
  the program fails;
- ``# finds: GS102 GS101 `self.hidden```: what is then found, in this order, and what the findings name;
- ``# lacks: …``: what is wanted of gradscope here and is not there yet;
- ``# head`` at the end of a line: the findings point at this line; ``# head: GS102``: this one does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 300
SERIOUS = ("error", "warning")
EARLY = ("GS102", "GS103", "GS202")
RAISED = {"GS101": "a second time", "GS201": "inplace operation", "GS104": "donated buffers"}
_HAZARD = re.compile(r"^(\s*).*?  # hazard: (.*?)(  # head.*)?$")
_HEAD = re.compile(r"  # head(?:: (.*))?$")


@dataclass(frozen=True)
class Program:
    """A program and what its comments say."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def _said(self, word: str) -> str:
        found = re.search(rf"^# {word}:(.*)$", self.text, re.MULTILINE)
        return found[1].strip() if found else ""

    @property
    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    @property
    def needs(self) -> list[str]:
        return self._said("needs").split()

    @property
    def processes(self) -> int:
        return int(self._said("processes") or 1)

    @property
    def finds(self) -> list[str]:
        return re.findall(r"GS\d+", self._said("finds"))

    @property
    def holder(self) -> str:
        found = re.search("`.*`", self._said("finds"))
        return found[0] if found else ""

    @property
    def lacks(self) -> str:
        """What is wanted of gradscope here and is not there yet."""
        return self._said("lacks")

    def faults(self, verdict: Verdict) -> list[str]:
        """What came out otherwise than the comments say."""
        asked = {
            "the hazard is none": verdict.raised,
            "it is not as without gradscope": verdict.unchanged,
            "something is found in the healthy program": verdict.silent,
            "a part of gradscope failed": not verdict.own_failures,
            "the hazard is not found": verdict.certain,
            "it is not early, or is so by now": verdict.early
            == any(c in EARLY for c in self.finds),
            f"it points at {verdict.heads}": verdict.heads == self.heads(),
            "it does not name the variable": verdict.named,
        }
        return [fault for fault, is_right in asked.items() if not is_right]

    @property
    def hazard(self) -> str:
        """The program with its hazard; the lines stay where they are."""
        return "".join(_HAZARD.sub(r"\1\2", line) + "\n" for line in self.text.splitlines())

    def heads(self) -> dict[str, int]:
        """The line at which each finding points."""
        heads = {}
        for number, line in enumerate(self.text.splitlines(), 1):
            if found := _HEAD.search(line):
                for code in found[1].split() if found[1] else self.finds:
                    heads[code] = number
        return heads


def programs() -> list[Program]:
    return [Program(path) for path in sorted(PROGRAMS.glob("*.py"))]


@dataclass(frozen=True)
class Run:
    """How one process ended: its status, what it wrote, what was found."""

    status: int
    stdout: str
    stderr: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def serious(self) -> list[dict[str, Any]]:
        return [each for each in self.findings if each["severity"] in SERIOUS]


def run(script: Path, processes: int, *, watched: bool) -> list[Run]:
    """Run a script in as many processes, which find each other as those of torchrun do."""
    started = []
    port = free_port()
    for rank in range(processes):
        report = script.with_suffix(f".{rank}.json")
        gradscope = ("-m", "gradscope", "run", "--format", "json", "--output", str(report))
        command = [sys.executable, *(gradscope if watched else ()), script.name]
        process = subprocess.Popen(
            command,
            cwd=script.parent,
            env=environment(rank, processes, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        told = report if processes == 1 else report.with_stem(f"{report.stem}-{rank}")
        started.append((process, told))
    return [_ended(process, report) for process, report in started]


def _ended(process: subprocess.Popen[str], report: Path) -> Run:
    try:
        stdout, stderr = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
    if not report.exists():
        return Run(process.returncode, stdout, stderr)
    told = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    notes = told["summary"]["notes"]
    return Run(process.returncode, stdout, stderr, told["findings"], notes)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def environment(rank: int, processes: int, port: int) -> dict[str, str]:
    """Return the environment of a process, offline, which finds the others as those of torchrun do."""
    network = {} if processes == 1 else {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **offline, **network}


@dataclass(frozen=True)
class Verdict:
    """What came of a program; ``heads`` are the codes found and the lines they point at."""

    silent: bool
    unchanged: bool
    raised: bool
    certain: bool
    early: bool
    named: bool
    heads: dict[str, int]
    own_failures: list[str]
    text: str
    """All that was said, to be shown where it is not what it should be."""


def judge(program: Program, folder: Path) -> Verdict:
    """Run a program four times, and judge it by its first process."""
    healthy, hazard = folder / "healthy" / program.path.name, folder / "hazard" / program.path.name
    for script, text in ((healthy, program.text), (hazard, program.hazard)):
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text, encoding="utf-8")
    plain, watched = (run(healthy, program.processes, watched=w) for w in (False, True))
    failing, caught = (run(hazard, program.processes, watched=w) for w in (False, True))
    same = [
        (a.status, a.stdout) == (b.status, b.stdout) for a, b in zip(plain, watched, strict=True)
    ]
    failed_alike = [
        (a.status, a.stdout) == (b.status, b.stdout) for a, b in zip(failing, caught, strict=True)
    ]
    first = caught[0]
    codes = [each["code"] for each in first.serious]
    error = RAISED.get(program.finds[-1], "?")
    return Verdict(
        silent=not any(each.serious for each in watched),
        unchanged=all(same) and all(failed_alike) and not any(each.status for each in plain),
        raised=all(each.status and error in each.stderr for each in failing),
        certain=any(e["code"] in RAISED and e["certainty"] == "certain" for e in first.serious),
        early=any(code in EARLY for code in codes),
        named=any(program.holder in str(each["label"]) for each in first.serious),
        heads={each["code"]: _line(each, hazard) for each in reversed(first.serious)},
        own_failures=[note for each in (*watched, *caught) for note in each.notes if "failed" in note],
        text="\n".join(_shown(each) for each in (*plain, *watched, *failing, *caught)),
    )  # fmt: skip


def _line(finding: dict[str, Any], script: Path) -> int:
    """The line of the script that a finding points at; 0 where it is no line of the script."""
    place = finding["location"]
    return int(place["line"]) if place and Path(place["file"]).name == script.name else 0


def _shown(each: Run) -> str:
    place = [
        f"{f['code']} {f['location'] and f['location']['line']}: {f['label']}"
        for f in each.findings
    ]
    found = "\n".join((f"--- status {each.status}", *place, *each.notes))
    return f"{found}\n{each.stdout[-2000:]}\n{each.stderr[-3000:]}"
