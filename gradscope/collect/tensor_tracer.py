"""Records where each tensor comes from while code runs; ``fixing/origins.py`` reads the record."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from gradscope.collect.calls import EngineCall
from gradscope.collect.notes import Notes
from gradscope.collect.traced_numbers import origins_of, traced
from gradscope.collect.walk import Walker, root_node
from gradscope.fixing.origins import (
    Birth,
    CutReason,
    EngineUse,
    Leaf,
    Mode,
    ModeKind,
    Origins,
    Stepper,
    StepUse,
)
from gradscope.hooks import (
    Handle,
    hide_references,
    on_functions,
    on_inference_mode,
    on_made_values,
    on_new_parameters,
    on_optimizer_step,
    on_thread_start,
    run_uncompiled,
    wrap_engine,
)
from gradscope.model import Site
from gradscope.program.names import Names, name_held, parameters_in
from gradscope.program.sites import (
    HIDDEN,
    LIBRARY,
    USER,
    Route,
    Routes,
    owner_of,
    place_in,
    user_frames,
)
from gradscope.program.tensors import (
    TensorMap,
    TensorRef,
    any_nonzero,
    describe,
    is_given,
    is_leaf,
    leaves_of,
    node_of,
    parameters_of,
    requires_grad,
    storage_of,
)
from gradscope.torch_private import (
    DisableTorchFunction,
    is_transformed,
    set_grad_mode,
    untransformed,
)

# Elements of an argument that are looked at for tensors, at each call of torch's that has it.
_MOST_PARTS = 4096
_CONTAINERS = (tuple, list, set, dict)

_LEAVE = frozenset(
    {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__index__", "__complex__"}
)
"""Methods that give numbers or arrays for a tensor."""
_FROM_DATA = ("tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor")
_LINEAR = "grad of what is linear"
"""What ``autograd.grad`` is called that builds a graph, where the result has none."""
_TAKES_OFF = {"detach": CutReason.DETACH, "detach_": CutReason.DETACH, "data": CutReason.DATA}
"""What takes a value off its graph, whatever the mode."""
_GIVES_NONE = {
    **dict.fromkeys(_FROM_DATA, CutReason.COPY),
    _LINEAR: CutReason.CONSTANT,
    "grad": CutReason.CREATE_GRAPH,
}
"""What gives a value without a graph while the mode is on."""
_ASKS = frozenset({"requires_grad", "grad_fn", "shape", "is_leaf", "grad", "backward", "_base"})
"""What is asked of a tensor, and computes nothing."""

_GRAD_MODE = os.path.join("torch", "autograd", "grad_mode.py")
_DECORATORS = os.path.join("torch", "utils", "_contextlib.py")


T = TypeVar("T")

FAILED = "following tensors failed in gradscope"

followed: list[TensorTracer] = []
"""What the last watch with ``ways=True`` has followed, or follows."""


def _tensors_in(value: Any, depth: int = 3) -> Iterator[Any]:
    """Yield the tensors in a value, and what has left torch and knows from where."""
    if isinstance(value, torch.Tensor) or origins_of(value):
        yield value
    elif isinstance(value, _CONTAINERS) and depth:
        for each in islice(value.values() if isinstance(value, dict) else value, _MOST_PARTS):
            yield from _tensors_in(each, depth - 1)


def _levels(tensor: Any) -> Iterator[Any]:
    """Yield a tensor, and those that ``torch.func`` has wrapped in it."""
    yield tensor
    while is_transformed(tensor):
        tensor = untransformed(tensor)
        yield tensor


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(map(requires_grad, _levels(value)))


class _Forward(NamedTuple):
    """A Function's forward that runs: whether grad mode was on before, and the routes that have
    declared results of it to have no derivative.
    """

    had_grad: bool
    marks: list[int]


class _Given(NamedTuple):
    """What goes into an operation: the tensors, with their versions, the values that these are, and
    whether one of them requires grad.
    """

    versions: Sequence[tuple[Any, int | None]]
    parents: tuple[int, ...]
    needs_grad: bool


class _Local(threading.local):
    """The state of one thread."""

    def __init__(self) -> None:
        self.mode = -1
        """The switch that has turned grad mode off; -1 if none has."""
        self.before: dict[int, int] = {}
        """What that was when a context was entered."""
        self.inside: list[_Forward] = []
        """Each Function whose forward runs."""
        self.aside = self.steps = 0
        """In how many engine calls and steps of optimizers it is: what these compute is theirs."""

    @property
    def is_aside(self) -> bool:
        """Whether nothing is noted. In a step, grad mode is on for its closure alone."""
        return self.aside > 0 or (self.steps > 0 and not torch.is_grad_enabled())


class _Leaves:
    """The leaves that were met: what is known of each, and its name; it holds none of them."""

    def __init__(self) -> None:
        self._met: list[tuple[TensorRef, Leaf]] = []
        self._names = Names()
        self.made, self.frozen = TensorMap[tuple[int, int]](), TensorMap[int]()
        """Where a parameter was made, and when; where a leaf was frozen."""

    def add(self, tensor: Any) -> int:
        """Return the number of one more leaf."""
        facts = describe(tensor), tensor.numel(), tensor.requires_grad
        leaf = Leaf("", *facts, isinstance(tensor, torch.nn.Parameter))
        self._met.append((TensorRef(tensor), leaf))
        return len(self._met) - 1

    def __getitem__(self, number: int) -> Any:
        """Return a leaf; None if it is gone."""
        return self._met[number][0]()

    def learn_names(self, frame: FrameType) -> None:
        """Learn the names that the program has for leaves in a frame and its callers."""
        met = enumerate(self._met)
        fresh = [(n, t) for n, (ref, leaf) in met if not leaf.name and (t := ref()) is not None]
        if fresh:
            # The outermost first: what a method knows as `self.net` has a name where it was made.
            self._names.learn_variables(reversed(user_frames(frame)))
        written: dict[int, tuple[str, Any]] | None = None
        for number, tensor in fresh:
            name = self._names.of_tensor(tensor)
            if name is None:  # it may be in a container
                written = parameters_in(user_frames(frame)) if written is None else written
                name = written.get(id(tensor), (None, tensor))[0]
            if name is not None:
                ref, leaf = self._met[number]
                self._met[number] = ref, leaf._replace(name=name)

    def now(self, holders: Sequence[Stepper], stepped: Collection[int]) -> Iterator[Leaf]:
        """Yield what is known of each leaf; of two ``holders`` one that has ``stepped`` has it."""
        order = sorted(range(len(holders)), key=stepped.__contains__)
        owners = {n: i for i in order for n in holders[i].leaves}
        for number, (ref, leaf) in enumerate(self._met):
            own = leaf._replace(optimizer=owners.get(number, -1))
            if (tensor := ref()) is not None:
                made, turn = self.made.get(tensor) or (-1, -1)
                frozen = self.frozen.get(tensor)
                own = own._replace(requires_grad=tensor.requires_grad, made=made, turn=turn)
                own = own._replace(frozen=-1 if frozen is None else frozen)
            yield own


class TensorTracer(TorchFunctionMode):
    """Follows tensors from operation to operation, and what engine and optimizers do with them."""

    most_values = 300_000
    """It notes no more than these."""

    def __init__(self, notes: Notes | None = None, room: Callable[[], int] | None = None) -> None:
        """Follow the user's program, and give ``notes`` what fails in it; without them it is alone:
        numbers are marked as well, and lines traced. ``room`` is for nodes, as of ``Walker``.
        """
        super().__init__()
        self._notes = notes
        self._room = room
        self.is_over = False
        """Whether it notes nothing any more."""
        self._lock = threading.RLock()
        self._local = _Local()
        self._routes = Routes()
        self._numbered: dict[Route, int] = {}
        self._origins: list[Birth] = []
        self._would: list[bool] = []
        """Of each value whether a graph leads to a leaf, or would without a Function around."""
        self._known = TensorMap[int]()
        self._written: dict[int, tuple[StorageWeakRef, int]] = {}
        """The value that was last written into some memory."""
        self._functions: dict[int, Site] = {}
        self._modes: list[Mode] = []
        self._leaves = _Leaves()
        self._turns = count()
        self._calls: list[EngineUse] = []
        self._steps: list[StepUse] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._holders: list[Stepper] = []

    def follow(self) -> Handle:
        """Begin; the handle ends it."""
        handle = Handle()
        enter: Any = self.__enter__
        leave: Any = partial(self.__exit__, None, None, None)
        try:
            handle.add(
                run_uncompiled(),
                wrap_engine(self.run_engine),
                on_optimizer_step(self.step, self.stepped),
                on_new_parameters(self.meet),
                hide_references(TensorRef),
                on_thread_start(enter, leave),
                on_functions(self.apply, self.marked),
                on_made_values(self.made_parameter, self.from_numpy),
                on_inference_mode(self.inferring),
            )
            enter()
            handle.callback(leave)
            handle.callback(setattr, self, "is_over", True)
        except BaseException:
            handle.close()
            raise
        return handle

    @property
    def is_alone(self) -> bool:
        """Whether the process is there for it."""
        return self._notes is None

    def _noting(self, work: Callable[[], T], otherwise: T) -> T:
        """Note something while the program runs; where that fails, follow no more."""
        is_noted = False

        def noted() -> T:
            nonlocal is_noted
            with self._lock, DisableTorchFunction():
                found = work()
            is_noted = True
            return found

        if self._notes is None:
            return noted()
        found = self._notes.attempt(FAILED, noted, otherwise)
        if not is_noted:
            self.is_over = True
            followed.clear()  # nothing is said of what is half known
        return found

    # routes

    def _route(self, frame: FrameType | None) -> int:
        route = self._routes.of(frame)
        return self._numbered.setdefault(route, len(self._numbered))

    # values

    def _parents(self, values: Iterable[Any]) -> tuple[int, ...]:
        """Return the numbers of some values, and those that what has left torch came from."""
        numbers = (origins_of(value) or (self.number_of(value),) for value in values)
        return tuple(dict.fromkeys(number for own in numbers for number in own))

    def number_of(self, value: Any) -> int:
        """Return the number of a tensor, as it is now."""
        number = self._known.get(value)
        if number is None:
            number = self._unknown(value)
        origin, requires = self._origins[number], value.requires_grad
        is_held = is_leaf(value) and requires and len([*_levels(value)]) == 1
        if origin.leaf < 0 and is_held:
            number = self._as_leaf(value, (number,), origin.route)
        elif requires and origin.cut is not None and not is_leaf(value):
            # The forward of a Function gave it, or a write into its base.
            number = self._add(value, Birth((number,), "graph", origin.route, True))
        storage, written = self._written.get(storage_of(value), (None, -1))
        if storage is not None and not storage.expired() and written > number:
            if self._origins[written].has_graph and not requires:
                cut = Birth((number, written), "data", origin.route, False, CutReason.DATA)
                return self._add(value, cut)
            return self._add(value, Birth((number, written), "memory", origin.route, requires))
        return number

    def _unknown(self, value: Any) -> int:
        """Number a tensor that no call has given: a leaf, or what code below torch's has made."""
        if is_leaf(value):
            inner = [*_levels(value)][1:]
            if inner:
                number = self.number_of(inner[0])
                return self._add(value, Birth((number,), "wrapped", -1, _requires_grad(value)))
            if isinstance(value, torch.nn.Parameter) or value.requires_grad:
                return self._as_leaf(value, (), -1)
            return self._add(value, Birth((), "", -1, False))
        parents = (self.number_of(leaf) for leaf in self._graph([value])[0])
        return self._add(value, Birth(tuple(parents), "unseen", -1, True))

    def _as_leaf(self, value: Any, parents: tuple[int, ...], route: int) -> int:
        leaf = self._leaves.add(value)
        return self._add(value, Birth(parents, "leaf", route, value.requires_grad, leaf=leaf))

    def _leaf(self, value: Any) -> int:
        return self._origins[self.number_of(value)].leaf

    def _add(self, value: Any, origin: Birth) -> int:
        number = len(self._origins)
        if origin.cut is CutReason.MODE:
            origin = origin._replace(mode=self._local.mode)
        self._origins.append(origin)
        inner = origin.cut is CutReason.INNER or origin.how in ("memory", "wrapped")
        would = inner and any(self._would[parent] for parent in origin.parents)
        self._would.append(origin.has_graph or would)
        # What `torch.func` wraps in an operation's result is that result, too.
        own = [*_levels(value)] if isinstance(value, torch.Tensor) else []
        for each in own[:1] if origin.how in ("wrapped", "leaf") else own:
            self._known[each] = number
        if number > self.most_values:
            self.is_over = True
        return number

    def _graph(self, roots: Iterable[Any]) -> tuple[list[Any], Collection[Any]]:
        """Return the leaves that the graphs of some roots lead to, and their nodes."""
        roots = [*roots]
        found: list[Any] = [
            each
            for each in roots
            if isinstance(each, torch.Tensor) and each.requires_grad and node_of(each) is None
        ]
        most = sys.maxsize if self._room is None else self._room()
        nodes = Walker(most).walk(map(root_node, roots))
        return [*found, *leaves_of(nodes)], nodes

    # operations

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, frame = kwargs or {}, sys._getframe(1)
        if func is set_grad_mode:
            result = func(*args, **kwargs)
            self._noting(partial(self.switched, bool(args[0]), frame), None)
            return result
        if self._local.is_aside or self.is_over:
            return func(*args, **kwargs)
        before = self._noting(partial(self._before, args, kwargs), None)
        result = func(*args, **kwargs)
        if before is None:
            return result
        work = partial(self._after, func, args, kwargs, result, frame, before)
        return self._noting(work, result)

    def _before(self, args: Sequence[Any], kwargs: Any) -> _Given:
        """Note what goes into an operation, before that may change it."""
        given = [*_tensors_in(args), *_tensors_in(kwargs)]
        tensors = [t for t in given if isinstance(t, torch.Tensor)]
        versions = [(t, None if t.is_inference() else t._version) for t in tensors]
        return _Given(versions, self._parents(given), any(map(_requires_grad, tensors)))

    def _after(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Any,
        result: Any,
        frame: FrameType,
        before: _Given,
    ) -> Any:
        """Note what an operation has given; return it, with a mark where it has left torch."""
        name = func.__name__
        if name in ("__get__", "__set__"):
            name = getattr(func.__self__, "__name__", name)
        if name == "requires_grad_" or (name == "requires_grad" and len(args) > 1):
            self._note_frozen(args, kwargs, frame)
        if name in _ASKS and not (name == "grad" and func is torch.autograd.grad):
            return result
        route, parents = self._route(frame), before.parents
        if name in _LEAVE:
            return self._left(name, result, parents, route)
        if name == "grad" and (kwargs.get("create_graph") or any(args[4:5])):
            name = _LINEAR
        if name.endswith("_like") or (name.startswith("new_") and name != "new_tensor"):
            parents = self._parents([*_tensors_in(args[1:]), *_tensors_in(kwargs)])
        own = Birth(parents, name, route, False)
        memory = {storage_of(t): t for t, _ in before.versions}
        given = {id(t) for t, _ in before.versions}
        for out in self._outs(name, result, args, before.versions):
            base = memory.get(storage_of(out)) if id(out) not in given else None
            if base is not None and storage_of(out):  # a view, of this one alone
                view = own._replace(parents=self._parents([base]))
                self._note(out, view, needed=_requires_grad(base))
            else:
                self._note(out, own, needed=before.needs_grad)
        return result

    def _outs(
        self, name: str, result: Any, args: Sequence[Any], versions: Sequence[Any]
    ) -> Iterator[Any]:
        """Yield the tensors that an operation has made or, as it is asked to, changed."""
        changed = {
            id(t) for t, version in versions if version is not None and t._version != version
        }
        given = {id(t) for t, _ in versions}
        outs = [t for t in _tensors_in((result,)) if isinstance(t, torch.Tensor)]
        if name.endswith("_") and args:
            outs += [t for t in _tensors_in((args[0],)) if id(t) in changed]
        for out in {id(t): t for t in outs}.values():
            is_own = out.requires_grad and is_leaf(out)
            if id(out) not in given or (id(out) in changed and not is_own):
                yield out

    def _note(self, out: Any, own: Birth, *, needed: bool) -> None:
        has_graph = _requires_grad(out)
        if out.requires_grad and is_leaf(out) and len([*_levels(out)]) == 1:  # its own beginning
            self._as_leaf(out, own.parents, own.route)
            return
        cut = None
        if not has_graph and (needed or any(self._would[p] for p in own.parents)):
            cut = self._reason(own.how, out)
            if cut is not CutReason.INNER and not needed:
                cut = None  # within a Function's forward and out of it again
        number = self._add(out, own._replace(has_graph=has_graph, cut=cut))
        is_written = own.how.endswith("_") and own.how != "__getitem__"
        if is_written and (memory := storage_of(out)):
            self._written[memory] = StorageWeakRef(out.untyped_storage()), number

    def _reason(self, name: str, out: Any) -> CutReason:
        """Return why a result has no graph."""
        mode, inside = self._local.mode, self._local.inside
        if inside and inside[0].had_grad and not torch.is_grad_enabled():
            return CutReason.INNER
        if name in _TAKES_OFF:
            return _TAKES_OFF[name]
        if not torch.is_grad_enabled():
            is_sample = mode >= 0 and self._modes[mode].function == "sample"
            return CutReason.SAMPLE if is_sample else CutReason.MODE
        if not (out.is_floating_point() or out.is_complex()):
            return CutReason.INTEGERS
        return _GIVES_NONE.get(name, CutReason.OTHER)

    def _left(self, name: str, result: Any, parents: tuple[int, ...], route: int) -> Any:
        """Note that numbers or an array have left torch; return them with a mark of that."""
        own = [self._origins[p] for p in parents]
        is_cut = any(self._would[p] for p in parents) or any(o.parents or o.leaf >= 0 for o in own)
        cut = CutReason.LEFT if any(o.has_graph for o in own) else None
        number = self._add(None, Birth(parents, name, route, False, cut))
        is_bare = name.startswith("__")
        is_marked = is_cut and self.is_alone
        return traced(result, (number,), is_bare=is_bare) if is_marked else result

    def from_numpy(self, original: Callable[[Any], Any], array: Any) -> Any:
        """Note what ``torch.from_numpy`` gives: no mode sees it."""
        result, route = original(array), partial(self._route, sys._getframe(1))

        def note() -> None:
            own = Birth(self._parents(_tensors_in(array)), "from_numpy", route(), False)
            self._add(result, own)

        self._noting(note, None)
        return result

    # Functions

    def apply(self, original: Callable[..., Any], function: Any, *args: Any, **named: Any) -> Any:
        """Run ``Function.apply``, and note what it gives."""
        local, frame = self._local, sys._getframe(1)
        if local.is_aside or self.is_over:
            return original(*args, **named)
        before = self._noting(partial(self._before, args, {}), None)
        local.inside.append(_Forward(torch.is_grad_enabled(), []))
        try:
            result = original(*args, **named)
        finally:
            marks = local.inside.pop().marks
        if before is not None:
            self._noting(partial(self._applied, function, result, frame, before, marks), None)
        return result

    def _applied(
        self, function: Any, result: Any, frame: FrameType, before: _Given, marks: Sequence[int]
    ) -> None:
        route, name = self._route(frame), function.__name__
        for out in [t for t in _tensors_in((result,)) if isinstance(t, torch.Tensor)]:
            known = self._known.get(out)
            inner = () if known is None else (known,)
            would = before.needs_grad or any(self._would[p] for p in inner)
            has_graph, cut, at = _requires_grad(out), None, route
            if would and not has_graph and not (out.requires_grad and is_leaf(out)):
                cut = self._reason(name, out)
                if cut is CutReason.OTHER:
                    is_checkpoint = name == "CheckpointFunction"
                    cut = CutReason.CHECKPOINT if is_checkpoint else CutReason.FUNCTION
                    if marks:
                        cut, at = CutReason.MARKED, marks[0]
            number = self._add(out, Birth((*before.parents, *inner), name, at, has_graph, cut))
            if (code := getattr(function.backward, "__code__", None)) is not None:
                begin = os.path.abspath(code.co_filename), code.co_firstlineno
                self._functions[number] = Site(*begin, function=f"{name}.backward")

    def marked(self, *outputs: Any) -> None:
        """Note that a Function declares results of its own to have no derivative."""
        if self._local.inside:
            frame, marks = sys._getframe(2), self._local.inside[-1].marks
            self._noting(lambda: marks.append(self._route(frame)), None)

    # grad mode

    def switched(self, is_on: bool, frame: FrameType) -> None:
        """Note that grad mode was switched, by ``grad_mode.py`` from a frame on."""
        owner, methods = None, []
        at: FrameType | None = frame
        while at is not None and at.f_code.co_filename.endswith(_GRAD_MODE):
            methods.append(at.f_code.co_name)
            owner, at = at.f_locals.get("self"), at.f_back
        if at is not None:
            self.entered(owner, methods, at, is_on=is_on)

    def entered(self, owner: Any, methods: Sequence[str], at: FrameType, *, is_on: bool) -> None:
        """Note that the methods of a context have switched grad mode, called from a frame."""
        local, function = self._local, None
        while at.f_code.co_filename.endswith(_DECORATORS) and at.f_back is not None:
            function = at.f_locals.get("func", function)
            at = at.f_back
        if "__exit__" in methods or "__call__" in methods:
            before = local.before.pop(id(owner), -1)
            local.mode = -1 if is_on else before
            return
        local.before.setdefault(id(owner), local.mode)
        if is_on:
            local.mode = -1
        elif local.mode < 0:
            local.mode = self._switch(owner, at, function, is_call=[*methods] == ["__init__"])
        elif methods[:1] == ["__enter__"] and self._modes[local.mode].kind is ModeKind.CALL:
            self._modes[local.mode] = self._modes[local.mode]._replace(kind=ModeKind.WITH)

    def inferring(self, context: Any, method: str, frame: FrameType) -> None:
        """Note that a method of ``inference_mode`` has switched grad mode, called from a frame."""
        is_on = torch.is_grad_enabled()
        self._noting(partial(self.entered, context, [method], frame, is_on=is_on), None)

    def _switch(self, owner: Any, at: FrameType, function: Any, *, is_call: bool) -> int:
        name = type(owner).__name__
        route, kind = self._route(at), ModeKind.CALL if is_call else ModeKind.WITH
        code, own = getattr(function, "__code__", None), ""
        if code is not None and owner_of(code) == USER:
            kind, own = ModeKind.DECORATOR, function.__name__
            site: Any = Site(os.path.abspath(code.co_filename), code.co_firstlineno)
            route = self._numbered.setdefault(site, len(self._numbered))
        elif code is not None:
            kind, own = ModeKind.LIBRARY, function.__name__
        elif owner_of(at.f_code) in (HIDDEN, LIBRARY):
            kind, own = ModeKind.LIBRARY, at.f_code.co_name
        self._modes.append(Mode(route, kind, name, own))
        if kind is ModeKind.CALL and self.is_alone:
            self._look_for_skipped(len(self._modes) - 1, at)
        return len(self._modes) - 1

    def _look_for_skipped(self, mode: int, frame: FrameType) -> None:
        """Note the exception by which the function that has switched grad mode off is left."""
        if sys.gettrace() is not None or frame.f_code.co_name == "<module>":
            return
        raised: list[Site] = []

        def trace(own: FrameType, event: str, given: Any) -> Any:
            if event == "exception":
                raised.append(place_in(own).site)
            elif event == "return":
                sys.settrace(None)
                if given is None and raised and self._local.mode == mode:
                    self._modes[mode] = self._modes[mode]._replace(skipped=raised[-1])
            return trace

        frame.f_trace = trace
        sys.settrace(lambda *given: None)

    # leaves

    def _note_frozen(self, args: Sequence[Any], kwargs: Any, frame: FrameType) -> None:
        tensor = args[0]
        is_on = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
        if isinstance(tensor, torch.Tensor) and is_leaf(tensor):
            if is_on:
                self._leaves.frozen.forget(tensor)
            else:
                if isinstance(tensor, torch.nn.Parameter):
                    self.number_of(tensor)
                self._leaves.frozen[tensor] = self._route(frame)

    def made_parameter(self, parameter: Any, frame: FrameType) -> None:
        """Note where a parameter was made."""

        def note() -> None:
            self._leaves.made[parameter] = self._route(frame), next(self._turns)

        self._noting(note, None)

    # the engine and the optimizers

    def use_of(
        self,
        roots: Sequence[Any],
        inputs: Iterable[Any] = (),
        frame: FrameType | None = None,
        accumulates: bool = True,
    ) -> EngineUse:
        """Return what a call from some roots would do now, asked in a frame."""
        tensors = [t for t in roots if isinstance(t, torch.Tensor)]
        inputs = [t for t in inputs if isinstance(t, torch.Tensor)]
        numbers = tuple(map(self.number_of, tensors))
        asked = tuple(map(self.number_of, inputs))
        reached, nodes = self._graph(roots)
        is_there = {id(t) for t in reached}
        unused = (
            place
            for place, t in enumerate(inputs)
            if id(t) not in is_there and (node_of(t) is None or node_of(t) not in nodes)
        )
        leaves = frozenset(leaf for t in reached if (leaf := self._leaf(t)) >= 0)
        has_graph = any(_requires_grad(t) for t in tensors) or len(tensors) < len(roots)
        return EngineUse(
            *(self._route(frame), numbers, has_graph, asked, leaves, accumulates, tuple(unused)),
            values=len(self._origins),
        )

    def can_tell(self, tensors: Sequence[Any], loss: Any) -> bool:
        """Return whether it has met a loss; without one some of the tensors and, if they are
        leaves, a call.
        """
        if loss is not None:
            return self._known.get(loss) is not None
        met = [each for each in tensors if self._known.get(each) is not None]
        return bool(met) and (bool(self._calls) or self.is_computed(self.number_of(met[0])))

    def is_computed(self, number: int) -> bool:
        """Return whether a value is not a leaf, and was computed from something."""
        origin = self._origins[number]
        return origin.leaf < 0 and bool(origin.parents)

    def run_engine(self, engine: Any, roots: Any, *given: Any, **named: Any) -> Any:
        """Note a call, and run it."""
        if self._local.is_aside or self.is_over:
            return engine(roots, *given, **named)
        call, frame = EngineCall.of(roots, *given, **named), sys._getframe(1)
        place = self._noting(partial(self._note_call, roots, call, frame), None)
        self.consider(is_step=False)
        self._local.aside += 1
        try:
            result = engine(roots, *given, **named)
        except BaseException:
            if place is not None:
                self._calls[place] = self._calls[place]._replace(has_failed=True)
            raise
        finally:
            self._local.aside -= 1
        if place is not None and call.accumulates and not call.inputs:
            self._noting(partial(self._note_lost, place), None)
        return result

    def _note_call(self, roots: Sequence[Any], call: EngineCall, frame: FrameType) -> int:
        """Note a call that begins; return its place."""
        stepped = {step.optimizer for step in self._steps}
        for number, ref in enumerate(self._optimizers):
            if number not in stepped and (optimizer := ref()) is not None:
                self._learn(number, optimizer, frame)
        self._calls.append(self.use_of(roots, call.inputs, frame, call.accumulates))
        self._leaves.learn_names(frame)
        return len(self._calls) - 1

    def _note_lost(self, place: int) -> None:
        """Note the leaves to which the graph of a call leads and that got nothing by it."""
        use = self._calls[place]
        tensors = ((leaf, self._leaves[leaf]) for leaf in use.reached)
        lost = frozenset(n for n, each in tensors if each is not None and not is_given(each))
        self._calls[place] = use._replace(reached=use.reached - lost, lost=lost)

    def meet(self, optimizer: Any) -> None:
        """Note an optimizer that has got parameters."""
        self._noting(partial(self._met, optimizer, sys._getframe(1)), None)

    def _met(self, optimizer: Any, frame: FrameType) -> int:
        known = next((n for n, ref in enumerate(self._optimizers) if ref() is optimizer), None)
        if known is not None:
            return known
        self._optimizers.append(weakref.ref(optimizer))
        kind, made = type(optimizer).__name__, self._route(frame)
        self._holders.append(Stepper("", kind, (), made, next(self._turns)))
        return len(self._optimizers) - 1

    def step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note a step."""
        self._noting(partial(self._note_step, optimizer, sys._getframe(1)), None)
        self._local.steps += 1

    def _note_step(self, optimizer: Any, frame: FrameType) -> None:
        self._learn(number := self._met(optimizer, frame), optimizer, frame)
        self._leaves.learn_names(frame)
        self._steps.append(StepUse(number, self._route(frame), *self._used(optimizer)))

    def _used(self, optimizer: Any) -> tuple[frozenset[int], frozenset[int], int]:
        """Return the fields of ``StepUse`` that its closure changes."""
        given: list[Any] = [p for p in parameters_of(optimizer) if p.grad is not None]
        zero = [p for p in given if not any_nonzero(p.grad)]
        return frozenset(map(self._leaf, given)), frozenset(map(self._leaf, zero)), len(self._calls)

    def _note_stepped(self, optimizer: Any) -> None:
        last = self._steps[-1]
        if last.calls < len(self._calls) and self._optimizers[last.optimizer]() is optimizer:
            self._steps[-1] = StepUse(last.optimizer, last.route, *self._used(optimizer))

    def _learn(self, number: int, optimizer: Any, frame: FrameType) -> None:
        """Learn what an optimizer holds, and its name."""
        leaves, known = tuple(map(self._leaf, parameters_of(optimizer))), self._holders[number]
        name = known.name or name_held(optimizer, user_frames(frame)) or ""
        self._holders[number] = known._replace(name=name, leaves=leaves)

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note that a step has ended."""
        self._local.steps -= 1
        self._noting(partial(self._note_stepped, optimizer), None)
        self.consider(is_step=True)

    def consider(self, *, is_step: bool) -> None:
        """Be told that a call begins, or that a step has ended."""

    # what was seen

    def record(self, ended: str = "") -> Origins:
        """Return what was seen, as plain data."""
        with self._lock, DisableTorchFunction():
            self._leaves.learn_names(sys._getframe(1))
            return Origins(
                [*self._origins],
                [*map(_sites, self._numbered)],
                [*self._modes],
                [*self._leaves.now(self._holders, {step.optimizer for step in self._steps})],
                [*self._calls],
                [*self._steps],
                [*self._holders],
                ended,
                {**self._functions},
            )


def _sites(route: Any) -> tuple[Site, ...]:
    if isinstance(route, Site):  # a decorator's
        return (route,)
    return tuple(place.site for place in route.places)
