"""The checks before a release see what is missing, and the changelog is in order between releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from recorded import HEADER

import gradscope.record.file as recordings
from gradscope.errors import GradscopeError
from gradscope.record.file import FORMAT
from gradscope.record.writer import RecordingWriter
from tests.command import ROOT
from tests.repository import release
from tests.repository.release import Tree
from tests.repository.test_links import tracked

CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2027-01-31)\n\nNew.\n\n## 0.1.0 (2026-12-01)\n\nAll.\n"
GOOD = Tree(
    version="0.2.0",
    layout=7,
    changelog=CHANGELOG,
    readme="It needs Python 3.11 and torch 2.4 or newer.",
    project='[project]\nrequires-python = ">=3.11"\ndependencies = ["rich>=13", "torch>=2.4"]\n',
    layouts={"0.1.0": 7, "0.2.0": 7},
    tags=frozenset({"v0.1.0"}),
)


def to_do(tree: Tree) -> list[str]:
    return [words for check in release.CHECKS if (words := check(tree))]


def test_nothing_is_left_to_do() -> None:
    assert to_do(GOOD) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"changed": " M README.md"}, "commit or remove"),
        ({"tags": frozenset({"v0.2.0"})}, "raise the version"),
        ({"changelog": CHANGELOG.replace("## Unreleased\n", "")}, "first section"),
        ({"changelog": CHANGELOG.replace("2026-12-01", "December")}, "## 0.1.0 (December)"),
        ({"changelog": CHANGELOG.replace("0.1.0", "0.3.0")}, "newest version comes first"),
        ({"changelog": CHANGELOG.replace("All.\n", "")}, "says nothing"),
        ({"changelog": CHANGELOG.replace("0.2.0", "0.1.9")}, "## 0.2.0 (YYYY-MM-DD)"),
        ({"changelog": CHANGELOG.replace("Unreleased\n", "Unreleased\n\nMore.\n")}, "still has"),
        ({"layout": 8}, 'write "0.2.0": 8'),
        ({"layout": 8, "layouts": {"0.1.0": 7, "0.2.0": 8}}, "**Upgrading.**"),
        ({"readme": "It needs Python 3.10 and torch 2.4 or newer."}, "Python 3.11 and torch 2.4"),
    ],
)
def test_what_is_left_to_do_is_said(change: dict[str, object], says: str) -> None:
    (words,) = to_do(replace(GOOD, **change))  # type: ignore[arg-type]
    assert says in words


def test_a_layout_that_changed_is_told() -> None:
    told = CHANGELOG.replace("New.", "New.\n\n**Upgrading.** Recordings of 0.1.0 are refused.")
    changed = replace(GOOD, layout=8, layouts={"0.1.0": 7, "0.2.0": 8}, changelog=told)
    assert to_do(changed) == []


def test_the_changelog_and_the_readme_are_in_order() -> None:
    tracked("CHANGELOG.md")  # skips outside of a checkout
    tree = release.here()
    assert not release.changelog_is_in_order(tree)
    assert not release.readme_names_the_versions(tree)


def test_the_page_shows_how_a_recording_of_another_layout_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.gscope"
    with patch.object(recordings, "FORMAT", FORMAT ^ 1):
        RecordingWriter(file, HEADER).close()
    with pytest.raises(GradscopeError) as refused, patch.object(recordings, "__version__", "0.2.0"):
        recordings.load(file)
    told = str(refused.value).replace(str(file), "run.gscope")
    page = " ".join((ROOT / "docs/install.md").read_text(encoding="utf-8").split())
    assert f"`{told}`" in page
