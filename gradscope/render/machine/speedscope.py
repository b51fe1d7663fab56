"""A file for speedscope: the bytes of the largest graph as flame graphs, by module and by line."""

from __future__ import annotations

from typing import Any

from gradscope.model import Recording
from gradscope.render.machine.message import dumped
from gradscope.render.memory import Kind, Step, largest, path
from gradscope.units import short_path

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def to_speedscope(recording: Recording) -> str:
    """Return the profiles as JSON; a run without a recorded graph has empty ones."""
    graph = largest(recording)
    saved = () if graph is None else graph.saved
    frames: dict[tuple[tuple[str, Any], ...], int] = {}

    def profile(kind: Kind) -> dict[str, Any]:
        samples = [
            [
                frames.setdefault(tuple(_frame(step).items()), len(frames))
                for step in path(kind, one)
            ]
            for one in saved
        ]
        weights = [one.nbytes for one in saved]
        return {
            "type": "sampled",
            "name": f"saved, by {kind}",
            "unit": "bytes",
            "startValue": 0,
            "endValue": sum(weights),
            "samples": samples,
            "weights": weights,
        }

    whole = {
        "$schema": _SCHEMA,
        "name": recording.header.script,
        "exporter": f"gradscope {recording.header.gradscope}",
        "activeProfileIndex": 0,
        "profiles": [profile(kind) for kind in (Kind.MODULE, Kind.LINE)],
        "shared": {"frames": [dict(frame) for frame in frames]},
    }
    return dumped(whole, indent=1) + "\n"


def _frame(step: Step) -> dict[str, Any]:
    if not step.file:
        return {"name": step.name}
    name = f"{step.name} ({short_path(step.file)}:{step.line})"
    return {"name": name, "file": step.file, "line": step.line}
