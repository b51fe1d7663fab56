"""Takes elements: of containers, of iterators made ahead, and of live ones without moving them."""

from __future__ import annotations

import ast
import builtins
import collections
import copy
import functools
import gc
import itertools
import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from types import CodeType
from typing import Any, Final

from torch.utils import data

from gradscope.code.bytecode import MISSING
from gradscope.program.ahead import tensors
from gradscope.program.ahead import values as v
from gradscope.program.ahead.frames import frame_of
from gradscope.program.ahead.machine import OF_C, Machine
from gradscope.program.containers import (
    GENERATOR_TYPES,
    GENERATORS,
    class_bases,
    class_name,
    class_namespace,
    is_a,
    is_exactly,
)
from gradscope.torch_private import LOADER_ITERATORS

_factory = collections.defaultdict.__dict__["default_factory"].__get__
# Elements of a range or iterator that are taken at once, as `list(range(n))` does: as many as one
# path may have steps. Loops take one element at a time, without this bound.
_MOST = 20_000
_STEPS_PER_ELEMENT = 10  # as long as it takes to see what one of many leads to
# Elements of something unknown: they stand for all. What the first leaves shows in the second:
#
#     for x in unknown():
#         h = cell(x, h)  # of the first x there is no graph before it
#         h.sum().backward()
_LAPS = 2
_LISTED = (list, tuple, str, bytes, range, deque)
_VIEWS: tuple[Any, ...] = type({}.keys()), type({}.values()), type({}.items())
_HASHED = (dict, set, frozenset, *_VIEWS)
# One container of each type whose iterator holds the container and a position. A range beyond 64
# bits has an iterator of a type of its own.
_EMPTY: tuple[Any, ...] = (
    *((), [], range(0), range(2**70), "", b"", {}, {}.values(), {}.items(), set(), deque()),
)
_OVER_SEQUENCES = tuple(type(iter(each)) for each in _EMPTY)
_BACKWARD: tuple[type, ...] = (type(reversed([])), reversed)
_TEE: Any = type(itertools.tee(())[0])
_LOADERS = (data.DataLoader, *LOADER_ITERATORS)


def elements_of(m: Machine, of: Any) -> list[Any]:
    """Return what a container of a built-in type holds; the keys of a dict."""
    found = m.overlay.view(of)
    base = v.base_of(found, *_LISTED, *_HASHED)
    if base is range and len(found) > _MOST:
        v.lost("a long range")
    each = [] if base is None else base.__iter__(found)
    return [*map(v.value_of, each)] if base in _HASHED else [*each]


def size_of(m: Machine, of: Any) -> int | None:
    """Return how many elements a value has; None if unknown."""
    if v.is_tensor(of):
        return tensors.rows(of)
    found = m.method_of_user(of, "__len__")
    size = plain_size(m, of) if found is MISSING else m.call(found, (of,), {})
    return size if type(size) is int else None


def plain_size(m: Machine, of: Any) -> int | None:
    """Return how many elements a container of a built-in type has; None for others."""
    payload = m.overlay.view(of)
    base = v.base_of(payload, *_LISTED, *_HASHED)
    return None if base is None else int(base.__len__(payload))


# elements by key


def item(m: Machine, of: Any, key: Any) -> Any:
    """Return an element."""
    if type(of) is v.Unknown:
        return v.Unknown(v.unsure(of.taints), of.why)
    if v.is_tensor(of):
        return tensors.operate(m, operator.getitem, (of, key), {})
    found = m.method_of_user(of, "__getitem__")
    if found is MISSING and (is_a(of, type) or is_exactly(of, types.GenericAlias)):
        return of
    return plain_item(m, of, key) if found is MISSING else m.call(found, (of, key), {})


def plain_item(m: Machine, of: Any, key: Any) -> Any:
    """Return an element of what is a container of a built-in type."""
    payload = m.overlay.view(of)
    # Only a class written in C has no module among its own names: this one is numpy's.
    if class_name(type(of)) == "ndarray" and "__module__" not in class_namespace(type(of)):
        is_number = of.ndim == 1 and type(key) is not slice
        return v.Instance(of.dtype.type if is_number else type(of))
    if not is_a(payload, *_LISTED, *_HASHED):
        return m.unknown(f"an element of {class_name(v.kind_of(of))}", of)
    if is_a(payload, dict):
        return _of_dict(m, of, payload, key)
    key = _index(key)
    base = v.base_of(payload, *_LISTED)
    if type(key) is v.Unknown or base is None:
        return unknown_element(m, elements_of(m, of))
    found = m.compute(base.__getitem__, payload, key)
    return v.OwnList(found) if type(key) is slice and base is list else found


def _index(key: Any) -> Any:
    if type(key) is slice:
        bounds = (key.start, key.stop, key.step)
        return key if all(map(v.is_plain, bounds)) else v.Unknown(why="a slice")
    return key if v.is_plain(key) else v.Unknown(why="an index")


def unknown_element(m: Machine, found: list[Any]) -> Any:
    """Return one of several values, which one is not known: it leads there if all of them do."""
    if len(found) == 1:
        return found[0]
    each = [m.held(one) for one in found]
    m.steps += len(found) * _STEPS_PER_ELEMENT
    is_sure = all(any(taint.sure for taint in taints) for taints in each)
    taints = v.union(each) if is_sure else v.unsure(v.union(each))
    if found and all(map(v.is_tensor, found)):
        return v.FutureTensor(taints)
    return v.Unknown(taints, "an element")


def _of_dict(m: Machine, of: Any, space: Any, key: Any) -> Any:
    if type(key) is v.Unknown:
        return unknown_element(m, [*dict.values(space)])
    name = v.key_of(key)
    if name in space:
        return dict.__getitem__(space, name)
    make = None
    if is_a(of, collections.defaultdict):
        make = _factory(of)
    elif type(of) is v.Instance:
        make = of.fields.get("default_factory")
    if make is not None:
        value = m.overlay.to_write(of)[name] = m.call(make, (), {})
        return value
    missing = m.method_of_user(of, "__missing__")
    if missing is not MISSING:
        return m.call(missing, (of, key), {})
    if not is_known_key(m, key):  # it may equal one that is there
        return unknown_element(m, [*dict.values(space)])
    return m.throw(KeyError, key)


def set_item(m: Machine, of: Any, key: Any, value: Any) -> None:
    """Store an element."""
    if type(of) is v.Unknown:
        m.doubt_of(value, f"an element of {of.why}")
        return
    if v.is_tensor(of):
        tensors.in_place(m, of, (value,), {})
        return
    found = m.method_of_user(of, "__setitem__")
    if found is not MISSING:
        m.call(found, (of, key, value), {})
    else:
        set_plain_item(m, of, key, value)


def set_plain_item(m: Machine, of: Any, key: Any, value: Any) -> None:
    """Store an element in what is a container of a built-in type."""
    space = m.overlay.to_write(of)
    if is_a(space, dict):
        if type(key) is v.Unknown:
            key = object()  # whichever it is, it comes on top
        space[v.key_of(key)] = value
        return
    if type(_index(key)) is v.Unknown:
        m.doubt_of((value, of), "an element of an unknown index")
        return
    m.compute(operator.setitem, space, key, drain(m, value) if type(key) is slice else value)


def compares_by_identity(m: Machine, value: Any) -> bool:
    """Return whether ``==`` asks for nothing but identity."""
    return v.is_tensor(value) or m.lookup(v.kind_of(value), "__eq__") is object.__eq__


def is_known_key(m: Machine, key: Any) -> bool:
    """Return whether a key equals what ``key_of`` gives the same for, and nothing else."""
    if type(key) is tuple:
        return all(is_known_key(m, each) for each in key)
    is_unknown = type(key) is v.Unknown
    return v.is_plain(key) or (not is_unknown and compares_by_identity(m, key))


# iterators


def iterator(m: Machine, of: Any) -> Any:
    """Return what ``iter`` gives."""
    if is_exactly(of, v.Elements, v.Suspended):
        return of
    if type(of) is v.Unknown:
        return of_unknown(m, lambda: v.Unknown(v.unsure(of.taints), of.why), of)
    if v.is_tensor(of):
        return _rows(m, of)
    found = m.method_of_user(of, "__iter__")
    if found is not MISSING and not is_exactly(of, *_LOADERS):
        given = m.call(found, (of,), {})
        return given if given is of else iterator(m, given)
    if is_a(m.overlay.view(of), *_LISTED, *_HASHED):
        return over(m, of)
    if is_exactly(of, *GENERATOR_TYPES):
        return resumed(m, of)
    if is_exactly(of, *_LOADERS):
        is_new = type(of) is data.DataLoader
        return _of_loader(m, of) if is_new else m.iterators.known(of, lambda _: _of_loader(m, of))
    if m.lookup(v.kind_of(of), "__next__") is not MISSING:
        if m.method_of_user(of, "__next__") is not MISSING:
            return of
        return m.iterators.known(of, lambda _: _continued(m, of))
    if m.method_of_user(of, "__getitem__") is not MISSING:
        return m.call(Sequence.__iter__, (of,), {})
    return iterator(m, m.unknown(f"iterating over {class_name(v.kind_of(of))}", of))


def over(m: Machine, of: Any, start: int = 0, step: int = 1) -> v.Elements:
    """Return an iterator over a sequence, which sees what is added to it meanwhile."""
    base = v.base_of(m.overlay.view(of), *_LISTED)
    if base is None:
        return v.Elements(elements_of(m, of), of)

    def elements() -> Iterator[Any]:
        place = start
        while 0 <= place < base.__len__(found := m.overlay.view(of)):
            yield base.__getitem__(found, place)
            place += step

    return v.Elements(elements(), of)


def of_values(*found: Any) -> v.Elements:
    """Return an iterator over these values."""
    return v.Elements(found, *found)


def of_unknown(m: Machine, make: Callable[[], Any], *holds: Any) -> v.Elements:
    """Return an iterator over what is not known: it may give one or two, or nothing."""
    laps = itertools.takewhile(m.decide, range(1, _LAPS + 1))
    return v.Elements((make() for _ in laps), *holds)


class _Left:
    """What is left of an iterator of the program's, for Python's own iterators to go through."""

    def __init__(self, m: Machine, of: Any) -> None:
        self._machine, self._each = m, iterator(m, of)

    def __iter__(self) -> _Left:
        return self

    def __next__(self) -> Any:
        try:
            return advance(self._machine, self._each)
        except v.Exhausted:
            raise StopIteration from None


EACH_OF: Final = itertools.chain.from_iterable
_GIVEN: Final = (
    ("i", "zip cycle pairwise product zip_longest"),
    ("ip", "enumerate batched combinations combinations_with_replacement islice permutations"),
    ("ai", "filter dropwhile filterfalse takewhile"),
    *(("fi", "map"), ("fs", "starmap"), ("if", "accumulate"), ("it", "compress"), ("op", "repeat")),
    ("p", "count"),
)
ITERATORS: Final[dict[Any, str]] = {EACH_OF: "e"} | {
    found: given
    for given, names in _GIVEN
    for name in names.split()
    if (found := getattr(itertools, name, vars(builtins).get(name))) is not None
}
"""What Python's own iterators are given, the last for all that follow: by the keys of _TAKEN."""
_NAMED: Final = {"func": "f", "iterable": "i", "initial": "o", "fillvalue": "o"}
_TAKEN: Final[dict[str, Callable[[Machine, Any], Any]]] = {
    "a": lambda m, f: lambda one: m.truth(one if f is None else m.call(f, (one,), {})),
    "e": lambda m, of: (_Left(m, one) for one in _Left(m, of)),
    "f": lambda m, f: lambda *given: m.call(operator.add if f is None else f, given, {}),
    "i": _Left,
    "o": lambda m, of: of,
    "p": lambda m, of: of,
    "s": lambda m, of: (tuple(drain(m, one)) for one in _Left(m, of)),
    "t": lambda m, of: map(m.truth, _Left(m, of)),
}
"""What Python's own iterators are handed for it: p is plain, or it is not known what they give."""


def lazily(m: Machine, kind: Any, given: v.Given, named: v.Named) -> v.Elements:
    """Return what one of Python's own iterators gives of what is left of the program's."""
    if kind is itertools.accumulate and len(given) == 1:
        named = {"func": None, **named}
    kinds = ITERATORS[kind].ljust(len(given), ITERATORS[kind][-1])
    each = [*zip(kinds, given, strict=False)]
    each += [(_NAMED.get(name, "p"), one) for name, one in named.items()]
    if any(how == "p" and not v.is_plain(one) for how, one in each):
        return of_unknown(m, lambda: v.Unknown(v.unsure(m.held(given)), kind.__name__), *given)
    found = [_TAKEN[how](m, one) for how, one in each]
    made = kind(*found[: len(given)], **dict(zip(named, found[len(given) :], strict=True)))
    return v.Elements(made, made, *given)


def chained(m: Machine, *iterables: Any) -> v.Elements:
    """Return what ``chain`` gives."""
    return lazily(m, EACH_OF, (iterables,), {})


def _rows(m: Machine, of: Any) -> v.Elements:
    count = tensors.rows(of)
    if count is None:
        return of_unknown(m, lambda: tensors.part(m, of, 0), of)
    return v.Elements((tensors.part(m, of, at) for at in range(count)), of)


def _continued(m: Machine, of: Any) -> Any:
    if is_exactly(of, *_OVER_SEQUENCES, *_BACKWARD):
        return _over_sequence(m, of)
    if is_exactly(of, enumerate, zip, map, filter):
        kind, given = of.__reduce__()[:2]
        return lazily(m, kind, given, {})
    inside = [each for each in gc.get_referents(of) if not is_a(each, type)]
    if is_exactly(of, itertools.count) and all(map(v.is_plain, inside)):
        return m.call(itertools.count, ast.literal_eval(f"{repr(of)[len('count') : -1]},)"), {})
    if is_exactly(of, itertools.repeat):
        left = operator.length_hint(of, -1)
        return m.call(itertools.repeat, (gc.get_referents(of)[-1], *(left,) * (left >= 0)), {})
    if is_exactly(of, _TEE) and sys.version_info < (3, 12):
        return _teed(m, of)
    if class_name(type(of)) == "async_generator_asend":
        return next_awaitable(m, inside[0])
    if is_exactly(of, itertools.accumulate):
        each, function, *total = _parts(of)
        found = lazily(m, itertools.accumulate, (chained(m, total, each), function), {})
        for _ in total:
            next(found.elements)  # it was given before
        return found
    if is_exactly(of, itertools.pairwise) and any(map(is_iterator, inside)):
        source, *held = _parts(of)  # the element that it gave last, then what it reuses
        return lazily(m, itertools.pairwise, (chained(m, held[:1], source),), {})
    if is_exactly(of, itertools.starmap):
        return lazily(m, itertools.starmap, tuple(_parts(of)[::-1]), {})
    if is_exactly(of, itertools.chain) and inside:  # it may have one under way, and has the rest
        is_first = type(inside[0]) is type(iter(())) or len(inside) == 1
        *active, rest = inside[::-1] if is_first else inside
        return chained(m, *active, lazily(m, EACH_OF, (rest,), {}))
    if is_exactly(of, itertools.cycle):
        saved = [one for each in inside if type(each) is list for one in each]
        rest = [one for each in inside if type(each) is not list for one in drain(m, each)]
        return chained(m, rest, lazily(m, itertools.cycle, ([*saved, *rest],), {}))
    if is_exactly(of, itertools.islice) and sys.version_info < (3, 12):  # later ones warn
        made = of.__reduce__()
        (source, start, *rest), at = made[1], made[2] if len(made) > 2 else 0
        bounds = (start - at, *(None if each is None else each - at for each in rest[:1]))
        return lazily(m, itertools.islice, (source, *bounds, *rest[1:]), {})
    if is_exactly(of, itertools.islice, itertools.takewhile, itertools.chain):
        source = next((one for one in inside if hasattr(type(one), "__next__")), None)
        if source is not None:
            some = lazily(m, itertools.islice, (of_unknown(m, lambda: source, source), 1), {})
            return lazily(m, EACH_OF, (some,), {})
    return iterator(m, m.unknown(f"iterating over {class_name(type(of))}", *inside))


def _parts(of: Any) -> list[Any]:
    """Return what an iterator of Python's own takes from and calls, the iterators first."""
    if not is_iterator(of) or not type(of).__flags__ & OF_C or is_exactly(of, *GENERATOR_TYPES):
        return []
    if is_exactly(of, enumerate, zip, map, filter):
        inside = [*of.__reduce__()[1]]
    else:
        inside = [each for each in gc.get_referents(of) if not is_a(each, type)]
    if is_exactly(of, itertools.accumulate) and not any(map(_is_called, inside)):
        inside.insert(0, operator.add)
    return sorted(inside, key=lambda each: (not is_iterator(each), not _is_called(each)))


def _is_called(value: Any) -> bool:
    return callable(value) and not is_iterator(value) and not v.is_tensor(value)


def is_iterator(value: Any) -> bool:
    """Return whether a live value is an iterator."""
    return any("__next__" in class_namespace(base) for base in class_bases(type(value)))


def runs(value: Any, code: CodeType | None) -> bool:
    """Return whether a live value runs this code where it is called or gives its next element."""
    if is_exactly(value, types.MethodType, functools.partial):
        return runs(value.__func__ if type(value) is types.MethodType else value.func, code)
    if is_exactly(value, types.FunctionType):
        return bool(value.__code__ is code)
    if is_exactly(value, types.GeneratorType):
        return value.gi_code is code and value.gi_running
    for base in class_bases(type(value)):
        own = [class_namespace(base).get(name) for name in ("__next__", "__call__")]
        if any(type(each) is types.FunctionType and each.__code__ is code for each in own):
            return True
    return any(runs(each, code) for each in _parts(value))


def give(m: Machine, of: Any, code: CodeType | None, value: Any) -> None:
    """Have a live iterator go on from where the code that runs within it has given a value."""
    parts = _parts(of)
    part = next((each for each in parts if runs(each, code)), None)
    if part is None or (is_exactly(of, map, itertools.starmap) and not is_iterator(part)):
        m.iterators[id(of)] = of, chained(m, (value,), iterator(m, of))
    elif is_iterator(part):
        if part is not parts[0] and not is_exactly(of, itertools.chain):
            v.lost(f"{class_name(type(of))}, partly read")
        give(m, part, code, value)
    elif is_exactly(of, itertools.accumulate):
        given = (chained(m, (value,), parts[0]), part)
        m.iterators[id(of)] = of, lazily(m, itertools.accumulate, given, {})
    else:
        v.lost(f"{class_name(type(of))}, partly read")


def _teed(m: Machine, of: Any) -> v.Elements:
    """Of ``tee``: the elements that another of them has taken, then those that all will take."""
    made = of.__reduce__()[2]
    last, at, taken = made[0], made[1], []
    while True:
        source, values, following = last.__reduce__()[1]
        taken += values[at:]
        if following is None:
            break
        last, at = following, 0
    rest = m.iterators.known(last, lambda _: shared(m, iterator(m, source)))
    return chained(m, taken, rest())


def shared(m: Machine, source: Any) -> Callable[[], v.Elements]:
    """Return what makes iterators that share what they take from one."""
    first = itertools.tee(_Left(m, source))[0]

    def one() -> v.Elements:
        each = copy.copy(first)
        return v.Elements(each, each, source)

    return one


def _over_sequence(m: Machine, of: Any) -> Any:
    """Of an iterator over a sequence: what it would be pickled as says where it stands."""
    made = of.__reduce__()
    given, place = made[1], made[2] if len(made) > 2 else None
    if not given:
        return of_values()
    if type(of) is type(iter(deque())):
        return over(m, given[0], given[1])
    if is_exactly(of, *_BACKWARD):
        size = size_of(m, given[0])
        return over(m, given[0], (size or 0) - 1 if place is None else place, -1)
    if type(given[0]) is list and place is None:
        return of_values(*given[0])  # of a dict or set: a list of what is left
    return over(m, given[0], place or 0)


def _of_loader(m: Machine, of: Any) -> v.Elements:
    """Return an iterator over as many unknown batches as a loader still has."""
    try:
        count = size_of(m, of)
    except v.Raised:
        count = None
    if count is None:
        return of_unknown(m, lambda: v.Unknown(why="a batch"))
    left = range(count - m.namespace(of).get("_num_yielded", 0))
    return v.Elements(v.Unknown(why="a batch") for _ in left)


def left_in(each: Any) -> int | None:
    """Return how many elements a live iterator still has; None if that is not known."""
    if is_exactly(each, *_OVER_SEQUENCES):  # to ask a `reversed` may run code of the program's
        return operator.length_hint(each)
    if is_exactly(each, enumerate, zip):
        inside = [left for one in _parts(each) if (left := left_in(one)) is not None]
        return min(inside, default=None)
    return None


def advance(m: Machine, each: Any) -> Any:
    """Return the next element; raise Exhausted where there is none."""
    m.steps += 1
    if m.steps > m.most_steps:
        v.lost("too many steps")
    if type(each) is v.Elements:
        try:
            return next(each.elements)
        except StopIteration as over:
            raise v.Exhausted(over.value) from None
    if type(each) is v.Suspended:
        return send(m, each, None)
    is_live = not is_a(each, v.FutureValue) and m.method_of_user(each, "__next__") is MISSING
    if is_live or type(each) is v.Unknown:
        return advance(m, m.iterators.known(each, lambda _: iterator(m, each)))
    try:
        return m.method(each, "__next__")
    except v.Raised as raised:
        if m.is_instance(raised.value, StopIteration) is True:
            raise v.Exhausted(m.attribute(raised.value, "value", None)) from None
        raise


def drain(m: Machine, of: Any) -> list[Any]:
    """Return all elements that are left."""
    if type(of) is v.Unknown:
        return [v.Unknown(v.unsure(of.taints), of.why) for _ in range(_LAPS)]
    if is_exactly(of, list, tuple, dict, set, frozenset, v.OwnList):
        return elements_of(m, of)
    each = iterator(m, of)
    found: list[Any] = []
    try:
        while len(found) < _MOST:
            found.append(advance(m, each))
    except v.Exhausted:
        return found
    return v.lost("an endless iterator")  # type: ignore[no-any-return]


def unpack(m: Machine, of: Any, count: int, *, more: bool = False) -> list[Any]:
    """Return so many elements, or at least so many."""
    if type(of) is v.Unknown:
        return [v.Unknown(v.unsure(of.taints), of.why) for _ in range(count + more)]
    if v.is_tensor(of) and (more or tensors.rows(of) is None):
        return [tensors.part(m, of, at) for at in range(count + more)]
    found = drain(m, of)
    if len(found) < count or (len(found) > count and not more):
        m.throw(ValueError, "unpack")
    return found


def as_dict(m: Machine, of: Any) -> dict[Any, Any]:
    """Return a mapping as a dict, with keys as ``key_of`` gives them."""
    payload = m.overlay.view(of)
    if is_a(payload, dict):
        return dict(dict.items(payload))
    if type(of) is v.Unknown:
        if of.taints:
            v.lost(f"a mapping of {of.why}")
        return {}
    if m.lookup(v.kind_of(of), "keys") is not MISSING:
        return {v.key_of(key): item(m, of, key) for key in drain(m, m.method(of, "keys"))}
    pairs = [unpack(m, pair, 2) for pair in drain(m, of)]
    return v.OwnDict((v.key_of(key), value) for key, value in pairs)


# generators


def resumed(m: Machine, generator: Any) -> Any:
    """Return what stands for a generator or coroutine."""
    if type(generator) is v.Suspended:
        return generator
    return m.iterators.known(generator, lambda _: _suspended(m, generator))


def _suspended(m: Machine, generator: Any) -> Any:
    live = getattr(generator, GENERATORS[id(type(generator))][0])
    if live is None:
        return v.Suspended(None, "done")
    running = m.suspended.get(id(live))
    if running is not None and running.suspended is not None:
        return running.suspended
    frame = frame_of(live, waits=None)
    frame.suspended = v.Suspended(frame, "suspended")
    frame.index += 1
    frame.live = None
    return frame.suspended


def send(m: Machine, generator: Any, value: Any) -> Any:
    """Resume a generator; return what it yields, or raise Exhausted with what it returns."""
    if is_exactly(generator, v.Suspended, *GENERATOR_TYPES):
        return resume(m, resumed(m, generator), value)
    return advance(m, generator) if value is None else m.method(generator, "send", value)


def resume(m: Machine, generator: v.Suspended, value: Any) -> Any:
    """Enter a generator's frame again, with a value."""
    if generator.state == "done":
        raise v.Exhausted
    if generator.state == "running":
        v.lost("a generator that runs already")
    frame = generator.frame
    frame.stack.append(value)
    generator.state = "running"
    try:
        how, found = m.run(frame)
    except v.Raised:
        generator.state = "done"
        raise
    if how == "yield":
        generator.state = "suspended"
        return found
    generator.state = "done"
    raise v.Exhausted(found)


def next_awaitable(m: Machine, of: Any) -> Any:
    """Return what ``anext`` gives of an asynchronous generator: something to wait for."""
    generator = resumed(m, of)

    def awaited() -> Generator[Any, None, Any]:
        while True:
            try:
                found = resume(m, generator, None)
            except v.Exhausted:
                return m.throw(StopAsyncIteration)
            if type(found) is v.Wrapped:
                return found.value
            yield found  # it waits for something itself

    return v.Elements(awaited(), generator)
