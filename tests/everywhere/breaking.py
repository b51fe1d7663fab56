"""Breaks one thing of gradscope's or of torch's, then runs a program plain or watched.

``breaking.py raise|fact|missing TARGET plain|run PROGRAM [OPTION...]``
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from types import FunctionType
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def owner_of(target: str) -> tuple[Any, str]:
    """Return what holds a target, ``module:Class.method``, and under which name."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, name


def make_raise(target: str) -> None:
    """Have a function of gradscope's raise when it is called, wherever it is bound."""
    owner, name = owner_of(target)
    original: Any = vars(owner)[name]
    function: Any = original.fget if isinstance(original, property) else original
    function = getattr(function, "__func__", function)
    # A frame of the program's in the traceback would make it an exception of the program's.
    function.__code__ = _broken.__code__.replace(
        co_filename=function.__code__.co_filename, co_freevars=function.__code__.co_freevars
    )


def _broken(*args: object, **kwargs: object) -> None:
    raise ZeroDivisionError("broken for a test")


def functions_of(module: str) -> list[str]:
    """Return the functions and methods that a module defines, as targets."""
    found = []
    file = importlib.import_module(module).__file__
    for name, value in vars(importlib.import_module(module)).items():
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, FunctionType):
            found.append(f"{module}:{name}")
        elif isinstance(value, type):
            for inner, member in vars(value).items():
                plain = getattr(member, "fget", None) or getattr(member, "__func__", member)
                # What a dataclass generates is in no file: its exceptions look like the program's.
                if isinstance(plain, FunctionType) and plain.__code__.co_filename == file:
                    found.append(f"{module}:{name}.{inner}")
    return found


def deny(statement: str) -> None:
    """Have the probe of a fact fail."""
    from gradscope.collect import facts

    vars(facts)["FACTS"] = tuple(
        fact._replace(probe=lambda: False) if fact.statement == statement else fact
        for fact in facts.FACTS
    )


def remove(target: str) -> None:
    """Take a name away from torch, before gradscope looks for it."""
    owner, name = owner_of(target)
    delattr(owner, name)


def main(how: str, target: str, way: str, program: str, *options: str) -> None:
    """Break ``target`` and run the program."""
    import torch  # noqa: F401 - as a watch begins only then

    if how == "missing":
        remove(target)
    elif way != "plain":
        {"raise": make_raise, "fact": deny}[how](target)
    if way == "plain":
        sys.argv[:] = [program]
        runpy.run_path(program, run_name="__main__")
        return
    sys.argv[:] = ["gradscope", "run", *options, program]
    from gradscope.cli import main as run

    run()


if __name__ == "__main__":
    sys.path.insert(0, ROOT)
    main(*sys.argv[1:])
