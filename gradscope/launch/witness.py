"""Notes which parameters get gradient from which backward call before which optimizer's step.

Each note is a line of JSON in a file; ``fixing/gradients.py`` says what they mean, and reads them.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any, TextIO, TypeAlias

import torch
from torch.autograd.graph import GradientEdge

from gradscope.collect.engine_call import EngineCall
from gradscope.hooks import (
    DefaultHookFunctions,
    on_optimizer_step,
    replace,
    replace_default_hook_functions,
    wrap_engine,
)
from gradscope.program.names import Names
from gradscope.program.sites import place_in, place_of, site_of, user_frames
from gradscope.program.tensors import node_of
from gradscope.torch_private import (
    NO_SEQUENCE_NR,
    DisableTorchDispatch,
    DisableTorchFunction,
    default_hooks_are_enabled,
    next_sequence_nr,
)

WITHOUT_OPTIMIZER = -1
"""Stands for the optimizer of leaves that no optimizer of torch's holds."""

_STEPS_WITH_NORMS = 3
"""So many steps of each optimizer are noted with the size of each gradient."""
_MOST_PARAMETERS = 4000
_MOST_CALLERS = 6
_MOST_SEARCHES = 50  # for names

_Places: TypeAlias = tuple[tuple[str, int], ...]

_DEEPEST = 40  # frames that are looked at for names
_MOST_NODES = 20_000  # of a graph, in one walk


class _Parameter:
    """A leaf: where it is in which optimizer, and by which calls its ``.grad`` was made.

    A call that reaches it only through a state that is carried along has a negative number.
    ``asked`` are the calls of ``autograd.grad`` that were asked for it since its last step: a
    program that writes ``.grad`` by hand takes it from them.
    """

    __slots__ = ("asked", "calls", "number", "optimizer", "seen", "tensor")

    def __init__(self, number: int, optimizer: int, tensor: Any) -> None:
        self.number = number
        self.optimizer = optimizer
        self.tensor: weakref.ref[Any] = weakref.ref(tensor)
        self.calls: list[int] = []
        self.asked: list[int] = []
        self.seen = _state_of(tensor)

    def look(self) -> None:
        """Take into account what the program did to ``.grad`` since the last look."""
        tensor: Any = self.tensor()
        state = _state_of(tensor) if tensor is not None else None
        if state == self.seen:
            return
        self.seen = state
        if state is None or _is_zero(tensor.grad):
            self.calls = []
        elif self.asked:
            self.calls = sorted({*self.calls, *self.asked})

    def gets(self, call: int) -> bool:
        """Note a call if it changed ``.grad``, and return whether it did."""
        tensor: Any = self.tensor()
        state = _state_of(tensor) if tensor is not None else None
        if state is None or state == self.seen:
            return False
        self.seen = state
        self.calls.append(call)
        return True


class Witness:
    """Follows a program's backward calls and optimizer steps, and holds none of its tensors.

    ``reference``: nothing is freed and no version is checked, so that the calls that fail without
    the fix continue; what they compute may be wrong, but it reaches what it is meant to reach.
    """

    def __init__(self, notes: TextIO, reference: bool = False) -> None:
        self._notes = notes
        self._reference = reference
        self._process = os.getpid()
        self._optimizers: list[weakref.ref[Any]] = []
        self._steps: list[int] = []
        self._parameters: dict[int, _Parameter] = {}
        self._numbers = 0
        self._calls = 0
        self._names = Names()
        self._named: set[int] = set()
        self._ends: dict[_Places, list[int]] = {}
        self._began_step = 0
        self._row: list[Any] = []
        self._searches = 0

    def start(self) -> None:
        """Put the hooks in, for the rest of the process."""
        original = torch.optim.Optimizer.add_param_group

        @functools.wraps(original)
        def add_param_group(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._guarded(self._meet, optimizer)

        replace(torch.optim.Optimizer, "add_param_group", add_param_group)
        on_optimizer_step(
            lambda optimizer: self._guarded(self._before_step, optimizer),
            lambda optimizer: self._guarded(self._after_step, optimizer),
        )
        wrap_engine(self._run)
        if self._reference:
            _check_no_versions()

    # calls

    def _run(self, original: Any, t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != self._process:
            return original(t_outputs, *args, **kwargs)
        asked = EngineCall.of(t_outputs, *args, **kwargs)
        if self._reference and len(args) > 1:
            args = (args[0], True, *args[2:])
        frame = sys._getframe(1)
        self._guarded(self._before_call, asked, frame)
        failed = True
        try:
            result = original(t_outputs, *args, **kwargs)
            failed = False
        finally:
            self._guarded(self._after_call, asked, frame, failed)
        return result

    def _before_call(self, asked: EngineCall, frame: FrameType) -> None:
        self._calls += 1
        if not self._optimizers:
            self._meet_leaves(asked)
        self._learn_names(frame)
        for parameter in self._parameters.values():
            parameter.look()

    def _after_call(self, asked: EngineCall, frame: FrameType, failed: bool) -> None:
        line = _line_of(frame)
        carried = self._carried(asked, line)
        self._ends.setdefault(line, []).append(next_sequence_nr())
        reached: list[int] = []
        for parameter in self._parameters.values():
            if asked.accumulates and parameter.gets(self._calls) and parameter.number in carried:
                parameter.calls[-1] = -self._calls
            elif not asked.accumulates and is_asked(parameter.tensor(), asked):
                parameter.asked.append(self._calls)
        if failed or not self._optimizers:
            found = (self._parameters.get(id(leaf)) for leaf in _leaves_of(asked))
            reached = sorted({p.number for p in found if p is not None} - carried)
        value = _value_of(asked.outputs) if asked.accumulates else None
        at = round(time.perf_counter(), 6)
        self._write("call", [self._calls, line, asked.accumulates, value, failed, reached, at])

    # steps

    def _meet(self, optimizer: Any) -> None:
        number = self._number_of(optimizer)
        for place, group in enumerate(optimizer.param_groups):
            for position, tensor in enumerate(group["params"]):
                known = self._parameters.get(id(tensor))
                if known is not None and known.tensor() is tensor and known.optimizer >= 0:
                    continue
                self._know(tensor, number, place, position)

    def _know(self, tensor: Any, optimizer: int, group: int, position: int) -> None:
        if len(self._parameters) < _MOST_PARAMETERS:
            self._numbers += 1
            self._parameters[id(tensor)] = _Parameter(self._numbers, optimizer, tensor)
            self._write("parameter", [self._numbers, optimizer, group, position])

    def _number_of(self, optimizer: Any) -> int:
        for number, known in enumerate(self._optimizers):
            if known() is optimizer:
                return number
        self._optimizers.append(weakref.ref(optimizer))
        self._steps.append(0)
        self._write("optimizer", [len(self._optimizers) - 1, type(optimizer).__name__])
        return len(self._optimizers) - 1

    def _before_step(self, optimizer: Any) -> None:
        self._row = []
        self._meet(optimizer)  # a subclass may fill its groups by itself
        self._began_step = self._calls
        self._learn_names(sys._getframe(1))
        self._note_step(optimizer, final=False)

    def _after_step(self, optimizer: Any) -> None:
        """Note the step; where it ran a closure, what that has computed is what it used."""
        self._note_step(optimizer, final=True)

    def _note_step(self, optimizer: Any, *, final: bool) -> None:
        number = self._number_of(optimizer)
        closed = self._calls > self._began_step
        if final and not closed:
            if self._row:
                self._write("step", self._row)
            return
        self._steps[number] += not final
        norms = self._steps[number] <= _STEPS_WITH_NORMS
        by_calls: dict[tuple[int, ...], list[int]] = {}
        sizes: dict[int, float] = {}
        tensors: list[Any] = [t for group in optimizer.param_groups for t in group["params"]]
        for tensor in tensors:
            grad, parameter = tensor.grad, self._parameters.get(id(tensor))
            if parameter is None or parameter.tensor() is not tensor:
                continue
            parameter.look()
            parameter.asked = []
            if grad is not None and parameter.calls:
                by_calls.setdefault(tuple(parameter.calls), []).append(parameter.number)
                if norms:
                    sizes[parameter.number] = _size_of(grad)
        rows = [[list(calls), numbers] for calls, numbers in by_calls.items()]
        line = _line_of(sys._getframe(1))
        self._row = [number, line, self._calls, rows, list(sizes.items())]
        if final:
            self._write("step", self._row)

    # leaves

    def _meet_leaves(self, asked: EngineCall) -> None:
        """Know the leaves of a program that has no optimizer, in the order of the first meeting."""
        for leaf in _leaves_of(asked):
            known = self._parameters.get(id(leaf))
            if known is None or known.tensor() is not leaf:
                self._know(leaf, WITHOUT_OPTIMIZER, 0, self._numbers)

    def _carried(self, asked: EngineCall, line: _Places) -> set[int]:
        """Return the parameters that a call of the reference run reaches only through a state
        carried from one run of its line to the next: a fix that cuts the state off takes no
        training from them that a program could have had for long.
        """
        ends = self._ends.get(line)
        if not ends or not self._reference:
            return set()
        found = map(self._parameters.get, _leaves_through_state(asked, ends))
        return {parameter.number for parameter in found if parameter is not None}

    # the file

    def _learn_names(self, frame: FrameType | None) -> None:
        """Write the names of parameters by which the program's variables know them."""
        if len(self._named) >= len(self._parameters) or self._searches >= _MOST_SEARCHES:
            return
        self._searches += 1
        frames = user_frames(frame)[:_DEEPEST]
        self._names.learn_variables(frames)
        self._names.learn_attributes(frames)
        for parameter in self._parameters.values():
            tensor = parameter.tensor()
            name = None if tensor is None else self._names.of_tensor(tensor)
            if name is not None and parameter.number not in self._named:
                self._named.add(parameter.number)
                self._write("name", [parameter.number, name])

    def _write(self, kind: str, row: list[Any]) -> None:
        self._notes.write(json.dumps([kind, *row]) + "\n")

    def _guarded(self, do: Callable[..., None], *args: Any) -> None:
        """Do it unseen by the program; a failure of gradscope is none of the program's."""
        if os.getpid() != self._process:
            return
        with suppress(Exception), ExitStack() as stack:
            for enter in (DisableTorchFunction, DisableTorchDispatch, torch.no_grad):
                stack.enter_context(enter())
            do(*args)


def _line_of(frame: FrameType) -> _Places:
    """Return the innermost place of the user's code, and those of its callers."""
    place = site_of(place_of(frame))
    if place is None:
        return ()
    sites = [place, *(place_in(above).site for above in user_frames(frame)[:_MOST_CALLERS])]
    return tuple(dict.fromkeys((site.file, site.line) for site in sites))


def _check_no_versions() -> None:
    """Save aliases from now on, of which torch does not check the version; step aside for
    ``torch.func``, which takes no hooks.
    """
    functions = DefaultHookFunctions.now()
    functions.push(_alias, _itself)
    aside: list[int] = []  # the thread that went without them

    def disable(*args: Any) -> None:
        top = functions.top(False) if default_hooks_are_enabled() else None
        if top is not None and top[0] is _alias:
            functions.pop()
            aside.append(threading.get_ident())
        functions.disable(*args)

    def enable() -> None:
        functions.enable()
        if aside == [threading.get_ident()]:
            aside.clear()
            functions.push(_alias, _itself)

    replace_default_hook_functions(functions._replace(disable=disable, enable=enable))


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return what to keep of a saved tensor: an output of its node itself would make a cycle."""
    return tensor.detach()


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _state_of(tensor: Any) -> tuple[int, int] | None:
    grad = tensor.grad
    return None if grad is None else (id(grad), grad._version)


def _is_zero(grad: Any) -> bool:
    with suppress(Exception):  # a kind of tensor that does not tell
        return not bool(grad.any())
    return False


def _size_of(grad: Any) -> float:
    with suppress(Exception):
        return float(torch.linalg.vector_norm(grad.detach(), dtype=torch.float64))
    return -1.0


def _value_of(outputs: Sequence[Any]) -> float | None:
    if len(outputs) != 1 or not isinstance(outputs[0], torch.Tensor):
        return None
    return float(outputs[0]) if outputs[0].numel() == 1 else None


def _leaves_of(asked: EngineCall) -> list[Any]:
    """Return the leaves that a call reaches, or those that it was asked for."""
    inputs = [_tensor_of(one) for one in asked.inputs]
    if inputs:
        return [one for one in inputs if isinstance(one, torch.Tensor) and one.is_leaf]
    return list(_reached(map(_node_of, asked.outputs), lambda node, following: True).values())


def is_asked(tensor: Any, asked: EngineCall) -> bool:
    """Return whether a call was asked for this leaf."""
    return any(_tensor_of(one) is tensor for one in asked.inputs)


def _leaves_through_state(asked: EngineCall, ends: Sequence[int]) -> list[int]:
    """Return the ids of the leaves that a call reaches only through a state that is carried from
    one run of its line to the next.

    ``ends`` are the sequence numbers at the ends of the runs before.
    """

    def run_of(node: Any) -> int:
        number = node._sequence_nr()
        return len(ends) if number == NO_SEQUENCE_NR else bisect_right(ends, number)

    def in_this_run(node: Any, following: Any) -> bool:
        return _is_leaf(following) or run_of(following) >= len(ends)

    def from_run_to_run(node: Any, following: Any) -> bool:
        return _is_leaf(following) or run_of(node) - run_of(following) <= 1

    roots = [node for node in map(_node_of, asked.outputs) if node is not None]
    fresh, carried = _reached(roots, in_this_run), _reached(roots, from_run_to_run)
    return [key for key in carried if key not in fresh]


def _tensor_of(one: Any) -> Any:
    """Return the leaf that an input of a call names."""
    return getattr(one.node, "variable", None) if isinstance(one, GradientEdge) else one


def _node_of(output: Any) -> Any:
    return output.node if isinstance(output, GradientEdge) else node_of(output)


def _is_leaf(node: Any) -> bool:
    return getattr(node, "variable", None) is not None


def _reached(roots: Iterable[Any], follow: Callable[[Any, Any], bool]) -> dict[int, Any]:
    """Return by id the leaves that lie behind nodes, over the edges that ``follow`` takes."""
    leaves: dict[int, Any] = {}
    stack = [root for root in roots if root is not None]
    met = set(stack)
    while stack and len(met) < _MOST_NODES:
        node = stack.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves[id(leaf)] = leaf
        for following, _ in node.next_functions:
            if following is not None and following not in met and follow(node, following):
                met.add(following)
                stack.append(following)
    return leaves
