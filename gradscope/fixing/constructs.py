"""Writes the edits of constructs: of those that a finding names, with no rehearsal, of caches, and
of containers that are only filled.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from gradscope.code import source
from gradscope.code.source import FUNCTIONS
from gradscope.code.statements import filled_by, only_filled, stored_names
from gradscope.fixing.edits import (
    PATHS,
    entered_anew,
    not_reentrant,
    own_names,
    read_names,
    with_flag,
    with_followers,
    without_flag,
    without_graph,
)
from gradscope.fixing.instrumentation import Span
from gradscope.fixing.patch import (
    TextEdit,
    TextEdits,
    after,
    before,
    block_with,
    end_of,
    instead_of,
    removed,
    start_of,
    statement_lines,
    text_of,
    together,
    written,
)
from gradscope.model import Finding, Fix, FixKind, Recording, Site
from gradscope.rules import gs602
from gradscope.rules.base import NOT_REENTRANT
from gradscope.rules.gs104 import SETTING
from gradscope.rules.gs601 import PRESERVED

_CACHES = ("cache", "lru_cache", "cached_property")
_NORMS = ("weight_norm", "spectral_norm")
_NOT_REENTRANT = (NOT_REENTRANT, gs602.NOT_REENTRANT)


def with_edits(recording: Recording) -> Recording:
    """Return the recording with the edits of such constructs in the fixes that mean them."""
    return replace(recording, findings=tuple(map(_with, recording.findings)))


def _with(finding: Finding) -> Finding:
    fixes = [
        fix if fix.edits else replace(fix, edits=written(*_pieces(finding, fix)))
        for fix in finding.fixes
    ]
    return finding.with_fixes(fixes)


def _pieces(finding: Finding, fix: Fix) -> TextEdits:
    named = {each.role: each.site for each in finding.related if each.site is not None}
    site = finding.site
    match finding.code, fix.kind:
        case "GS101" | "GS102", FixKind.REORDER if "cached()" in fix.message and site is not None:
            around = source.enclosing(site.file, site.line)
            blocks = (each for each in around if isinstance(each, ast.With))
            cached = (each for each in blocks if "cached" in ast.unparse(each.items[0]))
            return next(filter(None, (entered_anew(site.file, each) for each in cached)), ())
        case "GS101" | "GS102", FixKind.RECOMPUTE if "created" in named:
            return _as_parametrization(named["created"])
        case "GS305", FixKind.NO_GRAD if site is not None:
            return without_graph(site.file, site.line)
        case "GS303", FixKind.REMOVE_RETAIN if site is not None:
            return without_flag(Span.at(site.file, site.line), "retain_graph")
        case _, FixKind.REORDER if fix in _NOT_REENTRANT and "created" in named:
            return not_reentrant(named["created"].file)
        case "GS101", FixKind.REORDER if "freed_by" in named and finding.message.startswith("read"):
            freed_by = named["freed_by"]
            return with_flag(Span.at(freed_by.file, freed_by.line), "retain_graph")
        case "GS601", FixKind.OTHER if fix.message == PRESERVED and "created" in named:
            made = named["created"]
            call = source.call_at(made)
            return with_flag(Span.of(made.file, call), "preserve_rng_state") if call else ()
        case "GS104", FixKind.DONATED_BUFFER_OFF if site is not None:
            return _not_donating(site.file)
        case "GS302", FixKind.OTHER if site is not None:
            return _as_text(site)
        case "GS304", FixKind.OTHER if site is not None:
            return _saved_for_backward(site) or _without_gradients(site)
    return ()


def _as_parametrization(made: Site) -> TextEdits:
    """Use the newer form of a norm, which computes the weight each time that it is read."""
    match source.call_at(made):
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="utils"), attr=name) as func) if (
            name in _NORMS
        ):
            text = f"{text_of(func.value, made.file)}.parametrizations.{name}"
            return (instead_of(func, made.file, text),)
    return ()


def _not_donating(file: str) -> TextEdits:
    """Turn the setting off behind the imports."""
    body = source.tree(file).body
    imports = [each for each in body if isinstance(each, ast.Import | ast.ImportFrom)]
    module = SETTING.rpartition(".")[0]
    return after(imports[-1], file, [f"import {module}", f"{SETTING} = False"]) if imports else ()


def _as_text(site: Site) -> TextEdits:
    """Keep ``str(error)`` in the place of the exception, whose traceback keeps the variables."""
    match source.statement_at(site):
        case (
            ast.Expr(value=ast.Call(args=[ast.Name() as kept]))
            | ast.Assign(value=ast.Name() as kept)
        ):
            return (instead_of(kept, site.file, f"str({kept.id})"),)
    return ()


def _saved_for_backward(site: Site) -> TextEdits:
    """Hand an output to ``ctx.save_for_backward``, and read it from there in ``backward``."""
    file, owner = site.file, source.innermost(site.file, site.line, ast.ClassDef)
    nodes = () if owner is None else ast.walk(owner)
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    is_new = not {each.attr for each in attributes} & {"save_for_backward", "saved_tensors"}
    match source.statement_at(site):
        case (
            ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id=ctx), attr=name)],
                value=ast.Name(id=output),
            ) as statement
        ) if attributes and is_new:
            saved = instead_of(statement, file, f"{ctx}.save_for_backward({output})")
            reads = (n for n in attributes if n.attr == name and isinstance(n.ctx, ast.Load))
            reading = ((n, f"{text_of(n.value, file)}.saved_tensors[0]") for n in reads)
            return (saved, *(instead_of(n, file, text) for n, text in reading))
    return ()


def _without_gradients(site: Site) -> TextEdits:
    """Take the gradients away, with their graphs, behind the last statement that uses them in the
    block of a call.
    """
    block = block_with(site.file, source.statement_at(site) or ast.Pass())
    used = [e for e in block if re.search(r"\.(grad\b(?!\()|backward\(|step\()", ast.unparse(e))]
    text = "\n".join(map(ast.unparse, block))
    held = re.findall(r"\b([\w.]+)\.zero_grad\(", text)
    owners = dict.fromkeys(held or re.findall(r"\b([\w.]+)\.parameters\(", text))
    return after(used[-1], site.file, [f"{own}.zero_grad()" for own in owners]) if used else ()


def uncached(file: str) -> Iterator[tuple[ast.FunctionDef | ast.expr, TextEdits]]:
    """Yield what a file wraps in a cache, each with the edit that takes the cache off: a decorator,
    or a call that is handed the function.
    """
    tree, known = source.tree(file), source.imported(file)
    attributes = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)]
    asked = ("cache_clear", "cache_info", "__wrapped__")
    kept = [ast.unparse(each.value).rpartition(".")[2] for each in attributes if each.attr in asked]
    kept += [each.attr for each in attributes if not isinstance(each.ctx, ast.Load)]
    nodes = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
    functions = [each for each in nodes if each.name not in kept]
    for function in functions:
        if function.name == "__missing__":
            end = function.lineno, function.col_offset + len("def __missing__")
            yield function, (TextEdit(file, start_of(function), end, "def __getitem__"),)
        for each in function.decorator_list:
            if (cache := _cache_of(each, known)) == "cached_property":
                yield function, (instead_of(each, file, "property"),)
            elif cache:
                yield function, (TextEdit(file, (each.lineno, 0), (each.lineno + 1, 0), ""),)
    is_asked = any(each.attr in asked for each in attributes)
    for call in () if is_asked else source.calls_in(tree):
        if len(call.args) == 1 and _cache_of(call.func, known) in _CACHES[:2]:
            given, text = call.args[0], text_of(call.args[0], file)
            name = ast.unparse(given).rpartition(".")[2]
            if isinstance(given, ast.Lambda):
                yield given, (instead_of(call, file, f"({text})"),)
            for function in (each for each in functions if each.name == name):
                yield function, (instead_of(call, file, text),)


def made_once(file: str, node: ast.stmt) -> tuple[list[ast.stmt], TextEdits]:
    """Return by what an object computes once, around a statement, what it keeps, and the edit that
    computes it each time: as a property, or by running its method as ``forward`` begins. Both are
    empty where it does not.

        class Prior(nn.Module):
            def __init__(self):
                super().__init__()
                self.rho = nn.Parameter(torch.zeros(4))
                self.dist = Normal(0.0, self.rho.exp())  # then: def dist(self), a property
    """
    owner = source.innermost(file, node.lineno, ast.ClassDef)
    method = source.innermost(file, node.lineno, FUNCTIONS)
    if owner is None or not isinstance(method, ast.FunctionDef):
        return [], ()
    if method not in owner.body or method.decorator_list:
        return [], ()
    me, *given = [each.arg for each in ast.walk(method.args) if isinstance(each, ast.arg)] or [""]
    if method.name == "__init__":
        return _as_property(file, node, method, me)
    functions = [each for each in owner.body if isinstance(each, ast.FunctionDef)]
    forward = next((each for each in functions if each.name == "forward"), method)
    returned = [e.value for e in ast.walk(method) if isinstance(e, ast.Return)]
    if given or forward is method or any(e and ast.unparse(e) != me for e in returned):
        return [], ()
    head = forward.body[ast.get_docstring(forward) is not None :][0]
    return [method], before(head, file, [f"{forward.args.args[0].arg}.{method.name}()"])


def _as_property(
    file: str, node: ast.stmt, init: ast.FunctionDef, me: str
) -> tuple[list[ast.stmt], TextEdits]:
    block, first, wanted = block_with(file, node), [node], read_names(node)
    for each in reversed(block[: block.index(node)]):  # what it is computed from comes along
        if stored_names(each) & wanted:
            first.append(each)
            wanted |= read_names(each)
    nodes = with_followers(block, first)
    match nodes:
        case [*steps, ast.Assign([ast.Attribute(ast.Name(owner), name) as kept], value)] if (
            owner == me and all(isinstance(each, ast.Assign) for each in steps)
        ):
            pass
        case _:
            return [], ()
    bound = {name for each in steps for name in stored_names(each)}
    needed = {name for each in nodes for name in read_names(each)} - bound - {me}
    paths = (e for e in ast.walk(source.tree(file)) if isinstance(e, ast.Attribute))
    is_set = any(
        e.attr == name and not isinstance(e.ctx, ast.Load) and e is not kept for e in paths
    )
    if is_set or block is not init.body or needed & own_names(init):
        return [], ()
    lines = [line for each in steps for line in statement_lines(each, file)]
    body = [f"    {line}" for line in (*lines, f"return {text_of(value, file)}")]
    indent, below = " " * init.col_offset, (end_of(init)[0] + 1, 0)
    made = (f"{indent}{line}\n" for line in ("@property", f"def {name}({me}):", *body))
    put = TextEdit(file, below, below, "\n" + "".join(made))
    return nodes, together(*(removed(each, file) for each in nodes), (put,))


def _cache_of(wrapper: ast.expr, known: dict[str, str]) -> str:
    """Return the name of the cache that a decorator, or what is called, makes; empty if none.
    ``known`` is what the file imports.
    """
    called = wrapper.func if isinstance(wrapper, ast.Call) else wrapper
    name = ast.unparse(called).rpartition(".")[2]
    name = known.get(name, name).rpartition(".")[2]
    return name if name in _CACHES else ""


def emptied(place: Span) -> tuple[ast.stmt, TextEdits]:
    """Return the statement that reads a container last, in the block around a place, and the edit
    that empties it there, with what is filled like it and read for what is computed there.
    """
    file, node = place.statement
    block, name = block_with(file, node), ast.unparse(place.expression or node)
    if name in filled_by(node) or node not in block:
        return node, ()
    region = source.innermost(file, node.lineno, FUNCTIONS + source.LOOPS) or node
    names, wanted = {name}, read_names(node)
    for each in reversed(block[: block.index(node) + 1]):
        if each is node or (stored_names(each) | filled_by(each)) & wanted:
            wanted |= read_names(each)
            read = _paths_read(each) - stored_names(region)
            names |= {own for own in read if own.rpartition(".")[2] in only_filled(file)}
    last = next(each for each in reversed(block) if names & _paths_read(each) or each is node)
    cleared = [f"{each}.clear()" for each in sorted(names)]
    if not isinstance(last, ast.Return):
        return last, after(last, file, cleared)
    value = last.value or ast.Name(name)
    if ast.unparse(value) == name or "result" in read_names(source.tree(file)):
        return last, ()
    kept = before(last, file, [f"result = {text_of(value, file)}", *cleared])
    return last, (*kept, instead_of(value, file, "result")) if kept else ()


def _paths_read(node: ast.AST) -> set[str]:
    """Return the paths that a node reads, but for those that it puts something into."""
    paths = (each for each in ast.walk(node) if isinstance(each, PATHS))
    return {ast.unparse(e) for e in paths if isinstance(e.ctx, ast.Load)} - filled_by(node)
