"""What is not gradscope's own is changed through a Handle, which undoes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.repository.house import ROOT

OWN_PROCESS = {
    "launch/child.py": "starts the interpreter of a child process",
    "launch/guard.py": "keeps a try inside its folder, in a process of its own",
    "launch/runner.py": "stands in for the interpreter that runs a program: argv, the last error",
    "launch/trial.py": "runs a try in a process of its own",
}
"""Files that set up a whole process, in which nothing is to be given back."""


def foreign_names(tree: ast.Module) -> set[str]:
    """The names under which a module has what it imports from elsewhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).split(".")[0] for a in node.names if not is_ours(a.name)}
        elif isinstance(node, ast.ImportFrom) and not is_ours(node.module or ""):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def is_ours(module: str) -> bool:
    return module.split(".")[0] == "gradscope"


def changed(tree: ast.Module) -> Iterator[ast.expr]:
    """What is assigned to or deleted in a module, beside its own variables."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                each = [part for target in targets for part in getattr(target, "elts", [target])]
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                each = [target]
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
                each = [ast.Attribute(owner, "")]
            case _:
                continue
        yield from (one for one in each if isinstance(one, ast.Attribute | ast.Subscript))


def root(expression: ast.expr) -> str:
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def patches(file: Path) -> list[str]:
    tree = ast.parse(file.read_text())
    foreign = foreign_names(tree)
    return [ast.unparse(each) for each in changed(tree) if root(each) in foreign]


def test_nothing_foreign_is_changed_without_a_handle() -> None:
    package = ROOT / "gradscope"
    found = {p.relative_to(package).as_posix(): patches(p) for p in sorted(package.rglob("*.py"))}
    assert {file for file, each in found.items() if each} == OWN_PROCESS.keys()


def test_a_change_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "patch.py"
    file.write_text("import torch\nfrom os import path\ntorch.save = 1\npath.x += 1\nmine = 2\n")
    assert patches(file) == ["torch.save", "path.x"]
