"""Tells which cell of a notebook a file is that exists only in memory."""

from __future__ import annotations

import sys
from typing import Any


def cell_of(file: str) -> str:
    """Return ``In[11]`` for the code that the notebook last ran under that number, else nothing."""
    try:
        shell = shell_of_ipython()
        named = None if shell is None else shell.compile.format_code_name(file)
    except Exception:  # an IPython of another version
        return ""
    return str(named[1]) if named else ""


def shell_of_ipython() -> Any:
    """Return the shell of IPython that runs the program; None outside of one."""
    ipython = sys.modules.get("IPython")
    try:
        return None if ipython is None else ipython.get_ipython()
    except Exception:  # an IPython that is about to be imported
        return None
