"""What the largest graph saved, as the page's flame graph and its table take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradscope.model import Recording
from gradscope.render.memory import Branch, Kind, Largest, by, largest, name_of, tree

Json = Any


def flames(recording: Recording, line: Callable[[str, int], str]) -> dict[str, Json] | None:
    """Return trees and rows for each kind; ``line`` gives the text of a line of a file."""
    graph = largest(recording)
    if graph is None or not graph.saved:
        return None

    def branch(one: Branch) -> Json:
        step = one.step
        parts = [branch(part) for part in one.parts.values()]
        text = line(step.file, step.line).strip() if step.file else ""
        return [step.kind, step.name, step.place, text, one.nbytes, one.alone, parts]

    call = graph.call
    return {
        "call": call.number,
        "last": max(call.number, call.last_number),
        "process": call.process,
        "nbytes": graph.nbytes,
        "alone": graph.alone,
        "classes": {one.module: one.module_class for one in graph.saved if one.module},
        "trees": {kind: branch(tree(kind, graph.saved)) for kind in Kind},
        "rows": {kind: _rows(kind, graph) for kind in Kind},
    }


def _rows(kind: Kind, graph: Largest) -> list[Json]:
    sums = by(lambda one: name_of(kind, one), graph.saved)
    return [[name, *size] for name, size in sums.items()]
