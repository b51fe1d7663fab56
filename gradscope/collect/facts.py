"""What gradscope relies on in torch and CPython beyond their documentation, each with a probe.

A watch probes every fact once in a process, before it begins. One that does not hold turns off just
the parts that need it, and the report names it. The probes build small graphs and run none of them:
the first backward call of a process must stay the program's. They run in a thread of their own, so
that neither the program's numbering of nodes nor its modes and hooks are touched.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import torch
import torch.autograd.graph
from torch import Tensor

import gradscope.hooks as hooks
import gradscope.torch_private as private
from gradscope.program.undisturbed import apart
from gradscope.program.variables import local_variables


class Part(StrEnum):
    """A part of gradscope that can be turned off alone; the value says what is lost with it."""

    WATCH = "nothing is watched"
    LOOKS = "graphs are not inspected: only backward calls and their errors are reported"
    HOOKS = "no saved-tensor hooks: graphs are inspected only when a backward call is made"
    VARIABLES = "variables are not named, and nothing is predicted"
    STEPS = "the steps of optimizers are not seen"
    LINES = "lines are not watched: GS103 and GS202 come later or not at all"


class Fact(NamedTuple):
    """One private fact of torch's or CPython's: what it is, which files rely on it, and what is
    lost without it.
    """

    statement: str
    used_in: tuple[str, ...]
    parts: tuple[Part, ...]
    probe: Callable[[], bool]

    def holds(self) -> bool:
        """Run the probe; False also where it fails."""
        try:
            return self.probe()
        except Exception:  # whatever a torch that we do not know raises
            return False


FACTS: list[Fact] = []


def _fact(parts: tuple[Part, ...], *used_in: str) -> Callable[[Callable[[], bool]], None]:
    """Enter the fact that a probe's docstring says it checks."""

    def enter(probe: Callable[[], bool]) -> None:
        statement = " ".join((probe.__doc__ or "").split()).removeprefix("Check that ").rstrip(".")
        FACTS.append(Fact(statement, used_in, parts, probe))

    return enter


_LOOKS = (Part.LOOKS, Part.HOOKS, Part.LINES)
_HOOKS = (Part.HOOKS, Part.LINES)


def _leaf() -> Tensor:
    return torch.ones(2, requires_grad=True, device="cpu")


def _raises(read: Callable[[], object], text: str) -> bool:
    try:
        read()
    except RuntimeError as error:
        return text in str(error)
    return False


@_fact((Part.WATCH,), "hooks.py", "collect/backward.py")
def engine_is_bound_in_two_modules() -> bool:
    """Check that _engine_run_backward is bound in torch.autograd and in torch.autograd.graph."""
    modules: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)
    return all(callable(module._engine_run_backward) for module in modules)


@_fact(_LOOKS, "collect/marks.py", "collect/inspector.py")
def metadata_lives_with_the_node() -> bool:
    """Check that node.metadata is a dict that lives and dies with the C++ node."""
    mark = {torch.empty(0, device="cpu")}
    gone = weakref.ref(mark)
    product = _leaf().exp()
    node: Any = product.grad_fn
    node.metadata["gradscope.probe"] = mark
    del node, mark
    node = product.grad_fn
    kept = "gradscope.probe" in node.metadata
    del node, product
    return kept and gone() is None


@_fact(_LOOKS, "collect/slots.py", "collect/nodes.py", "collect/hook_suspension.py")
def saved_tensors_are_read_by_name() -> bool:
    """Check that node._raw_saved_x and node._saved_x are what a node saved."""
    node: Any = (_leaf() * _leaf()).grad_fn
    raw = getattr(node, private.RAW_SAVED + "self")
    readable = not private.SAVED_TENSORS_ARE_READABLE or (
        type(raw.data) is Tensor and raw.unpack_hook is None
    )
    return readable and type(getattr(node, private.SAVED + "self")) is Tensor


@_fact(_LOOKS, "collect/slots.py", "collect/nodes.py", "collect/hook_suspension.py")
def saved_attribute_raises_when_stale() -> bool:
    """Check that node._saved_x raises the engine's own error when the saved tensor is stale."""
    factor = torch.ones(2, device="cpu")
    node = (_leaf() * factor).grad_fn
    factor += 1
    return _raises(lambda: getattr(node, private.SAVED + "other"), "modified by an inplace")


@_fact(_LOOKS, "collect/inspector.py", "detect/suspects.py")
def leaf_nodes_have_the_largest_number() -> bool:
    """Check that the nodes of leaves all have the largest sequence number."""
    node: Any = _leaf().exp().grad_fn
    leaf: Any = node.next_functions[0][0]
    return bool(leaf._sequence_nr() == private.NO_SEQUENCE_NR) and leaf.name().endswith("Grad")


@_fact(_LOOKS, "program/tensors.py", "collect/saved_bytes.py")
def views_name_their_base() -> bool:
    """Check that a view says so and names its base."""
    tensor = torch.ones(2, 2, device="cpu")
    view = tensor.t()
    return bool(view._is_view()) and view._base is tensor and not tensor._is_view()


@_fact(_LOOKS, "collect/saving.py", "collect/inspector.py", "collect/mutations.py")
def versions_count_changes() -> bool:
    """Check that a tensor and its detached aliases share a version counter."""
    tensor = torch.ones(2, device="cpu")
    version = private.read_version(tensor)
    tensor.detach().add_(1)
    return bool(private.read_version(tensor) == version + 1 == tensor._version)


@_fact(_LOOKS, "collect/saving.py", "collect/nodes.py")
def current_node_and_modes_are_told() -> bool:
    """Check that torch tells the node that runs and the modes in force."""
    with private.DisableTorchFunction():
        return (
            not private.MISSING
            and private.current_node() is None
            and private.function_modes() == 0 == (private.dispatch_modes())
        )


@_fact(_HOOKS, "hooks.py", "collect/calls.py", "collect/saving.py")
def torch_keeps_objects_for_a_thread() -> bool:
    """Check that torch keeps objects by name with what a thread hands on to those of the engine."""
    # That they arrive there would show only in a backward call.
    key, mark = "gradscope.probe", object()
    hooks.carry(key, mark)
    kept = private.carried(key) is mark
    hooks.carry(key, None)
    return kept and private.carried(key) is None


@_fact(_HOOKS, "collect/marks.py", "collect/saved_bytes.py")
def pack_result_dies_with_the_saved_tensor() -> bool:
    """Check that what a pack hook returned is destroyed when the graph lets go of the saved
    tensor.
    """
    marks: list[weakref.ref[set[Tensor]]] = []

    def pack(tensor: Tensor) -> set[Tensor]:
        mark = {tensor.detach()}
        marks.append(weakref.ref(mark))
        return mark

    with torch.autograd.graph.saved_tensors_hooks(pack, set.pop):
        product = _leaf() * _leaf()
    alive = all(mark() is not None for mark in marks)
    del product
    return bool(marks) and alive and all(mark() is None for mark in marks)


@_fact(_HOOKS, "collect/saving.py")
def number_in_a_pack_hook_is_the_node_being_built() -> bool:
    """Check that in a pack hook the last sequence number is that of the node being built."""
    numbers: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        numbers.append(private.next_sequence_nr() - 1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        product = _leaf() * _leaf()
    node: Any = product.grad_fn
    return numbers == [node._sequence_nr()] * 2


@_fact(_HOOKS, "hooks.py", "collect/saving.py")
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


@_fact(_HOOKS, "collect/saving.py", "detect/hazards.py")
def functions_know_their_nodes() -> bool:
    """Check that an autograd.Function and the class of its nodes name each other."""

    class Copying(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0]

    # Before torch 2.8 the node of a result that is gone has let go of what it saved.
    result = Copying.apply(_leaf())  # type: ignore[no-untyped-call]
    node: Any = result.grad_fn
    known = private.function_of(type(node)) is Copying and private.node_class_of(Copying) is type(
        node
    )
    named = isinstance(node, (private.FunctionNode, private.BackwardCFunction))
    return known and named and len(private.read_saved_by_function(node)) == 1


@_fact((Part.STEPS,), "hooks.py", "collect/mutations.py", "detect/untrained.py")
def steps_have_global_hooks() -> bool:
    """Check that every optimizer's step runs the global hooks."""
    hooks.on_optimizer_step(lambda *of_step: None, lambda *of_step: None).close()
    return True


@_fact((Part.VARIABLES,), "program/variables.py")
def variables_of_a_frame_are_read_unseen() -> bool:
    """Check that the variables of a frame can be read without the dict that locals() returns."""

    def step(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        cell = [number]
        mine = locals()
        found = dict(local_variables(sys._getframe()))
        return mine, found | {"kept": (lambda: cell)()}

    mine, found = step(3)
    return mine["number"] == found["number"] == 3 and mine["cell"] is found["cell"]


@functools.cache
def failing() -> tuple[Fact, ...]:
    """Return the facts that do not hold in this process, probed once; none where the probes do not
    come back, as nothing is known then.
    """
    found: list[Fact] = []
    apart(lambda: found.extend(fact for fact in FACTS if not fact.holds()))
    return tuple(found)


def note(failed: tuple[Fact, ...]) -> str:
    """Return the line that the report has on facts that do not hold."""
    lost = "; ".join(part.value for part in Part if part in parts_off(failed))
    untrue = ", and ".join(f'"{fact.statement}"' for fact in failed)
    return f"with torch {torch.__version__} this does not hold: {untrue}; {lost}"


def parts_off(facts: tuple[Fact, ...]) -> frozenset[Part]:
    """Return the parts that cannot work without these facts."""
    return frozenset(part for fact in facts for part in fact.parts)
