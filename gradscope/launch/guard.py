"""Stops a rerun program from changing anything outside its process, and notes the losses from which
its backward calls start.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TextIO

import torch

from gradscope.collect.calls import EngineCall
from gradscope.hooks import on_saving, wrap_engine
from gradscope.program.sites import user_frames
from gradscope.torch_private import DisableTorchDispatch, DisableTorchFunction

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_REFUSED = {
    *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
    *("os.chmod", "os.chown", "shutil.rmtree", "shutil.move", "shutil.copyfile"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"),
    *("socket.connect", "socket.bind", "socket.sendto", "sqlite3.connect", "webbrowser.open"),
}
"""What a program may not do (CPython's audit events)."""


_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Where torch makes folders as soon as its compiler is imported."""


def keep_inside(folder: str, refuse: Callable[[str], object]) -> None:
    """Have ``refuse`` called with what the program is about to do outside ``folder``, where its
    temporary files go; it must not return.
    """
    tempfile.tempdir = folder
    os.environ |= dict.fromkeys(("TMPDIR", *_CACHES), folder)

    def look(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = given
            writes = isinstance(flags, int) and flags & _WRITES
            if (writes or any(c in (mode or "") for c in "wax+")) and _is_outside(path, folder):
                refuse(f"it writes {path}")
        elif event in _REFUSED and _is_outside(given[0] if given else "", folder):
            refuse(f"{event} {given[0] if given else ''}")

    on_saving(lambda: refuse("torch.save"))
    sys.addaudithook(look)


def _is_outside(path: Any, folder: str) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return not isinstance(path, int)
    text = os.path.join(os.path.abspath(os.fsdecode(path)), "")
    return not text.startswith((os.path.join(folder, ""), os.path.join(os.devnull, "")))


# Frames of the program, from the innermost outwards, that say where it would change a file.
_MOST_FRAMES = 8


def line_of(frame: FrameType | None) -> list[tuple[str, int]]:
    """Return the line of the program that runs in a frame and those of its callers."""
    line = []
    for each in user_frames(frame)[:_MOST_FRAMES]:
        line.append((each.f_code.co_filename, each.f_lineno))
        if each.f_code.co_name == "<module>" and each.f_globals.get("__name__") == "__main__":
            break  # what starts the program is none of its own
    return line


def value_of(roots: Sequence[Any]) -> float | None:
    """Return the loss that a call starts from, if that is a single number."""
    root = roots[0] if len(roots) == 1 else None
    if not isinstance(root, torch.Tensor) or root.is_meta or root.numel() != 1:
        return None
    with DisableTorchFunction(), DisableTorchDispatch(), torch.no_grad():
        return float(root) if root.is_floating_point() else None


def note_losses(notes: TextIO) -> None:
    """Note each call of ``backward`` on a single number into an open file from now on."""
    process = os.getpid()

    def run(engine: Any, roots: Any, *given: Any, **named: Any) -> Any:
        accumulates = EngineCall.of(roots, *given, **named).accumulates
        value = value_of(roots) if accumulates and os.getpid() == process else None
        if value is not None:
            notes.write(json.dumps([line_of(sys._getframe(1)), value]) + "\n")
        return engine(roots, *given, **named)

    wrap_engine(run)
