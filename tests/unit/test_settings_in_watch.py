"""What a project suppresses holds in ``with watch()`` too, and an explicit argument wins."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import gradscope
from gradscope.api.scope import Scope
from gradscope.errors import GradscopeError
from gradscope.model import Finding
from gradscope.record.file import load
from gradscope.rules.settings import DEFAULTS, Suppressor, write_baseline


def loss() -> torch.Tensor:
    return torch.ones(3, requires_grad=True).exp().sum()


def twice() -> None:
    value = loss()
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


def known_twice() -> None:
    value = loss()
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()  # gradscope: ignore[GS101]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project file in the working directory; what is appended to it holds."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.gradscope]\n", encoding="utf-8")
    return file


def reasons(scope: Scope) -> list[str | None]:
    """Why the errors do not count; that they were foreseen is another finding."""
    errors = [one for one in scope.findings if one.code == "GS101"]
    return [one.suppression.reason if one.suppression else None for one in errors]


def why(program: Callable[[], None], **options: Any) -> list[str | None]:
    """The same of a program in a watch."""
    with gradscope.watch(**options) as scope:
        program()
    return reasons(scope)


def test_comments_and_the_project_file_hold(project: Path) -> None:
    told: list[Finding] = []
    with gradscope.watch(on_finding=told.append) as scope:
        known_twice()
    assert reasons(scope) == ["by `# gradscope: ignore[GS101]`"]
    assert [one.code for one in told] == ["GS102"]
    assert [one.counts for one in scope.recording().findings] == [True, False]
    for shown in (str(scope.findings), str(scope)):
        assert "1 suppressed" in shown
        assert "error[GS101]" not in shown
    assert why(twice) == [None]
    project.write_text('[tool.gradscope]\nignore = ["GS101"]\n', encoding="utf-8")
    assert why(twice) == ["by ignore in pyproject.toml"]
    project.write_text(
        f'[tool.gradscope]\nper-file-ignores = {{"{Path(__file__).name}" = ["GS101"]}}\n',
        encoding="utf-8",
    )
    assert why(twice) == [f"by per-file-ignores of {Path(__file__).name}"]


def test_an_explicit_argument_wins(project: Path) -> None:
    assert why(twice, ignore=["gs101"]) == ["by --ignore"]
    project.write_text('[tool.gradscope]\nignore = ["GS101"]\n', encoding="utf-8")
    assert why(known_twice, settings=False) == [None]


def test_what_a_baseline_knows_does_not_count(project: Path) -> None:
    with gradscope.watch(settings=False) as scope:
        twice()
    file = project.parent / "known.json"
    write_baseline(file, scope.findings)
    assert why(twice, baseline=file) == ["as known by the baseline known.json"]
    project.write_text('[tool.gradscope]\nbaseline = "known.json"\n', encoding="utf-8")
    assert why(twice) == ["as known by the baseline known.json"]


def test_what_is_suppressed_raises_nothing_of_ours(project: Path) -> None:
    value = loss()
    with gradscope.watch(raise_on="error"):
        value.backward()
        with pytest.raises(gradscope.FreedGraphError):
            value.backward()
        with pytest.raises(RuntimeError, match="second time") as raised:
            value.backward()  # gradscope: ignore[GS101]
    assert type(raised.value) is RuntimeError


def test_a_recording_has_findings_as_they_were_made(project: Path) -> None:
    file = project.parent / "run.gscope"
    with gradscope.watch(save=file):
        known_twice()
    found = load(file).findings[-1]
    assert (found.code, found.counts) == ("GS101", True)
    assert not Suppressor(DEFAULTS).judged(found).counts


def test_what_is_not_sensible_is_refused(project: Path) -> None:
    with pytest.raises(ValueError, match="settings=False makes every finding count"):
        gradscope.watch(settings=False, ignore=["GS101"])
    with pytest.raises(GradscopeError, match="there is no finding 'GS1O1'; did you mean 'GS101'"):
        gradscope.watch(ignore=["GS1O1"])
    with pytest.raises(GradscopeError, match="there is no baseline"):
        gradscope.watch(baseline="nowhere.json")
    project.write_text('[tool.gradscope]\nignroe = ["GS101"]\n', encoding="utf-8")
    with pytest.raises(GradscopeError, match="did you mean 'ignore'"):
        gradscope.watch()


def test_a_failure_of_ours_leaves_a_finding_standing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It fails in our own code: what fails in the program's is the program's.
    monkeypatch.setattr(Suppressor, "judged", operator.attrgetter("missing"))
    with gradscope.watch() as scope:
        known_twice()
        assert reasons(scope) == [None]
        monkeypatch.undo()
