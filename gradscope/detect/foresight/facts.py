"""Says what conditions ask for, and what iterators still give, from the objects of one frame."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, TypeAlias

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from gradscope.code import names, source
from gradscope.code.liveness import MISSING, Opaque, is_exactly, is_plain
from gradscope.detect.foresight.objects import Objects, attribute, follow, function_of, submodules
from gradscope.program.iterators import on_stack
from gradscope.program.layouts import class_bases, class_namespace, derives, is_a, user_functions
from gradscope.program.sites import USER, owner_of
from gradscope.program.tensors import shape_of
from gradscope.program.variables import local_variables
from gradscope.torch_private import LOADER_ITERATORS

Left: TypeAlias = tuple[float, float]
"""How many elements are left, at least and at most."""

Again: TypeAlias = Callable[[Any], bool | None]
"""Tells whether a generator will yield once more, as far as that is known."""

SIZED = (list, tuple, dict, set, frozenset, deque, str, bytes, range, OrderedDict)
_UNKNOWN: Left = (0, math.inf)
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
_EMPTY: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), range(0), "", deque())
_COUNTED = (
    *(type(iter(each)) for each in _EMPTY),
    *(type(reversed([])), type(reversed(range(0))), type(iter(range(2**70)))),
)
_INDEXED = tuple(type(iter(each)) for each in _EMPTY if type(each) in (list, tuple, range))


def left_in(found: Any, again: Again) -> Left:
    """Return how many elements an iterator or a container gives from here on."""
    kind = type(found)
    if is_exactly(found, *SIZED):
        return _exactly(len(found))
    if is_exactly(found, *_COUNTED):
        return _exactly(operator.length_hint(found))
    if is_exactly(found, itertools.count, itertools.cycle):
        return math.inf, math.inf
    if is_exactly(found, enumerate, zip, map):
        known = [left_in(inner, again) for inner in _inner(found)]
        return (min(k[0] for k in known), min(k[1] for k in known)) if known else _UNKNOWN
    if kind is reversed:
        state = found.__reduce__()
        return _exactly(state[2] + 1 if len(state) > 2 else 0)
    if kind is GeneratorType:
        return _of_generator(found, again)
    if is_exactly(found, *_LISTS):
        namespace = object.__getattribute__(found, "__dict__")
        return _exactly(len(namespace["_modules"]) + len(namespace["_parameters"]))
    if is_exactly(found, torch.Tensor, torch.nn.Parameter):
        shape = shape_of(found)
        return _exactly(shape[0]) if shape else _UNKNOWN
    return _of_loader(found, kind, again)


def _exactly(number: float) -> Left:
    return number, number


def _inner(found: Any) -> tuple[Any, ...]:
    """Return the iterators that an ``enumerate``, ``zip`` or ``map`` takes its elements from."""
    state: tuple[Any, ...] = found.__reduce__()[1]
    if type(found) is enumerate:
        return state[:1]
    return state[1:] if type(found) is map else state


def element_of(found: Any, ahead: int) -> Any:
    """Return the element that comes after ``ahead`` others; MISSING where it is not known."""
    kind = type(found)
    if is_exactly(found, list, tuple, range):
        return found[ahead] if ahead < len(found) else MISSING
    if is_exactly(found, *_INDEXED):
        _, of, *place = found.__reduce__()
        # From Python 3.12 on what is left of a range is a range of its own, without a place.
        index = (place[0] if place and place[0] is not None else 0) + ahead
        return element_of(of[0], index) if of else MISSING
    if kind is enumerate:
        inner, number = found.__reduce__()[1]
        return number + ahead, element_of(inner, ahead)
    if kind is zip:
        return tuple(element_of(inner, ahead) for inner in _inner(found))
    return MISSING


def _of_generator(generator: Any, again: Again) -> Left:
    """Return what is left in a generator: exactly in torch's samplers."""
    if generator.gi_frame is None:
        return 0, 0
    code = generator.gi_code
    known: dict[str, Any] = dict(local_variables(generator.gi_frame))
    if code is BatchSampler.__iter__.__code__:
        size, drops = known["self"].batch_size, known["self"].drop_last
        if "sampler_iter" not in known:  # it loops over the sampler, as before torch 2.6
            if not generator.gi_suspended:
                return _UNKNOWN
            if known["idx_in_batch"] != size:  # this batch was the last, and the loop is over
                return 0, 0
            known["sampler_iter"] = on_stack(generator.gi_frame, 0)
        least, most = left_in(known["sampler_iter"], again)
        if drops:
            return least // size, most // size
        return _up(least / size), _up(most / size)
    if code is RandomSampler.__iter__.__code__ and generator.gi_yieldfrom is not None:
        least, most = left_in(generator.gi_yieldfrom, again)
        sampler = known["self"]
        ends = not sampler.replacement and sampler._num_samples is None
        return least, most if ends else math.inf
    more = again(generator)
    return (1 if more else 0), (0 if more is False else math.inf)


def _up(number: float) -> float:
    return number if number == math.inf else math.ceil(number)


def _of_loader(found: Any, kind: type, again: Again) -> Left:
    """Return how many batches a loader, or an iterator over one, still has."""
    namespace = object.__getattribute__(found, "__dict__") if is_exactly(found, *_LOADING) else {}
    if kind is DataLoader:
        return _batches(namespace)
    if namespace.get("_dataset_kind") != 0:  # of an IterableDataset only the user's code knows
        return _UNKNOWN
    waiting = namespace.get("_tasks_outstanding", 0)
    least, most = left_in(namespace.get("_sampler_iter"), again)
    return least + waiting, most + waiting


_LOADING = (DataLoader, *LOADER_ITERATORS)


def _batches(loader: dict[str, Any]) -> Left:
    sampler, size = loader.get("sampler"), loader.get("batch_size")
    if not is_exactly(sampler, SequentialSampler, RandomSampler) or type(size) is not int:
        return _UNKNOWN
    rows = _rows(object.__getattribute__(sampler, "__dict__").get("data_source"))
    if rows is None:
        return _UNKNOWN
    return _exactly(rows // size if loader.get("drop_last") else math.ceil(rows / size))


def _rows(dataset: Any) -> int | None:
    kind = type(dataset)
    if is_exactly(dataset, list, tuple, range):
        return len(dataset)
    if kind is TensorDataset:
        shape = shape_of(dataset.tensors[0])
        return shape[0] if shape else None
    return _rows(dataset.indices) if kind is Subset else None


_MOST_KEYS = 1_000
_WITH_PARAMETERS = ("parameters", "named_parameters", "state_dict")
_ASKED = ("__getattr__", "__getattribute__")
_DESCRIBES = ("__get__", "__set__", "__delete__")


class FrameFacts:
    """What is known in a frame; it holds the frame's objects: to be dropped after the look."""

    def __init__(self, objects: Objects, again: Again, frame: FrameType | None = None) -> None:
        self._frame = frame
        self._objects = objects
        self._again = again
        self.changeable, defined = _stored_and_defined(objects.file)
        self.defined = defined | _defined_in_modules(len(sys.modules))

    def within(self, resolve: Any) -> FrameFacts:
        """Return what is known in a function that a call in the frame runs."""
        return FrameFacts(resolve.objects, self._again)

    def find(self, path: str, *, glob: bool = False) -> Any:
        """Return what a path of the frame stands for; ``glob``: of its module."""
        root, parts = names.split(path) or ("", [])
        found = self._objects.module.get(root, MISSING) if glob else self._objects.find(root)
        found = _builtins().get(root, MISSING) if found is MISSING else found
        return _shown(follow(found, parts, quiet))

    def part(self, owner: Any, rest: str) -> Any:
        """Return an attribute or element of an object."""
        return _shown(follow(owner, [rest], quiet))

    def lacks(self, owner: Any, name: str) -> bool:
        """Return whether it is known that an object has no attribute of this name."""
        if is_a(owner, type, ModuleType, torch.Tensor):
            return False
        spaces = [class_namespace(base) for base in class_bases(type(owner))]
        asked = {space[each] for space in spaces for each in _ASKED if each in space}
        plain = {object.__getattribute__, torch.nn.Module.__getattr__}
        return asked <= plain and follow(owner, [f".{name}"]) is MISSING

    def truth(self, found: Any) -> bool | None:
        """Return whether an object counts as true."""
        size = self.size(found)
        if size is not None:
            return bool(size)
        spaces = [class_namespace(base) for base in class_bases(type(found))]
        says = any("__bool__" in space or "__len__" in space for space in spaces)
        return None if says else True

    def size(self, found: Any) -> int | None:
        """Return the length of a container."""
        return len(found) if is_exactly(found, *SIZED) else None

    def has(self, container: Any, found: Any) -> bool | None:
        """Return whether something plain is in a container."""
        if not is_exactly(container, *SIZED) or len(container) > _MOST_KEYS:
            return None
        if is_exactly(container, str, bytes) or not all(map(is_plain, [*container])):
            return None
        try:
            return found in container
        except TypeError:  # not hashable
            return None

    def is_a(self, found: Any, kind: Any) -> bool | None:
        """Return what ``isinstance`` says of a class whose metaclass does not decide it."""
        if type(kind) is not type:
            return None
        return derives(type(found), kind)

    def is_compared_by_identity(self, found: Any) -> bool:
        """Return whether ``==`` asks for nothing but identity."""
        spaces = (class_namespace(base) for base in class_bases(type(found)))
        says = next((space["__eq__"] for space in spaces if "__eq__" in space), None)
        return says is object.__eq__

    def peek(self, source: Any, ahead: int) -> tuple[bool | None, Any]:
        """Return whether an iterator or container has that many elements and one more; and that."""
        found = source.value if type(source) is Opaque else source
        least, most = left_in(found, self._again)
        if least <= ahead:
            return (False if most <= ahead else None), MISSING
        return True, _element(element_of(found, ahead))

    def is_finite(self, source: Any) -> bool:
        """Return whether it is known how many elements an iterator or container has."""
        least, most = left_in(source.value if type(source) is Opaque else source, self._again)
        return least == most < math.inf

    def gives(self, owner: Any, method: str) -> bool | None:
        """Return whether what a method of an object iterates over has any element."""
        if is_exactly(owner, dict, OrderedDict):
            return bool(owner) if method in ("items", "keys", "values") else None
        if not is_a(owner, torch.nn.Module) or method not in _WITH_PARAMETERS:
            return None
        if attribute(owner, method) is not attribute(torch.nn.Module, method):
            return None  # one of the user's own
        return any(
            object.__getattribute__(each, "__dict__")["_parameters"]
            for _, each in submodules(owner, "")
        )

    def running(self, depth: int) -> Any:
        """Return the iterator of a loop of the frame, at a depth of its stack."""
        found = MISSING if self._frame is None else on_stack(self._frame, depth)
        return MISSING if found is MISSING else Opaque(found)

    def is_transparent(self, path: str) -> bool:
        """Return whether what is called is known, and no code of the program's."""
        found = self._objects.find(path)
        if found is MISSING:
            return path in _builtins()
        if function_of(found) is not None:
            return False
        if is_a(found, FunctionType):
            return owner_of(found.__code__) != USER
        if is_a(found, torch.nn.Module):
            return function_of(attribute(found, "forward")) is None
        return is_a(found, BuiltinFunctionType, type, MethodType, torch.optim.Optimizer)


def quiet(owner: Any, part: str) -> Any:
    """Return a stored part of an object; MISSING where reading it may run the user's code."""
    if is_a(owner, torch.Tensor) and not part.startswith("[") and part != ".grad":
        return MISSING
    found = follow(owner, [part])
    if part.startswith("[") or found is MISSING or is_a(owner, ModuleType):
        return found
    if is_a(owner, type):
        return MISSING if _is_descriptor(found) else found
    spaces = [class_namespace(base) for base in class_bases(type(owner))]
    if any("__getattribute__" in space for space in spaces[:-1]):  # the last is of object
        return MISSING
    name = part[1:]
    on_class = next((space[name] for space in spaces if name in space), MISSING)
    return MISSING if on_class is not MISSING and _is_descriptor(on_class) else found


def _is_descriptor(found: Any) -> bool:
    spaces = [class_namespace(base) for base in class_bases(type(found))]
    return any(method in space for method in _DESCRIBES for space in spaces)


def _shown(found: Any) -> Any:
    return found if found is MISSING or is_plain(found) else Opaque(found)


def _element(found: Any) -> Any:
    is_tuple = type(found) is tuple and not is_plain(found)
    return tuple(map(_element, found)) if is_tuple else _shown(found)


def _builtins() -> dict[str, Any]:
    return __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)


@lru_cache(maxsize=1)
def _defined_in_modules(_: int) -> frozenset[str]:
    """Return the names of the functions and methods of the user's modules that are loaded."""
    return frozenset(function.__name__ for function in user_functions())


@lru_cache(maxsize=64)
def _stored_and_defined(file: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that functions of a file store for others, and those of the functions."""
    stored: set[str] = set()
    defined: set[str] = set()
    for node in source.parsed(file).nodes:
        match node.node:
            case ast.Global(names=found) | ast.Nonlocal(names=found):
                stored.update(found)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store() | ast.Del()):
                if not node.function.endswith(("__init__", "<module>")):
                    stored.add(name)
            case _:
                pass
    return frozenset(stored), frozenset(defined)
