"""The only file that changes torch or the interpreter; every change returns a handle that undoes it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TypeAlias

import torch
import torch.autograd.graph
import torch.utils._python_dispatch
from torch.autograd.function import BackwardCFunction
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

Pack: TypeAlias = Callable[[torch.Tensor], Any]
Unpack: TypeAlias = Callable[[Any], torch.Tensor]
Pair: TypeAlias = tuple[Pack, Unpack]
Trace: TypeAlias = Callable[[FrameType, str, Any], Any]

_MISSING: Any = object()
_gettrace = sys.gettrace
_AUTOGRAD: Any = torch._C._autograd


class Handle:
    """Undoes one change, once: a second ``remove`` does nothing."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo

    def remove(self) -> None:
        """Take the change back."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


class Handles(Handle):
    """Several changes undone together, last first, each one even if another's undoing failed."""

    def __init__(self) -> None:
        self._handles: list[Handle] = []
        super().__init__(self._remove_all)

    def add(self, handle: Handle) -> None:
        """Take charge of one more change."""
        self._handles.append(handle)

    def _remove_all(self) -> None:
        errors = []
        while self._handles:
            try:
                self._handles.pop().remove()
            except Exception as error:  # the other changes must still be undone
                errors.append(error)
        if errors:
            raise errors[0]


def replace(owner: Any, name: str, new: Any) -> Handle:
    """Bind ``owner.name`` to ``new``.

    Undoing restores the stored original. Where somebody has put another object on top meanwhile, theirs stays: to
    take it away would break them, and ours beneath it does nothing once its watch has ended.
    """
    original = vars(owner).get(name, _MISSING)
    setattr(owner, name, new)

    def undo() -> None:
        if vars(owner).get(name, _MISSING) is not new:
            return
        if original is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return Handle(undo)


def erase(error: BaseException, codes: frozenset[Any]) -> None:
    """Take the frames that run ``codes`` out of the error's traceback, so that it reads as without gradscope.

    Called in an ``except`` block before a bare ``raise``: the frame that re-raises adds no entry for itself again.
    """
    first: TracebackType | None = error.__traceback__
    while first is not None and first.tb_frame.f_code in codes:
        first = first.tb_next
    entry = first
    while entry is not None:
        following = entry.tb_next
        while following is not None and following.tb_frame.f_code in codes:
            following = following.tb_next
        if entry.tb_next is not following:
            entry.tb_next = following
        entry = following
    error.__traceback__ = first


@dataclass(frozen=True, slots=True)
class EngineCall:
    """What a backward call asks of torch's engine. ``accumulates`` is False for ``autograd.grad``."""

    outputs: Sequence[Any]
    keep_graph: bool
    create_graph: bool
    inputs: Sequence[Any]
    accumulates: bool

    @classmethod
    def of(
        cls,
        t_outputs: Sequence[Any],
        grad_tensors: Sequence[Any] = (),
        keep_graph: bool = False,
        create_graph: bool = False,
        inputs: Sequence[Any] = (),
        allow_unreachable: bool = False,
        accumulate_grad: bool = True,
    ) -> EngineCall:
        """Read the arguments of ``_engine_run_backward`` (torch/autograd/graph.py)."""
        return cls(
            t_outputs, bool(keep_graph), bool(create_graph), inputs or (), bool(accumulate_grad)
        )

    @property
    def is_plain(self) -> bool:
        """Whether it frees all of its graph and hands out nothing but ``.grad``."""
        return not (self.keep_graph or self.create_graph or self.inputs)


def wrap_engine(run: Callable[..., Any]) -> Handle:
    """Send every backward call through ``run(original, *args, **kwargs)``.

    The name is bound in ``torch.autograd.graph`` and in ``torch.autograd``; both are replaced, and each keeps its own original.
    """
    handles = Handles()
    for module in (torch.autograd.graph, torch.autograd):
        original = module._engine_run_backward
        handles.add(
            replace(
                module,
                "_engine_run_backward",
                functools.wraps(original)(functools.partial(run, original)),
            )
        )
    return handles


def on_optimizer_step(before: Callable[[Any], None], after: Callable[[Any], None]) -> Handle:
    """Call ``before(optimizer)`` and ``after(optimizer)`` around every step of every torch optimizer."""

    def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
        before(optimizer)

    def post(optimizer: Any, args: Any, kwargs: Any) -> None:
        after(optimizer)

    handles = Handles()
    handles.add(Handle(register_optimizer_step_pre_hook(pre).remove))
    handles.add(Handle(register_optimizer_step_post_hook(post).remove))
    return handles


def on_thread_start(enter: Callable[[], None], leave: Callable[[], None]) -> Handle:
    """Call ``enter()`` in every thread started from now on before its work, and ``leave()`` after it.

    ``Thread._bootstrap`` is outside the frames that a thread's own traceback shows.
    """
    original = threading.Thread._bootstrap  # type: ignore[attr-defined]

    def _bootstrap(self: threading.Thread) -> None:
        enter()
        try:
            original(self)
        finally:
            leave()

    return replace(threading.Thread, "_bootstrap", _bootstrap)


def trace_thread(start: Trace, inside: Trace, frames: Iterable[FrameType]) -> Handle | None:
    """Trace this thread: ``start`` is told of every call, ``inside`` of what happens in ``frames``, which have begun already.

    None where somebody else traces it. A program that sets a trace function of its own later wins.
    """
    if _gettrace() is not None:
        return None
    sys.settrace(start)
    for frame in frames:
        if frame.f_trace is None:
            frame.f_trace = inside

    def undo() -> None:
        if _gettrace() is start:
            sys.settrace(None)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is inside:
                del frame.f_trace
            frame = frame.f_back

    return Handle(undo)


def hide_trace(start: Trace) -> Handle:
    """Let ``sys.gettrace`` say that nobody traces while ``start`` does: programs ask it whether they are being debugged."""

    @functools.wraps(_gettrace)
    def gettrace() -> Any:
        found = _gettrace()
        return None if found is start else found

    return replace(sys, "gettrace", gettrace)


def replace_saved_tensors_of_functions(read: Callable[[Any, Callable[[Any], Any]], Any]) -> Handle:
    """Answer ``ctx.saved_tensors`` of Python Functions with ``read(ctx, original)``."""
    original = torch._C._FunctionBase.saved_tensors.__get__  # type: ignore[attr-defined]
    return replace(BackwardCFunction, "saved_tensors", property(lambda ctx: read(ctx, original)))


def replace_register_hooks(
    register: Callable[[Callable[..., None], Any, Pack, Unpack], None],
) -> Handle:
    """Send ``SavedTensor.register_hooks`` through ``register(original, saved_tensor, pack, unpack)``."""
    original = _AUTOGRAD.SavedTensor.register_hooks

    def register_hooks(self: Any, pack_hook: Pack, unpack_hook: Unpack) -> None:
        register(original, self, pack_hook, unpack_hook)

    return replace(_AUTOGRAD.SavedTensor, "register_hooks", register_hooks)


def replace_unpack(unpack: Callable[[Callable[[Any], torch.Tensor], Any], torch.Tensor]) -> Handle:
    """Send ``SavedTensor.unpack`` through ``unpack(original, saved_tensor)``."""
    original = _AUTOGRAD.SavedTensor.unpack
    return replace(_AUTOGRAD.SavedTensor, "unpack", lambda saved: unpack(original, saved))


class _ThreadState(threading.local):
    """What one thread has on its stack of default hooks, as far as it went through us."""

    def __init__(self) -> None:
        self.entered = False
        self.aside = False
        self.lifted = False
        self.base: Pair | None = None
        self.beneath: Pair | None = None
        self.pushed: list[Pair] = []


class DefaultHooks:
    """Keeps one pair of default saved-tensor hooks in force on every thread.

    torch applies only the innermost pair, so a pair that the program pushes is composed with ours
    (``compose(pack, unpack)`` makes one pair of both), and where torch refuses default hooks (``torch.func``) or
    would show their work to the program (a ``TorchDispatchMode``), ours step aside. ``before_theirs`` is
    called when the program pushes a pair while ours are lifted; it has to lower ours.
    """

    def __init__(
        self,
        pack: Pack,
        unpack: Unpack,
        compose: Callable[[Pack, Unpack], Pair],
        before_theirs: Callable[[], None],
    ) -> None:
        self._pair = (pack, unpack)
        self._compose = compose
        self._before_theirs = before_theirs
        self._local = _ThreadState()
        self._push = _AUTOGRAD._push_saved_tensors_default_hooks
        self._pop = _AUTOGRAD._pop_saved_tensors_default_hooks
        self._top = _AUTOGRAD._top_saved_tensors_default_hooks
        self._disable = _AUTOGRAD._saved_tensors_hooks_disable
        self._enable = _AUTOGRAD._saved_tensors_hooks_enable

    def install(self) -> Handle:
        """Enter the current thread, and every thread that starts while the handle lives."""
        handles = Handles()
        for owner in (_AUTOGRAD, torch.autograd):
            handles.add(replace(owner, "_push_saved_tensors_default_hooks", self._push_theirs))
            handles.add(replace(owner, "_pop_saved_tensors_default_hooks", self._pop_theirs))
        handles.add(replace(_AUTOGRAD, "_top_saved_tensors_default_hooks", self._top_theirs))
        handles.add(replace(_AUTOGRAD, "_saved_tensors_hooks_disable", self._disable_for_them))
        handles.add(replace(_AUTOGRAD, "_saved_tensors_hooks_enable", self._enable_for_them))
        dispatch = torch.utils._python_dispatch
        push_mode, pop_mode = dispatch._push_mode, dispatch._pop_mode

        def push_mode_aside(mode: Any) -> None:
            self._step_aside()
            push_mode(mode)

        def pop_mode_back(*args: Any, **kwargs: Any) -> Any:
            try:
                return pop_mode(*args, **kwargs)
            finally:
                if (
                    torch._C._len_torch_dispatch_stack() == 0
                    and _AUTOGRAD._saved_tensors_hooks_is_enabled()
                ):
                    self._step_back()

        handles.add(replace(dispatch, "_push_mode", push_mode_aside))
        handles.add(replace(dispatch, "_pop_mode", pop_mode_back))
        handles.add(on_thread_start(self._enter, self._leave))
        self._enter()
        handles.add(Handle(self._leave))
        return handles

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Without our hooks in this thread, for work of our own that must not be recorded."""
        stepped = self._step_aside()
        try:
            yield
        finally:
            if stepped:
                self._step_back()

    def lift(self) -> bool:
        """Take our hooks out in this thread until they are lowered again; False where the program's are on top of them."""
        state = self._local
        state.lifted = self._step_aside()
        return state.lifted

    def lower(self) -> None:
        """Put lifted hooks back, unless something else still wants them aside."""
        state = self._local
        state.lifted = False
        if (
            torch._C._len_torch_dispatch_stack() == 0
            and _AUTOGRAD._saved_tensors_hooks_is_enabled()
        ):
            self._step_back()

    def _enter(self) -> None:
        state = self._local
        if state.entered or not _AUTOGRAD._saved_tensors_hooks_is_enabled():
            return
        state.beneath = self._top(False)
        state.base = self._pair if state.beneath is None else self._compose(*state.beneath)
        state.entered, state.aside = True, False
        if torch._C._len_torch_dispatch_stack():
            state.aside = True
        else:
            self._push(*state.base)

    def _leave(self) -> None:
        state = self._local
        if not state.entered:
            return
        for _ in state.pushed:
            self._pop()
        if not state.aside and self._is_on_top(state.base):
            self._pop()
        for pair in state.pushed:  # what the program pushed stays in force, as it pushed it
            self._push(*pair)
        state.entered, state.aside, state.lifted, state.base, state.beneath = (
            False,
            False,
            False,
            None,
            None,
        )
        state.pushed.clear()

    def _step_aside(self) -> bool:
        state = self._local
        if not state.entered or state.aside or state.pushed or not self._is_on_top(state.base):
            return False
        self._pop()
        state.aside = True
        return True

    def _is_on_top(self, pair: Pair | None) -> bool:
        """Whether a pair is the innermost one now; inside the engine torch works with a stack of its own."""
        top = self._top(True)
        return top is not None and pair is not None and top[0] == pair[0]

    def _step_back(self) -> None:
        state = self._local
        if (
            state.entered
            and state.aside
            and not state.lifted
            and not state.pushed
            and state.base is not None
        ):
            state.aside = False
            if not self._is_on_top(state.base):
                self._push(*state.base)

    def _push_theirs(self, pack: Pack, unpack: Unpack) -> None:
        state = self._local
        if not state.entered:
            self._push(pack, unpack)
            return
        if state.lifted:
            self._before_theirs()
        self._push(*((pack, unpack) if state.aside else self._compose(pack, unpack)))
        state.pushed.append((pack, unpack))

    def _pop_theirs(self) -> None:
        self._pop()
        if self._local.pushed:
            self._local.pushed.pop()

    def _top_theirs(self, ignore_is_tracing: bool) -> Pair | None:
        state = self._local
        if not state.entered or self._top(ignore_is_tracing) is None:
            return self._top(ignore_is_tracing)  # type: ignore[no-any-return]
        return state.pushed[-1] if state.pushed else state.beneath

    def _disable_for_them(self, message: str, fail_if_non_empty: bool = True) -> None:
        stepped = self._step_aside()
        try:
            self._disable(message, fail_if_non_empty)
        except RuntimeError:
            if stepped:
                self._step_back()
            raise

    def _enable_for_them(self) -> None:
        self._enable()
        if torch._C._len_torch_dispatch_stack() == 0:
            self._step_back()


class StackLimit:
    """Room on the main thread's stack for the destruction of deep graphs that were looked at.

    torch destroys a node that was ever seen from Python by recursion, about 200 bytes of C stack a node (measured with torch
    2.13: a chain of 40,000 nodes overflows 8 MiB). On Linux the main thread's stack grows up to the soft limit in force at the
    time, so raising that limit makes room; elsewhere only a smaller number of nodes may be touched.
    """

    BYTES_PER_NODE = 320
    LARGEST = 96 << 20  # Linux keeps at least 128 MiB of address space free below the stack
    OTHER_THREAD_NODES = 8_000 if sys.platform == "linux" else 1_000

    def __init__(self) -> None:
        self._handle: Handle | None = None

    def room_for(self, nodes: int) -> int:
        """How many nodes of one graph may be touched in this thread, after raising the limit if ``nodes`` asks for it."""
        if sys.platform != "linux":
            return self.OTHER_THREAD_NODES
        if threading.current_thread() is not threading.main_thread():
            return self.OTHER_THREAD_NODES
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
        if soft == resource.RLIM_INFINITY:
            return self.LARGEST // self.BYTES_PER_NODE
        if (
            nodes * self.BYTES_PER_NODE > soft
            and soft < self.LARGEST
            and (hard in (-1, resource.RLIM_INFINITY) or hard > soft)
        ):
            raised = (
                self.LARGEST if hard in (-1, resource.RLIM_INFINITY) else min(hard, self.LARGEST)
            )
            resource.setrlimit(resource.RLIMIT_STACK, (raised, hard))
            self._handle = self._handle or Handle(
                lambda: resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
            )
            soft = raised
        return soft // self.BYTES_PER_NODE

    def restore(self) -> None:
        """Put the limit back; only safe once the deep graphs are gone."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()
