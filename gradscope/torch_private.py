"""The private names of torch that gradscope reads, in one place; hooks.py has those that it
changes.

Each is looked up when this file is imported. One that this torch lacks is replaced by something
that answers nothing, and noted in ``MISSING``: ``gradscope/collect/facts.py`` turns off what needs
it.

A few attributes are read where they are used, as a call more would cost too much there:
``tensor._version``, ``_is_view()``, ``_base`` and ``_use_count()``, ``node._sequence_nr()`` and
``metadata``, ``storage._cdata``. ``gradscope/collect/facts.py`` says what each of all these is
relied on for, and has a probe for it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

import torch
import torch.utils._pytree
import torch.utils.checkpoint
from torch.autograd import Function
from torch.nn import Module

Read = Callable[[torch.Tensor], Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])

MISSING: list[str] = []
"""The names that this torch lacks."""


def _find(path: str, otherwise: Any) -> Any:
    """Return what torch has at a dotted path; ``otherwise`` where it has nothing there."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        MISSING.append(f"torch.{path}")
        return otherwise
    return found


def _reader(name: str, otherwise: Callable[[torch.Tensor], Any]) -> Read:
    """Return what reads an attribute of a tensor without its subclass."""
    read: Read = _find(f"_C.TensorBase.{name}", property(otherwise)).__get__
    return read


innermost_transform: Callable[[], object] = _find(
    "_C._functorch.peek_interpreter_stack", lambda: None
)
"""Return the transform of ``torch.func`` that runs; None outside of all."""


class KnownStack(threading.local):
    """The stack of default saved-tensor hooks, for torch before 2.5, which does not show it.

    It knows the pairs that were pushed through it, and asks torch how many there are now:
    inside the engine torch has another stack, and a compiler puts back an earlier one.
    """

    def __init__(
        self, push: Callable[..., None], pop: Callable[[], None], has_pairs: Callable[[], bool]
    ) -> None:
        self._push, self._pop, self._has_pairs = push, pop, has_pairs
        self._pairs: list[tuple[Any, Any]] = []  # the last that was pushed at each depth
        self._depth = 0

    def push(self, pack: Any, unpack: Any) -> None:
        """Push a pair."""
        self._push(pack, unpack)
        self._pairs[self._depth : self._depth + 1] = [(pack, unpack)]
        self._depth += 1

    def pop(self) -> None:
        """Take the innermost pair out of force."""
        self._pop()
        self._depth = max(0, self._depth - 1)

    def top(self, ignore_is_tracing: bool = False) -> tuple[Any, Any] | None:
        """Return the innermost pair; None where there is none, or none that is known."""
        depth = 0
        while depth < len(self._pairs) and self._has_pairs():
            self._pop()
            depth += 1
        for pair in self._pairs[:depth]:
            self._push(*pair)
        self._depth = depth
        return self._pairs[depth - 1] if depth else None


class _Nothing:
    """Stands for a class of torch's that is missing: nothing is one of it."""


# what runs now

DisableTorchFunction: Any = _find("_C.DisableTorchFunction", contextlib.nullcontext)
DisableTorchDispatch: Any = _find("_C._DisableTorchDispatch", contextlib.nullcontext)
current_node: Callable[[], Any] = _find("_C._current_autograd_node", lambda: None)
function_modes: Callable[[], int] = _find("_C._len_torch_function_stack", lambda: 0)
dispatch_modes: Callable[[], int] = _find("_C._len_torch_dispatch_stack", lambda: 0)
next_sequence_nr: Callable[[], int] = _find("_C._autograd._get_sequence_nr", lambda: 0)
"""The sequence number that the next node of this thread will have."""

is_transformed: Callable[[Any], bool] = _find(
    "_C._functorch.is_functorch_wrapped_tensor", lambda tensor: False
)
"""Whether ``torch.func`` has wrapped a tensor in another one."""
untransformed: Callable[[Any], Any] = _find("_C._functorch.get_unwrapped", lambda tensor: tensor)

# what code calls that is read ahead

set_grad_mode: Callable[[bool], None] = _find("_C._set_grad_enabled", lambda _: None)
VARIABLE_FUNCTIONS: Any = _find("_C._VariableFunctions", object())
ASKED_QUIETLY: tuple[Any, ...] = (
    _find("_C._get_tracing_state", lambda: None),
    _find("_C._log_api_usage_once", lambda _: None),
)
"""Functions that return None, and do nothing that matters."""
OPERATOR_MODULES = frozenset(f"torch._C._{name}" for name in ("nn", "linalg", "fft", "special"))
TENSOR_MODULE = "torch._tensor"
FUNCTIONAL_MODULES = (
    *("torch.nn.functional", "torch.functional", "torch.special", "torch._jit_internal"),
    *("torch._lowrank", TENSOR_MODULE),
)

_by_thread = threading.local()
CALL = "gradscope.call"
"""Under this name torch carries the backward call that is open into the threads that run it."""
is_carried: Callable[[str], bool] = _find("_C._is_key_in_tls", lambda key: hasattr(_by_thread, key))
read_carried: Callable[[str], Any] = _find(
    "_C._get_obj_in_tls", lambda key: getattr(_by_thread, key)
)
stash_carried: Callable[[str, Any], None] = _find(
    "_C._stash_obj_in_tls", lambda key, value: setattr(_by_thread, key, value)
)
remove_carried: Callable[[str], object] = getattr(
    torch._C, "_remove_obj_from_tls", lambda key: stash_carried(key, None)
)


def carried(key: str) -> Any:
    """Return what this thread has under a name, or the thread that it works for; else None.

    Torch captures it with the stack of default hooks, and gives both to the threads of the engine,
    where no Python frame tells for whom they run. What one of them sets there is its own, and goes
    with the node that it runs.
    """
    return read_carried(key) if is_carried(key) else None


bound_functions: Any = _find("_VF", None)
"""The module that looks up a function of torch's in C when it is asked for."""


def device_peaks() -> list[str]:
    """Return for each device that the program has used how many bytes its tensors have taken at the
    most: torch's own statistics, which it keeps on the host.
    """
    find: Any = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    accelerator = None if find is None else find()
    module: Any = None if accelerator is None else getattr(torch, accelerator.type, None)
    peak = getattr(module, "max_memory_allocated", None)
    is_used = getattr(module, "is_initialized", lambda: False)
    if accelerator is None or peak is None or not is_used():
        return []
    sizes = {f"{accelerator.type}:{i}": peak(i) for i in range(module.device_count())}
    told = {name: size for name, size in sizes.items() if size}
    return [f"all tensors on {name} took {size:,} bytes at the peak" for name, size in told.items()]


# tensors

storage_use_count: Callable[[int], int] = _find("_C._storage_Use_Count", lambda storage: 2**31)
read_grad_fn = _reader("grad_fn", lambda tensor: tensor.grad_fn)
read_is_leaf = _reader("is_leaf", lambda tensor: tensor.is_leaf)
read_requires_grad = _reader("requires_grad", lambda tensor: tensor.requires_grad)
read_version = _reader("_version", lambda tensor: 0)
read_grad = _reader("grad", lambda tensor: None)
read_hooks_after = _reader("_post_accumulate_grad_hooks", lambda tensor: None)

# nodes and what they saved

FunctionNode: Any = _find("_C._FunctionBase", _Nothing)
BackwardCFunction: Any = _find("autograd.function.BackwardCFunction", _Nothing)
SavedTensor: Any = _find("_C._autograd.SavedTensor", _Nothing)
register_hooks: Any = getattr(SavedTensor, "register_hooks", lambda *_: None)
unpack_saved: Any = getattr(SavedTensor, "unpack", None)
"""Torch's own, also where a watch has put others in their place."""
RAW_SAVED = "_raw_saved_"
"""Before the name of a saved tensor: the SavedTensor itself, which nothing unpacks."""
SAVED = "_saved_"
"""Before the name of a saved tensor: what the engine would get, unpacked and checked."""
SAVED_TENSORS_ARE_READABLE = hasattr(SavedTensor, "unpack")
"""Whether a SavedTensor says what it holds, by which hook, and is unpacked for no node, as since
torch 2.12."""
CLEARS = "clear_saved_tensors_on_access"
"""In a Function, true where its node lets go of what it saved as soon as that is read."""
ACCUMULATE_GRAD: Any = _find("_C._functions.AccumulateGrad", None)
"""The type of the nodes of leaves."""
# Torch's sequence number of every AccumulateGrad node: UINT64_MAX, so that the engine runs it
# first.
NO_SEQUENCE_NR = 2**64 - 1
read_saved_by_function: Callable[[Any], Any] = _find(
    "_C._FunctionBase.saved_tensors", property(lambda ctx: ())
).__get__
"""``ctx.saved_tensors`` of a Python Function, as torch answers it."""

# code

FUNCTION_APPLY: CodeType | None = getattr(
    getattr(Function.apply, "__func__", None), "__code__", None
)
"""None where it is C code, as in torch 2.15: then it has no frame."""
FUNCTION_BACKWARD: CodeType | None = getattr(
    getattr(BackwardCFunction, "apply", None), "__code__", None
)
"""What the engine calls of a Python Function; its ``self`` is the node."""
ENGINE_CALL: CodeType | None = getattr(
    getattr(torch.autograd.graph, "_engine_run_backward", None), "__code__", None
)
"""The last frame of Python's before the engine."""
BackwardHook: Any = _find("utils.hooks.BackwardHook", _Nothing)
"""Calls the backward hooks of its ``module``."""
DEEPCOPY_TENSOR: CodeType | None = getattr(torch.Tensor.__deepcopy__, "__code__", None)
MODULE_CALL: CodeType | None = getattr(getattr(Module, "_call_impl", None), "__code__", None)
CHECKPOINT_FILE = torch.utils.checkpoint.__file__
ENTERED_FILES = (torch.utils._contextlib.__file__, torch.utils._pytree.__file__)
LOADER_ITERATORS: tuple[type, ...] = (
    torch.utils.data.dataloader._SingleProcessDataLoaderIter,
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
)
REENTRANT_BACKWARD: CodeType = torch.utils.checkpoint.CheckpointFunction.backward.__code__
_DYNAMO = torch.__path__[0] + "/_dynamo"
_COMPILING = (f"{_DYNAMO}/eval_frame.py", f"{_DYNAMO}/convert_frame.py")
"""Where compiling begins. What runs elsewhere in the compiler may be the end of an object of its
own, whenever Python's collector comes: `model = torch.compile(model); …; del model`."""
_NOT_COMPILING = {
    *("innermost_fn", "_TorchDynamoContext.__init__", "DisableContext.__init__"),
    *("DisableContext.__call__.<locals>._fn", "Tracker.add.<locals>.<lambda>"),
    *("_callback_from_stance", "_is_skip_guard_eval_unsafe_stance", "_maybe_set_eval_frame"),
}
"""What each step of an optimizer runs of the compiler: it keeps code from being compiled."""


def is_compiler(code: CodeType) -> bool:
    """Return whether code of the compiler is at work, or about to."""
    if code.co_filename not in _COMPILING:
        return False
    # Whether the compiler is asked about each frame that begins; not told before 2.7.
    asked = getattr(_compiler, "get_eval_frame_callback", lambda: None)()
    is_asked = asked is not None and asked is not False
    return is_asked or code.co_qualname not in _NOT_COMPILING


_compiler_flags = vars(torch.compiler)
_tracing: Any = getattr(getattr(torch, "_guards", None), "_TLS", threading.local())
"""Has the context in which a compiler traces. Asking torch for it raises, unseen, an error where
there is none: ten times as dear.
"""


def cached_parametrizations() -> list[tuple[str, Any]]:
    """Return what ``parametrize.cached()`` keeps now: the parameters' names, and the tensors."""
    module = sys.modules.get("torch.nn.utils.parametrize")
    cache = getattr(module, "_cache", None)
    if type(cache) is not dict or not getattr(module, "_cache_enabled", 0):
        return []
    named = (pair for pair in [*cache.items()] if type(pair[0]) is tuple and len(pair[0]) == 2)
    return [(key[1], value) for key, value in named if isinstance(value, torch.Tensor)]


def default_hooks_are_enabled() -> bool:
    """Return whether torch takes default hooks now: ``torch.func`` switches them off."""
    functions: Any = torch._C._autograd
    return bool(functions._saved_tensors_hooks_is_enabled())


def has_default_hooks(disable: Callable[[str], None], enable: Callable[[], None]) -> bool:
    """Return whether this thread has any: torch then refuses to disable them."""
    if not default_hooks_are_enabled():
        return False
    try:
        disable("")
    except RuntimeError:
        return True
    finally:
        enable()
    return False


def checkpoint_of(pack: Any) -> tuple[Any, bool] | None:
    """Return the non-reentrant checkpoint that has this pack hook, and whether that is the one of
    its recomputation; None of other hooks.
    """
    hook: Any = vars(pack).get("__wrapped__", pack) if type(pack) is FunctionType else None
    if type(hook) is not FunctionType or hook.__code__.co_filename != CHECKPOINT_FILE:
        return None
    cells = _cells(hook)
    frame = cells["target_frame_ref"]() if "target_frame_ref" in cells else cells.get("frame")
    return None if frame is None else (frame, "frame" not in cells)


def _cells(function: Any) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def run_by_checkpoint(frame: Any) -> tuple[Any, bool]:
    """Return the function that a checkpoint runs, and whether it keeps the random state for it."""
    cells = _cells(frame.recompute_fn)
    return cells.get("fn"), bool(cells.get("preserve_rng_state", True))


def saved_by_checkpoint(frame: Any) -> list[tuple[str, Any]]:
    """Return shapes and types of the tensors that a forward pass has saved, as the checkpoint has
    noted them.
    """
    noted = (each for each in frame.x_metadatas if each is not None)
    return [(", ".join(map(str, each["shape"])), each["dtype"]) for each in noted]


def unpacked_by_checkpoint(frame: Any, index: int) -> bool:
    """Return whether a checkpoint will compare the saved tensor with this index, which a graph
    still has.
    """
    return frame.x_metadatas[index] is not None and frame.weak_holders[index]() is not None


def node_class_of(function: Any) -> Any:
    """Return the class of the nodes of an ``autograd.Function``."""
    return getattr(function, "_backward_cls", None)


def function_of(node_class: type) -> Any:
    """Return the ``autograd.Function`` that a class of nodes belongs to; None for C++ nodes."""
    return getattr(node_class, "_forward_cls", None)


def inputs_of(node: Any) -> int:
    """Return how many gradients a node takes (one at least); 0 where torch does not tell."""
    known = getattr(node, "_input_metadata", None)
    if known is not None:
        return len(known)
    try:
        node()  # with too few it does not run, and before torch 2.6 that alone tells their number
    except TypeError as error:
        found = re.search(r"expected (\d+) argument", str(error))
        return int(found[1]) if found else 0
    return 0


def has_donated_buffers(node_class: type) -> bool:
    """Return whether compiled code gives the memory of what it saved to its own backward."""
    # The compiler's settings, which are loaded where code was compiled.
    import torch._functorch.config  # noqa: PLC0415

    metadata = getattr(function_of(node_class), "metadata", None)
    donated = getattr(metadata, "bw_donated_idxs", None)
    donates = getattr(torch._functorch.config, "donated_buffer", False)  # not before torch 2.6
    return bool(donates) and donated not in (None, [])


_compiler: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_skip_code: Callable[[CodeType], None] | None = getattr(_compiler, "skip_code", None)
_HIDES_CALLEES = hasattr(_compiler, "_FrameExecStrategy")  # not before torch 2.7
_hidden: set[int] = set()
"""Ids of the code that was hidden function by function."""
_WRAPPERS = (staticmethod, classmethod, functools._lru_cache_wrapper)


def hidden_from_compiler(function: _Function) -> _Function:
    """Keep ``torch.compile`` from compiling a function of gradscope, and all that it calls.

    Where a compiled function of the program continues in Python, the compiler compiles every frame
    that begins, those of our hooks too.
    """
    return _hide(function, callees=True)


def itself_hidden_from_compiler(function: _Function) -> _Function:
    """Keep ``torch.compile`` from compiling a function of gradscope, but not what that calls: the
    program's.
    """
    return _hide(function, callees=False)


def _hide(function: _Function, *, callees: bool) -> _Function:
    _hide_code(function.__code__, callees=callees)
    _hidden.add(id(function.__code__))
    return function


def _hide_code(code: CodeType, *, callees: bool) -> None:
    if _HIDES_CALLEES:
        skip, default = _compiler._FrameAction.SKIP, _compiler._FrameAction.DEFAULT
        strategy = _compiler._FrameExecStrategy(skip, skip if callees else default)
        _compiler.set_code_exec_strategy(code, strategy)
    elif _skip_code is not None:
        _skip_code(code)


@hidden_from_compiler
def is_compiling() -> bool:
    """Return whether code runs in order to be compiled; before torch 2.6 the public function tells
    only of an export.
    """
    compiling = _compiler_flags.get(
        "_is_compiling_flag"
    )  # asked at each call: the public one is slow
    if compiling is None:
        compiling = torch.compiler.is_compiling()
    return compiling or _tracing.__dict__.get("tracing_context") is not None


def eager_stance() -> contextlib.AbstractContextManager[Any] | None:
    """Return a context in which what is compiled runs as it is written; None as long as no compiler
    is loaded, and before torch 2.6.
    """
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return None
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


def compiles_backward() -> bool:
    """Return whether backward calls are compiled now (compiled autograd)."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


@functools.cache
def hide_package_from_compiler(package: str) -> None:
    """Hide all functions of a package, where the compiler cannot be kept from what one calls.

    Before torch 2.12 that is so too of what is called while a saved tensor is unpacked.
    """
    if SAVED_TENSORS_ARE_READABLE or not (_HIDES_CALLEES or _skip_code):
        return
    modules = (m for n, m in list(sys.modules.items()) if n.partition(".")[0] == package)
    waiting: list[Any] = [each for module in modules for each in vars(module).values()]
    met: set[int] = set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, CodeType):
            if id(each) not in _hidden:
                _hide_code(each, callees=False)
            waiting += each.co_consts
        elif isinstance(each, property):
            waiting.append(each.fget)
        elif isinstance(each, _WRAPPERS):
            waiting.append(each.__wrapped__)
        elif isinstance(each, FunctionType | type) and id(each) not in met:
            met.add(id(each))
            if str(each.__module__).partition(".")[0] == package:
                waiting += vars(each).values() if isinstance(each, type) else [each.__code__]


# torch.distributed

_SINK = "_DDPSinkBackward"


def rank_of_process() -> tuple[int, int] | None:
    """Return which rank this process has, among how many, if it is in a process group."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
            return None
        return int(distributed.get_rank()), int(distributed.get_world_size())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None  # a module that is about to be imported, or a stand-in for it


def marks_of_reducer(module: Any) -> list[int]:
    """Return for each parameter that a DistributedDataParallel reduces when its reducer was last
    told of a gradient, in nanoseconds from the end of the forward before that.
    """
    read = getattr(getattr(module, "reducer", None), "get_backward_stats", list)
    return [*read()]


def is_reentrant(node: Any) -> bool:
    """Return whether a node makes a backward call of its own: that of a reentrant checkpoint."""
    return type(node).__name__ == "CheckpointFunctionBackward"


def wrapper_behind(node: Any) -> Any:
    """Return the DistributedDataParallel whose outputs have gone through this node, if it looks for
    unused parameters.
    """
    reference = getattr(node, "ddp_weakref", None) if type(node).__name__ == _SINK else None
    return None if reference is None else reference()
