"""Tells what a class or a module says about itself, without running any code of the user's."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from types import MappingProxyType, ModuleType
from typing import Any, TypeGuard, TypeVar

import torch

from gradscope.program.sites import USER, classify

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
        module = class_namespace(cls).get("__module__")
        is_own = type(module) is str and (module + ".").startswith("gradscope.")
        hidden = is_own or any(id(base) in OPAQUE for base in bases)
        is_value = any(id(base) in _VALUES for base in bases)  # as the member of an enumeration
        is_read = any(id(base) in _COMPLETE for base in bases)
        whole = (hidden and not is_value) or self.is_class or is_read
        # A property or a proxy's descriptor of the same name would run the user's code.
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


def derives(cls: type, base: type) -> bool:
    """Return ``issubclass(cls, base)`` by identity: a metaclass of the user's is not asked."""
    return any(each is base for each in class_bases(cls))


def is_a(found: object, *bases: type[_Kind]) -> TypeGuard[_Kind]:
    """Return ``isinstance(found, bases)`` without asking the object, which may say that it is of
    another class, or a metaclass.
    """
    return any(each is base for each in class_bases(type(found)) for base in bases)


def is_exactly(found: Any, *kinds: type) -> bool:
    """Return whether an object is of one of these very classes: to ask with ``in`` would compare
    classes, which may run a metaclass's code.
    """
    return any(type(found) is kind for kind in kinds)


def named_first(variables: dict[str, Any]) -> list[tuple[str, object]]:
    """Return a module's variables without Python's own; ``_`` and ``_3`` come last."""
    named = (pair for pair in tuple(dict.items(variables)) if type(pair[0]) is str)
    pairs = (pair for pair in named if pair[0] not in _MACHINERY)
    return sorted(pairs, key=lambda pair: pair[0].startswith("_"))


def is_user_class(cls: type) -> bool:
    """True for a class defined in the user's own code."""
    name = class_namespace(cls).get("__module__")
    return type(name) is str and is_user_module(name)


def is_user_module(name: str) -> bool:
    """True for ``__main__`` and for modules whose file is the user's own code."""
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
