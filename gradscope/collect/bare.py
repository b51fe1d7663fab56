"""Reads what nodes saved by themselves, with no mark on them, and tells whether all of it is there
and unmodified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.autograd.graph import Node

from gradscope.collect.nodes import OUTPUT, Kind, is_refused, kind_of, known_kinds
from gradscope.program.tensors import PLAIN
from gradscope.torch_private import SAVED_TENSORS_ARE_READABLE, dispatch_modes

Slots = list[tuple[str, Any]]
"""Names of saved tensors, each with the tensor."""


def are_whole(roots: Sequence[Node], most: int) -> bool:
    """Return whether every node that can be reached is there with all that it saved, unmodified.

    False where that cannot be told in this way, or there are more nodes than ``most``.
    """
    if not can_read():
        return False
    seen: set[Node] = set()
    see, kinds = seen.add, known_kinds.get
    stack = list(roots)
    pop, push = stack.pop, stack.append
    while stack:
        node = pop()
        if node in seen:
            continue
        see(node)
        kind = kinds(type(node)) or kind_of(type(node))
        if kind.is_opaque or (kind.names and slots_of(node, kind) is None) or len(seen) > most:
            return False
        for target, _ in node.next_functions:
            if target is not None:
                push(target)
    return True


def can_read() -> bool:
    """Return whether saved tensors can be read now: they say what they hold, and no mode of the
    program's would see it.
    """
    return SAVED_TENSORS_ARE_READABLE and not dispatch_modes()


def slots_of(node: Node, kind: Kind) -> Slots | None:
    """Return what a node of torch's own saved if all of it is there and unmodified; None where that
    is not so, or cannot be told without running hooks or code of the program's.
    """
    found: Slots = []
    try:
        for name, saved, raw, edge in kind.reads:
            slot = getattr(node, raw)
            if slot is None:
                continue
            if type(slot) is tuple:
                if not _are_there(slot):
                    return None
                found += [(f"{name}[{i}]", each.data) for i, each in enumerate(slot) if each]
                continue
            data = slot.data
            if data is not None:
                if type(data) not in PLAIN or slot.unpack_hook is not None:
                    return None
                found.append((name, data))
                read = getattr(node, saved)  # torch checks that it was not modified
                if (
                    read is data
                    and not data.requires_grad
                    and edge != OUTPUT
                    and (edge is None or node.next_functions[edge][0] is not None)
                    and is_refused(slot)
                ):
                    return None
            elif not found and getattr(node, saved) is not None:  # it raises if the node was freed
                return None
    except RuntimeError:
        return None
    return found


def _are_there(slots: Sequence[Any]) -> bool:
    """Return whether all of a list of saved tensors are there and unmodified."""
    for slot in slots:
        if slot is not None:
            if type(slot.data) not in PLAIN or slot.unpack_hook is not None or is_refused(slot):
                return False
            slot.unpack()
    return True
