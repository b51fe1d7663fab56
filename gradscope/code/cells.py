"""Tells which cell of a notebook a file is that exists only in memory."""

from __future__ import annotations

import sys


def cell_of(file: str) -> str:
    """Return ``In[11]`` for the code that the notebook last ran under that number, else nothing."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return ""
    try:
        shell = ipython.get_ipython()
        named = None if shell is None else shell.compile.format_code_name(file)
    except Exception:  # an IPython of another version, or one that is about to be imported
        return ""
    return str(named[1]) if named else ""
