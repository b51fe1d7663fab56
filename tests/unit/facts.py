"""What gradscope relies on beside what a watch itself probes (gradscope/collect/facts.py).

A probe here runs the engine, or what fails without the fact is only less exact.

When a new version breaks something, the probe that fails names the fact, and the fact names the
files that rely on it. All were seen with torch 2.13 on Python 3.11.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from traceback import walk_tb
from typing import Any

import torch
import torch.autograd.graph
import torch.utils.data
from compiled_programs import compiling_autograd
from reading_ahead import ahead_of
from torch import Tensor
from torch.autograd import Function

import gradscope.torch_private as private
from gradscope.collect.facts import _raises
from gradscope.program.variables import AS_ARGUMENT, Variable, local_variables, on_stack
from gradscope.rules.gs604 import REFUSES_TO_SEND
from gradscope.torch_private import cached_parametrizations
from tests.needs import DETACHED_IS_TOLD

Probe = Callable[[], bool]

FREED = "Trying to backward through the graph a second time"
DETACHED = "a saved tensor that has been detached in-place"


@dataclass(frozen=True, slots=True)
class Fact:
    """One private fact: what it is, which files of gradscope rely on it, and how to see that it holds."""

    statement: str
    used_in: tuple[str, ...]
    probe: Probe
    of_name: str = ""
    """A name of torch's that it is about: where that is missing there is another way, or a known loss."""


FACTS: list[Fact] = []


def fact(statement: str, *used_in: str, of_name: str = "") -> Callable[[Probe], Probe]:
    def add(probe: Probe) -> Probe:
        FACTS.append(Fact(statement, used_in, probe, of_name))
        return probe

    return add


def _leaf(*size: int) -> Tensor:
    return torch.ones(size or (2,), requires_grad=True)


def _locals_of(run: Callable[[], object], code: Any) -> list[dict[str, Any]]:
    """Return the variables of the frames of this code that an error came through, the innermost last."""
    try:
        run()
    except (RuntimeError, KeyError) as error:
        frames = (frame for frame, _ in walk_tb(error.__traceback__))
        return [dict(frame.f_locals) for frame in frames if frame.f_code is code]
    return []


class _Fails(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise KeyError("broken")


@fact(
    "a traceback shows what the engine was asked, and the node of a Function",
    "torch_private.py",
    "detect/failing.py",
)
def _tracebacks_show_the_call_and_the_node() -> bool:
    """Check the names of what the frames above and below the engine hold."""
    apply: Any = _Fails.apply
    loss = apply(_leaf()).sum()
    (asked,) = _locals_of(loss.backward, private.ENGINE_CALL)
    (ran,) = _locals_of(loss.backward, private.FUNCTION_BACKWARD)
    is_node = ran["self"] is loss.grad_fn.next_functions[0][0]
    return is_node and asked["t_outputs"][0] is loss and {"args", "kwargs"} <= asked.keys()


@fact(
    "the frame that calls the backward hooks of a module names it",
    "torch_private.py",
    "detect/failing.py",
)
def _hooks_of_modules_are_called_by_an_object_that_names_it() -> bool:
    """Check that the closure's ``self`` is a BackwardHook with a ``module``."""
    layer = torch.nn.Linear(2, 2)
    layer.register_full_backward_hook(lambda module, *grads: int("broken"))
    called = []
    try:
        layer(_leaf(1, 2)).sum().backward()
    except ValueError as error:
        frames = (frame for frame, _ in walk_tb(error.__traceback__))
        called = [frame.f_locals.get("self") for frame in frames]
    return any(isinstance(c, private.BackwardHook) and c.module is layer for c in called)


@fact(
    "deepcopy refuses a tensor with a graph in Tensor.__deepcopy__, and names what it copies x",
    "torch_private.py",
    "detect/failing.py",
)
def _copies_are_shown_by_their_frames() -> bool:
    """Check the frames of a copy that fails."""
    kept = {"out": [_leaf() * 2]}
    frames = _locals_of(lambda: copy.deepcopy(kept), copy.deepcopy.__code__)
    (last,) = _locals_of(lambda: copy.deepcopy(kept), private.DEEPCOPY_TENSOR)
    is_down = [each["x"] for each in frames] == [kept, kept["out"], kept["out"][0]]
    return is_down and last["self"] is kept["out"][0]


@fact(
    "a tensor is pickled for another process by the reducer of its class, which refuses a graph",
    "hooks.py",
    "detect/failing.py",
)
def _sent_tensors_go_through_a_reducer() -> bool:
    """Check that the reducer that is replaced is the one that is called."""
    reduce = ForkingPickler._extra_reducers[Tensor]  # type: ignore[attr-defined]
    refuses = _raises(lambda: reduce(_leaf() * 2), REFUSES_TO_SEND)
    return refuses and _raises(lambda: ForkingPickler.dumps([_leaf() * 2]), REFUSES_TO_SEND)


@fact("every backward call goes through _engine_run_backward, bound in two modules", "hooks.py")
def _engine_runs_once_per_call() -> bool:
    """Check that both bindings are one function, and that every way to call backward uses it."""
    met: list[int] = []
    modules = (torch.autograd.graph, torch.autograd)
    originals = [module._engine_run_backward for module in modules]

    def run(*args: Any, **kwargs: Any) -> Any:
        met.append(len(args))
        return originals[0](*args, **kwargs)

    try:
        for module in modules:
            module._engine_run_backward = run  # type: ignore[attr-defined]
        _leaf().sum().backward()
        torch.autograd.backward(_leaf().sum())
        leaf = _leaf()
        torch.autograd.grad(leaf.sum(), leaf)
    finally:
        for module, original in zip(modules, originals, strict=True):
            module._engine_run_backward = original  # type: ignore[attr-defined]
    return len(met) == 3 and originals[0] is originals[1]


@fact(
    "what a pack hook returned is destroyed when the graph lets go of the saved tensor",
    "collect/marks.py",
    "collect/saved_bytes.py",
)
def _pack_result_dies_with_the_saved_tensor() -> bool:
    class Mark:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    marks: list[weakref.ref[Mark]] = []

    def pack(tensor: Tensor) -> Mark:
        mark = Mark(tensor)
        marks.append(weakref.ref(mark))
        return mark

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda mark: mark.tensor):
        loss = (_leaf() * _leaf()).sum()
    alive = all(mark() is not None for mark in marks)
    torch.autograd.backward(loss)
    return bool(marks) and alive and all(mark() is None for mark in marks)


# Else collect/slots.py unpacks through our own hook.
@fact(
    "node._raw_saved_x.data is the saved tensor, and None once it was freed",
    "collect/nodes.py",
    "collect/hook_suspension.py",
    of_name="_C._autograd.SavedTensor.data",
)
def _raw_saved_tensors_read_without_unpacking() -> bool:
    product = _leaf() * _leaf()
    node: Any = product.grad_fn
    saved = getattr(node, private.RAW_SAVED + "self")
    before = type(saved.data) is Tensor and saved.unpack_hook is None
    torch.autograd.backward(product.sum())
    return before and getattr(node, private.RAW_SAVED + "self").data is None


def _said_by_a_slice(node: Any) -> str:
    try:
        node(torch.empty((0,) * 65, device="meta"))
    except RuntimeError as error:
        return str(error)
    return "it ran"


@fact(
    "CopySlices, when called, first says that it was freed, then refuses what cannot be a gradient",
    "collect/nodes.py",
)
def _slices_check_first_whether_they_were_freed() -> bool:
    """A node of the program's own is wrapped, which must not run."""
    ran: list[Tensor] = []

    class Filled(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.fill_(2)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            ran.extend(grads)
            return grads[0] * 0

    said = []
    for size in ((), (0,), (1,), (2, 3)):
        base = _leaf(*size) * 1
        Filled.apply(base.view_as(base))  # type: ignore[no-untyped-call]
        node = base.grad_fn
        said.append(FREED not in _said_by_a_slice(node) != "it ran" and not ran)
        base.sum().backward()
        said.append(FREED in _said_by_a_slice(node) and len(ran) == 1)
        ran.clear()
    return all(said)


@fact(
    "a foreach node, when called with no gradient, first says that it was freed", "collect/nodes.py"
)
def _foreach_checks_first_whether_it_was_freed() -> bool:
    leaves, said = [_leaf(), _leaf()], []
    for outputs, saves in (
        (torch._foreach_mul(leaves, leaves), True),
        (torch._foreach_exp(leaves), True),
        (torch._foreach_neg(leaves), False),
    ):
        node: Any = outputs[0].grad_fn
        outputs[0].sum().backward()
        said.append(type(node).__name__ == "CppFunction" and node.name().startswith("Foreach"))
        again = functools.partial(node, *[None] * private.inputs_of(node))
        said.append(_raises(again, FREED) is saves)
    return all(said)


@fact(
    "node._saved_x raises the engine's own error once the saved tensor was freed",
    "collect/nodes.py",
    "collect/hook_suspension.py",
)
def _saved_attribute_raises_when_freed() -> bool:
    product = _leaf() * _leaf()
    node = product.grad_fn
    torch.autograd.backward(product.sum())
    return _raises(lambda: getattr(node, private.SAVED + "self"), FREED)


# Else only hooks see it.
@fact(
    "SavedTensor.unpack raises the engine's own error for an input detached in place since",
    "collect/nodes.py",
    of_name=DETACHED_IS_TOLD,
)
def _only_saved_attribute_allows_detached() -> bool:
    first = _leaf().exp()
    product = first * 2 * first
    node: Any = product.grad_fn
    saved = getattr(node, private.RAW_SAVED + "other")
    before = saved.unpack() is first is saved.data
    first.detach_()
    same = getattr(node, private.SAVED + "other") is first
    return before and same and _raises(saved.unpack, DETACHED)


# Else all tensors that may be a Function's are asked.
@fact(
    "Function.apply is a Python frame with the class in `cls`",
    "collect/saving.py",
    of_name="autograd.Function.apply.__func__",
)
def _function_frames_know_their_class() -> bool:
    seen: list[bool] = []

    class Probe(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            frame = sys._getframe(1)
            seen.append(frame.f_code is private.FUNCTION_APPLY and frame.f_locals["cls"] is Probe)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0]

    node: Any = Probe.apply(_leaf()).grad_fn  # type: ignore[no-untyped-call]
    known = private.function_of(type(node)) is Probe and private.node_class_of(Probe) is type(node)
    return seen == [True] and known


@fact("a module's call is a Python frame with the module in `self`", "program/names.py")
def _module_calls_run_known_code() -> bool:
    seen: list[bool] = []

    class Probe(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            frame = sys._getframe(1)
            while frame is not None and frame.f_code is not private.MODULE_CALL:
                frame = frame.f_back  # type: ignore[assignment]
            seen.append(frame is not None and frame.f_locals["self"] is self)
            return x

    Probe()(torch.ones(1))
    return seen == [True]


@fact(
    "in a pack hook a tensor new to Python has at most three references, and the argument's",
    "collect/saving.py",
)
def _fresh_tensors_have_few_references() -> bool:
    counts: list[int] = []

    class Hooks:
        def pack(self, tensor: Tensor) -> Tensor:
            counts.append(sys.getrefcount(tensor))
            return tensor.detach()

    hooks = Hooks()
    leaf, known = _leaf(), _leaf() * 1
    with torch.autograd.graph.saved_tensors_hooks(hooks.pack, lambda tensor: tensor):
        leaf.exp()
        known.sin()
    return counts[0] <= 3 + AS_ARGUMENT < counts[1]


@fact(
    "what is saved as a result is read as a new tensor, whatever became of the one returned",
    "collect/nodes.py",
)
def _results_are_outputs() -> bool:
    """Detach in place what an operation has returned: what it saved of that needs a gradient yet,
    or never did.
    """
    x = torch.rand(4, 3, requires_grad=True) * 1
    norm = torch.nn.functional.layer_norm(x, (3,))
    exp, tanh, top = x.exp(), x.tanh(), x.amax(1)
    found = []
    for each in (exp, tanh, top, norm):
        node: Any = each.grad_fn
        names = [a for a in dir(node) if a.startswith("_saved_result")]
        before = [getattr(node, name).requires_grad for name in names]
        each.detach_()
        found += [bool(names), before == [getattr(node, name).requires_grad for name in names]]
        found += [all(before) or not any(before)]
    return all(found)


# Else each function is marked alone.
@fact(
    "a code object can be marked so that torch.compile passes over it and what it calls",
    "torch_private.py",
    of_name="_C._dynamo.eval_frame.set_code_exec_strategy",
)
def _compilers_pass_over_code_by_its_strategy() -> bool:
    def leave() -> None:
        pass

    return private.hidden_from_compiler(leave) is leave and hasattr(
        torch._C._dynamo.eval_frame, "set_code_exec_strategy"
    )


@fact(
    "compiled autograd is switched on and off by set_autograd_compiler, which Python looks up",
    "hooks.py",
    "collect/saving.py",
)
def _compiled_autograd_is_switched_in_one_place() -> bool:
    switched: list[bool] = []
    owner: Any = torch._C._dynamo.compiled_autograd
    original = owner.set_autograd_compiler

    def switch(compiler: Any, *rest: Any) -> Any:
        switched.append(compiler is not None)
        return original(compiler, *rest)

    owner.set_autograd_compiler = switch
    try:
        with compiling_autograd("eager"):
            pass
    finally:
        owner.set_autograd_compiler = original
    return switched == [True, False]


@fact(
    "a loader's iterator and torch's samplers show how many batches are left",
    "program/ahead/iteration.py",
)
def _loaders_show_how_many_batches_are_left() -> bool:
    """Check what is read of a loader's iterator, at each of its batches."""
    found = []
    for shuffle, drops in itertools.product((False, True), repeat=2):
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.ones(5)), 2, shuffle=shuffle, drop_last=drops
        )
        iterator = iter(loader)
        left = [len(ahead_of(iterator)) for _ in iterator]
        found.append(left == ([1, 0] if drops else [2, 1, 0]))
        found.append(len(ahead_of(loader)) == len(loader))
    return all(found)


@fact(
    "parametrize.cached() keeps tensors in a dict, by module and name, while it is open",
    "torch_private.py",
)
def _cached_parametrizations_are_kept_by_name() -> bool:
    """Check what ``parametrize.cached()`` keeps while it is open, and that it then keeps nothing."""
    linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    with torch.nn.utils.parametrize.cached():
        weight = linear.weight
        kept = [(name, tensor is weight) for name, tensor in cached_parametrizations()]
    return kept == [("weight", True)] and not cached_parametrizations()


@fact(
    "the stack of a frame that waits for a call lies behind its variables", "program/variables.py"
)
def _iterators_are_read_where_they_lie() -> bool:
    """Check that a loop finds its own iterator, and those of the loops around it."""

    def found(argument: object) -> bool:
        outer, inner = iter([1, 2]), iter({"a": 1}.items())
        used = [lambda: argument]
        for _ in outer:
            with threading.Lock():
                for _ in inner:
                    frame = sys._getframe()
                    depth = 3 if sys.version_info >= (3, 14) else 2  # it keeps the lock too
                    return on_stack(frame, 0) is outer and on_stack(frame, depth) is inner
        return bool(used)

    return found(None)


@fact("the variables of a running frame can be read without its f_locals", "program/variables.py")
def _variables_are_read_where_they_lie() -> bool:
    shared = object()

    def function(first: object) -> bool:
        frame, kept = sys._getframe(), locals()  # a dict of the program's, which no look may change
        before = dict(kept)
        found = dict(local_variables(frame))
        alone = Variable(frame.f_code, "first").of(frame)
        in_cell = (lambda: first)()
        return (
            found["first"] is alone is in_cell
            and (found["shared"], found["frame"]) == (shared, frame)
            and kept == before
        )

    return function(object())


@fact(
    "a warning's stacklevel does not count frames whose file names the import machinery",
    "collect/backward.py",
)
def _warnings_skip_frames_of_the_import_machinery() -> bool:
    import warnings

    def warn() -> None:
        warnings.warn("gradscope's probe", stacklevel=2)

    def between() -> None:
        warn()

    between.__code__ = between.__code__.replace(co_filename="probe (as importlib._bootstrap)")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        between()
    return caught[0].filename == __file__


@fact(
    "a storage counts its owners, of which its Python object is one",
    "collect/saved_bytes.py",
    "collect/saved_bytes.py",
)
def _storages_count_their_owners() -> bool:
    tensor: Any = torch.ones(2)
    storage = tensor.untyped_storage()
    alone = private.storage_use_count(storage._cdata)
    other = tensor.detach()
    shared = private.storage_use_count(storage._cdata)
    return bool(alone == 2 and shared == 3 and tensor._use_count() == 1 and other is not None)


@fact("code objects give the columns of each instruction", "code/source.py")
def _positions_give_columns() -> bool:
    def line() -> float:
        return 1 + 2.5

    return any(p[2] is not None and p[3] is not None for p in line.__code__.co_positions())
