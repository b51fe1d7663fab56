"""What paths, as of modules in a model, have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

Path = TypeVar("Path", list[str], tuple[Any, ...])


def common_length(paths: Sequence[Path]) -> int:
    """Return how many of their first entries all the paths have in common."""
    first, last = min(paths), max(paths)
    pairs = enumerate(zip(first, last, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(last)))


def common_module(names: Iterable[str]) -> str:
    """Return the module that all the named ones are, or are inside; empty where there is none."""
    paths = [name.split(".") for name in names]
    return ".".join(paths[0][: common_length(paths)])
