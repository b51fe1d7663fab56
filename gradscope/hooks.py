"""The only file that changes torch or the interpreter; every change returns a handle that undoes
it.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from inspect import getattr_static
from multiprocessing.reduction import ForkingPickler
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.autograd.graph
import torch.utils
import torch.utils._python_dispatch
import torch.utils.checkpoint
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.multiprocessing.reductions import reduce_tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradscope.errors import Handle as Handle
from gradscope.errors import replace as replace
from gradscope.torch_private import (
    KnownStack,
    eager_stance,
    has_default_hooks,
    hidden_from_compiler,
    is_carried,
    itself_hidden_from_compiler,
    remove_carried,
    stash_carried,
)

Pack: TypeAlias = Callable[[torch.Tensor], Any]
Unpack: TypeAlias = Callable[[Any], torch.Tensor]
Pair: TypeAlias = tuple[Pack, Unpack]
StepHook: TypeAlias = Callable[[Any, Any, Any], None]
Trace: TypeAlias = Callable[[FrameType, str, Any], Any]

_gettrace = sys.gettrace
_AUTOGRAD: Any = torch._C._autograd
_PUSH, _POP = "_push_saved_tensors_default_hooks", "_pop_saved_tensors_default_hooks"
_DISABLE, _ENABLE = "_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable"
_TOP = "_top_saved_tensors_default_hooks"  # not before torch 2.5
_THEIRS = "_gradscope_stands_for"
_LOOKS_ON = "torch._functorch._aot_autograd.runtime_wrappers"
"""Has the mode in which compiled code runs for the first time; it looks at custom operators."""


@hidden_from_compiler
def erase(error: BaseException, codes: frozenset[Any]) -> None:
    """Take the frames that run ``codes`` out of the error's traceback, so that it reads as without
    gradscope.

    Called in an ``except`` block before a bare ``raise``: the frame that re-raises adds no entry
    for itself again.
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


def carry(key: str, value: object) -> None:
    """Have torch carry a value into the threads that work for this one; None for nothing."""
    if value is not None:
        stash_carried(key, value)
    elif is_carried(key):
        remove_carried(key)


def wrap_engine(run: Callable[..., Any]) -> Handle:
    """Send every backward call through ``run(original, *args, **kwargs)``.

    The name is bound in ``torch.autograd.graph`` and in ``torch.autograd``; both are replaced, and
    each keeps its own original.
    """
    handles = Handle()
    for module in (torch.autograd.graph, torch.autograd):
        original = module._engine_run_backward
        instead = functools.wraps(original)(functools.partial(run, original))
        handles.add(replace(module, "_engine_run_backward", instead))
    return handles


def on_optimizer_step(before: StepHook, after: StepHook) -> Handle:
    """Call ``before`` and ``after`` around every step of every torch optimizer, with it and with
    what it was called with.
    """
    hidden_from_compiler(before), hidden_from_compiler(after)
    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    return Handle(*(hook.remove for hook in hooks))


def on_new_parameters(meet: Callable[[Any], object]) -> Handle:
    """Call ``meet(optimizer)`` with each torch optimizer that has got parameters."""
    original = Optimizer.add_param_group

    @functools.wraps(original)
    def add_param_group(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **kwargs)
        meet(optimizer)

    return replace(Optimizer, "add_param_group", add_param_group)


def run_uncompiled() -> Handle:
    """Have what is compiled run as it is written, since torch 2.6: a compiler would take a mode for
    a part of the program.
    """
    handle, compiling = Handle(), torch.compile

    @functools.wraps(compiling)
    def compile_it(*args: Any, **kwargs: Any) -> Any:
        compiled = compiling(*args, **kwargs)
        if (eager := eager_stance()) is not None:  # the compiler is loaded now
            undo.close()
            handle.enter_context(eager)
        return compiled

    if (eager := eager_stance()) is not None:
        handle.enter_context(eager)
        return handle
    undo = replace(torch, "compile", compile_it)
    return handle.add(undo)


def on_functions(apply: Callable[..., Any], marked: Callable[..., None]) -> Handle:
    """Send ``Function.apply`` through ``apply(original, function, *args)``, and call
    ``marked(*results)`` when a Function declares results of its own to have no derivative.
    """
    function: Any = torch.autograd.Function
    raw = getattr_static(function, "apply")
    mark = FunctionCtx.mark_non_differentiable

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(raw.__get__(None, cls), cls, *args, **kwargs)

    def mark_non_differentiable(ctx: Any, *outputs: Any) -> None:
        marked(*outputs)
        mark(ctx, *outputs)

    return Handle().add(
        replace(function, "apply", classmethod(applied)),
        replace(FunctionCtx, "mark_non_differentiable", mark_non_differentiable),
    )


def on_reentrant_checkpoints(begin: Callable[[FrameType], None]) -> Handle:
    """Call ``begin(frame)`` with the frame of each forward pass of a reentrant checkpoint, before
    it runs its function. No frame of ours is around that.
    """
    module: Any = torch.utils.checkpoint
    code = module.CheckpointFunction.forward.__code__
    original = getattr(module, "_get_autocast_kwargs", None)
    if original is None:
        return Handle()

    @itself_hidden_from_compiler
    def _get_autocast_kwargs(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code is code:
            begin(frame)
        return original(*args, **kwargs)

    return replace(module, "_get_autocast_kwargs", _get_autocast_kwargs)


def on_made_values(
    parameter: Callable[[Any, FrameType], None], array: Callable[..., Any]
) -> Handle:
    """Call ``parameter(new, frame)`` with each parameter that is made in a frame, and send
    ``torch.from_numpy`` through ``array(original, given)``.
    """
    new, from_numpy = torch.nn.Parameter.__new__, torch.from_numpy

    def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = new(cls, *args, **kwargs)
        parameter(made, sys._getframe(1))
        return made

    return Handle().add(
        replace(torch.nn.Parameter, "__new__", staticmethod(make)),
        replace(torch, "from_numpy", functools.partial(array, from_numpy)),
    )


def on_inference_mode(switched: Callable[[Any, str, FrameType], None]) -> Handle:
    """Call ``switched(context, method, frame)`` when a method of ``inference_mode`` has run that
    was called in a frame.
    """
    handle = Handle()
    for name in ("__enter__", "__exit__"):
        original = getattr(torch.inference_mode, name)

        def switch(self: Any, *given: Any, _name: str = name, _original: Any = original) -> Any:
            result = _original(self, *given)
            switched(self, _name, sys._getframe(1))
            return result

        handle.add(replace(torch.inference_mode, name, switch))
    return handle


def on_saving(write: Callable[[], object]) -> Handle:
    """Call ``write()`` before ``torch.save`` writes a file by its name, which no event of Python's
    audit tells of.
    """
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, str | bytes | os.PathLike):
            write()
        original(obj, f, *args, **kwargs)

    return replace(torch, "save", save)


def hide_references(kind: type) -> Handle:
    """Have ``torch.utils.swap_tensors`` overlook weak references of a class: it refuses a tensor
    that has any.
    """
    seen = SimpleNamespace(**vars(weakref))
    seen.getweakrefs = lambda of: [r for r in weakref.getweakrefs(of) if type(r) is not kind]
    return replace(torch.utils, "weakref", seen)


def on_new(kind: type[BaseException], see: Callable[[BaseException], None]) -> Handle:
    """Call ``see(error)`` with each exception of a class as it is made, by torch in C++ as well."""
    original: Any = kind.__init__

    @itself_hidden_from_compiler
    def init(self: BaseException, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        see(self)

    return replace(kind, "__init__", init)


def on_sent_tensors(see: Callable[[torch.Tensor], None]) -> Handle:
    """Call ``see(tensor)`` with each tensor that torch is about to pickle for another process;
    where the program does that itself, with none.
    """
    reducers: Any = getattr(ForkingPickler, "_extra_reducers", {})
    if reducers.get(torch.Tensor) is not reduce_tensor:
        return Handle()

    @itself_hidden_from_compiler
    def reduce(tensor: torch.Tensor) -> Any:
        see(tensor)
        try:
            return reduce_tensor(tensor)
        except RuntimeError as error:
            erase(error, codes)
            raise

    def undo() -> None:
        if reducers.get(torch.Tensor) is reduce:
            reducers[torch.Tensor] = reduce_tensor

    codes = frozenset({reduce.__code__})
    reducers[torch.Tensor] = reduce
    return Handle(undo)


def on_thread_start(enter: Callable[[], None], leave: Callable[[], None]) -> Handle:
    """Call ``enter()`` in every thread started from now on before its work, and ``leave()`` after
    it.

    ``Thread._bootstrap`` is outside the frames that a thread's own traceback shows.
    """
    original = threading.Thread._bootstrap  # type: ignore[attr-defined]

    @itself_hidden_from_compiler
    def _bootstrap(self: threading.Thread) -> None:
        enter()
        try:
            original(self)
        finally:
            leave()

    return replace(threading.Thread, "_bootstrap", _bootstrap)


def trace_thread(
    start: Trace, inside: Trace, frames: Iterable[FrameType], keep: Callable[[Handle], None]
) -> None:
    """Trace this thread: ``start`` gets every call, ``inside`` what happens in ``frames``, which
    have begun already. ``keep`` is given the handle before that begins, as a signal's handler may
    raise at any moment.

    Nothing is done where another tool traces it. A program that sets another trace function later
    wins.
    """
    if _gettrace() is not None:
        return

    def undo() -> None:
        if _gettrace() is start:
            sys.settrace(None)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is inside:
                del frame.f_trace
            frame = frame.f_back

    keep(Handle(undo))
    sys.settrace(start)
    for frame in frames:
        if frame.f_trace is None:
            frame.f_trace = inside


def hide_trace(start: Trace) -> Handle:
    """Have ``sys.gettrace`` hide ``start``: programs ask whether they are debugged."""

    @hidden_from_compiler
    @functools.wraps(_gettrace)
    def gettrace() -> Any:
        found = _gettrace()
        return None if found is start else found

    return replace(sys, "gettrace", gettrace)


def on_unraisable(take: Callable[[Any], bool]) -> Handle:
    """Hand what was raised where nothing can be raised to ``take``, and print what it leaves."""
    original = sys.unraisablehook

    @functools.wraps(original)
    def unraisablehook(unraisable: Any) -> None:
        if not take(unraisable):
            original(unraisable)

    names = ["unraisablehook"]
    if original is sys.__unraisablehook__:  # programs ask whether it is still Python's own
        names.append("__unraisablehook__")
    return Handle().add(*(replace(sys, name, unraisablehook) for name in names))


class DefaultHookFunctions(NamedTuple):
    """The functions by which torch keeps the stack of default saved-tensor hooks of a thread."""

    push: Callable[[Pack, Unpack], None]
    pop: Callable[[], None]
    top: Callable[[bool], Pair | None]
    disable: Callable[..., None]
    enable: Callable[[], None]

    @classmethod
    def now(cls) -> DefaultHookFunctions:
        """Return the functions that are bound now."""
        push, pop = getattr(_AUTOGRAD, _PUSH), getattr(_AUTOGRAD, _POP)
        top = getattr(_AUTOGRAD, _TOP, None)
        disable, enable = getattr(_AUTOGRAD, _DISABLE), getattr(_AUTOGRAD, _ENABLE)
        if top is None:
            known = KnownStack(push, pop, functools.partial(has_default_hooks, disable, enable))
            push, pop, top = known.push, known.pop, known.top
        return cls(push, pop, top, disable, enable)

    def hide_pairs(self) -> bool:
        """Return whether this thread has pairs that torch does not show (before 2.5).

        Hooks must be enabled.
        """
        known = getattr(self.top, "__self__", None)
        return isinstance(known, KnownStack) and has_default_hooks(self.disable, self.enable)


def replace_default_hook_functions(new: DefaultHookFunctions) -> Handle:
    """Bind other functions in all places where torch looks them up."""
    named = list(zip((_PUSH, _POP, _TOP, _DISABLE, _ENABLE), new, strict=True))
    handles = Handle()
    for owner in (_AUTOGRAD, torch.autograd):
        there = [(name, function) for name, function in named if hasattr(owner, name)]
        handles.add(*(replace(owner, name, function) for name, function in there))
    return handles


def wrap_unpack_hooks(wrap: Callable[[Unpack], Unpack]) -> Handle:
    """Put ``wrap(unpack)`` in the place of each unpack hook that the program sets; asked for the
    innermost pair, give the program's own.
    """

    @itself_hidden_from_compiler
    def put(original: Callable[..., None], *given: Any) -> None:
        ours: Any = wrap(given[-1])
        if ours is not given[-1]:
            setattr(ours, _THEIRS, given[-1])
        original(*given[:-1], ours)

    @itself_hidden_from_compiler
    def top(original: Callable[..., Pair | None], *given: Any) -> Pair | None:
        pair = original(*given)
        return None if pair is None else (pair[0], getattr(pair[1], _THEIRS, pair[1]))

    handles = Handle()
    for owner in (_AUTOGRAD, torch.autograd):
        handles.add(replace(owner, _PUSH, functools.partial(put, getattr(owner, _PUSH))))
    if hasattr(_AUTOGRAD, _TOP):
        handles.add(replace(_AUTOGRAD, _TOP, functools.partial(top, getattr(_AUTOGRAD, _TOP))))
    handles.add(replace_register_hooks(put))
    return handles


def around_dispatch_modes(
    before_push: Callable[[], object], after_pop: Callable[[], None]
) -> Handle:
    """Call ``before_push()`` before a TorchDispatchMode is entered that could see what hooks do,
    ``after_pop()`` after one.
    """
    dispatch = torch.utils._python_dispatch
    push_mode, pop_mode = dispatch._push_mode, dispatch._pop_mode

    @itself_hidden_from_compiler
    def push(mode: Any) -> None:
        if type(mode).__module__ != _LOOKS_ON:
            before_push()
        push_mode(mode)

    @itself_hidden_from_compiler
    def pop(*args: Any, **kwargs: Any) -> Any:
        try:
            return pop_mode(*args, **kwargs)
        finally:
            after_pop()

    return Handle().add(replace(dispatch, "_push_mode", push), replace(dispatch, "_pop_mode", pop))


def on_compiled_autograd(before_on: Callable[[], object], after_off: Callable[[], None]) -> Handle:
    """Call ``before_on()`` before backward calls are compiled from now on, ``after_off()`` once
    they are not any more.
    """
    owner = getattr(getattr(torch._C, "_dynamo", None), "compiled_autograd", None)
    original = getattr(owner, "set_autograd_compiler", None)
    if original is None:
        return Handle()

    @itself_hidden_from_compiler
    def set_autograd_compiler(compiler: Any, *args: Any) -> Any:
        if compiler is not None:
            before_on()
        before = original(compiler, *args)
        if compiler is None:
            after_off()
        return before

    return replace(owner, "set_autograd_compiler", set_autograd_compiler)


def replace_saved_tensors_of_functions(read: Callable[[Any, Callable[[Any], Any]], Any]) -> Handle:
    """Answer ``ctx.saved_tensors`` of Python Functions with ``read(ctx, original)``."""
    original = torch._C._FunctionBase.saved_tensors.__get__  # type: ignore[attr-defined]

    @itself_hidden_from_compiler
    def saved_tensors(ctx: Any) -> Any:
        return read(ctx, original)

    return replace(BackwardCFunction, "saved_tensors", property(saved_tensors))


def replace_register_hooks(
    register: Callable[[Callable[..., None], Any, Pack, Unpack], None],
) -> Handle:
    """Send ``SavedTensor.register_hooks`` through ``register(original, saved, pack, unpack)``.

    Arguments that torch will refuse go to torch, which words its own error.
    """
    original = _AUTOGRAD.SavedTensor.register_hooks

    @itself_hidden_from_compiler
    def register_hooks(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) == 2 and callable(args[0]) and callable(args[1]) and not kwargs:
            register(original, self, *args)
        else:
            original(self, *args, **kwargs)

    return replace(_AUTOGRAD.SavedTensor, "register_hooks", register_hooks)


def replace_unpack(unpack: Callable[[Callable[[Any], torch.Tensor], Any], torch.Tensor]) -> Handle:
    """Send ``SavedTensor.unpack`` (torch 2.12 and later) through ``unpack(original, saved)``."""
    original = getattr(_AUTOGRAD.SavedTensor, "unpack", None)
    if original is None:
        return Handle()

    @itself_hidden_from_compiler
    def unpacked(saved: Any) -> torch.Tensor:
        return unpack(original, saved)

    return replace(_AUTOGRAD.SavedTensor, "unpack", unpacked)
