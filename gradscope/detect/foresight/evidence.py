"""Gathers the facts of GS102: what a call is about to free, and what decides the fix."""

from __future__ import annotations

import ast
from dataclasses import replace
from types import FrameType

import torch

from gradscope.code import source
from gradscope.code.stores import store_of
from gradscope.collect.look import Look
from gradscope.collect.marks import token_of
from gradscope.collect.state import State
from gradscope.detect.foresight.reading import Effect, Read
from gradscope.detect.foresight.shared_graphs import Freeing, Held, is_root_of
from gradscope.detect.foresight.training import Optimizers, makes_step, roles_of
from gradscope.detect.node_facts import built_at, node_at
from gradscope.model import BackwardCall, Site
from gradscope.model.paths import Origin, Path
from gradscope.program.ahead.questions import FromFrames, events_around
from gradscope.program.layouts import derives
from gradscope.program.sites import site_of
from gradscope.program.tensors import held_node
from gradscope.rules.gs102 import SharedGraph
from gradscope.rules.roles import UNKNOWN

_MOST_NODES = 50
_MOST_MADE = 3
_MOST_OTHERS = 5
_LINEAR = frozenset({"Add", "Sub", "Mul", "Div", "Lerp", "Clone"})


def shared_graph(
    watch: State,
    look: Look,
    record: BackwardCall,
    freeing: Freeing,
    found: list[tuple[Held, Read]],
    reached: list[Held],
    frames: list[FrameType],
    start: FromFrames,
) -> SharedGraph:
    """Return the facts about the first of the holders.

    ``start`` is where the program was read on from.
    """
    site = record.site
    assert site is not None
    held, reading = min(found, key=_rank)
    made = _made(watch, look, held.freed)
    again = reading.backward == site or reading.again
    same_root = is_root_of(record, look, held, reading.name)
    around = events_around(start, reading.way)
    return SharedGraph(
        call=record,
        holder=reading.name,
        nodes=tuple(node_at(look, None, i) for i in held.freed[:_MOST_NODES]),
        made=made,
        read=reading.site,
        next_call=reading.backward,
        link=_link(reading, held, (*_places_of(watch, look, held), *made)),
        others=_others(watch, look, found, reading, made),
        same_root=same_root,
        again=again,
        carried=reading.carried,
        elements=_elements(reading, site),
        averaged=_is_average(look, record, freeing, held),
        accumulated=same_root and reading.effect is Effect.AUGMENTED,
        trained=_is_trained(freeing.leaves(held), frames),
        stepped_between=makes_step(around[0]),
        roles=watch.notes.attempt(
            "asking who is trained by which loss failed in gradscope",
            lambda: roles_of(watch, record, freeing, held, reading, reached, frames, around),
            UNKNOWN,
        ),
    )


def _others(
    watch: State, look: Look, found: list[tuple[Held, Read]], chosen: Read, made: tuple[Site, ...]
) -> tuple[tuple[str, Site | None], ...]:
    """Return the other holders with the same fate, and where they were assigned."""
    links = {
        r.name: _link(r, held, (*_places_of(watch, look, held), *made))
        for held, r in found
        if r.name != chosen.name and r.backward == chosen.backward
    }
    return tuple(sorted(links.items()))[:_MOST_OTHERS]


def _rank(entry: tuple[Held, Read]) -> tuple[bool, bool, int]:
    """Order holders: those that something is built on before a loss; then by the shortest name."""
    reading = entry[1]
    return reading.again, reading.effect is not Effect.BACKWARD, len(reading.name)


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


def _link(reading: Read, held: Held, ran: tuple[Site, ...]) -> Site | None:
    """Return where the holder was stored, rather by a line that ``ran``.

    An element may be stored with its container: ``self.state = (h, c)``, ``queue.append(k)``.
    """
    site = reading.site
    written = Path(reading.name, reading.name, Origin("local", site.function, site.file, 0))
    named = [path for path in held.paths if path.text == reading.name] or held.paths
    # By way of an attribute, its owner's own name tells nothing.
    wholes = [
        path.up_to(n)
        for path in named
        for n in range(len(path.steps), -1, -1)
        if n or (path.steps and path.steps[0].kind == "item")
    ]
    for path in (written, *(replace(each, root=each.text) for each in wholes)):
        found = store_of((path,), (site.file,), container=path.text != reading.name, ran=ran)[0]
        if found is not None:
            return found
    return None


def _elements(reading: Read, site: Site) -> str:
    """Return the list whose elements are the losses of the loop around the call."""
    loop = source.loop_around(site)
    is_root = reading.backward == site and reading.effect is Effect.BACKWARD
    if not isinstance(loop, ast.For) or not is_root:
        return ""
    iterated = {ast.unparse(node) for node in source.reads_of(loop.iter)}
    container = reading.name.partition("[")[0]
    return container if "[" in reading.name and container in iterated else ""


def _is_average(look: Look, record: BackwardCall, freeing: Freeing, held: Held) -> bool:
    """Return whether a tensor is a weighted sum of parameters that the loss trains without it."""
    names = {look.nodes[i].name().removesuffix("Backward0") for i in held.freed}
    roots = [root.node for root in record.roots if root.node is not None]
    return names <= _LINEAR and not freeing.lost(roots, held.own)


def _is_trained(leaves: list[torch.Tensor], frames: list[FrameType]) -> bool:
    """Return whether a leaf is a module's parameter, or in an optimizer of these frames."""
    if any(derives(type(leaf), torch.nn.Parameter) for leaf in leaves):
        return True
    optimizers = Optimizers(frames)
    return not optimizers.all or any(id(leaf) in optimizers.parameters for leaf in leaves)
