"""Gives the interpreter the state that Python gives it for a script, a module, or code."""

from __future__ import annotations

import builtins
import linecache
import os
import pkgutil
import runpy
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType

from gradscope.errors import GradscopeError
from gradscope.launch.target import Code, Input, Module, Script, Target


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is ready to run in ``main``, now the interpreter's main module."""

    main: ModuleType
    run: Callable[[], None]


def prepare(target: Target) -> Program:
    """Make the interpreter ready for ``target``; raise GradscopeError if it cannot be read."""
    match target:
        case Script(path, args):
            return _prepare_script(path, args)
        case Module(name, args):
            main = _become_main(["-m", *args], os.getcwd())
            return Program(main, partial(_runpy_main, name))
        case Code(text, args):
            main = _become_main(["-c", *args], "")
            return Program(main, partial(_run_code, text + "\n", main))
        case Input(content, args):
            main = _become_main(["-", *args], "")
            return Program(main, partial(_run_input, content, main))


def _prepare_script(path: str, args: tuple[str, ...]) -> Program:
    absolute = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    if pkgutil.get_importer(absolute) is not None:
        main = _become_main([path, *args], absolute, even_if_safe=True)
        return Program(main, partial(_runpy_main, "__main__", alter_argv=False))
    try:
        content = SourceFileLoader("__main__", absolute).get_data(absolute)
    except OSError as error:
        raise GradscopeError(
            f"cannot run {path}: {error.strerror} (looked for {absolute});"
            " name a script that can be read"
        ) from None
    main = _become_main([path, *args], os.path.dirname(os.path.realpath(path)))
    return Program(main, partial(_run_script, absolute, content, main))


def _become_main(argv: list[str], first_on_path: str, even_if_safe: bool = False) -> ModuleType:
    """Put the program's ``__main__``, arguments and import path in the place of gradscope's."""
    main = ModuleType("__main__")
    main.__loader__ = BuiltinImporter
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = argv
    if not sys.flags.safe_path:
        sys.path[:1] = [first_on_path]
    elif even_if_safe:
        sys.path.insert(0, first_on_path)
    return main


_runpy_main: Callable[..., None] = runpy._run_module_as_main  # type: ignore[attr-defined]
"""What ``python -m`` itself calls: its frames belong to the tracebacks of such a program."""


def _run_script(path: str, content: bytes, main: ModuleType) -> None:
    main.__file__ = path
    main.__dict__["__cached__"] = None
    try:
        exec(_compile_script(path, content, main), main.__dict__)
    finally:
        for stream in (sys.stderr, sys.stdout):
            with suppress(Exception):  # as in Python, where the flush at the exit complains
                stream.flush()


def _compile_script(path: str, content: bytes, main: ModuleType) -> CodeType:
    if path.endswith(".pyc"):
        main.__loader__ = SourcelessFileLoader("__main__", path)
        code = main.__loader__.get_code("__main__")
        assert code is not None
        return code
    main.__loader__ = SourceFileLoader("__main__", path)
    return compile(content, path, "exec", dont_inherit=True)


def _run_input(content: bytes, main: ModuleType) -> None:
    main.__file__ = "<stdin>"
    main.__dict__["__cached__"] = None
    exec(compile(content, "<stdin>", "exec", dont_inherit=True), main.__dict__)


def _run_code(text: str, main: ModuleType) -> None:
    if sys.version_info >= (3, 14):
        text = textwrap.dedent(text)
    code = compile(text, "<string>", "exec", dont_inherit=True)
    if sys.version_info >= (3, 13):
        # The first 3.13 keeps such sources under their file's name.
        by_code = hasattr(linecache, "_interactive_cache")
        linecache._register_code(code if by_code else "<string>", text, "<string>")  # type: ignore[attr-defined]
    exec(code, main.__dict__)
