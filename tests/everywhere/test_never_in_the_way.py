"""Whatever breaks in gradscope or is missing in torch, the program prints and ends as without a watch."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

from gradscope.collect.facts import FACTS, Fact, Part
from tests import command
from tests.everywhere import breaking
from tests.faults.tries import BROKEN, Tries, declare, fault, held
from tests.zygote import python

PROGRAM = str(Path(__file__).parents[1] / "integration" / "programs" / "every_boundary.py")
BOUNDARIES = {
    "gradscope.collect.backward:Backward.run",
    "gradscope.collect.backward:Backward._prepare",
    "gradscope.collect.backward:Backward._conclude",
    "gradscope.collect.saved_bytes:Ledger.let_go",
    "gradscope.collect.saving:Saving.pack",
    "gradscope.collect.saving:Saving.unpack",
    "gradscope.detect.line_watch:LineWatch._start",
    "gradscope.detect.line_watch:LineWatch._event",
}
"""What torch or Python calls itself: there is nothing of gradscope around it, the guard is inside."""

MISSING = [
    "torch._C:_current_autograd_node",
    "torch._C:_len_torch_function_stack",
    "torch._C:_len_torch_dispatch_stack",
    "torch._C:_storage_Use_Count",
    "torch._C._autograd:_get_sequence_nr",
    "torch._C._autograd:_saved_tensors_hooks_is_enabled",
    "torch.autograd:_engine_run_backward",
    "torch.optim.optimizer:register_optimizer_step_pre_hook",
    "torch.utils._python_dispatch:_push_mode",
]

SAME = "output and exit status stay equal"
WITHOUT_FACTS = {
    fact: declare(
        BROKEN, f"it is not so that {fact.statement}", f"{SAME}; one line says what is lost"
    )
    for fact in FACTS
}
WITHOUT_NAMES = {
    name: declare(BROKEN, f"`{name.replace(':', '.')}` is not there", f"{SAME}; a line says so")
    for name in MISSING
}


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command.ran(python(), breaking.__file__, *arguments)


@pytest.fixture(scope="module")
def plain() -> subprocess.CompletedProcess[str]:
    return ran("raise", "nothing", "plain", PROGRAM)


def watched(how: str, target: str, tmp_path: Path) -> tuple[Any, list[str]]:
    """Run the program watched, with something broken; return what it did, and the notes."""
    report = tmp_path / "report.json"
    options = ("--fail-on", "never", "--format", "json", "--output", str(report))
    done = ran(how, target, "run", PROGRAM, *options)
    try:
        notes = json.loads(report.read_text())["summary"]["notes"]
    except (OSError, ValueError, KeyError, TypeError):
        notes = []
    return done, [*notes, *done.stderr.splitlines()]


@pytest.mark.full(but=4)
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.statement)
def test_without_a_fact_the_program_runs_and_one_line_says_what_is_lost(
    fact: Fact, plain: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    done, notes = watched("fact", fact.statement, tmp_path)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    said = [note for note in notes if fact.statement in note]
    assert len(said) == 1, notes
    assert all(part.value in said[0] for part in fact.parts)
    assert not any("please report" in note for note in notes), notes
    held(WITHOUT_FACTS[fact], said[0].rpartition('": ')[2].split(":")[0])


@pytest.mark.full(but=2)
@pytest.mark.parametrize("name", MISSING)
def test_without_a_private_name_of_torch_the_program_runs(name: str, tmp_path: Path) -> None:
    alone = ran("missing", name, "plain", PROGRAM)
    done, notes = watched("missing", name, tmp_path)
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    assert notes, "nothing says what is lost"
    held(WITHOUT_NAMES[name], "the same, and said")


def test_without_the_function_that_shows_default_hooks_nothing_is_lost(tmp_path: Path) -> None:
    name = "torch._C._autograd:_top_saved_tensors_default_hooks"  # not there before torch 2.5
    alone = ran("missing", name, "plain", PROGRAM)
    done, notes = watched("missing", name, tmp_path)
    assert (done.returncode, done.stdout) == (alone.returncode, alone.stdout)
    raised = done.stderr.splitlines()  # where torch's own checkpoints need the function
    assert [note for note in notes if note not in raised] == []
    assert raised[-1:] == alone.stderr.splitlines()[-1:]


def targets() -> list[str]:
    """Every function that can run while a program is watched."""
    found = []
    for room in ("collect", "detect", "program"):
        package = importlib.import_module(f"gradscope.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"gradscope.{room}."):
            if not module.ispkg:
                found += breaking.functions_of(module.name)
    return sorted(set(found) - BOUNDARIES)


def check_raising(target: str, plain: subprocess.CompletedProcess[str], tmp_path: Path) -> None:
    done, _ = watched("raise", target, tmp_path)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


SAMPLE = [target for target in targets() if zlib.crc32(target.encode()) % 40 == 0]
"""The same ones also when others are added."""


@pytest.mark.full
@fault(
    BROKEN,
    "functions of gradscope that can run while a program is watched raise, one after the other",
    SAME,
    few=len(SAMPLE),
    many=len(targets()),
)
def test_functions_of_ours_may_raise(
    tries: Tries, plain: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    failed = []
    for target, _ in zip(SAMPLE if tries.times == len(SAMPLE) else targets(), tries, strict=False):
        try:
            check_raising(target, plain, tmp_path)
        except (AssertionError, subprocess.TimeoutExpired) as failure:
            failed.append(f"{target}: {str(failure)[:200]}")
        else:
            tries.came("the same")
    assert not failed, "\n".join(failed)


def test_every_part_can_be_lost() -> None:
    assert {part for fact in FACTS for part in fact.parts} == set(Part)
