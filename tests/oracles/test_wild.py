"""The oracles *wild* and *mutants* on the examples and on the scripts beside this file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT, ran_well
from tests.oracles import growth, mutants
from tests.oracles.comparing import differing
from tests.oracles.mutating import mutants as mutants_of

SCRIPTS = Path(__file__).parent / "scripts"
PRELOAD = ("--preload", "torch._dynamo,gradscope.cli,gradscope.api.watch")


def results_of(command: str, out: Path, *arguments: object) -> list[dict[str, Any]]:
    given: list[str | Path] = [*map(str, arguments), *PRELOAD, "--out", out]
    done = ran_well(sys.executable, "-m", f"tests.oracles.{command}", *given, cwd=ROOT)
    kept = (out / f"{command}.jsonl").read_text(encoding="utf-8").splitlines()
    assert f"run: {len(kept)}\n" in done.stdout
    return [json.loads(line) for line in kept]


@pytest.mark.full
def test_scripts_in_many_styles_run_the_same_and_without_a_warning(tmp_path: Path) -> None:
    results = results_of("wild", tmp_path, SCRIPTS)
    assert len(results) == len(list(SCRIPTS.glob("*.py"))) >= 16
    for result in results:
        assert (result["verdict"], result["status"], result["failures"]) == ("same", 0, [])
        assert result["calls"] >= 14
        assert {one["severity"] for one in result["findings"]} <= {"advice"}, result


@pytest.mark.full
def test_examples_run_the_same_and_only_the_hazards_are_found(tmp_path: Path) -> None:
    results = results_of("wild", tmp_path, ROOT / "examples", "--args", "--steps 6")
    assert len(results) == 10
    for result in results:
        assert (result["verdict"], result["failures"]) == ("same", [])
        is_hazard = result["script"].endswith("_hazard.py")
        assert bool(result["status"]) == is_hazard
        assert any(one["certainty"] == "certain" for one in result["findings"]) == is_hazard


@pytest.mark.full
def test_mutants_are_labelled_by_torch_and_every_error_is_announced(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    names = ("char_rnn", "gan_generator_first")
    listed.write_text("".join(f"{SCRIPTS / name}.py\n" for name in names), encoding="utf-8")
    results = results_of("mutants", tmp_path, listed, "--most", 4)
    labels = {result["label"] for result in results}
    assert {mutants.SECOND_TIME, mutants.RUNS} <= labels
    for result in results:
        assert not result["failures"]
        assert not result["false"]
        assert result["same_end"]
        if result["label"] in mutants.CERTAIN:
            assert result["announced"], result
            assert result["line_right"], result


def test_a_mutant_has_one_change_in_its_place() -> None:
    text = (
        "ä = net(x.detach()).clone()  # detached\n"
        "with torch.no_grad():\n    y = ä.data\n"
        "opt.zero_grad()\n"
        "loss(y).backward(retain_graph=True); total += l.item()\n"
        "l.backward()\n"
    )
    found = {(one.kind, one.line): one.text for one in mutants_of(text)}
    assert found == {
        ("detach", 1): text.replace("x.detach()", "x"),
        ("clone", 1): text.replace(".clone()", ""),
        ("no_grad", 2): text.replace("no_grad", "enable_grad"),
        ("data", 3): text.replace("ä.data", "ä"),
        ("zero_grad", 4): text.replace("opt.zero_grad()", "pass"),
        ("retain_graph", 5): text.replace("=True", "=False"),
        ("item", 5): text.replace(".item()", ""),
        ("backward twice", 6): text.replace("l.backward()", "l.backward(); l.backward()"),
    }


def test_what_differs_between_plain_runs_is_no_difference() -> None:
    assert differing("a 1 in 0.25s\n", "a 1 in 0.5s\n", "a 1 in 7s\n") == ""
    assert differing("a 1 in 0.25s\n", "a 1 in 0.5s\n", "a 2 in 7s\n")
    assert differing("r 1\nr 2\n", "r 1\nr 3\n", "r 7\nr 8\n") == ""
    assert differing("a\n", "a\nb\n", "c\n") is None


def test_growing_is_more_in_every_part_of_a_run() -> None:
    assert growth.grows(tuple(range(12)))
    assert not growth.grows((1, 5, 9) * 4)
    assert not growth.grows((0, 0, 0, 9, 9, 9, 9, 9, 9))
