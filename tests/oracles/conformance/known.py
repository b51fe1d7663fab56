"""What is known to differ under a watch, each with its reason, and what cannot be run at all."""

from __future__ import annotations

INHERENT: dict[str, str] = {}
"""Tests whose outcome a watch changes and cannot but change, by their names."""

UNWATCHED: dict[str, str] = {}
"""Errors of the engine that no look before the call can know of, by the names of their tests."""

LEFT_OUT: dict[str, str] = {}
"""Tests that are not run, by their names."""
