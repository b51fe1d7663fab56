"""Follows a held tensor into the functions of the user's that a library's loop runs again."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import CodeType, FrameType, FunctionType
from typing import Any

from gradscope.code import changes, doubts, source
from gradscope.code.liveness import MISSING, RESULT, Effect, Read, all_reads, left_after
from gradscope.collect.look import Look
from gradscope.detect.foresight.objects import Objects, Resolver, Target, function_of
from gradscope.detect.foresight.reading import Reading
from gradscope.model.paths import Path
from gradscope.program.layouts import class_bases, class_namespace, derives, is_user_class
from gradscope.program.sites import USER, owner_of, place_in

_BUILDS = (Effect.FEEDS, Effect.AUGMENTED)
_TAKES_OUT = frozenset({"clear", "pop", "popleft", "popitem", "remove"})


def codes_of(look: Look) -> frozenset[CodeType]:
    """Return the functions of the user's that built the nodes of a look."""
    codes = {token.place.code for token in look.tokens if token.place is not None}
    return frozenset(code for code in codes if owner_of(code) == USER)


def read_by_the_next_run(
    paths: Sequence[Path],
    frame: FrameType,
    ran: frozenset[CodeType],
    *,
    doubting: bool = True,
) -> Reading | None:
    """Return the read by which a function that ran for this call goes on from the tensor when the
    library runs it again; None where that is not certain. Without ``doubting`` the read counts even
    if its line may not be reached, or not with the same tensor.

    ``frame`` is the user's that called the library. The tensor has to be an attribute, or an
    element of one, as nothing else of such a function outlives its run.
    """
    objects = Objects(frame)
    for path in paths:
        owner_name, attribute, element = _apart(path)
        owner = objects.find(owner_name) if owner_name else MISSING
        if owner is MISSING or not is_user_class(type(owner)):
            continue
        if element and _drops(objects.find(f"{owner_name}.{attribute}")):
            continue
        resolver = Resolver(objects, Target("self", owner, attribute))
        for code in _methods(type(owner)):
            read = _read_anew(code, attribute, element, resolver, ran)
            if read is not None and not (doubting and _in_doubt(code, read)):
                read = replace(read, backward=place_in(frame).site)
                return Reading(read.name, read, frame, again=True)
    return None


def _apart(path: Path) -> tuple[str, str, str]:
    """Return the object, the attribute and the element of ``model.states[0]``; else empty names."""
    steps = path.steps
    count = len(steps)
    while count and steps[count - 1].kind == "item":
        count -= 1
    whole = path.up_to(count)
    if whole.attribute is None or any(s.kind not in ("attribute", "item") for s in steps):
        return "", "", ""
    return path.up_to(count - 1).text, whole.attribute, path.text[len(whole.text) :]


def _drops(container: Any) -> bool:
    """Return whether a container drops elements by itself: a deque with a length."""
    return derives(type(container), deque) and deque.maxlen.__get__(container) is not None


def _methods(cls: type) -> Iterator[CodeType]:
    """Yield the code of each method that the user wrote for a class, as Python finds it."""
    seen: set[str] = set()
    for base in class_bases(cls):
        for name, value in class_namespace(base).items():
            is_new = name not in seen
            seen.add(name)
            known = function_of(value) if is_new and type(value) is FunctionType else None
            if known is not None and not known[1] and name != "__init__":
                yield known[0]


def _read_anew(
    code: CodeType, attribute: str, element: str, resolver: Any, ran: frozenset[CodeType]
) -> Read | None:
    """Return the first read of the attribute in a new run of a method that returns what it built
    from it.
    """
    if attribute not in code.co_names or not code.co_argcount:
        return None
    name = f"{code.co_varnames[0]}.{attribute}{element}"
    method = _definition(code)
    if method is None or not (code in ran or changes.stores_in(method, name)):
        return None
    reads = all_reads(code, -1, (name,), resolver).get(name, ())
    read = next((r for r in reads if r.effect in _BUILDS and not r.only_on_exception), None)
    if read is None or RESULT not in left_after(code, -1, (name,), resolver).get(name, ()):
        return None
    return read if _is_chosen(read) else None


def _definition(code: CodeType) -> ast.FunctionDef | None:
    """Return the syntax of a function."""
    for node in ast.walk(source.tree(code.co_filename)):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _is_chosen(read: Read) -> bool:
    """Return whether the statement always reads the attribute if there is something in it."""
    statement = source.statement_at(read.site)
    choices = (n for n in ast.walk(statement) if isinstance(n, ast.IfExp)) if statement else ()
    return all(_is_about(choice.test, read.name) for choice in choices)


def _in_doubt(code: CodeType, read: Read) -> bool:
    """Return whether something else may be in the attribute's place, or the read be left out."""
    method, name, at = _definition(code), read.name, read.site.line
    assert method is not None
    if read.site.function.rpartition(".")[2] == method.name:
        if not _surely_runs(method, name, at):
            return True
        if doubts.stored_sometimes(method, name, at, at, until=at):
            return True
    return _changed_elsewhere(method, name, read.site.file)


def _surely_runs(method: ast.FunctionDef, name: str, line: int) -> bool:
    """Return whether no test but one for the attribute itself, or one that it is stored under too,
    decides whether a line of the method runs.
    """
    stores = [store.lineno for store in changes.stores_in(method, name)]
    for statement in source.statements_of(method):
        if not source.spans(statement, line):
            continue
        if isinstance(statement, ast.If) and statement.lineno != line:
            branch = next((b for b in (statement.body, statement.orelse) if _span(b, line)), [])
            under_it = _is_setting(statement.test, name) and any(_span(branch, s) for s in stores)
            if not (_is_about(statement.test, name) or under_it):
                return False
        elif isinstance(statement, ast.For | ast.While | ast.Try | ast.Match):
            return False
    return True


def _span(branch: list[ast.stmt], line: int) -> bool:
    return any(source.spans(statement, line) for statement in branch)


def _is_about(test: ast.expr, name: str) -> bool:
    return _attribute_of(name) in source.words_of(test)


def _attribute_of(name: str) -> str:
    return name.partition("[")[0].rpartition(".")[2]


def _is_setting(test: ast.expr, name: str) -> bool:
    """Return whether a test asks attributes of the object only: ``if self.training``."""
    root = name.partition(".")[0]
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return names == {root} and not any(isinstance(node, ast.Call) for node in ast.walk(test))


def _changed_elsewhere(method: ast.FunctionDef, name: str, file: str) -> bool:
    """Return whether another function of the file stores or changes an attribute of this name, or
    any of them takes elements out of it where the name is that of an element.
    """
    attribute = _attribute_of(name)
    for function in ast.walk(source.tree(file)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in source.statements_of(function) if function.name != "__init__" else ():
            if function is not method and _changes(statement, attribute):
                return True
            if name.endswith("]") and _takes_out(statement, attribute):
                return True
    return False


def _changes(statement: ast.stmt, attribute: str) -> bool:
    stored = (t for t in changes.targets_of(statement) if "." in t)
    if any(_attribute_of(target) == attribute for target in stored):
        return True
    changed = changes.modified_names(statement) or ()
    if any(each.rpartition(".")[2] == attribute for each in changed):
        return True
    calls = (c for c in source.calls_in(statement) if changes.is_in_place(source.called_name(c)))
    return any(attribute in source.words_of(call.func) for call in calls)


def _takes_out(statement: ast.stmt, attribute: str) -> bool:
    """Return whether a statement may take elements out of a container."""
    is_cut = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Subscript)
    if isinstance(statement, ast.Delete) or is_cut:
        return attribute in source.words_of(statement)
    methods = (c.func for c in source.calls_in(statement) if isinstance(c.func, ast.Attribute))
    return any(f.attr in _TAKES_OUT and attribute in source.words_of(f.value) for f in methods)
