"""What gradscope puts in the place of others' things it takes back, unless another tool has put its own there since."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gradscope
from gradscope.collect.walk import StackLimit
from gradscope.launch.children import ChildPlan, Children
from gradscope.launch.interpreter import header_of
from gradscope.launch.runner import _TorchFinder

PACKAGE = Path(gradscope.__file__).parent

ALLOWED = {
    "errors.py": {
        "setattr(owner, name, new)",
        "delattr(owner, name)",
        "setattr(owner, name, original)",
    },
    "torch_private.py": {"setattr(_by_thread, key, value)"},
    # the program's own, from then on
    "launch/runner.py": {
        *("sys.modules['__main__'] = main", "sys.argv = argv", "sys.path[:1] = [first_on_path]"),
        *("sys.path.insert(0, first_on_path)", "sys.meta_path.insert(0, finder)"),
        *("sys.meta_path.remove(self)", "sys.last_exc = error", "setattr(sys, name, value)"),
        "sys.excepthook = say_nothing",
    },
    "launch/child.py": {"sys.path[:not sys.flags.safe_path] = [_ROOT]"},
    # in a process of gradscope's, which ends with the work
    "launch/guard.py": {
        "tempfile.tempdir = folder",
        "os.environ |= dict.fromkeys(('TMPDIR', *_CACHES), folder)",
    },
    "launch/fork_server.py": {"os.environ.clear()", "os.environ.update(environment)"},
    "launch/rehearsal_run.py": {
        "vars(builtins).update(noted | {ADD: rehearsal.add, HEAD: rehearsal.head})",
        "vars(builtins)['compile'] = compile_source",
    },
    "launch/trial.py": {
        *("sys.dont_write_bytecode = True", "sys.excepthook = traceback.print_exception"),
        "os.environ['TORCHDYNAMO_DISABLE'] = '1'",
        "linecache.cache[path] = (len(content), no_date, lines, path)",
    },
}
"""The other changes of what is not gradscope's. Each new one goes through ``replace``, or is allowed here."""
OF_OBJECTS = {
    *("hooks.py", "collect/traced_numbers.py", "fixing/instrumentation.py"),
    *("program/ahead/opcodes.py", "program/ahead/values.py"),
}
"""Files that set attributes of their own objects by a name."""
CHANGING = {"insert", "append", "remove", "pop", "update", "setdefault", "clear", "extend"}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            own = (node.module or "").startswith("gradscope")
            yield from (each.asname or each.name for each in node.names if not own)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars":
        node = node.args[0]
    return node.id if isinstance(node, ast.Name) else ""


def _changes(tree: ast.Module) -> Iterator[str]:
    """Yield the statements that change an attribute or a part of something imported from elsewhere."""
    foreign = {*_imported(tree)}
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("setattr", "delattr"):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            part = node.func.value
            is_part = isinstance(part, ast.Attribute | ast.Call)
            if node.func.attr in CHANGING and is_part and _root(part) in foreign:
                yield ast.unparse(node)
        for target in targets:
            if not isinstance(target, ast.Name) and _root(target) in foreign:
                yield ast.unparse(node)


def test_no_other_change_of_what_is_not_ours() -> None:
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        changes = {*_changes(ast.parse(file.read_text(encoding="utf-8")))}
        if changes and name not in OF_OBJECTS:
            found[name] = changes
    assert found == ALLOWED


def _children() -> Children:
    plan = ChildPlan("1-1", "{pid}.gscope", {}, "train.py", ())
    return Children(plan, header_of(["train.py"], hooks=True))


def test_what_another_tool_puts_on_top_stays_and_ours_beneath_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []

    def system(command: Any) -> int:
        called.append(command)
        return 7

    monkeypatch.setattr(os, "system", system)
    spawn = getattr(os, "posix_spawn", None)
    children = _children()
    with children:
        beneath = os.system

        def theirs(command: Any) -> int:
            called.append("theirs")
            return beneath(command)

        os.system = theirs
    assert os.system is theirs
    assert getattr(os, "posix_spawn", None) is spawn
    assert os.system(f"{sys.executable} train.py") == 7
    assert called == ["theirs", f"{sys.executable} train.py"]
    assert children.unwatched == []
    with _children():
        pass
    assert os.system is theirs


class Loaded:
    """A loader of torch, with what another tool has put on it."""

    def __init__(self) -> None:
        self.did: list[str] = []

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.did.append("loaded")


@pytest.mark.parametrize("when", ["before", "since"])
def test_what_another_tool_has_put_on_the_loader_of_torch_is_called_once(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader: Any = Loaded()
    spec = ModuleSpec("torch", loader)

    class Finder:
        @staticmethod
        def find_spec(*_: object) -> ModuleSpec:
            return spec

    def put() -> None:
        beneath = loader.exec_module

        def theirs(module: ModuleType) -> None:
            loader.did.append("theirs")
            beneath(module)

        loader.exec_module = theirs

    finder = _TorchFinder(lambda: loader.did.append("watched"))
    monkeypatch.setattr(sys, "meta_path", [finder, Finder])
    if when == "before":
        put()
    assert finder.find_spec("torch", None) is spec
    if when == "since":
        put()
    on_top = loader.exec_module
    module = ModuleType("torch")
    loader.exec_module(module)
    assert loader.did == ["theirs", "loaded", "watched"]
    assert sys.meta_path == [Finder]
    assert loader.exec_module is on_top or when == "before"
    assert loader.exec_module.__name__ == "theirs"


@pytest.mark.skipif(sys.platform != "linux", reason="the stack's limit is raised on Linux only")
def test_a_limit_that_the_program_sets_meanwhile_stays() -> None:
    import resource

    before = soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= StackLimit.LARGEST:
        pytest.skip("the limit is high already")
    try:
        limit = StackLimit()
        limit.room_for(300_000)
        limit.restore()
        assert resource.getrlimit(resource.RLIMIT_STACK) == before
        limit.room_for(300_000)
        chosen = soft + (1 << 20), hard
        resource.setrlimit(resource.RLIMIT_STACK, chosen)
        limit.restore()
        assert resource.getrlimit(resource.RLIMIT_STACK) == chosen
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)
