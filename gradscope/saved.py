"""What stands in the graph for each saved tensor: its death is the exact moment at which the graph let go of it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradscope.names import Names, is_parameter, local
from gradscope.sites import Place, place_in, user_frame

if TYPE_CHECKING:
    from types import FrameType

    from gradscope.tokens import Token

_sequence_nr = torch._C._autograd._get_sequence_nr
_function_modes = torch._C._len_torch_function_stack
_FUNCTION_APPLY = Function.apply.__func__.__code__  # type: ignore[attr-defined]
_CHECKPOINT = torch.utils.checkpoint.__file__
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_FRESH_REFERENCES = 4  # of a tensor that only C++ has seen, counted from inside a pack hook (asserted by a test)


LOOKS = 2_000
"""Tensors that may be asked for their node between two backward calls."""

UNTIED = -1
"""Instead of a sequence number: the node must be asked what it saved."""


class Packed:
    """What our pack hook returns. Only torch's ``SavedTensor`` holds it, so ``__del__`` runs when the graph lets go.

    ``tensor`` is the saved tensor itself where torch would keep it as well (``original``), else a detached alias: it shares
    storage and version counter, and makes no reference cycle through the node that the tensor came from. ``theirs`` is what
    the program's own hooks made of it, with their unpack hook, and then there is no ``tensor``.
    """

    __slots__ = (
        "__weakref__",
        "ledger",
        "module",
        "nbytes",
        "original",
        "output",
        "place",
        "sequence_nr",
        "storage",
        "tensor",
        "theirs",
        "thread",
        "token",
        "version",
        "was_leaf",
    )

    ledger: Ledger
    tensor: torch.Tensor | None
    original: bool
    output: tuple[str, int] | None
    was_leaf: bool
    version: int
    place: Place | None
    module: tuple[str, str] | None
    sequence_nr: int
    thread: int
    storage: int
    nbytes: int
    token: Token | None
    theirs: tuple[Any, Callable[[Any], torch.Tensor]] | None

    def __del__(self) -> None:
        self.ledger.let_go(self)

    @property
    def is_stale(self) -> bool:
        """True when the tensor was modified in place since it was saved."""
        return self.tensor is not None and version_of(self.tensor) != self.version

    @property
    def is_detached(self) -> bool:
        """True when the very tensor that was saved has been detached in place since."""
        return self.original and not self.was_leaf and self.tensor is not None and is_leaf(self.tensor)


def version_of(tensor: torch.Tensor) -> int:
    """The tensor's version counter, read without the program's torch functions seeing it."""
    if type(tensor) in _PLAIN and not _function_modes():
        return tensor._version
    with torch._C.DisableTorchFunction():
        return tensor._version


def is_leaf(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``, read without the program's torch functions seeing it."""
    with torch._C.DisableTorchFunction():
        return tensor.is_leaf


class Ledger:
    """Counts the saved tensors of a watch: those alive by node, and bytes once per storage (parameters are not counted)."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.active = True
        self.pending: dict[int, list[weakref.ref[Packed]]] = {}
        """Saved tensors of nodes that no look at a graph has met yet, by the node's sequence number."""
        self.storages: dict[int, int] = {}
        self.saved_tensors = self.saved_bytes = 0
        self.freed_tensors = self.freed_bytes = self.returned_bytes = 0
        self.dropped_tensors = self.dropped_bytes = 0
        self.live_tensors = self.live_bytes = self.peak_bytes = self.highest_bytes = 0
        self.looks_left = LOOKS
        self.checking = True
        self.notes: list[str] = []
        self.on_unpack: Callable[[Packed], None] = lambda packed: None
        self.stale_message: Callable[[Packed], str] = lambda packed: "a saved tensor was modified by an inplace operation"

    def pack(self, tensor: torch.Tensor) -> Packed:
        """The pack hook."""
        frame = sys._getframe(1)
        packed = Packed()
        packed.ledger = self
        packed.theirs = packed.token = packed.output = None
        packed.sequence_nr = _sequence_nr() - 1
        packed.thread = get_ident()
        if type(tensor) in _PLAIN and not _function_modes():
            self._keep(packed, tensor, frame)
        else:
            with torch._C.DisableTorchFunction():
                self._keep(packed, tensor, frame)
        sequence_nr = packed.sequence_nr
        if frame.f_code is _FUNCTION_APPLY or frame.f_code.co_filename == _CHECKPOINT:
            # a Function saves after its forward, which may have built nodes; a checkpoint's inputs are in no node
            packed.sequence_nr = UNTIED
        user = user_frame(frame)
        if user is None:
            packed.place = None
        else:
            place = packed.place = place_in(user)
            place.last_sequence_nr = sequence_nr
        packed.module = self.names.module_of(frame)
        if packed.sequence_nr == UNTIED:
            return packed
        waiting = self.pending.get(sequence_nr)
        if waiting is None:
            self.pending[sequence_nr] = [weakref.ref(packed)]
        else:
            waiting.append(weakref.ref(packed))
        return packed

    def _keep(self, packed: Packed, tensor: torch.Tensor, frame: FrameType) -> None:
        version = packed.version = tensor._version
        packed.was_leaf = leaf = tensor.is_leaf
        # An input of the node torch keeps as it is; an output must be kept as an alias. A tensor that Python knew before and
        # nobody modified is an input; of others (or in a Python Function, whose outputs Python knows) the tensor is asked.
        known = sys.getrefcount(tensor) > _FRESH_REFERENCES + 1 and version == 0 and frame.f_code is not _FUNCTION_APPLY
        if leaf or known or self._is_input(packed, tensor, frame):
            packed.original = True
            packed.tensor = tensor
        else:
            packed.original = False
            packed.tensor = tensor.detach()
        self.saved_tensors += 1
        self.live_tensors += 1
        if is_parameter(tensor) if tensor._is_view() else leaf and tensor.requires_grad:
            packed.storage = packed.nbytes = 0
        else:
            self._count(packed, tensor)

    def _is_input(self, packed: Packed, tensor: torch.Tensor, frame: FrameType) -> bool:
        """Ask the tensor's own node whether it is another than the one being built.

        That looks at a node, which a deep graph bears only so often; the budget is renewed at every backward call.
        """
        if not tensor.requires_grad:
            return True
        if self.looks_left <= 0:
            return False
        self.looks_left -= 1
        node = tensor.grad_fn
        if node is None:
            return True
        if frame.f_code is _FUNCTION_APPLY:
            return not _is_of(node, frame) or node._sequence_nr() < packed.sequence_nr
        if node._sequence_nr() != packed.sequence_nr:
            return not node.name().startswith("Foreach")  # which builds all its nodes before it saves any result
        # The output of an in-place operation on a view: torch has built CopySlices around the operation's node, and
        # then a node for the view, and it is CopySlices that will ask for the tensor.
        packed.output = (node.name(), tensor.output_nr)
        for _ in range(4):
            if node is None or node.name().endswith("CopySlices"):
                break
            node = node.next_functions[0][0] if tensor._is_view() and node.next_functions else None
        if node is not None:
            packed.sequence_nr = node._sequence_nr()
        return False

    def _count(self, packed: Packed, tensor: torch.Tensor) -> None:
        try:
            storage = tensor.untyped_storage()
            packed.storage = key = storage._cdata
            packed.nbytes = nbytes = storage.nbytes()
        except (NotImplementedError, RuntimeError):  # sparse and opaque tensors have no storage of their own
            packed.storage = packed.nbytes = 0
            return
        holders = self.storages.get(key, 0)
        self.storages[key] = holders + 1
        if not holders:
            self.saved_bytes += nbytes
            self.live_bytes = live = self.live_bytes + nbytes
            if live > self.peak_bytes:
                self.peak_bytes = live

    def unpack(self, packed: Packed) -> torch.Tensor:
        """The unpack hook: does the checks that torch leaves out under hooks, and raises torch's own errors."""
        self.on_unpack(packed)
        tensor = packed.tensor
        if tensor is None:
            assert packed.theirs is not None
            return packed.theirs[1](packed.theirs[0])
        if version_of(tensor) != packed.version and self.checking:
            raise RuntimeError(self.stale_message(packed))
        if packed.is_detached and not isinstance(torch._C._current_autograd_node(), BackwardCFunction):
            raise RuntimeError(DETACHED)
        return tensor

    def compose(
        self, their_pack: Callable[[torch.Tensor], Any], their_unpack: Callable[[Any], torch.Tensor]
    ) -> tuple[Callable[[torch.Tensor], Packed], Callable[[Packed], torch.Tensor]]:
        """One pair of hooks that does the program's and lets us see the life of what they save."""

        def pack(tensor: torch.Tensor) -> Packed:
            try:
                value = their_pack(tensor)
            except BaseException as error:
                assert error.__traceback__ is not None
                error.__traceback__ = error.__traceback__.tb_next
                raise
            frame = sys._getframe(1)
            packed = Packed()
            packed.ledger = self
            packed.tensor = packed.token = packed.output = None
            packed.theirs = (value, their_unpack)
            packed.original = packed.was_leaf = False
            packed.version = packed.storage = packed.nbytes = 0
            packed.sequence_nr = _sequence_nr() - 1
            packed.thread = get_ident()
            user = user_frame(frame)
            packed.place = None if user is None else place_in(user)
            packed.module = self.names.module_of(frame)
            self.saved_tensors += 1
            self.live_tensors += 1
            self.pending.setdefault(packed.sequence_nr, []).append(weakref.ref(packed))
            return packed

        def unpack(packed: Packed) -> torch.Tensor:
            try:
                assert packed.theirs is not None
                return packed.theirs[1](packed.theirs[0])
            except BaseException as error:
                assert error.__traceback__ is not None
                error.__traceback__ = error.__traceback__.tb_next
                raise

        return pack, unpack

    def let_go(self, packed: Packed) -> None:
        """The graph let go of a saved tensor: freed by the backward call in progress, or dropped with its graph."""
        token = packed.token
        self.live_tensors -= 1
        nbytes = 0
        returned = False
        key = packed.storage
        if key:
            left = self.storages.get(key, 1) - 1
            if left > 0:
                self.storages[key] = left
            else:
                self.storages.pop(key, None)
                nbytes = packed.nbytes
                self.live_bytes -= nbytes
                returned = _is_last_owner(packed)
        call = None if token is None else token.call
        if token is not None and call is not None and call.open:
            token.freed_by = call
            self.freed_tensors += 1
            self.freed_bytes += nbytes
            call.freed_tensors += 1
            call.freed_bytes += nbytes
            if returned:
                self.returned_bytes += nbytes
                call.returned_bytes += nbytes
        else:
            self.dropped_tensors += 1
            self.dropped_bytes += nbytes
            if token is None and packed.sequence_nr != UNTIED:
                self.pending.pop(packed.sequence_nr, None)


def _is_of(node: Node, apply: FrameType) -> bool:
    """True when the node is one of the Python Function whose ``apply`` runs in the frame."""
    return type(node) is getattr(local(apply, "cls"), "_backward_cls", None)


def _is_last_owner(packed: Packed) -> bool:
    """True when nobody but the graph held the saved tensor's memory, so that letting go returns it.

    The storage counts our tensor and the Python object of the storage itself; a tensor that torch and the program share
    counts once there, so the owners of the tensor count too.
    """
    tensor = packed.tensor
    if torch._C._storage_Use_Count(packed.storage) > 2:  # type: ignore[attr-defined]
        return False
    return not packed.original or sys.getrefcount(tensor) <= 3 and tensor._use_count() <= 1  # type: ignore[union-attr]


DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
"""torch's own words (torch/csrc/autograd/saved_variable.cpp)."""
