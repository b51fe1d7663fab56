"""Which tests a run takes: the quick round, unless it names some of them or asks for all.

``pytest`` takes the quick round. It leaves out what ``@pytest.mark.full`` marks, and takes only some
cases of what ``@pytest.mark.full(but=3)`` marks: three of each function, evenly spread over all.
``pytest --full`` takes everything, ``pytest --rest`` what the quick round leaves out. Who names a folder, a file, a test, a marker or a keyword gets
all that it names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

APART = ("frameworks", "long")
"""Markers of tests that no run takes which does not name them with ``-m``."""


def is_quick(config: pytest.Config) -> bool:
    """Return whether a run neither asks for everything nor names a part of the tests."""
    if config.option.full or config.option.markexpr or config.option.keyword:
        return False
    named = {(config.invocation_params.dir / arg).resolve() for arg in config.args}
    return named <= {config.rootpath, config.rootpath / "tests"}


def chosen(
    items: Sequence[pytest.Item], *, quick: bool, markers: str, rest: bool = False
) -> list[pytest.Item]:
    """Return the tests that a run takes of those that were collected."""
    apart = [name for name in APART if name not in markers]
    items = [item for item in items if not any(map(item.get_closest_marker, apart))]
    if rest:
        left = set(items).difference(_quick_round(items))
        return [item for item in items if item in left]
    return _quick_round(items) if quick else items


def _quick_round(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    marked = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("full"):
            marked[item.nodeid.partition("[")[0]].append(item)
    left = {case for cases in marked.values() for case in set(cases).difference(_some(cases))}
    return [item for item in items if item not in left]


def _some(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of one function that the quick round takes."""
    mark = cases[0].get_closest_marker("full")
    few = min(mark.kwargs.get("but", 0) if mark else 0, len(cases))
    return [cases[number * len(cases) // few] for number in range(few)]
