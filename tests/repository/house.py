"""The measures of the house: how the package is divided into rooms, floors and files.

``python -m tests.repository.house`` prints them, and exits with 1 if one is over its limit. The
budget of code and files is a total that only falls: whoever deletes lowers it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]

CODE = 34_695
FILES = 175
"""The budget: lines of code, without blanks, comments and docstrings, and files."""

ENTRIES = 20
CIRCLE = 3
LONGEST = 800
COLUMNS = 100
IGNORED_IMPORTS = 1

NO_CODE = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)
FOR_TOOLS = re.compile(r"  # (?:type: ignore|noqa|fmt:).*")


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    text: str
    is_package: bool

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.text)

    @property
    def lines(self) -> list[str]:
        """The text, line by line."""
        return self.text.splitlines()

    @property
    def lines_of_code(self) -> int:
        """The number of lines that have code on them: no blank, no comment, no docstring."""
        code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in NO_CODE:
                code.update(range(token.start[0], token.end[0] + 1))
        return len(code.difference(*map(_lines_of_docstring, ast.walk(self.tree))))

    def imported_names(self) -> Iterator[str]:
        """Return every name that an import statement mentions, wherever the statement stands."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def _base(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        above = len(parts) - statement.level + self.is_package
        return ".".join([*parts[:above], *filter(None, [statement.module])])

    def opens_with_one_sentence(self) -> bool:
        """Return whether the first paragraph of the docstring is a single sentence."""
        paragraph = (ast.get_docstring(self.tree) or "").partition("\n\n")[0]
        return bool(re.fullmatch(r"(?:(?![.?!]\s+[A-Z]).)+[.?]", paragraph, re.DOTALL))


def _lines_of_docstring(node: ast.AST) -> range:
    """Return the lines of the docstring of a module, a class or a function."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if not isinstance(node, kinds) or ast.get_docstring(node, clean=False) is None:
        return range(0)
    return range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


class House:
    """The package as it stands in a checkout."""

    def __init__(self, root: Path = ROOT, package: str = "gradscope") -> None:
        self.root = root
        self.folder = root / package
        self.modules = {
            module.name: module for module in map(self._module, sorted(self.folder.rglob("*.py")))
        }

    def _module(self, path: Path) -> Module:
        parts = path.relative_to(self.root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        return Module(name, path.read_text(encoding="utf-8"), is_package)

    def entries(self) -> list[str]:
        """Return what lies directly in the package, apart from the typing marker."""
        aside = {"py.typed", "__pycache__"}
        return sorted(path.name for path in self.folder.iterdir() if path.name not in aside)

    def circles(self) -> list[frozenset[str]]:
        """Return the groups of modules that reach each other by imports, the largest first."""
        edges = {name: self._imports(module) for name, module in self.modules.items()}
        reached = {name: _reachable(name, edges) for name in edges}
        circles = {
            frozenset(other for other in reached[name] if name in reached[other]) for name in edges
        }
        return sorted((circle for circle in circles if circle), key=len, reverse=True)

    def _imports(self, module: Module) -> set[str]:
        return {name for name in module.imported_names() if name in self.modules} - {module.name}

    def sizes(self) -> dict[str, int]:
        """Return the number of lines of each module."""
        return {name: len(module.lines) for name, module in self.modules.items()}

    def lines_of_code(self) -> int:
        """Return the number of lines of code of all modules."""
        return sum(module.lines_of_code for module in self.modules.values())

    def wide_lines(self) -> list[str]:
        """Return the places of the lines that are too wide, comments for tools at their end aside."""
        return [
            f"{name}:{number}"
            for name, module in self.modules.items()
            for number, line in enumerate(module.lines, 1)
            if len(FOR_TOOLS.sub("", line)) > COLUMNS
        ]

    def without_opening_sentence(self) -> list[str]:
        """Return the modules whose docstring does not open with one sentence."""
        return [
            name for name, module in self.modules.items() if not module.opens_with_one_sentence()
        ]

    def shared_class_names(self) -> list[str]:
        """Return the names that several public classes of the package have."""
        bodies = (module.tree.body for module in self.modules.values())
        classes = (each for body in bodies for each in body if isinstance(each, ast.ClassDef))
        times = Counter(each.name for each in classes if not each.name.startswith("_"))
        return sorted(name for name, count in times.items() if count > 1)

    def names_bound_twice(self) -> list[str]:
        """Return the names that a module binds twice at its top: the first is lost to all who use
        it, as where two files that have a constant of one name become one.
        """
        return [
            f"{module.name}.{name}"
            for module in self.modules.values()
            for name, times in Counter(_bound_at_the_top(module.tree)).items()
            if times > 1
        ]

    def numbers_without_reason(self) -> list[str]:
        """Return the numbers at the top of modules of which no comment says why they are so large:
        none stands beside them, after them, or above the lines in a row that they belong to.
        """
        return [
            f"{module.name}:{each.lineno}"
            for module in self.modules.values()
            for each, following in pairwise([*module.tree.body, ast.Pass()])
            if _is_number(each) and not _has_reason(module.lines, each, following)
        ]

    def contract_faults(self) -> list[str]:
        """Return what the import contract in pyproject.toml leaves open."""
        text = (self.root / "pyproject.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(text)["tool"]["importlinter"]
        floors = [each for each in settings["contracts"] if each["type"] == "layers"]
        ignored = [
            door for each in settings["contracts"] for door in each.get("ignore_imports", ())
        ]
        faults = {
            "the floors are not exhaustive": not all(each.get("exhaustive") for each in floors),
            "there are no floors": not floors,
            "imports for typing are not counted": settings.get("exclude_type_checking_imports"),
            f"{len(ignored)} imports are ignored": len(ignored) > IGNORED_IMPORTS,
        }
        return [fault for fault, is_there in faults.items() if is_there]


def _reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    """Return what can be reached from a module; the module itself only if it lies on a circle."""
    reached: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += edges[name]
    return reached


def _bound_at_the_top(tree: ast.Module) -> Iterator[str]:
    for each in tree.body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield each.name
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        for node in (node for target in targets if target for node in ast.walk(target)):
            if isinstance(node, ast.Name) and not isinstance(each, ast.AugAssign | ast.For):
                yield from [node.id] if isinstance(node.ctx, ast.Store) else ()


def _is_number(statement: ast.stmt) -> bool:
    """Return whether a statement binds a name to numbers alone."""
    value = getattr(statement, "value", None)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or value is None:
        return False
    nodes = [*ast.walk(value)]
    kinds = {type(each.value) for each in nodes if isinstance(each, ast.Constant)}
    parts = ast.Constant | ast.Tuple | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop
    return (
        bool(kinds)
        and kinds <= {int, float}
        and all(isinstance(each, parts | ast.expr_context) for each in nodes)
    )


def _has_reason(lines: list[str], statement: ast.stmt, following: ast.stmt) -> bool:
    own = lines[statement.lineno - 1 : statement.end_lineno]
    above = list(takewhile(str.strip, reversed(lines[: statement.lineno - 1])))
    is_told_after = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
    return is_told_after or any("#" in line for line in (*own, *above))


def main() -> int:
    """Print each measure beside its limit, and return the exit status."""
    house = House()
    sizes = house.sizes()
    budget = [
        ("lines of code", house.lines_of_code(), CODE),
        ("files", len(sizes), FILES),
    ]
    measures = [
        *budget,
        ("entries at the top", len(house.entries()), ENTRIES),
        ("largest circle of imports", max(map(len, house.circles()), default=0), CIRCLE),
        ("longest file, in lines", max(sizes.values()), LONGEST),
        (f"lines over {COLUMNS} columns", len(house.wide_lines()), 0),
        ("modules without an opening sentence", len(house.without_opening_sentence()), 0),
        ("classes of one name", len(house.shared_class_names()), 0),
        ("names bound twice in a module", len(house.names_bound_twice()), 0),
        ("numbers without a reason", len(house.numbers_without_reason()), 0),
        ("faults of the contract", len(house.contract_faults()), 0),
    ]
    print(f"{len(sizes)} files, {sum(sizes.values()):,} lines")
    for name, figure, limit in measures:
        print(f"{name:36} {figure:5}  (at most {limit}){'' if figure <= limit else '  over'}")
    for name, figure, limit in budget:
        if figure < limit:
            print(f"the budget of {name} can be lowered by {limit - figure}")
    return int(any(figure > limit for _, figure, limit in measures))


if __name__ == "__main__":
    sys.exit(main())
