"""What a recording is headed by: which program ran, and with what."""

from __future__ import annotations

import os
import platform
import time

from gradscope.model import Header
from gradscope.record.version import __version__


def header_of(
    script: str, argv: tuple[str, ...], *, hooks: bool, torch: str = "", code: str | None = None
) -> Header:
    """Return the header of a program that starts now; before its import, ``torch`` is empty."""
    try:
        directory = os.getcwd()
    except OSError:  # it was deleted
        directory = ""
    return Header(
        gradscope=__version__,
        torch=torch,
        python=platform.python_version(),
        script=script,
        argv=argv,
        started=time.time(),
        hooks=hooks,
        cwd=directory,
        code=code,
        rank=_number("RANK"),
        ranks=_number("WORLD_SIZE") or 1,
        pid=os.getpid(),
        host=platform.node(),
    )


def _number(variable: str) -> int | None:
    """Return a number that a launcher of several ranks has put into the environment."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() else None
