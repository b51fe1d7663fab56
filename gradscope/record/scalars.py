"""Exports the metrics of a watch to TensorBoard, Prometheus and other loggers.

This module writes the files for TensorBoard and Prometheus itself: importing the libraries that
write them, with numpy and protobuf, before the program does would change the program.
"""

from __future__ import annotations

import os
import platform
import struct
import time
from collections.abc import Callable
from functools import cache
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
"""What is handed on, and what it means."""

Sink: TypeAlias = Callable[[dict[str, int], int], object]
"""Takes figures by their names, and how many backward calls there were, as the step."""


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


class EventFile:
    """A new file of events in a folder, as TensorBoard reads it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{platform.node()}.{os.getpid()}.gradscope"
        self.file = folder.absolute() / name

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Add one event, in the encoding of protobuf: fields of a number, a type and a value."""
        scalar = _bytes(b"\x0a", name.encode()) + struct.pack("<cf", b"\x15", value)
        event = b"\x10" + _varint(step) + _bytes(b"\x2a", _bytes(b"\x0a", scalar))
        with self.file.open("ab") as file:
            if not file.tell():
                file.write(_framed(_bytes(b"\x1a", b"brain.Event:2")))
            file.write(_framed(event))


def _framed(event: bytes) -> bytes:
    """Return an event of now as a record of the file."""
    event = struct.pack("<cd", b"\x09", time.time()) + event
    size = struct.pack("<Q", len(event))
    return size + _checksum(size) + event + _checksum(event)


def _bytes(field: bytes, content: bytes) -> bytes:
    return field + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first; all but the last are marked."""
    last = number < 1 << 7
    return bytes([number]) if last else bytes([number & 127 | 128]) + _varint(number >> 7)


def _checksum(content: bytes) -> bytes:
    """Return the CRC-32C of some bytes, turned and masked as the format wants it."""
    crc = ~0 & 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _remainder(crc & 255 ^ byte)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (byte & 1) * 0x82F63B78
    return byte
