"""Changes backward calls: their flags, what they start from, and two of them into one."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from gradscope.code import changes, source
from gradscope.fixing import syntax
from gradscope.fixing.drafts import Draft
from gradscope.fixing.edits import CannotBeWrittenError, written
from gradscope.fixing.values import statement
from gradscope.model import Edit, Site

_POSITIONS = {
    "grad": {"retain_graph": 3, "create_graph": 4},
    "backward": {"retain_graph": 1, "create_graph": 2},
    "torch.autograd.backward": {"retain_graph": 2, "create_graph": 3},
}
"""Where a call takes a flag that is not named."""

_READS_GRADIENTS = frozenset(
    {"step", "zero_grad", "clip_grad_norm_", "clip_grad_value_", "unscale_"}
)


def call_at(site: Site) -> ast.Call:
    """Return the call at a place."""
    found = syntax.call_at(site)
    if found is None:
        raise CannotBeWrittenError
    return found


@written
def with_keyword(site: Site, name: str, value: str) -> tuple[Edit, ...]:
    """Pass ``name=value`` in a call, in the place of what it passes now."""
    draft, call = Draft(site.file), _call_with(site, name)
    at = _index(call, name)
    new = cst.parse_expression(value)
    if at is None and any(keyword.arg is None for keyword in call.keywords):
        raise CannotBeWrittenError  # **options may pass it as well

    def make(updated: cst.Call) -> cst.Call:
        args = list(updated.args)
        if at is not None:
            args[at] = args[at].with_changes(value=new)
        else:
            args = _added(args, _keyword(name, new), updated)
        return updated.with_changes(args=args)

    draft.change(call, make)
    return draft.edits()


def with_flag(site: Site, flag: str) -> tuple[Edit, ...]:
    """Pass ``retain_graph=True`` or ``create_graph=True``, in the place of what is passed now."""
    return with_keyword(site, flag, "True")


def _call_with(site: Site, name: str) -> ast.Call:
    """Return the call at a place, or the only one there that passes an argument of this name."""
    calls = [n for n in syntax.own_nodes(statement(site)) if isinstance(n, ast.Call)]
    named = [call for call in calls if any(each.arg == name for each in call.keywords)]
    if syntax.call_at(site) is None and len(named) == 1:
        return named[0]
    return call_at(site)


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, cst.Name(name), equal=tight)


def _added(args: Sequence[cst.Arg], new: cst.Arg, call: cst.Call) -> list[cst.Arg]:
    """Return the arguments with another, on a line of its own where the others are."""
    if not args:
        return [new]
    last = args[-1]
    space: cst.BaseParenthesizableWhitespace = cst.SimpleWhitespace(" ")
    spread = isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace)
    if len(args) > 1 and isinstance(args[-2].comma, cst.Comma):
        space = args[-2].comma.whitespace_after
    elif spread and isinstance(last.comma, cst.Comma):
        space = call.whitespace_before_args
    if isinstance(last.comma, cst.Comma):
        if isinstance(space, cst.ParenthesizedWhitespace) and space.first_line.comment:
            space = space.with_changes(first_line=cst.TrailingWhitespace())
        new = new.with_changes(comma=last.comma)
        return [*args[:-1], last.with_changes(comma=cst.Comma(whitespace_after=space)), new]
    after = last.whitespace_after_arg
    empty = cst.SimpleWhitespace("")
    comma = cst.Comma(whitespace_after=_plain(space))
    last = last.with_changes(comma=comma, whitespace_after_arg=empty)
    return [*args[:-1], last, new.with_changes(whitespace_after_arg=after)]


def _plain(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """Return white space without the comment in it."""
    if isinstance(space, cst.ParenthesizedWhitespace):
        return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())
    return space


def _index(call: ast.Call, name: str) -> int | None:
    """Return the place of an argument among those of a call, named or not."""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    given.sort(key=lambda each: (each.lineno, each.col_offset))
    for at, each in enumerate(given):
        if isinstance(each, ast.keyword) and each.arg == name:
            return at
    text = ast.unparse(call.func)
    known = _POSITIONS.get(text) or _POSITIONS.get(text.rpartition(".")[2], {})
    at = known.get(name, len(call.args))
    if any(isinstance(each, ast.Starred) for each in call.args[: at + 1]):
        raise CannotBeWrittenError
    return at if at < len(call.args) else None


@written
def without_flag(site: Site, flag: str) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` or ``create_graph=True`` out of a call."""
    draft, call = Draft(site.file), call_at(site)
    drop_flag(draft, call, flag, required=True)
    return draft.edits()


def drop_flag(draft: Draft, call: ast.Call, flag: str, *, required: bool) -> None:
    """Leave a flag that is True out of a call."""
    at = _index(call, flag)
    keyword = next((each for each in call.keywords if each.arg == flag), None)
    value = keyword.value if keyword is not None else None
    if at is not None and keyword is None:
        value = call.args[at]
    if at is None or not isinstance(value, ast.Constant) or value.value is not True:
        if required or at is not None:
            raise CannotBeWrittenError
        return

    def make(updated: cst.Call) -> cst.Call:
        args = list(updated.args)
        if keyword is None:
            args[at] = args[at].with_changes(value=cst.Name("False"))
            return updated.with_changes(args=args)
        gone = args.pop(at)
        if at == len(args) and args:
            end = args[-1].with_changes(
                comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg
            )
            args[-1] = end
        elif not args:
            empty = cst.SimpleWhitespace("")
            return updated.with_changes(args=args, whitespace_before_args=empty)
        return updated.with_changes(args=args)

    draft.change(call, make)


def loss_of(call: ast.Call) -> ast.expr:
    """Return what a backward call starts from: ``x`` of ``x.backward()``, ``f.backward(x)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
        owner = call.func.value
        if not call.args:
            return _scaled(owner)
        if ast.unparse(call.func) == "torch.autograd.backward" or len(call.args) == 1:
            return call.args[0]
    elif source.called_name(call) == "manual_backward" and call.args:
        return call.args[0]
    raise CannotBeWrittenError


def _form(call: ast.Call) -> str:
    """Return what calls backward on a loss: the same for two losses that can be added."""
    owner = getattr(call.func, "value", None)
    if owner is loss_of(call):
        return ""
    return ast.unparse(owner.func if not call.args and isinstance(owner, ast.Call) else call.func)


def _scaled(owner: ast.expr) -> ast.expr:
    """Return ``loss`` of ``scaler.scale(loss)``."""
    match owner:
        case ast.Call(func=ast.Attribute(attr="scale"), args=[inner]):
            return inner
    return owner


@written
def backward_of(site: Site, loss: str) -> tuple[Edit, ...]:
    """Have a backward call start from another loss."""
    draft, call = Draft(site.file), call_at(site)
    _start_from(draft, call, loss)
    return draft.edits()


def _start_from(draft: Draft, call: ast.Call, loss: str) -> None:
    old, new = loss_of(call), cst.parse_expression(loss)
    is_owner = isinstance(call.func, ast.Attribute) and call.func.value is old
    if is_owner and not isinstance(new, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
        new = new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    draft.change(old, lambda updated: new)


@written
def sum_losses(first: Site, second: Site) -> tuple[Edit, ...]:
    """Make one backward call of two in a block, at the first place where both losses are known."""
    draft = Draft(first.file)
    statements = statement(first), statement(second)
    calls = call_at(first), call_at(second)
    _check_pair(draft, statements, calls)
    losses = [loss_of(call) for call in calls]
    total = " + ".join(_summand(loss, draft) for loss in losses)
    block = syntax.block_with(first.file, statements[0])
    between = block[block.index(statements[0]) + 1 : block.index(statements[1])]
    made = {name for each in between for name in syntax.stored_names(each)}
    late = bool(syntax.read_names(losses[1]) & made) or any(map(_changes_data, between))
    if late and (syntax.read_names(losses[0]) & made or any(map(_uses_gradients, between))):
        raise CannotBeWrittenError
    stays, goes = (1, 0) if late else (0, 1)
    _start_from(draft, calls[stays], total)
    drop_flag(draft, calls[stays], "retain_graph", required=False)
    draft.remove(statements[goes])
    return draft.edits()


def _check_pair(
    draft: Draft, statements: tuple[ast.stmt, ast.stmt], calls: tuple[ast.Call, ast.Call]
) -> None:
    """See that two backward calls differ in their losses alone, and are made one after another."""
    first, second = statements
    block = syntax.block_with(draft.file.file, first)
    if second not in block or block.index(first) >= block.index(second):
        raise CannotBeWrittenError
    for each, call in zip(statements, calls, strict=True):
        if not isinstance(each, ast.Expr) or each.value is not call:
            raise CannotBeWrittenError
        names = {keyword.arg for keyword in call.keywords}
        if names - {"retain_graph"}:
            raise CannotBeWrittenError
    if _form(calls[0]) != _form(calls[1]):
        raise CannotBeWrittenError


def _changes_data(each: ast.stmt) -> bool:
    """Return whether a statement changes something in place."""
    return any(changes.modified_names(node) for node in ast.walk(each))


def _uses_gradients(each: ast.stmt) -> bool:
    """Return whether a statement needs the gradients of the call before it."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in (*_READS_GRADIENTS, "grad"))
        for node in ast.walk(each)
    )


def _summand(loss: ast.expr, draft: Draft) -> str:
    """Return a loss as it is written, in parentheses where a sum needs them."""
    node = draft.file.expression(loss)
    text = cst.Module([]).code_for_node(node)
    simple = isinstance(loss, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    is_term = isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Mult | ast.Div | ast.Add)
    if simple or (node.lpar and not is_term):
        return text.strip()
    if is_term or isinstance(loss, ast.UnaryOp):
        bare = node.with_changes(lpar=[], rpar=[])
        return cst.Module([]).code_for_node(bare).strip()
    return f"({text.strip()})"


@written
def sum_of_loop(site: Site, elements: str) -> tuple[Edit, ...]:
    """Make one backward call of the sum of what a loop runs over."""
    draft, loop = Draft(site.file), source.loop_around(site)
    wanted = syntax.same_text(elements)
    if not isinstance(loop, ast.For) or not wanted or loop.orelse:
        raise CannotBeWrittenError
    if not isinstance(loop.target, ast.Name) or ast.unparse(loop.iter) != wanted:
        raise CannotBeWrittenError
    only = loop.body[0] if len(loop.body) == 1 else None
    if isinstance(only, ast.Expr) and ast.unparse(only.value) == f"{loop.target.id}.backward()":
        draft.replace(loop, f"sum({elements}).backward()")
        return draft.edits()
    draft.change(loop.iter, lambda updated: cst.parse_expression(f"[sum({elements})]"))
    return draft.edits()
