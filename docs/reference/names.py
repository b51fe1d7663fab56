"""Makes one page for each public name, from its source: nothing is imported for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path

from mentions import shown_in

ROOT = Path(__file__).parents[2]

INNER = ("Printed", "Listing")
"""Classes that say nothing to users."""

FOR_USERS = {"Scope": ("findings", "summary", "recording", "draw")}
"""What users need of a class that has more."""

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
    typed = next(node for node in _tree("gradscope").body if isinstance(node, ast.If))
    names = (each.asname for node in ast.walk(typed) for each in getattr(node, "names", ()))
    return sorted(filter(None, names), key=str.casefold)


def page(name: str, source: Source, reached: Reached) -> str:
    """Return the page of a name; note the classes that it leads to."""
    node = source.node
    entered = _method(node, "__enter__")
    called = node if isinstance(node, ast.FunctionDef) else _method(node, "__init__")
    gives = entered or (node if isinstance(node, ast.FunctionDef) else None)
    parts = [f"# gradscope.{name}"]
    if called is not None:
        parts.append(f"```python\n{_signature(f'gradscope.{name}', called)}\n```")
    elif isinstance(node, ast.ClassDef) and node.bases:
        parts.append(f"A `{ast.unparse(node.bases[0])}`.")
    parts.append(_prose(_docstring(node)))
    if gives is not None and gives.returns is not None:
        reached.follow(source.module, gives.returns)
        kind = ast.unparse(gives.returns).rpartition(".")[2]
        parts.append(f"{'The `with` block gives' if entered else 'Returns'} `{kind}`.")
    parts.append(shown_in(rf"\b{name}\b"))
    return "\n\n".join(filter(None, parts)) + "\n"


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
            name = ast.unparse(each.targets[0])
            if name.isupper():
                yield f"{name} = {each.value.value!r}"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and not _is_inner(each):
            yield f"{ast.unparse(each.target)}: {ast.unparse(each.annotation)}"


def _methods(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the attributes, properties and methods that say what they are."""
    wanted = FOR_USERS.get(node.name)
    for name, called, said in _documented(node):
        if not name.startswith("_") and (wanted is None or name in wanted):
            yield called, _prose(said).split("\n\n")[0].replace("\n", " ")


def _documented(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    made = _method(node, "__init__")
    for each, after in pairwise(made.body if made else []):
        target = each.targets[0] if isinstance(each, ast.Assign) else None
        text = after.value if isinstance(after, ast.Expr) else None
        if isinstance(target, ast.Attribute) and isinstance(text, ast.Constant):
            yield target.attr, target.attr, cleandoc(str(text.value))
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            is_property = any("property" in ast.unparse(one) for one in each.decorator_list)
            arguments = "" if is_property else f"({', '.join(_arguments(each))})"
            yield each.name, each.name + arguments, _docstring(each)


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
    line = f"{name}({', '.join(arguments)})"
    return (
        line
        if len(line) < 80
        else "\n    ".join([f"{name}(", *(f"{a}," for a in arguments)]) + "\n)"
    )


def _arguments(function: ast.FunctionDef) -> list[str]:
    """Return each argument as it is written in a signature."""
    given = function.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + given.defaults
    found = [_argument(*each) for each in zip(given.args, defaults, strict=True)]
    if given.vararg:
        found.append(f"*{_argument(given.vararg)}")
    elif given.kwonlyargs:
        found.append("*")
    found += [_argument(*each) for each in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    found += [f"**{_argument(given.kwarg)}"] if given.kwarg else []
    return found[1:] if found[:1] == ["self"] else found


def _argument(given: ast.arg, default: ast.expr | None = None) -> str:
    kind = f": {ast.unparse(given.annotation)}" if given.annotation else ""
    return given.arg + kind + (f" = {ast.unparse(default)}" if default else "")


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
