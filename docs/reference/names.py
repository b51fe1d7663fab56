"""Makes one page for each public name, from its source: nothing is imported for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mentions import shown_in

ROOT = Path(__file__).parents[2]

INNER = ("Printed", "Listing")
"""Classes that say nothing to users."""

_ROLE = re.compile(r":\w+:`(?:[\w.]+\.)?(\w+)`")
_EXAMPLE = re.compile(r"^Example::\n\n((?:    .*\n?|\n)+)", re.MULTILINE)

DATA = """# What they return

Plain data: frozen dataclasses and tuples of them, which print as text and show themselves in a
notebook. Bytes are of saved activations, each storage counted once, parameters not counted, unless
a field says otherwise; times are in seconds; lines and columns count from 1. All but a few are in
`gradscope.model`.

"""


@dataclass(frozen=True)
class Source:
    """A definition, and the module that it stands in."""

    node: ast.FunctionDef | ast.ClassDef
    module: str


@dataclass
class Reached:
    """The classes that public names return, and those that these lead to, as they are met."""

    classes: dict[str, Source] = field(default_factory=dict)

    def follow(self, module: str, *annotations: ast.expr | None) -> None:
        """Note the classes of the package in annotations that stand in a module."""
        for name in _names(annotations):
            found = _resolve(module, name)
            if (
                found
                and isinstance(found.node, ast.ClassDef)
                and name not in {*self.classes, *INNER}
            ):
                self.classes[name] = found
                self.follow(found.module, *found.node.bases, *_annotations(found.node))


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    reached, made, rows = Reached(), {}, []
    for name in public():
        source = _resolve("gradscope", name)
        assert source is not None, name
        made[f"python/{name}.md"] = page(name, source, reached)
        summary = _prose(_docstring(source.node)).split("\n\n")[0].replace("\n", " ")
        rows.append(f"| [`{name}`]({name}.md) | {summary} |")
    table = "\n".join(["| name | |", "|---|---|", *rows])
    made["python/index.md"] = f"# Python\n\nThe public names of `import gradscope`.\n\n{table}\n"
    texts = [_class(name, reached.classes[name]) for name in sorted(reached.classes)]
    made["python/what-they-return.md"] = DATA + "\n\n".join(texts) + "\n"
    return {name: _linked(text, name, reached) for name, text in made.items()}


def public() -> list[str]:
    """Return the names of the package that are made for users."""
    tree = _tree("gradscope")
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_WHERE"
    )
    return sorted(ast.literal_eval(table), key=str.casefold)


def page(name: str, source: Source, reached: Reached) -> str:
    """Return the page of a name; note the classes that it leads to."""
    node = source.node
    parts = [f"# gradscope.{name}"]
    function = node if isinstance(node, ast.FunctionDef) else _method(node, "__init__")
    if function is not None:
        parts.append(f"```python\n{_signature(f'gradscope.{name}', function)}\n```")
        entered = _method(node, "__enter__") if isinstance(node, ast.ClassDef) else function
        returned = entered.returns if entered else None
        reached.follow(source.module, returned)
        words = "Its `with` block gives" if entered is not function else "Returns"
        if returned is not None:
            parts.append(f"{words} `{ast.unparse(returned)}`.")
    elif isinstance(node, ast.ClassDef) and node.bases:
        parts.append(f"A `{ast.unparse(node.bases[0])}`.")
    parts += [_prose(_docstring(node)), shown_in(rf"\b{name}\b")]
    return "\n\n".join(parts) + "\n"


def _class(name: str, source: Source) -> str:
    """Return the section of a class: what it says, its fields, its properties and methods."""
    assert isinstance(source.node, ast.ClassDef)
    bases = [ast.unparse(base) for base in source.node.bases]
    tuple_of = [f"A tuple of `{base[8:-1]}`." for base in bases if base.startswith("Listing[")]
    parts = [f"## {name}", f"`{source.module}.{name}`", *tuple_of, _prose(_docstring(source.node))]
    fields = [*_values(source.node), *_fields(source.node)]
    if fields:
        parts.append("\n".join(["```python", *fields, "```"]))
    parts += [f"`{called}`\n{':   '}{said}" for called, said in _methods(source.node)]
    return "\n\n".join(filter(None, parts))


def _values(node: ast.ClassDef) -> Iterator[str]:
    """Yield the members of an enumeration."""
    for each in node.body:
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):
            yield f"{ast.unparse(each.targets[0])} = {each.value.value!r}"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and not _is_inner(each):
            yield f"{ast.unparse(each.target)}: {ast.unparse(each.annotation)}"


def _methods(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            is_property = any("property" in ast.unparse(one) for one in each.decorator_list)
            arguments = "" if is_property else f"({_arguments(each)})"
            said = _prose(_docstring(each)).split("\n\n")[0].replace("\n", " ")
            yield f"{each.name}{arguments}", said


def _annotations(node: ast.ClassDef) -> Iterator[ast.expr | None]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            yield each.annotation
        elif isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            yield each.returns


def _is_inner(node: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(node.annotation) or ast.unparse(node.target).startswith("_")


def _names(annotations: tuple[ast.expr | None, ...]) -> Iterator[str]:
    for annotation in annotations:
        for node in ast.walk(annotation) if annotation else ():
            if isinstance(node, ast.Name):
                yield node.id


def _signature(name: str, function: ast.FunctionDef) -> str:
    """Return how a function is called, one argument a line where one line is too short."""
    arguments = _arguments(function)
    if len(name) + len(arguments) < 78:
        return f"{name}({arguments})"
    split = re.sub(r", (?=\*|\w+(?::|=))", ",\n    ", arguments)
    return f"{name}(\n    {split},\n)"


def _arguments(function: ast.FunctionDef) -> str:
    return re.sub(r"^self(?:, )?", "", ast.unparse(function.args))


def _method(node: ast.AST, name: str) -> ast.FunctionDef | None:
    body = node.body if isinstance(node, ast.ClassDef) else []
    found = (each for each in body if isinstance(each, ast.FunctionDef) and each.name == name)
    return next(found, None)


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def _prose(docstring: str) -> str:
    """Return a docstring as Markdown."""
    text = _ROLE.sub(r"`\1`", docstring).replace("``", "`")

    def fenced(example: re.Match[str]) -> str:
        lines = [line[4:] for line in example[1].rstrip().splitlines()]
        return "\n".join(["```python", *lines, "```"])

    return _EXAMPLE.sub(fenced, text)


def _linked(text: str, page_: str, reached: Reached) -> str:
    """Return a page whose words for our classes lead to their description."""
    data = "" if page_ == "python/what-they-return.md" else "what-they-return.md"
    parts = re.split(r"(^```.*?^```$|^#.*$)", text, flags=re.MULTILINE | re.DOTALL)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(
            r"(?<!\[)`(\w+)`(?!\])",
            lambda word: (
                f"[`{word[1]}`]({data}#{word[1].lower()})"
                if word[1] in reached.classes
                else word[0]
            ),
            parts[at],
        )
    return "".join(parts)


def _resolve(module: str, name: str) -> Source | None:
    """Return where the package defines a name that a module uses."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Source(node, module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradscope"):
            imported = [alias.asname or alias.name for alias in node.names]
            if name in imported:
                return _resolve(node.module or "", name)
    return None


@cache
def _tree(module: str) -> ast.Module:
    path = ROOT / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
