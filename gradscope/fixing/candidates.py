"""Finds by simulation the changes that mend a hazard of a rehearsal, and writes them as edits."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import chain, islice, product
from typing import TypeAlias

from gradscope.code import source
from gradscope.code.source import FUNCTIONS
from gradscope.code.statements import stored_names
from gradscope.fixing.constructs import emptied, uncached
from gradscope.fixing.edits import (
    PATHS,
    copying,
    declared,
    entered_anew,
    fields_of,
    flags_at,
    is_target,
    moved,
    out_of_place,
    plain,
    put_inside,
    rebinding,
    region_of,
    root_of,
    split_off,
    summed,
    summed_loop,
    variable_at,
    with_call,
    with_clones,
    with_flag,
    with_followers,
    with_none,
    without_graph,
)
from gradscope.fixing.instrumentation import Span, waits
from gradscope.fixing.patch import TextEdits, all_of, block_with, together, written
from gradscope.fixing.rehearsal import Kind, Option, Simulation, Spot, Trace
from gradscope.fixing.what_if import CHANGES, CONSTANT, MOST, OTHER, STALE, TARGET, WhatIf
from gradscope.formatting import gathered, lines_told, listed
from gradscope.model import Edit, Finding, Fix, FixKind

_Kept: TypeAlias = tuple[str, Sequence[ast.AST], TextEdits]
"""What has computed a value that is kept, with its file, and the edit that computes it anew."""

_NUMBER: frozenset[Kind] = frozenset({"number"})
_PLAIN: frozenset[Kind] = frozenset({"number", "tensor"})
_KEPT = ("every gradient stays as it is",)
_OF_THEN = "every gradient stays as it is, at the values of then"


class Search(WhatIf):
    """Searches for changes that mend the calls that fail at one line, by simulation."""

    def __init__(self, record: Trace, spot: Spot) -> None:
        super().__init__(record, spot)
        self._options = cache(self._options_of)

    def options(self, finding: Finding) -> dict[FixKind, list[Fix]]:
        """Return the fixes of a finding by kind, the best of each kind first."""
        roles = ("created", "held_by")
        sites = [each.site for each in finding.related if each.role in roles]
        spots = dict.fromkeys((site.file, site.line) for site in sites if site is not None)
        by = finding.site if finding.code == "GS202" else None
        found = self._options((*spots,), None if by is None else (by.file, by.line))
        return {kind: [*fixes] for kind, fixes in found.items()}

    def _options_of(
        self, spots: tuple[Spot, ...], changed_by: Spot | None
    ) -> dict[FixKind, list[Fix]]:
        """Return the same, for lines where the failing graph was made or is held, and for the line
        that modifies it. An error and the warning before it get the same fixes.
        """
        detached = self.detached(self._harmless) + self.rebound() + self.detached_together()
        if self.is_built_once:
            once = ("what it is built from is then trained by the first call alone",)
            detached = [replace(fix, effects=once) for fix in detached]
        if not (detached and self._harmless):
            bearable = [place for place in self._places() if self.effect(place).is_bearable]
            targets = [n for n in bearable if is_target(self._record.places[n])]
            detached += self.detached(targets or bearable, TARGET if targets else CONSTANT)
        found = {
            FixKind.CREATE_GRAPH: self.differentiated(),
            FixKind.DETACH: detached,
            FixKind.RESET: self.emptied(),
            FixKind.ITEM: self.counted(),
            FixKind.CLONE: self.cloned(),
            FixKind.SUM_LOSSES: self.together(),
            FixKind.REORDER: self.later(changed_by),
            FixKind.RECOMPUTE: self.again(),
            FixKind.NO_GRAD: self.without_graph(spots),
            FixKind.RETAIN_GRAPH: self.kept(),
        }
        found = {kind: [fix for fix in fixes if fix.edits] for kind, fixes in found.items()}
        found[FixKind.CLONE] += [] if found[FixKind.REORDER] else self.cloned_in_modules()
        return found

    def detached(self, places: Collection[int], *effects: str) -> list[Fix]:
        """Return the fixes that detach the value of one of these places, the best first."""
        cuts = {place: self.effect(place) for place in places}
        left = {p: e.hazards for p, e in cuts.items() if e.mends and e.is_fruitful}
        fixes = (self._detach([p]) for p in sorted(left, key=lambda p: (left[p], *self._worth(p))))
        found = islice((fix for fix in fixes if fix.edits), MOST)
        return [replace(fix, effects=effects, reason="") if effects else fix for fix in found]

    def counted(self) -> list[Fix]:
        """Return the fixes that use a number, ``loss.item()``, for a tensor of one element."""
        fixes = []
        for each in (n for n in self._harmless if self._record.kinds.get(n) == _NUMBER):
            if self.effect(each).mends:
                edits, where = self._edits_at(sorted(self.value(each)), "item")
                message = f"use the value of {where}, with item()"
                fixes.append(self._fix(FixKind.ITEM, message, edits, self._cut([each])))
        return [fix for fix in fixes if fix.edits][:MOST]

    def emptied(self) -> list[Fix]:
        """Return the fixes that empty a container of numbers, such as losses, once it is read: what
        an earlier call has run is run no more, and nothing else is left out.

            net[1].register_forward_hook(lambda module, x, y: terms.append(y.abs().mean()))
            for x in data:
                loss = net(x).square().mean() + torch.stack(terms).sum()  # then: terms.clear()
                loss.backward()
        """
        record, fixes = self._record, []
        everything = set[int]().union(*self._base.ran.values())
        for number, times in self._collected():
            place = record.places[number]
            last, pieces = emptied(place)
            ends = sorted(node + 1 for node in self._built_by(place.file, last))
            over = [max(ends[: bisect_right(ends, time)], default=time) for time, _ in times[1:]]
            held = [*zip(over, (nodes for _, nodes in times), strict=False)]
            seen = replace(record, held={number: held}, begun={0: over})
            changed = Simulation(seen, Option(head=0, names=frozenset({number})))
            is_kept = everything <= set[int]().union(*changed.ran.values())
            if pieces and ends and self._fail not in changed.hazards and is_kept:
                message = f"empty `{place.text}` once line {last.lineno} has read it"
                fixes.append(self._fix(FixKind.RESET, message, written(*pieces), changed))
        return [fix for fix in fixes if fix.edits][:MOST]

    def _collected(self) -> Iterator[tuple[int, list[tuple[int, tuple[int, ...]]]]]:
        """Yield the places that give lists or dicts of numbers that only grow; for each time that
        one had grown, how many nodes there were, and which of them were in any of the containers.
        """
        record = self._record
        for number, own in record.held.items():
            kinds = record.kinds[number]
            parts, are_lists = {*plain(kinds)}, all(kind[0] in ("list", "dict") for kind in kinds)
            times, lists, grows = list[tuple[int, tuple[int, ...]]](), list[set[int]](), True
            met = set[int]()
            for time, nodes in own:  # a place may give several lists, as those of modules
                same = [each for each in lists if not each.isdisjoint(nodes)]
                grows &= all(each <= {*nodes} for each in same)
                lists = [*(each for each in lists if each not in same), {*nodes}]
                if not met.issuperset(nodes):
                    met.update(nodes)
                    times.append((time, tuple(sorted(met))))
            are_numbers = "number" in parts and "tensor" not in parts
            is_path = isinstance(record.places[number].expression, PATHS)
            if grows and are_lists and are_numbers and is_path:
                yield number, times

    def detached_together(self) -> list[Fix]:
        """Return the fix that detaches at the fewest places, if one place is not enough."""
        several = self._fewest(sorted(self._harmless, key=self._worth))
        return [self._detach(several)] if len(several) > 1 else []

    @cached_property
    def _harmless(self) -> list[int]:
        """The places where a cut takes away no gradient that a step needs."""
        return [place for place in self._places() if self.effect(place).is_harmless]

    def kept(self) -> list[Fix]:
        """Return the fix that passes ``retain_graph=True``, to as few calls as that takes."""
        events, flags = self._record.events, self._flags
        before = {events[i].roots for i in self._record.calls if i < self._fail}
        twice = self._failing.accumulate and self._failing.roots in before
        if not self._freed or twice:
            return []  # the same loss once more: its gradients would be there twice

        def left(keeps: Collection[Span]) -> set[int]:
            calls = frozenset(chain.from_iterable(flags[place] for place in keeps))
            return set(self._run(Option(keeps=calls)).hazards)

        keeps = sorted(flags, key=lambda place: (place.file, place.line, place.column))
        least = left(keeps)
        if least & self._meant:
            return []
        for place in keeps.copy():
            rest = [other for other in keeps if other is not place]
            keeps = rest if left(rest) <= least else keeps
        edits = all_of(with_flag(place, "retain_graph") for place in keeps)
        calls = "call" if len(keeps) == 1 else "calls"
        message = f"pass retain_graph=True to the {calls} at {lines_told(p.line for p in keeps)}"
        kept = "each of these graphs is kept until nothing refers to it"
        effects = (STALE if self.is_built_once else kept,)
        others = [p.line for p, own in flags.items() if p not in keeps and events[own[0]].keep]
        reason = f"the program keeps its graphs so at {lines_told(others)}" if others else ""
        return [Fix(FixKind.RETAIN_GRAPH, message, edits, CHANGES, effects, reason)]

    @cached_property
    def _flags(self) -> dict[Span, list[int]]:
        """The calls by where their options are written."""
        events = self._record.events
        return gathered(self._record.calls, lambda i: flags_at(events[i].levels))

    def differentiated(self) -> list[Fix]:
        """Return the fix that trains through the gradients of which a step's loss is computed."""
        events, ran = self._record.events, self._base.ran
        used = {i for event in events for i in event.uses if ran[i] & self._freed}
        used |= {i for fail in self._meant for i in events[fail].uses}
        flags = ((p, own) for p, own in self._flags.items() if not events[own[0]].keep)
        given = {place: own for place, own in flags if used.intersection(own)}
        sites = {place: own for place, own in given.items() if self._trains(ran[own[0]])}
        kept = frozenset(chain.from_iterable(sites.values()))
        if not sites or self.is_only_read or not self._mends(self._run(Option(keeps=kept))):
            return []
        edits = all_of(with_flag(place, "create_graph") for place in sites)
        lines = lines_told(place.line for place in sites)
        message = f"pass create_graph=True at {lines}: the later loss is computed from its result"
        effects = ("the later loss trains through the gradient as well, which it does not now",)
        return [Fix(FixKind.CREATE_GRAPH, message, edits, CHANGES, effects)]

    def together(self) -> list[Fix]:
        """Return the fixes that make one call of those that share a graph, where no step and no
        zeroed gradient comes between.
        """
        record, fixes = self._record, []
        for first in [i for i in record.calls if i < self._fail][-MOST:]:
            one, other = record.events[first], self._failing
            between = record.events[first + 1 : self._fail]
            trained = record.leaves_of(self._base.ran[first])
            is_apart = any(each.leaves for each in between) or trained & set(other.cleared)
            kept = frozenset(i for i in record.calls if record.events[i].spot == one.spot)
            if is_apart or not self._mends(self._run(Option(keeps=kept))):
                continue
            if one.spot == other.spot:
                loop, steps = other.site.loop, (e for e in record.events if e.leaves)
                inside = (at.is_in(at.file, loop) for e in steps for at in e.levels if loop)
                edits = () if any(inside) else written(*summed_loop(other.site))
            else:
                edits = written(*summed(one.site, other.site))
            if edits:
                lines = lines_told({one.spot[1], other.spot[1]})
                message = f"add the losses of {lines}, and call backward once"
                trains = ("every parameter gets the gradient of both losses",)
                fixes.append(Fix(FixKind.SUM_LOSSES, message, edits, CHANGES, trains))
        return fixes[-1:]

    def later(self, changed_by: Spot | None) -> list[Fix]:
        """Return the fixes that change what backward has saved only when it is over: after the
        call, or after the step that follows it. ``changed_by``: a line that is known to do so.
        """
        record, fixes = self._record, []
        if self._freed:
            return []
        by = {event for _, event, _ in self._stale if event >= 0}
        if changed_by is not None:
            by |= {i for i, each in enumerate(record.events) if each.spot == changed_by}
        changed = dict.fromkeys(e for event in sorted(by) for e in record.events[event].levels[1:])
        for (file, _), _, between, _ in self._since_built():  # others run while one waits
            changed |= dict.fromkeys(Span.of(file, e) for e in between if waits(e))
        following = record.events[self._fail :]
        steps = [each for each in following if each.kind == "step"]
        goals = dict.fromkeys(each for e in (*steps[:1], *following[:1]) for each in e.levels)
        trained = record.leaves_of(self._base.ran.get(self._fail, ()))
        own_leaves = {n for e in steps[:1] for n in e.leaves}
        loops = [each.loop for each in self._failing.levels]
        for site in changed:
            at = (site.file, site.line)
            if at in self._failing.stack:
                continue  # the call itself would move along
            steps_at = (e for e in record.events if e.spot == at and e.kind == "step")
            stepped = {leaf for each in steps_at for leaf in each.leaves}
            has_call = any(at in e.stack for e in record.events if e.kind == "call")
            gone = not has_call and stepped & {*self._failing.cleared}
            pairs = {(self._failing.spot, leaf) for leaf in stepped & trained}
            if gone or not pairs <= self._base.flows:
                continue  # a gradient is cleared by then, or there is one that no step uses now
            both = "it would step with the gradient of both losses"
            effects = (both,) if stepped & trained else ()
            ways = [(moved(site, goal), f"after line {goal.line}") for goal in goals]
            is_for_both = self.is_shared or stepped & trained <= own_leaves
            if is_for_both and site.loop in loops:
                ways.append((split_off(site), "into a loop of its own"))
            for pieces, where in ways:
                edits, message = written(*pieces), f"move line {site.line} {where}"
                fixes.append(Fix(FixKind.REORDER, message, edits, CHANGES, effects))
        fixes = [fix for fix in fixes if fix.edits]
        own = [fix for fix in fixes if not fix.effects][:MOST]
        return [*dict.fromkeys((*own, *self._built_later(changed), *fixes[:MOST]))]

    def _since_built(self) -> Iterator[tuple[Spot, list[ast.stmt], list[ast.stmt], ast.stmt]]:
        """Yield, for the call that fails and for its callers, the statements of its block that
        built what fails, those between the last of them and the call, and the call's.
        """
        for spot in self._failing.stack or (self._failing.spot,):
            if around := source.enclosing(*spot):  # it is no decorator's line
                block, call = block_with(spot[0], around[-1]), around[-1]
                if built := self._building(spot[0], block, call):
                    yield spot, built, block[block.index(built[-1]) + 1 : block.index(call)], call

    def _built_later(self, changed: Iterable[Span]) -> Iterator[Fix]:
        """Yield the fixes that build what is changed, and what is computed from it, only once that
        is over.

            out = net(x)  # behind the second swap
            swap()  # the parameters for their average
            goal = net(x).detach()
            swap()
            (out - goal).square().mean().backward()
        """
        calls = self._calls_by(self._failing.spot)
        moving = (event for event in self._record.events if event.kind != "change")
        happened = {place for event in moving for place in event.levels}
        for site in changed:
            file, change = site.statement
            block = block_with(file, change)
            for node in self._building(file, block, change):
                nodes = with_followers(block[: block.index(change)], [node])
                if any(place.is_in(file, each) for place in happened for each in nodes):
                    continue
                built = self._run(Option(again=self._all_built(file, nodes), for_calls=calls))
                own = Span.of(file, node)
                if self._mends(built) and (edits := written(*moved(own, site, *nodes[1:]))):
                    lines = lines_told(each.lineno for each in nodes)
                    message = f"move {lines} after line {change.lineno}"
                    yield Fix(FixKind.REORDER, message, edits, CHANGES, (_OF_THEN,))

    def without_graph(self, spots: Iterable[Spot]) -> list[Fix]:
        """Return the fixes that build no graph at a line, where no step needs what it builds, or
        each loss trains what it does by other ways. The line has to build all that fails, from
        leaves and from what it has built before: what comes in is better cut where it does.
        """
        record = self._record
        fixes: list[Fix] = []
        for file, line in spots:
            around = source.enclosing(file, line)
            if not around:  # a decorator's line
                continue
            built = self._built_by(file, around[-1])
            given = built & record.identities.keys()
            cut = self._run(Option(cuts=frozenset(record.identities[n] for n in given)))
            is_needed = self._harm(cut)
            may_go = not is_needed or (self.fails and self._is_bearable(cut))
            read = {n for own in given for n in record.after[own]}
            is_all = self._mends(cut) and read <= built | record.leaf.keys()
            if may_go and (is_all or not self.fails) and self._builds(file, around[-1]):
                edits, effects = written(*without_graph(file, line)), (CONSTANT,) * is_needed
                message = f"run line {line} under torch.no_grad()"
                fixes.append(Fix(FixKind.NO_GRAD, message, edits, CHANGES, effects))
        return [fix for fix in fixes if fix.edits]

    def kept_at(self) -> list[int]:
        """Return the places that have given tensors that are kept, and that no step is trained by,
        the most frequent first.
        """
        record = self._record
        inner = record.reached(n for node in record.kept for n in record.after[node])
        given = Counter(record.identities[node] for node in record.kept if node not in inner)
        often = [place for place, times in given.most_common(MOST) if times > MOST]
        return [place for place in often if self.effect(place).is_harmless]

    def put_into(self, near: Collection[int]) -> list[int]:
        """Return the places, in the functions of some others, at which a cut lets go of what those
        give, tensors first, and of these the last.

            entry = (score, next(count), x)  # the score
            heapq.heappush(heap, entry)  # a tuple of all sorts
        """
        record = self._record

        def function(number: int) -> ast.AST | None:
            place = record.places[number]
            return source.innermost(place.file, place.line, FUNCTIONS)

        own = {*map(function, near)}
        beside = (n for n in record.given if function(n) in own and self.effect(n).is_harmless)
        found = [n for n in beside if self.lets_go(n, near)]
        return sorted(found, key=lambda n: (not self._kinds([n]) <= _PLAIN, -max(record.given[n])))

    def rebound(self) -> list[Fix]:
        """Return the fixes that detach variables at the head of a function or loop."""
        fixes: list[Fix] = []
        for head, place in enumerate(self._record.heads):
            if place in self._calls_at and fixes:
                break  # the head of a loop says it as well
            names = self._carried(head, place)
            alone = {name: self._without(head, {name: at}) for name, at in names.items()}
            chosen = {name: names[name] for name in names if not self._harm(alone[name])}
            changed = self._without(head, chosen)
            if not chosen or not self._mends(changed) or self._harm(changed):
                continue
            for name in sorted(chosen, key=len):  # an object rather than its attribute
                rest = {other: at for other, at in chosen.items() if other != name}
                chosen = rest if self._mends(self._without(head, rest)) else chosen
            fixes += self._rebinding(head, chosen, changed, "a state is carried on")
        return fixes[:MOST]

    def _without(self, head: int, names: dict[str, frozenset[int]]) -> Simulation:
        """Return what would happen with variables detached at a head."""
        return self._run(Option(head=head, names=frozenset().union(*names.values())))

    @cached_property
    def _calls_at(self) -> frozenset[Span]:
        return frozenset(self._record.events[i].site for i in self._record.calls)

    def let_go(self) -> list[Fix]:
        """Return the fixes that detach, at the head of a loop, what leads to all earlier runs."""
        record, fixes = self._record, []
        for head, place in enumerate(record.heads):
            names = self._carried(head, place)
            changed = self._without(head, names)
            if not names or self._harm(changed):
                continue
            begun = record.begun[head][-1]
            last = record.reached(range(begun, len(record.after)), changed.cut, changed.cut_at)
            if any(node < begun and record.saves[node] for node in last):
                continue
            fixes += self._rebinding(head, names, changed, "it leads to all earlier runs")
        return fixes[:MOST]

    def _rebinding(
        self, head: int, names: dict[str, frozenset[int]], changed: Simulation, why: str
    ) -> list[Fix]:
        """Return the fix that detaches variables at a head."""
        place, empty = self._record.heads[head], self._record.empty.get(head, frozenset())
        read = {n: variable_at(p, place) for n, p in enumerate(self._record.places)}
        at = {
            name: names[name].union(n for n, own in read.items() if own == name) for name in names
        }
        kinds = {name: with_none(name, self._kinds(own), empty) for name, own in at.items()}
        is_call, is_leaf = place in self._calls_at, bool(changed.rebound)
        fields = [each for name in names for each in fields_of(name, kinds[name])]
        if not is_call and not self._record.bound[head].issuperset(fields):
            return []  # there is none at first
        edits = written(*rebinding(place, kinds, is_leaf=is_leaf, is_behind=is_call))
        told = listed([f"`{each}`" for each in fields])
        message = f"detach() {told} {'after' if is_call else 'before'} line {place.line}: {why}"
        return [self._fix(FixKind.DETACH, message, edits, changed)] if edits else []

    def cloned(self) -> list[Fix]:
        """Return the fixes that change out of place what backward needs, or clone it before."""
        places = self._cloned_places
        if not places:
            return []
        sites = {self._record.events[by].site for _, by, _ in self._stale}
        lines = lines_told(site.line for site in sites)
        found = [(all_of(map(out_of_place, sites)), f"change it out of place at {lines}")]
        if min(places) >= 0 and len(places) <= MOST:
            edits, where = self._edits_at(places, "clone")
            found.append((edits, f"clone() {where}: it is changed before backward needs it"))
        return [Fix(FixKind.CLONE, told, edits, CHANGES, _KEPT) for edits, told in found]

    def cloned_in_modules(self) -> list[Fix]:
        """Return the fix that computes with clones of parameters, as modules do with their own."""
        record = self._record
        made = {record.made[node] for node, _, _ in self._stale}
        if self._cloned_places != [-1] or -1 in made:
            return []
        places = [record.places[number] for number in made]
        changed = {leaf for _, by, _ in self._stale for leaf in record.events[by].leaves}
        leaves = [record.leaves[leaf] for leaf in changed]
        told = f"use clones of the parameters at {lines_told(place.line for place in places)}"
        edits = all_of(with_clones(place, leaves) for place in places)
        return [Fix(FixKind.CLONE, told, edits, CHANGES, _KEPT)]

    @property
    def _cloned_places(self) -> list[int]:
        """The places that gave what is changed before backward needs it, -1 for those of a library,
        if clones of that mend what fails: a step comes too early.
        """
        places = sorted({place for _, _, place in self._stale})
        by = {event for _, event, _ in self._stale}
        if self._freed or any(i < 0 or self._record.events[i].kind == "step" for i in by):
            return []
        return places if self._mends(self._run(Option(clones=frozenset(places)))) else []

    def again(self) -> list[Fix]:
        """Return the fixes that build the freed part anew for the call that fails."""
        copied = sorted(self._copied(), key=lambda fix: OTHER in fix.effects)
        return [*self._uncached(), *self._inside(), *copied[:1]]

    def _uncached(self) -> list[Fix]:
        """Return the fixes that compute each time what is kept in a cache, or in all where one is
        not enough.

            embed = lru_cache(lambda n: table(torch.full((3,), float(n))))  # without lru_cache
            for _ in range(3):
                torch.stack([embed(1), embed(2)]).square().sum().backward()
        """
        wrapped: list[_Kept] = [
            (file, [function], pieces)
            for file in dict.fromkeys(file for file, _ in self._built_at)
            for function, pieces in uncached(file)
        ]
        caches = [*wrapped, *self._guarded]
        alone = [fix for each in caches for fix in self._without_caches([each])]
        return alone or [*self._without_caches(caches)]

    def _without_caches(self, caches: Sequence[_Kept]) -> Iterator[Fix]:
        """Yield the fix that takes some caches off, if each has kept a part of what fails."""
        built = [self._all_built(file, nodes) for file, nodes, _ in caches]
        anew = Option(again=frozenset().union(*built), for_calls=self._record.calls)
        if caches and all(own & self._broken for own in built):
            every = [each for _, nodes, _ in caches for each in nodes]
            named = listed(f"`{each.name}`" for each in every if isinstance(each, FUNCTIONS))
            told = named or lines_told(getattr(each, "lineno", 0) for each in every)
            yield from self._anew(caches, anew, f"run {told} each time: do not cache the result")

    def _anew(self, several: Sequence[_Kept], anew: Option, message: str) -> Iterator[Fix]:
        """Yield the fix that computes something each time, if that moves nothing."""
        edits, record = all_of(pieces for _, _, pieces in several), self._record
        moves, varies = (
            any(self._are_in(file, nodes, places) for file, nodes, _ in several)
            for places in (record.moving, record.varying)
        )
        changed = None if moves or not edits else self._run(anew)
        if changed and self._mends(changed) and not self._harm(changed):
            yield self._fix(FixKind.RECOMPUTE, message, edits, changed, varies=varies)

    def _building(
        self, file: str, block: Sequence[ast.stmt], end: ast.stmt | None = None
    ) -> list[ast.stmt]:
        """Return the statements of a block, up to one of them, that built what fails."""
        before = block if end is None else block[: block.index(end)]
        run = (each for each in before if not isinstance(each, (*FUNCTIONS, ast.ClassDef)))
        return [each for each in run if self._built_by(file, each) & self._broken]

    def _inside(self) -> Iterator[Fix]:
        """Yield the fixes that run what comes before a loop or a function at its head.

        image = torch.sigmoid(canvas)  # as the first line of the function

        def closure():
            loss = (image - 0.3).square().sum()
            loss.backward()
            return loss

        torch.optim.LBFGS([canvas]).step(closure)
        """
        built = dict.fromkeys((*self._built_at, *self._ran))
        beside = ((file, e) for file, node in built for e in block_with(file, node))
        for file, owner in dict.fromkeys(beside):
            block = block_with(file, owner)
            nodes = self._building(file, block, owner)
            nodes = with_followers(block[: block.index(owner)], nodes)
            builds = nodes and all(self._builds(file, node) for node in nodes)
            if isinstance(owner, FUNCTIONS + source.LOOPS) and builds:
                yield from self._put(file, nodes, owner, put_inside(file, nodes, owner))
        for file, node in self._ran:
            if isinstance(node, ast.With):
                opened = [each.context_expr for each in node.items]
                yield from self._put(file, opened, node.body[0], entered_anew(file, node))

    def _put(
        self, file: str, nodes: Sequence[ast.expr | ast.stmt], owner: ast.stmt, pieces: TextEdits
    ) -> Iterator[Fix]:
        """Yield the fix that runs statements each time that a loop or a function begins."""
        head = next((h for h, p in enumerate(self._record.heads) if region_of(p) is owner), -1)
        if head >= 0:
            where = f"call of `{owner.name}`" if isinstance(owner, FUNCTIONS) else "iteration"
            message = f"run {lines_told(node.lineno for node in nodes)} in each {where}"
            anew = Option(again=self._all_built(file, nodes), head=head)
            yield from self._anew([(file, nodes, pieces)], anew, message)

    def _copied(self) -> Iterator[Fix]:
        """Yield the fixes that run statements again before the call that fails needs their values,
        with what the first run of them need not train detached there.
        """
        by = {event for _, event, _ in self._stale if event >= 0}
        changes = [place for event in by for place in self._record.events[event].levels]
        run = self._base.ran[self._fail]
        for spot, building, between, call in self._since_built():
            file = spot[0]
            if any(place.is_in(file, call) for place in changes):
                continue  # it would be changed again
            late = [e for e in between if any(place.is_in(file, e) for place in changes)]
            for nodes in [*([each] for each in building), building if len(building) > 1 else []]:
                again = [own for node in nodes for own in self._opened(file, node)]
                if late:  # what is computed of it may have saved it too
                    passed = [*building, *between[: between.index(late[-1])]]
                    others = [e for e in with_followers(passed, nodes) if e not in nodes]
                    again += [e for e in others if self._built_by(file, e) & run]
                behind = late[-1] if late else None
                yield from islice(self._made_twice(spot, nodes, again, behind), 1)

    def _opened(self, file: str, node: ast.stmt) -> list[ast.stmt]:
        """Return what a branch ran that built what fails: another time it may not be taken.

        if stage != entered:
            opt = torch.optim.SGD(parts[stage], 0.1)
            rays = grid * camera.exp()  # this alone is run again
            entered = stage
        """
        if not isinstance(node, ast.If):
            return [node]
        inside = self._building(file, [*node.body, *node.orelse])
        return [own for each in inside for own in self._opened(file, each)]

    def _made_twice(
        self,
        spot: Spot,
        nodes: Sequence[ast.stmt],
        again: Sequence[ast.stmt],
        behind: ast.stmt | None,
    ) -> Iterator[Fix]:
        """Yield the fixes that run statements, or parts of them, ``again`` for a line, as they are
        or with a place cut in their first run or in the other one.
        """
        record, file = self._record, spot[0]
        built, calls = self._all_built(file, again), self._calls_by(spot)
        inside = {n for n in record.given if any(record.places[n].is_in(file, e) for e in again)}
        copied = partial(copying, nodes, again, spot, behind=behind)
        varies = self._are_in(file, again, record.varying)

        def ways() -> Iterator[tuple[int | None, bool]]:
            yield None, False
            yield from product(sorted(inside, key=self._worth)[: MOST * MOST], (False, True))

        may_run = built and not self._are_in(file, again, record.moving) and copied()
        for number, late in ways() if may_run else ():  # each takes a simulation
            cuts = frozenset() if number is None else self.value(number) & inside
            changed = self._run(Option(cuts, again=built, for_calls=calls, late=late))
            if not self._mends(changed) or self._harm(changed):
                continue
            kinds = frozenset[Kind]({"tensor"})
            cut = together(*(with_call(record.places[n], kinds, "detach") for n in sorted(cuts)))
            first = [cut] if cuts and not late else []
            edits = all_of([copied(cut if late else ()), *first]) if cut or not cuts else ()
            also = ", with `{}` detached there" if late else ", and detach `{}` before" * bool(cuts)
            if edits:
                message = f"run {lines_told(e.lineno for e in again)} again for line {spot[1]}"
                message += also.format("" if number is None else record.places[number].text)
                yield self._fix(FixKind.RECOMPUTE, message, edits, changed, varies=varies)

    def _carried(self, head: int, place: Span) -> dict[str, frozenset[int]]:
        """Return the variables whose values go on beyond a head, and the places that read them."""
        record = self._record
        begun = record.begun.get(head, [])
        if len(begun) < (1 if place in self._calls_at else 2):
            return {}
        read = {n: text for n, p in enumerate(record.places) if (text := variable_at(p, place))}
        whole = (n for n in record.holders if len(record.held[n]) == len(begun))
        read |= {n: record.holders[n] for n in whole if record.places[n] == place}
        names: dict[str, set[int]] = defaultdict(set)
        calls = self._meant or record.calls
        leading = record.reached(r for i in calls for r in record.events[i].roots)
        given = ((n, node, record.after[node][:1]) for node, n in record.identities.items())
        led = [each for each in given if each[1] in leading]
        for number in read.keys() & record.held.keys():
            led += [(number, t, [*leading.intersection(of)]) for t, of in record.held[number]]
        led += [(n, own, [old]) for (own, old), n in record.added.items() if own in leading]
        for number, time, sources in led:
            at = bisect_right(begun, time) - 1
            if number in read and at >= 0 and any(source < begun[at] for source in sources):
                names[read[number]].add(number)
        bound, is_call = self._bound_at(head, place, names), place in self._calls_at
        kept = [n for n in names if bound is None or (root_of(n) if is_call else n) in bound]
        return {name: frozenset(names[name]) for name in kept}

    def _bound_at(self, head: int, place: Span, names: Iterable[str]) -> frozenset[str] | None:
        """Return the variables that there always are at a head: of a call, what its iteration or
        function has bound before it, at that of its loop, for what an iteration binds anew no other
        one has had; else what outlives its function, an object whose attribute it is or what is not
        local. None if any may be.
        """
        record = self._record
        if place not in self._calls_at:
            return record.bound.get(head)
        loop = source.innermost(place.file, place.line, FUNCTIONS + source.LOOPS)
        if not isinstance(loop, FUNCTIONS + source.LOOPS):
            return None
        own = [each for each in loop.body if isinstance(each, ast.Assign)]
        before = set().union(*(stored_names(e) for e in own if e.lineno < place.line))
        if isinstance(loop, FUNCTIONS):
            owners = (root_of(name) for name in names if "." in name)
            return frozenset(before.union(owners, declared(loop)))
        heads = (h for h in record.bound if region_of(record.heads[h]) is loop)
        bound = next((record.bound[h] for h in heads), None)
        return None if bound is None else bound | before

    def _fewest(self, harmless: Sequence[int]) -> list[int]:
        """Return the fewest of harmless cuts that mend it together; none if all do not.

        h, c = cell(x, (h, c))  # in a loop: both carry the graph on
        """
        cuts: list[int] = []
        for each in harmless:
            if not self._harm(self._cut([*cuts, each])):
                cuts.append(each)
        if not self._mends(self._cut(cuts)):
            return []
        for each in reversed(cuts.copy()):
            rest = [other for other in cuts if other != each]
            if self._mends(self._cut(rest)):
                cuts = rest
        return cuts

    def _worth(self, number: int) -> tuple[int, ...]:
        """Return what a cut at a place leaves to be wished: gradients that it takes, graphs of
        earlier iterations that hang on the last one's, that it is for all who call a function, and
        an edit that is awkward to read, unlike that of a tensor's name.
        """
        place, kinds = self._record.places[number], self._kinds([number])
        is_path = isinstance(place.expression, PATHS)
        is_for_all = source.innermost(place.file, place.line, FUNCTIONS) not in self._callers
        awkward = len(self.value(number)), is_for_all, len(kinds), not is_path, len(place.text)
        return *self.effect(number).takes, self._held(number), *awkward

    @cached_property
    def _callers(self) -> list[ast.AST | None]:
        """The functions that have led to the call that fails: what they do is for it alone."""
        return [source.innermost(file, line, FUNCTIONS) for file, line in self._failing.stack]

    def _held(self, number: int) -> int:
        """Return how many nodes of earlier iterations the last one's lead to, with a cut.

        An iteration is what is built between two calls of the line that fails.
        """
        spot = self._failing.spot
        counts = [e.nodes for e in self._record.events if e.kind == "call" and e.spot == spot]
        if len(counts) < 2:
            return 0
        record, (start, end) = self._record, counts[-2:]

        def is_cut(node: int, following: int) -> bool:
            places = record.identities.get(following), record.added.get((node, following))
            return number in places

        reached = record.reached(range(start, end), is_cut, record.read_at({number}))
        return sum(1 for node in reached if node < start and record.saves[node])

    def _detach(self, numbers: Sequence[int]) -> Fix:
        edits, where = self._edits_at(sorted(self._values(numbers)), "detach")
        effects = self._effects(self._cut(numbers))
        reason = "no step uses a gradient that goes through it"
        return Fix(FixKind.DETACH, f"detach() {where}", edits, CHANGES, effects, reason)

    def _edits_at(self, numbers: Sequence[int], method: str) -> tuple[tuple[Edit, ...], str]:
        """Return the edits that call a method of what some places give, and those in words."""
        places = [self._record.places[n] for n in numbers]
        edits = all_of(with_call(self._record.places[n], self._kinds([n]), method) for n in numbers)
        texts = listed([f"`{place.text}`" for place in places])
        return edits, f"{texts} at {lines_told(place.line for place in places)}"
