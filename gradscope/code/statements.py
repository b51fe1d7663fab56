"""Says what a statement of the program does: what it stores, modifies, computes, compares with.

Also finds the line that stores something under a name, and whether the code bounds what it stores.
"""

from __future__ import annotations

import ast
import enum
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from gradscope.code import source
from gradscope.code.source import SourceFile, cells_like
from gradscope.model import Site
from gradscope.model.variable_paths import Path


class Statement(NamedTuple):
    """A piece of source that is a candidate: its place, and the dotted names that it changes in
    place or uses.

    ``target`` is the one that it certainly changes, if that is plain: ``x`` of ``x += 1``, ``x[0] =
    1`` and ``x.relu_()``.
    """

    site: Site
    names: frozenset[str]
    target: str = ""


_IN_PLACE = re.compile(r"[a-z](\w*[a-z0-9])?_")
_NOT_IN_PLACE = frozenset(
    {"requires_grad_", "share_memory_", "retain_grad_", "rename_", "pin_memory_", "train_", "eval_"}
)
_RESET = re.compile(r"(?:([\w.]+)\.zero_grad\(|\.grad = None$|\.grad\.zero_\()")
_WRITES_INTO_TENSORS = frozenset({"load_state_dict", "vector_to_parameters"})
_MODULES = frozenset({"torch", "nn", "F", "functional", "init"})

ADDS_ONE = frozenset({"append", "appendleft"})
"""Methods that add what they are given to a container, as one element."""

ADDS_IF_DROPPED = frozenset({"add", "update", "push"})
"""Methods that add to a container if their result is thrown away: of tensors, ``x.add(y)``."""

ADDS = ADDS_ONE | frozenset({"extend", "extendleft", "insert", "put", "put_nowait", "setdefault"})
"""Methods that add to a container, whatever becomes of their result."""


ADDS_TO_FIRST = frozenset(
    {"heappush", "heappushpop", "heapreplace", "insort", "insort_left", "insort_right", "setitem"}
)
"""Functions that put something into what they are given first."""


def is_in_place(method: str) -> bool:
    """Return whether torch's naming makes a method or function of this name in place."""
    return _IN_PLACE.fullmatch(method) is not None and method not in _NOT_IN_PLACE


def unpacked(target: ast.expr) -> Iterator[ast.expr]:
    """Yield the single targets of an assignment to several."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from unpacked(part)
    elif isinstance(target, ast.Starred):
        yield from unpacked(target.value)
    else:
        yield target


def modified(node: ast.AST) -> list[ast.expr]:
    """Return what a node modifies: ``x`` of ``x += 1``, ``x[0] = 1`` and ``torch.relu_(x)``."""
    found: list[ast.expr] = []
    match node:
        case ast.AugAssign(target=target):
            found.append(target)
        case ast.Assign(targets=targets):
            found += [each for each in targets if isinstance(each, ast.Subscript)]
        case ast.Call(func=func, args=args, keywords=keywords):
            name = source.called_name(node)
            if isinstance(func, ast.Attribute) and is_in_place(name):
                found += args[:1] if _is_module(func.value) else [_first(func.value)]
            elif name in _WRITES_INTO_TENSORS:
                found.append(func.value if isinstance(func, ast.Attribute) else func)
            found += [each.value for each in keywords if each.arg == "out"]
            if any(each.arg == "inplace" and _is_true(each.value) for each in keywords):
                found += args[:1]
    return [_with_keys(each)[0] for each in found]


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and bool(value.value)


def _is_module(owner: ast.expr) -> bool:
    """Return whether an expression is a module of torch's: ``torch``, ``torch.nn.init``."""
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return isinstance(owner, ast.Name) and owner.id in _MODULES


def _first(target: ast.expr) -> ast.expr:
    """Return what a chain of operations in place begins with: ``self.mean.mul_(0.9).add_(x)``."""
    while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
        target = target.func.value
    return target


def in_place_statements(file: str) -> tuple[Statement, ...]:
    """Return all statements of a file that would modify a tensor in place."""
    return _found_in(file, modified)


def changed_by(site: Site) -> Statement:
    """Return the statement at a line that looks as if it modified a tensor, else all of it."""
    outer: list[Statement] = []
    end = (0, 0)
    for each in in_place_statements(site.file):
        own = each.site
        is_there = own.line <= site.line <= own.end_line and own.function == site.function
        if is_there and (own.line, own.column) >= end:  # else it is within the one before
            outer.append(each)
            end = own.end_line, own.end_column
    if len(outer) == 1:
        return outer[0]
    whole = source.statement_at(site)
    if whole is None or hasattr(whole, "body"):
        return Statement(site, frozenset())
    return Statement(source.of_node(whole, site.file, site.function), frozenset())


_OPERATORS = {"mult": "mul", "matmult": "matmul", "mod": "remainder"}
"""Of those that Python's syntax tree does not name as torch does."""
_ALIASES = dict.fromkeys(("mm", "bmm", "mv", "dot"), "matmul") | {"rsub": "sub", "addmm": "linear"}


def _found_in(
    file: str, concerned: Callable[[ast.AST], Sequence[ast.AST]]
) -> tuple[Statement, ...]:
    """Return the pieces of a file that concern something, which the function returns."""
    found = []
    for node, function, _ in source.parsed(file).nodes:
        if isinstance(node, ast.stmt | ast.expr) and (parts := concerned(node)):
            names = frozenset(name for part in parts for name in source.dotted_names(part))
            target = ast.unparse(parts[0]) if len(parts) == 1 and _is_plain(parts[0]) else ""
            found.append(Statement(source.of_node(node, file, function), names, target))
    return tuple(found)


def _is_plain(part: ast.AST) -> bool:
    """Return whether an expression is a variable or a chain of attributes of one."""
    return isinstance(part, ast.Name | ast.Attribute) and not any(source.calls_in(part))


def operations(file: str, node_name: str) -> tuple[Statement, ...]:
    """Return all expressions that build such a node: ``MulBackward0`` by ``a * b``,
    ``a.mul(b)``.
    """
    wanted = _operations_of(node_name)
    return _found_in(file, lambda node: [node] if _operation(node) in wanted else [])


def _operation(node: ast.AST) -> str | None:
    """Return what an operator or a call computes, by torch's name."""
    if isinstance(node, ast.BinOp | ast.AugAssign):
        operator = type(node.op).__name__.lower()
        return _OPERATORS.get(operator, operator)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return "neg"
    if isinstance(node, ast.Call) and source.called_name(node) == "apply":
        return ".".join(ast.unparse(node.func).split(".")[-2:])
    return source.called_name(node) if isinstance(node, ast.Call) else None


def _operations_of(node_name: str) -> set[str | None]:
    """Return how source spells what a node of this name does: ``MulBackward0`` is ``mul``,
    ``ScaleBackward`` may be ``Scale.apply``.
    """
    operation = function = re.sub(r"Backward\d*$", "", node_name)
    operation = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", operation).lower()
    return {operation, _ALIASES.get(operation, operation), f"{function}.apply"}


def names_at(site: Site) -> frozenset[str]:
    """Return the dotted names that the simple statement at a place reads or assigns."""
    statement = source.statement_at(site)
    if statement is None or hasattr(statement, "body"):
        return frozenset()
    return source.dotted_names(statement)


def between(
    statements: tuple[Statement, ...], first: Site | None, last: Site | None
) -> tuple[Statement, ...]:
    """Return those that can have run after ``first`` and before ``last``.

    Where both lie in one function, those of that function in between: down the lines, or round the
    loop that holds both when ``last`` is above. Statements of other functions may have run at any
    time and stay.
    """
    if first is None or last is None or _holder(first) != _holder(last):
        return statements
    own = _holder(first)
    around = source.loops_around(first.file, first.line)
    loop = next((each for each in around if source.spans(each, last.line)), None)
    down = range(first.line, last.line + 1)
    lines = (s.site.line for s in statements if s.site.function == first.function)
    is_certain = loop is None or any(line in down for line in lines)

    def possible(site: Site) -> bool:
        if _holder(site) != own:
            return True
        if first.line <= last.line:
            return site.line in down or not is_certain
        is_between = last.line < site.line < first.line
        return loop is None or (source.spans(loop, site.line) and not is_between)

    return tuple(s for s in statements if possible(s.site))


def _holder(site: Site) -> tuple[str, str]:
    return site.file, site.function


# through ``.data``


class ThroughData(NamedTuple):
    """The names of the tensors whose ``.data`` a line uses, and whether the line seems to write to
    one.

    A name is empty where it is not known before the line runs.
    """

    names: frozenset[str]
    writes: bool


def data_lines(file: str) -> dict[int, ThroughData]:
    """Return the lines of statements that may write to a tensor through ``.data``; running them
    shows what is written.

    A variable that was assigned from a ``.data`` stands for the tensor as well.
    """
    return _data_lines(source.parsed(file))


@lru_cache(maxsize=256)
def _data_lines(file: SourceFile) -> dict[int, ThroughData]:
    if not any(".data" in line for line in file.lines):
        return {}
    aliases: dict[str, set[str]] = defaultdict(set)  # names that stand for a ``.data``, by function
    stored: dict[int, set[str]] = defaultdict(set)  # for p in net.parameters(): p.data -= 0.1
    found: dict[int, ThroughData] = {}
    for node, function, _ in file.nodes:
        known = aliases[function]
        match node:
            case ast.For(target=target, iter=value):
                stored[node.lineno] |= stored_names(target)
                known |= stored_names(target) if _with_data(value, known) else set()
            case ast.Assign(targets=targets, value=value) if _with_data(value, known):
                known.update(*map(stored_names, targets))
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        writes = any(modified(n) or _stores_data(n) for n in ast.walk(node))
        if not writes and not any(source.calls_in(node)):
            continue
        before_it = stored[node.lineno]
        used = _with_data(node, known)
        names = {"" if re.split(r"\W", name)[0] in before_it else name for name in used}
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1 if names else 0):
            before = found.get(line, ThroughData(frozenset(), False))
            found[line] = ThroughData(before.names | names, before.writes or writes)
    return found


def _stores_data(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and (node.attr, type(node.ctx)) == ("data", ast.Store)


def stored_names(node: ast.AST) -> set[str]:
    """Return the variables that a statement or a target binds, and what is in it."""
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if not isinstance(each.ctx, ast.Load)}


def binding(site: Site, name: str) -> ast.expr | None:
    """Return what the last statement before a site gives a variable, in its function and on every
    way to it.
    """
    around = source.enclosing(site.file, site.line)
    before = (each for each in _before(site) if each not in around)
    found = next((each for each in before if name in _bound_by(each)), None)
    if found is None:
        return None
    branches = (ast.If, ast.Try, ast.Match, ast.For, ast.While)
    over = source.enclosing(site.file, found.lineno)
    if any(isinstance(each, branches) and each not in around for each in over):
        return None
    return getattr(found, "value", None)


def _giving(site: Site, name: str) -> ast.stmt | None:
    """Return the last statement before a site that binds a variable, in its function or else in
    its module; a loop over what it is bound to is one.
    """
    every = (*_before(site), *_before(site, source.tree(site.file)))
    return next((each for each in every if name in _bound_by(each)), None)


def value_given(site: Site, name: str) -> ast.expr | None:
    """Return what that statement gives the variable, or what it takes that from."""
    found = _giving(site, name)
    return getattr(found, "iter", None) or getattr(found, "value", None)


def inference_mode(site: Site, name: str) -> Site | None:
    """Return what has entered the inference mode in which a variable at a site was bound: a
    ``with`` around that, or the decorator of the function that is called there.
    """
    if (given := _giving(site, name)) is None:
        return None
    called = {source.called_name(call) for call in source.calls_in(given)}
    nodes = (each.node for each in source.parsed(site.file).nodes)
    functions = [n for n in nodes if isinstance(n, source.FUNCTIONS) and n.name in called]
    for each in reversed([*source.enclosing(site.file, given.lineno), *functions]):
        items = [item.context_expr for item in getattr(each, "items", ())]
        for entered in (*items, *getattr(each, "decorator_list", ())):
            if "inference_mode" in ast.unparse(entered):
                return source.of_node(entered, site.file, site.function)
    return None


def called_again(site: Site) -> Site | None:
    """Return the last call before a site of what has given a variable there its value."""
    given = (value_given(site, name) for name in sorted(names_at(site)))
    for first in (each for each in given if isinstance(each, ast.Call)):
        calls = (call for each in reversed(_before(site)) for call in source.calls_in(each))
        alike = (call for call in calls if ast.unparse(call.func) == ast.unparse(first.func))
        later = [call for call in alike if first.lineno < call.lineno < site.line]
        if later:
            return source.of_node(later[-1], site.file, site.function)
    return None


def resets_before(step: Site, calls: Iterable[Site | None], whose: Collection[str]) -> Site | None:
    """Return the last place before a step, behind the backward calls of its function, that resets
    gradients: those of what has one of the names ``whose`` where it says whose. What stands between
    is known if a call does, or if nothing else stands there.
    """
    own = step.file, step.function
    here = (site.line for site in calls if site and (site.file, site.function) == own)
    begin = max((line for line in here if line < step.line), default=0)
    for each in (each for each in _before(step) if not hasattr(each, "body")):
        reset = _RESET.search(ast.unparse(each))
        if each.lineno <= begin or (reset is None and not begin):
            return None
        if reset is not None and (reset[1] is None or reset[1].rpartition(".")[2] in whose):
            return source.of_node(each, step.file, step.function)
    return None


def resets_in(file: str) -> list[Site]:
    """Return the places in a file that reset gradients."""
    nodes = (n for n in ast.walk(source.tree(file)) if isinstance(n, ast.stmt))
    simple = (n for n in nodes if not hasattr(n, "body"))
    return [source.of_node(each, file) for each in simple if _RESET.search(ast.unparse(each))]


def sets_requires_grad(site: Site, name: str) -> Site | None:
    """Return the last place before a site that sets ``requires_grad`` of a variable, in its
    function.
    """
    last = next((each for each in _before(site) if _sets(each, name)), None)
    return None if last is None else source.of_node(last, site.file, site.function)


def flags_set(file: str, attribute: str, *, value: bool) -> list[ast.Assign]:
    """Return the statements of a file that set an attribute to a truth value, but of what a loop
    takes from ``parameters()``, where ``requires_grad`` is a property.
    """
    nodes = [*ast.walk(source.tree(file))]
    loops = [n for n in nodes if isinstance(n, ast.For) and "parameters(" in ast.unparse(n.iter)]
    theirs = {id(n) for each in loops for n in ast.walk(each)}
    found = []
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=set_)], value=ast.Constant(value=to)):
                is_theirs = id(node) in theirs and attribute == "requires_grad"
                if set_ == attribute and to is value and not is_theirs:
                    found.append(node)
    return found


def _sets(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(ast.Name(id=owner), "requires_grad_"))):
            return owner == name
        case ast.Assign(targets=[ast.Attribute(ast.Name(id=owner), "requires_grad")]):
            return owner == name
        case ast.Assign(value=value) if name in _bound_by(statement):
            calls = [*source.calls_in(value)]
            given = (keyword.arg for call in calls for keyword in call.keywords)
            sets = any(source.called_name(call) == "requires_grad_" for call in calls)
            return sets or "requires_grad" in given
    return False


def _before(site: Site, scope: ast.AST | None = None) -> list[ast.stmt]:
    """Return the statements of a scope, by default that of a site, that begin on a line before the
    site's, the last one first.
    """
    every = source.statements_of(scope or source.scope_at(site.file, site.line))
    return [each for each in every if each.lineno < site.line][::-1]


def _bound_by(statement: ast.stmt) -> set[str]:
    """Return the variables that an assignment or a loop binds."""
    match statement:
        case ast.Assign(targets=targets):
            return set().union(*map(stored_names, targets))
        case ast.AnnAssign(target=t) | ast.AugAssign(target=t) | ast.For(target=t):
            return stored_names(t)
    return set()


def _with_data(node: ast.AST, aliases: set[str]) -> frozenset[str]:
    """Return what the code takes ``.data`` of, and the aliases in it, without gradients."""
    nodes = [*ast.walk(node)]
    owners = (n.value for n in nodes if isinstance(n, ast.Attribute) and n.attr == "data")
    known = (n.id for n in nodes if isinstance(n, ast.Name) and n.id in aliases)
    names = (*map(ast.unparse, owners), *known)
    return frozenset(name for name in names if not name.endswith(".grad"))


# what a loss compares with

_AS_TARGET = ("loss", "crit", "mse", "bce", "ce", "l1", "huber", "kl", "kl_div", "nll", "xent")
"""What a function whose second argument is a target is called, or a part of its name."""


def targets_in(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement compares with: the targets of loss functions, divisors of ratios."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(args=[_, second, *_]) if _computes_loss(node):
                yield second
            case ast.Call(keywords=given):
                yield from (k.value for k in given if k.arg in ("target", "targets", "labels"))
            case ast.BinOp(op=ast.Sub(), right=right) if _is_ratio(node, statement):
                yield right


def _computes_loss(call: ast.Call) -> bool:
    name = source.called_name(call).lower()
    parts = name.split("_")
    return any(word in (name if len(word) > 3 else parts) for word in _AS_TARGET)


def _is_ratio(difference: ast.BinOp, statement: ast.AST) -> bool:
    """Return whether a difference is raised: ``(new - old).exp()``, ``torch.exp(new - old)``."""
    calls = [call for call in source.calls_in(statement) if source.called_name(call) == "exp"]
    inside = [e for c in calls for e in (*c.args, getattr(c.func, "value", c))]
    return any(node is difference for each in inside for node in ast.walk(each))


@lru_cache
def makes_leaves(file: str, line: int) -> bool:
    """Return whether the function around a line has a tensor need a gradient by itself."""
    region = ast.unparse(source.scope_at(file, line))
    return re.search(r"\.requires_grad(_\(| = True)", region) is not None


_TAKES_OUT = frozenset({"pop", "popleft", "popitem", "clear", "remove", "discard"})
_REFERENCES = (ast.Name, ast.Attribute, ast.Subscript)
_SETS = ("setattr", "__setattr__")
_SOME = "<some>"  # an attribute of which only the program knows the name


class _Storing(NamedTuple):
    """A place that stores something: how it is nested, and what it stores to."""

    node: source.Located
    function: str
    in_loop: bool
    target: ast.expr
    reads_itself: bool
    fills: bool  # puts something into the target, which stays the same object


def store_of(
    names: tuple[Path, ...],
    files: Iterable[str] = (),
    *,
    container: bool = False,
    ran: Sequence[Site] = (),
) -> tuple[Site | None, bool]:
    """Return the most telling line that stores what the first known of these names holds, rather
    one that ``ran``, and whether it computes it from itself.

    ``files`` are those of the code that was running, for what its own file does not store.
    """
    for name in (each.innermost for each in names):
        is_shared = name.origin.owner != "local" or name.attribute is not None
        others = (each for file in files for each in (file, *cells_like(file)))
        for file in dict.fromkeys((name.origin.file, *(others if is_shared else ()))):
            if (found := _find_in(file, name, container=container, ran=ran)) is not None:
                return found
    return None, False


def _find_in(
    file: str, name: Path, *, container: bool, ran: Sequence[Site]
) -> tuple[Site, bool] | None:
    def fit(place: _Storing) -> tuple[int, ...]:
        """Return how well a place fits, in order of weight."""
        inside = name.origin.owner != "local" or name.origin.function == place.function
        has_run = any(site.file == file and source.spans(place.node, site.line) for site in ran)
        around = source.enclosing(file, place.node.lineno)
        may_not_run = any(isinstance(each, ast.If | ast.Match | ast.Try) for each in around)
        is_method = name.attribute is not None and not place.function.endswith("__init__")
        again, fits = place.in_loop or is_method, place.fills == container
        depth = len(_with_keys(place.target)[1])
        match = _match(place.target, name)
        return match, inside, has_run, again, fits, depth, not may_not_run, place.reads_itself

    places = [each for each in _places(source.parsed(file)) if _match(each.target, name)]
    if not places:
        return None
    best = max(places, key=fit)
    caches = (d for d in getattr(best.node, "decorator_list", ()) if "cache" in ast.unparse(d))
    return source.of_node(next(caches, best.node), file, best.function), best.reads_itself


def _match(target: ast.expr, name: Path) -> int:
    """Return how a target fits: 3 as written, 2 by its attribute or container, 1 by its variable,
    or if it is written with other keys, 0 not.
    """
    if ast.unparse(target) == name.text:
        return 3
    if isinstance(target, ast.Name) and name.attribute is None:
        return int(target.id == name.root and not name.through_traceback)
    inner, keys = _with_keys(target)
    items = [*takewhile(lambda step: step.kind == "item", reversed(name.steps))][::-1]
    pairs = zip(keys, items, strict=False)
    is_other = any(isinstance(k, ast.Constant) and k.value not in (..., i.key) for k, i in pairs)
    if name.attribute is None:
        return (2 - is_other) * name.text.startswith(f"{ast.unparse(inner)}[")
    attribute = inner.attr if isinstance(inner, ast.Attribute) else None
    return 2 - is_other if attribute == name.attribute else int(attribute == _SOME)


def _with_keys(target: ast.expr) -> tuple[ast.expr, list[ast.expr]]:
    """Return what a target is a part of, and the keys that lead there."""
    if not isinstance(target, ast.Subscript):
        return target, []
    owner, keys = _with_keys(target.value)
    return owner, [*keys, target.slice]


@lru_cache(maxsize=32)
def _places(file: SourceFile) -> tuple[_Storing, ...]:
    """Return every place in the file that stores something, also to what a variable stands for."""
    found: list[_Storing] = []
    known: dict[str, dict[str, ast.expr]] = defaultdict(dict)
    for node, function, in_loop in file.nodes:
        if not isinstance(node, source.Located):
            continue
        own = known[function]
        for target, fills, reads in _targets(node):
            meant = _meant(target, own) if fills or isinstance(target, ast.Subscript) else target
            both = dict.fromkeys((target, meant))
            found += (_Storing(node, function, in_loop, each, reads, fills) for each in both)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            own[node.targets[0].id] = _meant(node.value, own)
        elif isinstance(node, ast.For):
            own |= {name: _meant(value, own) for name, value in _elements(node.target, node.iter)}
    return tuple(found)


def _meant(target: ast.expr, known: Mapping[str, ast.expr]) -> ast.expr:
    """Return what a target is a part of, with what its variable stands for: ``self.folds[0]``."""
    match target:
        case ast.Name(id=name):
            return known.get(name, target)
        case ast.Subscript(value=value, slice=key) if (meant := _meant(value, known)) is not value:
            return ast.Subscript(meant, key)
        case ast.Call(func=ast.Attribute(value=value, attr="get" | "setdefault")):
            return ast.Subscript(_meant(value, known), ast.Constant(...))
    return target


def _elements(target: ast.expr, over: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables of a loop, and what they are elements of."""
    match target, over:
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=given):
            for pair in zip(targets, given, strict=False):
                yield from _elements(*pair)
        case (
            ast.Tuple(elts=[_, last]),
            ast.Call(func=ast.Name(id="enumerate"), args=[owner])
            | ast.Call(func=ast.Attribute(value=owner, attr="items")),
        ):
            yield from _elements(last, owner)
        case ast.Name(id=name), ast.Call(func=ast.Attribute(value=owner, attr="values")) | owner:
            yield name, ast.Subscript(owner, ast.Constant(...))


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, bool, bool]]:
    """Yield what a node stores to, whether it puts something in there, whether it reads it."""
    match node:
        case ast.Assign(targets=targets, value=value) if not _is_empty(value):
            for target in targets:
                for each in unpacked(target):
                    yield each, False, _names(value, ast.unparse(each))
                    if isinstance(each, ast.Subscript):
                        yield each.value, True, False
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            yield target, False, _names(value, ast.unparse(target))
        case ast.FunctionDef(name=name, decorator_list=[_, *_]):
            yield ast.Name(f"<lru_cache of {name}>"), False, False
        case ast.AugAssign(target=target, value=value) if not _is_empty(value):
            yield target, True, True
            yield target, False, True
            if isinstance(target, ast.Subscript):
                yield target.value, True, True
                yield target.value, False, True
        case ast.Call(args=[owner, key, value]) if source.called_name(node) in _SETS:
            known = key.value if isinstance(key, ast.Constant) else _SOME
            yield ast.Attribute(owner, str(known)), False, False
        case ast.Call(args=[owner, _, *_]) if source.called_name(node) in ADDS_TO_FIRST:
            yield owner, True, False
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            adds = method in ADDS or method in ADDS_IF_DROPPED
            if adds or method.startswith("register_"):  # a hook, a buffer
                yield owner, True, False
            elif is_in_place(method):
                yield owner, False, True


def filled_by(node: ast.AST) -> set[str]:
    """Return what a node puts something into by calls, as it is written."""
    calls = source.calls_in(node)
    return {ast.unparse(own) for call in calls for own, fills, _ in _targets(call) if fills}


def only_filled(file: str) -> set[str]:
    """Return the last names of what a file puts something into, and nowhere takes it out."""
    nodes = (node for node, _, _ in source.parsed(file).nodes)
    emptied = (ast.unparse(own) for node in nodes for own in _emptied(node, again=False))
    gone = {text.rpartition(".")[2] for text in emptied}
    return {text.rpartition(".")[2] for text in filled_by(source.tree(file))} - gone


def _is_empty(value: ast.expr) -> bool:
    """Return whether a value holds no tensor, as ``None`` of ``state = None``."""
    match value:
        case ast.Constant() | ast.Dict(keys=[]) | ast.List(elts=[]) | ast.Tuple(elts=[]):
            return True
    return False


class Bound(enum.Enum):
    """How the code may keep a container from growing for ever."""

    NONE = 0  # losses.append(loss)
    KEYED = 1  # filled by keys, which may come again: ring[step % 24] = loss
    EMPTIED = 2  # emptied, made again in a loop or method, or elements taken out: pool.pop(0)


def bound_of(names: tuple[Path, ...], store: Site | None, *, ended: bool) -> Bound:
    """Return what bounds the container that ``store`` fills; once the program has ``ended``, a
    method that makes it anew has not run again.
    """
    if store is None:
        return Bound.NONE
    name = names[0].innermost
    keyed = False
    for node, function, in_loop in source.parsed(store.file).nodes:
        is_method = name.attribute is not None and not function.endswith("__init__")
        again = in_loop or (is_method and not ended)
        if name.is_local and function != name.origin.function and _binds(node):
            continue  # another function's variable
        if any(_match(target, name) for target in _emptied(node, again=again)):
            return Bound.EMPTIED
        keyed |= any(_match(target, name) for target in _keyed(node))
    return Bound.KEYED if keyed else Bound.NONE


def _binds(node: ast.AST) -> bool:
    """Return whether a statement does nothing but bind or delete names."""
    targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else ()
    each = [part for target in targets for part in unpacked(target)]
    return bool(each) and all(isinstance(part, ast.Name) for part in each)


def _emptied(node: ast.AST, *, again: bool) -> Iterator[ast.expr]:
    """Yield what a node takes elements out of. ``again``: it may run more than once."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _TAKES_OUT:
            yield owner
        case ast.Delete(targets=targets):
            for target in targets:
                yield target.value if isinstance(target, ast.Subscript) else target
        case ast.Assign(targets=targets, value=value):
            for target in (each for one in targets for each in unpacked(one)):
                text = ast.unparse(target)
                if isinstance(value, ast.Subscript) and ast.unparse(value.value) == text:
                    yield target  # kept = kept[-10:]
                elif isinstance(target, ast.Subscript):
                    if isinstance(target.slice, ast.Slice):
                        yield target.value  # kept[:] = []
                elif again and not isinstance(value, _REFERENCES) and not _keeps(value, text):
                    yield target


def _keyed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a node stores into under a key."""
    by_key = isinstance(node, ast.Call) and source.called_name(node) in ("setdefault", "update")
    if by_key or isinstance(node, ast.Assign):
        yield from (target for target, fills, _ in _targets(node) if fills)


def _keeps(value: ast.expr, text: str) -> bool:
    """Return whether elements of what has this name may be among those of the value: they are not
    where each is replaced by one that is computed of it.

        kept = [*kept, loss]  # they are
        kept = [each.detach() for each in kept]  # they are not
    """
    replaced = {
        part
        for node in ast.walk(value)
        if isinstance(node, source.COMPREHENSIONS)
        and not isinstance(node.value if isinstance(node, ast.DictComp) else node.elt, _REFERENCES)
        for each in node.generators
        for part in ast.walk(each.iter)
    }
    parts = (n for n in ast.walk(value) if isinstance(n, ast.expr) and n not in replaced)
    return any(ast.unparse(n) == text for n in parts)


def _names(value: ast.expr, text: str) -> bool:
    return any(isinstance(n, ast.expr) and ast.unparse(n) == text for n in ast.walk(value))
