"""Watches in progress: the one set of hooks that they share, and what each has seen."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from time import monotonic, perf_counter
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

import torch

from gradscope.code.bytecode import forget_flows
from gradscope.collect import facts
from gradscope.collect.backward import Backward, came_out_of_a_call
from gradscope.collect.calls import Call
from gradscope.collect.facts import Part
from gradscope.collect.inspector import Looker
from gradscope.collect.notes import Notes, came_by_signal, take
from gradscope.collect.observers import Observer
from gradscope.collect.saving import read_saved_tensors, register_hooks, unpack
from gradscope.collect.slots import begin_watch, foreign
from gradscope.collect.state import Overhead, State
from gradscope.detect import crossing, failing, hazards
from gradscope.detect.call_arguments import Materialized
from gradscope.detect.checkpoint_mismatch import Recomputings
from gradscope.detect.foresight import Foresight, FreedWatch
from gradscope.detect.growth import Growth
from gradscope.detect.inplace import InPlace
from gradscope.detect.line_watch import LineWatch
from gradscope.detect.reducers import Reducers
from gradscope.detect.untrained import Trained
from gradscope.detect.unused import UnusedGraphs, Waste
from gradscope.errors import FreedGraphError, StaleSavedTensorError, StopRun
from gradscope.formatting import counted
from gradscope.hooks import (
    DefaultHookFunctions,
    Handle,
    hide_references,
    on_new,
    on_optimizer_step,
    on_sent_tensors,
    on_unraisable,
    replace_register_hooks,
    replace_saved_tensors_of_functions,
    replace_unpack,
    wrap_engine,
    wrap_unpack_hooks,
)
from gradscope.model import (
    BackwardCall,
    Certainty,
    Failure,
    Finding,
    Findings,
    Graph,
    Outcome,
    Recording,
    Sample,
    Severity,
    Site,
    Summary,
)
from gradscope.program.ahead.frames import forget_wholes
from gradscope.program.sites import forget_codes, place_in, site_of, user_frame
from gradscope.program.tensors import TensorRef, is_held_leaf
from gradscope.program.undisturbed import Uncollected, Untraced, unprofiled
from gradscope.program.variables import turn_off
from gradscope.record.loggers import EVERY, FIGURES, Sink
from gradscope.record.writer import Further, RecordingWriter, begun
from gradscope.render.wording import whole_message
from gradscope.rules import gs603, gs604
from gradscope.rules.settings import Suppressor
from gradscope.torch_private import (
    SAVED_TENSORS_ARE_READABLE,
    DisableTorchFunction,
    device_peaks,
    has_default_hooks,
    hide_package_from_compiler,
    is_compiling,
    rank_of_process,
)

if TYPE_CHECKING:
    from gradscope.render.pictures import DrawOptions
    from gradscope.render.pictures.draw import Drawing


T = TypeVar("T")

_MOST_TEXTS = 100
_MOST_REFUSED = 16  # tensors that cannot be sent, of which it is said what holds them
_MOST_BEGUN = 16
_MOST_REASONS = 20
_LOOK_AT_STEP = "looking at an optimizer's step failed in gradscope"


class Session:
    """The hooks of the process: put in by the first watch and taken out by the last.

    ``off`` are the parts that cannot work here.
    """

    def __init__(
        self, notes: Notes, hooks: bool, budget: float | None, off: frozenset[Part]
    ) -> None:
        hooks = hooks and Part.HOOKS not in off
        self.scopes: list[Scope] = []
        self.sees_steps = not {Part.STEPS, Part.WATCH} & off
        self.process = os.getpid()
        allowed = None if budget is None else Overhead(budget)
        self.state = state = State(self.report, notes, hooked=hooks, budget=allowed)
        state.looks = Part.LOOKS not in off
        self.looker = Looker(state)
        self._backward = Backward(state, self.looker, hazards, self)
        self._counted_step: tuple[int, int] | None = None
        """An optimizer whose step is only counted, by identity, and the last call before it."""
        self.books, self.steady = self._backward.books, self._backward.steady
        self._lines = lines = LineWatch(state)
        later = FreedWatch(state, lines)
        self._survived = hazards.Survived(self._explained_memory)
        foresight = (lines, Foresight(state, later), later, InPlace(state, lines))
        self._reducers = Reducers(state)
        others = Materialized(state), Recomputings(state), self._reducers
        state.observers.add(*foresight, self._survived, *others)
        self._refused = 0
        self._begun = lru_cache(_MOST_TEXTS)(lambda word, place: begun(word, site_of(place)))
        self._handles = Handle()
        try:
            self._install(hooks, off)
        except BaseException:
            self._handles.close()
            raise

    @classmethod
    def begin(cls, hooks: bool, budget: float | None = None) -> Session:
        """Return a session with all the parts that work here, and note those that do not.

        Nothing that fails in ours becomes the program's failure: without hooks then, or idle.
        """
        failing = facts.failing()
        off = facts.parts_off(failing)
        notes = Notes()
        if failing:
            notes.add(facts.note(failing))
        if Part.VARIABLES in off:
            turn_off()
        for less in (frozenset[Part](), {Part.HOOKS, Part.LINES}, {Part.WATCH}):
            begin = partial(cls, notes, hooks, budget, off | less)
            session = notes.attempt("installing hooks failed in gradscope", begin, None)
            if session is not None:
                return session
        raise AssertionError("a session without any part cannot fail")

    def _install(self, hooks: bool, off: frozenset[Part]) -> None:
        if Part.WATCH in off:
            return
        install = self._handles.add
        hide_package_from_compiler(__name__.partition(".")[0])
        under_hooks = False
        if not SAVED_TENSORS_ARE_READABLE and Part.HOOKS not in off:
            theirs = DefaultHookFunctions.now()
            under_hooks = has_default_hooks(theirs.disable, theirs.enable)
        if hooks:
            saving, notes = self.state.saving, self.state.notes
            read = partial(read_saved_tensors, notes=notes)
            install(replace_saved_tensors_of_functions(read))
            install(replace_register_hooks(self._register_hooks))
            install(replace_unpack(lambda original, saved: unpack(original, saving, saved)))
            install(self.state.hooks.install())
            if Part.LINES not in off:
                install(self._lines.install())
        elif not SAVED_TENSORS_ARE_READABLE:  # a look must not run hooks of the program's
            install(wrap_unpack_hooks(foreign))
        install(Handle(begin_watch(under_hooks)))
        install(hide_references(TensorRef))
        install(on_unraisable(take))
        install(wrap_engine(self._backward.run))
        if self.state.looks:
            install(on_new(torch.cuda.OutOfMemoryError, self._survived.made))
            install(on_sent_tensors(self._sending))
        if Part.STEPS not in off:
            install(on_optimizer_step(self._before_step, self._after_step))

    def _sending(self, tensor: torch.Tensor) -> None:
        """Announce that torch will refuse to send a tensor to another process."""
        if is_held_leaf(tensor) or self._refused >= _MOST_REFUSED:
            return
        finding = self._explaining(partial(crossing.sent, tensor, self.state, self.looker))
        if finding is not None:
            self._refused += 1
            self.report(finding)

    def _register_hooks(self, *args: Any) -> None:
        # What the program's own hooks hold cannot be read without running them.
        self.state.lifting.block()
        register_hooks(*args)

    def enter(self, scope: Scope) -> None:
        """Let one more watch see for itself: what grows and what is wasted while it lasts."""
        self.steady.settle()
        observers = self.state.observers
        observers.tell(Observer.begin_anew)
        self.state.recognizer.begin_anew()
        if self.state.generations.is_own:
            self.state.lifting.leave()  # it is shown all of its own beginning
        growth = Growth(self.state)
        unused = UnusedGraphs(self.state, growth, scope.trained)
        scope.leaks = growth, unused, Waste(self.state, growth)
        observers.add(
            *scope.leaks, scope.trained, report=lambda finding: unprofiled(scope.report)(finding)
        )
        self.scopes.append(scope)
        self._ask_scopes()
        self.books.regroup()  # no row has calls of before

    def leave(self, scope: Scope) -> None:
        """Tell what only the end of a watch shows; the last one takes every hook out."""
        self.steady.settle()
        observers = self.state.observers
        observers.end(*scope.leaks, scope.trained)
        if self.scopes == [scope]:
            observers.tell(Observer.at_end)
        scope.trained.let_go()
        self.scopes.remove(scope)
        self._ask_scopes()
        self.books.regroup()
        if not self.scopes:
            self.close()

    def _ask_scopes(self) -> None:
        """Note what the watches in progress need."""
        self.steady.counting.is_allowed = not any(each.needs_each_call for each in self.scopes)
        self.books.has_file = any(each.writer.has_file for each in self.scopes)

    def close(self) -> None:
        """Take every hook out."""
        self.state.active = False
        self.state.lifting.sites.clear()
        self._handles.close()
        self.state.saving.leave_late = self.state.hooks.sweep
        self.state.restore_stack()
        self.state.names.let_go()
        forget_codes()
        forget_flows()
        forget_wholes()

    def _is_idle(self) -> bool:
        """Return whether no graph is alive that a step could change."""
        state, lifting = self.state, self.state.lifting
        if not state.hooked or state.ledger.live_tensors or lifting.leaves or lifting.pending:
            return False
        return not (lifting.on and state.generations.has_built)

    def _before_step(self, optimizer: Any) -> None:
        state, self._counted_step = self.state, None
        is_steady = state.lifting.sites and len(self.scopes) == 1 and not self._reducers.is_open
        if is_steady and self._is_idle() and self.scopes[0].trained.passes(optimizer):
            # In a steady loop most steps are only counted.
            state.generations.stepped()
            self._counted_step = id(optimizer), state.calls
            return

        def look() -> None:
            for scope in self.scopes:
                scope.trained.stepping(optimizer)
            self.state.mutations.before_step(optimizer, looks=not self._is_idle())

        if not self._is_passed():
            began = perf_counter()
            self.state.notes.attempt(_LOOK_AT_STEP, look, None)
            self.state.cost.add(self.state.calls, began)

    def _is_passed(self) -> bool:
        """Return whether a step is not to be looked at: a compiled one has no Python to call."""
        budget = self.state.budget
        return (budget is not None and budget.rests) or is_compiling()

    def _after_step(self, optimizer: Any) -> None:
        self.state.steps += 1
        begun, self._counted_step = self._counted_step, None
        if begun == (id(optimizer), self.state.calls):
            return
        if self._is_passed():
            return

        def look() -> None:
            for scope in self.scopes:
                scope.trained.stepped(optimizer)
            if self._is_idle() and not self._reducers.is_open:
                return
            frame = user_frame(sys._getframe(1))
            place = None if frame is None else place_in(frame)
            self.state.mutations.after_step(optimizer, place)
            self.state.observers.tell(Observer.after_step, optimizer, place, frame)

        began = perf_counter()
        self.state.generations.stepped()
        self.state.notes.attempt(_LOOK_AT_STEP, look, None)
        self.state.cost.add(self.state.calls, began)

    # what the choke point writes goes to every watch in progress

    def graph(self, signature: Any, graph: Graph, site: Site | None) -> None:
        """Write a graph that a call at ``site`` met."""
        for scope in self.scopes:
            scope.writer.graph(signature, graph, site)

    def number(self, signature: Any, site: Site | None) -> int | None:
        """Return the number that the outermost watch gave to the graph of this signature."""
        return self.scopes[0].writer.known(signature, site)

    def begun(self) -> str:
        """Return what is noted of the calls that have not ended; of many, of the innermost. Guarded
        ones are left out, as nothing is noted when they end.
        """
        last = [call for call in self.state.running if not call.guarded][-_MOST_BEGUN:]
        return ",".join(f"[{c.number},{self._begun(c.word, c.place)}]" for c in last)

    def begins(self) -> None:
        """Note that a backward call begins."""
        for scope in self.scopes:
            scope.writer.begin()

    def call(self, call: BackwardCall, signature: Any) -> list[Further]:
        """Write a backward call that has ended; return what adds others like it."""
        rows = []
        for scope in self.scopes:
            number = scope.writer.known(signature, call.site) or None
            own = call if number == call.graph else replace(call, graph=number)
            rows.append(scope.writer.call(own))
            scope.note_rank()
        return [row for row in rows if row is not None]

    def sample(self, sample: Sample) -> None:
        """Write a point of the memory curve."""
        for scope in self.scopes:
            scope.writer.sample(sample)

    def report(self, finding: Finding) -> None:
        """Announce a finding."""
        if finding.certainty is Certainty.PREDICTED:
            self.state.foretold.append(finding)
        for scope in self.scopes:
            unprofiled(scope.report)(finding)

    def refusal(self, finding: Finding) -> BaseException | None:
        """Return the exception to raise in the engine's place, where a watch asked for that."""
        return next(filter(None, (scope.refusal(finding) for scope in self.scopes)), None)

    def called(self, call: Call) -> None:
        """Hand a backward call that has ended to every watch."""
        for scope in tuple(self.scopes):
            scope.called(call)

    def explained(self, error: BaseException) -> Finding | None:
        """Return what is known of an exception that ended the program outside of a backward call,
        or for want of memory.
        """
        if self.state.looks and (ran_out := hazards.out_of_memory(error)) is not None:
            self._survived.ended_it()
            return self._explained_memory(ran_out)
        if came_out_of_a_call(error):
            return None
        if gs603.ERROR in str(error):
            return self._explaining(lambda: self._reducers.explained(error))
        copied = partial(crossing.copied, error, self.state, self.looker)
        found = self._explaining(copied) if self.state.looks else None
        return found or hazards.explain_read(error, self.state.calls)

    def failure(self, error: BaseException) -> Failure | None:
        """Return what is known of an exception that ended the program, and that is no finding."""
        is_announced = self._refused and gs604.REFUSES_TO_SEND in str(error)
        if is_announced or not self.state.looks:
            return None
        return self._explaining(partial(failing.failure, error, self.state, self.looker))

    def _explaining(self, explain: Callable[[], T | None]) -> T | None:
        """Return what is known of an error of the program's; that nothing is, where ours fails."""
        what = "explaining an error failed in gradscope"
        with DisableTorchFunction(), Untraced(), Uncollected():
            return self.state.notes.attempt(what, unprofiled(explain), None)

    def _explained_memory(
        self, error: BaseException, raising: FrameType | None = None
    ) -> Finding | None:
        def explain() -> Finding:
            self.steady.settle()
            _, unused, waste = self.scopes[0].leaks
            return hazards.explain_memory(error, unused, waste, raising)

        return self._explaining(explain)

    def summary(self) -> Summary:
        """Return the totals so far."""
        self.steady.settle()
        ledger, census = self.state.ledger, self.state.census
        built = self.state.nodes_built  # which takes note of the last of them
        passed = () if self.state.budget is None else self.state.budget.notes
        is_unseen = self.state.lifting.on and not passed  # else a note tells
        uncounted = self.state.generations.built_since if is_unseen else 0
        met = census.alive + census.destroyed - census.before
        return Summary(
            backward_calls=self.state.calls,
            nodes=max(built, met),
            nodes_destroyed=census.destroyed,
            nodes_unmet=max(0, built - met),
            nodes_before=census.before,
            **self.state.totals,
            live_bytes=ledger.live_bytes + census.kept_bytes,
            exact=not (ledger.estimated_calls or uncounted or passed),
            estimated_calls=ledger.estimated_calls,
            peak_saved_bytes=self.state.peak_bytes,
            left_out=len(self.state.left_out),
            uncounted_nodes=uncounted,
            cost=self.state.cost.share,
            unread=dict(self.state.unread.most_common(_MOST_REASONS)),
            notes=(*self.state.notes, *passed, *device_peaks()),
        )


_ERRORS: dict[str, type[RuntimeError]] = {"GS101": FreedGraphError, "GS201": StaleSavedTensorError}


class Asked(NamedTuple):
    """What the user has asked of a watch; without a ``suppressor`` every finding counts."""

    raise_on: Severity | None = None
    stop_after: int | None = None
    on_finding: Callable[[Finding], None] | None = None
    on_call: Callable[[BackwardCall], None] | None = None
    suppressor: Suppressor | None = None
    sinks: tuple[Sink, ...] = ()


class Scope:
    """One watch in progress, and what it has seen."""

    def __init__(self, writer: RecordingWriter, asked: Asked) -> None:
        self.writer = writer
        self._asked = asked
        self._findings = Findings()
        self.outcome: Outcome | None = None
        """How the program ended, once that is known; the watch ends with its ``with`` block."""
        self.leaks: tuple[Growth, UnusedGraphs, Waste]
        """What looks for leaks in the time of this watch, and reports to no other."""
        self.trained: Trained
        """What follows the parameters that get gradients, in the same way."""
        self._session: Session | None = None
        self._first_call = 0
        self.is_stopped = False
        self._tells = bool(asked.on_call or asked.sinks)
        self.needs_each_call = self._tells or bool(asked.stop_after or asked.raise_on)
        self._sinks, self._handed_on, self._retained = dict.fromkeys(asked.sinks), 0.0, 0

    def join(self, session: Session) -> None:
        """Begin to take what a session of watches sees."""
        self._session = session
        self.trained = Trained(session.state, sees_steps=session.sees_steps)
        self.writer.follow(
            lambda: self.with_predictions(session.summary(), is_over=False), session.begun
        )
        self.writer.amend(clock=session.state.clock)
        self._first_call = session.state.calls

    def leave(self) -> None:
        """Take no more; what was seen stays."""
        self._session = None

    @property
    def summary(self) -> Summary:
        """The totals so far: nodes built and destroyed, tensors saved, freed and dropped, bytes
        held.
        """
        if self._session is None:
            return self.recording().summary
        return self.with_predictions(self._session.summary())

    def __str__(self) -> str:
        """Return the report, as ``gradscope run`` prints it."""
        return str(self._so_far())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return self._so_far()._repr_mimebundle_()

    def _so_far(self) -> Recording:
        """Return what was seen, as a run that is at its end."""
        recording = self.recording()
        is_over = self._session is None
        return recording if is_over else replace(recording, outcome=Outcome(finished=True))

    def recording(self) -> Recording:
        """Return all that was seen so far, as plain data."""
        if self._session is not None:
            self._session.steady.settle()
        recording, suppressor = self.writer.read(), self._asked.suppressor
        return recording if suppressor is None else suppressor.of_findings(recording)

    def draw(
        self,
        file: str | os.PathLike[str] | None = None,
        call: int | None = None,
        **options: Unpack[DrawOptions],
    ) -> Drawing:
        """Draw the graph that backward call ``call`` met, with those of earlier calls that share
        nodes with it.

        Without ``call`` it is the one of the gravest finding, or else the last. The options are
        those of :func:`gradscope.draw`.
        """
        # Drawing is loaded only when something is drawn.
        from gradscope.render.pictures import Options  # noqa: PLC0415
        from gradscope.render.pictures.draw import draw_recording  # noqa: PLC0415

        return draw_recording(self.recording(), file, Options(**options), call=call)

    def look_back(self, main: ModuleType) -> None:
        """Look at what a program whose code has run leaves in the variables of its main module."""
        if self._session is not None and self._session.process == os.getpid():
            self._session.steady.settle()
            self._session.state.observers.tell(Observer.after_program, main)

    def explain(self, error: BaseException) -> Failure | None:
        """Announce what is known of an exception that ends the program or the watch; return it
        where that is no finding.
        """
        if self._session is None:
            return None
        if (finding := self._session.explained(error)) is not None:
            unprofiled(self.report)(finding)
            return None
        failure = self._session.failure(error)
        if failure is not None:
            for site in filter(None, (failure.site, *(one.site for one in failure.related))):
                self.writer.source(site.file)
        return failure

    @property
    def findings(self) -> Findings:
        """What was found so far, each cause once, in the order in which it was met."""
        return self._findings

    def report(self, finding: Finding) -> None:
        """Take a finding; call ``on_finding`` the first time that its cause is met, unless it is
        suppressed.

        One of a known cause only raises the count of the first; with a count of 0 it brings the
        figures of that one up to date.
        """
        place = next((i for i, f in enumerate(self._findings) if f.cause == finding.cause), None)
        if place is not None:
            known = self._findings[place]
            newest = replace(known if finding.count else finding, suppression=known.suppression)
            self._set(place, replace(newest, count=known.count + finding.count))
        elif finding.count:  # without one it was said before this watch began
            judged = self._judged(finding)
            self._findings.append(judged)
            self._set(-1, judged)
            for number, earlier in enumerate(self._findings):
                if earlier.is_fulfilled_by(finding):
                    self._set(number, replace(earlier, came_true=True))
            if self._asked.on_finding is not None and judged.suppression is None:
                self._asked.on_finding(judged)

    def _set(self, place: int, finding: Finding) -> None:
        """Write a finding as it is now; the recording has it unjudged, as its readers judge it."""
        self._findings[place] = finding
        edits = (edit for fix in finding.fixes for edit in fix.edits)
        for named in (finding.site, *(one.site for one in finding.related), *edits):
            if named is not None:
                self.writer.source(named.file)
        self.writer.finding(replace(finding, suppression=None))

    def _judged(self, finding: Finding) -> Finding:
        """Return the finding with the reason for which it does not count, if there is one."""
        suppressor, session = self._asked.suppressor, self._session
        if suppressor is None or session is None:
            return finding
        what = "judging a finding failed in gradscope, so it counts"
        return session.state.notes.attempt(what, lambda: suppressor.judged(finding), finding)

    def withdraw(self) -> None:
        """Withdraw what was predicted and did not come, if the program has run to its end."""
        if self.outcome is None or self.is_stopped:
            return
        raised = (self.outcome.exception or "").partition(":")[0]
        if raised == "KeyboardInterrupt":
            return
        reason = f"the program ended{f' with {raised}' if raised else ''} before that backward call"
        for number, finding in enumerate(self._findings):
            if finding.predicts_error and not finding.came_true:
                self._set(number, replace(finding, withdrawn=reason))

    def with_predictions(self, summary: Summary, *, is_over: bool = True) -> Summary:
        """Return the totals with what became of the predictions, and why the program stopped."""
        predicted = [finding for finding in self._findings if finding.predicts_error]
        came_true = sum(finding.came_true for finding in predicted)
        made = counted(self._asked.stop_after or 0, "backward call")
        stopped = f"the program was stopped after {made}, as --stop-after asked"
        notes = (*summary.notes, *([stopped] if self.is_stopped else []))
        training = self.trained.told or self.trained.summary()
        if is_over and training.table is None:  # it takes too long to be brought up to date
            training = replace(training, table=self.trained.table())
        summary = replace(summary, training=training, notes=notes)
        return replace(summary, predicted=len(predicted), came_true=came_true)

    def refusal(self, finding: Finding) -> BaseException | None:
        """Return the exception to raise in the engine's place, where the user asked for that."""
        lowest = self._asked.raise_on
        if lowest is None or finding.certainty is not Certainty.CERTAIN:
            return None
        if finding.severity.rank > lowest.rank or self._judged(finding).suppression:
            return None
        return _ERRORS.get(finding.code, RuntimeError)(f"[{finding.code}] {whole_message(finding)}")

    def note_rank(self) -> None:
        """Note in the recording which rank the process has, once it has one."""
        if self.writer.header.rank is None and (ranked := rank_of_process()) is not None:
            rank, ranks = ranked
            self.writer.amend(rank=rank, ranks=ranks)

    def called(self, call: Call) -> None:
        """Take note of a backward call that has ended."""
        if self._tells:
            self._tell(call.record)
        most = self._asked.stop_after
        if most is None or not call.completed or call.number - self._first_call < most:
            return
        self.is_stopped = True
        raise StopRun

    def _tell(self, call: BackwardCall) -> None:
        self._retained = call.retained_bytes
        if self._asked.on_call is not None:
            self._asked.on_call(call)
        if monotonic() - self._handed_on >= EVERY:
            self.hand_on()

    def hand_on(self) -> None:
        """Hand figures on; a tool that fails is told of in a note, and gets no more."""
        session = self._session
        if session is None or self.writer.is_idle or not session.state.calls:
            return
        self._handed_on = monotonic()
        for sink in tuple(self._sinks):
            try:
                with Untraced(), Uncollected():
                    sink(self._figures(), session.state.calls)
            except Exception as failure:
                if came_by_signal(failure):
                    raise
                self._sinks.pop(sink, None)  # as another thread may have done
                why = f"{type(failure).__name__}: {failure}"
                session.state.notes.add(f"logging failed, and is not tried again ({why})")
        self._handed_on = monotonic()

    def _figures(self) -> dict[str, int]:
        total = self.summary
        found = sum(finding.counts for finding in self._findings)
        alive = total.nodes_alive + total.nodes_unmet
        figures = (total.backward_calls, found, total.live_bytes, alive, self._retained)
        return dict(zip(FIGURES, figures, strict=True))
