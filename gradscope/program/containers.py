"""Reads what an object holds and under which names, without running any code of the user's.

It begins with what a class or a module says about itself.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import logging
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from traceback import walk_tb
from types import MappingProxyType, ModuleType
from typing import Any, TypeGuard, TypeVar

import torch

from gradscope.code.source import cell_of
from gradscope.model import Site
from gradscope.model.variable_paths import FrameOf, Kind
from gradscope.program.sites import USER, classify, owner_of
from gradscope.program.tensors import grad_of, is_held_leaf, requires_grad
from gradscope.program.variables import is_module_level, local_variables

_Kind = TypeVar("_Kind")

class_namespace: Callable[[type], MappingProxyType[str, object]] = type.__dict__["__dict__"].__get__
"""Returns the class's own ``__dict__``, past any metaclass of the user's."""

class_bases: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""Returns the class's ``__mro__``, past any metaclass of the user's."""

module_variables: Callable[[ModuleType], dict[str, Any]] = vars(ModuleType)["__dict__"].__get__
"""Returns the module's own ``__dict__``, past any ``__getattribute__`` of a lazy module."""

_class_qualname: Callable[[type], str] = type.__dict__["__qualname__"].__get__

_MACHINERY = frozenset({"__builtins__", "__loader__", "__spec__"})


def ids(*kinds: Any) -> frozenset[int]:
    """Return what tells classes without hashing them, which may run code of a metaclass's."""
    return frozenset(map(id, kinds))


_VALUES = ids(int, float, complex, bool, str, bytes, bytearray)

OPAQUE = _VALUES | ids(
    *(range, memoryview, type(None)),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.UntypedStorage),
    *(weakref.ref, weakref.ProxyType, logging.Logger, threading.local),
)
"""Types, with those derived from them, that hold no tensor or cannot be read quietly."""

_COMPLETE = ids(types.FunctionType, ModuleType, torch.nn.Module, torch.Tensor)
"""Types, with those derived from them, whose reader looks at the ``__dict__`` itself."""

_C_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)

_of_user: dict[str, bool] = {}


class Layout:
    """How to ``read`` the instances of a type, and whether they have a ``__dict__`` and slots."""

    def __init__(self, cls: type, read: Callable[..., Any] | None) -> None:
        self.cls = weakref.ref(cls)
        self.read = read
        bases = class_bases(cls)
        names = {name: own for base in bases[::-1] for name, own in class_namespace(base).items()}
        self.is_tensor = derives(cls, torch.Tensor)
        self.is_class = derives(cls, type)
        self.of_user = is_user_class(cls)
        self.fields = _fields(names) if derives(cls, tuple) else ()
        """The attributes of a named tuple."""
        is_own = (module_of(cls) + ".").startswith("gradscope.")
        hidden = is_own or any(id(base) in OPAQUE for base in bases)
        is_value = any(id(base) in _VALUES for base in bases)  # as the member of an enumeration
        is_read = any(id(base) in _COMPLETE for base in bases)
        whole = (hidden and not is_value) or self.is_class or is_read
        # Only C's own descriptor is trusted: a property named ``__dict__`` would run the user's
        # code.
        self.has_dict = not whole and is_exactly(names.get("__dict__"), *_C_DESCRIPTORS)
        self.slots = () if whole or "__slots__" not in names else tuple(_slots(names, bases))
        self.opaque = hidden or not (read or self.has_dict or self.slots or self.is_class)

    def in_slots(self, holder: object) -> Iterator[tuple[str, object]]:
        """Yield what an instance has in its slots, by their names."""
        for name in self.slots:
            with contextlib.suppress(AttributeError):  # a slot never filled
                yield name, object.__getattribute__(holder, name)


def _fields(names: dict[str, object]) -> tuple[str, ...]:
    fields = names.get("_fields")
    return fields if type(fields) is tuple and all(type(f) is str for f in fields) else ()


def _slots(names: dict[str, object], bases: tuple[type, ...]) -> Iterator[str]:
    for base in bases:
        namespace = class_namespace(base)
        if "__slots__" in namespace:
            for name, value in namespace.items():
                if type(value) is types.MemberDescriptorType and names[name] is value:
                    yield name


def class_name(cls: type) -> str:
    """Return the class's name as a user would write it where it is defined."""
    return _class_qualname(cls).rpartition("<locals>.")[2]


def module_of(cls: type) -> str:
    """Return the name of the class's module; empty where the class does not say."""
    name = class_namespace(cls).get("__module__")
    return name if type(name) is str else ""


def derives(cls: type, base: type) -> bool:
    """Return ``issubclass(cls, base)`` by identity, without running a metaclass of the user."""
    return any(each is base for each in class_bases(cls))


def is_a(found: object, *bases: type[_Kind]) -> TypeGuard[_Kind]:
    """Return ``isinstance(found, bases)`` without running code of the user: neither a metaclass nor
    ``__class__`` is asked, with which a mock or a proxy claims to be of a different class.
    """
    return any(each is base for each in class_bases(type(found)) for base in bases)


def is_exactly(found: Any, *kinds: type) -> bool:
    """Return whether the class of an object is one of these, and not derived from one. ``in`` would
    compare classes with ``==``, which may run a metaclass's code.
    """
    return any(type(found) is kind for kind in kinds)


def named_first(variables: dict[str, Any]) -> list[tuple[str, object]]:
    """Return a module's variables without Python's own; ``_`` and ``_3`` come last."""
    named = (pair for pair in tuple(dict.items(variables)) if type(pair[0]) is str)
    pairs = (pair for pair in named if pair[0] not in _MACHINERY)
    return sorted(pairs, key=lambda pair: pair[0].startswith("_"))


def is_user_class(cls: type) -> bool:
    """Return whether a class is defined in the user's own code."""
    return is_user_module(module_of(cls))


def is_user_module(name: str) -> bool:
    """Return whether a module is ``__main__``, or its file is the user's own code."""
    if name == "__main__":
        return True
    if name not in _of_user and (file := module_file(name)):
        _of_user[name] = classify(file) == USER
    return _of_user.get(name, False)


def closure_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a closure that are bound, with their names."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        with contextlib.suppress(ValueError):  # not bound yet
            yield name, cell.cell_contents


def module_file(name: str) -> str:
    """Return the source file of a loaded module; empty where it has none."""
    module = sys.modules.get(name)
    if module is None or not derives(type(module), ModuleType):
        return ""
    file = module_variables(module).get("__file__")
    return file if type(file) is str else ""


Held = tuple[Kind, Any, Any]
"""How something is held, under which key, and what."""

_Reader = Callable[["Contents", Any], Iterable[Held]]
"""Returns what an object of one type holds."""

# Attributes that are inspected of an object (more than elements of a list, because programs keep
# graphs there), and results of a bounded ``lru_cache``: one with more is passed over.
_MANY_NAMES, _MANY_RESULTS = 10_000, 10_000
# Frames of a traceback that are read. Python's own recursion limit is 1,000; of a longer traceback,
# those nearest to the error are read.
_LONGEST_TRACEBACK = 1_000

GENERATORS = {
    id(types.GeneratorType): ("gi_frame", "gi_yieldfrom", "gi_code"),
    id(types.CoroutineType): ("cr_frame", "cr_await", "cr_code"),
    id(types.AsyncGeneratorType): ("ag_frame", "ag_await", "ag_code"),
}
"""The attributes by which each gives out its frame, what it waits for, and its code. By id: to hash
a class may run its metaclass's code.
"""


_get_attribute = object.__getattribute__
_class_flags = type.__dict__["__flags__"].__get__
_tensor_dict = vars(torch.Tensor)["__dict__"].__get__


class Contents:
    """Reads objects, large containers in part, and none of which another thread is changing.

    Deques that can hold no more than ``window`` elements are passed over.
    """

    def __init__(self, most: int, window: int = 0) -> None:
        self.most = most
        self.window = window

    def of(self, holder: object) -> list[Held]:
        """Return all that ``holder`` holds, atoms included."""
        layout = layout_of(type(holder))
        held: list[Held] = []
        if layout.read is not None:
            held += layout.read(self, holder)
        elif layout.is_class:
            held += _of_class(holder)
        if names := layout.fields:
            held = [("attribute", names[key], each) for _, key, each in held if key < len(names)]
        if layout.has_dict:
            held += self.attributes(_get_attribute(holder, "__dict__"))
        held += [("attribute", name, value) for name, value in layout.in_slots(holder)]
        if layout.of_user and not layout.is_class:
            held.append(("class", None, type(holder)))
        return held

    def attributes(self, namespace: object) -> list[Held]:
        """Return what an instance's ``__dict__`` holds."""
        if type(namespace) is not dict:
            return []
        return [("attribute", name, value) for name, value in self.items(namespace, _MANY_NAMES)]

    def items(self, mapping: Any, most: int | None = None) -> list[tuple[Any, object]]:
        """Return up to ``most`` items of a dict or one derived from it."""
        most = self.most if most is None else most
        view = dict.items(mapping)
        half = most // 2
        try:
            if dict.__len__(mapping) <= most:
                return list(view)
            return [*itertools.islice(view, half), *itertools.islice(reversed(view), half)]
        except RuntimeError:  # another thread is changing it
            return []


def look_at(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Return whether a tensor holds a graph, and whether it holds anything else.

    That is attributes, hooks, or a ``.grad`` with a graph. Its ``grad_fn`` is not touched.
    """
    more = len(gc.get_referents(tensor)) > 1
    if not requires_grad(tensor):
        return False, more
    if not is_held_leaf(tensor):
        return True, more
    return False, more or _grad_with_graph(tensor) is not None


def _grad_with_graph(leaf: torch.Tensor) -> torch.Tensor | None:
    grad = grad_of(leaf)
    return grad if grad is not None and requires_grad(grad) else None


def _of_dict(contents: Contents, holder: object) -> list[Held]:
    held: list[Held] = []
    for key, value in contents.items(holder):
        if _is_writable(key) or (type(key) is tuple and all(map(_is_writable, key))):
            held.append(("item", key, value))
        else:
            held += [("entry", type(key).__name__, value), ("key", None, key)]
    return held


def _is_writable(key: object) -> bool:
    return id(type(key)) in _WRITABLE


def _sequence(base: Any) -> _Reader:
    """Return a reader of the items of a list, tuple or deque, past any method of a subclass."""

    def read(contents: Contents, holder: Any) -> list[Held]:
        length, half = base.__len__(holder), contents.most // 2
        if base is collections.deque and (_longest(holder) or sys.maxsize) <= contents.window:
            return []
        places: Iterable[int] = range(length)
        if length > contents.most:
            places = (*range(half), *range(length - half, length))
        try:
            return [("item", place, base.__getitem__(holder, place)) for place in places]
        except IndexError:  # another thread is emptying it
            return []

    return read


_longest = collections.deque.__dict__["maxlen"].__get__


def _of_set(contents: Contents, holder: Any) -> list[Held]:
    base: Any = set if is_a(holder, set) else frozenset
    members = itertools.islice(base.__iter__(holder), contents.most)
    try:
        return [("entry", None, member) for member in members]
    except RuntimeError:  # another thread is changing it
        return []


def _of_module(contents: Contents, holder: object) -> Iterator[Held]:
    """An ``nn.Module``: its sub-modules and buffers under the names by which it gives them out."""
    keyed = derives(type(holder), torch.nn.ModuleDict)
    for name, value in contents.items(_get_attribute(holder, "__dict__"), _MANY_NAMES):
        if type(value) is not dict and type(value) is not collections.OrderedDict:
            yield "attribute", name, value
        elif not value:  # most of its dicts of hooks
            continue
        elif name in ("_parameters", "_buffers", "_modules"):
            for key, part in contents.items(value, _MANY_NAMES):
                if name == "_modules" and type(key) is str and key.isdigit():
                    yield "item", int(key), part
                else:
                    yield "item" if keyed and name == "_modules" else "attribute", key, part
        elif type(name) is str and name.endswith("_hooks"):
            for _, hook in contents.items(value, _MANY_NAMES):
                yield "hook", name, hook
        else:
            yield "attribute", name, value


def _of_tensor(contents: Contents, holder: torch.Tensor) -> list[Held]:
    held: list[Held] = []
    # tensor.__dict__ would make an empty dict for every tensor looked at: see whether it has one.
    parts = gc.get_referents(holder)
    # From Python 3.13 on instances may keep the values of their attributes themselves
    # (Include/object.h, Py_TPFLAGS_INLINE_VALUES); a tensor does on 3.14.
    is_inline = sys.version_info >= (3, 13) and _class_flags(type(holder)) & 1 << 2
    if len(parts) > 1 and is_inline:
        attributes = _tensor_dict(holder)
        held += contents.attributes(attributes)
        known = {id(value) for value in attributes.values()}
        parts = [p for p in parts if type(p) is collections.OrderedDict and id(p) not in known]
    for part in parts:
        if type(part) is dict:
            held += contents.attributes(part)
        elif type(part) is collections.OrderedDict:
            held += [("hook", "_backward_hooks", hook) for _, hook in contents.items(part)]
    grad = _grad_with_graph(holder) if is_held_leaf(holder) else None
    return held if grad is None else [*held, ("attribute", "grad", grad)]


def _of_class(holder: Any) -> Iterator[Held]:
    if is_user_class(holder):
        for name, value in class_namespace(holder).items():
            yield "attribute", name, value
        for base in class_bases(holder)[1:]:
            if is_user_class(base):
                yield "class", None, base


def _of_namespace(_: Contents, module: types.ModuleType) -> list[Held]:
    variables = module_variables(module)
    name = variables.get("__name__")
    is_users = type(name) is str and is_user_module(name)
    return [("globals", None, variables)] if is_users else []


def _of_wrapper(_: Contents, holder: object) -> list[Held]:
    return [("inside", None, part) for part in gc.get_referents(holder)]


def _of_longest_zip(_: Contents, holder: object) -> list[Held]:
    """A ``zip_longest``: places in its tuple of iterators are empty, to index one is to crash."""
    held = gc.get_referents(holder)
    each = (gc.get_referents(part) if type(part) is tuple else [part] for part in held)
    return [("inside", None, part) for parts in each for part in parts]


def _of_function(contents: Contents, function: types.FunctionType) -> Iterator[Held]:
    """Closure, defaults, attributes; for the user's functions also their module's variables."""
    code = function.__code__
    for name, value in closure_of(function):
        yield "cell", name, value
    # A program may set more defaults than there are parameters: Python counts from the last one.
    names = reversed(code.co_varnames[: code.co_argcount])
    defaults = zip(names, reversed(function.__defaults__ or ()), strict=False)
    for name, value in (*reversed([*defaults]), *(function.__kwdefaults__ or {}).items()):
        yield "default", name, value
    yield from contents.attributes(function.__dict__)
    if owner_of(code) == USER:
        yield "globals", None, function.__globals__


def _of_lru_cache(contents: Contents, cache: Any) -> Iterator[Held]:
    """The results and arguments in a ``functools.lru_cache``, which only the collector sees."""
    info = functools._lru_cache_wrapper.cache_info(cache)
    if info.maxsize is not None and info.currsize > _MANY_RESULTS:
        return
    attributes = _get_attribute(cache, "__dict__")
    for part in gc.get_referents(cache):
        if type(part) is dict and part is not attributes:
            for _, result in contents.items(part):
                yield "cache", None, result
        elif part is not attributes:
            yield "cache", None, part


def _of_generator(_: Contents, generator: Any) -> Iterator[Held]:
    """The frame of a suspended generator or coroutine, and what it waits for."""
    of_frame, inner = GENERATORS[id(type(generator))][:2]
    if (suspended := getattr(generator, of_frame)) is not None:
        yield "frame", FrameOf(generator.__name__, *_defined(suspended)), suspended
    yield "inside", None, getattr(generator, inner)


def _of_frame(_: Contents, frame: types.FrameType) -> Iterator[Held]:
    """A frame's variables, and for the user's own code those of its module."""
    if not is_module_level(frame):
        for name, value in local_variables(frame):
            yield "variable", name, value
    if owner_of(frame.f_code) == USER:
        yield "globals", None, frame.f_globals


def _of_traceback(_: Contents, traceback: types.TracebackType) -> Iterator[Held]:
    """The frames of a traceback, from the one that caught down to the one that raised."""
    for frame, at in collections.deque(walk_tb(traceback), _LONGEST_TRACEBACK):
        file, line = _defined(frame)
        raised = Site(file, at or line, cell=cell_of(file)).place
        yield "frame", FrameOf(frame.f_code.co_name, file, line, raised), frame


def _defined(frame: types.FrameType) -> tuple[str, int]:
    return frame.f_code.co_filename, frame.f_code.co_firstlineno


def _members(cls: Any, *names: str) -> _Reader:
    """Return a reader of attributes that ``cls`` defines in C, past any subclass."""
    getters = [(name, cls.__dict__[name].__get__) for name in names]
    return lambda _, holder: [("attribute", name, get(holder)) for name, get in getters]


GENERATOR_TYPES = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_WRITABLE = ids(str, int, float, bool, bytes, type(None))

_CONTAINERS: tuple[Any, ...] = ([], (), {}, {}.values(), {}.items(), collections.deque())
_WRAPPERS: tuple[Any, ...] = (
    *(enumerate, zip, map, filter, reversed, types.MappingProxyType, types.CellType),
    *(each for each in vars(itertools).values() if getattr(each, "__module__", 0) == "itertools"),
    *map(type, map(iter, _CONTAINERS)),
    queue.SimpleQueue,
)

_BY_CLASS: tuple[tuple[Any, _Reader], ...] = (
    (torch.Tensor, _of_tensor),
    (torch.nn.Module, _of_module),
    (dict, _of_dict),
    (list, _sequence(list)),
    (tuple, _sequence(tuple)),
    (collections.deque, _sequence(collections.deque)),
    (set, _of_set),
    (frozenset, _of_set),
    (types.FunctionType, _of_function),
    (types.MethodType, _members(types.MethodType, "__func__", "__self__")),
    (types.BuiltinMethodType, _members(types.BuiltinMethodType, "__self__")),
    (staticmethod, _members(staticmethod, "__func__")),
    (classmethod, _members(classmethod, "__func__")),
    (property, _members(property, "fget", "fset", "fdel")),
    (functools.partial, _members(functools.partial, "func", "args", "keywords")),
    (BaseException, _members(BaseException, "__traceback__", "__cause__", "__context__", "args")),
    (functools._lru_cache_wrapper, _of_lru_cache),
    (ContextVar, lambda _, variable: [("inside", None, variable.get(None))]),
    (types.FrameType, _of_frame),
    (types.TracebackType, _of_traceback),
    (types.ModuleType, _of_namespace),
    *((cls, _of_generator) for cls in GENERATOR_TYPES),
    *((cls, _of_wrapper) for cls in _WRAPPERS),
    (itertools.zip_longest, _of_longest_zip),
)
_READERS = {id(cls): read for cls, read in _BY_CLASS}
"""By id: a metaclass may define equality, and these classes live as long as the process."""

_layouts: dict[int, Layout] = {}
# Classes whose layout is known; if there are more, all are forgotten and read again. Code that
# makes a class in a loop, as namedtuple() in a function does, has new ones without end.
_LARGEST_CACHE = 5_000


def layout_of(cls: type) -> Layout:
    """The layout of a type; kept by id, as hashing a class may run its metaclass's code."""
    layout = _layouts.get(id(cls))
    if layout is None or layout.cls() is not cls:
        if len(_layouts) > _LARGEST_CACHE:
            _layouts.clear()
        bases = class_bases(cls)
        read = next((_READERS[id(base)] for base in bases if id(base) in _READERS), None)
        layout = _layouts[id(cls)] = Layout(cls, read)
    return layout
