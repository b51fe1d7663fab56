"""Shows by which lines a gradient comes from a loss to parameters, and where its way is cut."""

from __future__ import annotations

import os
from ast import expr, unparse
from collections.abc import Collection, Sequence
from textwrap import wrap

from gradscope.code import source
from gradscope.fixing.gradient_paths import Answer, Arrival, LineState, Paths, spot_of
from gradscope.fixing.origins import EngineUse
from gradscope.formatting import counted
from gradscope.model import Site
from gradscope.render.pictures import Arrow, Box, BoxRow, Cluster, Picture
from gradscope.render.pictures.draw import Drawing, draw_picture
from gradscope.render.text import shorten, tail
from gradscope.render.text.why import said_of
from gradscope.render.theme import WAY_STATES

# Boxes of a picture (each a line or some), losses on top of it, letters in a line of text, and
# letters of a source line that is shown whole: a picture is read without scrolling.
_MOST_BOXES, _MOST_LOSSES, _MOST_LETTERS, _MOST_OF_LINE = 12, 3, 34, 24
_FIELDS = (LineState.GRADIENT, LineState.BARE, LineState.BEHIND)
_OF_LEAVES = dict.fromkeys((Arrival.ARRIVES, Arrival.ZERO), LineState.GRADIENT)
_OF_LEAVES |= {Arrival.FROZEN: LineState.BARE}


Key = tuple[str, str, int]
"""What a box is: a line's effect, file and number; else ``loss`` or ``leaves``, and which."""


def draw_way(
    ways: Paths, about: Answer | EngineUse, file: str | os.PathLike[str] | None = None
) -> Drawing:
    """Draw the ways to the parameters of an answer, or from what a call starts from.

    Raises GradscopeError where the file has an unknown suffix or cannot be written.
    """
    return draw_picture(picture_of(ways, about), file)


def picture_of(ways: Paths, about: Answer | EngineUse) -> Picture:
    """Return what there is to draw, in so few boxes that it can be read."""
    traced = _Traced(ways, about)
    own = {key: [key] for key in sorted(traced.top, key=lambda key: -traced.top[key])}
    while len(own) > _MOST_BOXES:
        longest = max(([key for key in own if key[0] == field] for field in _FIELDS), key=len)
        first, second = longest[(len(longest) - 1) // 2 :][:2]
        own[first] += own.pop(second)
    place = {key: n for n, keys in enumerate(own.values()) for key in keys}
    boxes = tuple(traced.box(n, keys) for n, keys in enumerate(own.values()))
    # Of those that a loop has in both directions one is enough.
    links = sorted({(place[a], place[b]) for a, b in traced.arrows if place[a] < place[b]})
    arrows = tuple(Arrow(a, b, state=_between(boxes[a].state, boxes[b].state)) for a, b in links)
    clusters = (Cluster(n, WAY_STATES[each].meaning, state=each) for n, each in enumerate(_FIELDS))
    return Picture(traced.title, "", boxes, arrows, tuple(clusters), is_way=True)


def _between(start: object, end: object) -> LineState:
    if end is LineState.CUT or (end is LineState.BARE and start is not LineState.BEHIND):
        return LineState.BARE
    return LineState.GRADIENT if start is LineState.GRADIENT else LineState.BEHIND


class _Traced:
    """The lines that lead from what calls start from to leaves."""

    def __init__(self, ways: Paths, about: Answer | EngineUse) -> None:
        self.ways, self.record, self.origins = ways, ways.record, [*ways.record.origins]
        self.top: dict[Key, int] = {}
        """The last value that was computed at a line."""
        self.arrows: set[tuple[Key, Key]] = set()
        if isinstance(about, Answer):
            self.title = said_of(about, ways).replace("`", "")
            self.calls, self.answers = self._calls_for(frozenset(about.leaves)), [about]
        else:
            what = "has a graph" if about.has_graph else "starts from what has no graph"
            self.title = f"the call at {self._site(about.route).place} {what}"
            self.calls, self.answers = [about], [_answer_of(about, ways)]
        self.home = self._site(self.calls[0].route).file if self.calls else ""
        reached = {n for c in self.calls for n in c.reached if self.record.leaves[n].is_parameter}
        others = tuple(sorted(reached.difference(self.answers[0].leaves)))
        if others and _OF_LEAVES.get(self.answers[0].state) is not LineState.GRADIENT:
            self.answers.append(ways.of_leaves(others)[0]._replace(leaves=others))
        self._trace(self.answers[0])

    def _calls_for(self, wanted: frozenset[int]) -> list[EngineUse]:
        """Return the calls that lead to leaves, of each line one: the last that reaches them."""
        behind = self.record.leaves_behind
        calls = [c for c in self.ways.losses if any(wanted & behind[root] for root in c.roots)]
        calls.sort(key=lambda call: bool(wanted & call.reached))
        last = {spot_of(self.record.site(call.route)): call for call in calls}
        return [*last.values()][-_MOST_LOSSES:] or self.ways.losses[-1:]

    def _site(self, route: int) -> Site:
        return self.record.site(route) or Site("an unknown line", 0)

    def _leading(self, ends: Collection[int], *, fed: bool = False) -> set[int]:
        """Return the values that were computed from some: by a graph alone, if ``fed``."""
        found = set[int]()
        for value, own in enumerate(self.origins):
            if value in ends or ((own.has_graph or not fed) and found & {*own.parents}):
                found.add(value)
        return found

    def _trace(self, answer: Answer) -> None:
        origins, cuts, above = self.origins, set[int](), set[int]()
        goals = {*map(self.ways.value_of, answer.leaves)}
        at: dict[int, Key] = {}
        for number, each in enumerate(self.answers):
            at |= {self.ways.value_of(n): ("leaves", "", number) for n in each.leaves}
        for cut in answer.cuts[:1]:
            for n, own in enumerate(origins if cut.back else ()):
                if not own.parents and self.record.routes[own.route] == cut.back:
                    origins[n] = own._replace(parents=(cut.value,))  # it was not seen how
            alike = (n for n, own in enumerate(origins) if own.cut is cut.reason)
            cuts = {n for n in alike if self.record.site(origins[n].route) == cut.site}
        behind = self._leading(goals)
        if (cuts := cuts & behind) or answer.state is Arrival.FROZEN:
            above = self._leading(cuts or goals or range(len(origins)))
        shown = above | self._leading(at, fed=True)
        roots = (root for call in self.calls if call.has_graph for root in call.roots)
        fed = {*self.record.before(roots, with_graph=True)}
        sites = {self.record.site(origins[n].route) for n in fed & shown if origins[n].leaf < 0}
        spots = {*map(spot_of, sites)}
        losses: list[Key] = [("loss", "", n) for n in range(len(self.calls))]
        self.top = dict.fromkeys(losses, len(origins)) | dict.fromkeys(at.values(), -1)
        waiting = [(r, loss, False) for loss in losses for r in self.calls[loss[2]].roots]
        seen = {*waiting}
        for value, before, is_below in waiting:
            if value not in (behind if is_below else shown):
                continue
            own, is_cut, here = origins[value], value in cuts and not is_below, before
            site = self.record.site(own.route)
            if value in at:
                here = at[value]
            elif is_cut or (site and own.leaf < 0 and (own.has_graph or not is_below)):
                state = LineState.BEHIND if is_below else LineState.BARE
                if value in fed or (site in sites if is_below else spot_of(site) in spots):
                    state = LineState.GRADIENT
                here = (LineState.CUT if is_cut else state, *spot_of(site))
                self.top[here] = max(value, self.top.get(here, -1))
            self.arrows.add((before, here))
            new = {(parent, here, is_below or is_cut) for parent in own.parents} - seen
            seen |= new
            waiting += new

    # boxes

    def box(self, number: int, keys: Sequence[Key]) -> Box:
        """Return the box of a line, or of several that share one."""
        kind, _, which = keys[0]
        if kind == "loss":
            site = self._site(self.calls[which].route)
            texts = [tail(_expression(site), _MOST_LETTERS), self._at(site)]
            state = LineState.GRADIENT if self.calls[which].has_graph else LineState.BARE
        elif kind == "leaves":
            said = said_of(self.answers[which], self.ways).replace("`", "").split(": ", 1)
            said[0] = said[0].replace(" param", "\xa0param")  # a count stays with its noun
            texts = [line.replace("\xa0", " ") for s in said for line in wrap(s, _MOST_LETTERS)]
            state = _OF_LEAVES.get(self.answers[which].state, LineState.BEHIND)
        else:
            state = LineState(kind)
            texts = self._texts_of_cut() if state is LineState.CUT else self._texts_of(keys)
        rows = tuple(BoxRow(text, muted=True) for text in texts[1:])
        cluster = None if state is LineState.CUT else _FIELDS.index(state)
        return Box(number, texts[0], state, rows=rows, cluster=cluster, is_fold=kind == "leaves")

    def _at(self, site: Site) -> str:
        return f"line {site.line}" if site.file == self.home else site.place

    def _texts_of(self, keys: Sequence[Key]) -> list[str]:
        """Return a line if it is short, else what it binds; or what was run there."""
        if len(keys) > 1:
            lines = sorted(key[2] for key in keys)
            return [f"… {counted(len(keys), 'line')}", f"lines {lines[0]} to {lines[-1]}"]
        site = self._site(self.origins[self.top[keys[0]]].route)
        text = source.line_of(site.file, site.line).strip()
        name, is_bound, _ = text.partition(" = ")
        if not is_bound or "(" in name or keys[0][0] == LineState.BEHIND:
            text = _expression(site)
        elif len(text) > _MOST_OF_LINE:
            text = name
        return [shorten(text, _MOST_LETTERS), self._at(site)]

    def _texts_of_cut(self) -> list[str]:
        cut, *others = self.answers[0].cuts
        site = cut.site or self._site(-1)
        more = f" and {counted(len(others), 'more cut')}" if others else ""
        texts = [f"cut at {self._at(site)}: {cut.word}{more}"]
        texts.append(shorten(_expression(site), _MOST_LETTERS))
        said = [f"{self._at(each.site or site)}: {each.message}" for each in cut.notes()]
        return texts + [part for s in said or [cut.why] for part in wrap(s, _MOST_LETTERS)]


def _answer_of(call: EngineUse, ways: Paths) -> Answer:
    cuts, frozen = ways.lost(call)
    if call.has_graph:
        return Answer(Arrival.ARRIVES, tuple(sorted(call.reached)), 1, 1)
    if cuts:
        return Answer(Arrival.CUT, tuple(sorted(cuts[0].behind)), 0, 1, tuple(cuts))
    return Answer(Arrival.FROZEN, tuple(frozen), 0, 1)


def _expression(site: Site) -> str:
    """Return what was run at a site; all of its line if Python does not say what of it."""
    node = source.node_at(site, expr)
    return unparse(node) if node is not None else source.line_of(site.file, site.line).strip()
