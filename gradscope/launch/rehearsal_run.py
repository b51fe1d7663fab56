"""Reruns a program in a separate process, with every place marked and nothing freed.

``fixing/rehearsal.py`` describes and reads what it writes.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
import re
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace as replaced
from inspect import getattr_static
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple, NoReturn

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from gradscope.collect.calls import EngineCall
from gradscope.collect.nodes import held, kind_of
from gradscope.collect.slots import readable
from gradscope.collect.walk import root_node
from gradscope.fixing.instrumentation import ADD, BEGIN, HEAD, MARK, RENEW, Instrumenter, Span
from gradscope.fixing.rehearsal import Event, Kind, Trace
from gradscope.fixing.runs import Job
from gradscope.formatting import gathered
from gradscope.hooks import (
    DefaultHookFunctions,
    Pair,
    hide_references,
    on_new_parameters,
    on_optimizer_step,
    replace_default_hook_functions,
    wrap_engine,
)
from gradscope.launch.guard import line_of
from gradscope.launch.trial import begin_rehearsal, end_rehearsal, overlay, rehearse
from gradscope.program.names import Names
from gradscope.program.sites import USER, classify, frames_from, user_frames
from gradscope.program.tensors import (
    TensorMap,
    TensorRef,
    any_nonzero,
    is_leaf,
    leaves_of,
    node_of,
    parameters_of,
    requires_grad,
    storage_of,
)
from gradscope.torch_private import DisableTorchFunction, innermost_transform

# Engine calls that are rehearsed after the first that would fail: some iterations, also of
# several losses each, show what an edit does to later ones. All their graphs are kept, and each
# change is simulated on all of them: so fewer once they have that many nodes. With 16 calls of 700
# nodes the search took 5.5 seconds, with 8 of them 1.5.
_CALLS_AFTER, _FEWER_AFTER, _MANY = 14, 6, 4_000

_CONTAINERS = (tuple, list, dict)
_ATOMS = frozenset({int, float, bool, str, type(None)})
# Searches through all variables for the names of new leaves: inner loops make new ones without
# end, and these have no names.
_MOST_SEARCHES = 50
_OLD = 8  # events: what is older is of an earlier iteration
_ABSENT = object()
# Elements of a container that are looked at, in each expression that the program reads.
_MOST_PARTS = 64

_PRODUCTS = ("mul", "__mul__", "__rmul__", "div", "__truediv__", "__rtruediv__", "true_divide")
_COMPILING = ("gradscope.", "runpy", "importlib.", "_frozen_importlib")
"""Where the program's own code is compiled."""


def _base_of(tensor: Any) -> Any:
    return tensor if tensor._base is None else tensor._base


class _Versioned:
    """A tensor that a node saved, with the version that it had."""

    __slots__ = ("__weakref__", "is_made", "place", "tensor", "version")

    def __init__(self, tensor: Any, place: int) -> None:
        self.place = place
        """The last place that gave a tensor of this memory; -1 if none did."""
        self.is_made = not _base_of(tensor).is_leaf
        """Whether an operation has computed it, so that the place of one may have given it."""
        self.version = tensor._version
        self.tensor = tensor.detach() if requires_grad(tensor) and not is_leaf(tensor) else tensor


class _Begun(NamedTuple):
    """What there was when an evaluation began."""

    time: int
    nodes: int
    writes: int
    random: Any


class _Write(NamedTuple):
    """A change of memory that is there since ``born``; of an attribute, -1. A state has a graph."""

    born: int
    is_state: bool


class _Numbering:
    """Numbers the nodes of all graphs in the order in which they are met, and holds none."""

    def __init__(self, record: Trace) -> None:
        self._record = record
        self.saved: list[list[weakref.ref[_Versioned]]] = []
        self.variables: list[TensorRef] = []
        self._leaves = TensorMap[int]()
        self._gave: dict[int, tuple[int, StorageWeakRef, TensorRef]] = {}
        """The last place that gave a tensor of some memory, as long as that is not freed."""
        self.hooks: Pair = self._pack, readable(operator.attrgetter("tensor"))

    def gave(self, place: int, tensor: Any) -> None:
        """Note that a place gave a tensor, where graphs are built."""
        if torch.is_grad_enabled() and (memory := storage_of(tensor)):
            storage = StorageWeakRef(tensor.untyped_storage())
            self._gave[memory] = place, storage, TensorRef(tensor)

    def _pack(self, tensor: Any) -> _Versioned:
        return _Versioned(tensor, self._giver(tensor))

    def _giver(self, tensor: Any) -> int:
        place, storage, given = self._gave.get(storage_of(tensor), (-1, None, None))
        if storage is None or given is None or storage.expired():
            return -1
        # A module uses its parameters themselves, whatever else the program has read of them.
        base = _base_of(tensor)
        is_parameter = base.is_leaf and base.requires_grad
        return -1 if is_parameter and given() is not base else place

    def number(self, node: Any, place: int) -> int:
        """Return the number of a node, and give one to all that it leads to."""
        known = node.metadata.get(MARK)
        if known is not None:
            return int(known)
        fresh, found = [node], []
        while fresh:
            one = fresh.pop()
            if one.metadata.get(MARK) is None:
                one.metadata[MARK] = len(self._record.after)
                self._add(one, place)
                found.append(one)
                fresh += [n for n, _ in one.next_functions if n is not None]
        for one in found:
            following = [n.metadata[MARK] for n, _ in one.next_functions if n is not None]
            self._record.after[one.metadata[MARK]] = following
        return int(node.metadata[MARK])

    def _add(self, node: Any, place: int) -> None:
        record = self._record
        number = len(record.after)
        record.after.append([])
        record.made.append(place)
        for leaf in leaves_of([node]):
            record.leaf[number] = self.variable(leaf)
        found = [data for _, data in held(node, kind_of(type(node)))]
        record.saves.append(bool(found))
        self.saved.append([weakref.ref(each) for each in found if isinstance(each, _Versioned)])

    def variable(self, tensor: Any) -> int:
        """Return the number of a leaf."""
        known = self._leaves.get(tensor)
        if known is None:
            known = self._leaves[tensor] = len(self.variables)
            self.variables.append(TensorRef(tensor))
        return known


class Rehearsal(TorchFunctionMode):
    """Follows a marked program: its graphs, engine calls, steps, and changes in place."""

    def __init__(self, job: Job, files: set[str], marker: Instrumenter) -> None:
        super().__init__()
        self._job = job
        self._most_calls = job.stop_after or math.inf
        """Engine calls after which it ends."""
        self._failed = math.inf
        """The first call that would fail."""
        self._files = files
        self._marker = marker
        self._record = Trace(marker.places)
        self._graph = _Numbering(self._record)
        self._kinds: dict[int, set[Kind]] = defaultdict(set)
        self._bare: dict[int, tuple[int, int, int, int]] = {}
        """What a place gave last, if no tensor of a graph was in it, and what was built until then:
        in a loop over plain data it gives that again and again, and is not searched each time.
        """
        self._changed: dict[int, int] = {}
        self._writes: list[_Write] = []
        self._born: dict[int, int] = {}
        """The evaluation since which some memory is there."""
        self._clock = 0
        self._moves: dict[int, tuple[bool, bool]] = {}
        self._holders: dict[tuple[Span, str], int] = {}
        self._freed: set[int] = set()
        self._derived = WeakTensorKeyDictionary()
        """Of which calls of ``autograd.grad``, by their events, a tensor is computed."""
        self._calls = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._names = Names()
        self._named: dict[int, str] = {}
        self._searches = 0
        self._given: list[tuple[int, int, weakref.ref[Any]]] = []
        self._lock = threading.RLock()
        self._is_aside = False
        self._stepped: set[int] = set()
        """The memory of what the running step changes."""

    # what the marked program calls

    def begin(self) -> _Begun:
        """Return how many nodes there are, and what is random."""
        with DisableTorchFunction():
            state = torch.default_generator.get_state()
        self._clock += 1
        return _Begun(self._clock, len(self._record.after), len(self._writes), state)

    def mark(self, number: int, begun: _Begun | None, value: Any) -> Any:
        """Return a value; a tensor of a graph behind an identity node that stands for the place.
        Note what has been built since its evaluation began.
        """
        if self._is_apart:
            return value
        if type(value) in _ATOMS:  # as in loops over numbers, each of which is marked
            self._kinds[number].add(_kind_of(value))
            marked = value
        else:
            with self._lock, DisableTorchFunction():
                marked = self._noted(number, value)
        if begun is not None:
            self._note_run(number, begun)
        return marked

    def _note_run(self, number: int, begun: _Begun) -> None:
        """Note what an evaluation has built, and whether another one would give the same."""
        if begun.nodes == (nodes := len(self._record.after)):
            return
        self._record.runs.setdefault(number, []).append((begun.nodes, nodes))
        written = [each for each in self._writes[begun.writes :] if each.born < begun.time]
        varies = bool(written) or _is_drawn(begun.random)
        self._moves[number] = any(each.is_state for each in written), varies

    def renew(self, value: Any, owner: Any) -> Any:
        """Note that a part of an object becomes what may be computed from what it was; that one of
        a tensor does has a version.
        """
        with self._lock, DisableTorchFunction():
            if isinstance(owner, torch.Tensor):
                return value
            self._writes.append(_Write(-1, any(map(requires_grad, _tensors_in(value)))))
        return value

    def _noted(self, number: int, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self._kinds[number].add(_kind_of(value))
            return self._marked(number, value)
        kind = type(value)
        size, built = len(value) if kind in _CONTAINERS else 0, len(self._record.after)
        if self._bare.get(number) == (at := (id(value), size, built, len(self._writes))):
            return value
        fields = _fields_of(value)
        if fields or kind in _CONTAINERS:
            self._kinds[number].add(_kind_of(value))
            self._hold(number, _tensors_in([*fields.values()] if fields else value))
        if number not in self._record.held or self._record.held[number][-1][0] < built:
            self._bare[number] = at
        if kind is tuple and any(isinstance(each, torch.Tensor) for each in value):
            return tuple(self._marked(number, each) for each in value)
        return value

    def _hold(self, number: int, tensors: Iterable[Any]) -> None:
        """Note which tensors of graphs were in what a place gave."""
        found = map(node_of, tensors)
        if nodes := [self._graph.number(each, number) for each in found if each is not None]:
            there = self._record.held.setdefault(number, [])
            there.append((len(self._record.after), tuple(nodes)))

    def _marked(self, number: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        self._graph.gave(number, value)
        if (own := node_of(value)) is None or not torch.is_grad_enabled():
            return value
        self._graph.number(own, number)
        kind = type(value)
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return value  # its class says itself what a view of it is
        marked = value.view_as(value)
        if kind is not torch.Tensor:
            marked = marked.as_subclass(kind)
            vars(marked).update(vars(value))
        node = self._graph.number(marked.grad_fn, number)
        self._record.identities[node] = number
        self._given.append((len(self._record.events), node, weakref.ref(marked)))
        if value in self._derived:
            self._derived[marked] = self._derived[value]
        return marked

    def head(self, number: int, paths: Sequence[str]) -> None:
        """Note that a function or the body of a loop begins, and which variables there are then."""
        record, frame = self._record, sys._getframe(1)
        record.begun.setdefault(number, []).append(len(record.after))
        there: dict[str, Any] = {**frame.f_locals}
        for name, each in frame.f_locals.items():
            if not isinstance(each, type | ModuleType | torch.nn.Module | torch.Tensor):
                fields = islice(_slots_of(each).items(), _MOST_PARTS)
                there |= {f"{name}.{field}": value for field, value in fields}
        for path in paths:  # the shorter ones come first
            owner, _, name = path.rpartition(".")
            held = there.get(owner, frame.f_globals.get(owner))
            value = _slots_of(held).get(name, getattr_static(type(held), name, _ABSENT))
            if not hasattr(type(value), "__get__"):  # a property may be set by nobody
                there |= {} if value is _ABSENT else {path: value}
        record.bound[number] = record.bound.get(number, frozenset(there)).intersection(there)
        empty = {name for name, value in there.items() if value is None}
        record.empty[number] = record.empty.get(number, frozenset()) | empty

    def add(self, number: int, step: str, target: Any, value: Any) -> Any:
        """Run ``target += value``; note which edge the old value of the target is."""
        old = node_of(target) if isinstance(target, torch.Tensor) else None
        if old is not None:
            self._graph.number(old, number)
        begun = self.begin()
        new = getattr(operator, step)(target, value)
        node = node_of(new) if isinstance(new, torch.Tensor) else None
        if node is not None:
            with self._lock:
                own = self._graph.number(node, number)
                self._kinds[number].add(_kind_of(new))
                if old is not None:
                    self._record.added[own, self._graph.number(old, number)] = number
        self._note_run(number, begun)
        return new

    # what is left alone

    @property
    def _is_apart(self) -> bool:
        """Whether ``torch.func`` transforms what runs: its graphs are its own."""
        return self._is_aside or innermost_transform() is not None

    def stepping_aside(self, torchs: DefaultHookFunctions) -> DefaultHookFunctions:
        """Return functions that take our hooks and marks away while hooks are disabled, as within
        ``torch.func``.
        """

        def disable(*message: str) -> None:
            if not self._is_aside:
                torchs.pop()
                self._is_aside = True
            torchs.disable(*message)

        def enable() -> None:
            torchs.enable()
            if self._is_aside:
                torchs.push(*self._graph.hooks)
                self._is_aside = False

        return torchs._replace(disable=disable, enable=enable)

    # what it does in place

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        with DisableTorchFunction():
            given = (each for each in _tensors_in((args, kwargs)) if not each.is_inference())
            before = [(each, each._version) for each in given]
        result = func(*args, **(kwargs or {}))
        with DisableTorchFunction():
            known = {storage_of(each) for each, _ in before}
            made = {storage_of(each) for each in _tensors_in((result,))} - known
            self._born.update(dict.fromkeys(made, self._clock))
        name = getattr(func, "__name__", "")
        if self._derived and torch.is_grad_enabled() and name != "detach":
            with self._lock, DisableTorchFunction():
                self._follow(name, result, args)
        self._change(before)
        return result

    def _follow(self, name: str, result: Any, args: Sequence[Any]) -> None:
        """Note of which calls' gradients a result is computed. A number by which something is only
        multiplied is a weight, and none is meant to be trained through it.
        """
        given = list(_tensors_in(args))
        calls = [self._derived.get(each, ()) for each in given]
        is_weight = name in _PRODUCTS and not all(calls)
        pairs = zip(given, calls, strict=True)
        meant = (own for each, own in pairs if not (is_weight and each.numel() == 1))
        known = frozenset(call for own in meant for call in own)
        for each in _tensors_in((result,)) if known else ():
            # What ``grad`` returns is of its own call, too.
            self._derived[each] = known.union(self._derived.get(each, ()))

    def _change(self, before: Sequence[tuple[Any, int]]) -> None:
        """Note what an operation wrote to: tensors that have another version than before."""
        with self._lock, DisableTorchFunction():
            written = (each for each, version in before if each._version != version)
            tensors = [t for t in written if storage_of(t) not in self._stepped]
            for tensor in tensors:
                self._changed[storage_of(tensor)] = len(self._record.events)
                born = self._born.get(storage_of(tensor), -1)
                self._writes.append(_Write(born, requires_grad(tensor) and not is_leaf(tensor)))
            by_hand = (t for t in tensors if is_leaf(t) and t.requires_grad and t.grad is not None)
            if tensors:
                self._note("change", leaves=tuple(map(self._graph.variable, by_hand)))

    # what the engine and the optimizers do

    def run_engine(
        self,
        engine: Any,
        roots: Any,
        grads: Any,
        keep_graph: Any,
        create_graph: Any = False,
        inputs: Any = (),
        *given: Any,
        **named: Any,
    ) -> Any:
        """Note a call, and run it with its graph kept."""
        if self._is_apart:
            return engine(roots, grads, keep_graph, create_graph, inputs, *given, **named)
        inputs = tuple(map(self._unmarked, inputs or ()))
        call = EngineCall.of(roots, grads, keep_graph, create_graph, inputs, *given, **named)
        with self._lock:
            starts = [node for node in map(self._start, roots) if node is not None]
            targets = tuple(map(self._start, call.inputs)) or None
            here = self._record.reached(starts)
            if targets is not None:
                wanted = {t for t in targets if t is not None}
                here = self._record.leading(here, wanted)
            stale = self._stale(here)
            index = len(self._record.events)
            self._learn_names(frame := sys._getframe(1))
            own = (self._derived.get(root, ()) for root in roots if isinstance(root, torch.Tensor))
            clear = (n for n, ref in enumerate(self._graph.variables) if _is_clear(ref()))
            self._note(
                "call",
                uses=tuple(sorted({call for each in own for call in each})),
                roots=tuple(starts),
                targets=targets,
                keep=call.keep_graph,
                accumulate=call.accumulates,
                stale=tuple(stale),
                cleared=tuple(clear),
            )
            self._look_into_modules(next(iter(user_frames(frame)), frame))
            if stale or any(self._record.saves[i] for i in here & self._freed):
                self._failed = min(self._failed, self._calls)
            after = _FEWER_AFTER if len(self._record.after) > _MANY else _CALLS_AFTER
            most = min(self._most_calls, self._failed + after)
            if not call.keep_graph:
                self._freed |= here
            self._calls += 1
            if self._calls > most:
                self.finish("enough")
        self._look_what_is_kept(len(self._record.events) - _OLD)
        results = engine(roots, grads, True, create_graph, inputs, *given, **named)
        with self._lock, DisableTorchFunction():
            for each in () if call.accumulates else _tensors_in((results,)):
                self._derived[each] = frozenset((index,))
        return results

    def _look_into_modules(self, frame: FrameType) -> None:
        """Note the tensors of graphs that the modules of a call's variables hold as attributes, as
        if the call's place gave them.
        """
        call, places = self._record.events[-1], self._marker.places
        known: dict[str, Any] = {**frame.f_globals, **frame.f_locals}
        for name, root in known.items():
            for path, module in root.named_modules() if isinstance(root, torch.nn.Module) else ():
                owner = re.sub(r"\.(\d+)", r"[\1]", f"{name}.{path}" if path else name)
                for key, value in vars(module).items():
                    node: Any = node_of(value) if isinstance(value, torch.Tensor) else None
                    if node is not None and MARK in node.metadata:
                        there = call.site, f"{owner}.{key}"
                        if there not in self._holders:
                            self._holders[there] = len(places)
                            places.append(call.site)
                        number, given = self._holders[there], (node.metadata[MARK],)
                        self._kinds[number].add(_kind_of(value))
                        self._record.held.setdefault(number, []).append((call.nodes, given))

    def _unmarked(self, tensor: Any) -> Any:
        """Return what the engine knows a tensor by in whose place a program has what marks it."""
        node, output = getattr(tensor, "grad_fn", None), 0
        if node is None or node.metadata.get(MARK) not in self._record.identities:
            return tensor
        while node.metadata.get(MARK) in self._record.identities:
            node, output = node.next_functions[0]
        return torch.autograd.graph.GradientEdge(node, output)

    def _look_what_is_kept(self, before: int) -> None:
        """Note the nodes of the tensors that are still there and were given before an event."""
        with self._lock:
            self._given = [each for each in self._given if each[2]() is not None]
            old = [node for event, node, _ in self._given if event < before]
            if len(old) > len(self._record.kept):
                self._record.kept[:] = old

    def _start(self, root: Any) -> int | None:
        node = root_node(root)
        if node is None and root.requires_grad:
            with torch.enable_grad(), DisableTorchFunction():
                node = torch.autograd.graph.get_gradient_edge(root).node
        return None if node is None else self._graph.number(node, -1)

    def _stale(self, here: Iterable[int]) -> list[tuple[int, int, int]]:
        """Return the nodes whose saved tensors were changed, each with the event that did it."""
        found = []
        for node in here:
            for ref in self._graph.saved[node]:
                saved = ref()
                if saved is not None and saved.tensor._version != saved.version:
                    changed = self._changed.get(storage_of(saved.tensor), -1)
                    own = self._record.made[node] if saved.is_made else -1
                    found.append((node, changed, own if saved.place < 0 else saved.place))
        return found

    def meet(self, optimizer: Any) -> tuple[int, list[Any]]:
        """Return the number of an optimizer and its parameters, whose owner it is from now on."""
        with self._lock:
            number = self._numbers.setdefault(optimizer, len(self._record.optimizers))
            if number == len(self._record.optimizers):
                self._record.optimizers.append(type(optimizer).__name__)
            tensors = parameters_of(optimizer)
            for position, tensor in enumerate(tensors):
                self._record.owners.setdefault(self._graph.variable(tensor), (number, position))
            return number, tensors

    def step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note a step of an optimizer, with the parameters that have a gradient."""
        with self._lock:
            number, tensors = self.meet(optimizer)
            for tensor in tensors:
                self._changed[storage_of(tensor)] = len(self._record.events)
                self._stepped.add(storage_of(tensor))
            self._began = len(self._record.events)
            self._note_step(number, tensors)

    def _note_step(self, number: int, tensors: Sequence[Any]) -> None:
        used = [p for p in tensors if p.grad is not None]
        leaves = tuple(map(self._graph.variable, used))
        self._note("step", leaves=leaves, gradients=tuple(map(_sums, used)), optimizer=number)

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Forget what the step was to change; if it ran a closure, it used what that has made."""
        with self._lock:
            self._stepped.clear()
            began, events = self._began, self._record.events
            if any(each.kind == "call" for each in events[began:]):
                events[began] = events[began]._replace(leaves=(), optimizer=-1)
                self._note_step(*self.meet(optimizer))

    def _learn_names(self, frame: FrameType) -> None:
        """Learn the names by which the program's variables know the leaves."""
        leaves = {n: ref() for n, ref in enumerate(self._graph.variables) if n not in self._named}
        if not leaves or self._searches >= _MOST_SEARCHES:
            return
        self._searches += 1
        self._names.learn_variables(user_frames(frame))
        for number, leaf in leaves.items():
            name = None if leaf is None else self._names.of_tensor(leaf)
            if name is not None:
                self._named[number] = name

    # what is written down

    def _note(self, kind: str, **facts: Any) -> None:
        frames = frames_from(sys._getframe(2))
        frame = next((each for each in frames if each.f_code.co_filename in self._files), None)
        site = Span("", 0, 0, 0, 0) if frame is None else _place(frame)
        nodes, stack = len(self._record.after), tuple(line_of(frame))
        self._record.events.append(Event(kind, site, nodes=nodes, stack=stack, **facts))

    def finish(self, ended: str) -> NoReturn:
        """Write down what was seen, and end the process."""
        record, heads = self._record, self._marker.heads
        self._look_what_is_kept(len(record.events) + 1)
        calls = gathered((record.events[i] for i in record.calls), lambda call: call.site)
        begun = ([call.nodes for call in own] for own in calls.values())
        record = replaced(
            record,
            kinds={place: frozenset(kinds) for place, kinds in self._kinds.items()},
            leaves=[self._named.get(n, "") for n in range(len(self._graph.variables))],
            heads=[*heads, *calls],
            begun=record.begun | dict(enumerate(begun, len(heads))),
            holders={number: path for (_, path), number in self._holders.items()},
            moving=frozenset(n for n, (is_state, _) in self._moves.items() if is_state),
            varying=frozenset(n for n, (_, is_other) in self._moves.items() if is_other),
            ended=ended,
        )
        end_rehearsal(self._job, record)


def _kind_of(value: Any, depth: int = 3) -> Kind:
    if isinstance(value, torch.Tensor):
        return "number" if value.numel() == 1 else "tensor"
    kind = type(value)
    if kind in _ATOMS:
        return "none" if value is None else "other"
    if fields := _fields_of(value):
        is_frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
        way = "namedtuple" if issubclass(kind, tuple) else "dataclass" if is_frozen else "object"
        own = [n for n, each in fields.items() if any(map(node_of, _tensors_in(each)))]
        return way, frozenset((name, frozenset({_kind_of(fields[name])})) for name in own)
    if kind not in _CONTAINERS or not depth:
        return "none" if value is None else "other"
    parts = islice(value.values() if kind is dict else value, _MOST_PARTS)
    return kind.__name__, frozenset(_kind_of(each, depth - 1) for each in parts)


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a named tuple, a dataclass or another object that have tensors."""
    if (kind := type(value)) in _CONTAINERS:
        return {}
    fields = _slots_of(value)
    if issubclass(kind, tuple):
        fields = dict(zip(getattr(kind, "_fields", ()), tuple.__iter__(value), strict=False))
    found = islice(fields.items(), _MOST_PARTS)
    return {name: each for name, each in found if next(_tensors_in(each, 1), None) is not None}


def _slots_of(value: Any) -> dict[str, Any]:
    """Return what an object has in itself, a module's buffers among it."""
    try:
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return {**fields, **(fields.get("_buffers") or {})}  # another thread may set one


def _tensors_in(value: Any, depth: int = 3) -> Iterator[Any]:
    """Yield the tensors in a value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in _CONTAINERS and depth:
        for each in islice(value.values() if type(value) is dict else value, _MOST_PARTS):
            yield from _tensors_in(each, depth - 1)


def _sums(tensor: Any) -> tuple[float, float]:
    """Return the sums of the gradient of a leaf, and of its positive numbers; NaN without any."""
    gradient, is_plain = tensor.grad, type(tensor.grad) is torch.Tensor
    is_plain &= not tensor.is_meta
    if not is_plain or gradient.layout is not torch.strided or not gradient.is_floating_point():
        return math.nan, math.nan
    with torch.no_grad(), DisableTorchFunction():
        every, positive = gradient.double(), gradient.relu().double()
        return float(every.sum()), float(positive.sum())


def _is_drawn(before: Any) -> bool:
    """Return whether random numbers were drawn on the CPU since its generator had a state."""
    try:
        with DisableTorchFunction():
            return not torch.equal(before, torch.default_generator.get_state())
    except (RuntimeError, AssertionError):  # a mode that compares no numbers is on
        return False


def _is_clear(tensor: Any) -> bool:
    """Return whether a leaf has no gradient, or zeros."""
    return tensor is None or tensor.grad is None or not any_nonzero(tensor.grad)


def _place(frame: FrameType) -> Span:
    code, at = frame.f_code, frame.f_lasti // 2
    line, end_line, column, end = next(islice(code.co_positions(), at, None))
    return Span(code.co_filename, line or frame.f_lineno, column or 0, end_line or 0, end or 0)


def main(job_file: str) -> NoReturn:
    """Do the job."""
    job = begin_rehearsal(job_file)
    files: set[str] = set()
    marker = Instrumenter()
    rehearsal = Rehearsal(job, files, marker)
    overlay(job.sources, lambda path: classify(path) == USER)
    _mark_sources(marker, files)
    noted = {MARK: rehearsal.mark, BEGIN: rehearsal.begin, RENEW: rehearsal.renew}
    vars(builtins).update(noted | {ADD: rehearsal.add, HEAD: rehearsal.head})
    # Nothing is taken back: the process ends with the rehearsal.
    wrap_engine(rehearsal.run_engine)
    on_optimizer_step(rehearsal.step, rehearsal.stepped)
    on_new_parameters(rehearsal.meet)
    hide_references(TensorRef)
    replace_default_hook_functions(rehearsal.stepping_aside(DefaultHookFunctions.now()))
    with torch.autograd.graph.saved_tensors_hooks(*rehearsal._graph.hooks), rehearsal:
        rehearse(job, rehearsal.finish)


def _mark_sources(marker: Instrumenter, files: set[str]) -> None:
    """Have the user's files compiled with their marks: the script's, and what it imports."""
    compiled: Any = builtins.compile

    def marked(content: Any, path: str) -> CodeType | None:
        try:
            tree = marker.marked(ast.parse(content), path)
            code: CodeType = compiled(tree, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError):
            return None
        files.add(path)
        return code

    def compile_source(source: Any, filename: Any, mode: Any, *given: Any, **named: Any) -> Any:
        by = sys._getframe(1).f_globals.get("__name__", "")
        is_program = mode == "exec" and by.startswith(_COMPILING)
        code = None
        if is_program and isinstance(source, bytes | str) and classify(str(filename)) == USER:
            code = marked(source, str(filename))
        return code or compiled(source, filename, mode, *given, **named)

    vars(builtins)["compile"] = compile_source
