"""Looks up what a dotted name of a frame stands for, without running any of the user's code."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

import torch

from gradscope.code import names
from gradscope.code.liveness import Callee, assignment_sites, calls_after, is_plain
from gradscope.program import layouts
from gradscope.program.containers import layout_of
from gradscope.program.sites import USER, owner_of
from gradscope.program.variables import local_variables
from gradscope.torch_private import CONTEXT_FILE

MISSING: Any = object()

_MOST_MODULES = 500


_AnyType = TypeVar("_AnyType")


class Objects:
    """The variables of one frame, held: to be dropped after the look."""

    def __init__(self, frame: FrameType) -> None:
        self._variables = {**frame.f_globals, **dict(local_variables(frame))}

    def find(self, path: str) -> Any:
        """Return what the path stands for; MISSING where only the user's code could tell."""
        root, parts = names.split(path) or ("", [])
        return follow(self._variables.get(root, MISSING), parts)


def follow(found: Any, parts: list[str], step: Callable[[Any, str], Any] | None = None) -> Any:
    """Return what a chain of attributes and elements leads to, taken by ``step``."""
    for part in parts:
        if found is MISSING:
            break
        found = (step or part_of)(found, part)
    return found


def part_of(owner: Any, part: str) -> Any:
    """Return an attribute, ``.h``, or an element, ``[3]``, as it is stored."""
    return attribute(owner, part[1:]) if part[0] == "." else _item(owner, part[1:-1])


def attribute(owner: Any, name: str) -> Any:
    """Return an attribute as it is stored, without asking descriptors."""
    layout = layout_of(type(owner))
    if isinstance(owner, types.ModuleType):
        return layouts.module_variables(owner).get(name, MISSING)
    if layout.has_dict or layouts.derives(type(owner), torch.nn.Module):
        namespace = object.__getattribute__(owner, "__dict__")
        if name in namespace:
            return namespace[name]
        for kind in ("_parameters", "_buffers", "_modules"):
            if type(namespace.get(kind)) in (dict, OrderedDict) and name in namespace[kind]:
                return namespace[kind][name]
    classes = layouts.class_bases(owner if layout.is_class else type(owner))
    return next(
        (space[name] for cls in classes if name in (space := layouts.class_namespace(cls))), MISSING
    )


def _item(owner: Any, key: str) -> Any:
    if layouts.derives(type(owner), torch.nn.Module):
        return attribute(owner, key)
    if isinstance(owner, dict):
        wanted: Any = key[1:-1] if key[0] in "'\"" else int(key)
        return dict.get(owner, wanted, MISSING)
    if (
        isinstance(owner, list | tuple)
        and key.lstrip("-").isdigit()
        and -len(owner) <= int(key) < len(owner)
    ):
        return owner[int(key)]
    return MISSING


def submodules(module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield a module and those in it, each with its path."""
    for _, (name, each) in zip(
        range(_MOST_MODULES), torch.nn.Module.named_modules(module), strict=False
    ):
        parts = name.split(".") if name else []
        yield path + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts), each


def names_of_parameters(module: torch.nn.Module) -> list[str] | None:
    """Return the names that ``named_parameters()`` gives; None where the user's code decides."""
    plain = ("named_parameters", "_named_members", "named_modules")
    if any(attribute(module, name) is not attribute(torch.nn.Module, name) for name in plain):
        return None
    found: dict[int, str] = {}
    for prefix, each in torch.nn.Module.named_modules(module):
        for name, parameter in object.__getattribute__(each, "__dict__")["_parameters"].items():
            if parameter is not None:
                found.setdefault(id(parameter), f"{prefix}.{name}" if prefix else name)
    return [*found.values()]


def function_of(found: Any) -> tuple[CodeType, bool] | None:
    """Return the user's code behind a function, and whether ``no_grad`` decorates it."""
    no_grad = False
    for _ in range(8):
        if isinstance(found, staticmethod | classmethod | types.MethodType):
            found = found.__func__
        elif isinstance(found, FunctionType) and owner_of(found.__code__) != USER:
            inner = found.__dict__.get("__wrapped__")
            if inner is None:
                return None
            no_grad = no_grad or (found.__code__.co_filename == CONTEXT_FILE and _turns_off(found))
            found = inner
        else:
            break
    if isinstance(found, FunctionType) and owner_of(found.__code__) == USER:
        return found.__code__, no_grad
    return None


def defaults_of(found: Any) -> tuple[tuple[str, Any], ...]:
    """Return the plain values that parameters of a function have where nothing is given."""
    while isinstance(found, staticmethod | classmethod | types.MethodType):
        found = found.__func__
    if not isinstance(found, FunctionType):
        return ()
    code, given = found.__code__, found.__defaults__ or ()
    named = code.co_varnames[: code.co_argcount][code.co_argcount - len(given) :]
    pairs = (*zip(named, given, strict=False), *(found.__kwdefaults__ or {}).items())
    return tuple((name, value) for name, value in pairs if is_plain(value))


def _turns_off(function: FunctionType) -> bool:
    """Return whether a function's decorator is ``no_grad`` or ``inference_mode``."""
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not yet filled
            continue
        for each in (held, getattr(held, "__self__", None)):
            if isinstance(each, torch.no_grad | torch.inference_mode):
                return True
    return False


class Resolver:
    """Finds the code that the calls of a frame run, as far as a tracked holder is concerned.

    ``owner`` is the object that has the holder as an attribute, ``name`` the attribute, ``root``
    the variable it starts from, ``path`` what the code calls the owner.
    """

    def __init__(
        self, objects: Objects, root: str, owner: Any = None, name: str = "", path: str = ""
    ) -> None:
        self._objects = objects
        self._root = root
        self._owner = owner
        self._name = name
        self._path = path
        self._last: Any = MISSING

    def __call__(self, path: str) -> Callee | None:
        """Return the code that calling the path runs; None where it is not the user's."""
        found = self._objects.find(path)
        if found is MISSING and path.startswith("self.") and self._last is not MISSING:
            found = follow(self._last, (names.split(path) or ("", []))[1])
        if isinstance(found, functools._lru_cache_wrapper):
            found = found.__wrapped__
        if isinstance(found, torch.nn.Module):
            return self._module(path, found)
        known = function_of(found)
        if known is not None:
            owner = ""
            if not isinstance(found, staticmethod):
                holder = names.owner_of(path)[0]
                above = self._objects.find(holder) if holder else MISSING
                if above is not MISSING and not isinstance(above, types.ModuleType):
                    owner, self._last = holder, above
                elif above is MISSING and holder == "self":
                    owner = holder
            return Callee(known[0], owner, known[1], defaults_of(found))
        if found is not MISSING and not isinstance(found, FunctionType | type):
            call = function_of(attribute(found, "__call__"))
            if call is not None:
                self._last = found
                return Callee(call[0], path, call[1])
        return None

    def _module(self, path: str, module: torch.nn.Module) -> Callee | None:
        """Return the forward that reads the holder; else a hook's; else the module's."""
        hooks = []
        for at, each in submodules(module, path):
            if each is self._owner and self._owner is not None:
                known = _forward(each)
                if known is not None and self._name in known[0].co_names:
                    self._last = each
                    # The module may hold the owner under a name of its own: `losses[1]`, `model.2`.
                    is_known = bool(self._path) and self._objects.find(self._path) is each
                    return Callee(known[0], self._path if is_known else at, known[1])
            namespace = object.__getattribute__(each, "__dict__")
            hooks += [
                hook
                for kind in ("_forward_pre_hooks", "_forward_hooks")
                for hook in namespace[kind].values()
            ]
        for hook in hooks:
            known = function_of(hook)
            if known is not None and self._root in (*known[0].co_names, *known[0].co_freevars):
                return Callee(known[0], "", known[1])
        known = _forward(module)
        if known is None:
            return None
        self._last = module
        return Callee(known[0], path, known[1])


def names_that_change(
    found: dict[str, _AnyType], code: CodeType, objects: Objects
) -> dict[str, _AnyType]:
    """Leave out names through an attribute that the code stores under another name of its object.

    It stores it itself or in a method that it calls: `self.data = []` is `agent.data = []` as well,
    but nothing shows that.
    """
    targets = {call.target for call in calls_after(code, -1)}
    slots = {name: dict(_attributes_in(name, objects)) for name in found}
    changing = {
        path
        for each in slots.values()
        for path in each
        if assignment_sites(code, path)
        or any(names.owner_of(target)[0] == names.owner_of(path)[0] for target in targets)
    }
    changed = {each[path] for each in slots.values() for path in each if path in changing}
    return {
        name: value
        for name, value in found.items()
        if all(path in changing or slot not in changed for path, slot in slots[name].items())
    }


def _attributes_in(name: str, objects: Objects) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the attributes that a name leads through, each with its object's id."""
    path, parts = names.split(name) or ("", [])
    for part in parts:
        owner = objects.find(path)
        if part[0] == "." and owner is not MISSING:
            yield path + part, (id(owner), part)
        path += part


def takes_no_arguments(wrapper: Any) -> bool:
    """Return whether the function behind a cache has no parameter."""
    known = function_of(getattr(wrapper, "__wrapped__", None))
    return known is not None and known[0].co_argcount + known[0].co_kwonlyargcount == 0


def _forward(module: torch.nn.Module) -> tuple[CodeType, bool] | None:
    return function_of(attribute(module, "forward"))
