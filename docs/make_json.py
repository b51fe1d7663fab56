"""Writes ``docs/report.schema.json`` and the tables of ``docs/json.md``: the JSON report, by field.

Keys and types are those of the model, and ``docs/report.fields.toml`` says what each one means: a
field that is not described there is an error, and so is a description without a field. ``python
docs/make_json.py`` writes both files; with ``--check``, say how they would change.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import EnumType
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from changes import report_changes

from gradscope.model import SCHEMA, BackwardCall, Failure, Finding, Process, Summary
from gradscope.render.machine import keys
from gradscope.render.memory import GroupBy

HERE = Path(__file__).parent
MEANINGS, SCHEMA_FILE = HERE / "report.fields.toml", HERE / "report.schema.json"
PAGE = HERE / "json.md"

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}

# Behind this heading the page is made; what comes before it is written by hand.
_MADE = "## The fields\n"


class UndescribedError(Exception):
    """A field that has no meaning yet, or a meaning that has no field any more."""


def schema(meanings: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the JSON Schema of the report."""
    objects: dict[str, dict[str, Any]] = {}

    def of(kind: Any) -> dict[str, Any]:
        """Return the schema of a type; a dataclass is described once, and referred to."""
        origin, args = get_origin(kind), get_args(kind)
        if is_dataclass(kind):
            name = kind.__name__  # type: ignore[union-attr]
            if name not in objects:
                objects[name] = {}  # it may contain itself
                hints = get_type_hints(kind)
                own = keys(kind).items()
                objects[name] = {key: of(hints[field]) for key, field in own}
            return _referred(name)
        if isinstance(kind, EnumType):
            return {"enum": [word.value for word in kind]}  # type: ignore[attr-defined]
        if origin is UnionType:
            return {"anyOf": [of(arg) for arg in args]}
        if origin is dict:
            return {"type": "object", "additionalProperties": of(args[1])}
        if origin in (tuple, Sequence):
            return {"type": "array", "items": of(args[0])}
        return {"type": _PLAIN[kind]}

    nothing = {"type": "null"}
    size = {"saved_bytes": of(int), "alone_bytes": of(int | None)}
    groups = {"type": "array", "items": _referred("MemoryGroup")}
    objects["Report"] = {
        "schema": {"const": SCHEMA},
        "gradscope": of(str),
        "torch": of(str),
        "script": _referred("Script"),
        "summary": of(Summary),
        "findings": of(tuple[Finding, ...]),
        "calls": of(tuple[BackwardCall, ...]),
        "processes": of(tuple[Process, ...]),
        "memory": {"anyOf": [_referred("Memory"), nothing]},
    }
    objects["Script"] = {
        "path": of(str),
        "argv": of(tuple[str, ...]),
        "exit_status": of(int | None),
        "exception": of(str | None),
        "finished": of(bool),
        "running": of(str),
        "failure": of(Failure | None),
    }
    objects["Memory"] = {"backward_call": of(int), "process": of(str), **size}
    objects["Memory"] |= {f"by_{kind}": groups for kind in GroupBy} | {
        "by_device": of(dict[str, int]),
    }
    objects["MemoryGroup"] = {"name": of(str), **size}
    described = {name: _described(name, objects[name], meanings) for name in meanings}
    if unnamed := objects.keys() - meanings.keys():
        raise UndescribedError(f"{MEANINGS.name} lacks {', '.join(sorted(unnamed))}")
    whole = described.pop("Report")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return head | {"title": "The JSON report of gradscope"} | whole | {"$defs": described}


def _referred(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def _described(
    name: str, properties: dict[str, Any], meanings: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """Return the schema of an object; raise UndescribedError unless each field has its meaning."""
    said = dict(meanings[name])
    what = said.pop("_")
    if said.keys() != properties.keys():
        differ = ", ".join(sorted(said.keys() ^ properties.keys()))
        raise UndescribedError(f"{MEANINGS.name}, [{name}], and the report differ in: {differ}")
    told = {key: {"description": said[key], **each} for key, each in properties.items()}
    return {"description": what, "type": "object", "required": list(told), "properties": told}


def page(whole: Mapping[str, Any], before: str) -> str:
    """Return the page, with a table for each object."""
    by_hand = before.partition(_MADE)[0]
    objects = {"Report": whole, **whole["$defs"]}
    return by_hand + _MADE + "".join(_table(name, each) for name, each in objects.items())


def _table(name: str, described: Mapping[str, Any]) -> str:
    rows = [
        f"| `{key}` | {_type(each)} | {each['description']} |"
        for key, each in described["properties"].items()
    ]
    head = (
        f"\n### {name}\n\n{described['description']}\n\n| key | type | meaning |\n|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def _type(own: Mapping[str, Any]) -> str:
    """Return what a type is called in a table."""
    match own:
        case {"$ref": path}:
            name = path.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": types}:
            return " or ".join(map(_type, types))
        case {"enum": words}:
            return ", ".join(f"`{word}`" for word in words)
        case {"const": value}:
            return f"`{value}`"
        case {"items": item}:
            return f"list of {_type(item)}"
        case {"additionalProperties": value}:
            return f"object of {_type(value)}"
    return str(own["type"])


def made() -> dict[Path, str]:
    """Return the text of both files."""
    whole = schema(tomllib.loads(MEANINGS.read_text(encoding="utf-8")))
    text = page(whole, PAGE.read_text(encoding="utf-8"))
    return {SCHEMA_FILE: json.dumps(whole, indent=2) + "\n", PAGE: text}


def main() -> int:
    """Write both files, or compare them."""
    if "--check" in sys.argv[1:]:
        return report_changes(made())
    for file, text in made().items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
