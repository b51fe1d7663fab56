"""The private names of torch that gradscope reads, in one place; hooks.py has those that it
changes.

A few attributes are read where they are used, as a call more would cost too much there:
``tensor._version``, ``_is_view()``, ``_base`` and ``_use_count()``, ``node._sequence_nr()`` and
``metadata``, ``storage._cdata``. ``tests/unit/facts.py`` says what each of all these is relied
on for, and has a probe for it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

import torch
import torch.utils._contextlib
import torch.utils.checkpoint
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction as BackwardCFunction
from torch.nn import Module
from torch.utils._dtype_abbrs import dtype_abbrs as dtype_abbrs

Read = Callable[[torch.Tensor], Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])

# what runs now

DisableTorchFunction = torch._C.DisableTorchFunction
current_node = torch._C._current_autograd_node
function_modes = torch._C._len_torch_function_stack
dispatch_modes = torch._C._len_torch_dispatch_stack
next_sequence_nr = torch._C._autograd._get_sequence_nr
"""The sequence number that the next node of this thread will have."""

# tensors

storage_use_count = torch._C._storage_Use_Count
_of_tensors = torch._C.TensorBase.__dict__
read_grad_fn: Read = _of_tensors["grad_fn"].__get__
read_is_leaf: Read = _of_tensors["is_leaf"].__get__
read_requires_grad: Read = _of_tensors["requires_grad"].__get__
read_version: Read = _of_tensors["_version"].__get__
read_grad: Read = _of_tensors["grad"].__get__

# nodes and what they saved

FunctionNode = torch._C._FunctionBase
SavedTensor: Any = torch._C._autograd.SavedTensor
RAW_SAVED = "_raw_saved_"
"""Before the name of a saved tensor: the SavedTensor itself, which nothing unpacks."""
SAVED = "_saved_"
"""Before the name of a saved tensor: what the engine would get, unpacked and checked."""
NO_SEQUENCE_NR = 2**64 - 1
"""Torch's sequence number of every AccumulateGrad node."""

# code

FUNCTION_APPLY: CodeType | None = getattr(
    getattr(Function.apply, "__func__", None), "__code__", None
)
"""None where it is C code, as in torch 2.15: then it has no frame."""
MODULE_CALL: CodeType = Module._call_impl.__code__
CHECKPOINT_FILE = torch.utils.checkpoint.__file__
CONTEXT_FILE = torch.utils._contextlib.__file__
LOADER_ITERATORS: tuple[type, ...] = (
    torch.utils.data.dataloader._SingleProcessDataLoaderIter,
    torch.utils.data.dataloader._MultiProcessingDataLoaderIter,
)
COMPILER_FOLDER = torch.__path__[0] + "/_dynamo"
_NOT_COMPILING = frozenset(
    {"graph_break", "_callback_from_stance", "DisableContext.__call__.<locals>._fn"}
)
"""What each step of an optimizer runs of the compiler: it keeps code from being compiled."""


def is_compiler(code: CodeType) -> bool:
    """Return whether code of the compiler is at work, or about to."""
    return code.co_filename.startswith(COMPILER_FOLDER) and code.co_qualname not in _NOT_COMPILING


def node_class_of(function: Any) -> Any:
    """Return the class of the nodes of an ``autograd.Function``."""
    return getattr(function, "_backward_cls", None)


def function_of(node_class: type) -> Any:
    """Return the ``autograd.Function`` that a class of nodes belongs to; None for C++ nodes."""
    return getattr(node_class, "_forward_cls", None)


def raw_saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """Return the SavedTensors of a Python Function's node, which nothing unpacks."""
    saved: tuple[Any, ...] = ctx._raw_saved_tensors
    return saved


def has_donated_buffers(node_class: type) -> bool:
    """Return whether compiled code gives the memory of what it saved to its own backward."""
    import torch._functorch.config  # loads the compiler's settings, only where code was compiled

    metadata = getattr(function_of(node_class), "metadata", None)
    donated = getattr(metadata, "bw_donated_idxs", None)
    return bool(torch._functorch.config.donated_buffer) and donated not in (None, [])


_compiler: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def hidden_from_compiler(function: _Function) -> _Function:
    """Keep ``torch.compile`` from compiling a function of ours, and all that it calls.

    Where a compiled function of the program goes on in Python, the compiler compiles every frame
    that begins, those of our hooks too.
    """
    return _hide(function, callees=True)


def itself_hidden_from_compiler(function: _Function) -> _Function:
    """Keep ``torch.compile`` from compiling a function of ours, but not what that calls: the
    program's.
    """
    return _hide(function, callees=False)


def _hide(function: _Function, *, callees: bool) -> _Function:
    if hasattr(_compiler, "_FrameExecStrategy"):  # not before torch 2.7
        skip, default = _compiler._FrameAction.SKIP, _compiler._FrameAction.DEFAULT
        strategy = _compiler._FrameExecStrategy(skip, skip if callees else default)
        _compiler.set_code_exec_strategy(function.__code__, strategy)
    return function
