"""All that shows a run's fixes shows the same: its report, its page, its recording and ``gradscope fix``."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT
from tests.integration.test_rehearsal_run import rehearsed

pytestmark = pytest.mark.full

NUMBERS = ("007", "008", "012", "022", "028", "044", "060", "063")
PROGRAMS = sorted((Path(__file__).parent / "programs" / "one_voice").glob("*.py"))
BORN = ("lora_checkpoint", "advantage_actor_critic")
PROGRAMS += [ROOT / f"tests/cases/births/{name}.py" for name in BORN]
PROGRAMS += [path for number in NUMBERS for path in (ROOT / "tests/cases").glob(f"{number}_*.py")]


def fixes(findings: list[dict[str, Any]]) -> list[tuple[str, list[tuple[str, ...]], str]]:
    """The grave findings of a report in JSON: code and words, and what can be done in its order."""
    return [
        (
            repr((each["code"], each["label"], [note["message"] for note in each["related"]])),
            [told(fix) for fix in (each["fix"], *each["alternatives"]) if fix],
            each["untried"],
        )
        for each in findings
        if each["severity"] != "advice"
    ]


def told(fix: dict[str, Any]) -> tuple[str, ...]:
    edits = ((edit["file"], edit["line"], edit["replacement"]) for edit in fix["edits"])
    return fix["kind"], fix["message"], fix["proof"], repr([*edits])


def in_page(page: Path) -> list[dict[str, Any]]:
    """The findings in the data of a page."""
    blocks = re.findall(r'<script type="text/plain" id="[^"]*">([^<]*)</script>', page.read_text())
    whole = (json.loads(zlib.decompress(base64.b64decode(block))) for block in blocks)
    return next(each["findings"] for each in whole if "findings" in each)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_all_show_the_same_first_fix(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "train.py")
    files = ("--save", "run.gscope", "--html", "run.html", "--format=json", "--output=run.json")
    rehearsed("run", *files, "train.py", cwd=tmp_path)
    ran = fixes(json.loads((tmp_path / "run.json").read_text())["findings"])
    assert ran

    def shown(*args: str) -> list[tuple[str, list[tuple[str, ...]], str]]:
        return fixes(json.loads(rehearsed(*args, cwd=tmp_path).stdout)["findings"])

    assert shown("report", "run.gscope", "--format=json") == ran
    assert shown("fix", "run.gscope", "--format=json") == ran
    assert fixes(in_page(tmp_path / "run.html")) == ran
    again = shown("fix", "train.py", "--format=json")
    assert [(code, first[:1]) for code, first, _ in again] == [
        (code, first[:1]) for code, first, _ in ran
    ]
    for _, (first, *_), untried in ran:
        assert (first[2] == "held") == (untried == "")
    text = rehearsed("fix", "run.gscope", cwd=tmp_path).stdout
    for _, (first, *_), _ in ran:
        assert first[1].split()[0] in text
