"""Says whether a call that names its inputs is known to run what the call at hand will free."""

from __future__ import annotations

import ast
from collections import OrderedDict
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter

from gradscope.code import changes, source
from gradscope.code.keys import loops_around
from gradscope.code.names import is_part
from gradscope.detect.foresight.held import Freeing, Held
from gradscope.detect.foresight.objects import MISSING, Objects, attribute
from gradscope.detect.foresight.reading import Reading
from gradscope.model import Site
from gradscope.program.layouts import derives
from gradscope.program.sites import place_in

_MOST_INPUTS = 1_000
_SAME = ("list", "tuple")


def may_stop_before(reading: Reading, held: Held, freeing: Freeing) -> bool:
    """Return whether the coming call may stop before it comes to what will be freed.

    The engine runs only what lies between the roots and the inputs: an input has to be known that
    lies behind a node that will be freed.
    """
    if not source.runs_a_part(reading.backward):
        return False
    here, there = place_in(reading.frame).site, reading.backward
    named = source.inputs_at(there)
    if named is None or (here.file, here.function) != (there.file, there.function):
        return True
    known = _Inputs(reading.frame, here, there, again=reading.read.after_back_edge).of(named)
    return not any(freeing.comes_to(held, tensor) for tensor in known)


class _Inputs:
    """Finds the tensors that an expression names, where nothing stores the names before then."""

    def __init__(self, frame: FrameType, here: Site, there: Site, *, again: bool) -> None:
        self._objects = Objects(frame)
        loops = loops_around(here.file, here.line) if again else []
        region = source.function_around(here)
        self._stored = {
            target
            for statement in source.statements_of(region)
            if here.line <= statement.lineno <= there.line
            or (loops and source.spans(loops[-1], statement.lineno))
            for target in changes.targets_of(statement)
        }

    def of(self, node: ast.expr) -> Iterator[Tensor]:
        """Yield the tensors that are known."""
        match node:
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for each in elements:
                    yield from self.of(each)
            case ast.Starred(value=inner):
                yield from self.of(inner)
            case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _SAME:
                yield from self.of(inner)
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[], keywords=[]):
                yield from _given_by(self._find(owner), method)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                yield from _tensors_in(self._find(node))
            case _:
                pass

    def _find(self, node: ast.expr) -> Any:
        path = ast.unparse(node)
        is_stored = any(path == each or is_part(path, each) for each in self._stored)
        return MISSING if is_stored else self._objects.find(path)


def _given_by(owner: Any, method: str) -> Iterator[Tensor]:
    """Yield what a method of an object gives that runs none of the user's code."""
    if type(owner) in (dict, OrderedDict) and method == "values":
        yield from _tensors_in([*dict.values(owner)])
    elif isinstance(owner, Module) and method == "parameters" and _is_torchs(owner, method):
        for each in Module.modules(owner):
            held = object.__getattribute__(each, "__dict__")["_parameters"]
            yield from (p for p in held.values() if derives(type(p), Parameter))


def _is_torchs(module: Module, method: str) -> bool:
    return attribute(module, method) is attribute(Module, method)


def _tensors_in(found: Any) -> Iterator[Tensor]:
    each = found[:_MOST_INPUTS] if type(found) in (list, tuple) else [found]
    yield from (one for one in each if derives(type(one), Tensor))
