"""Looks up what a dotted name of a frame stands for, without running any of the user's code."""

from __future__ import annotations

import types
from collections import OrderedDict
from types import FrameType
from typing import Any

import torch

from gradscope.code import names
from gradscope.code.bytecode import MISSING
from gradscope.program import layouts
from gradscope.program.containers import layout_of
from gradscope.program.layouts import is_exactly
from gradscope.program.variables import local_variables


class Objects:
    """The variables of one frame, held: to be dropped after the look."""

    def __init__(self, frame: FrameType) -> None:
        self._variables = {**frame.f_globals, **dict(local_variables(frame))}

    def find(self, path: str) -> Any:
        """Return what the path stands for; MISSING where only the user's code could tell."""
        root, parts = names.split(path) or ("", [])
        return follow(self._variables.get(root, MISSING), parts)


def follow(found: Any, parts: list[str]) -> Any:
    """Return what a chain of attributes and elements leads to."""
    for part in parts:
        if found is MISSING:
            break
        found = part_of(found, part)
    return found


def part_of(owner: Any, part: str) -> Any:
    """Return an attribute, ``.h``, or an element, ``[3]``, as it is stored."""
    return attribute(owner, part[1:]) if part[0] == "." else _item(owner, part[1:-1])


def attribute(owner: Any, name: str) -> Any:
    """Return an attribute as it is stored, without asking descriptors."""
    layout = layout_of(type(owner))
    if layouts.is_a(owner, types.ModuleType):
        return layouts.module_variables(owner).get(name, MISSING)
    if layout.has_dict or layouts.derives(type(owner), torch.nn.Module):
        namespace = object.__getattribute__(owner, "__dict__")
        if name in namespace:
            return namespace[name]
        for kind in ("_parameters", "_buffers", "_modules"):
            if is_exactly(namespace.get(kind), dict, OrderedDict) and name in namespace[kind]:
                return namespace[kind][name]
    classes = layouts.class_bases(owner if layout.is_class else type(owner))
    return next(
        (space[name] for cls in classes if name in (space := layouts.class_namespace(cls))), MISSING
    )


def _item(owner: Any, key: str) -> Any:
    if layouts.derives(type(owner), torch.nn.Module):
        return attribute(owner, key)
    if layouts.is_a(owner, dict):
        wanted: Any = key[1:-1] if key[0] in "'\"" else int(key)
        return dict.get(owner, wanted, MISSING)
    base: Any = next((base for base in (list, tuple) if layouts.is_a(owner, base)), None)
    if base is None or not key.lstrip("-").isdigit():
        return MISSING
    length = base.__len__(owner)  # past any method of a subclass
    return base.__getitem__(owner, int(key)) if -length <= int(key) < length else MISSING
