"""The variables of frames, modules and classes by name, read so that nothing stays behind in the user's program."""

from __future__ import annotations

import ctypes
import dis
import sys
from types import CodeType, FrameType, MappingProxyType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from gradscope.program.sites import USER, _classify

Variables = tuple[tuple[str, object], ...]

_SNAPSHOTS = sys.version_info < (3, 13)
"""Before PEP 667 reading ``f_locals`` of a function copied its variables into a dict that stays with the frame."""

_PROXY = type((lambda: sys._getframe().f_locals)())

_OPTIMIZED = 0x1  # inspect.CO_OPTIMIZED: a function's frame, whose variables are not kept in a dict
_SHARE_SNAPSHOT = frozenset({"locals", "exec", "eval"})
_ALONE = 3  # references to a snapshot that nobody else has: its frame's, our variable, getrefcount's argument

_class_dict = type.__dict__["__dict__"].__get__
_class_mro = type.__dict__["__mro__"].__get__
_class_qualname = type.__dict__["__qualname__"].__get__
_module_dict = vars(ModuleType)["__dict__"].__get__

_MACHINERY = frozenset({"__builtins__", "__loader__", "__spec__"})

_shares: WeakKeyDictionary[CodeType, bool] = WeakKeyDictionary()
_of_user: dict[str, bool] = {}


def is_module_level(frame: FrameType) -> bool:
    """True where the frame's variables are its module's globals."""
    return not frame.f_code.co_flags & _OPTIMIZED and frame.f_locals is frame.f_globals


def local_variables(frame: FrameType) -> Variables:
    """Names and values of the frame's own variables, cells included; none where looking could be noticed.

    Up to Python 3.12 a function that uses ``locals()``, ``exec`` or ``eval`` may hold the very dict that a look would
    refresh, so such a frame is left alone.
    """
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        return _of_module_or_class(frame)
    if not _SNAPSHOTS:
        return tuple(frame.f_locals.items())
    if _shares_snapshot(code):
        return ()
    snapshot = frame.f_locals
    # ".0" is what a comprehension's frame calls the iterator it was given.
    variables = tuple(pair for pair in snapshot.items() if not pair[0].startswith("."))
    # A debugger writes what it changed in the snapshot back into the frame: emptied, it would delete the variables.
    if sys.gettrace() is None and sys.getrefcount(snapshot) <= _ALONE:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            snapshot.pop(name, None)
    if sys.gettrace() is None:
        # Else Python would fill the snapshot once more at the next event of our line watch, and it would stay with the frame.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    return variables


def _of_module_or_class(frame: FrameType) -> Variables:
    namespace: Any = frame.f_locals
    if (
        type(namespace) is not dict and type(namespace) is not _PROXY
    ):  # an exec() with a mapping of the user's
        return ()
    # During a comprehension in a module Python 3.12 shows a copy of the globals with its variables added.
    shared = frame.f_globals
    return tuple(
        (name, value)
        for name, value in namespace.items()
        if name not in shared or shared[name] is not value
    )


def _shares_snapshot(code: CodeType) -> bool:
    if not _SHARE_SNAPSHOT.intersection(code.co_names):
        return False
    shares = _shares.get(code)
    if shares is None:
        # model.eval() has the name too, but loads it as an attribute.
        shares = _shares[code] = any(
            step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in _SHARE_SNAPSHOT
            for step in dis.get_instructions(code)
        )
    return shares


def named_first(variables: dict[str, Any]) -> list[tuple[str, object]]:
    """A module's variables, with those first that people name; ``_`` and ``_3`` come after, Python's own not at all."""
    pairs = [
        pair
        for pair in tuple(dict.items(variables))
        if type(pair[0]) is str and pair[0] not in _MACHINERY
    ]
    return [p for p in pairs if not p[0].startswith("_")] + [
        p for p in pairs if p[0].startswith("_")
    ]


def class_namespace(cls: type) -> MappingProxyType[str, object]:
    """The class's own ``__dict__``, past any metaclass of the user's."""
    namespace: MappingProxyType[str, object] = _class_dict(cls)
    return namespace


def class_name(cls: type) -> str:
    """The class's name as a user would write it where it is defined."""
    name: str = _class_qualname(cls)
    return name.rpartition("<locals>.")[2]


def class_bases(cls: type) -> tuple[type, ...]:
    """The class's ``__mro__``, past any metaclass of the user's."""
    bases: tuple[type, ...] = _class_mro(cls)
    return bases


def derives(cls: type, base: type) -> bool:
    """``issubclass`` by identity: neither a metaclass's equality nor its ``__subclasscheck__`` is asked."""
    return any(each is base for each in class_bases(cls))


def module_variables(module: ModuleType) -> dict[str, Any]:
    """The module's own ``__dict__``, past any ``__getattribute__`` of a lazy module."""
    variables: dict[str, Any] = _module_dict(module)
    return variables


def is_user_class(cls: type) -> bool:
    """True for a class defined in the user's own code."""
    name = class_namespace(cls).get("__module__")
    return type(name) is str and is_user_module(name)


def is_user_module(name: str) -> bool:
    """True for ``__main__`` and for modules whose file is the user's own code."""
    if name == "__main__":
        return True
    known = _of_user.get(name)
    if known is None:
        file = module_file(name)
        if not file:
            return False
        known = _of_user[name] = _classify(file) == USER
    return known


def module_file(name: str) -> str:
    """The source file of a loaded module; empty where it has none."""
    module = sys.modules.get(name)
    if module is None or not derives(type(module), ModuleType):
        return ""
    file = module_variables(module).get("__file__")
    return file if type(file) is str else ""
