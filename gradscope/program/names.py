"""Names for modules, parameters and other tensors, as the user would write them: ``model.encoder.0.weight``."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch.nn import Module

from gradscope.program.sites import USER, owner_of
from gradscope.program.tensors import is_leaf, storage_of
from gradscope.program.variables import Variable, variables

_CALL = Module._call_impl.__code__
_MODULE = Variable(_CALL, "self")
_DEEPEST = 60  # frames looked at for a module


class Names:
    """Remembers names by identity, holding neither modules nor tensors alive."""

    def __init__(self) -> None:
        self._modules: dict[int, tuple[weakref.ref[Module], str, str]] = {}
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._storages: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}

    def module_of(self, frame: FrameType | None) -> tuple[str, str] | None:
        """Qualified name and class of the innermost module whose ``forward`` runs in ``frame`` or its callers."""
        depth = 0
        while frame is not None and depth < _DEEPEST:
            code = frame.f_code
            if code is _CALL:
                module = _MODULE.of(frame)
                known = self._modules.get(id(module))
                if known is None or known[0]() is not module:
                    self._learn(frame, module)
                    known = self._modules.get(id(module))
                return None if known is None else known[1:]
            if code.co_name == "<module>":
                return None
            frame = frame.f_back
            depth += 1
        return None

    def of_tensor(self, tensor: torch.Tensor) -> str | None:
        """The qualified name of a parameter or buffer or the name of a variable, if one that shares its memory was learnt."""
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        key = storage_of(tensor)
        shared = self._storages.get(key)
        named = None if shared is None else shared[0]()
        return (
            shared[1]
            if shared is not None and named is not None and storage_of(named) == key
            else None
        )

    def learn_variables(self, frames: Iterable[FrameType]) -> None:
        """Learn the modules and tensors that the global and local variables of the user's frames name directly."""
        for frame in frames:
            found = variables(frame)
            for name, value in found:
                if issubclass(type(value), Module):
                    self._learn_module(value, name)
            for name, value in found:
                if (
                    issubclass(type(value), torch.Tensor)
                    and not name.startswith("_")
                    and is_leaf(value)
                ):
                    self._remember(value, name)

    def _learn(self, frame: FrameType, module: Module) -> None:
        """Learn all modules of the outermost call in progress, named by the variable that holds its module."""
        outermost, caller = module, frame.f_back
        above: FrameType | None = frame
        depth = 0
        while above is not None and depth < _DEEPEST:
            if above.f_code is _CALL:
                outermost, caller = _MODULE.of(above), above.f_back
            above = above.f_back
            depth += 1
        while caller is not None and owner_of(caller.f_code) != USER:
            caller = caller.f_back
        name = _variable(caller, outermost) if caller is not None else None
        self._learn_module(outermost, name or type(outermost).__name__)
        if id(module) not in self._modules:  # called from a module that does not list it as its own
            self._learn_module(module, type(module).__name__)

    def _learn_module(self, root: Module, label: str) -> None:
        known = self._modules.get(id(root))
        if known is not None and known[0]() is root:
            return
        for path, module in Module.named_modules(root):
            name = f"{label}.{path}" if path else label
            self._modules[id(module)] = (weakref.ref(module), name, type(module).__name__)
            for kind in (module._parameters, module._buffers):
                for key, value in kind.items():
                    if value is not None:
                        self._remember(value, f"{name}.{key}")

    def _remember(self, tensor: torch.Tensor, name: str) -> None:
        known = self._tensors.get(id(tensor))
        if known is None or known[0]() is not tensor:
            self._tensors[id(tensor)] = self._storages[storage_of(tensor)] = (
                weakref.ref(tensor),
                name,
            )


def _variable(frame: FrameType, value: Any) -> str | None:
    """The name of the variable that holds ``value`` as the frame's code sees it."""
    for name, candidate in variables(frame):
        if candidate is value and not name.startswith("__"):
            return name
    for name, candidate in variables(frame):
        if name == "self" and issubclass(type(candidate), object):
            for attribute, held in (
                vars(candidate).items() if hasattr(candidate, "__dict__") else ()
            ):
                if held is value:
                    return f"self.{attribute}"
    return None
