"""gradscope imports nothing while a program runs: its profilers, finders and paths see the program's imports alone."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from gradscope.rules import ALL_RULES
from tests import examples
from tests.command import ran
from tests.needs import DONATES_BUFFERS, has

PROGRAM = Path(__file__).parent / "programs" / "imports.py"
RULES = [rule for rule in ALL_RULES if rule.code != "GS104" or has(DONATES_BUFFERS)]
STALE = """
import torch
x = torch.ones(3, requires_grad=True)
y = x.exp()
y.add_(1), print(f"{'é'}\\n")
y.sum().backward()
"""
ENCODED = {"utf-8-sig": STALE, "latin-1": f"# -*- coding: latin-1 -*-\n{STALE}"}
"""Sources whose codecs Python imports when it reads them in Python."""


class Seen(NamedTuple):
    """What was looked for to be imported by whom, as torch was and later, and the findings of watches."""

    imports: dict[str, list[tuple[str, str]]]
    codes: list[str]

    def later(self, plain: set[str]) -> list[tuple[str, str]]:
        return [(name, by) for name, by in self.imports["later"] if name not in plain]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A program with a finding of each rule, and one for each encoding."""
    folder = tmp_path_factory.mktemp("programs")
    for rule in RULES:
        (folder / f"{rule.code.lower()}.py").write_text(examples.bad(rule), "utf-8")
    for encoding, text in ENCODED.items():
        (folder / f"{encoding}.py").write_text(text, encoding)
    return [str(path) for path in sorted(folder.iterdir())]


def seen(written: Path, programs: list[str], *before: str, kind: str = "run") -> Seen:
    done = ran(
        sys.executable,
        *before,
        PROGRAM,
        kind,
        written,
        *programs,
        FORCE_COLOR="1",
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    return Seen(*json.loads(written.read_text()))


@pytest.fixture(scope="module")
def plain(programs: list[str], tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What the programs import themselves."""
    found = seen(tmp_path_factory.mktemp("plain") / "imports.json", programs)
    return {name for imports in found.imports.values() for name, _ in imports}


@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--no-hooks",)], ids=str)
def test_under_run_only_gradscope_itself_is_imported_with_torch_and_nothing_later(
    options: tuple[str, ...], programs: list[str], plain: set[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.txt"
    command = ("-m", "gradscope", "run", "--fail-on", "never", "--output", str(report), *options)
    found = seen(tmp_path / "imports.json", programs, *command)
    with_torch = {name for name, _ in found.imports["with torch"]} - plain
    assert {name.partition(".")[0] for name in with_torch} == {"gradscope"}
    assert found.later(plain) == []
    assert {"GS101", "GS102", "GS201"} <= set(re.findall(r"GS\d+", report.read_text("utf-8")))


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("watch", {r.code for r in RULES} - {"GS401", "GS604"}),  # their errors are caught here
        ("watch without hooks", {"GS101", "GS201", "GS302"}),
    ],
    ids=["hooks", "no-hooks"],
)
def test_a_watch_in_a_program_imports_nothing_nor_does_what_prints(
    kind: str, codes: set[str], programs: list[str], plain: set[str], tmp_path: Path
) -> None:
    found = seen(tmp_path / "imports.json", programs, kind=kind)
    assert found.later(plain) == []
    assert codes <= set(found.codes)
