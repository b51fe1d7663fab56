"""``uses``: which tensors may be changed in place, and run backward through, and why not."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.autograd.graph import Node

from gradscope.api.check import check
from gradscope.api.snapshot import snapshot
from gradscope.collect.marks import Packed
from gradscope.collect.nodes import held, kind_of
from gradscope.collect.walk import Walker, root_node
from gradscope.model import Hazards, NodeState
from gradscope.model.printed import Listing
from gradscope.program.names import Names
from gradscope.program.sites import user_frames
from gradscope.program.tensors import describe, storage_of
from gradscope.program.variables import variables
from gradscope.render.text.forms import table
from gradscope.torch_private import DisableTorchFunction
from gradscope.units import listed


@dataclass(frozen=True, slots=True)
class Use:
    """One tensor: may it be changed in place, does backward through it run, and why (not)."""

    name: str
    label: str
    in_place: bool
    in_place_why: str
    backward: bool
    backward_why: str


class Uses(Listing[Use]):
    """What may be done with each tensor; print it to read it."""

    __slots__ = ()
    nothing = "no variable here holds a tensor"

    def __str__(self) -> str:
        rows = []
        for use in self:
            in_place = _answer(use.in_place, use.in_place_why)
            rows.append((use.name, use.label, in_place, _answer(use.backward, use.backward_why)))
        header = ("tensor", "", "change in place?", "backward through it?")
        return table(header, rows) if rows else self.nothing

    __repr__ = __str__


def uses(*roots: torch.Tensor) -> Uses:
    """Return what may be done now with the caller's tensors, and with the parameters of the graph.

    *Change in place*: without breaking a later backward call on ``roots``, which needs what its
    graph saved. *Backward*: through the tensor, or through what is built on it. The value of a
    tensor can be used at any time. What an object or a list holds is not listed, and what a C++
    custom function or a user's own pack hook keeps is not known here.

    Raises GradscopeError for a root that has no graph.
    """
    graph = snapshot(*roots)  # says what is wrong with the roots
    names = Names()
    names.learn_variables(user_frames(sys._getframe(1)))
    with DisableTorchFunction():
        nodes = Walker(len(graph.nodes)).walk(map(root_node, roots))
        savers, sources = _savers(nodes, names)
        del nodes
        found: dict[str, torch.Tensor] = {}
        for name, value in variables(sys._getframe(1)):
            if issubclass(type(value), torch.Tensor) and not name.startswith("_"):
                found.setdefault(name, value)
        listed_already = {storage_of(tensor) for tensor in found.values()}
        for name, tensor in sources.items():
            if storage_of(tensor) not in listed_already:
                found.setdefault(name, tensor)
        del graph, sources
        return Uses(_use(name, tensor, savers) for name, tensor in found.items())


def _savers(
    nodes: Iterable[Node], names: Names
) -> tuple[dict[int, list[str]], dict[str, torch.Tensor]]:
    """Which nodes saved each memory, as text; and the leaves among what they saved, by name."""
    savers: dict[int, list[str]] = {}
    leaves: dict[str, torch.Tensor] = {}
    for node in nodes:
        for name, data in held(node, kind_of(type(node))):
            tensor = data.tensor if isinstance(data, Packed) else data
            if not isinstance(tensor, torch.Tensor):
                continue
            key = storage_of(tensor)
            if key:
                saver = node.name().rsplit("::", 1)[-1]
                savers.setdefault(key, []).append(f"{saver} saved it as `{name}`")
            view_of = tensor._base if tensor._is_view() else None
            base = tensor if view_of is None else view_of  # what is saved is often `weight.t()`
            called = names.of_tensor(base)
            if called is not None and base.is_leaf:
                leaves.setdefault(called, base)
    return savers, leaves


def _use(name: str, tensor: torch.Tensor, savers: dict[int, list[str]]) -> Use:
    by = savers.get(storage_of(tensor), [])
    why = listed(by, most=2)
    if not by and tensor.is_leaf and tensor.requires_grad:
        why = "under no_grad, as any leaf"
    backward, because = _backward(tensor)
    return Use(name, describe(tensor), not by, why, backward, because)


def _backward(tensor: torch.Tensor) -> tuple[bool, str]:
    if not tensor.requires_grad:
        return False, "it does not require grad"
    if tensor.is_leaf:
        return True, "a leaf, it saved nothing"
    hazards = check(tensor)
    if hazards:
        return False, _refused(tensor, hazards)
    again = all(node.state is NodeState.BUFFERLESS for node in snapshot(tensor).nodes)
    return True, "any number of times" if again else "once, unless retain_graph=True"


def _refused(tensor: torch.Tensor, hazards: Hazards) -> str:
    if hazards[0].code != "GS101":
        return f"what {listed(hazards[0].nodes)} saved was changed in place"
    freed = (node for node in snapshot(tensor).nodes if node.state is NodeState.FREED)
    calls = {node.freed_by for node in freed if node.freed_by}
    by = f" by call {min(calls)}" if len(calls) == 1 else ""
    return f"what {listed(hazards[0].nodes)} saved was freed{by}"


def _answer(yes: bool, why: str) -> str:
    return f"{'yes' if yes else 'no'}{', ' if yes and why else ': ' if why else ''}{why}"
