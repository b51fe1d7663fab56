"""Tells how many elements an iterator still has, without taking one or running the user's code."""

from __future__ import annotations

import itertools
import math
import operator
from collections import OrderedDict, deque
from collections.abc import Callable
from types import GeneratorType
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

from gradscope.code.liveness import MISSING
from gradscope.program.iterators import on_stack
from gradscope.program.tensors import shape_of
from gradscope.program.variables import local_variables
from gradscope.torch_private import LOADER_ITERATORS

Left: TypeAlias = tuple[float, float]
"""How many elements are left, at least and at most."""

Again: TypeAlias = Callable[[Any], bool | None]
"""Decides whether a generator will yield once more, if that is known."""

SIZED = frozenset({list, tuple, dict, set, frozenset, deque, str, bytes, range, OrderedDict})
_UNKNOWN: Left = (0, math.inf)
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
_EMPTY: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), set(), range(0), "", deque())
_COUNTED = frozenset(type(iter(each)) for each in _EMPTY) | {
    type(reversed([])),
    type(reversed(range(0))),
    type(iter(range(2**70))),
}
_INDEXED = tuple(type(iter(each)) for each in _EMPTY if type(each) in (list, tuple, range))


def left_in(found: Any, again: Again) -> Left:
    """Return how many elements an iterator or a container gives from here on."""
    kind = type(found)
    if kind in SIZED:
        return _exactly(len(found))
    if kind in _COUNTED:
        return _exactly(operator.length_hint(found))
    if kind in (itertools.count, itertools.cycle):
        return math.inf, math.inf
    if kind in (enumerate, zip, map):
        known = [left_in(inner, again) for inner in _inner(found)]
        return (min(k[0] for k in known), min(k[1] for k in known)) if known else _UNKNOWN
    if kind is reversed:
        state = found.__reduce__()
        return _exactly(state[2] + 1 if len(state) > 2 else 0)
    if kind is GeneratorType:
        return _of_generator(found, again)
    if kind in _LISTS:
        namespace = object.__getattribute__(found, "__dict__")
        return _exactly(len(namespace["_modules"]) + len(namespace["_parameters"]))
    if kind in (torch.Tensor, torch.nn.Parameter):
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
    if kind in (list, tuple, range):
        return found[ahead] if ahead < len(found) else MISSING
    if kind in _INDEXED:
        _, of, *place = found.__reduce__()
        # From Python 3.12 on what is left of a range is a new range, without a place.
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
    namespace = object.__getattribute__(found, "__dict__") if kind in _LOADING else {}
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
    if type(sampler) not in (SequentialSampler, RandomSampler) or type(size) is not int:
        return _UNKNOWN
    rows = _rows(object.__getattribute__(sampler, "__dict__").get("data_source"))
    if rows is None:
        return _UNKNOWN
    return _exactly(rows // size if loader.get("drop_last") else math.ceil(rows / size))


def _rows(dataset: Any) -> int | None:
    kind = type(dataset)
    if kind in (list, tuple, range):
        return len(dataset)
    if kind is TensorDataset:
        shape = shape_of(dataset.tensors[0])
        return shape[0] if shape else None
    return _rows(dataset.indices) if kind is Subset else None
