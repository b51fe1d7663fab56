"""Keeps our default saved-tensor hooks in force and the program's working, as if without ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from gradscope.collect import slots
from gradscope.collect.engine_words import DETACHED, PACK_HOOK_MODIFIES
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes
from gradscope.collect.saving import Saving
from gradscope.collect.slots import foreign
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
from gradscope.program.tensors import version_of
from gradscope.torch_private import (
    FUNCTION_APPLY,
    DisableTorchFunction,
    carried,
    default_hooks_are_enabled,
    dispatch_modes,
    hidden_from_compiler,
    itself_hidden_from_compiler,
)

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
    lifted: bool = False
    compiling: bool = False


class DefaultHooks:
    """Keeps one pair of default saved-tensor hooks in force on every thread.

    torch applies only the innermost pair, so a pair that the program pushes is composed with ours
    (``compose(pack, unpack)`` makes one pair of both). Ours step aside where torch refuses default
    hooks (``torch.func``), would show their work to the program (a ``TorchDispatchMode``) or
    compiles backward calls. ``before_theirs`` is called when the program pushes a pair while ours
    are lifted; it may lower ours.
    """

    def __init__(self, saving: Saving, before_theirs: Callable[[], None]) -> None:
        self._pair: Pair = (saving.pack, slots.readable(saving.unpack))
        self._compose = saving.compose
        self._before_theirs = before_theirs
        self._notes = saving.ledger.notes
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
        begin, end = self._begin_compiling, self._end_compiling
        handles = Handle().add(
            replace_default_hook_functions(theirs),
            around_dispatch_modes(self._tried(self._step_aside), self._tried(self._step_back)),
            on_compiled_autograd(self._tried(begin), self._tried(end)),
            on_thread_start(self._tried(self._enter), self._tried(self._leave)),
        )
        self._enter()
        return handles.add(Handle(self._leave))

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

    def lift(self) -> bool:
        """Take our hooks out in this thread until they are lowered; False where the program's are
        on top.
        """
        return self._step_aside(lifted=True)

    def lower(self) -> None:
        """Put lifted hooks back, unless something else still wants them aside."""
        stack = self._stack
        if stack is not None and stack.lifted:
            self._change(stack, lifted=False)
            self._step_back()

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
    def _step_aside(self, *, lifted: bool = False) -> bool:
        stack = self._stack
        if stack is None or stack.aside or stack.pushed or not self._is_on_top(stack.base):
            return False
        self._torch.pop()
        self._change(stack, aside=True, lifted=lifted)
        return True

    def _is_on_top(self, pair: Pair | None) -> bool:
        """Return whether a pair is the innermost now; None is on top where there is none.

        Where a compiler traces, it puts back the stack of an earlier moment.
        """
        top = self._torch.top(True)
        return (top and top[0]) == (pair and pair[0])

    @hidden_from_compiler
    def _begin_compiling(self) -> None:
        """Step aside while backward calls are compiled: the compiler would trace our hooks."""
        stack = self._stack
        if stack is not None:
            self._change(stack, compiling=True)
            self._step_aside()

    @hidden_from_compiler
    def _end_compiling(self) -> None:
        stack = self._stack
        if stack is not None:
            self._change(stack, compiling=False)
            self._step_back()

    def _step_back(self) -> None:
        """Put our pair back, unless something still wants it aside."""
        stack = self._stack
        if stack is None or stack.lifted or stack.compiling or stack.pushed:
            return
        if dispatch_modes() or not default_hooks_are_enabled():
            return
        on_top = self._is_on_top(stack.base)
        if not on_top and (stack.aside or self._is_on_top(stack.beneath)):
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
        if stack.lifted:
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
def register_hooks(
    original: Callable[..., None],
    saved: Any,
    pack: Callable[[torch.Tensor], Any],
    unpack: Callable[[Any], torch.Tensor],
) -> None:
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
def unpack(original: Callable[[Any], torch.Tensor], saving: Saving, saved: Any) -> torch.Tensor:
    """Return the very tensor that was saved from ``SavedTensor.unpack``, as checkpoints expect."""
    packed = slots.held_by(saved)
    if isinstance(packed, Packed) and packed.original and packed.tensor is not None:
        if packed.is_detached:  # torch says so to who unpacks it for no node, whichever runs
            raise RuntimeError(DETACHED)
        return saving.unpack(packed)
    return original(saved)
