"""Gathers the facts of GS102: what a call is about to free, and what decides the fix."""

from __future__ import annotations

import ast
from types import FrameType

import torch

from gradscope.code import changes, places, source
from gradscope.code.names import owner_of as owner_of_name
from gradscope.collect.look import Look
from gradscope.collect.marks import token_of
from gradscope.collect.state import State
from gradscope.detect.foresight.reading import Effect, Reading
from gradscope.detect.foresight.shared_graphs import Freeing, Held, is_root_of
from gradscope.detect.foresight.training import Optimizers, roles_of
from gradscope.detect.node_facts import built_at, node_at
from gradscope.model import BackwardCall, Site
from gradscope.program.layouts import derives
from gradscope.program.sites import place_in, site_of
from gradscope.program.tensors import held_node
from gradscope.rules.gs102 import SharedGraph
from gradscope.rules.roles import UNKNOWN

_MOST_NODES = 50
_MOST_MADE = 3
_MOST_OTHERS = 5
_OF_PARAMETERS = ("parameters", "named_parameters", "state_dict", "weight", "bias")
_STEPS = ("step", "minimize")
_CONDITIONS = (ast.If, ast.Match, ast.Try, ast.While, ast.For)
_ADDS = changes.ADDS | changes.ADDS_IF_DROPPED


def shared_graph(
    watch: State,
    look: Look,
    record: BackwardCall,
    freeing: Freeing,
    found: list[tuple[Held, Reading]],
    reached: list[Held],
    frames: list[FrameType],
) -> SharedGraph | None:
    """Return the facts about the first of the holders; None where it can do no harm after all."""
    site = record.site
    assert site is not None
    if not found:
        return None
    held, reading = min(found, key=_rank)
    here = place_in(reading.frame).site
    made = _made(watch, look, held.freed)
    link = _link(reading, _places_of(watch, look, held), made)
    loop = source.loop_around(here)
    again = reading.backward == site or reading.again or reading.read.after_back_edge
    same_root = is_root_of(record, look, held, reading.name)
    statement = source.statement_at(link) if link is not None else None
    shared = _shared(record, reading, reached)
    return SharedGraph(
        call=record,
        holder=reading.name,
        nodes=tuple(node_at(look, None, i) for i in held.freed[:_MOST_NODES]),
        made=made,
        read=reading.read.site,
        next_call=reading.backward,
        link=link,
        others=_others(watch, look, found, reading, made),
        same_root=same_root,
        again=again,
        carried=is_carried(reading, loop),
        elements=_elements(reading, site),
        accumulated=same_root and reading.read.effect is Effect.AUGMENTED,
        averaged=statement is not None
        and link is not None
        and any(m.line == link.line for m in made)
        and _is_average(statement, reading.name),
        trained=_is_trained(freeing.leaves(held), frames),
        stepped_between=_steps_between(site, reading.backward),
        shared=shared,
        only_shared=_leads_nowhere_else(record, shared, reached, freeing),
        next_root=source.root_name(reading.backward),
        alive=watch.ledger.live_bytes if watch.hooked else 0,
        roles=watch.notes.attempt(
            "asking who is trained by which loss failed in gradscope",
            lambda: roles_of(watch, record, freeing, held, reading, reached, frames),
            UNKNOWN,
        ),
    )


def _others(
    watch: State,
    look: Look,
    found: list[tuple[Held, Reading]],
    chosen: Reading,
    made: tuple[Site, ...],
) -> tuple[tuple[str, Site | None], ...]:
    """Return the other holders with the same fate, and where they were assigned."""
    links = {
        r.name: _link(r, _places_of(watch, look, held), made)
        for held, r in found
        if r.name != chosen.name and r.backward == chosen.backward
    }
    return tuple(sorted(links.items()))[:_MOST_OTHERS]


def _rank(entry: tuple[Held, Reading]) -> tuple[bool, bool, int]:
    """Order holders: those that something is built on before a loss; then by the shortest name."""
    reading = entry[1]
    return (
        reading.read.after_back_edge,
        reading.read.effect is not Effect.BACKWARD,
        len(reading.name),
    )


def _made(watch: State, look: Look, freed: list[int]) -> tuple[Site, ...]:
    sites: dict[Site, None] = {}
    for i in freed[:_MOST_NODES]:
        site = built_at(look, watch.generations, i)
        if site is not None:
            sites[site] = None
    return tuple(sites)[:_MOST_MADE]


def _places_of(watch: State, look: Look, held: Held) -> tuple[Site, ...]:
    """Return where the held tensor itself was computed."""
    if held.own is not None:
        site = built_at(look, watch.generations, held.own)
    else:
        node = held_node(held.tensor)
        token = token_of(node) if node is not None else None
        site = site_of(token.place) if token is not None else None
    return () if site is None else (site,)


def _link(reading: Reading, own: tuple[Site, ...], made: tuple[Site, ...]) -> Site | None:
    """Return where the holder was assigned last: in its frame, or where it is read.

    ``own`` and ``made`` are lines that were run. A line under a condition may not have been, unless
    it is the only one that assigns.
    """
    declared = _store_of_global(reading)
    if declared is not None:
        return declared
    here = place_in(reading.frame).site
    container = reading.name.partition("[")[0]
    sites = _stores(here, reading.name) or _stores(here, container)
    sites = [site for site in sites if not _stores_nothing(site)]
    if not sites or "." in container or "[" in reading.name:
        stored = _stored_in(reading)
        if stored is not None or not sites:
            return stored
    loop = source.loop_around(here)
    likely = [s for s in sites if len(sites) == 1 or not _is_conditional(s, here)]
    choices = (
        [s for s in sites if _is_among(s, own)],
        [s for s in sites if _is_among(s, made)],
        [s for s in likely if loop is not None and source.spans(loop, s.line)],
        [s for s in likely if s.line <= here.line],
        likely,
    )
    return next((choice[-1] for choice in choices if choice), None)


def _stores(here: Site, name: str) -> list[Site]:
    """Return where the function around a place stores a name, or the module if it is in none."""
    return [
        places.of_node(node, here.file, here.function)
        for statement in source.statements_of(source.function_around(here))
        if name in changes.targets_of(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node) == name
    ]


def _is_among(site: Site, places: tuple[Site, ...]) -> bool:
    """Return whether something was computed in the statement at a site."""
    statement = source.statement_at(site)
    return any(
        place.file == site.file
        and (place.line == site.line or (statement and source.spans(statement, place.line)))
        for place in places
    )


def _is_conditional(site: Site, here: Site) -> bool:
    """Return whether a condition, which does not hold the place at hand, decides whether the
    statement at a site runs.
    """
    around = (s for s in source.enclosing(site.file, site.line) if not source.spans(s, here.line))
    return any(isinstance(each, _CONDITIONS) for each in around)


def _stored_in(reading: Reading) -> Site | None:
    """Return what stores an attribute or element: in the function that reads it, or its file.

    An element may be stored with its container: ``self.state = (h, c)``.
    """
    container, key = _container(reading.name)
    found = _stored_as(reading, container, key)
    return found if found is not None or "." not in container else _stored_as(reading, container)


def _stored_as(reading: Reading, container: str, key: bool = False) -> Site | None:
    file = reading.read.site.file
    last = container.rpartition(".")[2]
    regions = (source.function_around(reading.read.site), source.tree(file))
    for region in regions:
        for node in ast.walk(region):
            if not isinstance(node, ast.stmt) or _is_empty(getattr(node, "value", None)):
                continue  # `self.cached = None` stores no tensor
            stored = any(_names(t, last, key, "." in container) for t in changes.targets_of(node))
            found: places.Located | None = node if stored else None
            if isinstance(node, ast.Expr) and key and _appends(node, last):
                found = node
            elif isinstance(node, ast.FunctionDef) and node.decorator_list:
                is_cached = reading.name == f"<lru_cache of {node.name}>"
                found = node.decorator_list[0] if is_cached else None
            if found is not None:
                return places.of_node(found, file, reading.read.site.function)
    return None


def _stores_nothing(site: Site) -> bool:
    """Return whether a statement stores no tensor, as the first ``state = None`` of a global."""
    statement = source.statement_at(site)
    return isinstance(statement, ast.Assign) and _is_empty(statement.value)


def _is_empty(value: ast.AST | None) -> bool:
    if isinstance(value, ast.List | ast.Tuple):
        return not value.elts
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Dict) and not value.keys)


def _container(name: str) -> tuple[str, bool]:
    """Return what holds the tensor, ``x`` of ``x['a'][0]``, and whether in a container."""
    key = False
    while name.endswith("]") and (owner := owner_of_name(name)[0]):
        name, key = owner, True
    if name.endswith("]"):  # an index that is computed: cache[i]
        name, key = name.partition("[")[0], True
    return name, key


def _names(target: str, last: str, has_key: bool, is_attribute: bool) -> bool:
    """Return whether a target is the attribute, or an element of the container, of this name."""
    owner, key = _container(target)
    return owner.rpartition(".")[2] == last and key >= has_key and ("." in owner) == is_attribute


def _appends(node: ast.Expr, last: str) -> bool:
    call = node.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in _ADDS and last in source.words_of(call.func.value)


def is_carried(reading: Reading, loop: ast.AST | None) -> bool:
    """Return whether each iteration assigns the holder: in the loop, a method or a hook."""
    if loop is None and not reading.again:
        return False
    if loop is not None and changes.stores_in(loop, reading.name):
        return True
    if _store_of_global(reading) is not None:
        return True
    if "." not in reading.name and "[" not in reading.name:
        return False
    stored = _stored_in(reading)
    if stored is None:
        return False
    region = source.function_around(stored)
    if not isinstance(region, ast.FunctionDef) or region.name == "__init__":
        return False
    if loop is not None and _runs_outside(region.name, loop, stored.file):
        return False
    container, key = _container(reading.name)
    last = container.rpartition(".")[2]
    names = [t for s in source.statements_of(region) for t in changes.targets_of(s)]
    return not any(_is_lazy(region, t) for t in names if _names(t, last, key, "." in container))


def _store_of_global(reading: Reading) -> Site | None:
    """Return where a function that reads a variable of the module stores it again as well."""
    site = reading.read.site
    region = source.function_around(site)
    if not reading.name.isidentifier() or isinstance(region, ast.Module):
        return None
    own = [*source.statements_of(region)]
    declared = (ast.Global, ast.Nonlocal)
    if not any(isinstance(each, declared) and reading.name in each.names for each in own):
        return None
    stores = [each for each in own if changes.stores(each, reading.name)]
    if not stores or _is_lazy(region, reading.name) or all(map(_is_reset, stores)):
        return None
    return places.of_node(stores[-1], site.file, site.function)


def _is_reset(store: ast.stmt) -> bool:
    return _is_empty(getattr(store, "value", None))


def _runs_outside(name: str, loop: ast.AST, file: str) -> bool:
    """Return whether all calls of a function by its name stand outside of a loop."""
    calls = [c for c in source.calls_in(source.tree(file)) if source.called_name(c) == name]
    inside = {id(call) for call in source.calls_in(loop)}
    in_methods = any(
        isinstance(c.func, ast.Attribute) and ast.unparse(c.func.value) == "self" for c in calls
    )
    return bool(calls) and not in_methods and not any(id(call) in inside for call in calls)


def _is_lazy(region: ast.AST, name: str) -> bool:
    """Return whether the name is stored only after a test: ``if self.cached is None: …``."""
    last = name.rpartition(".")[2].partition("[")[0]
    found = changes.stores_in(region, name)
    stores = {id(s) for s in found}
    asked = {last, *(target for each in found for target in changes.targets_of(each))}
    lazy = {
        id(inner)
        for outer in source.statements_of(region)
        if isinstance(outer, ast.If) and asked & source.words_of(outer.test)
        for inner in source.statements_of(outer)
    }
    return bool(stores) and stores <= lazy


def _elements(reading: Reading, site: Site) -> str:
    """Return the list whose elements are the losses of the loop around the call."""
    loop = source.loop_around(site)
    is_root = reading.backward == site and reading.read.effect is Effect.BACKWARD
    if not isinstance(loop, ast.For) or not is_root:
        return ""
    iterated = {ast.unparse(node) for node in source.reads_of(loop.iter)}
    container = reading.name.partition("[")[0]
    return container if "[" in reading.name and container in iterated else ""


def _is_average(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement computes a new value from the old one and from parameters."""
    names = {n.attr for n in ast.walk(statement) if isinstance(n, ast.Attribute)}
    last = _container(name)[0].rpartition(".")[2]
    value = getattr(statement, "value", None) or statement
    reads_itself = isinstance(statement, ast.AugAssign) or last in source.words_of(value)
    return reads_itself and not names.isdisjoint(_OF_PARAMETERS)


def _is_trained(leaves: list[torch.Tensor], frames: list[FrameType]) -> bool:
    """Return whether a leaf is a module's parameter, or in an optimizer of these frames."""
    if any(derives(type(leaf), torch.nn.Parameter) for leaf in leaves):
        return True
    optimizers = Optimizers(frames)
    return not optimizers.all or any(id(leaf) in optimizers.parameters for leaf in leaves)


def _steps_between(first: Site, last: Site) -> bool:
    """Return whether an optimizer steps between two backward calls of one function."""
    if first.file != last.file or not first.line < last.line:
        return False
    calls = source.calls_in(source.function_around(first))
    between = (call.func for call in calls if first.line <= call.lineno <= last.line)
    return any(isinstance(f, ast.Attribute) and f.attr in _STEPS for f in between)


def _shared(record: BackwardCall, reading: Reading, reached: list[Held]) -> str:
    """Return the variable that the losses of both calls are computed from."""
    assert record.site is not None
    root = source.root_name(record.site)
    first = _loaded(record.site, root)
    if reading.name in first:
        return reading.name
    second = _loaded(record.site, reading.name) | {reading.name}
    names = {path.text for held in reached for path in held.paths}
    both = sorted(first & second & names)
    return both[0] if both else ""


def _leads_nowhere_else(
    record: BackwardCall, shared: str, reached: list[Held], freeing: Freeing
) -> bool:
    """Return whether the call would train nothing if its loss took the shared tensor detached."""
    cut = next((held.own for held in reached for path in held.paths if path.text == shared), None)
    return cut is not None and not freeing.has_leaf_without(
        [root.node for root in record.roots], cut
    )


def _loaded(site: Site, name: str) -> set[str]:
    """Return the names read by the last statement before a site that assigns a name."""
    store = changes.last_store(site, name)
    return {ast.unparse(node) for node in source.reads_of(store)} if store is not None else set()
