"""Gathers which optimizers train what: the two losses of a hazard, and the part that they share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import Node

from gradscope.code import source, statements
from gradscope.collect.look import Look
from gradscope.collect.state import State
from gradscope.collect.walk import Walker, dependencies_last, reachable
from gradscope.detect.foresight.reading import Held, Read
from gradscope.detect.node_facts import will_free
from gradscope.model import BackwardCall, Site
from gradscope.program.ahead.values import kind_of
from gradscope.program.ahead.ways import GradEvent, What
from gradscope.program.layouts import class_name
from gradscope.program.names import Names
from gradscope.program.reach import Budget, Walk
from gradscope.program.tensors import describe, held_node, leaves_of
from gradscope.program.undisturbed import Uncollected, Untraced
from gradscope.rules.gs102 import Cut, Link, Loss, Roles

Events = Sequence[GradEvent]

_MOST_NODES = 2_000  # that may be touched in one look
_BUDGET = Budget(max_objects=4_000, max_depth=6, max_items=64)


class Optimizer(NamedTuple):
    """An optimizer by its name, and its parameters by identity."""

    name: str
    parameters: frozenset[int]
    identity: int


class Optimizers:
    """The optimizers in reach of some frames."""

    def __init__(self, frames: Sequence[FrameType]) -> None:
        self.all = _found(frames)
        self.parameters = frozenset(p for each in self.all for p in each.parameters)

    def stepping(self, before: Events, after: Events) -> tuple[Optimizer, ...]:
        """Return what steps after a backward call: before the next one if any does, else before its
        gradients are reset. Of several, return those whose gradients are reset for this very call.
        """
        zeroed: set[int] = set()
        soon: dict[int, Optimizer] = {}
        later: dict[int, Optimizer] = {}
        is_next = True
        for what, of in after:
            if what is What.BACKWARD:
                is_next = False
            elif what is What.ZERO:
                zeroed |= _parameters_of(of)
            else:
                optimizer = self._known(of)
                if not optimizer.parameters <= zeroed:
                    (soon if is_next else later).setdefault(optimizer.identity, optimizer)
                zeroed |= optimizer.parameters if is_next else set()
        found = tuple((soon or later).values())
        fresh: set[int] = set()
        for what, of in before:
            fresh = set() if what is What.BACKWARD else fresh
            fresh |= _parameters_of(of) if what is What.ZERO else set()
        return tuple(each for each in found if each.parameters <= fresh) or found

    def _known(self, of: Any) -> Optimizer:
        unnamed = Optimizer(class_name(kind_of(of)), _parameters_of(of), id(of))
        return next((each for each in self.all if each.identity == id(of)), unnamed)


def _found(frames: Sequence[FrameType]) -> list[Optimizer]:
    """Return the optimizers that variables lead to, those with short names first."""
    with Untraced(), Uncollected():
        walk = Walk(_BUDGET)
        walk.enter_frames(frames)
        walk.run()
        found = walk.instances(torch.optim.Optimizer)
        return [Optimizer(path.text, _parameters_of(each), id(each)) for path, each in found]


def _parameters_of(of: Any) -> frozenset[int]:
    """Return the parameters of an optimizer, a module or a tensor, by identity; what is made ahead
    stands for its own, which are not known.
    """
    kind = type(of)
    if issubclass(kind, torch.nn.Module):
        return frozenset(map(id, torch.nn.Module.parameters(of)))
    if issubclass(kind, torch.optim.Optimizer):
        groups = object.__getattribute__(of, "__dict__").get("param_groups", ())
        return frozenset(id(p) for group in groups for p in group["params"])
    return frozenset((id(of),))


class Freeing:
    """Which nodes of a look its call will free, and from which nodes these can be reached."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self.frees = [will_free(look, i) for i in range(len(look.nodes))]
        self._below = list(self.frees)
        for i in dependencies_last(look.targets):
            self._below[i] = self._below[i] or any(self._below[j] for j in look.targets[i])
        self._walker = Walker(_MOST_NODES)

    def trace(self, held: Held) -> bool:
        """Fill in what the tensor leads to; return whether any of it will be freed."""
        start = held_node(held.tensor)
        if start is None:
            return False
        held.own = self.look.index.get(start)
        met = self._met_from(start)
        held.freed = [i for i in reachable(self.look.targets, met) if self.frees[i]]
        return bool(held.freed)

    def _met_from(self, start: Node) -> list[int]:
        """The nodes of the look that a walk from ``start`` meets and that lead to what is freed."""
        index = self.look.index
        walked = self._walker.walk([start], enter=lambda node: node not in index)
        return [i for node in walked if (i := index.get(node)) is not None and self._below[i]]

    def lost(self, roots: Sequence[int], cut: int | None) -> list[torch.Tensor]:
        """Return the leaves that the roots would not lead to if their graph were cut off at
        ``cut``; all their leaves without a cut.
        """
        kept = set() if cut is None else set(reachable(self.look.targets, roots, cut={cut}))
        lost = (i for i in reachable(self.look.targets, roots) if i not in kept)
        return leaves_of(self.look.nodes[i] for i in lost)

    def comes_to(self, held: Held, tensor: torch.Tensor) -> bool:
        """Return whether a way from the held tensor to another runs a node that will be freed."""
        behind = (target for i in held.freed for target in self.look.targets[i])
        found = reachable(self.look.targets, behind)
        node = held_node(tensor)
        if node is not None:
            return self.look.index.get(node) in found
        return any(leaf is tensor for leaf in leaves_of(self.look.nodes[i] for i in found))

    def leaves(self, held: Held) -> list[torch.Tensor]:
        """Return the leaves that the part about to be freed leads to."""
        return leaves_of(self.look.nodes[i] for i in reachable(self.look.targets, held.freed))


def is_root_of(record: BackwardCall, look: Look, held: Held, name: str) -> bool:
    """Return whether a call starts at the tensor held under a name, and nowhere else.

    Compiled code is one node, whatever it returns: there the names tell the results apart.
    """
    root = record.roots[0] if len(record.roots) == 1 else None
    if root is None or held.own is None or held.own != root.node:
        return False
    is_compiled = held.own in look.compiled
    return not is_compiled or root.name in (None, name)


# What no graph shows: `loss = mse(q, target_q)` trains what is behind `target_q` too, unless its
# name says that it is meant to be constant.
_CONSTANT = re.compile(
    r"(^|_)(old|targets?|tgt|teacher|ref|reference|ema|td|adv|advantages?|returns?|baseline|frozen|"
    r"anchor|label|pseudo|backup|bootstrap|behaviou?r|style|gram|expert)(_|s?\d*$)"
)
# `epoch_total += loss` wants a number, `loss += 0.1 * penalty` a loss: only the name tells.
_TOTAL = re.compile(r"total|epoch|running|sum|cum|avg|mean|acc|hist|log|meter")


def _named(names: Names, leaves: Iterable[torch.Tensor]) -> tuple[str, ...]:
    """Name leaves: those of modules and variables by name, others by what they are."""
    pairs = ((names.of_tensor(leaf), describe(leaf)) for leaf in leaves)
    return tuple(dict.fromkeys(name or f"an unnamed leaf {kind}" for name, kind in pairs))


def roles_of(
    watch: State,
    record: BackwardCall,
    freeing: Freeing,
    held: Held,
    reading: Read,
    reached: Sequence[Held],
    frames: Sequence[FrameType],
    around: tuple[Events, Events],
) -> Roles:
    """Return what the part that is freed is for, and what trains it.

    ``around`` is what is done with gradients before the later call and after it.
    """
    assert record.site is not None
    watch.names.learn_variables(frames)
    optimizers, names = Optimizers(frames), watch.names
    here, there = record.site, reading.backward
    before, after = around
    first = optimizers.stepping((), (*before, *after))
    second = optimizers.stepping(before, after[1:])
    shared = freeing.leaves(held)
    is_known = bool(first and second)
    links: tuple[Link, ...] = ()
    if here != there:
        between = _Between(freeing, record, reading, (first, second), names)
        links = tuple(filter(None, (between.link(one, held) for one in reached)))
    return Roles(
        leaves=_named(names, shared),
        first=Loss(_loss_name(here), here, _names(first)),
        second=Loss(_loss_name(there), there, _names(second)),
        known=is_known,
        links=links[:3],
        constant=_constant(reading, optimizers, shared, second, names),
        same_optimizer=is_known and set(_names(first)) == set(_names(second)),
        total=_TOTAL.search(reading.name.rpartition(".")[2].lower()) is not None,
    )


def _names(optimizers: Iterable[Optimizer]) -> tuple[str, ...]:
    return tuple(each.name for each in optimizers)


def _of(leaves: Iterable[torch.Tensor], optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    """Return the leaves that one of the optimizers steps."""
    held = {p for each in optimizers for p in each.parameters}
    return [leaf for leaf in leaves if id(leaf) in held]


@dataclass(frozen=True, slots=True)
class _Between:
    """What is needed to judge each variable between the two losses."""

    _freeing: Freeing
    _record: BackwardCall
    _reading: Read
    _optimizers: tuple[tuple[Optimizer, ...], tuple[Optimizer, ...]]
    _names: Names

    def link(self, held: Held, failing: Held) -> Link | None:
        """Return how the two losses share a variable; None if they do not, or not there first."""
        roots = [root.node for root in self._record.roots if root.node is not None]
        if held.own is None or held.own in roots:
            return None
        lost_second = _leaves_behind(failing, held)
        if lost_second is None:
            return None
        leaves = self._freeing.leaves(held)
        lost_first = self._freeing.lost([*roots], held.own)
        return Link(
            self._reading.via or self._reading.name if held is failing else held.paths[0].text,
            self._cut(leaves),
            _named(self._names, leaves),
            _named(self._names, lost_first),
            _named(self._names, lost_second),
            len(lost_first) == len(self._freeing.lost(roots, None)),
        )

    def _cut(self, leaves: list[torch.Tensor]) -> Cut:
        """Return which loss may do without: the one whose optimizers do not step the leaves."""
        first, second = self._optimizers
        if not first or not second:
            return Cut.BOTH
        match bool(_of(leaves, first)), bool(_of(leaves, second)):
            case False, by_second:
                return Cut.FIRST if by_second else Cut.NEITHER
            case _, by_second:
                return Cut.BOTH if by_second else Cut.SECOND


def _leaves_behind(failing: Held, cut: Held) -> list[torch.Tensor] | None:
    """Return the leaves that the second loss reaches only through a variable; None if it does not
    come to that.
    """
    start, end = held_node(failing.tensor), held_node(cut.tensor)
    walker = Walker(_MOST_NODES)
    whole = [*walker.walk([start])]
    if end not in whole:
        return None
    kept = {id(leaf) for leaf in leaves_of(walker.walk([start], enter=lambda n: n != end))}
    return [leaf for leaf in leaves_of(whole) if id(leaf) not in kept]


def _constant(
    reading: Read,
    optimizers: Optimizers,
    leaves: Sequence[torch.Tensor],
    second: Sequence[Optimizer],
    names: Names,
) -> str:
    """Return why what is shared is a constant for the second loss; empty if nothing says so."""
    name = reading.name
    if leaves and optimizers.all and not _of(leaves, second or optimizers.all):
        return "no optimizer that steps with this loss has its parameters"
    statement = source.statement_at(reading.site)
    if statement is not None and reading.via in map(ast.unparse, statements.targets_in(statement)):
        return "it enters the loss as its target"
    if _is_named_constant(name):
        return "its name says that it is a constant"
    if leaves and all(_is_named_constant(each.partition(".")[0]) for each in _named(names, leaves)):
        return "it comes from a copy of the model"
    return ""


def _is_named_constant(text: str) -> bool:
    last = text.rpartition(".")[2].partition("[")[0]
    return _CONSTANT.search(last.lower()) is not None


def _loss_name(site: Site) -> str:
    call = source.call_at(site)
    if call is None:
        return ""
    root = call.func.value if isinstance(call.func, ast.Attribute) else None
    if call.args and (source.called_name(call) != "backward" or not isinstance(root, ast.Name)):
        root = call.args[0]
    while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and root.args:
        root = root.args[0]  # scaler.scale(loss).backward()
    return ast.unparse(root) if isinstance(root, ast.Name | ast.Attribute) else ""
