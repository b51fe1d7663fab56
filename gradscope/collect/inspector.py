"""Inspects the graph of a backward call: walks it, marks new nodes, and checks what every node
saved.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.autograd.graph import Node

from gradscope.collect.calls import BEFORE_WATCH, EngineCall
from gradscope.collect.generations import OTHER
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import KEY, OPAQUE, GraphMark, LeafMark, NodeMark, Packed, Packs, Stale
from gradscope.collect.nodes import (
    CLONE,
    Kind,
    held,
    is_foreach,
    kind_of,
    known_kinds,
    packs_in,
    slices_may_be_stale,
    slices_were_freed,
    stale_by_engine,
    stale_inputs_of_checkpoint,
    was_freed,
)
from gradscope.collect.state import State
from gradscope.collect.walk import MOST_NODES, dependencies_last, root_node, will_run
from gradscope.program.sites import Place
from gradscope.program.tensors import is_parameter
from gradscope.torch_private import FUNCTION_APPLY, NO_SEQUENCE_NR, SAVED_TENSORS_ARE_READABLE

_OF_NUMBERS = frozenset({torch.bool, torch.int64, torch.float64, torch.complex128})
_NOTHING: list[weakref.ref[Packed]] = []


class Inspector:
    """Inspects graphs for one watch."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._ledger, self._generations = state.ledger, state.generations
        self._saving, self._history = state.saving, state.history
        # Classes of its own for each watch spare each mark one attribute.
        self._node_mark: type[NodeMark] = type("NodeMark", (NodeMark,), {"census": state.census})
        self._leaf_mark: type[NodeMark] = type("LeafMark", (LeafMark,), {"census": state.census})

    def walk(self, roots: Sequence[Node], place: Place | None = None) -> Inspection:
        """Walk the graph of a call at ``place``, mark new nodes, and check every saved tensor.

        This runs at every backward call, so it is one loop of its own, with local names.
        """
        self._history.gather()
        self.state.suspension.read_next()  # its nodes are marked from now on
        self.state.suspension.resting.clear()  # and a step may be the first to use its gradients
        look = Inspection()
        nodes, index, marks = look.nodes, look.index, look.marks
        kinds, places = look.kinds, look.places
        census, generation = self.state.census, self._generations.latest
        room, passes = self.state.stack_limit.room_for(0), self.state.budget is not None
        storages: dict[int, int] = {}
        slices: list[int] = []
        marked: set[int] = set()
        stack = list(roots)[::-1]
        while stack:
            node = stack.pop()
            if node in index:
                continue
            i = len(nodes)
            if i >= room:
                room = min(self.state.stack_limit.room_for(MOST_NODES), MOST_NODES)
                if i >= room:
                    look.left = len(stack) + 1
                    self._ledger.notes.add(
                        f"graph inspection stopped at {i:,} nodes: "
                        "visiting more could overflow the stack when the graph is destroyed"
                    )
                    break
            index[node] = i
            nodes.append(node)
            kind = type(node)
            metadata: Any = node.metadata  # a property, though its stub says a method
            mark = metadata.get(KEY)
            if mark is None or mark.census is not census:
                if GraphMark.KEY in metadata:
                    metadata[GraphMark.KEY].leave_to_marks()
                mark = metadata[KEY] = self._mark(look, node, slices)
                marked.add(i)
            else:
                asked = mark.unseen or mark.is_function or mark.probed
                if asked and mark.freed_by is None:
                    self._recheck(mark, node)
                elif passes and mark.freed_by is None and any(r() is None for r in mark.packs):
                    mark.freed_by = BEFORE_WATCH  # or by a call that was not looked at
                if kind.__name__ == "CompiledFunctionBackward":
                    look.compiled.append(i)
            if mark.freed_by is not None:
                look.freed.append(i)
            marks.append(mark)
            older = mark.generation != generation and mark.sequence_nr != NO_SEQUENCE_NR
            if older and (look.oldest is None or mark.generation < look.oldest):
                look.oldest = mark.generation
            if mark.packs:
                self._check(look, i, mark, storages)
            if mark.probed and not mark.is_run_elsewhere:
                look.stale += [(i, stale) for stale in stale_by_engine(node, kind_of(kind))]
            kinds.append(kind)
            places.append(mark.place)
            for target, _ in reversed(node.next_functions):
                if target is not None and target not in index:
                    stack.append(target)
        if self._generations.others:
            self._tell_threads(look, marked)
        if slices:
            self._claim_slices(look, slices, storages)
        storages.update(look.unhooked)
        look.tensors += len(look.unhooked)
        look.nbytes = sum(storages.values())
        if look.unhooked:
            made = self.state.recognizer.places_of(tuple(kinds), place)
            for i, (mark, where) in enumerate(zip(marks, made, strict=False)):
                if mark.place is None:
                    mark.place = places[i] = where
        return look

    def _mark(self, look: Inspection, node: Node, slices: list[int]) -> NodeMark:
        """Make the mark of a node that no look has met, and tie to it what the node saved."""
        kind = type(node)
        known = known_kinds.get(kind) or kind_of(kind)
        if known.is_leaf:
            mark = self._leaf_mark()
        else:
            mark = self._node_mark()
            self.state.census.alive += 1
        mark.generation = self._generations.latest
        mark.sequence_nr = node._sequence_nr()
        packs = _NOTHING
        if self._saving.other_thread and not known.is_leaf:
            packs = self._claim_own(mark, node, known)
        elif known.saves:
            packs = self._ledger.pending.pop(mark.sequence_nr, _NOTHING)
        number = mark.sequence_nr
        if number < self._generations.first:
            self.state.census.before += 1
        if known.is_function:
            mark.is_function = True
            if known.is_compiled:
                look.compiled.append(look.index[node])
            self._tie(look, mark, node, known)
        elif known.is_slices:
            if packs:  # claimed with those of its inner node, once the other nodes have theirs
                self._ledger.pending[number] = packs
            mark.unseen = OPAQUE
            if slices_were_freed(node):  # its number does not tell: another thread has its own
                mark.freed_by = BEFORE_WATCH
            slices.append(look.index[node])
        elif packs:
            if SAVED_TENSORS_ARE_READABLE and len(packs) < len(known.names):
                packs = self._held(node, known) or packs
            mark.packs = self._claim(mark, packs)
        elif known.names or is_foreach(node, known):
            self._tie(look, mark, node, known)
        if number < self._generations.newest or (number >= OTHER and not known.is_leaf):
            mark.generation = self._generations.of(number)
        return mark

    def _check(self, look: Inspection, i: int, mark: NodeMark, storages: dict[int, int]) -> None:
        """Count what a node saved, and see what of it is stale."""
        for reference in mark.packs:
            packed = reference()
            if packed is None:
                continue
            look.tensors += 1
            if packed.storage:
                storages[packed.storage] = packed.nbytes
            tensor = packed.tensor
            if packed.theirs is not None:
                look.foreign = True
                look.stale += [(i, s) for s in stale_inputs_of_checkpoint(packed.theirs[1])]
            elif tensor is not None and (
                tensor._version != packed.version
                or (packed.is_detached and not (mark.is_function or packed.by_function))
            ):
                node = look.nodes[i]
                kind = kind_of(type(node))
                # Another thread's node that saved nothing may have the number of the one that did.
                if kind.names and packed not in packs_in(node, kind):
                    continue
                by_function = packed.by_function or FUNCTION_APPLY is None
                asked = kind.is_slices and not mark.is_run_elsewhere
                if not asked or slices_may_be_stale(node, by_function):
                    look.stale.append((i, Stale(tensor, packed.version)))

    def _tie(self, look: Inspection, mark: NodeMark, node: Node, kind: Kind) -> None:
        """Read from the node what it saved, if its number does not identify it or no hooks were
        installed.
        """
        packs, unseen = [], []
        suspended = self._history.was_suspended(mark.sequence_nr)
        if suspended:
            self._history.recall(mark)
        for name, data in held(node, kind):
            if isinstance(data, Packed) and data.ledger is self._ledger:
                packs.append(weakref.ref(data))
            else:
                unseen.append((name.split("[", 1)[0], data))
        if suspended:
            look.unhooked += [weight(each) for _, each in unseen if isinstance(each, torch.Tensor)]
        mark.packs = self._claim(mark, packs)
        mark.unseen = tuple(dict.fromkeys(name for name, _ in unseen))
        are_numbers = all(_may_be_number(data) for _, data in unseen)
        mark.probed = bool(unseen) and (suspended or not self.state.hooked or not are_numbers)
        mark.probed = mark.probed or kind.is_unnamed  # by hooks unseen: it may have saved nothing
        if not packs and not unseen and was_freed(node, kind):
            mark.unseen = kind.names
            if suspended and mark.call is None:
                mark.call = self._history.who_freed(mark.sequence_nr)
            mark.freed_by = mark.call or BEFORE_WATCH
            if mark.call is None:
                mark.generation = 0

    def _held(self, node: Node, kind: Kind) -> list[weakref.ref[Packed]]:
        """Return what a node has of ours, where it can have saved more than waits for its number:
        that may wait for the number of a node that torch has built meanwhile.
        """
        found = packs_in(node, kind)
        return [weakref.ref(packed) for packed in found if packed.ledger is self._ledger]

    def _claim(self, mark: NodeMark, packs: Packs) -> Packs:
        """Tie saved tensors to the node of a mark."""
        for reference in packs:
            packed = reference()
            if packed is not None:
                packed.mark = mark
                if packed.sequence_nr != mark.sequence_nr:  # that of a node built meanwhile
                    self._ledger.pending.pop(packed.sequence_nr, None)
                if mark.place is None:
                    mark.place, mark.module = packed.place, packed.module
                    mark.route, mark.differentiates = packed.route, packed.differentiates
        return packs

    def _claim_own(self, mark: NodeMark, node: Node, kind: Kind) -> list[weakref.ref[Packed]]:
        """Find out which thread built a node, by what it saved; return this where the node itself
        cannot be asked for it.

        Nodes of several threads have torch's number: so the saved tensors that wait for that one
        may be another's.
        """
        pending = self._ledger.pending
        own = packs_in(node, kind)
        if not own:
            mark.sequence_nr += self.state.noted(node)
            waiting = [n for n in self._generations.alike(mark.sequence_nr) if n in pending]
            is_hidden = kind.is_slices or (kind.is_unnamed and not is_foreach(node, kind))
            if len(waiting) != 1 or not is_hidden:
                return _NOTHING
            mark.sequence_nr = waiting[0]
            return pending.pop(waiting[0])
        mark.sequence_nr += self._generations.bits_of(own[0].thread)
        mine = {id(packed) for packed in own}
        left = pending.pop(mark.sequence_nr, ())
        if left := [r for r in left if r() is not None and id(r()) not in mine]:
            pending[mark.sequence_nr] = left
        return _NOTHING

    def _tell_threads(self, look: Inspection, marked: set[int]) -> None:
        """Tell which nodes another thread has built of those that saved nothing."""
        marks, generations = look.marks, self._generations
        known = [i not in marked or bool(mark.packs) for i, mark in enumerate(marks)]
        numbers = [mark.sequence_nr for mark in marks]
        told = generations.tell_threads(numbers, known, look.targets)
        for mark, number in zip(marks, told, strict=True):
            if number != mark.sequence_nr:
                mark.sequence_nr, mark.generation = number, generations.of(number)
                if len(generations.others) == 1:  # else which of them has built it is a guess
                    generations.see_built(number, counts=True)
        ages = [t.generation for t in marks if t.sequence_nr != NO_SEQUENCE_NR]
        look.oldest = min([age for age in ages if age != generations.latest], default=None)

    def _claim_slices(self, look: Inspection, slices: list[int], storages: dict[int, int]) -> None:
        """Tie to new CopySlices nodes what the nodes that they wrap have saved.

        The wrapped node was built just before, by the same instruction. Between the two lies at
        most the node of a clone of what the operation changes, or one for a view that it saved and
        that had been modified, which makes torch build its node anew.
        """
        pending = self._ledger.pending
        previous = -1
        for i in sorted(slices, key=lambda i: look.marks[i].sequence_nr):
            mark = look.marks[i]
            place = None
            for number in range(mark.sequence_nr + 1, max(previous, mark.sequence_nr - 4), -1):
                packs = [p for p in (r() for r in pending.get(number, _NOTHING)) if p is not None]
                if not packs or (place is not None and packs[0].place is not place):
                    continue
                if number < mark.sequence_nr - 1 and not any(
                    _may_lie_between(p, number, mark.sequence_nr) for p in packs
                ):
                    continue
                place = packs[0].place
                mark.packs = [*mark.packs, *self._claim(mark, pending.pop(number))]
            hidden = self._ledger.hidden.of_slices(mark.sequence_nr)
            mark.packs = [*mark.packs, *self._claim(mark, hidden)]
            previous = mark.sequence_nr
            pending.pop(mark.sequence_nr, None)
            self._check(look, i, mark, storages)

    def _recheck(self, mark: NodeMark, node: Node) -> None:
        """Find out whether a call has freed what our hooks did not see: the last that ran the node,
        or one that was not looked at.
        """
        if mark.call is None:
            self._history.recall(mark)
        passes = self.state.passes
        call = mark.call or (BEFORE_WATCH if passes else None)
        if call is None or call.open:
            return
        kind = kind_of(type(node))
        if kind.is_function or kind.is_unnamed:  # it may have saved nothing, and fail even so
            freed = was_freed(node, kind)
        elif kind.is_slices:
            freed = (passes or not call.keep) and slices_were_freed(node)
        else:
            freed = not held(node, kind)
        if freed:
            mark.freed_by = BEFORE_WATCH if passes and call.keep else call

    def inspect(self, asked: EngineCall, roots: Sequence[Node], place: Place | None) -> Inspection:
        """Look at the graph of a call, and find out which nodes it will run."""
        look = self.walk(roots, place)
        look.asked, look.bare, look.constant = asked, asked.bare, asked.constant
        look.unused = [] if look.left else asked.unused(look.nodes)
        if not asked.inputs:
            return look
        known: dict[Any, int] = look.index
        leaves = {id(n.variable): i for n, i in known.items() if kind_of(type(n)).is_leaf}
        found = (known.get(root_node(t), leaves.get(id(t))) for t in asked.inputs)
        wanted = {i for i in found if i is not None}
        order = dependencies_last(look.targets)
        look.runs = will_run(look.targets, order, wanted, not asked.accumulates)
        return look


def weight(tensor: torch.Tensor) -> tuple[int, int]:
    """Return address and bytes of a saved tensor; 0 for a parameter, which costs no memory."""
    return (0, 0) if is_parameter(tensor) else memory(tensor)


def memory(tensor: torch.Tensor) -> tuple[int, int]:
    """Return address and bytes of a tensor's storage; 0 where it has none of its own."""
    with suppress(NotImplementedError, RuntimeError):  # sparse and opaque tensors
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    return 0, 0


def _may_be_number(saved: Any) -> bool:
    """Return whether this looks like a Python number that torch has made a tensor of.

    Such a one bypasses the hooks, and nobody can modify it. What hooks of the program's have packed
    is a tensor no more, nor a number.
    """
    is_scalar = isinstance(saved, torch.Tensor) and not saved.ndim
    return is_scalar and saved.dtype in _OF_NUMBERS and not saved.requires_grad


def _may_lie_between(packed: Packed, after: int, before: int) -> bool:
    """Return whether the node of a clone, or of a renewed view, can lie between two others."""
    if packed.output is not None and packed.output[0] == CLONE:
        return True
    tensor = packed.tensor
    if tensor is None or not packed.original or not tensor._is_view() or tensor.grad_fn is None:
        return False
    return after < tensor.grad_fn._sequence_nr() < before
