"""What one Python object holds and under which name, read without running a line of the user's code."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from gradscope.program import layouts
from gradscope.program.layouts import Layout
from gradscope.program.sites import USER, owner_of
from gradscope.program.variables import is_module_level, local_variables

Kind = Literal[
    "variable",  # of a frame, module or class: where every path starts
    "attribute",
    "item",  # of a dict or sequence; the key is the key or index
    "entry",  # of a dict whose key cannot be written down, a set or a queue; the key names a type, or is None
    "key",  # itself a key of a dict
    "cell",  # a variable of an enclosing function, kept by a closure
    "default",  # of a parameter
    "cache",  # a result in a functools.lru_cache
    "hook",  # of a module or tensor; the key is the attribute that keeps the hooks
    "frame",  # of a generator or a traceback; the key is the function's name
    "inside",  # of an iterator or another wrapper that a path does not name
    "class",
    "globals",
]
Held = tuple[Kind, Any, Any]
"""How something is held, under which key, and what."""

_MANY_NAMES = 10_000
_MANY_RESULTS = 10_000
_LONGEST_TRACEBACK = 50

_GENERATORS: dict[type, tuple[str, str]] = {
    types.GeneratorType: ("gi_frame", "gi_yieldfrom"),
    types.CoroutineType: ("cr_frame", "cr_await"),
    types.AsyncGeneratorType: ("ag_frame", "ag_await"),
}
"""The attributes by which each gives out its frame, and what it waits for."""


_get_attribute = object.__getattribute__
_requires_grad = torch._C.TensorBase.__dict__["requires_grad"].__get__
_is_leaf = torch._C.TensorBase.__dict__["is_leaf"].__get__
_grad = torch._C.TensorBase.__dict__["grad"].__get__


class Contents:
    """Reads objects, large containers in part: ``cut`` then turns True."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.cut = False
        # A mode (set_default_device is one) would be called even for reading an attribute of a plain tensor.
        self._mode = torch._C._is_torch_function_mode_enabled()

    def of(self, holder: object) -> list[Held]:
        """All that ``holder`` holds, atoms included."""
        layout = layout_of(type(holder))
        held: list[Held] = []
        if layout.read is not None:
            layout.read(self, holder, held)
        elif layout.is_class:
            self._of_class(holder, held)
        if layout.fields:
            held = [
                ("attribute", layout.fields[key], value)
                for _, key, value in held
                if key < len(layout.fields)
            ]
        if layout.has_dict:
            self.attributes(_get_attribute(holder, "__dict__"), held)
        for name in layout.slots:
            try:
                held.append(("attribute", name, _get_attribute(holder, name)))
            except AttributeError:  # a slot never filled
                continue
        if layout.of_user and not layout.is_class:
            held.append(("class", None, type(holder)))
        return held

    def look_at(self, tensor: torch.Tensor) -> tuple[bool, bool]:
        """Whether a tensor holds a graph, told without a look at its ``grad_fn``, and whether it holds anything else:
        attributes, hooks, or a ``.grad`` with a graph of its own.
        """
        more = len(gc.get_referents(tensor)) > 1
        plain = not self._mode and id(type(tensor)) in _PLAIN
        if not (_requires_grad(tensor) if plain else self._ask(tensor, _requires_grad)):
            return False, more
        if not self._is_leaf(tensor):
            return True, more
        return False, more or self._grad_with_graph(tensor) is not None

    def _is_leaf(self, tensor: torch.Tensor) -> bool:
        try:
            return bool(self._ask(tensor, _is_leaf))
        except RuntimeError:  # a view that torch lets nobody use any more has a graph all the same
            return False

    def _grad_with_graph(self, leaf: torch.Tensor) -> torch.Tensor | None:
        grad: torch.Tensor | None = self._ask(leaf, _grad)
        return grad if grad is not None and self._ask(grad, _requires_grad) else None

    def _ask(self, tensor: torch.Tensor, get: Callable[[torch.Tensor], Any]) -> Any:
        if not self._mode and id(type(tensor)) in _PLAIN:
            return get(tensor)
        with torch._C.DisableTorchFunction():
            return get(tensor)

    def attributes(self, namespace: object, held: list[Held]) -> None:
        """Add what an instance's ``__dict__`` holds."""
        if type(namespace) is dict:
            held += [
                ("attribute", name, value) for name, value in self.items(namespace, _MANY_NAMES)
            ]

    def items(self, mapping: Any, most: int) -> list[tuple[Any, object]]:
        """Up to ``most`` items of a dict or one derived from it."""
        view = dict.items(mapping)
        try:
            if dict.__len__(mapping) <= most:
                return list(view)
            self.cut = True
            half = most // 2
            return [*itertools.islice(view, half), *itertools.islice(reversed(view), half)]
        except RuntimeError:  # another thread is changing it
            self.cut = True
            return []

    def _of_dict(self, holder: object, held: list[Held]) -> None:
        for key, value in self.items(holder, self.most):
            if _is_writable(key) or (type(key) is tuple and all(map(_is_writable, key))):
                held.append(("item", key, value))
            else:
                held.append(("entry", type(key).__name__, value))
                held.append(("key", None, key))

    def _of_list(self, holder: Any, held: list[Held]) -> None:
        self._sequence(list, holder, held)

    def _of_tuple(self, holder: Any, held: list[Held]) -> None:
        self._sequence(tuple, holder, held)

    def _of_deque(self, holder: Any, held: list[Held]) -> None:
        self._sequence(collections.deque, holder, held)

    def _sequence(self, base: Any, holder: Any, held: list[Held]) -> None:
        length, most = base.__len__(holder), self.most
        places: Iterable[int] = range(length)
        if length > most:
            self.cut = True
            ends = most // 4
            between = max(1, (length - 2 * ends) // (most - 2 * ends))
            # Python walks to the middle of a deque block by block.
            middle = range(0) if base is collections.deque else range(ends, length - ends, between)
            places = (*range(ends), *middle, *range(length - ends, length))
        get = base.__getitem__
        try:
            held += [("item", place, get(holder, place)) for place in places]
        except IndexError:  # another thread is emptying it
            self.cut = True

    def _of_set(self, holder: Any, held: list[Held]) -> None:
        base: Any = set if layouts.derives(type(holder), set) else frozenset
        self.cut |= base.__len__(holder) > self.most
        try:
            held += [
                ("entry", None, member)
                for member in itertools.islice(base.__iter__(holder), self.most)
            ]
        except RuntimeError:
            self.cut = True

    def _of_module(self, holder: object, held: list[Held]) -> None:
        """An ``nn.Module``: its sub-modules and buffers under the names by which it gives them out."""
        namespace = _get_attribute(holder, "__dict__")
        keyed = layouts.derives(type(holder), torch.nn.ModuleDict)
        for name, value in self.items(namespace, _MANY_NAMES):
            if type(value) is not dict and type(value) is not collections.OrderedDict:
                held.append(("attribute", name, value))
            elif not value:
                continue
            elif name in ("_parameters", "_buffers", "_modules"):
                for key, part in self.items(value, _MANY_NAMES):
                    if name == "_modules" and type(key) is str and key.isdigit():
                        held.append(("item", int(key), part))
                    else:
                        held.append(
                            ("item" if keyed and name == "_modules" else "attribute", key, part)
                        )
            elif type(name) is str and name.endswith("_hooks"):
                held += [("hook", name, hook) for _, hook in self.items(value, _MANY_NAMES)]
            else:
                held.append(("attribute", name, value))

    def _of_tensor(self, holder: torch.Tensor, held: list[Held]) -> None:
        # tensor.__dict__ would make an empty dict for every tensor looked at: see whether it has one.
        for part in gc.get_referents(holder):
            if type(part) is dict:
                self.attributes(part, held)
            elif type(part) is collections.OrderedDict:
                held += [
                    ("hook", "_backward_hooks", hook) for _, hook in self.items(part, self.most)
                ]
        if self._is_leaf(holder):  # asked of any other tensor, .grad warns
            grad = self._grad_with_graph(holder)
            if grad is not None:
                held.append(("attribute", "grad", grad))

    def _of_class(self, holder: Any, held: list[Held]) -> None:
        if not layouts.is_user_class(holder):
            return
        held += [
            ("attribute", name, value) for name, value in layouts.class_namespace(holder).items()
        ]
        held += [
            ("class", None, base)
            for base in layouts.class_bases(holder)[1:]
            if layouts.is_user_class(base)
        ]

    def _of_namespace(self, module: types.ModuleType, held: list[Held]) -> None:
        variables = layouts.module_variables(module)
        name = variables.get("__name__")
        if type(name) is str and layouts.is_user_module(name):
            held.append(("globals", None, variables))

    def _of_wrapper(self, holder: object, held: list[Held]) -> None:
        held += [("inside", None, part) for part in gc.get_referents(holder)]


def _of_function(contents: Contents, function: types.FunctionType, held: list[Held]) -> None:
    """Closure, defaults, attributes, and for the user's own functions the variables of their module."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            held.append(("cell", name, cell.cell_contents))
        except ValueError:  # not bound yet
            continue
    defaults = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    held += [("default", name, value) for name, value in zip(names, defaults, strict=True)]
    held += [("default", name, value) for name, value in (function.__kwdefaults__ or {}).items()]
    contents.attributes(function.__dict__, held)
    if owner_of(code) == USER:
        held.append(("globals", None, function.__globals__))


def _of_lru_cache(contents: Contents, cache: Any, held: list[Held]) -> None:
    """The results, and arguments, that a ``functools.lru_cache`` keeps: only the collector gives them out."""
    info = functools._lru_cache_wrapper.cache_info(cache)
    if info.maxsize is not None and info.currsize > _MANY_RESULTS:
        contents.cut = True
        return
    attributes = object.__getattribute__(cache, "__dict__")
    for part in gc.get_referents(cache):
        if type(part) is dict and part is not attributes:
            held += [("cache", None, result) for _, result in contents.items(part, contents.most)]
        elif part is not attributes:
            held.append(("cache", None, part))


def _of_generator(_: Contents, generator: Any, held: list[Held]) -> None:
    """A suspended generator, coroutine or asynchronous generator: its frame, and what it waits for."""
    frame, inner = _GENERATORS[type(generator)]
    if (suspended := getattr(generator, frame)) is not None:
        held.append(("frame", generator.__name__, suspended))
    held.append(("inside", None, getattr(generator, inner)))


def _of_frame(_: Contents, frame: types.FrameType, held: list[Held]) -> None:
    """A frame's variables, and for the user's own code those of its module."""
    if not is_module_level(frame):
        held += [("variable", name, value) for name, value in local_variables(frame)]
    if owner_of(frame.f_code) == USER:
        held.append(("globals", None, frame.f_globals))


def _of_traceback(_: Contents, traceback: types.TracebackType, held: list[Held]) -> None:
    """The frames of a traceback, from the one that caught the exception down to the one that raised it."""
    following: types.TracebackType | None = traceback
    for _number in range(_LONGEST_TRACEBACK):
        if following is None:
            return
        held.append(("frame", following.tb_frame.f_code.co_name, following.tb_frame))
        following = following.tb_next


def _is_writable(key: object) -> bool:
    return id(type(key)) in _WRITABLE


def _members(cls: Any, *names: str) -> Callable[[Contents, Any, list[Held]], None]:
    """A reader of attributes that ``cls``, a class of Python's own, defines in C: a subclass cannot get between."""
    getters = [(name, cls.__dict__[name].__get__) for name in names]

    def read(_: Contents, holder: object, held: list[Held]) -> None:
        held += [("attribute", name, get(holder)) for name, get in getters]

    return read


_WRITABLE = frozenset(id(cls) for cls in (str, int, float, bool, bytes, type(None)))

_WRAPPERS: tuple[Any, ...] = (
    *(enumerate, zip, map, filter, reversed, types.MappingProxyType, types.CellType),
    *(itertools.chain, itertools.cycle, itertools.islice, type(itertools.tee([])[0])),
    *map(
        type,
        (
            iter([]),
            iter(()),
            iter({}),
            iter({}.values()),
            iter({}.items()),
            iter(collections.deque()),
        ),
    ),
)

_Reader = Callable[["Contents", Any, list[Held]], None]
_BY_CLASS: tuple[tuple[Any, _Reader], ...] = (
    (torch.Tensor, Contents._of_tensor),
    (torch.nn.Module, Contents._of_module),
    (dict, Contents._of_dict),
    (list, Contents._of_list),
    (tuple, Contents._of_tuple),
    (collections.deque, Contents._of_deque),
    (set, Contents._of_set),
    (frozenset, Contents._of_set),
    (types.FunctionType, _of_function),
    (types.MethodType, _members(types.MethodType, "__func__", "__self__")),
    (types.BuiltinMethodType, _members(types.BuiltinMethodType, "__self__")),
    (staticmethod, _members(staticmethod, "__func__")),
    (classmethod, _members(classmethod, "__func__")),
    (property, _members(property, "fget", "fset", "fdel")),
    (functools.partial, _members(functools.partial, "func", "args", "keywords")),
    (BaseException, _members(BaseException, "__traceback__", "__cause__", "__context__", "args")),
    (functools._lru_cache_wrapper, _of_lru_cache),
    (types.FrameType, _of_frame),
    (types.TracebackType, _of_traceback),
    (types.ModuleType, Contents._of_namespace),
    *((cls, _of_generator) for cls in _GENERATORS),
    *((cls, Contents._of_wrapper) for cls in _WRAPPERS),
)
_READERS = {id(cls): read for cls, read in _BY_CLASS}
"""By id: a metaclass may define equality, and these classes live as long as the process."""

_layouts: dict[int, Layout] = {}
_LARGEST_CACHE = 5_000  # programs can make new classes for ever


def layout_of(cls: type) -> Layout:
    """The layout of a type; kept by id, as hashing a class may run its metaclass's code."""
    layout = _layouts.get(id(cls))
    if layout is None or layout.cls() is not cls:
        if len(_layouts) > _LARGEST_CACHE:
            _layouts.clear()
        bases = layouts.class_bases(cls)
        read = next((_READERS[id(base)] for base in bases if id(base) in _READERS), None)
        layout = _layouts[id(cls)] = Layout(cls, read)
    return layout


_PLAIN = frozenset(id(cls) for cls in (torch.Tensor, torch.nn.Parameter))
"""Tensors that no ``__torch_function__`` of the user's listens to."""
