"""`pytest --gradscope` as its users meet it: real runs of pytest over the tests of an imagined project."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from xml.etree import ElementTree

import pytest

from gradscope.commands.pytest_verdicts import marked
from tests.zygote import python

ROOT = Path(__file__).parents[2]
SUITE = Path(__file__).parent / "programs" / "suite" / "watched.py"
PLUGIN = "gradscope.commands.pytest_plugin"


def run_pytest(
    folder: Path, *args: str, plugins: tuple[str, ...] = (PLUGIN,), executable: str | None = None
) -> subprocess.CompletedProcess[str]:
    named = [part for name in plugins for part in ("-p", name)]
    return subprocess.run(
        [executable or python(), "-m", "pytest", "-p", "no:cacheprovider", *named, *args],
        cwd=folder,
        env={
            "PATH": "",
            "PYTHONPATH": ":".join([str(ROOT), *filter(None, map(str, sys.path))]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def outcomes(folder: Path) -> Mapping[str, str]:
    """Return how each test ended, by its name without the number of its arguments."""
    cases = ElementTree.parse(folder / "junit.xml").iter("testcase")
    ends = {case.attrib["name"]: [part.tag for part in case] for case in cases}
    return {name.partition("[")[0]: (tags or ["passed"])[0] for name, tags in ends.items()}


def expected(name: str) -> str:
    if name.startswith("test_fails_as_marked"):
        return "skipped"
    return "passed" if name.startswith("test_passes") else "failure"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n", encoding="utf-8")
    file = tmp_path / "test_watched.py"
    file.write_text(SUITE.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def watched(folder: Path, *args: str, plugins: tuple[str, ...] = (PLUGIN,)) -> str:
    done = run_pytest(folder, "--gradscope", "--junitxml=junit.xml", *args, plugins=plugins)
    assert done.returncode == 1, done.stdout + done.stderr
    ends = outcomes(folder)
    assert len(ends) == SUITE.read_text(encoding="utf-8").count("def test_")
    assert ends == {name: expected(name) for name in ends}
    return done.stdout


LISTED = [
    "test_watched.py::test_is_failed_for_what_it_swallows",
    "test_watched.py::test_is_failed_for_what_a_fixture_does",
    "test_watched.py::test_is_failed_for_what_it_swallows_before_it_expects_another",
    "test_watched.py::test_raises_by_itself",
    "test_watched.py::test_passes_and_only_warns",
]
"""The tests whose findings count."""


ASSERTING = """
import pytest
import torch
from torch import nn

import gradscope

net = nn.Linear(4, 1)


def loss_of():
    return net(torch.ones(2, 4)).pow(2).mean()


def grow():
    kept = []
    for _ in range(12):
        loss_of().backward()
        kept.append(loss_of())


@pytest.fixture
def growing():
    with gradscope.assert_no_growth():
        grow()


@pytest.fixture
def around():
    with gradscope.assert_no_growth():
        yield grow


def test_growth():
    with gradscope.assert_no_growth():  # fails
        grow()


@gradscope.assert_no_growth()
def test_growth_of_a_decorated_function():
    grow()


def test_growth_in_a_fixture(growing):
    pass


def test_growth_around(around):
    around()


def test_freed():
    gradscope.assert_freed(loss_of())  # fails


def test_trains():
    gradscope.assert_trains(loss_of().detach() + nn.Linear(4, 1)(torch.ones(4)), net)  # fails


def test_no_graph():
    gradscope.assert_freed(torch.ones(3))  # fails


def test_raises_before_the_engine():
    with gradscope.watch(raise_on="error"):
        loss = loss_of()
        loss.backward()
        loss.backward()  # fails
"""


def test_what_is_asserted_fails_with_the_option_as_without_and_at_the_line_of_the_test(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_asserting.py").write_text(ASSERTING, encoding="utf-8")
    lines = [n for n, line in enumerate(ASSERTING.splitlines(), 1) if line.endswith("# fails")]
    for options in ((), ("--gradscope",)):
        done = run_pytest(tmp_path, *options, "--junitxml=junit.xml")
        ends = outcomes(tmp_path)
        in_fixtures = {name for name, end in ends.items() if end == "error"}
        assert in_fixtures == {"test_growth_in_a_fixture", "test_growth_around"}
        assert {end for name, end in ends.items() if name not in in_fixtures} == {"failure"}
        for line in lines:
            assert f"\ntest_asserting.py:{line}: " in done.stdout
        assert "gradscope/api/" not in done.stdout
        assert "contextlib.py" not in done.stdout


def test_each_test_is_watched_and_failed_or_not_by_what_is_found(suite: Path) -> None:
    says = watched(suite)
    assert "gradscope: watches every test, fails on error" in says
    listed = says[says.rindex("= gradscope =") :].splitlines()
    assert [line for line in listed if line.startswith("test_watched.py::")] == LISTED
    assert (
        "4 errors, 4 warnings, 1 advice, 14 suppressed in 42 backward calls of 16 tests" in listed
    )
    assert "gradscope: GS201 was expected, and not found" in says
    assert "--> test_watched.py:20:9 in run_twice" in says


@pytest.mark.full
def test_the_severity_that_fails_is_said(suite: Path) -> None:
    chosen = ("--gradscope", "-k", "only_warns or it_swallows")
    failed = run_pytest(suite, *chosen, "--gradscope-fail-on=warning")
    assert "Failed: gradscope: GS302 graph-kept-alive" in failed.stdout
    never = run_pytest(suite, *chosen, "--gradscope-fail-on=never")
    assert never.returncode == 0
    assert re.search(r"error\[GS101\] +test_watched.py:20", never.stdout)


def test_nothing_is_watched_unless_asked(suite: Path) -> None:
    plain = run_pytest(suite, "-k", "not by_itself and not as_marked")
    assert plain.returncode == 0, plain.stdout
    assert "gradscope:" not in plain.stdout
    assert "= gradscope =" not in plain.stdout


def test_a_plugin_that_is_off_imports_next_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_imports():\n"
        "    names = {name for name in sys.modules if name.partition('.')[0] == 'gradscope'}\n"
        "    ours = {'', '.record', '.commands', '.commands.pytest_plugin'}\n"
        "    assert names == {'gradscope' + name for name in ours}\n"
        "    assert not {'torch', 'rich', 'typer'} & sys.modules.keys()\n",
        encoding="utf-8",
    )
    done = run_pytest(tmp_path, executable=sys.executable)
    assert done.returncode == 0, done.stdout


def test_torch_is_not_imported_for_tests_that_do_not(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\ndef test_imports():\n    assert 'torch' not in sys.modules\n",
        encoding="utf-8",
    )
    done = run_pytest(tmp_path, "--gradscope", executable=sys.executable)
    assert done.returncode == 0, done.stdout
    assert "no problem found in 0 backward calls of 1 test" in done.stdout


def test_a_wrong_marker_is_told_before_any_test_runs(tmp_path: Path) -> None:
    test = "import pytest\n@pytest.mark.gradscope(expects=['GS101'])\ndef test_this():\n    pass\n"
    (tmp_path / "test_wrong.py").write_text(test, encoding="utf-8")
    done = run_pytest(tmp_path, "--gradscope")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    says = (
        "test_wrong.py::test_this: the marker gradscope takes allow=[…] and expect=[…], not expects"
    )
    assert says in done.stderr


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        (("GS101",), {}, "takes allow=[…] and expect=[…], not 'GS101'"),
        ((), {"allow": ["GS999"]}, "there is no finding 'GS999'"),
        ((), {"expect": "GS1O1"}, "did you mean 'GS101'?"),
    ],
)
def test_markers_are_checked(args: tuple[str, ...], kwargs: dict[str, object], says: str) -> None:
    marks = [SimpleNamespace(args=args, kwargs=kwargs)]
    item = SimpleNamespace(nodeid="test_this", iter_markers=lambda _name: marks)
    with pytest.raises(pytest.UsageError) as raised:
        marked(cast(pytest.Item, item))
    assert says in str(raised.value)


@pytest.mark.full
def test_xdist_hands_findings_to_its_controller(suite: Path) -> None:
    says = watched(suite, "-n", "2", plugins=(PLUGIN, "xdist"))
    assert "4 errors, 4 warnings, 1 advice, 14 suppressed in 42 backward calls of 16 tests" in says
    assert sorted(line for line in says.splitlines() if line in LISTED) == sorted(LISTED)


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("pytest_cov") is None, reason="needs pytest-cov")
def test_coverage_is_measured_beside_it(suite: Path) -> None:
    says = watched(suite, "--cov=test_watched", plugins=(PLUGIN, "pytest_cov.plugin"))
    assert "100%" in says.partition("tests coverage")[2]


def test_pytest_finds_the_plugin_by_its_entry_point(tmp_path: Path) -> None:
    """As an installer writes it, from what the project file says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = project["entry-points"]["pytest11"]
    assert points == {"gradscope": PLUGIN}
    installed = tmp_path / "imagined-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: imagined\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{name} = {module}" for name, module in points.items()]
    text = "\n".join(["[pytest11]", *lines])
    (installed / "entry_points.txt").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--help"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--gradscope-fail-on={error,warning,advice,never}" in done.stdout, done.stderr


STEPS = """
import torch

def step(loss):
    try:
        loss.backward()  # gradscope: ignore
    except RuntimeError:
        pass

def test_step():
    loss = torch.ones(3, requires_grad=True).exp().sum()
    step(loss)
    step(loss)
"""


@pytest.mark.full
def test_comments_settings_and_a_baseline_hold_as_for_the_commands(tmp_path: Path) -> None:
    file = tmp_path / "test_steps.py"
    file.write_text(STEPS, encoding="utf-8")
    done = run_pytest(tmp_path, "--gradscope")
    assert done.returncode == 0, done.stdout
    assert "no finding, 2 suppressed in 2 backward calls of 1 test" in done.stdout
    file.write_text(STEPS.replace("# gradscope", "#"), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.gradscope]\nfail-on = "advice"', encoding="utf-8"
    )
    written = run_pytest(tmp_path, "--gradscope", "--gradscope-write-baseline=known.json")
    assert written.returncode == 0, "no test fails for what is written"
    assert "baseline: known.json (2 findings)" in written.stdout
    known = run_pytest(tmp_path, "--gradscope", "--gradscope-baseline=known.json")
    assert known.returncode == 0, known.stdout
    assert run_pytest(tmp_path, "--gradscope").returncode == 1
    (tmp_path / "pyproject.toml").write_text("[tool.gradscope]\nignore = 1", encoding="utf-8")
    wrong = run_pytest(tmp_path, "--gradscope")
    assert wrong.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs a list of codes, as" in wrong.stderr
