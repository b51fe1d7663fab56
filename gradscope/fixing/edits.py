"""Writes the edits of a fix at the places that a rehearsal has marked."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gradscope.code import source, statements
from gradscope.code.source import FUNCTIONS
from gradscope.code.statements import stored_names
from gradscope.fixing.instrumentation import Span
from gradscope.fixing.patch import (
    TextEdit,
    TextEdits,
    after,
    before,
    block_with,
    end_of,
    instead_of,
    only,
    removed,
    start_of,
    statement_lines,
    text_of,
    together,
    under,
)

if TYPE_CHECKING:  # it is not needed in the user's process
    from gradscope.fixing.rehearsal import Kind, Spot

PATHS = (ast.Name, ast.Attribute, ast.Subscript)
"""What a variable, or a part of one, is read by."""
Owner: TypeAlias = source.Loop | source.Function
"""What runs statements again and again."""
_SIMPLE = (*PATHS, ast.Call)
_MADE = {
    "tuple": "tuple({0} for {1} in {2})",
    "list": "[{0} for {1} in {2}]",
    "dict": "{{k: {0} for k, {1} in {2}.items()}}",
}
"""How a container is made of its parts: what becomes of one, its name, and the container's."""
_REPEATABLE = {"zip", "enumerate", "range", "reversed", "list", "tuple", "items", "values", "keys"}
"""What a loop may call to get its elements if another one is to have the same."""
_IN_PLACE_ALONE = {"zero_", "copy_", "set_", "fill_", "normal_", "uniform_", "random_"}
"""Methods of a tensor that have no form that leaves it as it is."""
_POSITIONS = {"torch.autograd.grad": 3, "torch.autograd.backward": 2}
"""Where a call takes ``retain_graph`` if that is not named."""


def is_target(place: Span) -> bool:
    """Return whether a loss function takes the expression at a place as its target."""
    return place.expression in [*statements.targets_in(place.statement[1])]


def region_of(place: Span) -> Owner | None:
    """Return the function or loop that a statement begins."""
    around = source.enclosing(place.file, place.line)
    regions = (each for each in reversed(around) if isinstance(each, FUNCTIONS + source.LOOPS))
    return next((each for each in regions if each.lineno != place.line), None)


def variable_at(place: Span, head: Span) -> str:
    """Return the variable that a place reads, if it is the same in the function or loop that begins
    at the head; else nothing.
    """
    node = place.expression
    if not isinstance(node, ast.Name | ast.Attribute):
        return ""
    region: ast.AST = region_of(head) or source.tree(head.file)
    text = ast.unparse(node)
    if text.startswith("self."):  # all methods of the class share it
        around = (e for e in source.enclosing(head.file, head.line) if isinstance(e, ast.ClassDef))
        region = next(around, region)
    return text if place.is_in(head.file, region) else ""


def root_of(path: str) -> str:
    """Return the variable that a path begins with."""
    return path.partition(".")[0].partition("[")[0]


# values


def with_call(place: Span, kinds: frozenset[Kind], method: str) -> TextEdits:
    """Return the edit that detaches or clones what a place gives, or takes its number."""
    node = place.expression
    if node is None or place.is_added:  # ``x += y`` has no place for a call on the old ``x``
        return ()
    text = _operand(node, place.file)
    is_call = any(isinstance(each, ast.Call) for each in ast.walk(node))
    new = _cut(text, kinds, method, place.file, is_call=is_call)
    return (instead_of(node, place.file, new),) if new else ()


def _operand(node: ast.expr, file: str, within: TextEdits = ()) -> str:
    """Return an expression as it is written with pieces in it, to be called or computed with."""
    text = text_of(node, file, within)
    return text if isinstance(node, _SIMPLE) else f"({text})"


def with_clones(place: Span, leaves: Iterable[str]) -> TextEdits:
    """Return the edit that computes with clones of some parameters, by their names: where they are
    read, or all of those of a module.
    """
    node, file = place.expression, place.file
    names = [name.split(".")[1:] for name in leaves if "." in name]
    walked = ast.walk(node) if node else ()
    reads = (each for each in walked if isinstance(each, ast.Attribute))
    paths = [(each, ast.unparse(each).split(".")[1:]) for each in reads]
    found = [(len(path), e) for e, path in paths if path in [own[-len(path) :] for own in names]]
    if found:  # of `self.w` and `self.layer.w` it is the latter that is `net.layer.w`
        longest = max(length for length, _ in found)
        own = (each for length, each in found if length == longest)
        return tuple(instead_of(each, file, f"{text_of(each, file)}.clone()") for each in own)
    match node:
        case ast.Call(func=func, args=args, keywords=[]) if isinstance(func, PATHS):
            name, given = text_of(func, file), ", ".join(text_of(each, file) for each in args)
            clones = f"{{k: p.clone() for k, p in {name}.named_parameters()}}"
            text = f"torch.func.functional_call({name}, {clones}, ({given},))"
            return (instead_of(node, file, text),) if args and _has_torch(file) else ()
    return ()


def _cut(
    text: str, kinds: frozenset[Kind], method: str, file: str, *, is_call: bool = False
) -> str:
    """Return ``text.detach()``, or what else detaches values of these kinds; empty if unknown.

    ``is_call``: it must not stand there twice.
    """
    tensors, others = kinds & {"tensor", "number"}, kinds & {"none", "other"}
    containers = _containers(kinds)
    if len(containers) + bool(tensors) != 1 or (others and is_call):
        return ""
    cut, is_one = f"{text}.{method}()", f'hasattr({text}, "{method}")'
    for name, parts in containers.items():
        is_one = f"isinstance({text}, {name})"
        if name in _MADE:
            each = next(letter for letter in "tuvw" if text != letter)
            inner = _cut(each, parts, method, file)
            cut = _MADE[name].format(inner, each, text)
        else:
            replacing = f"{text}._replace(" if name == "namedtuple" else _replacing(file, text)
            fields = _cut_fields(text, parts, method, file)
            is_known = name != "object" and replacing and others <= {"none"} and not is_call
            inner = ", ".join(f"{field}={new}" for field, new in fields.items())
            cut = f"{replacing}{inner})" if is_known else ""
        if not (cut and inner):
            return ""
    if others == {"none"}:
        return f"(None if {text} is None else {cut})"
    return f"({cut} if {is_one} else {text})" if others else cut


def _bare(text: str) -> str:
    return text[1:-1] if text.startswith("(") else text


def _containers(kinds: frozenset[Kind]) -> dict[str, frozenset[Kind]]:
    """Return the containers among some kinds, with the kinds of all their parts."""
    found: dict[str, frozenset[Kind]] = {}
    for kind in kinds:
        if isinstance(kind, tuple):
            found[kind[0]] = found.get(kind[0], frozenset()) | kind[1]
    return found


def plain(kinds: Iterable[Kind]) -> Iterator[Kind]:
    """Yield the kinds of what is in containers, and in those in them."""
    for kind in kinds:
        yield from plain(kind[1]) if isinstance(kind, tuple) else [kind]


def _cut_fields(text: str, parts: frozenset[Kind], method: str, file: str) -> dict[str, str]:
    """Return the fields of an object that hold tensors, each with what detaches it."""
    fields = sorted(_containers(parts).items())
    cuts = {field: _cut(f"{text}.{field}", own, method, file) for field, own in fields}
    return {field: new for field, new in cuts.items() if new}


def with_none(name: str, kinds: frozenset[Kind], empty: Collection[str]) -> frozenset[Kind]:
    """Return the kinds of a variable, where it and some of its attributes are None at times."""
    found = kinds | {"none"} if name in empty else kinds
    for kind in (each for each in kinds if isinstance(each, tuple)):
        fields = [own for own in _containers(kind[1]) if f"{name}.{own}" in empty]
        none = frozenset((own, frozenset({"none"})) for own in fields)
        found |= {(kind[0], none)} if none else set()
    return found


def fields_of(name: str, kinds: frozenset[Kind]) -> list[str]:
    """Return a variable or, if that is an object, its attributes that hold tensors of graphs."""
    objects = (parts for kind, parts in _containers(kinds).items() if kind not in _MADE)
    fields = [f"{name}.{field}" for parts in objects for field in sorted(_containers(parts))]
    return fields or [name]


def _replacing(file: str, text: str) -> str:
    """Return the start of a call of ``dataclasses.replace``, by the name that a file has for it;
    empty if it has none.
    """
    for name, what in source.imported(file).items():
        if what == "dataclasses":
            return f"{name}.replace({text}, "
        if what == "dataclasses.replace":
            return f"{name}({text}, "
    return ""


def out_of_place(place: Span) -> TextEdits:
    """Return the edit that binds a variable to the result of an operation, in the place of one that
    changes its tensor.
    """
    file, node = place.statement
    match node:
        case ast.AugAssign(target=ast.Name() | ast.Attribute() as target, value=value):
            name, given = text_of(target, file), text_of(value, file)
            whole = text_of(node, file)
            sign = whole[len(name) : len(whole) - len(given)].rstrip("( \n").strip()[:-1]
            inner, is_sum = getattr(value, "op", None), isinstance(node.op, ast.Add | ast.Sub)
            is_product = is_sum and isinstance(inner, ast.Mult | ast.Div | ast.MatMult)
            is_one = isinstance(value, (*_SIMPLE, ast.Constant)) or is_product
            new = f"{name} = {name} {sign} {given if is_one else f'({given})'}"
        case ast.Expr(
            ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() as target, attr=method))
        ) if method.endswith("_") and method not in _IN_PLACE_ALONE:
            name, whole = text_of(target, file), text_of(node, file)
            new = f"{name} = {name}.{method[:-1]}{whole[whole.index('(') :]}"
        case _:
            return ()
    region = source.scope_at(file, node.lineno)
    given_names = _loop_variables(region)
    returned = (each for each in ast.walk(region) if isinstance(each, ast.Return))
    if isinstance(region, FUNCTIONS) and not any(_reads(each, {name}) for each in returned):
        given_names |= _arguments(region)  # who has given it looks at what became of it
    if isinstance(target, ast.Name) and not _is_read_on(file, node, name, region):
        return ()  # what it stands for is to be changed
    return () if name in given_names else (instead_of(node, file, new),)


def _is_read_on(file: str, node: ast.stmt, name: str, region: ast.AST) -> bool:
    """Return whether a variable of a region is read once a statement of it has run: below it, or
    further up in its loop if that does not bind it there.
    """
    loop = next(iter(source.loops_around(file, node.lineno)), ast.Pass())
    above = [e for e in source.statements_of(loop) if e.lineno < node.lineno]
    above = [] if any(name in stored_names(each) for each in above) else above
    below = (each for each in source.statements_of(region) if each.lineno > node.lineno)
    return any(name in read_names(each) for each in (*above, *below))


def rebinding(
    place: Span, kinds: dict[str, frozenset[Kind]], *, is_leaf: bool, is_behind: bool = False
) -> TextEdits:
    """Return the edit that detaches variables before the statement at a place, or behind it."""
    lines, method = [], "detach().requires_grad_" if is_leaf else "detach"
    at = place.statement[1]
    around = [each for each in functions_around(place.file, at) if each is not at]
    known = own_names(around[-1]) if around else set()
    region = around[-1] if around else source.tree(place.file)
    given = _loop_variables(region) | (_arguments(region) if around else set())
    for name, own in kinds.items():
        if around and name.isidentifier() and name not in known:
            return ()  # it would be another variable
        containers = _containers(own)
        if "object" in containers:
            fields = _cut_fields(name, containers["object"], method, place.file)
            lines += [f"{name}.{field} = {_bare(new)}" for field, new in fields.items()]
            continue
        new = _bare(_cut(name, own, method, place.file))
        if not new or (is_leaf and own & {"none", "other"}):
            return ()
        if name not in given or not _may_change(own):
            lines.append(f"{name} = {new}")
        elif len(own) > 1 or not containers.keys() & {"list", "dict"}:
            return ()
        else:  # who has given it goes on to use it
            lines.append(f"{name}.update({new})" if "dict" in containers else f"{name}[:] = {new}")
    put = after if is_behind else before
    return put(at, place.file, lines)


# calls of the engine


def call_at(place: Span) -> ast.Call | None:
    """Return the call at a place, or the only one of the engine in its statement."""
    node = place.expression
    if isinstance(node, ast.Call):
        return node
    names = ("backward", "grad", "manual_backward")
    inside = source.calls_in(place.statement[1])
    calls = [c for c in inside if source.called_name(c) in names and place.is_in(place.file, c)]
    return calls[0] if len(calls) == 1 else None


def flags_at(levels: Sequence[Span]) -> Span:
    """Return where the options of an engine's call are written, of the lines that led there: in the
    call or, where that hands on the ``**options`` of its function, in the call of the function.
    """
    place, call = levels[0], call_at(levels[0])
    for caller in levels[1:]:
        handed = [each.value for each in call.keywords if each.arg is None] if call else []
        function = functions_around(place.file, call)[-1:] if handed and call else []
        own = function[0].args.kwarg if function else None
        if own is None or [ast.unparse(each) for each in handed] != [own.arg]:
            break
        inside = source.calls_in(caller.statement[1])
        calls = [each for each in inside if source.called_name(each) == function[0].name]
        if len(calls) == 1:  # the first level has the call's own line once more
            place, call = Span.of(caller.file, calls[0]), calls[0]
    return place


def with_flag(place: Span, name: str, value: str = "True") -> TextEdits:
    """Return the edit that passes ``name=value`` in a call, in the place of what it passes now."""
    call = call_at(place)
    if call is None or any(keyword.arg is None for keyword in call.keywords):
        return ()  # **options may pass it as well
    if any(isinstance(each, ast.Starred) for each in call.args):
        return ()
    given = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    at = _POSITIONS.get(ast.unparse(call.func), 1)
    by_place = call.args[at] if name == "retain_graph" and at < len(call.args) else None
    if given is None and isinstance(by_place, ast.Constant):
        given = by_place
    if given is not None:
        return (instead_of(given, place.file, value),)
    return _with_argument(call, place.file, f"{name}={value}")


def _with_argument(call: ast.Call, file: str, text: str) -> TextEdits:
    """Return the edit that hands one more argument to a call."""
    last = max((*call.args, *call.keywords), key=end_of, default=None)
    if last is not None:
        return (instead_of(last, file, f"{text_of(last, file)}, {text}"),)
    written = text_of(call, file)
    return (instead_of(call, file, f"{written[: written.rindex('(')]}({text})"),)


def not_reentrant(file: str) -> TextEdits:
    """Return the edit that passes ``use_reentrant=False`` in every checkpoint of a file."""
    calls = (c for c in source.calls_in(source.tree(file)) if source.called_name(c) == "checkpoint")
    return together(*(with_flag(Span.of(file, c), "use_reentrant", "False") for c in calls))


def without_flag(place: Span, name: str) -> TextEdits:
    """Return the edit that leaves ``name=True`` out of a call."""
    call = call_at(place)
    keyword = next((k for k in call.keywords if k.arg == name), None) if call else None
    if call is None or keyword is None:
        return ()
    given = sorted((*call.args, *call.keywords), key=end_of)
    at = given.index(keyword)
    if len(given) == 1:
        return (instead_of(keyword, place.file, ""),)
    first, last = (given[at - 1], keyword) if at else (keyword, given[1])
    kept = text_of(given[at - 1] if at else given[1], place.file)
    return (TextEdit(place.file, start_of(first), end_of(last), kept),)


def summed(first: Span, second: Span) -> TextEdits:
    """Return the edit that makes one backward call of two that stand in one block: the later one,
    of the sum of both losses.
    """
    file, block = second.file, block_with(*second.statement)
    gone, last = first.statement[1], second.statement[1]
    calls = [each.value for each in (gone, last) if isinstance(each, ast.Expr)]
    losses = [_loss_of(call) for call in calls if isinstance(call, ast.Call)]
    if gone not in block or block.index(gone) >= block.index(last) or len(losses) < 2:
        return ()
    one, other = losses
    if one is None or other is None or _form(calls[0], one) != _form(calls[1], other):
        return ()
    between = block[block.index(gone) + 1 : block.index(last)]
    changed = {target for each in between for target in _targets(each)}
    taken = removed(gone, file)
    needed = {ast.unparse(each) for each in ast.walk(one) if isinstance(each, PATHS)}
    if not taken or needed & changed:
        return ()
    total = " + ".join(_summand(each, file) for each in losses if each is not None)
    is_owner = getattr(getattr(calls[1], "func", None), "value", None) is other
    new = f"({total})" if is_owner and not _is_enclosed(other, file) else total
    return (*taken, instead_of(other, file, new))


def _form(call: ast.expr, loss: ast.expr) -> str:
    """Return what a call does with its loss, as the same text for any loss."""
    text = ast.dump(call).replace(ast.dump(loss), "loss")
    for keyword in getattr(call, "keywords", ()):
        if keyword.arg == "retain_graph":
            text = text.replace(ast.dump(keyword), "")
    return text.replace(", keywords=[]", "")


def _is_enclosed(node: ast.expr, file: str) -> bool:
    """Return whether an expression stands in parentheses of its own."""
    line = source.line_of(file, node.lineno).encode()
    return line[: node.col_offset].rstrip().endswith(b"(")


def _summand(loss: ast.expr, file: str) -> str:
    is_sum = isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Add | ast.Mult | ast.Div)
    return text_of(loss, file) if is_sum else _operand(loss, file)


def _targets(node: ast.AST) -> set[str]:
    """Return what a statement binds, imports included."""
    paths = (each for each in ast.walk(node) if isinstance(each, PATHS))
    bound = {ast.unparse(each) for each in paths if not isinstance(each.ctx, ast.Load)}
    names = (each for each in ast.walk(node) if isinstance(each, ast.alias))
    return bound | {(each.asname or each.name).partition(".")[0] for each in names}


def summed_loop(place: Span) -> TextEdits:
    """Return the edit that makes one backward call of those in a loop over losses."""
    file, last = place.statement
    loop = place.loop
    call = last.value if isinstance(last, ast.Expr) else None
    loss = _loss_of(call) if isinstance(call, ast.Call) else None
    if loop is None or loss is None or loop.orelse or not _reads(loss, stored_names(loop)):
        return ()
    form = text_of(last, file).replace(", retain_graph=True", "").replace("retain_graph=True", "")
    written = text_of(loss, file)
    rest = block_with(file, loop)[block_with(file, loop).index(loop) + 1 :]
    is_read = any(_reads(each, stored_names(loop)) for each in rest)
    if not isinstance(loop, ast.For) or loop.body != [last] or is_read:
        scope = source.scope_at(file, last.lineno)
        known = {each.id for each in ast.walk(scope) if isinstance(each, ast.Name)}
        known |= _arguments(scope)
        name = next((n for n in ("losses", "all_losses", "to_sum") if n not in known), "")
        kept = instead_of(last, file, f"{name}.append({written})")
        own = form.replace(written, f"sum({name})", 1)
        made = before(loop, file, [f"{name} = []"]) if name else ()
        return together(made, (kept,), after(loop, file, [own]))
    over, target = text_of(loop.iter, file), text_of(loop.target, file)
    is_bare = isinstance(loop.iter, ast.Tuple) and not over.startswith("(")
    losses = f"({over})" if is_bare else over
    if ast.unparse(loss) != ast.unparse(loop.target):
        losses = f"{written} for {target} in {losses}"
    return (instead_of(loop, file, form.replace(written, f"sum({losses})", 1)),)


def _loss_of(call: ast.Call) -> ast.expr | None:
    """Return what a call starts from: ``x`` of ``x.backward()`` or of ``f.backward(x)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "backward" and not call.args:
        match call.func.value:
            case ast.Call(func=ast.Attribute(attr="scale"), args=[inner]):  # a GradScaler
                return inner
        return call.func.value
    return call.args[0] if len(call.args) == 1 else None


# statements


def read_names(node: ast.AST) -> set[str]:
    """Return the variables that a node reads."""
    found = {each.id for each in source.reads_of(node) if isinstance(each, ast.Name)}
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        found.add(node.target.id)
    return found


def _reads(node: ast.AST, names: set[str], but: Sequence[ast.AST] = ()) -> bool:
    """Return whether a node reads one of these variables, not of that name in a comprehension or a
    function, nor in some nodes.
    """
    if isinstance(node, source.COMPREHENSIONS):
        names = names - {name for each in node.generators for name in stored_names(each.target)}
    if isinstance(node, FUNCTIONS):
        names = names - own_names(node)
    if isinstance(node, ast.Name):
        return not isinstance(node.ctx, ast.Store) and node.id in names
    return any(_reads(e, names, but) for e in ast.iter_child_nodes(node) if e not in but)


def copying(
    nodes: Sequence[ast.stmt],
    again: Sequence[ast.stmt],
    spot: Spot,
    within: TextEdits = (),
    *,
    behind: ast.stmt | None = None,
) -> TextEdits:
    """Return the edit that runs statements, or parts of them, ``again`` before the last one up to a
    line that needs their values, ``behind`` what changes what they have saved, with pieces in the
    copy.
    """
    file = spot[0]
    block = block_with(file, nodes[0])
    names = {name for node in again for name in _bound_in(node)}
    ends = [i for i, each in enumerate(block) if source.spans(each, spot[1])]
    bound = set[str]()
    for node in again:  # what is computed from itself is another one each time
        if read_names(node.value if isinstance(node, ast.Assign) else node) & names - bound:
            return ()
        bound |= _bound_in(node)
    if not ends or not names or any(map(_takes, again)):
        return ()
    begin = block.index(nodes[-1]) + 1
    since = begin if behind is None else block.index(behind) + 1
    readers = [e for e in block[since : ends[0] + 1] if read_names(e) & names]
    if len(readers) < (2 if behind is None and [*again] == [*nodes] else 1):
        return ()
    between = [each for each in block[begin : block.index(readers[-1])] if each not in again]
    needed = {name for node in again for name in read_names(node)} | names
    if any(_targets(each) & needed for each in between):
        return ()
    lines = (
        line for node in again for line in statement_lines(node, file, _pieces_in(node, within))
    )
    return before(readers[-1], file, lines)


def _bound_in(node: ast.stmt) -> set[str]:
    """Return the variables that a statement binds, and those in whose attributes it stores."""
    return {path.partition(".")[0] for path in _targets(node)}


def _pieces_in(node: ast.AST, pieces: TextEdits) -> TextEdits:
    return tuple(piece for piece in pieces if start_of(node) <= piece.start < end_of(node))


def computed_at(file: str, node: ast.Assign, read: ast.Name, within: TextEdits = ()) -> TextEdits:
    """Return the edit that computes what a statement binds where the variable is read in its
    function, with pieces in it.
    """
    is_here = functions_around(file, node) == functions_around(file, read)
    if not is_here or read.id in read_names(node.value) or _takes(node):
        return ()
    text = _operand(node.value, file, _pieces_in(node.value, within))
    return (instead_of(read, file, text),)


def with_followers(block: Sequence[ast.stmt], nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return statements with those of their block that are computed from what they bind."""
    found: list[ast.stmt] = []
    names: set[str] = set()
    for each in block:
        if each in nodes or (not isinstance(each, FUNCTIONS) and read_names(each) & names):
            found.append(each)
            names |= stored_names(each)
    return found


def put_inside(file: str, nodes: Sequence[ast.stmt], owner: Owner) -> TextEdits:
    """Return the edit that moves statements to the head of the loop or the function behind them:
    what binds variables or, into a loop, what is called and keeps its result itself.
    """
    block = block_with(file, owner)
    names = {name for node in nodes for name in stored_names(node)}
    before_it = block[block.index(nodes[0]) : block.index(owner)]
    between = [each for each in before_it if each not in nodes]
    needed = {name for node in nodes for name in read_names(node)} - names
    is_bound = any(_targets(each) & needed for each in (*between, owner))
    kinds = (ast.Assign, ast.AnnAssign, *(() if isinstance(owner, FUNCTIONS) else (ast.Expr,)))
    may_move = all(isinstance(node, kinds) and not _takes(node) for node in nodes)
    if not before_it or is_bound or not may_move:
        return ()
    if isinstance(owner, FUNCTIONS):  # the names become its own: nobody else may see them
        scope = source.scope_at(file, nodes[0].lineno)
        others = (*ast.iter_child_nodes(scope), owner.args, *owner.decorator_list)
        beside = (each for each in others if each not in (owner, *nodes))
        is_seen = any(_reads(each, names, [owner, *nodes]) for each in beside)
        is_seen |= bool(names & _arguments(owner))
        body = owner.body[ast.get_docstring(owner) is not None :] or owner.body
    else:
        head = owner.test if isinstance(owner, ast.While) else owner.iter
        is_seen, body = any(read_names(each) & names for each in (*between, head)), owner.body
    if is_seen:
        return ()
    gone = [removed(node, file) for node in nodes]
    lines = [line for node in nodes for line in statement_lines(node, file)]
    return together(*gone, before(body[0], file, lines))


def unguarded(file: str, guard: ast.stmt) -> tuple[list[ast.stmt], TextEdits]:
    """Return what stores a value only if there is none yet, with what computes that, and the edit
    that runs it each time: the condition goes, and what is done otherwise. Both are empty if a
    statement is not such a guard.
    """
    block, around = block_with(file, guard), functions_around(file, guard)
    before_it, rest = block[: block.index(guard)], block[block.index(guard) + 1 :]
    match guard:
        case ast.If(test=test, body=body, orelse=orelse):
            asking: list[ast.AST] = [test]
            ways = [(body, orelse), (orelse or rest, body)]
        case ast.Try(body=body, handlers=[ast.ExceptHandler(body=handling)], orelse=[]):
            asking, ways = [*body], [(handling, body)]
        case _:
            return [], ()
    names = {name for each in asking for name in read_names(each)}
    looks = [e for e in before_it if isinstance(e, ast.Assign) and stored_names(e) & names]
    nodes = [n for each in (*asking, *(look.value for look in looks)) for n in ast.walk(each)]
    asked = {ast.unparse(node) for node in nodes if isinstance(node, ast.expr)}
    outer = {name for function in around for name in declared(function)}
    for way, instead in ways:
        kinds = ast.Assign | ast.Return | ast.Continue
        is_read = all(isinstance(e, kinds) and not _targets(e) & asked for e in instead)
        is_left = way is not rest or (instead and not isinstance(instead[-1], ast.Assign))
        stored = {text for each in way for text in _targets(each)}
        lasting = [t for t in stored if t in outer or not (around and t.isidentifier())]
        known = {repr(t.rpartition(".")[2]) for t in lasting}  # ``hasattr(self, "cache")``
        is_asked = not asked.isdisjoint((*lasting, *known, *(t.partition("[")[0] for t in lasting)))
        if is_asked and is_read and is_left and not any(map(_takes, way)):
            gone = removed(guard, file) if way is rest else only(way, guard, file)
            dead = (removed(each, file) for each in looks if stored_names(each) <= stored)
            return way, together(gone, *dead)
    return [], ()


def functions_around(file: str, node: ast.AST) -> list[source.Function]:
    """Return the functions around a node, from the outermost in."""
    around = source.enclosing(file, getattr(node, "lineno", 0))
    return [each for each in around if isinstance(each, FUNCTIONS)]


def own_names(function: ast.stmt) -> set[str]:
    """Return the arguments and variables of a function, and those that it declares."""
    return stored_names(function) | _arguments(function) | declared(function)


def declared(function: ast.stmt) -> set[str]:
    """Return the names that a function says are global or another function's."""
    says = (n for n in ast.walk(function) if isinstance(n, ast.Global | ast.Nonlocal))
    return {name for each in says for name in each.names}


def _loop_variables(region: ast.AST) -> set[str]:
    loops = (each for each in ast.walk(region) if isinstance(each, ast.For | ast.AsyncFor))
    return {name for loop in loops for name in stored_names(loop.target)}


def _arguments(function: ast.AST) -> set[str]:
    return {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}


def _may_change(kinds: frozenset[Kind]) -> bool:
    """Return whether a value of some kinds is, or has in it, what others may put something into."""
    containers = _containers(kinds)
    return bool({"list", "dict"} & containers.keys()) or any(map(_may_change, containers.values()))


def _draws(node: ast.AST) -> bool:
    """Return whether a statement draws or takes something: its copy would have another."""
    words = ("rand", "sample", "drop", "next", "normal", "choice", "shuffle")
    called = [source.called_name(call) for call in source.calls_in(node)]
    return any(word in name for name in called if name for word in words)


def _takes(node: ast.AST) -> bool:
    """Return whether a statement takes something, of which another one is then left."""
    return any(source.called_name(call) in ("next", "pop") for call in source.calls_in(node))


def moved(at: Span, behind: Span, *others: ast.stmt) -> TextEdits:
    """Return the edit that moves the statement around a place behind that around another one, both
    in the innermost block that has them, together with ``others`` of it that come after it.
    """
    file, around = at.file, source.enclosing(at.file, at.line)
    goals = source.enclosing(behind.file, behind.line)
    pairs = ((one, other) for one, other in zip(around, goals, strict=False) if one is not other)
    node, goal = next(pairs, (around[-1], goals[-1]))
    block, nodes = block_with(file, node), (node, *others)
    ends = isinstance(goal, ast.Return | ast.Raise | ast.Break | ast.Continue)
    is_code = not isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not ends
    if file != behind.file or not is_code or goal not in block or (others and node != around[-1]):
        return ()
    if block.index(goal) <= block.index(nodes[-1]):
        return ()
    passed = block[block.index(node) + 1 : block.index(goal) + 1]
    if not all(_may_swap(n, each) for n in nodes for each in passed if each not in nodes):
        return ()
    gone = [removed(n, file) for n in nodes]
    put = after(goal, file, [line for n in nodes for line in statement_lines(n, file)])
    return together(*gone, put)


def split_off(at: Span) -> TextEdits:
    """Return the edit that runs a statement of a loop only once that is over, in a loop of its own
    over the same elements.
    """
    file, node = at.statement
    loop = at.loop
    if not isinstance(loop, ast.For) or node not in loop.body or loop.orelse:
        return ()
    others = [each for each in loop.body if each is not node]
    leaves = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.GeneratorExp)
    names = [source.called_name(call) for call in source.calls_in(loop.iter)]
    inside = (*ast.walk(loop.iter), *(n for each in others for n in ast.walk(each)))
    if not set(names) <= _REPEATABLE or any(isinstance(each, leaves) for each in inside):
        return ()
    needed = read_names(loop.iter) | stored_names(loop.target)
    is_apart = all(_may_swap(node, each) and not _targets(each) & needed for each in others)
    if not others or not is_apart:
        return ()
    head = f"for {text_of(loop.target, file)} in {text_of(loop.iter, file)}:"
    lines = [head, *(f"    {line}" for line in statement_lines(node, file))]
    if node is not loop.body[-1]:
        return together(removed(node, file), after(loop, file, lines))
    indent = source.line_of(file, loop.lineno)[: loop.col_offset]
    text = "\n".join(indent + line for line in lines)
    return (TextEdit(file, (node.lineno, 0), end_of(node), text),) if removed(node, file) else ()


def entered_anew(file: str, node: ast.With) -> TextEdits:
    """Return the edit that enters a ``with`` in each iteration of the loop that is all there is in
    it: their heads change places.
    """
    loop = node.body[0]
    if not isinstance(loop, ast.For | ast.While) or node.body[1:] or loop.orelse:
        return ()
    over = loop.iter if isinstance(loop, ast.For) else loop.test
    bound = stored_names(loop.target) if isinstance(loop, ast.For) else set()
    lines = [source.line_of(file, each.lineno) for each in (node, loop)]
    heads = [line.strip() for line in reversed(lines)]
    names = ((stored_names(each), read_names(each)) for each in node.items)
    is_apart = not any(stored & read_names(over) or read & bound for stored, read in names)
    if not is_apart or any(map(_takes, node.items)) or not all(h.endswith(":") for h in heads):
        return ()
    return tuple(
        TextEdit(file, start_of(each), (each.lineno, len(line.encode())), head)
        for each, line, head in zip((node, loop), lines, heads, strict=True)
    )


def _may_swap(node: ast.stmt, later: ast.stmt) -> bool:
    """Return whether a statement can come after a later one: neither binds what the other needs,
    and not both draw.
    """
    bound = _targets(node)
    needed = bound | {ast.unparse(each) for each in ast.walk(node) if isinstance(each, PATHS)}
    is_apart = all(map(str.isidentifier, bound)) and not bound & read_names(later)
    return is_apart and not needed & _targets(later) and not (_draws(node) and _draws(later))


def without_graph(file: str, line: int) -> TextEdits:
    """Return the edit that runs the statement at a line under ``torch.no_grad()``."""
    node = source.innermost(file, line, ast.stmt)
    kinds = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return | ast.For
    if not isinstance(node, kinds):
        return ()
    runs_later = any(isinstance(each, ast.Lambda) for each in ast.walk(node))
    return under(node, file, "torch.no_grad()") if _has_torch(file) and not runs_later else ()


def _has_torch(file: str) -> bool:
    return source.imported(file).get("torch") == "torch"
