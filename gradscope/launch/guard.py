"""Keeps a program that is run once more from changing anything outside its process."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_REFUSED = frozenset(
    {
        *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"),
        *("os.chmod", "os.chown", "shutil.rmtree", "shutil.move", "shutil.copyfile"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"),
        *("socket.connect", "socket.bind", "socket.sendto", "sqlite3.connect", "webbrowser.open"),
    }
)
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

    def save(*given: Any, **named: Any) -> None:
        refuse("torch.save")

    torch.save = save
    sys.addaudithook(look)


def _is_outside(path: Any, folder: str) -> bool:
    if not isinstance(path, str | bytes | os.PathLike):
        return not isinstance(path, int)
    text = os.path.join(os.path.abspath(os.fsdecode(path)), "")
    return not text.startswith((os.path.join(folder, ""), os.path.join(os.devnull, "")))
