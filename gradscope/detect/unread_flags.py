"""Finds where a program sets ``requires_grad`` of something that autograd does not read it of."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FunctionType

from torch.nn import Module

from gradscope.code import source
from gradscope.code.statements import flags_set
from gradscope.formatting import gathered
from gradscope.model import Site
from gradscope.program.tensors import requires_grad
from gradscope.rules.gs506 import NotRead

_FLAG = "requires_grad"
# Other names that programs give to it. A tensor takes any.
_SLIPS = "require_grad", "required_grad", "require_grads", "requires_grads"


def unread_flags(
    modules: Iterable[tuple[str, Module]], names: Mapping[int, str], files: Collection[str]
) -> Iterator[NotRead]:
    """Yield what modules and their parameters have as an attribute of that kind, where all the
    parameters that it stands for are the other way; ``files`` are those that may have set it.
    """
    slips: list[tuple[str, bool, str]] = []
    for name, module in modules:
        value = module.__dict__.get(_FLAG)
        if isinstance(value, bool) and not _reads_flag(type(module)):
            own = [*Module.named_parameters(module)]
            if own and all(requires_grad(each) is not value for _, each in own):
                told = tuple(names.get(id(each), f"{name}.{of}") for of, each in own)
                yield NotRead(_FLAG, value, name, told, _line(name, _FLAG, value, files))
        slips += [
            (slip, to, names.get(id(each), f"{name}.{of}"))
            for of, each in module._parameters.items()
            if each is not None
            for slip in _SLIPS
            if isinstance(to := vars(each).get(slip), bool) and requires_grad(each) is not to
        ]
    same = gathered(dict.fromkeys(slips), lambda slip: slip[:2])
    for (attribute, value), found in same.items():
        told = tuple(name for *_, name in found)
        yield NotRead(attribute, value, "", told, _line("", attribute, value, files))


def _reads_flag(kind: type) -> bool:
    """Return whether a class of the program's has code that names the attribute."""
    own = (each for each in kind.__mro__ if not each.__module__.startswith("torch."))
    functions = (f for each in own for f in vars(each).values() if isinstance(f, FunctionType))
    return any(_FLAG in function.__code__.co_names for function in functions)


def _line(module: str, attribute: str, value: bool, files: Collection[str]) -> Site | None:
    """Return the line that has set it: the one that names the module, or the only one."""
    found = [(file, a) for file in files for a in flags_set(file, attribute, value=value)]
    text = f"{module}.{attribute}"
    own = [each for each in found if ast.unparse(each[1].targets[0]) == text] or found
    return source.of_node(own[0][1], own[0][0]) if len(own) == 1 else None
