"""Exports the metrics of a watch to TensorBoard, Prometheus and other loggers.

This module writes that file itself: importing a library before the program does would change the
program.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any, TypeAlias

from gradscope.errors import GradscopeError

EVERY = 1.0
"""Seconds from one time to the next, at least."""

FIGURES = {
    "gradscope/backward_calls": "Backward calls so far.",
    "gradscope/findings": "Findings so far that count.",
    "gradscope/live_bytes": "Bytes that all graphs hold.",
    "gradscope/nodes": "Nodes of graphs that are alive.",
    "gradscope/retained_bytes": "Bytes that the last backward call left in its graph.",
}
"""The metrics, and what they mean."""

Sink: TypeAlias = Callable[[dict[str, int], int], object]
"""Takes metrics by name, and the number of backward calls as the step."""


def sinks_of(log: Any) -> tuple[Sink, ...]:
    """Return what hands figures to one tool or to each of a list; raise GradscopeError for what
    takes none.
    """
    tools = log if isinstance(log, list | tuple) else [] if log is None else [log]
    return tuple(map(_sink_of, tools))


def _sink_of(log: Any) -> Sink:
    def all_at_once(figures: dict[str, int], step: int) -> None:
        # Without a run of the program's, MLflow would begin one.
        if getattr(log, "active_run", lambda: log)() is not None:
            log.log_metrics(figures, step=step)

    def one_by_one(figures: dict[str, int], step: int) -> None:
        for name, figure in figures.items():
            take(name, figure, step)

    take = getattr(log, "add_scalar", log)
    if hasattr(log, "log_metrics"):
        return all_at_once
    if hasattr(log, "log"):  # a run of W&B, whose steps are the program's own calls
        return lambda figures, step: log.log(figures, commit=False)
    if callable(take):
        return one_by_one
    raise GradscopeError(
        f"log: a {type(log).__name__} takes no figures; give a SummaryWriter, a run of W&B, the"
        " module mlflow, or a function of a name, a value and a step"
    )


class MetricsFile:
    """A file in the OpenMetrics format; whoever reads it finds the old text or the new, never half.

    The node exporter takes no series from two files: this one has the file's name in each.
    """

    def __init__(self, file: Path) -> None:
        self.file = file.absolute()

    def log_metrics(self, figures: dict[str, int], step: int) -> None:
        """Write the file anew."""
        run = self.file.stem.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines = []
        for name, figure in figures.items():
            metric = name.replace("/", "_")
            kind, end = ("counter", "_total") if name.endswith("calls") else ("gauge", "")
            lines += [f"# TYPE {metric} {kind}", f"# HELP {metric} {FIGURES[name]}"]
            lines.append(f'{metric}{end}{{run="{run}"}} {figure}')
        new = self.file.with_name(f"{self.file.name}.{os.getpid()}.{get_ident()}")
        new.write_text("\n".join([*lines, "# EOF\n"]), encoding="utf-8", errors="replace")
        new.replace(self.file)
