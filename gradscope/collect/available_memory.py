"""Reads how many bytes a device, or this machine, has left for the program."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_GROUPS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where Linux keeps the limits of control groups, of version 2 and 1; the last is the name of what
it gives back first, of what is used.
"""


def free_memory(device: str) -> int:
    """Return how many bytes a device has left, by torch's own count, which asks no device; of the
    CPU what the machine has, or the control group that it limits. 0 where that is not known.
    """
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return min(_left_here(), default=0)
    module: Any = getattr(torch, kind, None)
    with suppress(AttributeError, RuntimeError, AssertionError):  # AssertionError: no such device
        whole = module.get_device_properties(int(index or 0)).total_memory
        return max(0, int(whole) - int(module.memory_allocated(int(index or 0))))
    return 0


def _left_here() -> Iterator[int]:
    with suppress(OSError, ValueError):
        yield _number("MemAvailable:", Path("/proc/meminfo")) * 1024
    groups = []
    with suppress(OSError, ValueError):
        groups = re.findall(r"^\d+:(memory|):/?(.*)$", Path("/proc/self/cgroup").read_text(), re.M)
    for kind, path in groups:
        (place, *names) = _GROUPS[kind == "memory"]
        root = Path("/sys/fs/cgroup", place)
        for group in (root / path, *(root / path).parents):
            if group.is_relative_to(root):
                with suppress(OSError, ValueError):  # "max": it has no limit of its own
                    limit, used = (int((group / name).read_text()) for name in names[:2])
                    yield max(0, limit - used + _number(names[2], group / "memory.stat"))


def _number(name: str, file: Path) -> int:
    """Return the number behind a name at the start of a line."""
    found = re.search(rf"^{name}\s+(\d+)", file.read_text(), re.M)
    return int(found[1]) if found else 0
