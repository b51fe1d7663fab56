"""Finds in a rehearsal the paths from a loss to parameters, and the places where they are cut."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from gradscope.code import source
from gradscope.fixing.origins import CutReason, EngineUse, Mode, ModeKind, Origins, Route
from gradscope.formatting import gathered, reached
from gradscope.model import Related, Site

_DATA = ("", "tensor", "as_tensor", "asarray", "from_numpy")
"""How a tensor is made of what torch has no part in."""
_INDEX = re.compile(r"\[['\"]?(\w+)['\"]?\]")


_WHY = {
    CutReason.SAMPLE: "a sample has no derivative",
    CutReason.CREATE_GRAPH: "without create_graph=True the result is a constant",
    CutReason.CONSTANT: "the derivative is a constant",
    CutReason.MARKED: "the result is declared to have no derivative",
    CutReason.INTEGERS: "{operation} gives integers or truth values",
    CutReason.CHECKPOINT: "a reentrant checkpoint is part of the graph only if an input requires"
    " grad",
    CutReason.FUNCTION: "{how} gives no graph to its result",
    CutReason.OTHER: "{operation} has no derivative here",
}


class Cut(NamedTuple):
    """A place that cuts a gradient's path: what goes in has a graph, and what comes out has none.

    ``behind`` are the leaves that require grad and that the path would lead to. ``back`` is the
    line at which numbers that have left torch came back, as in ``torch.tensor(loss.item())``.
    """

    reason: CutReason
    route: Route
    how: str
    behind: frozenset[int]
    value: int
    mode: Mode | None = None
    mode_site: Site | None = None
    back: Route = ()

    @property
    def site(self) -> Site | None:
        """The line."""
        return next(iter(self.route), None)

    @property
    def why(self) -> str:
        """Why the path is cut there, in half a sentence; empty if the line itself says so."""
        if self.reason is CutReason.MODE:
            return f"grad mode is off{'' if self.mode_site else ', in code that is not seen'}"
        return _WHY.get(self.reason, "").format(how=self.how, operation=self.how.strip("_"))

    @property
    def word(self) -> str:
        """What it is in one or two words, for a margin."""
        match self.reason:
            case CutReason.MODE:
                return self.mode.name.removesuffix("(False)") if self.mode else "no_grad"
            case CutReason.INTEGERS | CutReason.LEFT | CutReason.COPY | CutReason.OTHER:
                return self.how.strip("_")
            case CutReason.CREATE_GRAPH:
                return "no create_graph"
            case CutReason.FUNCTION:
                return self.how
        return str(self.reason)

    def notes(self) -> Iterator[Related]:
        """Yield the line that switched grad mode off, or at which numbers came back."""
        mode, site, back = self.mode, self.mode_site, next(iter(self.back), None)
        if back is not None and self.site is not None and spot_of(back) != spot_of(self.site):
            yield Related("back", back, "the numbers came back here, without a graph")
        if mode is None or site is None or self.reason is not CutReason.MODE:
            return
        if mode.kind is ModeKind.DECORATOR:
            said = f"grad mode is off in all of `{mode.function}`"
        elif mode.kind is ModeKind.LIBRARY:
            said = f"`{mode.function}` switches grad mode off"
        elif mode.kind is ModeKind.CALL:
            said = "grad mode is off from here on: nothing turned it on again"
            if mode.skipped is not None:
                said = "grad mode is off from here on; an exception skipped what turns it on again"
        else:
            said = "grad mode is off from here on"
        yield Related("mode", site, said)
        if mode.skipped is not None:
            yield Related("mode", mode.skipped, "the exception was raised here")


class Arrival(StrEnum):
    """What becomes of a parameter in the rehearsal."""

    ARRIVES = "arrives"
    ZERO = "zero"
    FROZEN = "frozen"
    CUT = "cut"
    LOST = "lost"
    """A graph reaches it, but a derivative on the way returned no gradient."""
    ASIDE = "aside"
    """Something was computed from it, but no loss from that."""
    UNUSED = "unused"


class LineState(StrEnum):
    """What a line on the path from a loss to a parameter does to its gradient."""

    GRADIENT = "gradient"
    BARE = "no graph"
    """It computes a part of the loss without a graph: the path is cut further down."""
    CUT = "cut"
    BEHIND = "no gradient"
    """It builds a graph that no gradient enters."""


class Row(NamedTuple):
    """A line on a path, in the order in which a gradient flows; the last one uses the leaf."""

    site: Site
    state: LineState


class Answer(NamedTuple):
    """What is known of some leaves that have the same state, and the same cuts."""

    state: Arrival
    leaves: tuple[int, ...]
    given: int
    of: int
    cuts: tuple[Cut, ...] = ()


class Paths:
    """Answers, from a rehearsal, by which lines gradients flow from losses to parameters, and where
    their paths are cut.

    ``asked`` names the loss if the question is about a call that the program has not made.
    """

    def __init__(self, record: Origins, asked: str = "") -> None:
        self.record = record
        self.asked = asked
        self._after: dict[int, frozenset[int]] = {}

    # calls

    @property
    def losses(self) -> list[EngineUse]:
        """The calls of ``backward``, and the others if there is none."""
        calls = [call for call in self.record.calls if call.accumulates]
        return calls or [*self.record.calls]

    def calls_at(self, file: str, line: int) -> list[EngineUse]:
        """Return the calls that a line made, or that a function made which it called."""
        calls, routes = self.record.calls, self.record.routes
        return [c for c in calls if (file, line) in map(spot_of, routes[c.route])]

    def cuts(self, roots: Iterable[int], wanted: Collection[int] | None = None) -> list[Cut]:
        """Return where the paths from some values to leaves are cut, the nearest cuts first: to the
        ``wanted`` leaves, or else to all parameters that require grad.
        """
        behind = self.record.leaves_behind
        aims = self._trained if wanted is None else frozenset(wanted)
        found: dict[object, Cut] = {}
        for value, by in self._cut_at(roots, lambda value: bool(behind[value] & aims)):
            cut = self._cut(value, behind[value] & aims, by)
            key = (cut.reason, cut.site, cut.back[:1])
            known = found.setdefault(key, cut)
            found[key] = known._replace(behind=known.behind | cut.behind)
        return [*found.values()]

    def _cut_at(
        self, roots: Iterable[int], leads: Callable[[int], bool]
    ) -> Iterator[tuple[int, int]]:
        """Yield the values at which paths are cut, among those for which ``leads`` is true, each
        with the value that was computed from it.
        """
        seen, waiting = set[int](), [(root, -1) for root in roots]
        for value, by in waiting:
            if value in seen or not leads(value):
                continue
            seen.add(value)
            origin = self.record.origins[value]
            if origin.cut in (None, CutReason.INNER):
                waiting += [(parent, value) for parent in origin.parents]
            else:
                yield value, by

    def _cut(self, value: int, behind: frozenset[int], by: int = -1) -> Cut:
        record, origin = self.record, self.record.origins[value]
        reason = origin.cut
        assert reason is not None
        mode = record.modes[origin.mode] if origin.mode >= 0 else None
        site = record.site(mode.route) if mode is not None else None
        if mode is not None and site is not None and mode.kind is ModeKind.DECORATOR:
            decorator = switching_decorator(site)
            site = site if decorator is None else replace(site, line=decorator.lineno)
        back: Route = ()
        if reason is CutReason.LEFT and by >= 0:
            back = record.routes[record.origins[by].route]
        route = record.routes[origin.route]
        return Cut(reason, route, origin.how, behind, value, mode, site, back)

    def is_last(self, cut: Cut) -> bool:
        """Return whether a graph leads from what was cut off to a leaf, without a further cut: to
        mend this cut alone is then enough.
        """
        behind = {self.value_of(leaf) for leaf in cut.behind}
        parents = self.record.origins[cut.value].parents
        return not behind.isdisjoint(self.record.before(parents, with_graph=True))

    def cuts_of_values(self, roots: Iterable[int], values: Iterable[int]) -> list[Cut]:
        """Return where the paths from some values to others are cut."""
        leads = {n for value in values for n in (value, *self.descendants(value))}
        met = self._cut_at(roots, leads.__contains__)
        return [self._cut(value, self.record.leaves_behind[value], by) for value, by in met]

    def last_of_values(
        self, values: Iterable[int], function: str = "", before: float = math.inf
    ) -> Site | None:
        """Return the last line that computed something from these values ``before`` a later value;
        preferably a line in this ``function``.
        """
        after = self.record.after
        own = (n for v in values for n in self.descendants(v) if n < before)
        ends = [n for n in own if all(each >= before for each in after[n])]
        if not ends:
            return None
        route = self.record.routes[self.record.origins[max(ends)].route]
        within = (site for site in route if site.function == function)
        return next(within, next(iter(route), None))

    def bare_lines(self, roots: Sequence[int], value: int) -> list[Site]:
        """Return the lines on the path from some values down to one that was cut off, if everything
        that they compute has no graph.
        """
        record, found = self.record, dict[tuple[str, int], Site]()
        leads = {value, *self.descendants(value)}
        with_graph = set[tuple[str, int]]()
        for each in record.before(roots):
            site = record.site(record.origins[each].route)
            if each in leads and site is not None:
                found.setdefault(spot_of(site), site)
                if record.origins[each].has_graph:
                    with_graph.add(spot_of(site))
        own = spot_of(record.site(record.origins[value].route))
        return [site for at, site in found.items() if at not in with_graph and at != own]

    @cached_property
    def _trained(self) -> frozenset[int]:
        leaves = enumerate(self.record.leaves)
        return frozenset(n for n, leaf in leaves if leaf.requires_grad and leaf.is_parameter)

    def frozen_behind(self, roots: Iterable[int]) -> list[int]:
        """Return the parameters that values were computed from and that do not require grad."""
        record = self.record
        behind = frozenset[int]().union(*(record.leaves_behind[root] for root in roots))
        leaves = ((n, record.leaves[n]) for n in sorted(behind))
        return [n for n, leaf in leaves if leaf.is_parameter and not leaf.requires_grad]

    def lost(self, call: EngineUse) -> tuple[list[Cut], list[int]]:
        """Return where the paths from a call's roots are cut, and the frozen leaves they reach.

        Where an optimizer holds what is frozen and nothing behind the cuts, these are meant, as
        where a teacher gives the labels.
        """
        cuts, frozen = self.cuts(call.roots), self.frozen_behind(call.roots)
        held = {n for n, leaf in enumerate(self.record.leaves) if leaf.optimizer >= 0}
        if not held.isdisjoint(frozen) and all(held.isdisjoint(cut.behind) for cut in cuts):
            return [], frozen
        return cuts or ([] if frozen else self.left_unseen(call)), frozen

    def left_unseen(self, call: EngineUse) -> list[Cut]:
        """Return where numbers may have left torch and come back as data of the roots of a call.

        Between the two, code ran that cannot be followed, such as numpy:

            y = torch.from_numpy(solve(h.detach().numpy()))

        So this is a guess: the last numbers that left torch before the data came, since the call
        before.
        """
        record, found = self.record, list[Cut]()
        begin = max((c.values for c in record.calls if c.values < call.values), default=0)
        for number in record.before(call.roots):
            origin = record.origins[number]
            is_data = origin.how in _DATA and not origin.parents and origin.leaf < 0
            for value in range(number - 1, begin - 1, -1) if is_data else ():
                behind = record.leaves_behind[value] & self._trained
                if behind and record.origins[value].cut is CutReason.LEFT:
                    cut = self._cut(value, behind)
                    found.append(cut._replace(back=record.routes[origin.route]))
                    break
        return found

    def lost_by(self, leaf: int) -> Site | None:
        """Return the first line of the backward of the Function that is nearest to a leaf which a
        graph reaches but which got no gradient: it most likely returns None for it.
        """
        record, roots = self.record, [r for c in self.losses if leaf in c.lost for r in c.roots]
        on_way = record.functions.keys() & {*record.before(roots, with_graph=True)}
        own = [n for n in on_way if leaf in record.leaves_behind[n]]
        return record.functions[min(own)] if own else None

    # leaves

    def named(self, name: str) -> list[int]:
        """Return the leaves that a name means: a parameter, a module, or a prefix or suffix of
        names. ``layers[0]``, as the program writes it, is the same as ``layers.0``, torch's name.
        """
        name = _INDEX.sub(r".\1", name.removesuffix(".*"))
        names = (_INDEX.sub(r".\1", leaf.name) for leaf in self.record.leaves)
        leaves = [(n, known) for n, known in enumerate(names) if known]
        for matches in (
            lambda known: known == name,
            lambda known: known.startswith(f"{name}."),
            lambda known: known.endswith(f".{name}"),
            lambda known: f".{name}." in known,
        ):
            if found := [n for n, known in leaves if matches(known)]:
                return found
        own = name.removeprefix("self.")  # how a method calls what has another name outside
        return self.named(own) if own != name else []

    def descendants(self, value: int) -> frozenset[int]:
        """Return what was computed from a value."""
        if value not in self._after:
            after = self.record.after
            self._after[value] = frozenset(reached(after[value], after.__getitem__))
        return self._after[value]

    def value_of(self, leaf: int) -> int:
        """Return the value that is a leaf."""
        return self._values[leaf]

    @cached_property
    def _values(self) -> dict[int, int]:
        return {o.leaf: n for n, o in enumerate(self.record.origins) if o.leaf >= 0}

    def of_leaves(self, leaves: Iterable[int]) -> list[Answer]:
        """Return what is known of some leaves, those with the same state and cuts together."""
        asked = [*leaves]
        roots = dict.fromkeys(root for call in self.losses for root in call.roots)
        cuts_there = self.cuts(roots, asked)
        answers = [
            self._of_leaf(
                leaf, [c._replace(behind=frozenset({leaf})) for c in cuts_there if leaf in c.behind]
            )
            for leaf in asked
        ]

        def alike(answer: Answer) -> object:
            cuts = tuple((cut.reason, cut.site) for cut in answer.cuts)
            return answer.state, answer.given, answer.of, cuts

        found = []
        for same in gathered(answers, alike).values():
            every = tuple(n for answer in same for n in answer.leaves)
            cuts = gathered((c for a in same for c in a.cuts), lambda c: (c.reason, c.site))
            merged = (
                own[0]._replace(behind=frozenset().union(*(c.behind for c in own)))
                for own in cuts.values()
            )
            found.append(same[0]._replace(leaves=every, cuts=tuple(merged)))
        return found

    def _of_leaf(self, leaf: int, cuts: Sequence[Cut]) -> Answer:
        record, own = self.record, self.record.leaves[leaf]
        steps = [step for step in record.steps if step.optimizer == own.optimizer]
        if own.optimizer >= 0 and steps:
            given, of = sum(leaf in step.given for step in steps), len(steps)
        else:
            given = sum(leaf in c.reached and not c.has_failed for c in self.losses)
            of = len(self.losses)
        if not own.requires_grad:
            return Answer(Arrival.FROZEN, (leaf,), given, of)
        if given or any(leaf in call.reached for call in self.losses):
            zero = [leaf in step.zero for step in steps if leaf in step.given]
            state = Arrival.ZERO if zero and all(zero) else Arrival.ARRIVES
            return Answer(state, (leaf,), given, of, tuple(cuts))
        if cuts:
            return Answer(Arrival.CUT, (leaf,), given, of, tuple(cuts))
        if any(leaf in call.lost for call in self.losses):
            return Answer(Arrival.LOST, (leaf,), given, of)
        used = self.descendants(self.value_of(leaf))
        return Answer(Arrival.ASIDE if used else Arrival.UNUSED, (leaf,), given, of)

    # lines

    def _giver(self, leaf: int) -> EngineUse | None:
        """Return the call whose gradient of a leaf the last step uses; if none uses one, the last
        call that gives one.
        """
        used = [step.calls for step in self.record.steps if leaf in step.given - step.zero]
        before = self.record.calls[: used[-1]] if used else self.losses
        own = (call for call in reversed(before) if leaf in call.reached)
        able = (call for call in own if call.accumulates or not used)
        return max(able, key=lambda call: not call.has_failed, default=None)

    def way_to(self, leaf: int) -> list[Row]:
        """Return the shortest way on which the last loss that trains a leaf does so."""
        call = self._giver(leaf)
        path = self._path(call.roots, self.value_of(leaf), with_graph=True) if call else []
        return self._rows(path, LineState.GRADIENT)

    def shown(self, answer: Answer) -> tuple[EngineUse | None, list[Row]]:
        """Return the way that shows an answer best, and the call that it begins at."""
        leaf = answer.leaves[0]
        if (giver := self._giver(leaf)) is not None:
            return giver, self.way_to(leaf)
        for call in reversed(self.losses):
            if not answer.given and (cuts := self.cuts(call.roots, {leaf})):
                return call, self.cut_way(cuts[0], call.roots, leaf)
        return None, []

    def also_by(self, leaf: int) -> list[Site]:
        """Return the other lines by which gradients of the last loss that trains a leaf come."""
        record, goal = self.record, self.value_of(leaf)
        shown = {spot_of(row.site) for row in self.way_to(leaf)}
        call = self._giver(leaf)
        found: dict[tuple[str, int], Site] = {}
        leads = {goal, *self.descendants(goal)}
        for value in record.before(call.roots if call else (), with_graph=True):
            site = record.site(record.origins[value].route)
            if value in leads and site is not None and spot_of(site) not in shown:
                found.setdefault(spot_of(site), site)
        return [*found.values()]

    def cut_way(self, cut: Cut, roots: Iterable[int], leaf: int | None = None) -> list[Row]:
        """Return a way from some values through a cut to one of the leaves behind it."""
        record, roots = self.record, [*roots]
        down = self._path(roots, cut.value)
        # By a line that has no other way: that is what the cut spoils.
        for line in self.bare_lines(roots, cut.value)[-1:]:
            last = self._last_at(line, cut.value)
            through = self._path(roots, last)
            down = [*through[:-1], *self._path([last], cut.value)] if through else down
        above = [
            row._replace(state=LineState.CUT) if spot_of(row.site) == spot_of(cut.site) else row
            for row in self._rows(down, LineState.BARE)
        ]
        if cut.site is not None and not any(row.state is LineState.CUT for row in above):
            above.append(Row(cut.site, LineState.CUT))
        leaf = min(cut.behind) if leaf is None or leaf not in cut.behind else leaf
        rest = self._path(record.origins[cut.value].parents, self.value_of(leaf))
        behind = [
            row
            for row in self._rows(rest, LineState.BEHIND)
            if spot_of(row.site) != spot_of(cut.site)
        ]
        return [*above, *behind]

    def _last_at(self, line: Site, value: int) -> int:
        """Return the last value that a line has computed from a value."""
        record = self.record
        at = (n for n in self.descendants(value) if record.site(record.origins[n].route) == line)
        return max(at, default=value)

    def _path(self, roots: Iterable[int], value: int, *, with_graph: bool = False) -> list[int]:
        """Return the shortest way from some values to one that they were computed from."""
        record, waiting = self.record, [*roots]
        came: dict[int, int] = dict.fromkeys(waiting, -1)
        for each in waiting:
            if each == value:
                break
            for parent in record.origins[each].parents:
                if parent not in came and (record.origins[parent].has_graph or not with_graph):
                    came[parent] = each
                    waiting.append(parent)
        if value not in came:
            return []
        path = [value]
        while (before := came[path[-1]]) >= 0:
            path.append(before)
        return path[::-1]

    def _rows(self, path: Iterable[int], bare: LineState) -> list[Row]:
        """Return the lines of values on a way; those that have a graph, before a cut, have a
        gradient.
        """
        rows: list[Row] = []
        for value in path:
            origin = self.record.origins[value]
            site = self.record.site(origin.route)
            if site is None or origin.leaf >= 0:
                continue
            is_fed = origin.has_graph and bare is LineState.BARE
            state = LineState.GRADIENT if is_fed else bare
            if not rows or spot_of(rows[-1].site) != spot_of(site):
                rows.append(Row(site, state))
        return rows

    def made_at(self, leaf: int) -> Site | None:
        """Return where a parameter was made: where an attribute of its name was set, if any was."""
        own = self.record.leaves[leaf]
        route = self.record.routes[own.made] if own.made >= 0 else ()
        parts = own.name.split(".")

        def sets_it(site: Site) -> bool:
            statement = source.statement_at(site)
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            return any(isinstance(t, ast.Attribute) and t.attr in parts for t in targets)

        return next(filter(sets_it, route), next(iter(route), None))

    def line_beside(self, route: int, other: int) -> Site | None:
        """Return the line of a route in the function of another one, or else its own."""
        if route < 0 or other < 0:
            return None
        function = next((site.function for site in self.record.routes[other]), "")
        sites = self.record.routes[route]
        return next((site for site in sites if site.function == function), next(iter(sites), None))


def switching_decorator(site: Site) -> ast.expr | None:
    """Return the decorator that switches grad mode off, of the function whose decorators begin, or
    one of them stands, at a site.
    """
    for node, _, _ in source.parsed(site.file).nodes:
        own = getattr(node, "decorator_list", ())
        if any(each.lineno == site.line for each in own):
            return next((each for each in own if is_switch(each)), None)
    return None


def is_switch(node: ast.expr) -> bool:
    """Return whether an expression makes a context of those that switch grad mode."""
    text = ast.unparse(node)
    return any(name in text for name in ("no_grad", "inference_mode", "set_grad_enabled"))


def spot_of(site: Site | None) -> tuple[str, int]:
    """Return the file and the line of a site."""
    return ("", 0) if site is None else (site.file, site.line)
