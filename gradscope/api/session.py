"""One set of hooks for the process, and what listens to them: shared by all watches in progress."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradscope.collect.backward import Backward
from gradscope.collect.identity import FunctionTensors, register_hooks, unpack
from gradscope.collect.ledger import Ledger
from gradscope.detect import hazards, leaks
from gradscope.detect.foresight import Foresight, ForwardOnFreed, InPlace, LineWatch
from gradscope.detect.observers import Observers
from gradscope.hooks import (
    DefaultHooks,
    Handles,
    on_optimizer_step,
    replace_register_hooks,
    replace_saved_tensors_of_functions,
    replace_unpack,
    wrap_engine,
)
from gradscope.model import (
    BackwardCall,
    Finding,
    Graph,
    Sample,
    Site,
    Summary,
)
from gradscope.program.names import Names
from gradscope.program.sites import place_in, user_frame

if TYPE_CHECKING:
    from gradscope.api.watch import Scope

_SUMMARY_EVERY = 0.2  # seconds


class Session:
    """The hooks of the process, shared by all watches in progress: they are put in by the first and taken out by the last."""

    def __init__(self, hooks: bool) -> None:
        self.scopes: list[Scope] = []
        self.process = os.getpid()
        self.names = Names()
        self.ledger = Ledger(self.names)
        self.backward = Backward(self.ledger, self.names, self, self._report, hooked=hooks)
        self.lines = LineWatch(self.backward)
        foresight = [
            self.lines,
            Foresight(self.backward),
            ForwardOnFreed(self.backward, self.lines),
            InPlace(self.backward, self.lines),
        ]
        self.observers = Observers(
            [*foresight, *leaks.observers(self.backward)], self._report, self.ledger.notes.append
        )
        self.backward.observe = self.observers.ask
        self.backward.on_call = self._called
        self.backward.refuse = self._refusal
        self.ledger.stale_message = hazards.StaleMessage(self.backward)
        self._summarized = 0.0
        self._handles = Handles()
        try:
            self._install(hooks)
        except BaseException:
            self._handles.remove()
            raise

    def _install(self, hooks: bool) -> None:
        if hooks:
            functions = FunctionTensors(self.ledger)
            self._handles.add(replace_saved_tensors_of_functions(functions.read))
            self._handles.add(replace_register_hooks(self._register_hooks))
            ledger = self.ledger
            self._handles.add(
                replace_unpack(lambda original, saved: unpack(original, ledger, saved))
            )
            default_hooks = DefaultHooks(ledger.pack, ledger.unpack, ledger.compose)
            steady = self.backward.steady
            steady.lift, steady.lower, default_hooks.on_theirs = (
                default_hooks.lift,
                default_hooks.lower,
                steady.leave,
            )
            ledger.on_other_thread = steady.block
            self._handles.add(default_hooks.install())
            self._handles.add(self.lines.install())
        self._handles.add(wrap_engine(self.backward.run))
        self._handles.add(on_optimizer_step(self._before_step, self._after_step))

    def _register_hooks(self, *args: Any) -> None:
        self.backward.steady.block()  # what the program's own hooks hold cannot be read without running them
        register_hooks(*args)

    def close(self) -> None:
        """Take every hook out."""
        self.ledger.active = False
        self._handles.remove()
        self.backward.restore_stack()

    def _before_step(self, optimizer: Any) -> None:
        if self.ledger.live_tensors or self.backward.steady.on or not self.backward.hooked:
            self.backward.mutations.before_step(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        self.backward.steps += 1
        frame = user_frame(sys._getframe(1))
        place = None if frame is None else place_in(frame)
        if self.ledger.live_tensors or self.backward.steady.on or not self.backward.hooked:
            self.backward.mutations.after_step(optimizer, place)
        self.observers.ask("after_step", optimizer, place, frame)

    # what the choke point writes goes to every watch in progress

    def graph(self, signature: Any, graph: Graph, site: Site | None) -> int | None:
        """Write a graph that a call at ``site`` met; its number in the outermost watch."""
        numbers = [scope.writer.graph(signature, graph, site) for scope in self.scopes]
        return numbers[0]

    def number(self, signature: Any, site: Site | None) -> int | None:
        """The number that the outermost watch gave to the graph of this signature."""
        return self.scopes[0].writer.known(signature, site)

    def call(self, call: BackwardCall, signature: Any) -> None:
        """Write a backward call that has ended."""
        for scope in self.scopes:
            number = scope.writer.known(signature, call.site) or None
            scope.writer.call(call if number == call.graph else replace(call, graph=number))
        now = time.perf_counter()
        if now - self._summarized > _SUMMARY_EVERY:
            self._summarized = now
            summary = self.summary()
            for scope in self.scopes:
                scope.writer.summary(summary)

    def sample(self, sample: Sample) -> None:
        """Write a point of the memory curve."""
        for scope in self.scopes:
            scope.writer.sample(sample)

    def _report(self, finding: Finding) -> None:
        for scope in self.scopes:
            scope.report(finding)

    def _refusal(self, finding: Finding) -> BaseException | None:
        return next(
            (r for r in (scope.refusal(finding) for scope in self.scopes) if r is not None), None
        )

    def _called(self, call: BackwardCall) -> None:
        for scope in tuple(self.scopes):
            scope.called(call)

    def explain(self, error: BaseException) -> None:
        """Say what can be said of an exception that ended the program and came from no backward call."""
        if not self.backward.has_explained(error):
            finding = hazards.explain_read(error, self.backward.calls)
            if finding is not None:
                self._report(finding)

    def summary(self) -> Summary:
        """The totals so far."""
        ledger, backward = self.ledger, self.backward
        return Summary(
            backward_calls=backward.calls,
            nodes=max(backward.nodes_built, backward.census.alive + backward.census.destroyed),
            nodes_destroyed=backward.census.destroyed,
            saved_tensors=ledger.saved_tensors,
            saved_bytes=ledger.saved_bytes,
            freed_tensors=ledger.freed_tensors,
            freed_bytes=ledger.freed_bytes,
            returned_bytes=ledger.returned_bytes,
            dropped_tensors=ledger.dropped_tensors,
            dropped_bytes=ledger.dropped_bytes,
            live_bytes=ledger.live_bytes,
            peak_saved_bytes=max(ledger.highest_bytes, ledger.peak_bytes),
            notes=tuple(ledger.notes),
        )
