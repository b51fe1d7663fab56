"""What stands in the graph for each saved tensor: its death is the exact moment at which the graph let go of it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch
import torch.utils.checkpoint
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradscope.collect.marks import UNKNOWN, UNTIED, Packed
from gradscope.program.names import Names
from gradscope.program.sites import USER, Place, _codes, known_code, place_in, user_frame
from gradscope.program.tensors import PLAIN, is_parameter, node_of, version_of
from gradscope.program.variables import Variable

_sequence_nr = torch._C._autograd._get_sequence_nr
_function_modes = torch._C._len_torch_function_stack
_FUNCTION_APPLY = Function.apply.__func__.__code__  # type: ignore[attr-defined]
_FUNCTION = Variable(_FUNCTION_APPLY, "cls")
_CHECKPOINT = torch.utils.checkpoint.__file__
_reference = weakref.ref
_FRESH_REFERENCES = (
    4  # of a tensor that only C++ has seen, counted from inside a pack hook (asserted by a test)
)


LOOKS = 2_000
"""Tensors that may be asked for their node between two backward calls."""

_TOTALS = (
    "saved_tensors",
    "saved_bytes",
    "freed_tensors",
    "freed_bytes",
    "returned_bytes",
    "dropped_tensors",
    "dropped_bytes",
)

CLONE = "CloneBackward0"


class Ledger:
    """Counts the saved tensors of a watch: those alive by node, and bytes once per storage (parameters are not counted)."""

    def __init__(self, names: Names) -> None:
        self._new: type[Packed] = type(
            "Packed", (Packed,), {"ledger": self}
        )  # spares one attribute each
        self.names = names
        self.active = True
        self.thread = get_ident()
        self.on_other_thread: Callable[[], None] = lambda: None
        self.pending: dict[int, list[weakref.ref[Packed]]] = {}
        """Saved tensors of nodes that no look at a graph has met yet, by the node's sequence number."""
        self.storages: dict[int, int] = {}
        self.saved_tensors = self.saved_bytes = 0
        self.freed_tensors = self.freed_bytes = self.returned_bytes = 0
        self.dropped_tensors = self.dropped_bytes = 0
        self.live_tensors = self.live_bytes = self.peak_bytes = self.highest_bytes = 0
        self._last_sequence_nr = self._last_thread = -1
        self._last_place: Place | None = None
        self._last_module: tuple[str, str] | None = None
        self._last_untied = False
        self._last_code: CodeType | None = None
        self.detailed = True
        """Note the module of each node: for a picture, so not while graphs come that have been pictured."""
        self.looks_left = LOOKS
        self.look_at = sys.maxsize
        """How many saved tensors there have to be before ``on_growth`` is told."""
        self.on_growth: Callable[[FrameType], None] = lambda frame: None
        self.on_drop: Callable[[Packed, int], None] = lambda packed, nbytes: None
        self.checking = True
        self.notes: list[str] = []
        self.noticed: Callable[[Packed], None] = lambda packed: None
        """Told of every saved tensor while graphs are looked at in detail."""
        self.reading: Callable[[Packed], None] | None = None
        """Told of every unpacked tensor while ``ctx.saved_tensors`` of a Python Function is being read."""
        self.stale_message: Callable[[Packed], str] = lambda packed: (
            "a saved tensor was modified by an inplace operation"
        )

    def counts(self) -> tuple[int, ...]:
        """The totals so far, to be compared with later ones."""
        return tuple(getattr(self, name) for name in _TOTALS)

    def add(self, counts: Sequence[int]) -> None:
        """Count what was not seen, and is known from the likes of it."""
        for name, more in zip(_TOTALS, counts, strict=True):
            setattr(self, name, getattr(self, name) + more)

    def pack(self, tensor: torch.Tensor) -> Packed:
        """The pack hook. It runs for every saved tensor, so what is common is written out here, without calls."""
        if type(tensor) not in PLAIN or _function_modes():
            with torch._C.DisableTorchFunction():
                return self._pack(tensor, sys._getframe(1))
        packed = self._new()
        packed.version = version = tensor._version
        if tensor.is_leaf:
            packed.tensor = tensor
            packed.was_leaf = True
            if not tensor.requires_grad:
                self._count(packed, tensor)
        else:
            frame = sys._getframe(1)
            # An input of the node torch keeps as it is; an output must be kept as an alias. A tensor that Python knew before
            # and nobody modified is an input; of others (or in a Python Function, whose outputs Python knows) it is asked.
            if (
                version
                or sys.getrefcount(tensor) <= _FRESH_REFERENCES
                or frame.f_code is _FUNCTION_APPLY
            ):
                packed.sequence_nr = _sequence_nr() - 1
                packed.original = self._is_input(packed, tensor, frame)
                packed.tensor = tensor if packed.original else tensor.detach()
            else:
                packed.tensor = tensor
            if not tensor._is_view() or not is_parameter(tensor):
                self._count(packed, tensor)
        self.saved_tensors += 1
        self.live_tensors += 1
        self._tie(packed, sys._getframe(1))
        return packed

    def _pack(self, tensor: torch.Tensor, frame: FrameType) -> Packed:
        """The pack hook for a tensor subclass, or under a torch function mode: nothing of it may see what we do."""
        packed = self._new()
        packed.sequence_nr = _sequence_nr() - 1
        version = packed.version = tensor._version
        packed.was_leaf = leaf = tensor.is_leaf
        known = (
            version == 0
            and frame.f_code is not _FUNCTION_APPLY
            and sys.getrefcount(tensor) > _FRESH_REFERENCES + 1
        )
        packed.original = leaf or known or self._is_input(packed, tensor, frame)
        packed.tensor = tensor if packed.original else tensor.detach()
        self.saved_tensors += 1
        self.live_tensors += 1
        if not is_parameter(tensor):
            self._count(packed, tensor)
        self._tie(packed, frame)
        return packed

    def _tie(self, packed: Packed, caller: FrameType) -> None:
        """Note which node a tensor was saved for, and where; the tensors of one node come one after the other."""
        if self.detailed:
            self.noticed(packed)
        sequence_nr = _sequence_nr() - 1
        thread = packed.thread = get_ident()
        if packed.sequence_nr == UNKNOWN:
            packed.sequence_nr = sequence_nr
        if (
            sequence_nr == self._last_sequence_nr
            and thread == self._last_thread
            and caller.f_code is self._last_code
        ):
            packed.place = self._last_place
            packed.module = self._last_module
            if self._last_untied:
                packed.sequence_nr = UNTIED
                return
        else:
            frame: FrameType | None = caller
            code = caller.f_code
            if self.detailed and code.co_name != "<module>":
                self._last_module = packed.module = self.names.module_of(frame)
            else:
                self._last_module = None
            if thread != self.thread:
                self.on_other_thread()
            # a Function saves after its forward, which may have built nodes; a checkpoint's inputs are in no node
            untied = self._last_untied = code is _FUNCTION_APPLY or code.co_filename == _CHECKPOINT
            while frame is not None:
                code = frame.f_code
                if (_codes.get(id(code)) or known_code(code)).owner == USER:
                    break
                frame = frame.f_back
            if frame is None:
                frame = user_frame(caller)
            place = packed.place = self._last_place = None if frame is None else place_in(frame)
            if place is not None:
                place.last_sequence_nr = sequence_nr
            self._last_sequence_nr, self._last_thread, self._last_code = (
                sequence_nr,
                thread,
                caller.f_code,
            )
            if untied:
                packed.sequence_nr = UNTIED
                return
        number = packed.sequence_nr
        waiting = self.pending.get(number)
        if waiting is None:
            self.pending[number] = [_reference(packed)]
        else:
            waiting.append(_reference(packed))

    def _is_input(self, packed: Packed, tensor: torch.Tensor, frame: FrameType) -> bool:
        """Ask the tensor's own node whether it is another than the one being built.

        That looks at a node, which a deep graph bears only so often; the budget is renewed at every backward call.
        """
        if not tensor.requires_grad:
            return True
        if self.looks_left <= 0:
            return False
        self.looks_left -= 1
        node = node_of(tensor)
        if node is None:
            return True
        if frame.f_code is _FUNCTION_APPLY:
            return not _is_of(node, frame) or node._sequence_nr() < packed.sequence_nr
        if node._sequence_nr() != packed.sequence_nr:
            return not node.name().startswith(
                "Foreach"
            )  # which builds all its nodes before it saves any result
        # The output of an in-place operation on a view: torch has built CopySlices around the operation's node, and
        # then a node for the view, and it is CopySlices that will ask for the tensor.
        packed.output = (node.name(), tensor.output_nr)
        if node.name() == CLONE:
            # An in-place operation saves what it is about to change as a clone, made once its own node is there.
            packed.sequence_nr -= 1
            return False
        for _ in range(4):
            if node is None or node.name().endswith("CopySlices"):
                break
            node = node.next_functions[0][0] if tensor._is_view() and node.next_functions else None
        if node is not None:
            packed.sequence_nr = node._sequence_nr()
        return False

    def _count(self, packed: Packed, tensor: torch.Tensor) -> None:
        """Count the bytes of a saved activation, once per storage.

        A tensor that is no view starts its storage and fills it; asking for the storage itself costs ten times as much.
        """
        try:
            if tensor._is_view():
                storage = tensor.untyped_storage()
                key, nbytes = storage.data_ptr(), storage.nbytes()
            else:
                key, nbytes = tensor.data_ptr(), tensor.nbytes
        except (
            NotImplementedError,
            RuntimeError,
        ):  # sparse and opaque tensors have no storage of their own
            return
        packed.storage = key
        packed.nbytes = nbytes
        storages = self.storages
        if key in storages:
            storages[key] += 1
        elif key:
            storages[key] = 1
            self.saved_bytes += nbytes
            self.live_bytes = live = self.live_bytes + nbytes
            if live > self.peak_bytes:
                self.peak_bytes = live
            if self.saved_tensors >= self.look_at:
                self._grown(sys._getframe(2))

    def _grown(self, frame: FrameType) -> None:
        try:
            self.on_growth(frame)
        except Exception as error:  # we are inside the program's own forward pass, which must go on
            self.on_growth = lambda frame: None
            self.notes.append(
                f"looking for what grows failed and was switched off ({error}); please report this"
            )

    def unpack(self, packed: Packed) -> torch.Tensor:
        """The unpack hook: does the checks that torch leaves out under hooks, and raises torch's own errors."""
        if self.reading is not None:
            self.reading(packed)
        tensor = packed.tensor
        if tensor is None:
            assert packed.theirs is not None
            return packed.theirs[1](packed.theirs[0])
        plain = type(tensor) in PLAIN and not _function_modes()
        same = plain and tensor._version == packed.version
        if same and (packed.was_leaf or not packed.original or not tensor.is_leaf):
            return tensor
        if self.checking:
            if packed.is_detached and not isinstance(
                torch._C._current_autograd_node(), BackwardCFunction
            ):
                raise RuntimeError(DETACHED)
            if version_of(tensor) != packed.version:
                raise RuntimeError(self.stale_message(packed))
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
            packed = self._new()
            packed.theirs = (value, their_unpack)
            packed.original = False
            self.saved_tensors += 1
            self.live_tensors += 1
            self._tie(packed, sys._getframe(1))
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
        call = None if token is None or not token.call or not token.call.open else token.call
        self.live_tensors -= 1
        nbytes = 0
        returned = False
        key = packed.storage
        if key:
            storages = self.storages
            left = storages.get(key, 1) - 1
            if left:
                storages[key] = left
            else:
                storages.pop(key, None)
                nbytes = packed.nbytes
                self.live_bytes -= nbytes
                returned = (
                    call is not None
                    and call.exact
                    and packed.tensor is not None
                    and _is_last_owner(packed)
                )
        if token is not None and call is not None:
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
            self.on_drop(packed, nbytes)
            if token is None and packed.sequence_nr != UNTIED:
                self.pending.pop(packed.sequence_nr, None)


def _is_of(node: Node, apply: FrameType) -> bool:
    """True when the node is one of the Python Function whose ``apply`` runs in the frame."""
    return type(node) is getattr(_FUNCTION.of(apply), "_backward_cls", None)


def _is_last_owner(packed: Packed) -> bool:
    """True when nobody but the graph held the saved tensor's memory, so that letting go returns it.

    The storage counts our tensor and the Python object of the storage itself; a tensor that torch and the program share
    counts once there, so the owners of the tensor count too.
    """
    tensor: Any = packed.tensor
    if torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > 2:
        return False
    return not packed.original or (sys.getrefcount(tensor) <= 3 and tensor._use_count() <= 1)


DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_()."
    "This is not supported, please use out-of-place `.detach()` instead"
)
"""torch's own words (torch/csrc/autograd/saved_variable.cpp)."""
