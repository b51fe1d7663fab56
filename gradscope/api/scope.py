"""Runs the watches in progress: one ``Session`` owns the hooks that they share, and each ``Scope``
has what one watch has seen.

``with gradscope.watch() as scope`` enters a scope. The first scope of the process begins the
session, which puts the hooks into torch, the engine and the optimizers; the last one to leave takes
them out. The session collects and detects once, however many watches are nested, and hands each
finding, call and graph to every scope. A scope announces each finding once (``announcements``),
calls the user's callbacks, and writes its recording.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from time import monotonic, perf_counter
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import torch

from gradscope.api.announcements import Announcements, WatchOptions
from gradscope.code.bytecode import forget_flows
from gradscope.collect import facts
from gradscope.collect.backward import Backward, came_out_of_a_call
from gradscope.collect.calls import Call
from gradscope.collect.facts import Part
from gradscope.collect.inspector import Inspector
from gradscope.collect.notes import Notes, came_by_signal, take
from gradscope.collect.observers import Observer
from gradscope.collect.saving import read_saved_tensors, register_hooks, unpack
from gradscope.collect.slots import begin_watch, foreign
from gradscope.collect.state import Overhead, State
from gradscope.detect import failing, hazards, out_of_memory
from gradscope.detect.checkpoint_mismatch import CheckpointMismatch
from gradscope.detect.foresight import Foresight, FreedWatch
from gradscope.detect.growth import Growth
from gradscope.detect.hazards import Materialized
from gradscope.detect.inplace import InPlace
from gradscope.detect.line_watch import LineWatch
from gradscope.detect.reducers import Reducers
from gradscope.detect.untrained import TrainingObserver
from gradscope.detect.unused import RetainWaste, UnusedGraphs
from gradscope.errors import StopRun
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
    Site,
    Summary,
)
from gradscope.program.ahead.frames import forget_wholes
from gradscope.program.sites import forget_codes, place_in, site_of, user_frame
from gradscope.program.tensors import TensorRef, is_held_leaf
from gradscope.program.undisturbed import GCPaused, TracePaused, unprofiled
from gradscope.program.variables import turn_off
from gradscope.record.loggers import EVERY, FIGURES
from gradscope.record.writer import Further, RecordingWriter, begun
from gradscope.rules import gs603, gs604
from gradscope.torch_private import (
    SAVED_TENSORS_ARE_READABLE,
    DisableTorchFunction,
    device_peaks,
    has_default_hooks,
    hide_package_from_compiler,
    is_compiling,
    next_sequence_nr,
    rank_of_process,
)

if TYPE_CHECKING:
    from gradscope.render.pictures import DrawOptions
    from gradscope.render.pictures.draw import Drawing


T = TypeVar("T")

# Lines with backward calls whose description for ``begun`` is kept: it is needed at each call.
_MOST_TEXTS = 100
# Tensors that cannot be sent to another process for which the variables that hold them are
# searched. A program that catches torch's error may try to send one in each iteration.
_MOST_REFUSED = 16
# Calls in progress, the innermost, that a recording notes in case the process dies in one of them.
# A checkpoint's function that checkpoints again has one call in progress for each level.
_MOST_BEGUN = 16
_MOST_REASONS = 20  # why the code ahead could not be read, in the JSON report: the most frequent


class Session:
    """The hooks of the process, and what they feed: the state, the collectors and the detectors.

    The first watch begins the session, and the last one ends it. ``off`` are the parts of gradscope
    that cannot work with this torch or Python.
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
        self.inspector = Inspector(state)
        self._backward = Backward(state, self.inspector, hazards, self)
        self._counted_step: tuple[int, int, bool] | None = None
        """An optimizer whose step is only counted, by its id; the last call before the step; and
        whether no graph was alive then.
        """
        self.recorder, self.queue = self._backward.recorder, self._backward.queue
        self._lines = lines = LineWatch(state)
        later = FreedWatch(state, lines)
        self._survived = out_of_memory.CaughtOutOfMemory(self._explained_memory)
        foresight = (lines, Foresight(state, later), later, InPlace(state, lines))
        self._reducers = Reducers(state)
        others = Materialized(state), CheckpointMismatch(state), self._reducers
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

        A failure of gradscope must not become the program's. So if hooks cannot be installed, the
        session goes without saved-tensor hooks, and if that fails too, it does nothing at all.
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
        elif not SAVED_TENSORS_ARE_READABLE:  # an inspection must not run hooks of the program's
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
        finding = self._explaining(partial(failing.sent, tensor, self.inspector))
        if finding is not None:
            self._refused += 1
            self.report(finding)

    def _register_hooks(self, *args: Any) -> None:
        # What the program's own hooks hold cannot be read without running them.
        self.state.suspension.block()
        register_hooks(*args)

    def enter(self, scope: Scope) -> None:
        """Begin to report to one more watch: only what grows and is wasted in its own time."""
        self.queue.settle()
        observers = self.state.observers
        observers.tell(Observer.begin_anew)
        self.state.recognizer.begin_anew()
        if self.state.generations.is_own:
            self.state.suspension.leave()  # its first calls are inspected in full
        growth = Growth(self.state)
        unused = UnusedGraphs(self.state, growth, scope.trained)
        scope.leaks = growth, unused, RetainWaste(self.state, growth)
        observers.add(*scope.leaks, scope.trained, report=scope.announced.report)
        self.scopes.append(scope)
        self._ask_scopes()
        self.recorder.regroup()  # no row has calls of before

    def leave(self, scope: Scope) -> None:
        """Report what only the end of a watch shows, and report to it no more; close the session if
        it was the last watch.
        """
        self.queue.settle()
        observers = self.state.observers
        observers.end(*scope.leaks, scope.trained)
        if self.scopes == [scope]:
            observers.tell(Observer.at_end)
        scope.trained.let_go()
        self.scopes.remove(scope)
        self._ask_scopes()
        self.recorder.regroup()
        if not self.scopes:
            self.close()

    def _ask_scopes(self) -> None:
        """Note what the watches in progress need."""
        self.state.suspension.resting.clear()
        self.queue.counter.is_allowed = not any(each.needs_each_call for each in self.scopes)
        self.recorder.has_file = any(each.writer.has_file for each in self.scopes)

    def close(self) -> None:
        """Take every hook out, and forget what is known of the program's code and variables."""
        self.state.active = False
        self.state.suspension.sites.clear()
        self._handles.close()
        self.state.saving.leave_late = self.state.hooks.sweep
        self.state.restore_stack()
        self.state.names.let_go()
        forget_codes()
        forget_flows()
        forget_wholes()

    def _is_idle(self) -> bool:
        """Return whether no graph is alive that a step could change."""
        state, suspension = self.state, self.state.suspension
        is_alive = state.ledger.live_tensors or suspension.leaves or suspension.pending
        is_built = suspension.on and next_sequence_nr() != state.generations.newest
        return state.hooked and not (is_alive or is_built)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        state, self._counted_step = self.state, None
        known = state.suspension.resting.get(id(optimizer))
        # In a steady loop most steps are only counted.
        if known is not None and known.rests and known.optimizer() is optimizer:
            known.rests -= 1
            known.steps += 1
            state.generations.stepped()
            is_idle = self._is_idle()
            self._counted_step = id(optimizer), state.calls, is_idle
            if is_idle:
                return
        self._timed(partial(self._look_before, optimizer))

    def _look_before(self, optimizer: Any) -> None:
        is_counted = self._counted_step is not None
        for scope in () if is_counted else self.scopes:
            scope.trained.stepping(optimizer)
        self.state.mutations.before_step(optimizer, looks=is_counted or not self._is_idle())

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        state = self.state
        state.steps += 1
        of = id(optimizer), state.calls
        if self._counted_step != (*of, True):
            is_counted = self._counted_step == (*of, False)
            self._timed(partial(self._look_after, optimizer, sys._getframe(1), is_counted))

    def _look_after(self, optimizer: Any, caller: FrameType, is_counted: bool) -> None:
        state = self.state
        if not is_counted:
            state.generations.stepped()
            known = [scope.trained.stepped(optimizer) for scope in self.scopes]
            waits = self._reducers.is_open or state.ledger.live_tensors or len(known) != 1
            if state.suspension.sites and not waits:
                state.suspension.resting[id(optimizer)] = known[0]
            if self._is_idle() and not self._reducers.is_open:
                return
        frame = user_frame(caller)
        place = None if frame is None else place_in(frame)
        state.mutations.after_step(optimizer, place)
        if not is_counted:  # nothing that they ask of a step is alive
            state.observers.tell(Observer.after_step, optimizer, place, frame)

    def _timed(self, look: Callable[[], None]) -> None:
        """Inspect an optimizer's step, and count the time that it takes among the overhead; but not
        if the budget is spent, or the step is compiled.
        """
        began, budget = perf_counter(), self.state.budget
        if (budget is not None and budget.rests) or is_compiling():
            return
        self.state.notes.attempt("inspecting an optimizer step failed in gradscope", look, None)
        self.state.cost.add(self.state.calls, began)

    # what ``Backward`` finds goes to every watch in progress

    def graph(self, signature: Any, graph: Graph, site: Site | None) -> None:
        """Write the graph of a call at ``site``."""
        for scope in self.scopes:
            scope.writer.graph(signature, graph, site)

    def number(self, signature: Any, site: Site | None) -> int | None:
        """Return the number that the outermost watch gave to the graph of this signature."""
        return self.scopes[0].writer.known(signature, site)

    def begun(self) -> str:
        """Return, as text for the recording, the calls that have not ended, or the innermost of
        them.

        Guarded calls are left out because nothing is written when they end.
        """
        last = [call for call in self.state.running if not call.guarded][-_MOST_BEGUN:]
        return ",".join(f"[{c.number},{self._begun(c.word, c.place)}]" for c in last)

    def begins(self) -> None:
        """Note that a backward call begins."""
        for scope in self.scopes:
            scope.writer.begin()

    def call(self, call: BackwardCall, signature: Any) -> list[Further]:
        """Write a backward call that has ended; return what adds calls like it to its row."""
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
            scope.announced.report(finding)

    def refusal(self, finding: Finding) -> BaseException | None:
        """Return the exception to raise in the engine's place, if a watch asked for that."""
        return next(filter(None, (scope.announced.refusal(finding) for scope in self.scopes)), None)

    def called(self, call: Call) -> None:
        """Tell every watch that a backward call has ended."""
        for scope in tuple(self.scopes):
            scope.called(call)

    def explained(self, error: BaseException) -> Finding | None:
        """Return the finding that explains an exception that ended the program, if there is one.

        An exception that came out of a backward call was explained by that call, unless memory ran
        out: then what holds it is worth a finding of its own.
        """
        if self.state.looks and (ran_out := out_of_memory.cause_of(error)) is not None:
            self._survived.ended_it()
            return self._explained_memory(ran_out)
        if came_out_of_a_call(error):
            return None
        if gs603.ERROR in str(error):
            return self._explaining(lambda: self._reducers.explained(error))
        copied = partial(failing.copied, error, self.inspector)
        found = self._explaining(copied) if self.state.looks else None
        return found or hazards.explain_read(error, self.state.calls)

    def failure(self, error: BaseException) -> Failure | None:
        """Return what is known of an exception that ended the program without a finding."""
        is_announced = self._refused and gs604.REFUSES_TO_SEND in str(error)
        if is_announced or not self.state.looks:
            return None
        return self._explaining(partial(failing.failure, error, self.inspector))

    def _explaining(self, explain: Callable[[], T | None]) -> T | None:
        """Return what ``explain`` returns about an error of the program; None if it fails."""
        what = "explaining an error failed in gradscope"
        with DisableTorchFunction(), TracePaused(), GCPaused():
            return self.state.notes.attempt(what, unprofiled(explain), None)

    def _explained_memory(
        self, error: BaseException, raising: FrameType | None = None
    ) -> Finding | None:
        def explain() -> Finding:
            self.queue.settle()
            _, unused, waste = self.scopes[0].leaks
            return out_of_memory.explain(error, unused, waste, raising)

        return self._explaining(explain)

    def summary(self) -> Summary:
        """Return the totals of the session so far."""
        self.queue.settle()
        ledger, census = self.state.ledger, self.state.census
        generations = self.state.generations
        if generations.is_own:
            generations.see()
        built = generations.built
        passed = () if self.state.budget is None else self.state.budget.notes
        is_unseen = self.state.suspension.on and not passed  # else a note says what is missing
        uncounted = generations.built_since if is_unseen else 0
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


class Scope:
    """One watch: what it has seen so far, and its recording.

    ``with gradscope.watch() as scope`` gives the user this object. While the watch lasts,
    ``session`` hands it what happens; afterwards all that it has seen stays readable.
    """

    def __init__(self, writer: RecordingWriter, asked: WatchOptions, session: Session) -> None:
        self.writer = writer
        self._asked = asked
        self._session: Session | None = session
        self.announced = Announcements(writer, asked, session.state.notes)
        self.outcome: Outcome | None = None
        """How the program ended, once that is known; the watch itself may end earlier."""
        self.leaks: tuple[Growth, UnusedGraphs, RetainWaste]
        """The observers that look for leaks in the time of this watch, and report to no other."""
        self.trained = TrainingObserver(session.state, sees_steps=session.sees_steps)
        """The observer of parameters, gradients and optimizers, likewise."""
        self._first_call = session.state.calls
        self.is_stopped = False
        self._tells = bool(asked.on_call or asked.sinks)
        self.needs_each_call = self._tells or bool(asked.stop_after or asked.raise_on)
        self._sinks, self._handed_on, self._retained = dict.fromkeys(asked.sinks), 0.0, 0
        writer.follow(
            lambda: self.with_predictions(session.summary(), is_over=False), session.begun
        )
        writer.amend(clock=session.state.clock)

    def leave(self) -> None:
        """Take no more from the session; what was seen stays."""
        self._session = None

    @property
    def summary(self) -> Summary:
        """The totals so far: nodes built and destroyed; tensors saved, freed and dropped; bytes
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
        """Return what was seen so far, as if the run ended here."""
        recording = self.recording()
        is_over = self._session is None
        return recording if is_over else replace(recording, outcome=Outcome(finished=True))

    def recording(self) -> Recording:
        """Return all that was seen so far, as plain data."""
        if self._session is not None:
            self._session.queue.settle()
        recording, suppressor = self.writer.read(), self._asked.suppressor
        return recording if suppressor is None else suppressor.of_findings(recording)

    def draw(
        self,
        file: str | os.PathLike[str] | None = None,
        call: int | None = None,
        **options: Unpack[DrawOptions],
    ) -> Drawing:
        """Draw the graph of backward call ``call``, with the graphs of earlier calls that share
        nodes with it.

        Without ``call``, draw the graph of the most severe finding, or else of the last call. The
        options are those of :func:`gradscope.draw`.
        """
        # Drawing is loaded only when something is drawn.
        from gradscope.render.pictures import Options  # noqa: PLC0415
        from gradscope.render.pictures.draw import draw_recording  # noqa: PLC0415

        return draw_recording(self.recording(), file, Options(**options), call=call)

    def look_back(self, main: ModuleType) -> None:
        """Inspect what a program that has ended leaves in the variables of its main module."""
        if self._session is not None and self._session.process == os.getpid():
            self._session.queue.settle()
            self._session.state.observers.tell(Observer.after_program, main)

    def explain(self, error: BaseException) -> Failure | None:
        """Report the finding that explains an exception that ends the program or the watch.

        If no finding does, return what else is known of the exception.
        """
        if self._session is None:
            return None
        if (finding := self._session.explained(error)) is not None:
            self.announced.report(finding)
            return None
        failure = self._session.failure(error)
        if failure is not None:
            for site in filter(None, (failure.site, *(one.site for one in failure.related))):
                self.writer.source(site.file)
        return failure

    @property
    def findings(self) -> Findings:
        """The findings so far, each cause once, in the order in which they were met."""
        return self.announced.findings

    def withdraw(self) -> None:
        """Withdraw the predictions that did not come true, if the program has run to its end.

        A run that was stopped, by Ctrl-C or after ``stop_after`` calls, refutes no prediction.
        """
        if self.outcome is None or self.is_stopped:
            return
        raised = (self.outcome.exception or "").partition(":")[0]
        if raised == "KeyboardInterrupt":
            return
        reason = f"the program ended{f' with {raised}' if raised else ''} before that backward call"
        self.announced.withdraw(reason)

    def with_predictions(self, summary: Summary, *, is_over: bool = True) -> Summary:
        """Return the totals with the number of predictions, how many came true, and why the program
        stopped.
        """
        predicted = [finding for finding in self.findings if finding.predicts_error]
        came_true = sum(finding.came_true for finding in predicted)
        made = counted(self._asked.stop_after or 0, "backward call")
        stopped = f"the program was stopped after {made}, as --stop-after asked"
        notes = (*summary.notes, *([stopped] if self.is_stopped else []))
        training = self.trained.told or self.trained.summary()
        if is_over and training.table is None:  # making it takes too long for each write of a file
            training = replace(training, table=self.trained.table())
        summary = replace(summary, training=training, notes=notes)
        return replace(summary, predicted=len(predicted), came_true=came_true)

    def note_rank(self) -> None:
        """Note in the recording the rank of the process in torch.distributed, if it has one."""
        if self.writer.header.rank is None and (ranked := rank_of_process()) is not None:
            rank, ranks = ranked
            self.writer.amend(rank=rank, ranks=ranks)

    def called(self, call: Call) -> None:
        """Take note of a backward call that has ended; raise StopRun after ``stop_after`` calls."""
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
        """Write metrics to the user's tools; drop a tool that fails, and note that."""
        session = self._session
        if session is None or self.writer.is_idle or not session.state.calls:
            return
        self._handed_on = monotonic()
        for sink in tuple(self._sinks):
            try:
                with TracePaused(), GCPaused():
                    sink(self._figures(), session.state.calls)
            except Exception as failure:
                if came_by_signal(failure):
                    raise
                self._sinks.pop(sink, None)  # another thread may have done that already
                why = f"{type(failure).__name__}: {failure}"
                session.state.notes.add(f"logging failed, and is not tried again ({why})")
        self._handed_on = monotonic()

    def _figures(self) -> dict[str, int]:
        total = self.summary
        found = sum(finding.counts for finding in self.findings)
        alive = total.nodes_alive + total.nodes_unmet
        figures = (total.backward_calls, found, total.live_bytes, alive, self._retained)
        return dict(zip(FIGURES, figures, strict=True))
