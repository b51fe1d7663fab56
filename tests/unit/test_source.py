"""Reading source: one parsed file per file, one idea of "in place"."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path

import pytest

from gradscope.code import source, statements

PROGRAM = """\
class Trainer:
    def fit(self, xs):
        def inner(x):
            return [lambda: x.relu_() for _ in xs]
        for x in xs:
            x += 1; y = inner(x)
total = 0
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM, encoding="utf-8")
    return str(script)


def test_a_file_is_parsed_once_until_it_changes(file: str) -> None:
    first = source.parsed(file)
    assert source.parsed(file) is first
    linecache.checkcache(file)
    assert source.parsed(file) is first
    Path(file).write_text("other = 1\n# longer than before\n" + PROGRAM, encoding="utf-8")
    assert source.parsed(file) is first
    linecache.checkcache(file)
    assert source.parsed(file) is not first
    assert isinstance(source.tree(file).body[0], ast.Assign)


@pytest.mark.parametrize("text", ["", "def f(:\n", None])
def test_a_file_that_is_no_program_has_no_nodes(text: str | None, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    if text is not None:
        script.write_text(text, encoding="utf-8")
    assert [type(found.node) for found in source.parsed(str(script)).nodes] == [ast.Module]
    assert statements.in_place_statements(str(script)) == ()


def test_nodes_know_their_function_as_code_objects_do(file: str) -> None:
    found = {type(f.node).__name__: f for f in source.parsed(file).nodes}
    assert found["Return"].function == "Trainer.fit.<locals>.inner"
    assert found["AugAssign"].function == "Trainer.fit"
    assert found["AugAssign"].in_loop
    assert not found["Return"].in_loop
    call = next(f for f in source.parsed(file).nodes if isinstance(f.node, ast.Call))
    assert call.function == "Trainer.fit.<locals>.inner.<locals>.<lambda>"
    last = source.parsed(file).nodes[-1]
    assert last.function == "<module>"


@pytest.mark.parametrize("method", ["add_", "relu_", "t_", "apply_", "masked_fill_", "index_add_"])
def test_a_trailing_underscore_means_in_place(method: str) -> None:
    assert statements.is_in_place(method)


@pytest.mark.parametrize(
    "method", ["add", "__init__", "_", "requires_grad_", "share_memory_", "retain_grad_", "_hook_"]
)
def test_what_is_not_in_place(method: str) -> None:
    assert not statements.is_in_place(method)


@pytest.mark.parametrize(
    ("code", "modified"),
    [
        ("x += 1", ["x"]),
        ("self.u[0] = y", ["self.u"]),
        ("x.mul_(0.9).add_(y)", ["x"]),
        ("torch.relu_(x)", ["x"]),
        ("torch.add(x, y, out=z)", ["z"]),
        ("x = y", []),
        ("x.add(y)", []),
        ("net.load_state_dict(state)", ["net"]),
    ],
)
def test_what_a_statement_modifies(code: str, modified: list[str]) -> None:
    statement = ast.parse(code).body[0]
    node = statement.value if isinstance(statement, ast.Expr) else statement
    assert [*map(ast.unparse, statements.modified(node))] == modified


def test_operations_are_found_by_the_name_of_their_node(file: str) -> None:
    assert [s.site.line for s in statements.operations(file, "AddBackward0")] == [6]
    assert statements.operations(file, "MulBackward0") == ()
