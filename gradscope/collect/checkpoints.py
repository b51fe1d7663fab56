"""Records what a checkpoint saves in its forward pass, and compares it with what it saves when it
runs again: kinds, shapes, places, and sums of the values; no tensor is kept.
"""

from __future__ import annotations

import functools
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, FunctionType, MethodType, NoneType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import Module

from gradscope.collect.generations import this_thread
from gradscope.collect.marks import Packed
from gradscope.collect.notes import Notes
from gradscope.collect.observers import Observer, Observers
from gradscope.errors import Handle
from gradscope.hooks import on_reentrant_checkpoints
from gradscope.program import tensors
from gradscope.program.containers import closure_of, is_user_class
from gradscope.program.names import Names
from gradscope.program.sites import LIBRARY, USER, Place, owner_of, place_in, place_of
from gradscope.program.tensors import checksum, is_parameter, memory_of, version_of
from gradscope.program.variables import local_variables
from gradscope.torch_private import (
    CHECKPOINT_FILE,
    DisableTorchFunction,
    checkpoint_of,
    current_node,
    hidden_from_compiler,
    run_by_checkpoint,
    saved_by_checkpoint,
    unpacked_by_checkpoint,
)

Reads: TypeAlias = Mapping[str, object]
"""By the name in the program a number, or what stands for an object that is not kept."""

_PLAIN = (bool, int, float, str, NoneType)
_FILLED = (dict, list, set, deque)
_OWN = vars(Module()).keys() - {"training"}
# Names that are read for one checkpoint, and elements of each list in them. An
# nn.TransformerEncoder of six layers has 333 names, which are read in 14 ms; what a larger function
# reads is compared in part.
_MOST_READ, _MOST_ITEMS = 2_000, 100


def reads_of(function: Any) -> Reads:
    """Return what a function reads, and those of the user's that it calls, by name. Nothing of the
    program's is run, and no object of it is kept.
    """
    found: dict[str, object] = {}
    met = set[int]()
    waiting = deque([("self", function)])
    while waiting and len(found) < _MOST_READ:
        path, value = waiting.popleft()
        kind = type(value)
        if kind in _PLAIN:
            found[path] = hash(value)
        elif issubclass(kind, torch.Tensor):
            found[path] = id(value), version_of(value), is_parameter(value)
        elif id(value) not in met:
            met.add(id(value))
            if kind in _FILLED:
                found[path] = len(value)
            waiting.extend(_inside(path, value, kind))
    return found


def _inside(path: str, value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    if kind is FunctionType:
        yield from closure_of(value)
        names, known = value.__code__.co_names, value.__globals__
        if owner_of(value.__code__) == USER:
            yield from ((name, known[name]) for name in names if name in known)
    elif kind is MethodType:
        yield from ((path, value.__self__), (path, value.__func__))
    elif kind is functools.partial:
        yield path, value.func
    elif kind is list or kind is tuple:
        yield from ((f"{path}[{i}]", each) for i, each in enumerate(value[:_MOST_ITEMS]))
    elif issubclass(kind, Module) or (is_user_class(kind) and kind.__dictoffset__):
        own = object.__getattribute__(value, "__dict__")
        parts = [{name: each for name, each in own.items() if name not in _OWN}]
        if issubclass(kind, Module):
            parts += (own[name] for name in ("_parameters", "_buffers", "_modules"))
            yield path, kind.forward
        yield from ((f"{path}.{name}", each) for part in parts for name, each in part.items())


def changed(then: Reads, now: Reads) -> tuple[str, ...]:
    """Return the names of what has changed: the mode of the outermost module, numbers and caches,
    then tensors, and parameters at last.
    """

    def rank(name: str) -> int:
        value = now.get(name, then.get(name))
        return 2 + value[2] if type(value) is tuple else not name.endswith(".training")

    names = [name for name in {**then, **now} if then.get(name, then) != now.get(name, now)]
    modes = sorted((name for name in names if not rank(name)), key=len)
    return (*modes[:1], *sorted((name for name in names if rank(name)), key=rank))


def parameters(reads: Reads) -> Reads:
    """Return those of what was read that are parameters."""
    return {name: each for name, each in reads.items() if type(each) is tuple and each[2]}


def generators() -> dict[str, int]:
    """Return by module what stands for the state of each global generator of random numbers on the
    CPU.
    """
    state = torch.default_generator.get_state()  # kept alive while its memory is read
    memory = memory_of(state)
    found = {"torch": 0 if memory is None else checksum(memory), "random": hash(random.getstate())}
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and type(drawn := numpy.get_state()) is tuple:
        found["numpy.random"] = hash((drawn[1].tobytes(), *drawn[2:]))
    return found


# Saved tensors that are compared in one watch, where eight names that a function reads count as
# one: checkpoints go wrong in the first iterations. Later errors are explained from torch's own
# notes.
_MOST = 10_000
# Kinds of first runs that are remembered, by what they saved, to explain an error in a checkpoint
# whose first run was not noted, as in a steady loop. Programs have one for each kind of layer.
_MOST_KNOWN = 64
_KEY = "gradscope.checkpoint"
_FAILED = "comparing the runs of a checkpoint failed in gradscope"
# Share of the magnitude of a tensor by which its weighted sum may differ, so that rounding is not
# taken for other values. A matrix product that is computed in float64 and rounded differs by 3e-8
# from one in float32, and by 2e-6 in bfloat16; dropout with p=0.1 differs by 5e-2.
_CLOSE = 1e-5

Note: TypeAlias = Callable[[torch.Tensor, FrameType | None, Packed | None], None]
_NOTHING: tuple[Note | None, Note | None] = None, None


class Saved(NamedTuple):
    """What is noted of a tensor that a checkpoint's function saved, to compare it with its second
    run.

    That is the line in the function, the module, type and shape (``label``), sums of the values,
    and the version of a parameter. ``kept`` refers to a tensor that was not computed, such as an
    input; ``packed`` is what the graph holds in place of the tensor.
    """

    place: Place | None
    module: str
    label: str
    sums: tuple[float, float] | None = None
    version: int = -1
    kept: tensors.TensorRef | None = None
    packed: weakref.ref[Packed] | None = None

    @property
    def kind(self) -> str:
        """The name of the node that saved it, as far as that is known."""
        packed = None if self.packed is None else self.packed()
        mark = None if packed is None else packed.mark
        nodes = () if mark is None or mark.graph is None else mark.graph.nodes
        return nodes[mark.index].name if mark is not None and mark.index < len(nodes) else ""

    def differs(self, now: Saved, tensor: torch.Tensor) -> bool:
        """Return whether the tensor that is saved ``now`` in its place has different values.

        A buffer that the function reads may change: no gradient is computed from the statistics of
        a batch norm, which each run updates.
        """
        if (self.kept is not None and self.kept() is tensor) or self.version == now.version != -1:
            return False
        if self.sums is None or now.sums is None:
            return self.version != now.version
        return abs(self.sums[0] - now.sums[0]) > _CLOSE * max(self.sums[1], now.sums[1])


class Pass:
    """What is known of the first run of a checkpoint's function.

    ``drawn`` are the modules from whose global generators it drew random numbers: torch restores
    only its own (``preserve_rng_state``), so numpy's and Python's give other numbers in the second.
    """

    def __init__(self, place: Place | None, function: Any, preserves: bool) -> None:
        self.place, self.preserves, self.reads = place, preserves, reads_of(function)
        self.thread = this_thread.number
        self.saved: list[Saved] = []
        self.drawn: tuple[str, ...] = ()
        self.difference: Divergence | None = None
        self._before = generators()

    def end(self) -> None:
        """Note that the function has run."""
        now = generators()
        self.drawn = tuple(name for name, state in self._before.items() if now.get(name) != state)


class Divergence(NamedTuple):
    """How a checkpoint's second run differs from the first.

    The first operation that differs had saved ``then``, and saves ``now``; None if it saves
    nothing. ``changed`` are the names of what the function reads that have changed meanwhile.
    """

    first: Pass
    then: Saved | None = None
    now: Saved | None = None
    kind: str = ""
    changed: tuple[str, ...] = ()
    is_silent: bool = False
    is_reentrant: bool = False


class Recomputation:
    """The second run of a checkpoint's function, compared with the first as it goes on."""

    def __init__(self, first: Pass, frame: Any, watch: Checkpoints) -> None:
        self._first, self._watch, self._frame = first, watch, weakref.ref(frame)
        self._changed = changed(first.reads, reads_of(run_by_checkpoint(frame)[0]))
        self._count = 0
        self._found: Divergence | None = None
        self._is_silent = False

    def add(self, tensor: torch.Tensor, now: Saved) -> None:
        """Compare a tensor that is about to be saved with the one of the first run."""
        frame, saved, i = self._frame(), self._first.saved, self._count
        self._count += 1
        if frame is None or (i >= len(saved) and not frame.forward_completed):
            return  # gradients are asked for within the function, which has not ended
        then = saved[i] if i < len(saved) else None
        raises = then is None or then.label != now.label
        moved = then is not None and then[:2] != now[:2]
        differs = not raises and then is not None and then.differs(now, tensor)
        if raises or moved or differs:
            is_left_out = moved and now[:2] in (each[:2] for each in saved[i:])
            self._note(then, None if is_left_out else now)
        self._is_silent = self._is_silent or differs
        if raises and (then is None or unpacked_by_checkpoint(frame, i)):
            self._first.difference, before = self._found, self._first.difference
            if before is None and self._found is not None:
                self._watch.observers.tell(Observer.recomputed, self._found)

    def _note(self, then: Saved | None, now: Saved | None) -> None:
        kind = "" if then is None else then.kind
        self._found = self._found or Divergence(self._first, then, now, kind, self._changed)

    def end(self) -> None:
        """Take note that the run has ended, or that torch has stopped it early."""
        first = self._first
        if self._count < len(first.saved):
            self._note(first.saved[self._count], None)
            first.difference = first.difference or self._found
        elif self._is_silent and self._found is not None and first.difference is None:
            self._watch.silent.append(self._found._replace(is_silent=True))


class Checkpoints:
    """The checkpoints whose graphs live: notes the first run of each, and compares the second."""

    def __init__(self, names: Names, observers: Observers, notes: Notes) -> None:
        self.observers = observers
        self.silent: list[Divergence] = []
        """Differences that torch does not notice, until they are reported."""
        self._names, self._notes, self._left = names, notes, _MOST
        self._passes = weakref.WeakKeyDictionary[Any, Pass]()
        self._open = weakref.WeakKeyDictionary[Any, Pass | Recomputation]()
        self._known: dict[Sequence[str], Pass] = {}
        self._reentrant, self._applied = Handle(), list[Pass]()

    @hidden_from_compiler
    def begin(self, pack: Any) -> tuple[Note | None, Note | None]:
        """Return what to call with each tensor that a pack hook of a checkpoint is about to pack,
        and what once it has; None of other hooks.
        """
        return self._notes.attempt(_FAILED, lambda: self._begin(pack), _NOTHING)

    def _begin(self, pack: Any) -> tuple[Note | None, Note | None]:
        found = checkpoint_of(pack) if self._left > 0 else None
        if found is None:
            return _NOTHING
        frame, is_again = found
        if not is_again:
            new = self._passes[frame] = self._open[pack] = self._pass(*run_by_checkpoint(frame))
            return None, self._noting(lambda _, now: new.saved.append(now))
        if (first := self._passes.get(frame)) is None:
            return _NOTHING
        if len(self._known) < _MOST_KNOWN:
            self._known.setdefault(tuple(each.label for each in first.saved), first)
        again = self._open[pack] = Recomputation(first, frame, self)
        return self._noting(again.add), None

    def _pass(self, function: Any, preserves: bool) -> Pass:
        found = Pass(place_of(sys._getframe()), function, preserves)
        self._left -= len(found.reads) // 8
        return found

    def _noting(self, note: Callable[[torch.Tensor, Saved], None]) -> Note:
        @hidden_from_compiler
        def add(tensor: torch.Tensor, frame: FrameType | None, packed: Packed | None) -> None:
            def work() -> None:
                with DisableTorchFunction():
                    note(tensor, self._saved(tensor, frame, packed))

            self._notes.attempt(_FAILED, work, None)

        return add

    def _saved(self, tensor: torch.Tensor, frame: FrameType | None, packed: Packed | None) -> Saved:
        self._left -= 1
        module, is_own = self._names.module_of(frame), tensors.is_parameter(tensor)
        is_kept = tensors.is_leaf(tensor) and not tensors.requires_grad(tensor)
        return Saved(
            _place_within(frame),
            "" if module is None else module[0],
            tensors.describe(tensor),
            tensors.sums_of(tensor),
            tensors.version_of(tensor) if is_own else -1,
            tensors.TensorRef(tensor) if is_kept else None,
            None if packed is None else weakref.ref(packed),
        )

    @hidden_from_compiler
    def end(self, pack: Any) -> None:
        """Note that a pack hook is not in force any more."""
        run = self._open.pop(pack, None)
        if run is not None:
            self._notes.attempt(_FAILED, run.end, None)

    def first_of(self, frame: Any) -> tuple[Pass | None, Pass | None]:
        """Return the first run of a checkpoint, and that of one that has saved the same: of those
        that were looked at.
        """
        own = self._passes.get(frame)
        labels = (tensors.labelled(*each) for each in saved_by_checkpoint(frame))
        return own, own or self._known.get(tuple(labels))

    # reentrant checkpoints, which save nothing in their forward pass

    def see_reentrant(self, sees: bool) -> None:
        """Begin or cease to note what reentrant checkpoints run."""
        self._reentrant.close()
        if sees:
            self._reentrant = on_reentrant_checkpoints(self._see)

    @hidden_from_compiler
    def _see(self, frame: FrameType) -> None:
        def work() -> None:
            own: dict[str, Any] = dict(local_variables(frame))
            first = self._pass(own["run_function"], own["preserve_rng_state"])
            own["ctx"].metadata[_KEY] = first
            self._applied.append(first)

        if self._left > 0:
            self._notes.attempt(_FAILED, work, None)

    def applied(self) -> None:
        """A Function saves what it was given: its forward pass has ended."""
        while self._applied:
            self._applied.pop().end()

    def run_again(self) -> None:
        """Compare what a reentrant checkpoint has run again, if one calls the engine now."""
        found = self.reentrant(current_node())
        if found is None:
            return
        first, now = found.first, reads_of(current_node().run_function)
        names = changed(parameters(first.reads), parameters(now))
        if names or any(name != "torch" or not first.preserves for name in first.drawn):
            self.silent.append(found._replace(changed=names, is_silent=True))

    def reentrant(self, node: Any) -> Divergence | None:
        """Return what is known of the reentrant checkpoint that a node belongs to."""
        first = None if node is None else node.metadata.get(_KEY)
        if first is None:
            return None
        names = changed(first.reads, reads_of(node.run_function))
        return Divergence(first, changed=names, is_reentrant=True)


def _place_within(frame: FrameType | None) -> Place | None:
    """Return the innermost place of the user's in what a checkpoint runs, or else a library's."""
    library = None
    while frame is not None and frame.f_code.co_filename != CHECKPOINT_FILE:
        owner = owner_of(frame.f_code)
        if owner == USER:
            return place_in(frame)
        library = library or (frame if owner == LIBRARY else None)
        frame = frame.f_back
    return None if library is None else place_in(library)
