"""The saved-tensor hooks: they put a Packed in the graph for each saved tensor, and give the tensor
back.

Without hooks torch checks on unpacking whether the tensor was modified in place; with hooks it does
not, so the unpack hook does, and raises torch's own errors.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from gradscope.collect import engine_words
from gradscope.collect.generations import Generations
from gradscope.collect.ledger import LOOKS, Ledger
from gradscope.collect.marks import UNKNOWN, UNTIED, Packed, token_of
from gradscope.collect.nodes import CLONE
from gradscope.collect.notes import postponed, raise_postponed, raised_by_program
from gradscope.collect.observers import Observer
from gradscope.collect.slots import MODIFIED, readable
from gradscope.collect.thread_numbers import OTHER, this_thread
from gradscope.program.names import Names
from gradscope.program.sites import Routes, caller_of, place_of
from gradscope.program.tensors import PLAIN, is_parameter, node_of, version_of
from gradscope.program.variables import AS_ARGUMENT, Variable
from gradscope.torch_private import (
    CALL,
    CHECKPOINT_FILE,
    FUNCTION_APPLY,
    SAVED_TENSORS_ARE_READABLE,
    BackwardCFunction,
    DisableTorchFunction,
    carried,
    current_node,
    function_modes,
    hidden_from_compiler,
    itself_hidden_from_compiler,
    next_sequence_nr,
    node_class_of,
)

_FUNCTION = None if FUNCTION_APPLY is None else Variable(FUNCTION_APPLY, "cls")
_reference = weakref.ref
_APPLY_HAS_NO_FRAME = FUNCTION_APPLY is None
_COPIES_TAKE_HOOKS = not SAVED_TENSORS_ARE_READABLE
"""Of a leaf that hooks have unpacked torch makes a copy, which a double backward saves again. If it
dies in Python (seen up to torch 2.8), it takes the leaf's hooks with it: see slots.part_from_leaf.
"""
_FRESH_REFERENCES = 3 + AS_ARGUMENT
"""Of a tensor that only C++ has seen, counted from inside a pack hook."""


class Saving:
    """The pair of hooks of a watch, and what composes it with the program's own."""

    def __init__(self, ledger: Ledger, names: Names, generations: Generations) -> None:
        self.ledger = ledger
        self.generations = generations
        self.routes = Routes()
        self._names = names
        # A class of its own for each watch spares each object one attribute.
        self._new: type[Packed] = type("Packed", (Packed,), {"ledger": ledger})
        self._asked: type[Packed] = type("Asked", (self._new,), {"tensor": property(self._meet)})
        self._met: dict[int, Packed] = {}
        self._asking = -1
        self.detailed = True
        """Note the module of each node: for a picture, so not once such graphs were pictured."""
        self.looks_left = LOOKS
        self.other_thread = self.is_shared = False
        """Whether another thread than the watch's own has saved a tensor, and whether one has that
        ran no call of it.
        """
        self._own = this_thread.number
        self.leave_late: Callable[[], None] | None = None
        """Set when the watch has ended: takes our pair out of a thread out of its reach."""
        self._checking = True
        self._last_sequence_nr = -1
        self._last_code: CodeType | None = None
        self._last: tuple[Any, ...] = ()
        """Of the last node place, route, module, what it differentiates, and whether it is untied.
        """

    @hidden_from_compiler
    def pack(self, tensor: torch.Tensor) -> Packed:
        """The pack hook. It runs for every saved tensor, so the common case is written out here."""
        if postponed:
            raise_postponed()
        if self.leave_late is not None:
            self.leave_late()
        try:
            # No frame lies below ours in a thread of C++ (the engine's, or that of torch.jit.fork).
            frame = sys._getframe().f_back or caller_of(None)
            if type(tensor) not in PLAIN or function_modes():
                with DisableTorchFunction():
                    return self._pack(tensor, frame)
            ledger = self.ledger
            packed = self._new()
            ledger.saved_tensors += 1
            ledger.live_tensors += 1
            packed.version = version = tensor._version
            if tensor.is_leaf:
                packed.tensor = tensor
                packed.was_leaf = True
                if not tensor.requires_grad:
                    ledger.count(packed, tensor)
                elif _COPIES_TAKE_HOOKS and sys.getrefcount(tensor) <= _FRESH_REFERENCES:
                    packed.tensor = tensor.detach()
            else:
                # torch keeps an input of the node as it is; an output must be kept as an alias. A
                # tensor that Python knew before and that was not modified is an input; others are
                # asked, as are all in a Python Function, whose outputs Python knows, or that may be
                # in one where no frame shows it.
                if (
                    version
                    or _APPLY_HAS_NO_FRAME
                    or sys.getrefcount(tensor) <= _FRESH_REFERENCES
                    or _runs(frame, FUNCTION_APPLY)
                ):
                    packed.sequence_nr = next_sequence_nr() - 1
                    packed.original = self._is_input(packed, tensor, frame)
                    packed.tensor = tensor if packed.original else tensor.detach()
                else:
                    packed.tensor = tensor
                if not tensor._is_view() or not is_parameter(tensor):
                    ledger.count(packed, tensor)
            self._tie(packed, frame)
        except Exception as failure:  # the program's forward pass must go on
            if raised_by_program(failure):
                raise
            return self._pack_plainly(tensor, failure)
        return packed

    def _pack_plainly(self, tensor: torch.Tensor, failure: Exception) -> Packed:
        """Keep a tensor with nothing but its version, where a part of ours has failed."""
        self.ledger.notes.failed("noting a saved tensor failed in gradscope", failure)
        with DisableTorchFunction():
            packed = self._counted()
            packed.sequence_nr = UNTIED
            packed.version = tensor._version
            packed.was_leaf = packed.original = tensor.is_leaf
            packed.tensor = tensor if packed.original else tensor.detach()
        return packed

    @hidden_from_compiler
    def _counted(self) -> Packed:
        """Return a new mark, counted as a saved tensor."""
        self.ledger.saved_tensors += 1
        self.ledger.live_tensors += 1
        return self._new()

    def _pack(self, tensor: torch.Tensor, frame: FrameType | None) -> Packed:
        """Pack a tensor subclass, or under a torch function mode: neither may see what we do."""
        packed = self._counted()
        packed.sequence_nr = next_sequence_nr() - 1
        version = packed.version = tensor._version
        packed.was_leaf = leaf = tensor.is_leaf
        known = (
            version == 0
            and not _APPLY_HAS_NO_FRAME
            and not _runs(frame, FUNCTION_APPLY)
            and sys.getrefcount(tensor) > _FRESH_REFERENCES + 1
        )
        packed.original = leaf or known or self._is_input(packed, tensor, frame)
        packed.tensor = tensor if packed.original else tensor.detach()
        if not is_parameter(tensor):
            self.ledger.count(packed, tensor)
        self._tie(packed, frame)
        return packed

    @hidden_from_compiler
    def _tie(self, packed: Packed, caller: FrameType | None) -> None:
        """Note which node a tensor was saved for, and where; those of one node come in a row."""
        if self.detailed:
            self.ledger.observers.tell(Observer.saved, packed)
        sequence_nr = next_sequence_nr() - 1
        if packed.sequence_nr == UNKNOWN:
            packed.sequence_nr = sequence_nr
        thread = packed.thread = this_thread.number
        if thread != self._own:
            packed.sequence_nr += thread * OTHER
            sequence_nr += thread * OTHER
        code = None if caller is None else caller.f_code
        if sequence_nr == self._last_sequence_nr and code is self._last_code:
            (packed.place, packed.route, packed.module, packed.differentiates, untied) = self._last
        else:
            if self.detailed:
                self._note_context(packed, caller)
            if thread != self._own:
                self._note_other(sequence_nr)
            # A Function saves after its forward, which may have built nodes; a checkpoint's inputs
            # are in no node.
            untied = code is not None and (
                code is FUNCTION_APPLY or code.co_filename == CHECKPOINT_FILE
            )
            route = packed.route = self.routes.of(caller)
            place = packed.place = route.places[0] if route.places else place_of(caller)
            if place is not None:
                place.last_sequence_nr = sequence_nr
            self._last_sequence_nr, self._last_code = sequence_nr, code
            self._last = place, route, packed.module, packed.differentiates, untied
        if untied:
            packed.sequence_nr = UNTIED
            if code is FUNCTION_APPLY:
                packed.by_function = True
                self.ledger.loose.add(sequence_nr, packed)
            return
        pending = self.ledger.pending
        number = packed.sequence_nr
        waiting = pending.get(number)
        if waiting is None:
            pending[number] = [_reference(packed)]
        else:
            waiting.append(_reference(packed))

    def _note_context(self, packed: Packed, caller: FrameType | None) -> None:
        """Note in which module's call a node is built, and by which node that a call runs."""
        if caller is None:
            return
        if caller.f_code.co_name != "<module>":
            packed.module = self._names.module_of(caller)
        call = carried(CALL)
        # By the engine itself: only torch's function that calls it may lie between.
        if call is not None and (caller is call.frame or caller.f_back is call.frame):
            node = current_node()
            token = None if node is None else token_of(node)
            if token is not None:
                packed.module = packed.module or token.module
                packed.differentiates = node.name(), token.place

    def _note_other(self, number: int) -> None:
        """Note that another thread builds nodes: one of the engine's for a call, or of its own."""
        self.other_thread = True
        call = carried(CALL)
        by_engine = call is not None and call.own
        self.generations.see_built(number, counts=by_engine)
        self.is_shared = self.is_shared or not by_engine

    def _is_input(self, packed: Packed, tensor: torch.Tensor, frame: FrameType | None) -> bool:
        """Ask the tensor's own node whether it is another than the one being built.

        That looks at a node, which a deep graph bears only so often; the budget is renewed at every
        backward call.
        """
        if not tensor.requires_grad or (frame and frame.f_code.co_filename == CHECKPOINT_FILE):
            return True  # a checkpoint saves what it is given, in no node
        if self.looks_left <= 0:
            return False
        self.looks_left -= 1
        node = node_of(tensor)
        if node is None:
            return True
        if frame is not None and _runs(frame, FUNCTION_APPLY):
            function = None if _FUNCTION is None else _FUNCTION.of(frame)
            is_another = type(node) is not node_class_of(function)
            return is_another or node._sequence_nr() < packed.sequence_nr
        if node._sequence_nr() != packed.sequence_nr:
            # Foreach operations build all their nodes before they save any result.
            return not node.name().startswith("Foreach")
        # The output of an in-place operation on a view: torch has built CopySlices around the
        # operation's node, and then a node for the view, and it is CopySlices that will ask for the
        # tensor.
        packed.output = (node.name(), tensor.output_nr)
        if node.name() == CLONE:
            # An in-place operation saves what it is about to change as a clone, made once its own
            # node is there.
            packed.sequence_nr -= 1
            return False
        for _ in range(4):
            if node is None or node.name().endswith("CopySlices"):
                break
            node = node.next_functions[0][0] if tensor._is_view() and node.next_functions else None
        if node is not None:
            packed.sequence_nr = node._sequence_nr()
        return False

    @itself_hidden_from_compiler
    def unpack(self, packed: Packed) -> torch.Tensor:
        """The unpack hook: check what torch leaves out under hooks, and raise torch's own
        errors.
        """
        tensor = packed.tensor
        if tensor is None:
            assert packed.theirs is not None
            try:
                return packed.theirs[1](packed.theirs[0])
            except BaseException as error:
                assert error.__traceback__ is not None
                error.__traceback__ = error.__traceback__.tb_next
                raise
        plain = type(tensor) in PLAIN and not function_modes()
        same = plain and tensor._version == packed.version
        if same and (packed.was_leaf or not packed.original or not tensor.is_leaf):
            return tensor
        wrong = self._what_is_wrong(packed, tensor) if self._checking else None
        if wrong is not None:
            raise RuntimeError(wrong)
        return tensor

    @hidden_from_compiler
    def _what_is_wrong(self, packed: Packed, tensor: torch.Tensor) -> str | None:
        """Return the text of the error that the engine would raise without hooks."""
        # Of what a Function saved torch does not tell that, whoever reads it.
        by_function = packed.by_function or isinstance(current_node(), BackwardCFunction)
        if packed.is_detached and not by_function:
            return engine_words.DETACHED
        return self._stale_message(packed) if version_of(tensor) != packed.version else None

    def _stale_message(self, packed: Packed) -> str:
        """Word the engine's error for a stale tensor; while that is done, unpacking is not
        checked.
        """
        self._checking = False
        try:
            with DisableTorchFunction():  # as in torch, no subclass sees its error being worded
                return self.ledger.notes.attempt(
                    "wording an error of torch's failed in gradscope",
                    partial(engine_words.modified_in_place, packed),
                    MODIFIED,
                )
        finally:
            self._checking = True

    def unpacked_by(
        self, ask: Callable[[], object], packs: Sequence[weakref.ref[Packed]]
    ) -> list[weakref.ref[Packed]]:
        """Return which of these saved tensors torch unpacks, and does not check, in ``ask``.

        None, where hooks of the program's would have to run for that.
        """
        candidates = [packed for packed in (r() for r in packs) if packed is not None]
        if any(packed.theirs is not None for packed in candidates):
            return []
        self._met = {}
        self._asking = this_thread.number
        self._checking = False
        for packed in candidates:
            packed.__class__ = self._asked
        try:
            ask()
            return [_reference(packed) for packed in self._met.values()]
        finally:
            for packed in candidates:
                packed.__class__ = self._new
            self._checking = True
            self._met = {}

    def _meet(self, packed: Packed) -> Any:
        if this_thread.number == self._asking:  # other threads may unpack it meanwhile
            self._met[id(packed)] = packed
        return vars(packed)["tensor"]

    def compose(
        self, their_pack: Callable[[torch.Tensor], Any], their_unpack: Callable[[Any], torch.Tensor]
    ) -> tuple[Callable[[torch.Tensor], Packed], Callable[[Packed], torch.Tensor]]:
        """Return one pair of hooks that does what the program's does, and lets us see what they
        save.
        """

        @itself_hidden_from_compiler
        def pack(tensor: torch.Tensor) -> Packed:
            try:
                value = their_pack(tensor)
            except BaseException as error:
                assert error.__traceback__ is not None
                error.__traceback__ = error.__traceback__.tb_next
                raise
            packed = self._counted()
            packed.theirs = (value, their_unpack)
            packed.original = False
            try:
                self._tie(packed, sys._getframe().f_back or caller_of(None))
            except Exception as failure:  # the program's forward pass must go on
                if raised_by_program(failure):
                    raise
                packed.sequence_nr = UNTIED
                self.ledger.notes.failed("noting a saved tensor failed in gradscope", failure)
            return packed

        return pack, readable(self.unpack)


def _runs(frame: FrameType | None, code: CodeType | None) -> bool:
    return frame is not None and frame.f_code is code
