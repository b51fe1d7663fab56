"""A file for speedscope: the bytes of the largest graph as flame graphs, by module and by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gradscope.model import Recording
from gradscope.render.memory import Saved, largest
from gradscope.render.text.terminal import short_path

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def to_speedscope(recording: Recording) -> str:
    """Return the profiles as JSON; a run without a recorded graph has empty ones."""
    graph = largest(recording)
    saved = () if graph is None else graph.saved
    frames: dict[tuple[tuple[str, Any], ...], int] = {}

    def profile(name: str, stack: Callable[[Saved], list[dict[str, Any]]]) -> dict[str, Any]:
        samples = [
            [frames.setdefault(tuple(frame.items()), len(frames)) for frame in stack(one)]
            for one in saved
        ]
        weights = [one.nbytes for one in saved]
        return {
            "type": "sampled",
            "name": name,
            "unit": "bytes",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }

    profiles = [profile("saved, by module", _modules), profile("saved, by line", _lines)]
    whole = {
        "$schema": _SCHEMA,
        "name": recording.header.script,
        "exporter": f"gradscope {recording.header.gradscope}",
        "activeProfileIndex": 0,
        "shared": {"frames": [dict(frame) for frame in frames]},
        "profiles": profiles,
    }
    return json.dumps(whole, indent=1) + "\n"


def _modules(one: Saved) -> list[dict[str, Any]]:
    """Return the path of the module, a frame for each part, and the operation."""
    parts = one.module.split(".") if one.module else []
    paths = [".".join(parts[: at + 1]) for at in range(len(parts))]
    return [{"name": path} for path in (*(paths or ["(no module)"]), one.operation)]


def _lines(one: Saved) -> list[dict[str, Any]]:
    """Return the line and the operation."""
    if one.site is None:
        return [{"name": "(unknown line)"}, {"name": one.operation}]
    file = short_path(one.site.file)
    name = f"{one.site.function} ({file}:{one.site.line})"
    return [{"name": name, "file": one.site.file, "line": one.site.line}, {"name": one.operation}]
