"""The JSON report: the model's own fields, so that a field added there is in the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gradscope.model import SCHEMA, Finding, Process, Recording, Root, Site
from gradscope.render.memory import GroupBy, by, largest, name_of

LeftOut = Mapping[type, Set[str]]
"""The fields that a view does not show."""

_NAMES = {"site": "location"}
_ELSEWHERE: LeftOut = {Finding: {"graph", "graph_nodes"}, Root: {"node"}, Process: {"timeline"}}
"""Graphs and memory curves of a recording, and what points into them, are no part of the report."""

_OUTCOME = ("exit_status", "exception", "finished", "running")
_WHOLE = ("summary", "findings", "calls", "processes")
"""The parts of a recording that are in the report as they are."""


def to_json(recording: Recording) -> str:
    """Return the whole report as one JSON object, in ASCII, so that no encoding can spoil it."""
    header, outcome = recording.header, recording.outcome
    report = {
        "schema": SCHEMA,
        "gradscope": header.gradscope,
        "torch": header.torch,
        "script": {
            "path": header.script,
            "argv": header.argv,
            **{name: getattr(outcome, name) for name in _OUTCOME},
        },
        **{name: plain(getattr(recording, name)) for name in _WHOLE},
        "memory": _memory(recording),
    }
    return dumped(report, indent=2) + "\n"


def _memory(recording: Recording) -> dict[str, Any] | None:
    graph = largest(recording)
    if graph is None:
        return None

    def rows(kind: GroupBy) -> list[dict[str, Any]]:
        sums = by(lambda one: name_of(kind, one, lambda site: site.full_place), graph.saved)
        return [{"name": name, **sizes(size.nbytes, size.alone)} for name, size in sums.items()]

    def sizes(saved: int, alone: int | None) -> dict[str, int | None]:
        return {"saved_bytes": saved, "alone_bytes": None if graph.alone is None else alone}

    devices = by(lambda one: one.tensor.device, graph.saved)
    return {
        "backward_call": graph.call.number,
        "process": graph.call.process,
        **sizes(graph.nbytes, graph.alone),
        **{f"by_{kind}": rows(kind) for kind in GroupBy},
        "by_device": {name: size.nbytes for name, size in devices.items()},
    }


def _complete(value: Any) -> Any:
    """Return a site with its end put in, and everything else as it is."""
    match value:
        case Site(line=line, column=column, end_line=end_line, end_column=end_column):
            return replace(value, end_line=end_line or line, end_column=end_column or column)
    return value


def plain(
    value: Any, left_out: LeftOut = _ELSEWHERE, shown: Callable[[Any], Any] = _complete
) -> Any:
    """Return what ``json`` writes: a dataclass as an object by its fields.

    ``shown`` is asked first for what stands in the place of a value.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list):
        return [plain(part, left_out, shown) for part in value]
    value = shown(value)
    if not is_dataclass(value):
        return value
    names = keys(type(value), left_out).items()
    return {key: plain(getattr(value, name), left_out, shown) for key, name in names}


def keys(kind: Any, left_out: LeftOut = _ELSEWHERE) -> dict[str, str]:
    """Return the keys of a dataclass in JSON, each with the name of its field."""
    names = (field.name for field in fields(kind) if field.name not in left_out.get(kind, ()))
    return {_NAMES.get(name, name): name for name in names}


def dumped(value: Any, **options: Any) -> str:
    """Return a value as JSON that any encoding has, and that no terminal obeys."""
    return json.dumps(value, **options).replace("\x7f", "\\u007f")
