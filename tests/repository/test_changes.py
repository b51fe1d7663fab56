"""The makers of pages, asked with ``--check``, show the changes that count, and no others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def report_changes(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[Path, str]], int]:
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.delitem(sys.modules, "changes", raising=False)
    return import_module("changes").report_changes  # type: ignore[no-any-return]


def svg(x: int, text: str) -> str:
    return f'<svg><text x="{x}">{text}</text>\n<text x="3">freed</text></svg>'


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("page.md", "forward   1.25 ms, 12.5% of the step", "forward  11.5 ms, 9.1% of the step"),
        ("gallery.md", "| LSTM | 0.12 / 0.58 |", "| LSTM | 0.36 / 0.76 |"),
        ("graph.svg", svg(1, "live"), svg(200, "live")),
    ],
)
def test_durations_and_positions_do_not_count(
    name: str,
    old: str,
    new: str,
    tmp_path: Path,
    report_changes: Callable[[dict[Path, str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(old, encoding="utf-8")
    assert report_changes({tmp_path / name: new}) == 0
    assert not capsys.readouterr().out


def test_other_changes_and_new_files_are_shown(
    tmp_path: Path,
    report_changes: Callable[[dict[Path, str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "page.md").write_text("freed 1 (64 B)\n", encoding="utf-8")
    made = {tmp_path / "page.md": "freed 2 (64 B)\n", tmp_path / "new.svg": svg(1, "live")}
    assert report_changes(made) == 1
    shown = capsys.readouterr().out
    assert "-freed 1 (64 B)\n+freed 2 (64 B)\n" in shown
    assert "+++ new.svg, made again" in shown
