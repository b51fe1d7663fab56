"""The conformance command: the stand-in goes the same way watched, and what differs is told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.command import ROOT, ran
from tests.needs import DETACHED_IS_TOLD, TELLS_PAIRS, needs
from tests.oracles.conformance.__main__ import arguments
from tests.oracles.conformance.journal import Journal
from tests.oracles.conformance.records import AGAIN, PLAIN, WATCHED, FileRun, Raised, Ran
from tests.oracles.conformance.table import lines
from tests.oracles.conformance.verdict import Verdict, verdicts
from tests.zygote import python

HOOKS = WATCHED[0]


def conformance(*given: str | Path) -> subprocess.CompletedProcess[str]:
    return ran(python(), "-m", "tests.oracles.conformance", *given, cwd=ROOT)


@pytest.mark.full
@needs(DETACHED_IS_TOLD)  # its suite asks for that, and puts hooks on single saved tensors
def test_stand_in_goes_the_same_way_watched(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    done = conformance("tests/oracles/standin", "suite_autograd.py", "--json", journal)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = Journal(journal, keep=True).read().values()
    judged = list(verdicts(run))
    assert [verdict.way for verdict in judged] == [way.name for way in WATCHED]
    assert {ran.outcome for ran in run.ran[PLAIN.name].values()} == {"pass"}
    for verdict in judged:
        assert verdict.tests == len(run.ran[PLAIN.name]) > 40
        assert verdict.raised == 8
        assert not verdict.inherent + verdict.unwatched + verdict.unsteady + verdict.worded


SUITE = """
import os, signal, time, unittest, torch

class Suite(unittest.TestCase):
    def test_1_dies(self):
        os.kill(os.getpid(), signal.SIGSEGV)

    def test_2_hangs(self):
        time.sleep(600)

    def test_3_sees_the_hooks(self):
        self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False))

    def test_4_sees_the_pair(self):
        torch.autograd.graph.save_on_cpu().__enter__()
        self.assertIsNone(torch._C._autograd._top_saved_tensors_default_hooks(False))

    def test_5_reads_the_mark(self):
        y = torch.ones(1, requires_grad=True).exp()
        y.backward()
        self.assertEqual(len(y.grad_fn.metadata), 0)

    def test_6_is_well(self):
        pass

    def test_7_ends_its_process(self):
        raise KeyboardInterrupt("in the seventh test")
"""


@pytest.mark.full
@needs(TELLS_PAIRS)
def test_what_kills_its_process_hangs_or_changes_is_told(tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(SUITE)
    journal = tmp_path / "journal"
    log = tmp_path / "log"
    given = ("--bound", "6", "--ways", "hooks", "--json", journal, "--log", log)
    done = conformance(tmp_path, "suite.py", *given)
    assert done.returncode == 1
    (run,) = Journal(journal, keep=True).read().values()
    outcomes = {name.partition("_")[2][:1]: ran.outcome for name, ran in run.ran["hooks"].items()}
    assert "".join(sorted(outcomes)) == "1234567"
    ended = ["crash", "hang", "pass", "fail", "fail", "pass", "crash"]
    assert [outcomes[name] for name in sorted(outcomes)] == ended
    assert "KeyboardInterrupt: in the seventh test" in log.read_text()
    assert "suite.py: outcomes that changed\n  Suite.test_5_reads_the_mark: pass" in done.stdout


@pytest.mark.full
@needs(TELLS_PAIRS)
def test_a_run_is_resumed_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text(SUITE)
    path = tmp_path / "journal"
    journal = Journal(path, keep=False)
    for way in (PLAIN, HOOKS, AGAIN):
        for name in ("1_dies", "2_hangs", "5_reads_the_mark"):
            journal.add("suite.py", way, Ran(f"Suite.test_{name}", "known before"))
    given = ("--ways", "hooks", "--json", path, "--resume", "--skip", "*pair", "--skip", "*process")
    done = conformance(tmp_path, "suite.py", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = journal.read()["suite.py"].ran["hooks"]
    assert [one.outcome for one in ran.values()] == [*["known before"] * 3, "pass", "pass"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["/nowhere"], "/nowhere is not a folder: give the folder `test`"),
        ([str(ROOT), "test_x.py"], "test_x.py is not there: name files relative to"),
        ([str(ROOT), "noxfile.py", "--ways", "never"], "invalid choice: 'never' (choose from"),
        ([str(ROOT), "noxfile.py", "--resume"], "--resume needs --json FILE"),
        ([str(ROOT), "noxfile.py", "--skip-list", "/x"], "--skip-list: can't open '/x'"),
    ],
)
def test_wrong_use_is_told(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments(given)
    assert said in capsys.readouterr().err


def test_a_file_that_does_not_load_is_told(tmp_path: Path) -> None:
    (tmp_path / "suite.py").write_text("import a_module_that_nobody_has")
    done = conformance(tmp_path, "suite.py")
    assert done.returncode == 1
    assert (
        "suite.py was not run: ModuleNotFoundError: No module named 'a_module_that" in done.stdout
    )


def judged(plain: Ran, watched: Ran, again: Ran) -> Verdict:
    ran = {PLAIN.name: plain, HOOKS.name: watched, AGAIN.name: again}
    (verdict,) = verdicts(FileRun("f.py", ran={way: {"t": one} for way, one in ran.items()}))
    return verdict


def test_each_kind_of_difference_counts() -> None:
    well = Ran("t", "pass", cpu=1.0)
    assert judged(well, Ran("t", "pass", cpu=2.0), well).ratio == 2
    assert judged(well, well, well).is_good
    assert not judged(well, Ran("t", "fail"), well).is_good
    assert judged(well, Ran("t", "fail"), Ran("t", "error")).unsteady
    assert not judged(well, Ran("t", "pass", failures=["x"]), well).is_good
    assert not judged(well, Ran("t", "pass", wrong=["GS101"]), well).is_good
    raised = [Raised("GS101", "second time", announced=True)]
    assert judged(well, Ran("t", "pass", raised=raised), well).is_good
    missed = [*raised, Raised("GS201", "in place", announced=False)]
    verdict = judged(well, Ran("t", "pass", raised=missed), well)
    assert (verdict.raised, verdict.unannounced) == (2, ["t: GS201 in place"])
    assert judged(Ran("t", "fail", "at 0x12"), Ran("t", "fail", "at 0x34"), well).is_good
    one, other = Ran("t", "fail", "one"), Ran("t", "fail", "other")
    assert judged(one, other, one).worded


def test_table_lists_what_is_behind_its_numbers() -> None:
    raised = [Raised("GS201", "in place", announced=False)]
    ran = {way.name: {"t": Ran("t", "pass", raised=raised)} for way in (PLAIN, *WATCHED[:2])}
    text = "\n".join(lines([FileRun("f.py", ran=ran)]))
    assert "f.py  hooks         1        0       1       1      0         0  1.00" in text
    assert "errors of the engine that were not announced\n  t: GS201 in place  [hooks; no-" in text
