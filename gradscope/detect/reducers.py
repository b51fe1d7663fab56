"""Follows which parameters backward calls mark as ready in the reducers of DistributedDataParallel:
GS602 and GS603.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from gradscope.collect.calls import Call
from gradscope.collect.inspection import Inspection
from gradscope.collect.marks import mark_of
from gradscope.collect.observers import Observer
from gradscope.collect.state import State
from gradscope.collect.walk import reachable
from gradscope.detect.hazards import way_of
from gradscope.formatting import firsts
from gradscope.model import BackwardCall, Finding, Site
from gradscope.program.sites import USER, Place, owner_of, site_of, user_frames
from gradscope.program.tensors import leaves_of, parameters_of, requires_grad
from gradscope.program.variables import local_variables
from gradscope.rules import gs602, gs603
from gradscope.torch_private import (
    current_node,
    is_reentrant,
    marks_of_reducer,
    rank_of_process,
    wrapper_behind,
)


class _Reducer:
    """What is known of the reducer of one DistributedDataParallel since its last reduction ended.

    A reduction ends once every parameter is ``marked`` as ready. A hook on the parameter's
    AccumulateGrad marks it, so the graph of a call tells which parameters the call marks. Whether
    the reducer listens at all (not within ``no_sync()``) shows in the ``times`` of the last marks,
    which torch keeps.
    """

    def __init__(self, module: Any, reduced: Sequence[tuple[Tensor, str]]) -> None:
        self.module = weakref.ref(module)
        self.names = [name for _, name in reduced]
        self.index = {id(parameter): i for i, (parameter, _) in enumerate(reduced)}
        self.is_static = bool(module.static_graph)
        self.is_dynamic = bool(module.find_unused_parameters) and not self.is_static
        """Whether the reducer itself marks parameters that the outputs of forward do not reach, so
        that each call ends the reduction.
        """
        self.needed = set[int]() if self.is_static else {*self.index.values()}
        """The parameters to be marked; with ``static_graph=True`` those that a call reached."""
        self.is_known = self.is_whole = True
        """Whether all marks are known, because each call since was inspected; and whether each call
        so far has ended a reduction by itself.
        """
        self.finished_at = 0
        self.finish()

    def finish(self) -> None:
        """Begin the next reduction."""
        self.marked: dict[int, BackwardCall] = {}
        self.unused = set[int]()
        """The parameters that the first hook will mark beside its own."""
        self.times = marks_of_reducer(self.module())

    @property
    def missing(self) -> set[int]:
        """Those that are not marked yet."""
        return self.needed - self.marked.keys() - self.unused

    @property
    def is_open(self) -> bool:
        """Whether a reduction has begun, and gradients are still to come."""
        return bool(self.is_known and self.marked and self.missing)

    @property
    def is_told(self) -> bool:
        """Whether it is known that a second mark raises an error."""
        return self.is_known and not self.is_static

    def mark(self, which: Iterable[int], call: BackwardCall) -> bool:
        """Note which of these parameters a call has marked by now; return whether it marked any."""
        now = dict(enumerate(zip(self.times, marks_of_reducer(self.module()), strict=False)))
        new = {i for i in which if i not in self.marked and len({*now.get(i, ())}) > 1}
        self.marked |= dict.fromkeys(new, call)
        return bool(new)

    def reached(self, look: Inspection) -> set[int]:
        """Return the parameters to which a call will add a gradient."""
        if not look.asked.accumulates:
            return set()
        return self._among(node for i, node in enumerate(look.nodes) if look.will_run(i))

    def _among(self, nodes: Iterable[Any]) -> set[int]:
        return {self.index[id(each)] for each in leaves_of(nodes) if id(each) in self.index}

    def seek_unused(self, look: Inspection) -> None:
        """Find the parameters that the outputs of the last forward pass do not reach, if this call
        is the first one after it.
        """
        module = self.module()
        if module is None or not (self.is_dynamic and module.require_forward_param_sync):
            return
        behind = [i for i, node in enumerate(look.nodes) if wrapper_behind(node) is module]
        newest = max(behind, key=lambda i: look.marks[i].sequence_nr, default=None)
        if newest is not None and look.marks[newest].sequence_nr >= self.finished_at:
            led_to = reachable(look.targets, [newest])
            self.unused = self.needed - self._among(look.nodes[i] for i in led_to)

    def named(self, which: Collection[int], *, others: bool = False) -> tuple[str, ...]:
        """Return the names of these parameters, or of the others."""
        return tuple(name for i, name in enumerate(self.names) if (i in which) is not others)


class Reducers(Observer):
    """Reports what breaks the reduction of gradients in DistributedDataParallel.

    GS602: a backward call marks a parameter a second time, which raises an error. GS603: an
    optimizer steps on gradients that are not averaged over the ranks, which raises nothing.
    """

    def __init__(self, watch: State) -> None:
        self._watch = watch
        self._reducers: dict[int, _Reducer] = {}
        self._running: dict[int, dict[_Reducer, set[int]]] = {}
        """By the number of a running call, the parameters that it will mark."""
        self._made: dict[int, Site | None] = {}
        """By the number of a call within another, the line of the node that makes the call."""
        self._last = watch.calls
        """The number of the last call that was inspected."""
        self._said = set[int]()
        """Numbers of calls whose error was explained, in them or in a call within them."""
        self._told: dict[tuple[str, ...], Site | None] = {}
        """By parameters, the step at which it was reported that they had no gradient."""
        self.is_open = False
        """Whether a reduction has begun that the calls so far have not finished."""

    def _met(self) -> list[_Reducer]:
        """Return the reducers of the modules that are known, and there still."""
        found, names = dict[int, _Reducer](), self._watch.names
        for module in () if rank_of_process() is None else [*names.modules]:
            if issubclass(type(module), DistributedDataParallel):
                known = self._reducers.get(id(module))
                if known is None or known.module() is not module:
                    reduced = _reduced(module, len(marks_of_reducer(module)))
                    named = [(each, names.of_tensor(each) or own) for each, own in reduced]
                    known = _Reducer(module, named)
                found[id(module)] = known
        self._reducers = found
        return [each for each in found.values() if each.names]

    # at calls

    def before_call(self, call: Call, look: Inspection, frame: FrameType | None) -> None:
        """Give GS602 to a call that will mark a parameter again."""
        reducers, above = self._met(), call.parent
        before, self._last = self._last, call.number
        is_passed = call.number > before + 1 or self._watch.passes
        is_like = not (self._watch.passes or self._watch.history.has_new_shape(before))
        running = self._running[call.number] = {each: each.reached(look) for each in reducers}
        if reducers and above is not None and (node := current_node()) is not None:
            node_mark = mark_of(node)
            self._made[call.number] = None if node_mark is None else site_of(node_mark.place)
        for each, own in running.items():
            if is_passed:
                each.finish()
                each.is_known = above is None and (each.is_dynamic or (each.is_whole and is_like))
            if above is not None:
                each.mark(self._running.get(above.number, {}).get(each, ()), above.record)
            elif not each.marked:
                each.seek_unused(look)
            again = own & (each.marked.keys() | each.unused)
            if again and each.is_told and not call.findings:
                facts = self._twice(each, again, each.marked.get(min(again)), call.record)
                calls = any(is_reentrant(node) for node in look.nodes)
                call.findings = [gs602.finding(facts._replace(is_likely=calls))]
                self._say(call)

    def _say(self, call: Call | None) -> None:
        """Note that the error of a call was explained, which the calls around it raise as well."""
        while call is not None:
            self._said.add(call.number)
            call = call.parent

    def _twice(
        self, of: _Reducer, which: set[int], first: BackwardCall | None, call: BackwardCall
    ) -> gs602.MarkedTwice:
        numbers = {each.number for each in (first, call) if each is not None}
        made = [self._made[number] for number in sorted(numbers & self._made.keys())]
        return gs602.MarkedTwice(
            call,
            of.named(which),
            of.named(which, others=True),
            first,
            checkpoints=tuple(dict.fromkeys(filter(None, made))),
            none_yet=of.named(of.missing - which),
            is_unused=bool(of.unused & which),
            is_nested=bool(made),
            rank=rank_of_process(),
        )

    def after_call(self, call: Call, frame: FrameType | None) -> Iterator[Finding]:
        """Note what a call has marked; explain GS602 where it was not announced."""
        is_outermost, record = call.parent is None, call.record
        for each, own in self._running.pop(call.number, {}).items():
            listens = each.mark(own, record)
            if record.exception is not None:
                each.is_known = False
                continue
            if listens:  # a time may by chance be the same as in the iteration before
                each.marked |= dict.fromkeys(own - each.marked.keys(), record)
            if each.is_static:  # it marks the others too, at the first hook or after the call
                each.needed |= own
                each.mark(each.needed, record)
            is_over = bool(each.marked) and not each.missing and (listens or is_outermost)
            if is_over or (is_outermost and each.is_dynamic):
                each.is_known |= own >= each.needed or each.is_dynamic
                each.finished_at = self._watch.generations.newest
                each.finish()
            elif call.parent is None:
                each.is_whole &= not each.marked
            elif each.is_told:  # of what this call was the first to mark
                outer = self._running.get(call.parent.number, {}).get(each, set())
                if again := {i for i in own & outer if each.marked.get(i) is record}:
                    facts = self._twice(each, again, record, call.parent.record)
                    yield gs602.finding(facts._replace(is_likely=True))
                    self._say(call.parent)
        error = record.exception or ""
        if gs602.ERROR in error:
            if call.number not in self._said:
                self._watch.names.learn_variables(user_frames(frame))
                which = {gs602.index_in(error)}
                of = [each for each in self._met() if which & {*each.index.values()}]
                facts = gs602.MarkedTwice(record, is_nested=not is_outermost)
                if len(of) == 1:
                    first = of[0].marked.get(min(which))
                    facts = self._twice(of[0], which, first, record)._replace(none_yet=())
                yield gs602.finding(facts._replace(is_raised=True))
            self._say(call)
        if is_outermost:
            self._made.clear()
            self.is_open = any(each.is_open for each in self._reducers.values())

    # between calls

    def after_step(
        self, optimizer: Any, place: Place | None, frame: FrameType | None
    ) -> Iterator[Finding]:
        """Announce GS603 of what this optimizer steps."""
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        is_told = self._last == self._watch.calls and not self._watch.running
        for each in self._reducers.values() if is_told else ():
            if each.is_open and held & each.index.keys():
                facts = self._unfinished(each, each.missing)
                self._told[facts.names] = step = site_of(place)
                yield gs603.finding(facts._replace(step=step))

    def _unfinished(self, of: _Reducer, missing: Collection[int]) -> gs603.Unfinished:
        there = enumerate(_reduced(of.module(), len(of.names)))
        frozen = {i for i, (parameter, _) in there if not requires_grad(parameter)}
        return gs603.Unfinished(
            of.named(missing),
            of.named(missing, others=True),
            frozen=of.named({i for i in missing if i in frozen}),
            calls=tuple(firsts(of.marked.values(), lambda call: call.number).values()),
            after=self._watch.calls,
            is_static=of.is_static,
            is_dynamic=of.is_dynamic,
            rank=rank_of_process(),
        )

    def explained(self, error: BaseException) -> Finding:
        """Return GS603 for the error that a forward has raised, and that has ended the program."""
        missing, way = gs603.indices_in(str(error)), way_of(error)
        selves = {id(dict(local_variables(frame)).get("self")) for frame, _ in way}
        site = next((place.site for _, place in way if owner_of(place.code) == USER), None)
        self._watch.names.learn_variables(user_frames(way[0][0]))
        of = next((each for each in self._met() if id(each.module()) in selves), None)
        unknown = gs603.Unfinished(tuple(f"parameter {i}" for i in missing))
        facts = unknown if of is None else self._unfinished(of, missing)
        return gs603.finding(facts._replace(raised=site, step=self._told.get(facts.names)))


def _reduced(module: Any, count: int) -> list[tuple[Tensor, str]]:
    """Return the parameters that the reducer of a module knows by their index, with their names in
    it; none where they are not so many, as other ones were frozen when it was made.
    """
    found = {
        id(parameter): (parameter, f"{path}.{name}".removeprefix("."))
        for path, inner in Module.named_modules(module.module)
        for name, parameter in inner._parameters.items()
        if parameter is not None and f"{path}.{name}" not in module.parameters_to_ignore
    }
    trained = [pair for pair in found.values() if requires_grad(pair[0])]
    return next((each for each in (trained, [*found.values()]) if len(each) == count), [])
