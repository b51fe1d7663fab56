"""Looks up what a dotted name of a frame stands for, without running any of the user's code."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch

from gradscope.code import names
from gradscope.code.liveness import (
    MISSING,
    Callee,
    Opaque,
    assignment_sites,
    calls_after,
    is_exactly,
    is_plain,
)
from gradscope.program import layouts
from gradscope.program.containers import layout_of
from gradscope.program.sites import LIBRARY, USER, owner_of
from gradscope.program.variables import local_variables
from gradscope.torch_private import CONTEXT_FILE

_MOST_MODULES = 500


_AnyType = TypeVar("_AnyType")


class Objects:
    """The variables of one frame, or of a function that is to be called with ``given``, held: to be
    dropped after the look.
    """

    def __init__(
        self, of: FrameType | FunctionType, given: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        if isinstance(of, FrameType):
            self.module, code = of.f_globals, of.f_code
            own = dict(local_variables(of))
        else:
            self.module, code = of.__globals__, of.__code__
            unbound = dict.fromkeys(
                (*code.co_varnames, *code.co_cellvars, *code.co_freevars), MISSING
            )
            own = {**unbound, **dict(layouts.closure_of(of))}
        self.file = code.co_filename
        self._variables = {**self.module, **own, **given}

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
    if layouts.is_a(owner, types.ModuleType):
        return layouts.module_variables(owner).get(name, MISSING)
    if layout.has_dict or layouts.derives(type(owner), torch.nn.Module):
        namespace = object.__getattribute__(owner, "__dict__")
        if name in namespace:
            return namespace[name]
        for kind in ("_parameters", "_buffers", "_modules"):
            if is_exactly(namespace.get(kind), dict, OrderedDict) and name in namespace[kind]:
                return namespace[kind][name]
    classes = layouts.class_bases(owner if layout.is_class else type(owner))
    return next(
        (space[name] for cls in classes if name in (space := layouts.class_namespace(cls))), MISSING
    )


def _item(owner: Any, key: str) -> Any:
    if layouts.derives(type(owner), torch.nn.Module):
        return attribute(owner, key)
    if layouts.is_a(owner, dict):
        wanted: Any = key[1:-1] if key[0] in "'\"" else int(key)
        return dict.get(owner, wanted, MISSING)
    base: Any = next((base for base in (list, tuple) if layouts.is_a(owner, base)), None)
    if base is None or not key.lstrip("-").isdigit():
        return MISSING
    length = base.__len__(owner)  # past any method of a subclass
    return base.__getitem__(owner, int(key)) if -length <= int(key) < length else MISSING


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


class Function(NamedTuple):
    """The Python function behind what is called, whether ``no_grad`` decorates it, and which of its
    arguments it has already.
    """

    function: Any
    no_grad: bool = False
    given: tuple[Any, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})

    @property
    def code(self) -> CodeType:
        """What it runs."""
        code: CodeType = self.function.__code__
        return code

    def called_by(
        self, owner: str, above: Any, caller: Objects, targets: Iterable[Target]
    ) -> Callee:
        """Return it as what a call runs; ``owner`` is the path of the object ``above`` that it is a
        method of.
        """
        code, filled = self.code, self.given if above is MISSING else (above, *self.given)
        known = {**dict(zip(code.co_varnames[: code.co_argcount], filled, strict=False))}
        known.update(self.named)

        def inside(paths: Mapping[str, str]) -> Resolver:
            arguments = {name: caller.find(path) for name, path in paths.items()}
            return Resolver(Objects(self.function, {**arguments, **known}), *targets)

        return Callee(code, owner, self.no_grad, self._defaults(), len(self.given), inside)

    def _defaults(self) -> tuple[tuple[str, Any], ...]:
        """Return the values that parameters have where nothing is given: plain ones of those that
        any call can replace.
        """
        code, given = self.code, self.function.__defaults__ or ()
        named = code.co_varnames[: code.co_argcount][code.co_argcount - len(given) :]
        only_named: dict[str, Any] = self.function.__kwdefaults__ or {}
        found = {**dict(zip(named, given, strict=False)), **only_named}
        plain = {name: value for name, value in found.items() if is_plain(value)}
        had = {**dict(zip(code.co_varnames, self.given, strict=False)), **self.named}
        shown = {name: each if is_plain(each) else Opaque(each) for name, each in had.items()}
        return (*{**plain, **shown}.items(),)


def behind(found: Any, owners: Collection[int] = (USER, LIBRARY)) -> Function | None:
    """Return the function that calling an object runs, if it is written in Python by one of these:
    neither in C nor in torch, whose functions lead where their arguments lead.
    """
    no_grad, given, named = False, tuple[Any, ...](), dict[str, Any]()
    for _ in range(8):
        if layouts.is_a(found, types.MethodType):
            found, given = found.__func__, (found.__self__, *given)
        elif layouts.is_a(found, functools.partial):
            given, named = (*found.args, *given), {**found.keywords, **named}
            found = found.func
        elif layouts.is_a(found, staticmethod) or layouts.is_a(found, classmethod):
            found = found.__func__
        elif layouts.is_a(found, functools._lru_cache_wrapper):
            found = found.__wrapped__
        elif not layouts.is_a(found, FunctionType):
            return None
        elif (owner := owner_of(found.__code__)) == USER or owner in owners:
            return Function(found, no_grad, given, named)
        else:
            no_grad = no_grad or (found.__code__.co_filename == CONTEXT_FILE and _turns_off(found))
            found = found.__dict__.get("__wrapped__")
    return None


def function_of(found: Any) -> tuple[CodeType, bool] | None:
    """Return the user's code behind a function, and whether ``no_grad`` decorates it."""
    known = behind(found, (USER,))
    return None if known is None else (known.code, known.no_grad)


def _turns_off(function: FunctionType) -> bool:
    """Return whether a function's decorator is ``no_grad`` or ``inference_mode``."""
    held = [value for _, value in layouts.closure_of(function)]
    each = (*held, *(getattr(one, "__self__", None) for one in held))
    return any(layouts.is_a(one, torch.no_grad, torch.inference_mode) for one in each)


class Target(NamedTuple):
    """A tracked holder: the variable ``root`` that it starts from, the object ``owner`` that has it
    as its attribute ``name``, and the ``path`` by which the code calls the owner.
    """

    root: str
    owner: Any = None
    name: str = ""
    path: str = ""


class Resolver:
    """Finds the code that the calls of a frame or function run, where these are concerned."""

    def __init__(self, objects: Objects, *targets: Target) -> None:
        self.objects = objects
        self._targets = targets

    def __call__(self, path: str) -> Callee | None:
        """Return the code that calling the path runs; None where that is not to be read."""
        found = self.objects.find(path)
        if layouts.is_a(found, torch.nn.Module):
            return self._module(path, found)
        known = behind(found)
        if known is not None:
            holder = names.owner_of(path)[0]
            above = self.objects.find(holder) if holder else MISSING
            is_method = above is not MISSING and not layouts.is_a(above, types.ModuleType, type)
            is_method = is_method or (layouts.is_a(found, classmethod) and above is not MISSING)
            if not is_method or layouts.is_a(found, staticmethod) or known.given:
                holder, above = "", MISSING
            return self._callee(known, holder, above)
        if found is not MISSING and not layouts.is_a(found, FunctionType, type):
            known = behind(attribute(found, "__call__"))
            return None if known is None else self._callee(known, path, found)
        return None

    def _callee(self, known: Function, owner: str = "", above: Any = MISSING) -> Callee:
        return known.called_by(owner, above, self.objects, self._targets)

    def _module(self, path: str, module: torch.nn.Module) -> Callee | None:
        """Return the forward that reads a holder; else a hook's; else the module's."""
        hooks = []
        for at, each in submodules(module, path):
            for target in self._targets:
                known = _forward(each) if each is target.owner else None
                if known is not None and target.name in known.code.co_names:
                    # The module may hold the owner under another name: `losses[1]`, `model.2`.
                    is_known = bool(target.path) and self.objects.find(target.path) is each
                    return self._callee(known, target.path if is_known else at, each)
            namespace = object.__getattribute__(each, "__dict__")
            hooks += [
                hook
                for kind in ("_forward_pre_hooks", "_forward_hooks")
                for hook in namespace[kind].values()
            ]
        roots = {target.root for target in self._targets}
        for hook in hooks:
            known = behind(hook, (USER,))
            if known is not None and roots & {*known.code.co_names, *known.code.co_freevars}:
                return self._callee(known)
        known = _forward(module)
        return None if known is None else self._callee(known, path, module)


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


def _forward(module: torch.nn.Module) -> Function | None:
    """Return the user's forward: a library's leads where its arguments lead."""
    return behind(attribute(module, "forward"), (USER,))
