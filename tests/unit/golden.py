"""Compares a text with its golden file, and says how to accept a change."""

from __future__ import annotations

import difflib
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def assert_golden(name: str, text: str) -> None:
    """``text`` is what ``tests/golden/NAME`` holds; if not, it is written to ``tests/actual/NAME``."""
    golden, actual = TESTS / "golden" / name, TESTS / "actual" / name
    expected = golden.read_text(encoding="utf-8") if golden.exists() else ""
    if text == expected:
        actual.unlink(missing_ok=True)
        return
    actual.parent.mkdir(parents=True, exist_ok=True)
    actual.write_text(text, encoding="utf-8")
    changes = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), "golden", "actual", lineterm=""
    )
    raise AssertionError(
        "\n".join([f"{name} is not as it was; to accept: cp {actual} {golden}", *changes])
    )
