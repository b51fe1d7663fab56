"""Keeps our pair of default saved-tensor hooks in force, and the program's own pairs working."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gradscope.collect.notes import Notes
from gradscope.collect.slots import foreign
from gradscope.hooks import (
    DefaultHookFunctions,
    Handle,
    Handles,
    Pack,
    Pair,
    Unpack,
    around_dispatch_modes,
    on_compiled_autograd,
    on_thread_start,
    replace_default_hook_functions,
)
from gradscope.torch_private import default_hooks_are_enabled, dispatch_modes, hidden_from_compiler

T = TypeVar("T")

_UNKNOWN_HOOKS = (
    "saved-tensor hooks were in force when the watch began; this torch does not show them, so the "
    "watch goes without hooks of its own in that thread (torch 2.5 and later show them)"
)


class _ThreadState(threading.local):
    """What one thread has on its stack of default hooks, as far as it went through us."""

    def __init__(self) -> None:
        self.entered = False
        self.aside = False
        self.lifted = False
        self.compiling = False
        self.base: Pair | None = None
        self.left: Pair | None = None
        self.beneath: Pair | None = None
        self.pushed: list[Pair] = []


class DefaultHooks:
    """Keeps one pair of default saved-tensor hooks in force on every thread.

    torch applies only the innermost pair, so a pair that the program pushes is composed with ours
    (``compose(pack, unpack)`` makes one pair of both). Ours step aside where torch refuses default
    hooks (``torch.func``), would show their work to the program (a ``TorchDispatchMode``) or
    compiles backward calls. ``before_theirs`` is called when the program pushes a pair while ours
    are lifted; it may lower ours.
    """

    def __init__(
        self,
        pack: Pack,
        unpack: Unpack,
        compose: Callable[[Pack, Unpack], Pair],
        before_theirs: Callable[[], None],
        notes: Notes,
    ) -> None:
        self._pair = (pack, unpack)
        self._compose = compose
        self._before_theirs = before_theirs
        self._notes = notes
        self._local = _ThreadState()
        self._torch = DefaultHookFunctions.now()

    def install(self) -> Handle:
        """Enter the current thread, and every thread that starts while the handle lives."""
        handles = Handles()
        theirs = DefaultHookFunctions(
            self._push_theirs,
            self._pop_theirs,
            self._top_theirs,
            self._disable_for_them,
            self._enable_for_them,
        )
        handles.add(replace_default_hook_functions(theirs))
        handles.add(
            around_dispatch_modes(
                partial(self._attempt, self._step_aside, False),
                partial(self._attempt, self._step_back_if_wanted, None),
            )
        )
        handles.add(
            on_compiled_autograd(
                partial(self._attempt, self._begin_compiling, None),
                partial(self._attempt, self._end_compiling, None),
            )
        )
        handles.add(on_thread_start(self._enter_thread, self._leave_thread))
        self._enter()
        handles.add(Handle(self._leave))
        return handles

    @hidden_from_compiler
    def _enter_thread(self) -> None:
        self._attempt(self._enter, None)

    @hidden_from_compiler
    def _leave_thread(self) -> None:
        self._attempt(self._leave, None)

    def _attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """Do some work of ours inside a call of the program's, which must not fail for it."""
        return self._notes.attempt(
            "keeping saved-tensor hooks in force failed in gradscope", work, otherwise
        )

    def lift(self) -> bool:
        """Take our hooks out in this thread until they are lowered; False where the program's are
        on top.
        """
        state = self._local
        state.lifted = self._step_aside()
        return state.lifted

    def lower(self) -> None:
        """Put lifted hooks back, unless something else still wants them aside."""
        state = self._local
        state.lifted = False
        self._step_back_if_wanted()

    def pushed(self) -> tuple[Pair, ...]:
        """Return the program's own pairs in this thread, the innermost last."""
        return tuple(self._local.pushed)

    def restore(self, pushed: tuple[Pair, ...]) -> None:
        """Know only these pairs of the program's again, and have ours in force.

        What is entered inside a backward call and not left, by the program or by us, the engine
        forgets when the call ends: it works with a stack of its own.
        """
        self._local.pushed[:] = pushed
        if not self._local.aside:
            self._step_back_if_wanted()

    @hidden_from_compiler
    def sweep(self) -> None:
        """Take our pair out once more, after a backward call in which the watch has ended.

        The engine works with a copy of the stack, and brings back the one that it found.
        """
        if not self._local.entered and self._is_on_top(self._local.left):
            self._torch.pop()

    @hidden_from_compiler
    def leave_late(self) -> None:
        """Take our pair out of this thread, after the watch has ended in another one.

        What the program has entered since is not known here, so only a pair on top is taken out.
        """
        self._attempt(self._leave_late, None)

    def _leave_late(self) -> None:
        state = self._local
        pair = state.base if state.entered else state.left
        if pair is not None and self._is_on_top(pair):
            self._torch.pop()
            state.left = pair
            state.entered = state.aside = state.lifted = False
            state.base = state.beneath = None
            state.pushed.clear()

    def _step_back_if_wanted(self) -> None:
        if dispatch_modes() == 0 and default_hooks_are_enabled():
            self._step_back()

    def _enter(self) -> None:
        state = self._local
        if state.entered or not default_hooks_are_enabled():
            return
        if self._torch.hide_pairs():  # ours on top of them would take them out of force
            self._notes.add(_UNKNOWN_HOOKS)
            return
        state.beneath = self._torch.top(False)
        state.base = self._pair if state.beneath is None else self._compose(*state.beneath)
        state.entered, state.aside = True, False
        if dispatch_modes():
            state.aside = True
        else:
            self._torch.push(*state.base)

    def _leave(self) -> None:
        state = self._local
        if not state.entered:
            return
        for _ in state.pushed:
            self._torch.pop()
        if not state.aside and self._is_on_top(state.base):
            self._torch.pop()
        for pair in state.pushed:  # what the program pushed stays in force, as it pushed it
            self._torch.push(*pair)
        state.left = state.base
        state.entered = state.aside = state.lifted = False
        state.base = state.beneath = None
        state.pushed.clear()

    @hidden_from_compiler
    def _step_aside(self) -> bool:
        state = self._local
        if not state.entered or state.aside or state.pushed or not self._is_on_top(state.base):
            return False
        self._torch.pop()
        state.aside = True
        return True

    def _is_on_top(self, pair: Pair | None) -> bool:
        """Return whether a pair is the innermost now; None is on top where there is none.

        Inside the engine torch has a stack of its own, and where a compiler traces, it puts back
        the stack of an earlier moment.
        """
        top = self._torch.top(True)
        return (top and top[0]) == (pair and pair[0])

    @hidden_from_compiler
    def _begin_compiling(self) -> None:
        """Step aside while backward calls are compiled: the compiler would trace our hooks."""
        self._local.compiling = True
        self._step_aside()

    @hidden_from_compiler
    def _end_compiling(self) -> None:
        self._local.compiling = False
        self._step_back_if_wanted()

    def _step_back(self) -> None:
        state = self._local
        wanted = state.entered and not (state.lifted or state.compiling or state.pushed)
        if not wanted or state.base is None:
            return
        on_top = self._is_on_top(state.base)
        if not on_top and (state.aside or self._is_on_top(state.beneath)):
            self._torch.push(*state.base)
        state.aside = False

    @hidden_from_compiler
    def _push_theirs(self, pack: Pack, unpack: Unpack) -> None:
        self._torch.push(*self._attempt(partial(self._pair_for, pack, unpack), (pack, unpack)))
        if self._local.entered:
            self._local.pushed.append((pack, unpack))

    def _pair_for(self, pack: Pack, unpack: Unpack) -> Pair:
        """Return the pair to be put in force where the program enters its own."""
        state = self._local
        if not state.entered:
            return pack, unpack
        if state.lifted:
            self._before_theirs()
        return (pack, foreign(unpack)) if state.aside else self._compose(pack, unpack)

    @hidden_from_compiler
    def _pop_theirs(self) -> None:
        self._torch.pop()
        state = self._local
        if state.pushed:
            state.pushed.pop()
        if state.aside and not state.pushed:  # what kept ours aside may have ended meanwhile
            self._attempt(self._step_back_if_wanted, None)

    @hidden_from_compiler
    def _top_theirs(self, ignore_is_tracing: bool) -> Pair | None:
        state = self._local
        if not state.entered or self._torch.top(ignore_is_tracing) is None:
            return self._torch.top(ignore_is_tracing)
        return state.pushed[-1] if state.pushed else state.beneath

    @hidden_from_compiler
    def _disable_for_them(self, *args: Any, **kwargs: Any) -> None:
        stepped = self._attempt(self._step_aside, False)
        try:
            self._torch.disable(*args, **kwargs)
        except RuntimeError:
            if stepped:
                self._attempt(self._step_back, None)
            raise

    @hidden_from_compiler
    def _enable_for_them(self) -> None:
        self._torch.enable()
        if dispatch_modes() == 0:
            self._attempt(self._step_back, None)
