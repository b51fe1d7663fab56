"""The saved-tensor hooks: they put a Packed in the graph for each saved tensor, and give the tensor
back; as default hooks they are kept in force, and the program's work as if without them.

Without hooks torch checks on unpacking whether the tensor was modified in place; with hooks it does
not, so the unpack hook does, and raises torch's own errors.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.autograd.graph import Node

from gradscope.collect import slots
from gradscope.collect.checkpoints import Checkpoints
from gradscope.collect.engine_errors import DETACHED, PACK_HOOK_MODIFIES, modified_in_place
from gradscope.collect.generations import OTHER, Generations, this_thread
from gradscope.collect.marks import UNKNOWN, UNTIED, Packed, mark_of
from gradscope.collect.nodes import CLONE, has_yet_to_save, kind_of
from gradscope.collect.notes import Notes, postponed, raise_postponed, raised_by_program
from gradscope.collect.observers import Observer
from gradscope.collect.saved_bytes import LOOKS, Ledger
from gradscope.collect.slots import MODIFIED, foreign, readable
from gradscope.hooks import (
    DefaultHookFunctions,
    Handle,
    Pack,
    Pair,
    Unpack,
    around_dispatch_modes,
    carry,
    on_compiled_autograd,
    on_thread_start,
    replace_default_hook_functions,
)
from gradscope.program.names import Names
from gradscope.program.sites import Routes, caller_of, library_way, place_of
from gradscope.program.tensors import PLAIN, is_parameter, node_of, version_of, why_unusable
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
    default_hooks_are_enabled,
    dispatch_modes,
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
"""References to a tensor that only C++ has seen, as counted from inside a pack hook."""


class Saving:
    """The pack hook and the unpack hook of a watch, and how they are composed with the program's
    own.

    The pack hook runs for each tensor that an operation saves. It returns a ``Packed`` in its
    place, notes the line that saved it, and finds out for which node it was saved.
    """

    def __init__(self, ledger: Ledger, names: Names, generations: Generations) -> None:
        self.ledger = ledger
        self.generations = generations
        self.routes = Routes()
        self.recomputing = Checkpoints(names, ledger.observers, ledger.notes)
        self._names = names
        # A class of its own for each watch spares each object one attribute.
        self._new: type[Packed] = type("Packed", (Packed,), {"ledger": ledger})
        self.detailed = True
        """Whether the module of each node is noted: until there is a snapshot of such graphs."""
        self.looks_left = LOOKS
        self.other_thread = self.is_shared = False
        """Whether a thread other than the watch's own saved a tensor, and whether one did so that
        was not a thread of the engine for one of its calls.
        """
        self._own = this_thread.number
        self.leave_late: Callable[[], None] | None = None
        """Set when the watch has ended: takes our hooks out of a thread that it could not reach."""
        self._checking = True
        self._last_sequence_nr = self._last_number = -1
        self._last_code: CodeType | None = None
        self._last: tuple[Any, ...] = ()
        """For the last node: line, route, what it is built within, and whether it is untied."""

    @hidden_from_compiler
    def pack(self, tensor: torch.Tensor) -> Packed:
        """Pack a saved tensor, for torch. This runs for every saved tensor, so the common case is
        written out here.
        """
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
        """Keep a tensor with nothing but its version, after a failure of ours."""
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
        """Pack a tensor subclass, or any tensor under a torch function mode: neither may see our
        calls.
        """
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
        """Note for which node a tensor was saved, and at which line.

        Torch does not tell a pack hook its node. But the tensors of one node are saved in a row,
        and its sequence number is the newest one then.
        """
        if self.detailed:
            self.ledger.observers.tell(Observer.saved, packed)
        sequence_nr = next_sequence_nr() - 1
        thread = packed.thread = this_thread.number
        if thread != self._own:
            if packed.sequence_nr != UNKNOWN:
                packed.sequence_nr += thread * OTHER
            sequence_nr += thread * OTHER
        if packed.sequence_nr == UNKNOWN:
            # What is saved while no other node is built is saved for the same one.
            is_same = sequence_nr == self._last_sequence_nr
            packed.sequence_nr = self._last_number if is_same else sequence_nr
        self._last_number = packed.sequence_nr
        code = None if caller is None else caller.f_code
        if sequence_nr == self._last_sequence_nr and code is self._last_code:
            packed.place, packed.route, context, untied = self._last
            if self.detailed:
                packed.module, packed.differentiates, packed.within = context
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
            context = packed.module, packed.differentiates, packed.within
            self._last = place, route, context, untied
        if untied:
            packed.sequence_nr = UNTIED
            self.recomputing.applied()
            if code is FUNCTION_APPLY:
                packed.by_function = True
                self.ledger.hidden.add(sequence_nr, packed)
            return
        pending = self.ledger.pending
        number = packed.sequence_nr
        waiting = pending.get(number)
        if waiting is None:
            pending[number] = [_reference(packed)]
        else:
            waiting.append(_reference(packed))

    def _note_context(self, packed: Packed, caller: FrameType | None) -> None:
        """Note in which module's call a node is built, by which lines of libraries, and by which
        node that a call runs.
        """
        if caller is None:
            return
        if caller.f_code.co_name != "<module>":
            packed.module = self._names.module_of(caller)
            packed.within = library_way(caller)
        call = carried(CALL)
        # Whether the engine itself builds the node (``create_graph``), and not a hook of the
        # program: only torch's own function may lie between.
        if call is not None and (caller is call.frame or caller.f_back is call.frame):
            node = current_node()
            mark = None if node is None else mark_of(node)
            if mark is not None:
                packed.module = packed.module or mark.module
                packed.differentiates = node.name(), mark.place

    def _note_other(self, number: int) -> None:
        """Note that another thread builds nodes: a thread of the engine, or one of the program."""
        self.other_thread = True
        call = carried(CALL)
        by_engine = call is not None and call.own
        self.generations.see_built(number, counts=by_engine)
        self.is_shared = self.is_shared or not by_engine

    def _is_input(self, packed: Packed, tensor: torch.Tensor, frame: FrameType | None) -> bool:
        """Return whether a tensor is an input of the node that saves it; False if that is not
        certain.

        An output must be kept as an alias, or it would hold its own node, and never be freed. It is
        an output if its own node is the one being built. Sequence numbers do not tell that: while a
        node is being built, torch may build others, for a clone of what the operation changes, for
        views whose base was modified, or within a function in C++. But the node of an output has
        yet to save it.

        This shows the node to Python, which costs stack when it is destroyed. So it is done only
        ``LOOKS`` times between two backward calls.
        """
        if not tensor.requires_grad or (frame and frame.f_code.co_filename == CHECKPOINT_FILE):
            return True  # a checkpoint saves what it is given, in no node
        if self.looks_left <= 0:
            return False
        self.looks_left -= 1
        node = node_of(tensor)
        if node is None:
            return True
        kind, newest = kind_of(type(node)), packed.sequence_nr
        packed.output = (node.name(), tensor.output_nr)
        if kind.is_unnamed:  # foreach operations build all their nodes before they save a result
            return False
        if kind.is_function:
            return not self._is_applied(node, frame, newest)
        if has_yet_to_save(node, kind):
            packed.sequence_nr = node._sequence_nr()
            return False
        # An in-place operation on a view has its node in CopySlices, which asks for what it saved.
        # That and the nodes of the view are built after it, one number after the other.
        number = first = node._sequence_nr()
        while packed.version and tensor._is_view() and node.next_functions:
            node = node.next_functions[0][0]
            if node is None or node._sequence_nr() != first - 1:
                break
            first -= 1
            if kind_of(type(node)).is_slices:
                packed.sequence_nr = first if number == newest else newest
                return False
        is_clone = packed.output[0] == CLONE
        if number == newest and (is_clone or (packed.version and tensor._is_view())):
            # So an older node is being built: an in-place operation's that saves a clone of what it
            # changes, or one that is given a view whose nodes torch has built for it.
            packed.sequence_nr = first - 1
        return not is_clone

    def _is_applied(self, node: Node, frame: FrameType | None, newest: int) -> bool:
        """Return whether a Function's node is the one that saves now: it has saved nothing yet, or
        what was packed last.
        """
        if _FUNCTION is None or frame is None or not _runs(frame, FUNCTION_APPLY):
            return _APPLY_HAS_NO_FRAME and node._sequence_nr() == newest
        if type(node) is not node_class_of(_FUNCTION.of(frame)):
            return False
        try:
            has = [None, *(each.data for each in slots.saved(node, "tensors") if each is not None)]
        except RuntimeError:  # it was freed
            return False
        number = newest + self.generations.bits_of(this_thread.number)
        return has[-1] is self.ledger.hidden.last(number)

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
            return DETACHED
        if version_of(tensor) == packed.version:
            return None
        # Torch asks an input for its node first, for the sake of the error that follows.
        unusable = why_unusable(tensor) if packed.original else None
        return unusable or self._stale_message(packed)

    def _stale_message(self, packed: Packed) -> str:
        """Word the engine's error for a stale tensor; while that is done, unpacking is not
        checked.
        """
        tensor = packed.tensor
        if slots.is_guarded() and tensor is not None:  # who asks wants no more of the error
            what = f"[{tensor.type()} {list(tensor.shape)}]"
            versions = f"version {version_of(tensor)}; expected version {packed.version}"
            return f"{MODIFIED}: {what} is at {versions} instead"
        self._checking = False
        try:
            with DisableTorchFunction():  # as in torch, no subclass sees its error being worded
                what = "wording an error of torch's failed in gradscope"
                word = partial(modified_in_place, packed)
                return self.ledger.notes.attempt(what, word, MODIFIED)
        finally:
            self._checking = True

    def compose(self, their_pack: Pack, their_unpack: Unpack) -> Pair:
        """Return one pair of hooks that does what the program's does, and lets us see what they
        save.
        """
        before, after = self.recomputing.begin(their_pack)

        @itself_hidden_from_compiler
        def pack(tensor: torch.Tensor) -> Packed:
            if before is not None:
                before(tensor, sys._getframe().f_back, None)
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
            if after is not None:
                after(tensor, sys._getframe().f_back, packed)
            return packed

        return pack, readable(self.unpack)


def _runs(frame: FrameType | None, code: CodeType | None) -> bool:
    return frame is not None and frame.f_code is code


T = TypeVar("T")

_KEY = "gradscope.hooks"

_UNKNOWN_HOOKS = (
    "saved-tensor hooks were in force when the watch began; this torch does not show them, so the "
    "watch goes without hooks of its own in that thread (torch 2.5 and later show them)"
)


class _Stack(NamedTuple):
    """What is on a stack of default hooks, as far as it went through us.

    ``base`` is our pair, made one with ``beneath``, which was in force before; ``pushed`` are the
    program's own since, the innermost last. It is never changed, as torch carries it into other
    threads along with the stack itself.
    """

    owner: DefaultHooks
    base: Pair
    beneath: Pair | None
    pushed: tuple[Pair, ...] = ()
    aside: bool = False
    suspended: bool = False
    compiling: bool = False


class DefaultHooks:
    """Keeps one pair of default saved-tensor hooks in force on every thread.

    torch applies only the innermost pair, so a pair that the program pushes is composed with ours
    (``compose(pack, unpack)`` makes one pair of both). Ours step aside where torch refuses default
    hooks (``torch.func``), would show their work to the program (a ``TorchDispatchMode``) or
    compiles backward calls. ``before_theirs`` is called when the program pushes a pair while ours
    are lifted; it may resume ours.
    """

    def __init__(self, saving: Saving, before_theirs: Callable[[], None]) -> None:
        self._pair: Pair = (saving.pack, slots.readable(saving.unpack))
        self._compose = saving.compose
        self._before_theirs = before_theirs
        self._notes = saving.ledger.notes
        self._recomputing = saving.recomputing
        self._ours: list[Pack] = [saving.pack]
        self._torch = DefaultHookFunctions.now()

    def install(self) -> Handle:
        """Enter the current thread, and every thread that starts while the handle lives."""
        theirs = DefaultHookFunctions(
            self._push_theirs,
            self._pop_theirs,
            self._top_theirs,
            self._disable_for_them,
            self._enable_for_them,
        )
        begin, end = (partial(self._note_compiling, on) for on in (True, False))
        handles = Handle().add(
            replace_default_hook_functions(theirs),
            around_dispatch_modes(self._tried(self._step_aside), self._tried(self._step_back)),
            on_compiled_autograd(self._tried(begin), self._tried(end)),
            on_thread_start(self._tried(self._enter), self._tried(self._leave)),
        )
        self._enter()
        self._recomputing.see_reentrant(True)
        return handles.add(
            Handle(self._leave), Handle(partial(self._recomputing.see_reentrant, False))
        )

    def _tried(self, work: Callable[[], T]) -> Callable[[], T | None]:
        return partial(self._attempt, work)

    @hidden_from_compiler
    def _attempt(self, work: Callable[[], T]) -> T | None:
        """Do some work of ours inside a call of the program's, which must not fail for it."""
        what = "keeping saved-tensor hooks in force failed in gradscope"
        return self._notes.attempt(what, work, None)

    @property
    def _stack(self) -> _Stack | None:
        """What is in force in this thread; None where we have not entered."""
        stack = carried(_KEY)
        return stack if stack is not None and stack.owner is self else None

    def _change(self, stack: _Stack, **values: Any) -> _Stack:
        stack = stack._replace(**values)
        carry(_KEY, stack)
        return stack

    def suspend(self) -> bool:
        """Take our hooks out in this thread until they are lowered; False where the program's are
        on top.
        """
        suspended = self._step_aside(suspended=True)
        if suspended:
            self._recomputing.see_reentrant(False)
        return suspended

    def resume(self) -> None:
        """Put suspended hooks back, unless something else still wants them aside."""
        stack = self._stack
        if stack is not None and stack.suspended:
            self._change(stack, suspended=False)
            self._step_back()
            self._recomputing.see_reentrant(True)

    @hidden_from_compiler
    def sweep(self) -> None:
        """Take our pair out once more, after the watch has ended in another thread, or within a
        backward call: the engine brings back the stack that it found.

        What the program has entered since is not known here, so only a pair on top is taken out.
        """
        self._attempt(self._sweep)

    def _sweep(self) -> None:
        top = self._torch.top(True)
        if top is not None and top[0] in self._ours:
            self._torch.pop()
        if self._stack is not None:
            carry(_KEY, None)

    def _enter(self) -> None:
        if self._stack is not None or not default_hooks_are_enabled():
            return
        if self._torch.hide_pairs():  # ours on top of them would take them out of force
            self._notes.add(_UNKNOWN_HOOKS)
            return
        base, beneath = self._pair, self._torch.top(False)
        if beneath is not None:
            base = self._compose(*beneath)
            self._ours.append(base[0])
        carry(_KEY, _Stack(self, base, beneath, aside=bool(dispatch_modes())))
        if not dispatch_modes():
            self._torch.push(*base)

    def _leave(self) -> None:
        stack = self._stack
        if stack is None:
            return
        for _ in stack.pushed:
            self._torch.pop()
        if not stack.aside and self._is_on_top(stack.base):
            self._torch.pop()
        for pair in stack.pushed:  # what the program pushed stays in force, as it pushed it
            self._torch.push(*pair)
        carry(_KEY, None)

    @hidden_from_compiler
    def _step_aside(self, *, suspended: bool = False) -> bool:
        stack = self._stack
        if stack is None or stack.aside or stack.pushed or not self._is_on_top(stack.base):
            return False
        self._torch.pop()
        self._change(stack, aside=True, suspended=suspended)
        return True

    def _is_on_top(self, pair: Pair | None) -> bool:
        """Return whether a pair is the innermost now; None is on top where there is none.

        Where a compiler traces, it puts back the stack of an earlier moment.
        """
        top = self._torch.top(True)
        return (top and top[0]) == (pair and pair[0])

    @hidden_from_compiler
    def _note_compiling(self, compiling: bool) -> None:
        """Step aside while backward calls are compiled: the compiler would trace our hooks."""
        stack = self._stack
        if stack is not None:
            self._change(stack, compiling=compiling)
            step = self._step_aside if compiling else self._step_back
            step()

    def _step_back(self) -> None:
        """Put our pair back, unless something still wants it aside."""
        stack = self._stack
        if stack is None or stack.suspended or stack.compiling or stack.pushed:
            return
        if dispatch_modes() or not default_hooks_are_enabled():
            return
        if not self._is_on_top(stack.base) and (stack.aside or self._is_on_top(stack.beneath)):
            self._torch.push(*stack.base)
        if stack.aside:
            self._change(stack, aside=False)

    @hidden_from_compiler
    def _push_theirs(self, pack: Pack, unpack: Unpack) -> None:
        self._torch.push(*(self._attempt(partial(self._pair_for, pack, unpack)) or (pack, unpack)))
        stack = self._stack
        if stack is not None:
            self._change(stack, pushed=(*stack.pushed, (pack, unpack)))

    def _pair_for(self, pack: Pack, unpack: Unpack) -> Pair:
        """Return the pair to be put in force where the program enters its own."""
        stack = self._stack
        if stack is None:
            return pack, unpack
        if stack.suspended:
            self._before_theirs()
            stack = self._stack or stack
        return (pack, foreign(unpack)) if stack.aside else self._compose(pack, unpack)

    @hidden_from_compiler
    def _pop_theirs(self) -> None:
        self._torch.pop()
        stack = self._stack
        if stack is None:
            return
        if stack.pushed:
            if not stack.suspended:
                self._recomputing.end(stack.pushed[-1][0])
            stack = self._change(stack, pushed=stack.pushed[:-1])
        if stack.aside and not stack.pushed:  # what kept ours aside may have ended meanwhile
            self._attempt(self._step_back)

    @hidden_from_compiler
    def _top_theirs(self, ignore_is_tracing: bool) -> Pair | None:
        top, stack = self._torch.top(ignore_is_tracing), self._stack
        if stack is None or top is None:
            return top
        return stack.pushed[-1] if stack.pushed else stack.beneath

    @hidden_from_compiler
    def _disable_for_them(self, *args: Any, **kwargs: Any) -> None:
        stepped = self._attempt(self._step_aside)
        try:
            self._torch.disable(*args, **kwargs)
        except RuntimeError:
            if stepped:
                self._attempt(self._step_back)
            raise

    @hidden_from_compiler
    def _enable_for_them(self) -> None:
        self._torch.enable()
        self._attempt(self._step_back)


@itself_hidden_from_compiler
def read_saved_tensors(ctx: Any, original: Callable[[Any], Any], notes: Notes) -> Any:
    """Return ``ctx.saved_tensors`` with the very tensors that were saved, where torch would.

    Under hooks torch makes a new tensor of each: ``weight is ctx.saved_tensors[0]`` and attributes
    like ``weight.main_grad`` are lost. What unpacking runs meanwhile may read saved tensors of its
    own (a checkpoint runs its forward again), so each is asked for what it holds itself.
    """
    if FUNCTION_APPLY is None:  # no frame has told what is a Function's
        _mark(ctx)
    values = original(ctx)
    return _restore(ctx, values, notes) if isinstance(values, tuple) else values


@hidden_from_compiler
def _mark(ctx: Any) -> None:
    """Note that a Function saved these tensors: of them torch does not tell whether they were
    detached in place.
    """
    with suppress(RuntimeError, AttributeError):  # freed; none saved
        for each in slots.saved(ctx, "tensors"):
            if isinstance(each.data, Packed):
                each.data.by_function = True


@hidden_from_compiler
def _restore(ctx: Any, values: tuple[Any, ...], notes: Notes) -> tuple[Any, ...]:
    what = "restoring what a Function saved failed in gradscope"
    return notes.attempt(what, lambda: _restored(values, slots.saved(ctx, "tensors")), values)


def _restored(values: tuple[Any, ...], saved: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(saved) != len(values):
        return values
    restored = []
    for value, each in zip(values, saved, strict=True):
        data: Any = None if value is None else each.data
        if isinstance(data, Packed) and data.original and data.tensor is not None:
            restored.append(data.tensor)
            with DisableTorchFunction():
                slots.part_from_leaf(value)
        else:
            restored.append(value)
    return tuple(restored)


@itself_hidden_from_compiler
def register_hooks(original: Callable[..., None], saved: Any, pack: Pack, unpack: Unpack) -> None:
    """Put the hooks of ``SavedTensor.register_hooks`` inside ours, which are on it already."""
    packed = slots.held_by(saved)
    if not isinstance(packed, Packed) or packed.theirs is not None or packed.tensor is None:
        original(saved, pack, slots.foreign(unpack))
        return
    given = packed.tensor.detach() if packed.original else packed.tensor
    version = version_of(given)
    with torch.no_grad():
        value = pack(given)
    if version_of(given) != version:
        raise RuntimeError(PACK_HOOK_MODIFIES)
    packed.theirs = (value, unpack)
    packed.tensor = None


@itself_hidden_from_compiler
def unpack(original: Unpack, saving: Saving, saved: Any) -> torch.Tensor:
    """Return the very tensor that was saved from ``SavedTensor.unpack``, as checkpoints expect."""
    packed = slots.held_by(saved)
    if isinstance(packed, Packed) and packed.original and packed.tensor is not None:
        if packed.is_detached:  # torch says so to who unpacks it for no node, whichever runs
            raise RuntimeError(DETACHED)
        return saving.unpack(packed)
    return original(saved)
