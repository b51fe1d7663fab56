"""Finds the line that stores something under a name, and whether the code bounds what it stores."""

from __future__ import annotations

import ast
import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from gradscope.code import source, statements
from gradscope.code.source import SourceFile, cells_like
from gradscope.model import Site
from gradscope.model.paths import Path

_TAKES_OUT = frozenset({"pop", "popleft", "popitem", "clear", "remove", "discard"})
_ALIASES = (ast.Name, ast.Attribute, ast.Subscript)
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
    best: tuple[tuple[int, ...], _Storing] | None = None
    for place in _places(source.parsed(file)):
        if (match := _match(place.target, name)) == 0:
            continue
        inside = name.origin.owner != "local" or name.origin.function == place.function
        has_run = any(site.file == file and source.spans(place.node, site.line) for site in ran)
        around = source.enclosing(file, getattr(place.node, "lineno", 0))
        may_not_run = any(isinstance(each, ast.If | ast.Match | ast.Try) for each in around)
        is_method = name.attribute is not None and not place.function.endswith("__init__")
        again, fits = place.in_loop or is_method, place.fills == container
        depth = len(_with_keys(place.target)[1])
        score = (match, inside, has_run, again, fits, depth, not may_not_run, place.reads_itself)
        if best is None or score > best[0]:
            best = score, place
    if best is None:
        return None
    node = best[1].node
    caches = (d for d in getattr(node, "decorator_list", ()) if "cache" in ast.unparse(d))
    return source.of_node(next(caches, node), file, best[1].function), best[1].reads_itself


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
                for each in statements.unpacked(target):
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
        case ast.Call(args=[owner, _, *_]) if source.called_name(node) in statements.ADDS_TO_FIRST:
            yield owner, True, False
        case ast.Call(func=ast.Attribute(value=owner, attr=method)):
            adds = method in statements.ADDS or method in statements.ADDS_IF_DROPPED
            if adds or method.startswith("register_"):  # a hook, a buffer
                yield owner, True, False
            elif statements.is_in_place(method):
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

    NONE = 0
    KEYED = 1  # filled by keys, which may come again
    EMPTIED = 2  # emptied, made again in a loop or method, or elements taken out


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
        if any(_match(target, name) for target in _emptied(node, again=again)):
            return Bound.EMPTIED
        keyed |= any(_match(target, name) for target in _keyed(node))
    return Bound.KEYED if keyed else Bound.NONE


def _emptied(node: ast.AST, *, again: bool) -> Iterator[ast.expr]:
    """Yield what a node takes elements out of. ``again``: it may run more than once."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _TAKES_OUT:
            yield owner
        case ast.Delete(targets=targets):
            for target in targets:
                yield target.value if isinstance(target, ast.Subscript) else target
        case ast.Assign(targets=targets, value=value):
            for target in (each for one in targets for each in statements.unpacked(one)):
                text = ast.unparse(target)
                if isinstance(value, ast.Subscript) and ast.unparse(value.value) == text:
                    yield target  # kept = kept[-10:]
                elif isinstance(target, ast.Subscript):
                    if isinstance(target.slice, ast.Slice):
                        yield target.value  # kept[:] = []
                elif again and not isinstance(value, _ALIASES) and not _keeps(value, text):
                    yield target


def _keyed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a node stores into under a key."""
    by_key = isinstance(node, ast.Call) and source.called_name(node) in ("setdefault", "update")
    if by_key or isinstance(node, ast.Assign):
        yield from (target for target, fills, _ in _targets(node) if fills)


def _keeps(value: ast.expr, text: str) -> bool:
    """Return whether elements of what has this name may be among those of the value: they are not
    where each is replaced by one that is computed of it.
    """
    replaced = {
        part
        for node in ast.walk(value)
        if isinstance(node, source.COMPREHENSIONS)
        and not isinstance(node.value if isinstance(node, ast.DictComp) else node.elt, _ALIASES)
        for each in node.generators
        for part in ast.walk(each.iter)
    }
    parts = (n for n in ast.walk(value) if isinstance(n, ast.expr) and n not in replaced)
    return any(ast.unparse(n) == text for n in parts)


def _names(value: ast.expr, text: str) -> bool:
    return any(isinstance(n, ast.expr) and ast.unparse(n) == text for n in ast.walk(value))
