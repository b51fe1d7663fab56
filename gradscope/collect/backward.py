"""Intercepts every backward call: inspects its graph before the engine runs, and records the call
afterwards.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from traceback import walk_tb
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch
from torch.autograd.graph import Node

from gradscope.collect.calls import Call, CallPattern, EngineCall, Guarded, Shape, Shapes
from gradscope.collect.generations import name_of_thread
from gradscope.collect.inspection import Inspection
from gradscope.collect.inspector import Inspector
from gradscope.collect.notes import postponed, raise_postponed, raised_by_program
from gradscope.collect.observers import Observer
from gradscope.collect.saved_bytes import LOOKS
from gradscope.collect.saving import Saving
from gradscope.collect.slots import ADOPTED, READ_THROUGH
from gradscope.collect.snapshot import Snapshots
from gradscope.collect.state import Overhead, State
from gradscope.collect.steady import MANY_NODES, READ_EACH, GuardedQueue
from gradscope.collect.walk import root_node, torch_number
from gradscope.hooks import erase
from gradscope.model import BackwardCall, Finding, Graph, Related, Root, Sample, Site
from gradscope.program.names import Names, names_in
from gradscope.program.sites import (
    ENTRANCE,
    Place,
    is_driven,
    override_below,
    place_in,
    site_of,
    user_frame,
)
from gradscope.program.tensors import describe, grad_of, held_node, leaves_of
from gradscope.program.undisturbed import Allowance, GCPaused, unprofiled, unseen
from gradscope.record.writer import AT_ONCE, Further
from gradscope.torch_private import (
    ENGINE_CALL,
    DisableTorchFunction,
    hidden_from_compiler,
    is_compiling,
    itself_hidden_from_compiler,
    next_sequence_nr,
)

# Seconds between points of the memory curve. A recording has at most 4,000 points, so those of a
# run of a minute are joined already; more would only cost time in each call.
_SAMPLE_EVERY = 0.01
# Kinds of guarded calls whose rows are remembered. When there are more, all are forgotten, and
# each row is looked up again when a call of its kind comes.
_MOST_ROWS = 64
_PASSED = "this call was not inspected because the budget was spent"
_COUNTED = f"of calls that are alike, one in {READ_EACH} is read"
_LEAST = 0.02  # seconds of a budget that is left: about as much as reading the code ahead takes


_CALLS = torch.autograd.backward.__code__, torch.autograd.grad.__code__


def came_out_of_a_call(error: BaseException) -> bool:
    """Return whether an error has come out of a backward call to where it is now, be it in another
    thread: that call has explained it. One that refused its arguments has not.
    """
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    first = next((i for i, code in enumerate(codes) if code in _CALLS), len(codes))
    return ENGINE_CALL in codes[first:]


class Evidence(NamedTuple):
    """One backward call: the inspection of its graph, and the graph's snapshot if there is one.

    It holds nodes and tensors, so it must not outlive the judgement.
    """

    state: State
    call: Call
    look: Inspection
    graph: Graph | None


class Judge(Protocol):
    """Finds what is certain of a call. ``gradscope.detect.hazards`` is one."""

    def examine(self, evidence: Evidence) -> list[Finding]:
        """Return the finding for what the engine will raise, if it will."""

    def missed(
        self, error: BaseException, call: Call, look_again: Callable[[], Evidence]
    ) -> Finding | None:
        """Return a finding where the engine raised what was not announced before the call."""


class Sink(Protocol):
    """Takes what a watch records."""

    def number(self, signature: Any, site: Site | None) -> int | None:
        """Return the number of the graph written for this signature."""

    def graph(self, signature: Any, graph: Graph, site: Site | None) -> None:
        """Write a graph that a call at ``site`` met, once."""

    def begins(self) -> None:
        """Note that a call begins, which may never end."""

    def call(self, call: BackwardCall, signature: Any) -> Sequence[Further]:
        """Write a backward call that has ended; return what adds others like it."""

    def sample(self, sample: Sample) -> None:
        """Write a point of the memory curve."""

    def report(self, finding: Finding) -> None:
        """Announce a finding."""

    def refusal(self, finding: Finding) -> BaseException | None:
        """Return the exception to raise in the engine's place, if there is to be one."""

    def called(self, call: Call) -> None:
        """Take note of a call that has ended; may raise, to end the program."""


class CallRecorder:
    """Records what calls found, freed and kept, and from time to time the memory that is held."""

    def __init__(self, state: State, sink: Sink) -> None:
        self._state = state
        self._sink = sink
        self._rows: dict[Shape | CallPattern, Sequence[Further]] = {}
        self._sampled, self.has_file = -1.0, True
        self._built_before = self._destroyed_before = 0

    def call(self, call: Call, error: BaseException | None) -> BackwardCall:
        """Complete the record of a call that has ended, and write it."""
        call.ended = self._state.elapsed()
        exception = None if error is None else f"{type(error).__name__}: {error}"
        known = {} if call.guarded else self._figures(call)
        call.record = record = replace(call.record, exception=exception, **known)
        self.count_from_here()
        self._peak()
        self._sample(call, alike=call.guarded)
        self._sink.call(record, call.shape.number)
        return record

    def guarded(self, calls: Sequence[Guarded]) -> None:
        """Write guarded calls in the rows of those like them."""
        ledger, groups = self._state.ledger, dict[Any, list[Guarded]]()
        for call in calls:
            group = call.pattern, call.shape, call.of_new_shape, call.extra
            groups.setdefault(group, []).append(call)
        if len(self._rows) > _MOST_ROWS:
            self.regroup()
        for alike in groups.values():
            first, key = alike[0], _key(alike[0])
            tensors, nbytes = map(sum, zip(*(call.size for call in alike), strict=True))
            first.pattern.unseen.of(first.extra).add((tensors, nbytes), calls=len(alike))
            if key not in self._rows:
                self._rows[key] = self._sink.call(first.record, first.shape.number)
                del alike[0]
            for add in self._rows[key] if alike else ():
                add([call.number for call in alike], alike[-1].ended)
        ledger.estimated_calls += len(calls)
        self._peak()
        self._sample(calls[-1], alike=True)

    def may_wait(self, call: Call) -> bool:
        """Return whether a guarded call may wait to be written: it has a row, and a file, which
        outlives the process, is not of a short run.
        """
        return _key(call) in self._rows and (self._state.guarded > AT_ONCE or not self.has_file)

    def count_from_here(self) -> None:
        """Note what there is when a call ends: the next one counts from there."""
        self._built_before = self._state.generations.built
        self._destroyed_before = self._state.census.destroyed

    def regroup(self) -> None:
        """Begin a new row with the next call of each kind."""
        self._rows.clear()

    def _figures(self, call: Call) -> dict[str, Any]:
        """Return what a watched call that has ended freed and kept."""
        state, ledger = self._state, self._state.ledger
        return {
            "ended": call.ended,
            "freed_tensors": call.freed_tensors,
            "freed_bytes": call.freed_bytes,
            "returned_bytes": call.returned_bytes,
            "retained_bytes": max(0, call.record.saved_bytes - call.freed_bytes),
            "live_bytes": ledger.live_bytes,
            "peak_bytes": ledger.peak_bytes,
            "nodes_built": state.generations.built - self._built_before,
            "nodes_destroyed": state.census.destroyed - self._destroyed_before,
        }

    def _peak(self) -> None:
        """Take it that a new iteration begins."""
        ledger = self._state.ledger
        ledger.highest_bytes = max(ledger.highest_bytes, ledger.peak_bytes)
        ledger.peak_bytes = ledger.live_bytes
        self._state.saving.looks_left = LOOKS

    def _sample(self, call: Guarded, *, alike: bool) -> None:
        """Write two points of the memory curve, from time to time."""
        if call.ended - self._sampled > _SAMPLE_EVERY:
            record, self._sampled = call.record, call.ended
            held = record.freed_bytes - record.returned_bytes
            self._sink.sample(Sample(record.started, record.peak_bytes, 0, call.number - 1, alike))
            self._sink.sample(Sample(record.ended, record.live_bytes, held, call.number, alike))


def _key(call: Guarded) -> Shape | CallPattern:
    """Return by what the row of calls like a guarded one is known."""
    return call.pattern if call.of_new_shape else call.shape


class Backward:
    """Numbers the backward calls of a watch, and records what each found, freed and kept."""

    def __init__(self, state: State, inspector: Inspector, judge: Judge, sink: Sink) -> None:
        self._state = state
        self._inspector = inspector
        self._judge = judge
        self._sink = sink
        self._root_names: dict[tuple[int, int], Sequence[str | None]] = {}
        """By the place of the call: they are the same in every iteration."""
        self._late: tuple[BaseException, int] | None = None
        """The error of a call that is looked at late, and the number of the next node when the call
        before had ended.
        """
        self._shapes = Shapes()
        self._snapshots = Snapshots(state, self._shapes)
        self.recorder = CallRecorder(state, sink)
        self.queue = GuardedQueue(state, self.recorder)

    def run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stand in for torch's ``_engine_run_backward``; leave no frame in a traceback."""
        state, counter = self._state, self.queue.counter
        call, budget, passing = None, state.budget, None
        try:
            try:
                is_counted = budget is None and bool(counter.sites) and counter.begin(args, kwargs)
            except BaseException as failure:
                counter.cancel()
                if not isinstance(failure, Exception) or raised_by_program(failure):
                    raise
                counter.sites.clear()
                is_counted = False
            if not is_counted:
                if budget is not None and state.active:
                    is_passed = budget.within or budget.before_clock or self._rests(budget)
                    passing = budget if is_passed else None
                if not state.active or (passing is None and is_compiling()):
                    return original(*args, **kwargs)
                if passing is not None:
                    passing.within += 1
                else:
                    call = unprofiled(self._prepare)(args, kwargs)
            try:
                if call is not None and call.findings:
                    self._announce(call)
                result = original(*args, **kwargs)
            except BaseException as error:
                if is_counted:
                    call = counter.cancel() or unprofiled(self._look_late)(
                        error, state.generations.newest, _COUNTED, args, kwargs
                    )
                elif passing is not None:
                    passing.end(is_own=state.generations.is_own)
                    call = unprofiled(self._look_late)(error, passing.ended, _PASSED, args, kwargs)
                if call is not None:
                    unprofiled(self._conclude)(call, error, args)
                self._sweep()
                raise_postponed()
                erase(error, _OURS)
                raise
            if is_counted:
                call = counter.end()
            if call is not None:
                unprofiled(self._conclude)(call, None, args)
            elif passing is not None:
                passing.end(is_own=state.generations.is_own)
            if not state.active:
                self._sweep()
            if postponed:
                raise_postponed()
            return result
        finally:
            # Last, as many programs drop the graph right after the call.
            while counter.allowances and state.generations.is_own:
                counter.allowances.pop().end()

    # calls that are not looked at

    @hidden_from_compiler
    def _rests(self, budget: Overhead) -> bool:
        """Return whether the budget is spent, so that the next calls are not looked at."""
        budget.rests = budget.left < 0 and not self._state.running
        if budget.rests:
            budget.rest()
            if self._state.generations.is_own:  # no other thread can put them back
                self._state.suspension.suspend()
        return budget.rests

    @hidden_from_compiler
    def _look_late(
        self,
        error: BaseException,
        built: int,
        why: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call | None:
        """Look at the graph of a call that has failed and was not looked at, and announce why: of
        calls within each other, at that of the innermost, which is where the error comes from.
        """
        self._late = error, built
        try:
            call = None if came_out_of_a_call(error) else self._prepare(args, kwargs)
        finally:
            self._late = None
        for finding in () if call is None else call.findings:
            self._sink.report(
                replace(finding, label=f"{finding.label} (found after the error: {why})")
            )
        return call

    @hidden_from_compiler
    def _sweep(self) -> None:
        if not self._state.active and self._state.hooked:
            self._state.hooks.sweep()

    @hidden_from_compiler
    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Begin a call; None if that failed, which must not become the program's failure."""
        self.queue.counter.promote()
        self.queue.gather()
        before, began, budget = self._state.calls, time.perf_counter(), self._state.budget
        try:
            new = self._begin(EngineCall.of(*args, **kwargs))
            hooked_nodes = 0 if self._state.suspension.on else new.built
            if budget is not None:
                budget.spend(began, hooked_nodes)
            self._state.cost.add(new.number, began, hooked_nodes)
            return new
        except BaseException as failure:
            call = self._state.call
            if call is not None and call.number > before:
                del self._state.running[call]
                call.end(completed=False)
            if not isinstance(failure, Exception) or raised_by_program(failure):
                raise
            self._state.notes.failed("looking at a backward call failed in gradscope", failure)
            return None

    @hidden_from_compiler
    def _announce(self, call: Call) -> None:
        """Announce what was found, and raise in the engine's place where that was asked for."""
        for finding in _with_override(call.findings):
            self._sink.report(finding)
            refusal = self._sink.refusal(finding)
            if refusal is not None:
                raise refusal

    @hidden_from_compiler
    def _conclude(self, call: Call, error: BaseException | None, args: tuple[Any, ...]) -> None:
        """Finish a call; a failure of ours in that must not become the program's."""
        began, budget = time.perf_counter(), self._state.budget
        what = "booking a backward call failed in gradscope"
        if call.guarded and error is None:
            finish = partial(self.queue.end, call)
        else:
            finish = partial(self._finish, call, error, args)
        self._state.notes.attempt(what, finish, None)
        if budget is not None:
            budget.spend(began)
        self._state.cost.add(call.number, began)
        self._sink.called(call)

    # before the engine

    def _begin(self, asked: EngineCall) -> Call:
        state = self._state
        entrance = sys._getframe(2)
        if entrance.f_code is unseen.__code__:  # it is over before the engine runs
            entrance = entrance.f_back or entrance
        frame = user_frame(entrance)
        place = None if frame is None else place_in(frame)
        if state.budget is not None:
            state.generations.pass_to(state.budget.ended)
        state.calls += 1
        call = Call(state.calls, place, asked.keep_graph)
        above = state.call if state.running else None
        call.own = state.generations.is_own if above is None else above.own
        call.steps = state.steps
        state.running[call] = None
        call.word = asked.word
        call.begin(above, entrance)
        for other in () if len(state.running) == call.depth else tuple(state.running):
            if not call.is_in(other):
                call.beside, other.beside = other, call
        if state.saving.is_shared:
            state.suspension.block()
        if not state.looks:
            self._sink.begins()
            call.record = self._record(call, asked)
            return call
        if state.calls in state.alarms.get(place, ()):
            call.woken = True
        with DisableTorchFunction():
            roots = asked.roots
            if asked.create_graph and not all(getattr(o, "is_cpu", True) for o in asked.outputs):
                state.saving.other_thread = True  # where hooks are disabled nothing else tells
            call.sequence_nr = state.generations.see() if call.own else next_sequence_nr()
            call.began = state.generations.time_at(call.sequence_nr)
            call.built = state.generations.built_since
            call.plain = call.own and (above is None or above.plain)
            call.pattern = state.recognizer.pattern_of((place, asked.kind, above is not None))
            if call.plain and above is not None:
                above.within += 1
            if not (state.suspension.on and self._guard(call, asked, roots)):
                self.queue.settle()
                self._sink.begins()
                with GCPaused():  # of the many objects of a look none is garbage
                    self._look(call, asked, roots, frame)
            del roots  # no node is held while the engine runs
        return call

    def _guard(self, call: Call, asked: EngineCall, roots: list[Node]) -> bool:
        """Begin a call on a graph that is known; put the hooks back where it is not."""
        state, suspension = self._state, self._state.suspension
        is_known = False
        if call.plain and not suspension.blocked:
            with GCPaused():  # a walk leaves no garbage, and may make enough to set it off
                is_known = state.recognizer.look(
                    call, asked, roots, guarded=suspension.theirs_entered
                )
                if is_known and len(call.numbers) >= MANY_NODES:
                    self.queue.counter.allowances.append(Allowance(2 * len(call.numbers)))
        if not is_known:
            if not call.own:
                suspension.block()
            elif not (call.plain and state.recognizer.is_mixed):
                suspension.leave()
            return False
        call.roots = (call.numbers[0], *map(torch_number, roots[1:]))
        call.started = state.elapsed()
        suspension.begin(roots[0], call.numbers, call.size if call.keep else (0, 0))
        state.guarded += 1
        return True

    def _look(
        self, call: Call, asked: EngineCall, roots: list[Node], frame: FrameType | None
    ) -> None:
        """Look at the graph of a call in full, and judge it."""
        look = self._inspector.inspect(asked, roots, call.place)
        if self._late is not None:
            look.narrow(*self._late)
        call.roots = look.numbers_of(roots)
        graph = self._book(call, asked, look, frame)
        if call.parent is not None:
            self._state.saving.recomputing.run_again()
        if look.is_wrong:
            call.findings = self._judge.examine(Evidence(self._state, call, look, graph))
        call.known = call.plain and self._state.recognizer.learn(call, look)
        budget = self._state.budget
        if budget is None or budget.left > _LEAST:
            self._state.observers.tell(Observer.before_call, call, look, frame)
        again: Call | None = None
        for i, mark in enumerate(look.marks):
            if look.will_run(i):
                other = mark.call
                if other is not None and mark.has_buffers:
                    again = other
                    if other.open:
                        call.met, other.met = other, call
                mark.call = call
        call.again = None if again is None else again.record

    def _book(
        self, call: Call, asked: EngineCall, look: Inspection, frame: FrameType | None
    ) -> Graph | None:
        """Book what a call found when it began; return the picture of its graph if there is one."""
        state = self._state
        roots = self._name_roots(asked.outputs, look, call.place, frame)
        shape = call.shape = self._shapes.meet(look.signature(call.place, asked.kind))
        site = site_of(call.place)
        graph, new = self._snapshots.of(shape, look, roots, frame)
        if new and graph is not None:
            self._sink.graph(shape.number, graph, site)
        pattern = call.pattern
        new = not (pattern.is_measured and pattern.reads.keys() >= set(look.kinds))
        call.exact = shape.returned is None and new
        call.plain = call.plain and not (look.is_wrong or look.left)
        call.fresh = look.count_fresh(state.generations.latest)
        call.unhooked = len(look.unhooked), sum(dict(look.unhooked).values())
        call.record = replace(
            self._record(call, asked),
            roots=roots,
            graph=self._sink.number(shape.number, site) or None,
            nodes=len(look.nodes),
            nodes_run=len(look.nodes) if look.runs is None else sum(look.runs),
            saved_tensors=look.tensors,
            saved_bytes=look.nbytes,
            oldest_generation=look.oldest,
            driven=frame is not None and is_driven(frame, asked.outputs),
        )
        return graph

    def _name_roots(
        self, outputs: Sequence[Any], look: Inspection, place: Place | None, frame: FrameType | None
    ) -> tuple[Root, ...]:
        """Return the roots of a call made in ``frame``, leaves left out."""
        key = (id(place), len(outputs))
        if key not in self._root_names:
            unknown: list[str | None] = [None] * len(outputs)
            self._root_names[key] = unknown if frame is None else names_in(frame, outputs)
        roots = []
        for name, output in zip(self._root_names[key], outputs, strict=True):
            node = root_node(output)
            if node is not None and node in look.index:
                label = describe(output) if isinstance(output, torch.Tensor) else ""
                roots.append(Root(look.index[node], name, label))
        return tuple(roots)

    def _record(self, call: Call, asked: EngineCall) -> BackwardCall:
        """Return what is known of a call before any look at its graph."""
        call.started = self._state.elapsed()
        return BackwardCall(
            number=call.number,
            kind=asked.word,
            site=site_of(call.place),
            retain_graph=call.keep,
            create_graph=asked.create_graph,
            inputs=tuple(_name_of_input(t, self._state.names) for t in asked.inputs) or None,
            parent=call.parent.number if call.parent else None,
            thread=name_of_thread() or (call.parent.record.thread if call.parent else ""),
            started=call.started,
        )

    # after the engine

    def _finish(self, call: Call, error: BaseException | None, args: tuple[Any, ...]) -> None:
        """Book what the call freed; say so if the engine raised what was not announced."""
        state, shape = self._state, call.shape
        state.end(call, completed=error is None)
        if call.guarded:
            self.queue.settle()
            state.suspension.after_guarded(call)
            call.pattern.unseen.of(call.extra).add(call.size)
            state.ledger.estimated_calls += 1
        elif state.looks:
            if error is None and call.own and len(state.generations.others) == 1:
                self._note_sums(EngineCall.of(*args), call.place)
            self._count(call)
        record = self.recorder.call(call, error)
        if not call.guarded and state.looks:
            shape.record = record
            last = call.number + call.within == state.calls and not call.findings
            alike = call.known and call.completed and last and not call.exact
            state.suspension.after_hooked(call, alike=alike)
        state.go_on(call)
        if error is not None and not came_out_of_a_call(error):
            missed = self._judge.missed(error, call, lambda: self._look_again(call, args))
            if missed is not None:
                self._sink.report(missed)
            is_explained = bool(call.findings or missed)
            state.failed = None if is_explained else (call.number, call.again)
        state.observers.tell(Observer.after_call, call, user_frame(sys._getframe(2)))

    def _note_sums(self, asked: EngineCall, place: Place | None) -> None:
        """Note that the engine has built what the call has left in ``.grad``: a sum saves nothing
        by which that could be told later.
        """
        if not (asked.create_graph and asked.accumulates) or asked.inputs:
            return
        with DisableTorchFunction():
            for leaf in leaves_of(self._inspector.inspect(asked, asked.roots, place).nodes):
                grad = None if leaf.is_cpu else grad_of(leaf)
                if grad is not None and (node := held_node(grad)) is not None:
                    self._state.note_other(node)

    def _look_again(self, call: Call, args: tuple[Any, ...]) -> Evidence:
        """Look at the graph of a call that has failed."""
        with DisableTorchFunction():
            asked = EngineCall.of(*args)
            look = self._inspector.inspect(asked, asked.roots, call.place)
        return Evidence(self._state, call, look, None)

    def _count(self, call: Call) -> None:
        """Count the memory that came back, and what was freed that the ledger does not know."""
        ledger, shape = self._state.ledger, call.shape
        is_share = not call.exact and shape.returned is None and call.freed_bytes
        ledger.estimated_calls += bool(call.unhooked[0] or is_share)
        if call.unhooked[0]:
            call.pattern.unseen.of(call.extra).add(call.unhooked)
        if call.exact:
            shape.returned = call.returned_bytes if call.completed else None
            if call.completed:
                call.pattern.measure(call.returned_bytes, call.freed_bytes, call.freed_tensors)
        else:  # taken from an earlier call of the same shape, or of the same kind
            returned = call.pattern.returned_by(shape, call.freed_bytes)
            ledger.returned_bytes += returned - call.returned_bytes
            call.returned_bytes = returned


def _name_of_input(tensor: Any, names: Names) -> str:
    """Return what to call one of the ``inputs`` of a call."""
    if not isinstance(tensor, torch.Tensor):
        return "GradientEdge"
    return names.of_tensor(tensor) or describe(tensor)


def _with_override(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield findings with the override that the failing call goes through, if there is one."""
    frame = sys._getframe(1)
    override = override_below(frame, user_frame(frame))
    for finding in findings:
        if override is not None:
            message = f"the call goes through `{override.f_code.co_qualname}`"
            related = Related("linked_by", place_in(override).site, message)
            finding = replace(finding, related=(*finding.related, related))
        yield finding


# One frame of ours lies between a backward call and the engine. Python's warnings do not count a
# frame of the import machinery, which they know by its file's name (Python/_warnings.c,
# is_internal_filename): so the program's stacklevel holds.
Backward.run.__code__ = Backward.run.__code__.replace(co_filename=f"{__file__}{ENTRANCE}")
itself_hidden_from_compiler(Backward.run)
hidden_from_compiler(unseen)

_WRAPPERS = Backward.run, Backward._announce, Saving.unpack
_OURS = frozenset((*(each.__code__ for each in _WRAPPERS), READ_THROUGH, ADOPTED))
