"""Changes a value where it is read or stored: detached, cloned, as a number."""

from __future__ import annotations

import ast
import re

import libcst as cst

from gradscope.code import changes, places, source
from gradscope.fixing import syntax
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError, written
from gradscope.model import Edit, Site

_SAFE = cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.List | cst.Dict | cst.SimpleString
_ELEMENT = re.compile(r"(.+)\[-?\d+\]")
_STORES = changes.ADDS | {"add", "update", "push"}


@written
def detach_reads(at: Site, text: str) -> tuple[Edit, ...]:
    """Write ``text.detach()`` wherever the statement at a place reads ``text``.

    Where ``text`` may be None or a number as well, it is detached only if it is a tensor.
    """
    return _read_with(at, text, ".detach()")


@written
def clone_reads(at: Site, text: str) -> tuple[Edit, ...]:
    """Write ``text.clone()`` wherever the statement at a place reads ``text``."""
    return _read_with(at, text, ".clone()")


@written
def detach_to_leaf(at: Site, text: str = "") -> tuple[Edit, ...]:
    """Store ``value.detach().requires_grad_()``: a leaf that is trained."""
    return stored_with(at, ".detach().requires_grad_()", text)


@written
def item_stored(at: Site, text: str = "") -> tuple[Edit, ...]:
    """Store ``value.item()``: of an assignment, ``append(x)``, a value in a dict."""
    return stored_with(at, ".item()", text)


@written
def item_added(at: Site, total: str) -> tuple[Edit, ...]:
    """Add ``value.item()`` to a total where the statement at a place adds a tensor."""
    return _added_with(at, total, ".item()")


@written
def detach_added(at: Site, total: str) -> tuple[Edit, ...]:
    """Add ``value.detach()`` to a total where the statement at a place adds a tensor."""
    return _added_with(at, total, ".detach()")


def _suffixed(node: cst.BaseExpression, suffix: str) -> cst.BaseExpression:
    """Return ``node.suffix``, with parentheses if it needs them; ``.a().b()`` are two calls."""
    if not isinstance(node, _SAFE) and not node.lpar:
        node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    for call in filter(None, suffix.split(".")):
        made = cst.parse_expression(f"x.{call}")
        assert isinstance(made, cst.Call)
        assert isinstance(made.func, cst.Attribute)
        node = made.with_changes(func=made.func.with_changes(value=node))
    return node


def statement(at: Site) -> ast.stmt:
    """Return the statement at a place."""
    found = syntax.statement_at(at)
    if found is None:
        raise CannotBeWrittenError
    return found


def _read_with(at: Site, text: str, suffix: str) -> tuple[Edit, ...]:
    """Put a suffix after every read of an expression in a statement."""
    draft = Draft(at.file)
    found = syntax.reads(statement(at), text)
    if not found:
        raise CannotBeWrittenError
    for node in found:
        _put(draft, node, suffix, syntax.alternatives(text, at))
    return draft.edits()


@written
def detach_returned(function: Site) -> tuple[Edit, ...]:
    """Detach what a function returns, in the one place where it does."""
    draft = Draft(function.file)
    found = [*source.statements_of(statement(function))]
    returns = [each for each in found if isinstance(each, ast.Return)]
    if len(returns) != 1 or returns[0].value is None:
        raise CannotBeWrittenError
    if isinstance(returns[0].value, ast.Tuple | ast.List | ast.Dict | ast.Constant):
        raise CannotBeWrittenError
    _put(draft, returns[0].value, ".detach()", set())
    return draft.edits()


@written
def detach_carried(at: Site, text: str) -> tuple[Edit, ...]:
    """Detach what a statement reads of what it stores: ``h = f(x, h.detach())``."""
    found = statement(at)
    targets = found.targets if isinstance(found, ast.Assign) else []
    meant = meant_by(text, [part for each in targets for part in changes.unpacked(each)])
    if meant is None:
        raise CannotBeWrittenError
    return _read_with(at, ast.unparse(meant), ".detach()")


def _put(draft: Draft, node: ast.expr, suffix: str, other: set[str]) -> None:
    """Put a suffix after a read; where it may be no tensor, only if it is one."""

    def make(updated: cst.BaseExpression) -> cst.BaseExpression:
        with_suffix = _suffixed(updated, suffix)
        if not other:
            return with_suffix
        text = cst.Module([]).code_for_node(updated).strip()
        is_other = f"{text} is None"
        if other != {"None"}:
            is_other = f"not {torch_name(draft.file.file)}.is_tensor({text})"
        code = cst.parse_expression(f"(x if {is_other} else y)")
        assert isinstance(code, cst.IfExp)
        return code.with_changes(body=updated.with_changes(lpar=[], rpar=[]), orelse=with_suffix)

    draft.change(node, make)


def torch_name(file: str) -> str:
    """Return the name by which a file knows torch."""
    for node in source.tree(file).body:
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name == "torch" or (alias.name.startswith("torch.") and not alias.asname):
                return alias.asname or "torch"
    raise CannotBeWrittenError


def stored_with(
    at: Site, suffix: str, text: str = "", *, elements: bool = False
) -> tuple[Edit, ...]:
    """Put a suffix after what the statement or the call at a place stores, or its elements."""
    draft = Draft(at.file)
    for value in _stored_values(at, text):
        is_display = isinstance(value, ast.Tuple | ast.List | ast.ListComp | ast.GeneratorExp)
        if elements and not is_display:
            _put_around(draft, value, f"tuple(each{suffix} for each in x)")
        else:
            _put_in(draft, value, suffix)
    return draft.edits()


def _put_around(draft: Draft, value: ast.expr, template: str) -> None:
    """Put a value in the place of the ``x`` of a template."""
    code = cst.parse_expression(template)

    def make(updated: cst.BaseExpression) -> cst.CSTNode:
        names = [n for n in _names(code) if n.value == "x"]
        return code.deep_replace(names[-1], updated)

    draft.change(value, make)


def _names(node: cst.CSTNode) -> list[cst.Name]:
    inside = [name for child in node.children for name in _names(child)]
    return [node, *inside] if isinstance(node, cst.Name) else inside


def _put_in(draft: Draft, value: ast.expr, suffix: str) -> None:
    """Put a suffix after a value: in each branch that is no number, but never after a number."""
    match value:
        case ast.IfExp(body=body, orelse=other):
            for branch in (body, other):
                if not isinstance(branch, ast.Constant):
                    _put_in(draft, branch, suffix)
        case ast.ListComp(elt=inner) | ast.SetComp(elt=inner) | ast.GeneratorExp(elt=inner):
            _put_in(draft, inner, suffix)
        case ast.DictComp(value=inner):
            _put_in(draft, inner, suffix)
        case ast.Call(func=ast.Name(id="tuple" | "list"), args=[ast.GeneratorExp() as inner]):
            _put_in(draft, inner, suffix)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                _put_in(draft, part, suffix)
        case ast.BoolOp() | ast.Compare() | ast.Constant() | ast.JoinedStr():
            raise CannotBeWrittenError
        case ast.BinOp(left=left, right=right) if _has_branch(left) or _has_branch(right):
            for part in (left, right):
                if not isinstance(part, ast.Constant):
                    _put_in(draft, part, suffix)
        case ast.NamedExpr(value=inner) | ast.Starred(value=inner):
            _put_in(draft, inner, suffix)
        case _:
            if _has_branch(value) and not isinstance(value, ast.Call | ast.Attribute):
                raise CannotBeWrittenError
            site = Site(draft.file.file, value.lineno)
            is_read = isinstance(value, ast.Name | ast.Attribute | ast.Subscript)
            other_kinds = syntax.alternatives(ast.unparse(value), site) if is_read else set()
            _put(draft, value, suffix, other_kinds)


def _has_branch(value: ast.expr) -> bool:
    """Return whether a value is computed from a number in one of its branches."""
    match value:
        case ast.IfExp(body=body, orelse=other):
            return isinstance(body, ast.Constant) or isinstance(other, ast.Constant)
        case ast.BinOp(left=left, right=right):
            return _has_branch(left) or _has_branch(right)
        case ast.UnaryOp(operand=operand):
            return _has_branch(operand)
    return False


def _stored_values(at: Site, text: str) -> list[ast.expr]:
    """Return the values that are stored at a place: of the target, or of the reads, ``text``."""
    found = statement(at)
    is_plain = isinstance(found, ast.Assign | ast.AugAssign | ast.AnnAssign)
    if (text or not is_plain) and (named := _walrus(found, text)) is not None:
        return [named.value]
    added = None if is_plain else _given_to_a_container(found, at)
    if added is not None:
        return _with_text(added, text)
    match found:
        case ast.Assign(targets=targets, value=value):
            return _assigned(targets, value, text)
        case ast.AnnAssign(value=ast.expr() as value) | ast.AugAssign(value=value):
            return [value]
        case ast.Return(value=ast.expr() as value):
            return _with_text([value], text)
    raise CannotBeWrittenError


def _walrus(found: ast.stmt, text: str) -> ast.NamedExpr | None:
    """Return the walrus of a statement that stores to the name, or its only one."""
    named = [n for n in syntax.own_nodes(found) if isinstance(n, ast.NamedExpr)]
    named = [each for each in named if each.target.id == text or not text]
    return named[0] if len(named) == 1 else None


def _given_to_a_container(found: ast.stmt, at: Site) -> list[ast.expr] | None:
    """Return what the one call in a statement that adds to a container gives it."""
    calls = [n for n in syntax.own_nodes(found) if isinstance(n, ast.Call) and _adds(n)]
    if at.end_column:
        calls = [n for n in calls if places.is_at(n, at)] or calls
    if len(calls) != 1:
        return None
    return list(calls[0].args[-1:]) or [keyword.value for keyword in calls[0].keywords[-1:]]


def _adds(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _STORES


def _with_text(values: list[ast.expr], text: str) -> list[ast.expr]:
    """Return the reads of a text in values, or all of the values where no text is given."""
    if not text:
        if any(isinstance(each, ast.Tuple | ast.List | ast.Dict | ast.Starred) for each in values):
            raise CannotBeWrittenError
        return values
    found = [node for value in values for node in syntax.reads(ast.Expr(value), text)]
    if not found:
        raise CannotBeWrittenError
    return found


def _assigned(targets: list[ast.expr], value: ast.expr, text: str) -> list[ast.expr]:
    wanted = syntax.same_text(text)
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            meant = meant_by(text, target.elts)
            if meant is None or not isinstance(value, ast.Tuple | ast.List):
                raise CannotBeWrittenError
            if len(value.elts) != len(target.elts):
                raise CannotBeWrittenError
            return [value.elts[target.elts.index(meant)]]
        if not wanted or meant_by(text, [target]) is not None:
            added = _added_element(value)
            if added is not None:
                return [added]
            if isinstance(value, ast.Dict):
                raise CannotBeWrittenError
            return [value]
        if isinstance(value, ast.Dict) and (inside := _at_key(target, value, wanted)) is not None:
            return [inside]
    return _with_text([value], text)


def owner_of_element(at: Site, text: str) -> str:
    """Return ``h`` for ``h[0]``, where the statement at a place stores the whole of it."""
    found = _ELEMENT.fullmatch(syntax.same_text(text))
    stored = changes.targets_of(statement(at))
    return "" if found is None or found[0] in stored else found[1]


def one_of_several(at: Site, text: str) -> str:
    """Return the target that a text means beside others of the assignment at a place."""
    found = syntax.statement_at(at)
    for target in found.targets if isinstance(found, ast.Assign) else ():
        if isinstance(target, ast.Tuple | ast.List):
            meant = meant_by(text, target.elts)
            return ast.unparse(meant) if meant is not None else ""
    return ""


def meant_by(text: str, targets: list[ast.expr]) -> ast.expr | None:
    """Return the target that a text means: also by its attribute, as ``net.h`` is ``self.h``."""
    wanted = syntax.same_text(text)
    exact = [each for each in targets if ast.unparse(each) == wanted]
    attribute = wanted.rpartition(".")[2] if "." in wanted else ""
    like = [each for each in targets if isinstance(each, ast.Attribute) and each.attr == attribute]
    found = exact or like
    return found[0] if len(found) == 1 else None


def _at_key(target: ast.expr, display: ast.Dict, wanted: str) -> ast.expr | None:
    """Return the value that a dict display has at the key in ``wanted``."""
    for key, value in zip(display.keys, display.values, strict=True):
        if key is not None and wanted == f"{ast.unparse(target)}[{ast.unparse(key)}]":
            return value
    return None


def _added_element(value: ast.expr) -> ast.expr | None:
    """Return the one element that ``history + [h]`` adds to a list."""
    for part in (value.left, value.right) if isinstance(value, ast.BinOp) else ():
        if isinstance(part, ast.List | ast.Tuple) and len(part.elts) == 1:
            return part.elts[0]
    return None


@written
def stored_as(at: Site, function: str, text: str = "") -> tuple[Edit, ...]:
    """Store ``function(value)``: ``failures.append(str(error))``."""
    draft = Draft(at.file)
    for value in _stored_values(at, text):
        _put_around(draft, value, f"{function}(x)")
    return draft.edits()


def _added_with(at: Site, total: str, suffix: str) -> tuple[Edit, ...]:
    """Put a suffix after what is added to a total: ``total += loss.item()``."""
    draft, wanted = Draft(at.file), syntax.same_text(total)
    match statement(at):
        case ast.AugAssign(target=target, op=ast.Add() | ast.Sub(), value=value) if (
            ast.unparse(target) == wanted
        ):
            _put_in_term(draft, value, suffix)
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.BinOp() as value):
            if not any(True for _ in _terms(value, wanted)):
                raise CannotBeWrittenError
            for term in _terms(value, wanted):
                _put_in_term(draft, term, suffix)
        case _:
            raise CannotBeWrittenError
    return draft.edits()


def _terms(value: ast.expr, total: str) -> list[ast.expr]:
    """Return what a sum adds to a total."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        sides = (value.left, value.right)
        if any(_reads(side, total) for side in sides):
            return [t for s in sides for t in (_terms(s, total) if _reads(s, total) else [s])]
    return []


def _reads(value: ast.expr, text: str) -> bool:
    return any(isinstance(n, ast.expr) and ast.unparse(n) == text for n in ast.walk(value))


def _put_in_term(draft: Draft, value: ast.expr, suffix: str) -> None:
    """Put a suffix after a term: after the tensor of ``0.1 * loss``."""
    match value:
        case ast.BinOp(left=ast.Constant(), op=ast.Mult(), right=inner):
            _put_in_term(draft, inner, suffix)
        case ast.BinOp(left=inner, op=ast.Mult() | ast.Div(), right=ast.Constant()):
            _put_in_term(draft, inner, suffix)
        case ast.Call(func=ast.Attribute(attr="item") | ast.Name(id="float" | "int")):
            raise CannotBeWrittenError
        case _:
            _put_in(draft, value, suffix)
