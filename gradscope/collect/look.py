"""Looks at the graph of a backward call: walks it, marks what is new, and checks what every node saved."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge, Node

from gradscope.collect.calls import BEFORE_WATCH
from gradscope.collect.generations import Generations
from gradscope.collect.ledger import CLONE, Ledger
from gradscope.collect.marks import KEY, OPAQUE, Census, LeafToken, Packed, Stale, Token
from gradscope.collect.nodes import (
    Kind,
    held,
    kind_of,
    known_kinds,
    stale_by_engine,
    stale_inputs_of_checkpoint,
    was_freed,
)
from gradscope.collect.steady import Steady
from gradscope.collect.walk import dependencies_last, edges_of, root_node, will_run
from gradscope.program.tensors import is_leaf, is_parameter

if TYPE_CHECKING:
    from gradscope.hooks import StackLimit
    from gradscope.program.sites import Place

_NO_SEQUENCE = 2**64 - 1  # torch's number for AccumulateGrad
_MOST_NODES = 300_000  # looked at in one call
_NOTHING: list[weakref.ref[Packed]] = []


class Look:
    """What a look at the graph of one backward call found; it lives only until the engine starts."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.index: dict[Node, int] = {}
        self.tokens: list[Token] = []
        self.left = 0
        self.nbytes = 0
        self.tensors = 0
        self.freed: list[int] = []
        self.stale: list[tuple[int, Stale]] = []
        self.compiled: list[int] = []
        self.oldest: int | None = None
        self.runs: list[bool] | None = None
        self.signature: list[Any] = []
        self.unhooked = False
        """Whether nodes saved something while our hooks were lifted, of which no ledger knows …"""
        self.fresh: dict[int, int] = {}
        """… and the bytes, by address, of what no look has met before."""

    def will_run(self, i: int) -> bool:
        """True when the engine will run the i-th node."""
        return self.runs is None or self.runs[i]

    def count_unhooked(self) -> tuple[int, int]:
        """How many tensors, and bytes, the nodes that will run have saved while our hooks were lifted."""
        saved = [
            pair
            for i, token in enumerate(self.tokens)
            if token.freed_by is None and self.will_run(i)
            for pair in token.unhooked
        ]
        return len(saved), sum(dict(saved).values())

    def sequence_nrs(self) -> Iterable[int]:
        """The sequence numbers of the nodes."""
        return (token.sequence_nr for token in self.tokens)


class Looker:
    """Looks at graphs for one watch."""

    def __init__(
        self,
        ledger: Ledger,
        census: Census,
        generations: Generations,
        steady: Steady,
        stack_limit: StackLimit,
        hooked: bool,
    ) -> None:
        self._ledger = ledger
        self._census = census
        self._generations = generations
        self._steady = steady
        self._stack_limit = stack_limit
        self._hooked = hooked
        self._token: type[Token] = type(
            "Token", (Token,), {"census": census}
        )  # spares one attribute each
        self._leaf_token: type[Token] = type("LeafToken", (LeafToken,), {"census": census})

    def look(self, roots: Sequence[Node], place: Place | None = None) -> Look:
        """Walk the graph of a call at ``place``, mark what is new, and check every saved tensor that is there.

        This runs at every backward call, so it is one loop with local names.
        """
        look = Look()
        nodes, index, tokens, signature = look.nodes, look.index, look.tokens, look.signature
        census, pending = self._census, self._ledger.pending
        newest, generation = self._generations.newest, self._generations.latest
        thread = threading.get_ident()
        room = self._stack_limit.room_for(0)
        tensors = 0
        storages: dict[int, int] = {}
        slices: list[int] = []
        make, make_leaf, kinds = self._token, self._leaf_token, known_kinds
        stack = list(roots)[::-1]
        while stack:
            node = stack.pop()
            if node in index:
                continue
            i = len(nodes)
            if i >= room:
                room = min(self._stack_limit.room_for(_MOST_NODES), _MOST_NODES)
                if i >= room:
                    look.left = len(stack) + 1
                    self._note_depth(i)
                    break
            index[node] = i
            nodes.append(node)
            kind = type(node)
            metadata: Any = node.metadata  # a property, though its stub says a method
            token = metadata.get(KEY)
            if token is None or token.census is not census:
                known = kinds.get(kind) or kind_of(kind)
                if known.is_leaf:
                    token = make_leaf()
                else:
                    token = make()
                    census.alive += 1
                token.generation = generation
                sequence_nr = token.sequence_nr = node._sequence_nr()
                packs = pending.pop(sequence_nr, _NOTHING) if known.saves else _NOTHING
                if packs:
                    token.packs = packs
                if known.is_function:
                    token.is_function = True
                    if known.is_compiled:
                        look.compiled.append(i)
                    self._tie(look, token, node, known)
                elif known.is_slices:
                    if (
                        packs
                    ):  # claimed with those of its inner node, once the other nodes have theirs
                        pending[sequence_nr] = packs
                    token.packs = ()
                    token.unseen = OPAQUE
                    slices.append(i)
                elif packs:
                    first = packs[0]()
                    if first is not None and first.thread != thread:
                        self._tie(look, token, node, known)
                    else:
                        self._claim(token, packs)
                elif known.names:
                    self._tie(look, token, node, known)
                if sequence_nr < newest:
                    token.generation = self._generations.of(sequence_nr)
                metadata[KEY] = token
            else:
                if token.unseen and token.freed_by is None:
                    self._recheck(token, node)
                if kind.__name__ == "CompiledFunctionBackward":
                    look.compiled.append(i)
            if token.freed_by is not None:
                look.freed.append(i)
            tokens.append(token)
            older = token.generation != generation and token.sequence_nr != _NO_SEQUENCE
            if older and (look.oldest is None or token.generation < look.oldest):
                look.oldest = token.generation
            for reference in token.packs:
                packed = reference()
                if packed is not None:
                    tensors += 1
                    if packed.storage:
                        storages[packed.storage] = packed.nbytes
                    tensor = packed.tensor
                    if tensor is not None and (
                        tensor._version != packed.version
                        or (
                            packed.original
                            and not packed.was_leaf
                            and not token.is_function
                            and is_leaf(tensor)
                        )
                    ):
                        look.stale.append((i, Stale(tensor, packed.version)))
                    elif tensor is None:
                        look.stale += [(i, stale) for stale in stale_inputs_of_checkpoint(packed)]
            if token.unhooked:
                look.unhooked = True
                tensors += len(token.unhooked)
                storages.update(token.unhooked)
            if token.probed:
                look.stale += [(i, stale) for stale in stale_by_engine(node, kind_of(kind))]
            signature.append(kind)
            signature.append(token.place)
            following = node.next_functions
            if len(following) == 1:
                target = following[0][0]
                if target is not None and target not in index:
                    stack.append(target)
            else:
                for target, _ in reversed(following):
                    if target is not None and target not in index:
                        stack.append(target)
        look.nbytes += sum(storages.values())
        look.tensors += tensors
        if slices:
            self._claim_slices(look, slices)
        if look.unhooked:
            self._ledger.saved_bytes += sum(look.fresh.values())
            self._recognize(look, place)
        return look

    def _note_depth(self, nodes: int) -> None:
        note = f"a graph was not looked at beyond {nodes:,} nodes: looking further could overflow the stack when it is destroyed"
        if note not in self._ledger.notes:
            self._ledger.notes.append(note)

    def _tie(self, look: Look, token: Token, node: Node, kind: Kind) -> None:
        """Ask the node itself what it saved, where the sequence number does not tell or our hooks were not there."""
        packs, unseen = [], []
        lifted = self._steady.was_lifted(token.sequence_nr)
        if lifted:
            self._steady.recall(token)
        for name, data in held(node, kind):
            if isinstance(data, Packed) and data.ledger is self._ledger:
                data.token = token
                token.place = token.place or data.place
                token.module = token.module or data.module
                packs.append(weakref.ref(data))
            else:
                unseen.append((name.split("[", 1)[0], data))
        if lifted:
            token.unhooked = tuple(
                _weight(data) for _, data in unseen if isinstance(data, torch.Tensor)
            )
            self._ledger.saved_tensors += len(token.unhooked)
            look.fresh.update(token.unhooked)
        token.packs = packs
        token.unseen = tuple(dict.fromkeys(name for name, _ in unseen))
        # a Python number that was wrapped into a tensor goes past the hooks, and nobody can modify it
        token.probed = any(
            data.ndim > 0 or lifted or not self._hooked
            for _, data in unseen
            if isinstance(data, torch.Tensor)
        )
        if not packs and not unseen and was_freed(node, kind):
            token.unseen = kind.names
            token.freed_by = token.call or BEFORE_WATCH
            if token.call is None:
                token.generation = 0

    def _claim(self, token: Token, packs: list[weakref.ref[Packed]]) -> list[weakref.ref[Packed]]:
        """Tie saved tensors to the node of a token."""
        for reference in packs:
            packed = reference()
            if packed is not None:
                packed.token = token
                if token.place is None:
                    token.place, token.module = packed.place, packed.module
        return packs

    def _claim_slices(self, look: Look, slices: list[int]) -> None:
        """Tie to new CopySlices nodes what the nodes that they wrap have saved.

        The wrapped node was built just before, by the same instruction. Between the two lies at most the node of a clone of what
        the operation changes, or one for a view that it saved and that had been modified, which makes torch build its node anew.
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
                    _is_clone(p) or _renewed_view(p, number, token.sequence_nr) for p in packs
                ):
                    continue
                place = packs[0].place
                token.packs = [*token.packs, *self._claim(token, pending.pop(number))]
            previous = token.sequence_nr
            pending.pop(token.sequence_nr, None)
            for packed in (r() for r in token.packs):
                if packed is not None:
                    look.tensors += 1
                    look.nbytes += packed.nbytes
                    if packed.tensor is not None and packed.is_stale:
                        look.stale.append((i, Stale(packed.tensor, packed.version)))

    def _recheck(self, token: Token, node: Node) -> None:
        """Find out whether a call has freed what our hooks did not see."""
        if token.call is None:
            self._steady.recall(token)
        call = token.call
        if call is None or call.open:
            return
        kind = kind_of(type(node))
        if call.completed and not call.keep if kind.is_slices else not held(node, kind):
            token.freed_by = call

    def _recognize(self, look: Look, place: Place | None) -> None:
        """Give the nodes of a graph that was built without our hooks the places of its likes."""
        places = self._steady.places_of(tuple(look.signature[::2]), place)
        for i, (token, made) in enumerate(zip(look.tokens, places, strict=False)):
            if token.place is None:
                token.place = look.signature[2 * i + 1] = made

    def runs(self, look: Look, inputs: Sequence[Any], *, captured_only: bool) -> list[bool]:
        """Which nodes a call restricted to ``inputs`` will run."""
        edges = edges_of(look.nodes, look.index)
        wanted = set()
        for tensor in inputs:
            node = root_node(tensor)
            if node is None and not isinstance(tensor, GradientEdge):
                leaves = (n for n in look.nodes if kind_of(type(n)).is_leaf)
                node = next((n for n in leaves if n.variable is tensor), None)  # type: ignore[attr-defined]
            if node is not None and node in look.index:
                wanted.add(look.index[node])
        return will_run(edges, dependencies_last(edges), wanted, captured_only)


def _weight(tensor: torch.Tensor) -> tuple[int, int]:
    """Address and bytes of a saved tensor, 0 for a parameter, which costs the graph no memory."""
    if not is_parameter(tensor):
        with suppress(
            NotImplementedError, RuntimeError
        ):  # sparse and opaque tensors have no storage of their own
            return tensor.data_ptr(), tensor.nbytes
    return 0, 0


def _is_clone(packed: Packed) -> bool:
    return packed.output is not None and packed.output[0] == CLONE


def _renewed_view(packed: Packed, after: int, before: int) -> bool:
    tensor = packed.tensor
    if tensor is None or not packed.original or not tensor._is_view() or tensor.grad_fn is None:
        return False
    return after < tensor.grad_fn._sequence_nr() < before
