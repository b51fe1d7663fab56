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
from gradscope.collect.inspection import Look
from gradscope.collect.marks import KEY, OPAQUE, LeafToken, Packed, Packs, Stale, Token, Weight
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


class Looker:
    """Inspects graphs for one watch."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._ledger, self._generations = state.ledger, state.generations
        self._saving, self._past = state.saving, state.past
        # Classes of its own for each watch spare each mark one attribute.
        self._token: type[Token] = type("Token", (Token,), {"census": state.census})
        self._leaf_token: type[Token] = type("LeafToken", (LeafToken,), {"census": state.census})

    def look(self, roots: Sequence[Node], place: Place | None = None) -> Look:
        """Walk the graph of a call at ``place``, mark new nodes, and check every saved tensor.

        This runs at every backward call, so it is one loop of its own, with local names.
        """
        self._past.gather()
        self._state.lifting.read_next()  # its nodes are marked from now on
        look = Look()
        nodes, index, tokens = look.nodes, look.index, look.tokens
        kinds, places = look.kinds, look.places
        census, generation = self._state.census, self._generations.latest
        room, passes = self._state.stack_limit.room_for(0), self._state.budget is not None
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
                room = min(self._state.stack_limit.room_for(MOST_NODES), MOST_NODES)
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
            token = metadata.get(KEY)
            if token is None or token.census is not census:
                if Weight.KEY in metadata:
                    metadata[Weight.KEY].leave_to_marks()
                token = metadata[KEY] = self._mark(look, node, slices)
                marked.add(i)
            else:
                asked = token.unseen or token.is_function or token.probed
                if asked and token.freed_by is None:
                    self._recheck(token, node)
                elif passes and token.freed_by is None and any(r() is None for r in token.packs):
                    token.freed_by = BEFORE_WATCH  # or by a call that was not looked at
                if kind.__name__ == "CompiledFunctionBackward":
                    look.compiled.append(i)
            if token.freed_by is not None:
                look.freed.append(i)
            tokens.append(token)
            older = token.generation != generation and token.sequence_nr != NO_SEQUENCE_NR
            if older and (look.oldest is None or token.generation < look.oldest):
                look.oldest = token.generation
            if token.packs:
                self._check(look, i, token, storages)
            if token.probed and not token.is_run_elsewhere:
                look.stale += [(i, stale) for stale in stale_by_engine(node, kind_of(kind))]
            kinds.append(kind)
            places.append(token.place)
            following = node.next_functions
            if len(following) == 1:
                target = following[0][0]
                if target is not None and target not in index:
                    stack.append(target)
            else:
                for target, _ in reversed(following):
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
            made = self._state.recognizer.places_of(tuple(kinds), place)
            for i, (token, where) in enumerate(zip(tokens, made, strict=False)):
                if token.place is None:
                    token.place = places[i] = where
        return look

    def _mark(self, look: Look, node: Node, slices: list[int]) -> Token:
        """Make the mark of a node that no look has met, and tie to it what the node saved."""
        kind = type(node)
        known = known_kinds.get(kind) or kind_of(kind)
        if known.is_leaf:
            token = self._leaf_token()
        else:
            token = self._token()
            self._state.census.alive += 1
        token.generation = self._generations.latest
        token.sequence_nr = node._sequence_nr()
        packs = _NOTHING
        if self._saving.other_thread and not known.is_leaf:
            packs = self._claim_own(token, node, known)
        elif known.saves:
            packs = self._ledger.pending.pop(token.sequence_nr, _NOTHING)
        number = token.sequence_nr
        if number < self._generations.first:
            self._state.census.before += 1
        if known.is_function:
            token.is_function = True
            if known.is_compiled:
                look.compiled.append(look.index[node])
            self._tie(look, token, node, known)
        elif known.is_slices:
            if packs:  # claimed with those of its inner node, once the other nodes have theirs
                self._ledger.pending[number] = packs
            token.unseen = OPAQUE
            if slices_were_freed(node):  # its number does not tell: another thread has its own
                token.freed_by = BEFORE_WATCH
            slices.append(look.index[node])
        elif packs:
            if SAVED_TENSORS_ARE_READABLE and len(packs) < len(known.names):
                packs = self._held(node, known) or packs
            token.packs = self._claim(token, packs)
        elif known.names or is_foreach(node, known):
            self._tie(look, token, node, known)
        if number < self._generations.newest or (number >= OTHER and not known.is_leaf):
            token.generation = self._generations.of(number)
        return token

    def _check(self, look: Look, i: int, token: Token, storages: dict[int, int]) -> None:
        """Count what a node saved, and see what of it is stale."""
        for reference in token.packs:
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
                or (packed.is_detached and not (token.is_function or packed.by_function))
            ):
                node = look.nodes[i]
                kind = kind_of(type(node))
                # Another thread's node that saved nothing may have the number of the one that did.
                if kind.names and packed not in packs_in(node, kind):
                    continue
                by_function = packed.by_function or FUNCTION_APPLY is None
                asked = kind.is_slices and not token.is_run_elsewhere
                if not asked or slices_may_be_stale(node, by_function):
                    look.stale.append((i, Stale(tensor, packed.version)))

    def _tie(self, look: Look, token: Token, node: Node, kind: Kind) -> None:
        """Read from the node what it saved, if its number does not identify it or no hooks were
        installed.
        """
        packs, unseen = [], []
        lifted = self._past.was_lifted(token.sequence_nr)
        if lifted:
            self._past.recall(token)
        for name, data in held(node, kind):
            if isinstance(data, Packed) and data.ledger is self._ledger:
                packs.append(weakref.ref(data))
            else:
                unseen.append((name.split("[", 1)[0], data))
        if lifted:
            look.unhooked += [weight(each) for _, each in unseen if isinstance(each, torch.Tensor)]
        token.packs = self._claim(token, packs)
        token.unseen = tuple(dict.fromkeys(name for name, _ in unseen))
        are_numbers = all(_may_be_number(data) for _, data in unseen)
        token.probed = bool(unseen) and (lifted or not self._state.hooked or not are_numbers)
        token.probed = token.probed or kind.is_unnamed  # by hooks unseen: it may have saved nothing
        if not packs and not unseen and was_freed(node, kind):
            token.unseen = kind.names
            if lifted and token.call is None:
                token.call = self._past.who_freed(token.sequence_nr)
            token.freed_by = token.call or BEFORE_WATCH
            if token.call is None:
                token.generation = 0

    def _held(self, node: Node, kind: Kind) -> list[weakref.ref[Packed]]:
        """Return what a node has of ours, where it can have saved more than waits for its number:
        that may wait for the number of a node that torch has built meanwhile.
        """
        found = packs_in(node, kind)
        return [weakref.ref(packed) for packed in found if packed.ledger is self._ledger]

    def _claim(self, token: Token, packs: Packs) -> Packs:
        """Tie saved tensors to the node of a token."""
        for reference in packs:
            packed = reference()
            if packed is not None:
                packed.token = token
                if packed.sequence_nr != token.sequence_nr:  # that of a node built meanwhile
                    self._ledger.pending.pop(packed.sequence_nr, None)
                if token.place is None:
                    token.place, token.module = packed.place, packed.module
                    token.route, token.differentiates = packed.route, packed.differentiates
        return packs

    def _claim_own(self, token: Token, node: Node, kind: Kind) -> list[weakref.ref[Packed]]:
        """Find out which thread built a node, by what it saved; return this where the node itself
        cannot be asked for it.

        Nodes of several threads have torch's number: so the saved tensors that wait for that one
        may be another's.
        """
        pending = self._ledger.pending
        own = packs_in(node, kind)
        if not own:
            token.sequence_nr += self._state.noted(node)
            waiting = [n for n in self._generations.alike(token.sequence_nr) if n in pending]
            is_hidden = kind.is_slices or (kind.is_unnamed and not is_foreach(node, kind))
            if len(waiting) != 1 or not is_hidden:
                return _NOTHING
            token.sequence_nr = waiting[0]
            return pending.pop(waiting[0])
        token.sequence_nr += self._generations.bits_of(own[0].thread)
        mine = {id(packed) for packed in own}
        left = pending.pop(token.sequence_nr, ())
        if left := [r for r in left if r() is not None and id(r()) not in mine]:
            pending[token.sequence_nr] = left
        return _NOTHING

    def _tell_threads(self, look: Look, marked: set[int]) -> None:
        """Tell which nodes another thread has built of those that saved nothing."""
        tokens, generations = look.tokens, self._generations
        known = [i not in marked or bool(token.packs) for i, token in enumerate(tokens)]
        numbers = [token.sequence_nr for token in tokens]
        told = generations.tell_threads(numbers, known, look.targets)
        for token, number in zip(tokens, told, strict=True):
            if number != token.sequence_nr:
                token.sequence_nr, token.generation = number, generations.of(number)
                if len(generations.others) == 1:  # else which of them has built it is a guess
                    generations.see_built(number, counts=True)
        ages = [t.generation for t in tokens if t.sequence_nr != NO_SEQUENCE_NR]
        look.oldest = min([age for age in ages if age != generations.latest], default=None)

    def _claim_slices(self, look: Look, slices: list[int], storages: dict[int, int]) -> None:
        """Tie to new CopySlices nodes what the nodes that they wrap have saved.

        The wrapped node was built just before, by the same instruction. Between the two lies at
        most the node of a clone of what the operation changes, or one for a view that it saved and
        that had been modified, which makes torch build its node anew.
        """
        pending = self._ledger.pending
        previous = -1
        for i in sorted(slices, key=lambda i: look.tokens[i].sequence_nr):
            token = look.tokens[i]
            place = None
            for number in range(token.sequence_nr + 1, max(previous, token.sequence_nr - 4), -1):
                packs = [p for p in (r() for r in pending.get(number, _NOTHING)) if p is not None]
                if not packs or (place is not None and packs[0].place is not place):
                    continue
                if number < token.sequence_nr - 1 and not any(
                    _may_lie_between(p, number, token.sequence_nr) for p in packs
                ):
                    continue
                place = packs[0].place
                token.packs = [*token.packs, *self._claim(token, pending.pop(number))]
            hidden = self._ledger.loose.of_slices(token.sequence_nr)
            token.packs = [*token.packs, *self._claim(token, hidden)]
            previous = token.sequence_nr
            pending.pop(token.sequence_nr, None)
            self._check(look, i, token, storages)

    def _recheck(self, token: Token, node: Node) -> None:
        """Find out whether a call has freed what our hooks did not see: the last that ran the node,
        or one that was not looked at.
        """
        if token.call is None:
            self._past.recall(token)
        passes = self._state.passes
        call = token.call or (BEFORE_WATCH if passes else None)
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
            token.freed_by = BEFORE_WATCH if passes and call.keep else call

    def look_for(self, asked: EngineCall, roots: Sequence[Node], place: Place | None) -> Look:
        """Look at the graph of a call, and find out which nodes it will run."""
        look = self.look(roots, place)
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
