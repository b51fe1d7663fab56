"""Says where the nodes of a look were built, also of those whose saved tensors the hooks did not
see.
"""

from __future__ import annotations

from dataclasses import replace

from gradscope.collect.generations import Generations
from gradscope.collect.look import Look
from gradscope.collect.mutations import node_site
from gradscope.collect.thread_numbers import OTHER
from gradscope.model import Graph, Node, NodeState, Site
from gradscope.program.sites import site_of

_MOST_NODES_NAMED = 50


def node_at(look: Look, graph: Graph | None, i: int) -> Node:
    """Return the i-th node of a look as plain data."""
    token = look.tokens[i]
    if graph is not None and i < len(graph.nodes):
        drawn = graph.nodes[i]
        return drawn if drawn.site is not None else replace(drawn, site=site_of(token.place))
    state = NodeState.FREED if token.freed_by else NodeState.LIVE
    return Node(i, look.nodes[i].name(), state, token.sequence_nr, site=site_of(token.place))


def built_at(look: Look, generations: Generations, i: int) -> Site | None:
    """Return where a node was built: between what was built just before it and just after it."""
    token = look.tokens[i]
    if token.place is not None:
        return site_of(token.place)
    number = token.sequence_nr
    by = number // OTHER  # the thread
    known = [t for t in look.tokens if t.place is not None and t.sequence_nr // OTHER == by]
    earlier_ones = [other for other in known if other.sequence_nr < number]
    later_ones = [other for other in known if other.sequence_nr > number]
    before = max(earlier_ones, key=lambda other: other.sequence_nr, default=None)
    after = min(later_ones, key=lambda other: other.sequence_nr, default=None)
    start = before.sequence_nr if before is not None else -1
    first = site_of(before.place) if before is not None else None
    last = site_of(after.place) if after is not None else None
    earlier, later = generations.around(number)
    since_call = until_call = False
    if earlier is not None and (before is None or before.sequence_nr < earlier[0]):
        start, first, since_call = earlier[0] - 1, site_of(earlier[1]), True
    if later is not None and (after is None or after.sequence_nr >= later[0]):
        last, until_call = site_of(later[1]), True
    names = {t.sequence_nr: n.name() for t, n in zip(look.tokens, look.nodes, strict=True)}
    oldest = max(start + 1, number - _MOST_NODES_NAMED)
    built = [names.get(each) for each in range(oldest, number + 1)]
    # From one run of a call to the next may be all of a loop.
    return node_site(built, first, last, one_line=not (since_call and until_call))
