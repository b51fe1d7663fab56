"""Writes down fixes as edits of the user's lines, where they are edits of one or a few lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from gradscope.code import places, source
from gradscope.detect.foresight.reading import Reading
from gradscope.model import Edit, Site
from gradscope.program.sites import place_in
from gradscope.program.variables import local_variables
from gradscope.rules.gs102 import SharedGraph, fix_kind

_INDENT = "    "


def edits_for(facts: SharedGraph, readings: Iterable[Reading]) -> tuple[Edit, ...]:
    """The edits that make the fix; none where it takes more than that."""
    assert facts.call.site is not None
    same = [r for r in readings if r.backward == facts.next_call]
    match fix_kind(facts):
        case "retain_graph":
            return _retain(facts.call.site)
        case "sum_losses" if facts.elements:
            return _sum_of_loop(facts.call.site, facts.elements)
        case "sum_losses":
            return _sum(facts.call.site, facts.next_call)
        case "item":
            return _item(facts.call.site, facts.holder)
        case "no_grad" if facts.link is not None:
            return _no_grad(facts.link)
        case "recompute" if not facts.same_root:
            return _move(facts, same)
        case "detach" if facts.again and facts.carried:
            return _detach_after(same)
        case "detach" if facts.again:
            return _detach_where_stored(facts)
        case "detach":
            return _detach_in_loss(facts)
    return ()


def _lines(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)


def _indent(file: str, line: int) -> str:
    return re.match(r"\s*", source.line_of(file, line))[0]  # type: ignore[index]


def _alone(file: str, node: ast.AST | None) -> bool:
    """Whether a statement has its lines for itself."""
    if node is None:
        return False
    first, last = _lines(node)
    text = "\n".join(source.line_of(file, line) for line in range(first, last + 1))
    try:
        return len(ast.parse(_dedent(text)).body) == 1
    except SyntaxError:
        return False


def _dedent(text: str) -> str:
    indent = len(text) - len(text.lstrip())
    return "\n".join(
        line[min(indent, len(line) - len(line.lstrip())) :] for line in text.splitlines()
    )


def _retain(site: Site) -> tuple[Edit, ...]:
    line = source.line_of(site.file, site.line)
    end = site.end_column - 1
    if site.end_line != site.line or line[end - 1 : end] != ")" or "retain_graph" in line:
        return ()
    given = "" if line[:end].endswith("()") else ", "
    return (
        Edit(site.file, site.line, f"{line[: end - 1]}{given}retain_graph=True{line[end - 1 :]}"),
    )


def _plain_backward(site: Site) -> str:
    """The loss of a statement that is no more than ``loss.backward()``."""
    statement = source.statement_at(site)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr != "backward"
    ):
        return ""
    if call.args or call.keywords or not _alone(site.file, statement) or site.line != site.end_line:
        return ""
    return ast.unparse(call.func.value)


def _sum(first: Site, second: Site) -> tuple[Edit, ...]:
    losses = _plain_backward(first), _plain_backward(second)
    if not all(losses) or first.file != second.file or first.function != second.function:
        return ()
    indents = _indent(first.file, first.line), _indent(first.file, second.line)
    between = range(first.line + 1, second.line)
    if indents[0] != indents[1] or not first.line < second.line:
        return ()
    if any(losses[1].partition(".")[0] in source.targets_at(first.file, line) for line in between):
        return ()  # the second loss is computed only after the first call
    total = f"{indents[0]}({losses[0]} + {losses[1]}).backward()"
    return Edit(first.file, first.line, total), Edit(first.file, second.line, "")


def _sum_of_loop(site: Site, elements: str) -> tuple[Edit, ...]:
    loop = source.loop_around(site)
    if (
        not isinstance(loop, ast.For)
        or ast.unparse(loop.iter) != elements
        or not isinstance(loop.target, ast.Name)
    ):
        return ()
    line = source.line_of(site.file, loop.lineno)
    head = f"for {loop.target.id} in {elements}:"
    return (
        (
            Edit(
                site.file,
                loop.lineno,
                line.replace(head, f"for {loop.target.id} in [sum({elements})]:"),
            ),
        )
        if head in line
        else ()
    )


def _item(site: Site, total: str) -> tuple[Edit, ...]:
    region = source.loop_around(site)
    stores = source.stores_in(region, total) if region is not None else []
    if len(stores) != 1 or _plain_backward(site) != total or not _alone(site.file, stores[0]):
        return ()
    store = stores[0]
    added: ast.expr | None = None
    if isinstance(store, ast.AugAssign) and isinstance(store.op, ast.Add):
        added = store.value
    elif (
        isinstance(store, ast.Assign)
        and isinstance(store.value, ast.BinOp)
        and isinstance(store.value.op, ast.Add)
    ):
        left, right = store.value.left, store.value.right
        added = (
            right if ast.unparse(left) == total else left if ast.unparse(right) == total else None
        )
    if not isinstance(added, ast.Name) or store.lineno != store.end_lineno:
        return ()
    indent = _indent(site.file, store.lineno)
    return (
        Edit(site.file, store.lineno, f"{indent}{total} = {total} + {added.id}.item()"),
        Edit(site.file, site.line, f"{_indent(site.file, site.line)}{added.id}.backward()"),
    )


def _no_grad(link: Site) -> tuple[Edit, ...]:
    statement = source.statement_at(link)
    if (
        statement is None
        or not _alone(link.file, statement)
        or statement.lineno != statement.end_lineno
    ):
        return ()
    imports = [n for n in source.tree(link.file).body if isinstance(n, ast.Import)]
    if not any(alias.name == "torch" and not alias.asname for n in imports for alias in n.names):
        return ()
    line = source.line_of(link.file, link.line)
    indent = _indent(link.file, link.line)
    return (
        Edit(
            link.file,
            statement.lineno,
            f"{indent}with torch.no_grad():\n{indent}{_INDENT}{line.lstrip()}",
        ),
    )


def _move(facts: SharedGraph, readings: list[Reading]) -> tuple[Edit, ...]:
    """Move the statements that make the holders to the beginning of the loop; or take the cache off a function."""
    if facts.holder.startswith("<lru_cache of ") and facts.link is not None:
        line = source.line_of(facts.link.file, facts.link.line)
        return (
            (Edit(facts.link.file, facts.link.line, ""),) if line.lstrip().startswith("@") else ()
        )
    here = place_in(readings[0].frame).site
    loop = source.loop_around(here)
    region = loop.body[0] if loop is not None else _start_of(here) if readings[0].again else None
    if region is None:
        return ()
    first = region.lineno
    moved: dict[int, str] = {}
    for reading in readings:
        scope = source.function_around(here) if loop is not None else source.tree(here.file)
        stores = source.stores_in(scope, reading.name)
        if (
            len(stores) != 1
            or reading.name not in source.targets_of(stores[0])
            or not _alone(here.file, stores[0])
        ):
            return ()
        if stores[0].lineno != stores[0].end_lineno or stores[0].lineno >= first:
            return ()
        moved[stores[0].lineno] = source.line_of(here.file, stores[0].lineno).lstrip()
    indent = _indent(here.file, first)
    lines = [indent + moved[line] for line in sorted(moved)]
    edits = [Edit(here.file, line, "") for line in sorted(moved)]
    return (*edits, Edit(here.file, first, "\n".join((*lines, source.line_of(here.file, first)))))


def _start_of(site: Site) -> ast.stmt | None:
    function = source.function_around(site)
    return function.body[0] if isinstance(function, ast.FunctionDef) else None


def _detach_after(readings: list[Reading]) -> tuple[Edit, ...]:
    """Cut the holders off once the backward call is over."""
    here = place_in(readings[0].frame).site
    statement = source.statement_at(here)
    if statement is None or not _alone(here.file, statement):
        return ()
    last = statement.end_lineno or statement.lineno
    indent = _indent(here.file, statement.lineno)
    lines: dict[str, None] = {}
    for reading in readings:
        name = reading.name
        container = name.rpartition("[")[0]
        if container and isinstance(dict(_variables(reading)).get(container), tuple):
            lines[f"{indent}{container} = tuple(t.detach() for t in {container})"] = None
        elif re.fullmatch(r"[\w.\[\]'\"]+", name):
            lines[f"{indent}{name} = {name}.detach()"] = None
        else:
            return ()
    return (Edit(here.file, last, "\n".join((source.line_of(here.file, last), *lines))),)


def _variables(reading: Reading) -> list[tuple[str, object]]:
    return [*reading.frame.f_globals.items(), *local_variables(reading.frame)]


def _detach_where_stored(facts: SharedGraph) -> tuple[Edit, ...]:
    """Store what is cut off: the whole right-hand side of a plain assignment."""
    link = facts.link or (facts.made[0] if facts.made else None)
    statement = source.statement_at(link) if link is not None else None
    if link is None or not isinstance(statement, ast.Assign) or not _alone(link.file, statement):
        return ()
    value = statement.value
    if statement.lineno != statement.end_lineno or value.end_col_offset is None:
        return ()
    line = source.line_of(link.file, statement.lineno)
    start, end = places.columns(value, link.file)
    text = line[start:end]
    shown = (
        text
        if isinstance(value, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
        else f"({text})"
    )
    return (
        Edit(
            link.file,
            statement.lineno,
            f"{line[:start]}{shown}.detach(){line[end:]}",
        ),
    )


def _detach_in_loss(facts: SharedGraph) -> tuple[Edit, ...]:
    """Let the loss that is run first take the shared tensor cut off, or the other where the first is made of nothing else."""
    site = facts.next_call if facts.only_shared else facts.call.site
    assert site is not None
    root = source.root_name(site)
    before = (
        [s for s in source.stores_in(source.function_around(site), root) if s.lineno <= site.line]
        if root
        else []
    )
    if not facts.shared or not before or before[-1].lineno != before[-1].end_lineno:
        return ()
    names = [
        n
        for n in ast.walk(before[-1])
        if isinstance(n, ast.Name | ast.Attribute)
        and isinstance(n.ctx, ast.Load)
        and ast.unparse(n) == facts.shared
    ]
    line = source.line_of(site.file, before[-1].lineno)
    if not names:
        return ()
    for node in sorted(names, key=lambda n: -n.col_offset):
        _, end = places.columns(node, site.file)
        line = f"{line[:end]}.detach(){line[end:]}"
    return (Edit(site.file, before[-1].lineno, line),)
