"""Names modules, tensors and roots as the user would write them: ``model.encoder.0.weight``."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch.nn import Module

from gradscope.program.containers import is_exactly, layout_of
from gradscope.program.sites import USER, caller_of, frames_from, owner_of
from gradscope.program.tensors import TensorMap, TensorRef, is_held_leaf, storage_of
from gradscope.program.variables import Variable, local_variables, variables
from gradscope.torch_private import MODULE_CALL

_MODULE: Any = None if MODULE_CALL is None else Variable(MODULE_CALL, "self")
# Frames that are searched for a module, at each operation of a new graph. A module that calls
# another takes three: its own, and two of torch.
_DEEPEST = 60
# Elements of a container that are searched for a module: a list of networks has a few, a list of
# data any number.
_MOST_ENTRIES = 100


class Names:
    """Remembers the program's names for modules and tensors, and keeps none of these alive."""

    def __init__(self) -> None:
        self._modules: dict[int, tuple[weakref.ref[Module], str, str]] = {}
        self._unheld: dict[str, list[weakref.ref[Module]]] = {}
        self.let_go()

    def let_go(self) -> None:
        """Drop all references to tensors."""
        self._tensors = TensorMap[str]()
        self._storages: dict[int, tuple[TensorRef, str]] = {}

    def module_of(self, frame: FrameType | None) -> tuple[str, str] | None:
        """Return name and class of the innermost module that runs in ``frame`` or its callers."""
        depth = 0
        while frame is not None and depth < _DEEPEST:
            code = frame.f_code
            if code is MODULE_CALL:
                module = _MODULE.of(frame)
                if module is None:
                    return None
                known = self._modules.get(id(module))
                if known is None or known[0]() is not module:
                    self._learn(frame, module)
                    known = self._modules.get(id(module))
                return None if known is None else known[1:]
            if code.co_name == "<module>":
                return None
            frame = frame.f_back or caller_of(frame)
            depth += 1
        return None

    def of_tensor(self, tensor: torch.Tensor, key: int | None = None) -> str | None:
        """Return the name learnt for a tensor, or for a different one that shares its memory;
        ``key`` is the address of the memory, if that is known already.
        """
        known = self._tensors.known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        key = storage_of(tensor) if key is None else key
        shared = self._storages.get(key)
        if shared is None or (named := shared[0]()) is None or storage_of(named) != key:
            return None
        return shared[1]

    @property
    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """The known modules that still exist, with their names."""
        known = [*self._modules.values()]
        return ((name, module) for ref, name, _ in known if (module := ref()) is not None)

    @property
    def modules(self) -> Iterator[Module]:
        """The known modules that still exist."""
        return (module for _, module in self.named_modules)

    def learn_variables(self, frames: Iterable[FrameType]) -> None:
        """Learn the modules and leaves that variables of these frames hold, and those that objects
        in these variables hold as attributes.
        """
        for frame in frames:
            found = variables(frame)
            others = [pair for pair in found if not issubclass(type(pair[1]), Module)]
            found += [each for pair in others for each in attributes_of(*pair)]
            for name, value in found:
                if issubclass(type(value), Module):
                    self._learn_module(value, name)
            for name, value in found:
                is_tensor = issubclass(type(value), torch.Tensor)
                if is_tensor and not name.startswith("_") and is_held_leaf(value):
                    self._remember(value, name)

    def _learn(self, frame: FrameType, module: Module) -> None:
        """Learn the modules of the outermost call in progress, named by the variable it is in."""
        outermost, caller = module, caller_of(frame)
        for above in islice(frames_from(frame), _DEEPEST):
            if above.f_code is MODULE_CALL:
                held, caller = _MODULE.of(above), caller_of(above)
                outermost = outermost if held is None else held  # its truth is the program's
        users = (each for each in frames_from(caller) if owner_of(each.f_code) == USER)
        name: str | None = None
        wanted: Any = outermost
        for each in users:
            # What a method knows as `self` may have a name where the method is called.
            if (known := variable_of(each, wanted)) is None:
                continue
            name = known + (name or "").removeprefix("self")
            if re.split(r"[.\[]", known)[0] != "self":
                break
            wanted = dict(reversed(variables(each)))["self"]
        self._learn_module(outermost, name or self._unnamed(outermost))
        if id(module) not in self._modules:  # called from a module that does not list it as its own
            self._learn_module(module, self._unnamed(module))

    def _unnamed(self, module: Module) -> str:
        """Return the class of a module that no variable holds, with a number if several live."""
        kind = type(module).__name__
        alive = self._unheld.setdefault(kind, [])
        # `nn.ReLU()(x)` makes a module in each iteration, which is gone when the next one is made.
        number = next((n for n, held in enumerate(alive) if held() is None), len(alive))
        alive[number : number + 1] = [weakref.ref(module)]
        return f"{kind}_{number + 1}" if number else kind

    def _learn_module(self, root: Module, label: str) -> None:
        known = self._modules.get(id(root))
        if known is not None and known[0]() is root:
            return
        for name, module in _modules_in(root, label):
            self._modules[id(module)] = (weakref.ref(module), name, type(module).__name__)
            for kind in (module._parameters, module._buffers):
                for key, value in kind.items():
                    if value is not None:
                        self._remember(value, f"{name}.{key}")

    def _remember(self, tensor: torch.Tensor, name: str) -> None:
        if self._tensors.get(tensor) is None:
            self._tensors[tensor] = name
            self._storages[storage_of(tensor)] = TensorRef(tensor), name


def names_in(frame: FrameType, objects: Sequence[object]) -> list[str | None]:
    """Return for each object the variable of a frame, or of its module, that holds it, or None."""
    found = {id(value): name for name, value in reversed(variables(frame))}
    return [found.get(id(each)) for each in objects]


def parameters_in(frames: Sequence[FrameType]) -> dict[int, tuple[str, torch.Tensor]]:
    """Return by identity the parameters and other leaves that frames lead to, each as the outermost
    frame writes it: of a module in a variable, in a container or in an attribute of an object, in
    this order.
    """
    found: dict[int, tuple[str, torch.Tensor]] = {}
    held = [pair for frame in reversed(frames) for pair in variables(frame) if pair[0][0] != "_"]
    for name, value in within(held):
        if issubclass(type(value), Module):
            for inner, module in _modules_in(value, name):
                for key, parameter in module._parameters.items():
                    if parameter is not None:
                        found.setdefault(id(parameter), (f"{inner}.{key}", parameter))
        elif issubclass(type(value), torch.Tensor) and is_held_leaf(value):
            found.setdefault(id(value), (name, value))
    return found


def within(held: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield variables, the entries of containers in them, attributes, and entries of these."""
    yield from held
    yield from (each for pair in held for each in entries_of(*pair))
    attributes = [each for pair in held for each in attributes_of(*pair)]
    yield from attributes
    yield from (each for pair in attributes for each in entries_of(*pair))


def name_held(value: Any, frames: Iterable[FrameType]) -> str | None:
    """Return the name of an object in the code of some frames: of a variable, the entry of a
    container or an attribute.
    """
    scopes = ((local_variables(frame), variables(frame)) for frame in frames)
    found = chain.from_iterable(map(within, chain.from_iterable(scopes)))
    return next((str(name) for name, each in found if each is value), None)


def _modules_in(root: Module, label: str) -> Iterator[tuple[str, Module]]:
    for path, module in Module.named_modules(root):
        path = path.removeprefix("_orig_mod").removeprefix(".")  # what torch.compile wraps
        yield f"{label}.{path}" if path else label, module


def entries_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a list, a tuple or a dict, each as a program writes it."""
    if is_exactly(value, list, tuple, dict) and len(value) <= _MOST_ENTRIES:
        entries = value.items() if type(value) is dict else enumerate(value)
        for key, each in [*entries]:
            if is_exactly(key, int, str):
                yield f"{name}[{key!r}]", each


def attributes_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object that is no module or class of Python's, in the same way."""
    kind = type(value)
    if issubclass(kind, ModuleType | type | FunctionType | torch.Tensor):
        return
    if issubclass(kind, Module) or layout_of(kind).has_dict:
        held = object.__getattribute__(value, "__dict__")
        yield from ((f"{name}.{key}", each) for key, each in [*held.items()])


def variable_of(frame: FrameType, module: object) -> str | None:
    """The name by which a frame's code sees a module, or another object: a variable, an attribute
    of ``self``, a module of one, or an entry of one: ``nets[0]``.
    """
    found = [(name, value) for name, value in variables(frame) if not name.startswith("__")]
    found += attributes_of("self", dict(reversed(found)).get("self"))
    owners = ((name, value) for name, value in found if issubclass(type(value), Module))
    inner = (
        (f"{name}.{key}", entry)
        for name, owner in owners
        for key, entry in [*object.__getattribute__(owner, "__dict__").get("_modules", {}).items()]
    )
    inside = (each for pair in found for each in entries_of(*pair))
    every = chain(found, inner, inside)
    return next((name for name, entry in every if entry is module), None)
