"""What is known to differ under a watch, each with its reason, and what cannot be run at all."""

from __future__ import annotations

_OTHER_OBJECT = "under hooks torch hands out another object for a saved field"

INHERENT: dict[tuple[str, bool], str] = {
    ("TestAutograd.test_no_unnecessary_unwrapping", True): _OTHER_OBJECT,
}
"""Tests whose outcome a watch changes and cannot but change: name, and whether it is with hooks."""

UNWATCHED: dict[str, str] = {
    "TestMultithreadAutograd.test_python_thread_in_middle": "five threads run one graph at once: "
    "one frees it while the calls of the others are under way",
}
"""Errors of the engine that no look before the call can know of, by the names of their tests."""
