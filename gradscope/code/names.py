"""Takes names as code writes them apart: ``self.h``, ``losses[3]``, ``cache['k'].state``."""

from __future__ import annotations

import re

_PART = re.compile(r"\.\w+|\[(?:-?\d+|'[^']*'|\"[^\"]*\")\]")


def split(name: str) -> tuple[str, list[str]] | None:
    """Return the variable and the parts, ``.h`` and ``[3]``; None where there are other parts."""
    root = re.match(r"\w+", name)
    if root is None:
        return None
    parts, end = [], root.end()
    while end < len(name):
        part = _PART.match(name, end)
        if part is None:
            return None
        parts.append(part[0])
        end = part.end()
    return root[0], parts


def owner_of(name: str) -> tuple[str, str]:
    """Return the name without its last part, and that part; both empty where it is a variable."""
    known = split(name)
    if known is None or not known[1]:
        return "", ""
    return name[: -len(known[1][-1])], known[1][-1]


def is_part(name: str, whole: str) -> bool:
    """Return whether ``name`` is an attribute or element of ``whole``, at any depth."""
    return name.startswith(whole) and name[len(whole) : len(whole) + 1] in (".", "[")
