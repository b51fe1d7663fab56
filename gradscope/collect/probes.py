"""Probes what gradscope relies on in torch and CPython beyond their documentation.

Each builds a small graph at most, and runs none: see ``gradscope/collect/facts.py``.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.graph
from torch import Tensor

import gradscope.hooks as hooks
import gradscope.torch_private as private
from gradscope.program.undisturbed import Uncollected
from gradscope.program.variables import local_variables


def _leaf() -> Tensor:
    return torch.ones(2, requires_grad=True, device="cpu")


def _raises(read: Callable[[], object], text: str) -> bool:
    try:
        read()
    except RuntimeError as error:
        return text in str(error)
    return False


class _Pushed:
    """A pair of default hooks, pushed as torch does it."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        self._pair = pack, unpack
        self._torch = hooks.DefaultHookFunctions.now()

    def __enter__(self) -> None:
        self._torch.push(*self._pair)

    def __exit__(self, *_: object) -> None:
        self._torch.pop()


def engine_is_bound_in_two_modules() -> bool:
    """Check that _engine_run_backward is bound in torch.autograd and in torch.autograd.graph."""
    modules: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)
    return all(callable(module._engine_run_backward) for module in modules)


class _Mark:
    """Something that a graph holds."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def pack_result_dies_with_the_saved_tensor() -> bool:
    """Check that what a pack hook returned is destroyed when the graph lets go of the saved
    tensor.
    """
    marks: list[weakref.ref[_Mark]] = []

    def pack(tensor: Tensor) -> _Mark:
        mark = _Mark(tensor.detach())
        marks.append(weakref.ref(mark))
        return mark

    with _Pushed(pack, lambda mark: mark.tensor):
        product = _leaf() * _leaf()
    alive = all(mark() is not None for mark in marks)
    del product
    return bool(marks) and alive and all(mark() is None for mark in marks)


def number_in_a_pack_hook_is_the_node_being_built() -> bool:
    """Check that in a pack hook the last sequence number is that of the node being built."""
    numbers: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        numbers.append(private.next_sequence_nr() - 1)
        return tensor

    with _Pushed(pack, lambda tensor: tensor):
        product = _leaf() * _leaf()
    node: Any = product.grad_fn
    return numbers == [node._sequence_nr()] * 2


def saved_tensors_are_read_by_name() -> bool:
    """Check that node._raw_saved_x and node._saved_x are what a node saved."""
    node: Any = (_leaf() * _leaf()).grad_fn
    raw = getattr(node, private.RAW_SAVED + "self")
    readable = not private.SAVED_TENSORS_ARE_READABLE or (
        type(raw.data) is Tensor and raw.unpack_hook is None
    )
    return readable and type(getattr(node, private.SAVED + "self")) is Tensor


def saved_attribute_raises_when_stale() -> bool:
    """Check that node._saved_x raises the engine's own error when the saved tensor is stale."""
    factor = torch.ones(2, device="cpu")
    node = (_leaf() * factor).grad_fn
    factor += 1
    return _raises(lambda: getattr(node, private.SAVED + "other"), "modified by an inplace")


def metadata_lives_with_the_node() -> bool:
    """Check that node.metadata is a dict that lives and dies with the C++ node."""
    mark = _Mark(torch.empty(0, device="cpu"))
    gone = weakref.ref(mark)
    product = _leaf().exp()
    node: Any = product.grad_fn
    node.metadata["gradscope.probe"] = mark
    del node, mark
    node = product.grad_fn
    kept = "gradscope.probe" in node.metadata
    del node, product
    return kept and gone() is None


def leaf_nodes_have_the_largest_number() -> bool:
    """Check that the nodes of leaves all have the largest sequence number."""
    node: Any = _leaf().exp().grad_fn
    leaf: Any = node.next_functions[0][0]
    return bool(leaf._sequence_nr() == private.NO_SEQUENCE_NR) and leaf.name().endswith("Grad")


def default_hooks_are_a_stack() -> bool:
    """Check that default hooks are a stack of one thread with push, pop and top."""
    pair = (lambda tensor: tensor, lambda value: value)
    functions = hooks.DefaultHookFunctions.now()
    if not private.default_hooks_are_enabled():
        return False
    functions.push(*pair)
    top = functions.top(True)
    functions.pop()
    return top is not None and top[0] is pair[0] and functions.top(True) is None


def views_name_their_base() -> bool:
    """Check that a view says so and names its base."""
    tensor = torch.ones(2, 2, device="cpu")
    view = tensor.t()
    return bool(view._is_view()) and view._base is tensor and not tensor._is_view()


def versions_count_changes() -> bool:
    """Check that a tensor and its detached aliases share a version counter."""
    tensor = torch.ones(2, device="cpu")
    version = private.read_version(tensor)
    tensor.detach().add_(1)
    return bool(private.read_version(tensor) == version + 1 == tensor._version)


def storages_count_their_owners() -> bool:
    """Check that a storage counts its owners, of which its Python object is one."""
    tensor: Any = torch.ones(2, device="cpu")
    storage = tensor.untyped_storage()
    alone = private.storage_use_count(storage._cdata)
    other = tensor.detach()
    shared = private.storage_use_count(storage._cdata)
    return bool(alone == 2 and shared == 3 and tensor._use_count() == 1 and other is not None)


def functions_know_their_nodes() -> bool:
    """Check that an autograd.Function and the class of its nodes name each other."""

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0]

    # Before torch 2.8 the node of a result that is gone has let go of what it saved.
    result = Probe.apply(_leaf())  # type: ignore[no-untyped-call]
    node: Any = result.grad_fn
    known = private.function_of(type(node)) is Probe and private.node_class_of(Probe) is type(node)
    named = isinstance(node, (private.FunctionNode, private.BackwardCFunction))
    return known and named and len(private.read_saved_by_function(node)) == 1


def module_calls_run_known_code() -> bool:
    """Check that a module's call is a Python frame with the module in `self`."""
    return private.MODULE_CALL is not None and "self" in private.MODULE_CALL.co_varnames


def current_node_and_modes_are_told() -> bool:
    """Check that torch tells the node that runs and the modes in force."""
    with private.DisableTorchFunction():
        return (
            not private.MISSING
            and private.current_node() is None
            and private.function_modes() == 0 == (private.dispatch_modes())
        )


def torch_keeps_objects_for_a_thread() -> bool:
    """Check that torch keeps objects by name with what a thread hands on to those of the engine."""
    # That they arrive there would show only in a backward call.
    key, mark = "gradscope.probe", object()
    hooks.carry(key, mark)
    kept = private.carried(key) is mark
    hooks.carry(key, None)
    return kept and private.carried(key) is None


def steps_have_global_hooks() -> bool:
    """Check that every optimizer's step runs the global hooks."""
    handle = hooks.on_optimizer_step(lambda optimizer: None, lambda optimizer: None)
    handle.remove()
    return True


def modes_are_pushed_by_known_functions() -> bool:
    """Check that dispatch modes are entered by _push_mode and left by _pop_mode."""
    hooks.around_dispatch_modes(lambda: None, lambda: None).remove()
    return True


def destructors_run_at_once() -> bool:
    """Check that an object is destroyed at once when its last reference goes."""
    done: list[int] = []

    class Probe:
        def __del__(self) -> None:
            done.append(1)

    with Uncollected():
        probe: Probe | None = Probe()
        probe = None
    return done == [1] and probe is None


def variables_of_a_frame_are_read_unseen() -> bool:
    """Check that the variables of a frame can be read without the dict that locals() returns."""

    def step(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        cell = [number]
        mine = locals()
        found = dict(local_variables(sys._getframe()))
        return mine, found | {"kept": (lambda: cell)()}

    mine, found = step(3)
    return mine["number"] == found["number"] == 3 and mine["cell"] is found["cell"]


def positions_give_columns() -> bool:
    """Check that code objects give the columns of each instruction."""

    def line() -> float:
        return 1 + 2.5

    return any(p[2] is not None and p[3] is not None for p in line.__code__.co_positions())


def threads_begin_in_bootstrap() -> bool:
    """Check that a thread begins in Thread._bootstrap."""
    return hasattr(threading.Thread, "_bootstrap")
