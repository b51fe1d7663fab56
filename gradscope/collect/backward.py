"""The choke point: looks at every backward call before the engine runs it and books what it did afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.autograd.graph import Node

from gradscope.collect.calls import Call
from gradscope.collect.generations import Generations
from gradscope.collect.ledger import LOOKS, Ledger
from gradscope.collect.look import Look, Looker
from gradscope.collect.marks import Census
from gradscope.collect.mutations import Mutations
from gradscope.collect.shapes import Shape, Shapes, Signature
from gradscope.collect.snapshot import picture
from gradscope.collect.steady import Steady
from gradscope.collect.walk import root_node
from gradscope.detect import hazards
from gradscope.hooks import StackLimit, erase
from gradscope.model import BackwardCall, Finding, Fix, Graph, Root, Sample, Site
from gradscope.program.names import Names, names_in
from gradscope.program.sites import Place, place_in, site_of, user_frame, user_frames
from gradscope.program.tensors import describe

_sequence_nr = torch._C._autograd._get_sequence_nr
_FREE_PICTURES = 20  # taken whatever they cost; later ones only while they stay cheap
_PICTURE_SHARE = 0.05  # of the run's time
_LARGEST_PICTURE = 50_000  # nodes
_SAMPLE_EVERY = 0.01  # seconds between points of the memory curve


class Sink(Protocol):
    """Where a watch writes what it sees; ``gradscope.record.writer.RecordingWriter`` is one."""

    def number(self, signature: Any, site: Site | None) -> int | None:
        """The number of the graph written for this signature."""

    def graph(self, signature: Any, graph: Graph, site: Site | None) -> int | None:
        """Write a graph that a call at ``site`` met, once; its number."""

    def call(self, call: BackwardCall, signature: Any) -> None:
        """Write a backward call."""

    def sample(self, sample: Sample) -> None:
        """Write a point of the memory curve."""


class _ThreadCalls(threading.local):
    """The backward calls in progress in one thread, outermost first, and the last error that was explained."""

    def __init__(self) -> None:
        self.stack: list[Call] = []
        self.explained = 0


class Backward:
    """Numbers the backward calls of a watch and knows what each found, freed and kept."""

    def __init__(
        self,
        ledger: Ledger,
        names: Names,
        sink: Sink | None,
        report: Callable[[Finding], None],
        hooked: bool,
    ) -> None:
        self.ledger = ledger
        self.names = names
        self.census = Census()
        self.calls = 0
        self.steps = 0
        self.sequence_start = _sequence_nr()
        self.started = time.perf_counter()
        self.stack_limit = StackLimit()
        self.generations = Generations()
        self.steady = Steady(ledger, self.census, self.generations)
        self.looker = Looker(
            ledger, self.census, self.generations, self.steady, self.stack_limit, hooked
        )
        self.steady.room_for = self.stack_limit.room_for
        self.observe: Callable[..., None] = lambda point, *args: None
        self.on_call: Callable[[BackwardCall], None] = lambda record: None
        self.refuse: Callable[[Finding], BaseException | None] = lambda finding: None
        self.hooked = hooked
        self.mutations = Mutations()
        self.foreseen: dict[int, Fix | None] = {}
        """The fixes of failures that were predicted, by the number of the call that frees."""
        self._sink: Any = sink
        self._report = report
        self._local = _ThreadCalls()
        self._roots: dict[tuple[int, int], tuple[str | None, ...]] = {}
        self._shapes = Shapes()
        self._pictures_taken = 0
        self._picture_seconds = 0.0
        self._sampled = -1.0
        self._sequence_last = self.sequence_start
        self._built_before = self._destroyed_before = 0

    def run(
        self, original: Callable[..., Any], t_outputs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Stands in for torch's ``_engine_run_backward``; leaves no frame in a traceback."""
        if not self.ledger.active or torch.compiler.is_compiling():
            return original(t_outputs, *args, **kwargs)
        call = self._prepare(t_outputs, args, kwargs)
        try:
            if call is not None:
                self._announce(call)
            result = original(t_outputs, *args, **kwargs)
        except BaseException as error:
            if call is not None:
                self._conclude(call, error)
            erase(error, _OURS)
            raise
        if call is not None:
            self._conclude(call, None)
        return result

    def _prepare(
        self, t_outputs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call | None:
        """Begin a call; None if that failed, which is our fault and must not be the program's."""
        depth = len(self._local.stack)
        try:
            return self._begin(t_outputs, args, kwargs)
        except Exception as failure:
            del self._local.stack[depth:]
            self._note_failure("looking at", failure)
            return None

    def _announce(self, call: Call) -> None:
        """Tell what was found, and raise in the engine's place where that was asked for."""
        for finding in call.findings:
            self._report(finding)
            refusal = self.refuse(finding)
            if refusal is not None:
                raise refusal

    def _conclude(self, call: Call, error: BaseException | None) -> None:
        """Finish a call; a failure of ours in that must not be the program's."""
        try:
            self._finish(call, error)
        except Exception as failure:
            self._note_failure("booking", failure)
        self.on_call(call.record or BackwardCall(call.number, "backward"))

    def _note_failure(self, doing: str, failure: Exception) -> None:
        note = f"{doing} a backward call failed in gradscope ({type(failure).__name__}: {failure}); please report this"
        if note not in self.ledger.notes:
            self.ledger.notes.append(note)

    # before the engine

    def _begin(
        self, t_outputs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        _, keep_graph, create_graph, inputs = (*args, None, None, None, None)[:4]
        keep = bool(kwargs.get("keep_graph", keep_graph))
        create = bool(kwargs.get("create_graph", create_graph))
        inputs = kwargs.get("inputs", inputs) or ()
        accumulate = bool(kwargs.get("accumulate_grad", True))
        frame = user_frame(sys._getframe(2))
        place = None if frame is None else place_in(frame)
        self.calls += 1
        call = Call(self.calls, place, keep)
        stack = self._local.stack
        call.parent = stack[-1] if stack else None
        if not stack:
            self._local.explained = 0  # the number of an error that is gone may be another's
        call.steps = self.steps
        stack.append(call)
        kind = "backward" if accumulate else "grad"
        with torch._C.DisableTorchFunction():
            roots = [n for n in map(root_node, t_outputs) if n is not None]
            call.sequence_nr = _sequence_nr()
            call.plain = not (
                keep or create or inputs or call.parent or call.thread != self.generations.thread
            )
            if not (self.steady.on and self._recognize(call, roots)):
                look = self.looker.look(roots, place)
                call.roots = tuple(
                    look.tokens[look.index[n]].sequence_nr for n in roots if n in look.index
                )
                if inputs:
                    look.runs = self.looker.runs(look, inputs, captured_only=not accumulate)
                call.findings = self._examine(call, look, t_outputs, inputs, kind, create)
                if call.plain and call.shape.recognizable is None and not call.exact:
                    self.steady.learn(call.shape, look.nodes, look.tokens, roots)
                self.observe("before_call", call, look, BackwardCall(**call.fields), frame)
                for i, token in enumerate(look.tokens):
                    if look.will_run(i):
                        token.call = call
                del look
            del roots  # no node is held while the engine runs
        call.calls_first.update(finding.code for finding in call.findings)
        return call

    def _recognize(self, call: Call, roots: list[Node]) -> bool:
        """Begin a call on a graph that is known; put the hooks back where it is not."""
        steady = self.steady
        repeat = steady.look(roots, call.place) if call.plain and not steady.blocked else None
        if repeat is None:
            if call.thread == self.generations.thread:
                steady.leave()
            else:
                steady.block()
            return False
        call.repeat, call.shape, call.exact = repeat, repeat.shape, False
        call.roots = tuple(root._sequence_nr() for root in roots)
        call.fields = {
            **repeat.shape.fields,
            "number": call.number,
            "started": time.perf_counter() - self.started,
        }
        steady.begin(repeat, roots)
        self.observe("before_repeat", call, repeat)
        return True

    def foresee(self, t_outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Finding]:
        """What a backward call on these outputs would raise if it were made now; books nothing."""
        frame = user_frame(sys._getframe(2))
        call = Call(self.calls, None if frame is None else place_in(frame), keep=False)
        with torch._C.DisableTorchFunction():
            roots = [n for n in map(root_node, t_outputs) if n is not None]
            look = self.looker.look(roots, call.place)
            call.roots = tuple(
                look.tokens[look.index[n]].sequence_nr for n in roots if n in look.index
            )
            del roots
            if inputs:
                look.runs = self.looker.runs(look, inputs, captured_only=False)
            if not (look.freed or look.stale or look.compiled):
                return []
            graph = picture(
                look.nodes, look.index, (), names=self.names, left=look.left, runs=look.will_run
            )
            record = BackwardCall(self.calls, "backward", site_of(call.place))
            return hazards.examine(self, call, look, record, graph)

    def _examine(
        self,
        call: Call,
        look: Look,
        t_outputs: Sequence[Any],
        inputs: Sequence[Any],
        kind: str,
        create: bool,
    ) -> list[Finding]:
        """Book the call's beginning; the findings that are certain before the engine runs."""
        roots = self._name_roots(call.place, t_outputs, look)
        signature: Signature = (
            call.place,
            look.nbytes,
            look.left,
            tuple(look.signature),
            tuple(look.freed),
            None if look.runs is None else tuple(look.runs),
        )
        shape = call.shape = self._shapes.meet(signature)
        graph = self._picture(shape, look, roots, call.place)
        call.exact = shape.returned is None
        wrong = look.freed or look.stale or look.compiled or look.left
        call.plain = call.plain and not wrong and look.oldest is None
        if look.unhooked:
            call.unhooked = look.count_unhooked()
            call.plain = call.plain and self.steady.knows(
                shape.kinds
            )  # else it may hold what only hooks see
        call.fields = {
            "number": call.number,
            "kind": kind,
            "site": site_of(call.place),
            "roots": roots,
            "retain_graph": call.keep,
            "create_graph": create,
            "inputs": tuple(self._name_input(t) for t in inputs) if inputs else None,
            "graph": self._sink.number(shape.number, site_of(call.place)) or None,
            "nodes": len(look.nodes),
            "nodes_run": len(look.nodes) if look.runs is None else sum(look.runs),
            "saved_tensors": look.tensors,
            "saved_bytes": look.nbytes,
            "oldest_generation": look.oldest,
            "parent": call.parent.number if call.parent else None,
            "thread": threading.current_thread().name,
            "started": time.perf_counter() - self.started,
        }
        if not (look.freed or look.stale or look.compiled):
            return []
        return hazards.examine(self, call, look, BackwardCall(**call.fields), graph)

    def _picture(
        self, shape: Shape, look: Look, roots: tuple[Root, ...], place: Place | None
    ) -> Graph | None:
        """The graph as plain data: taken once for graphs that are alike, and always when something is wrong with it."""
        graph = shape.graph
        if graph is None:
            elapsed = time.perf_counter() - self.started
            cheap = (
                self._picture_seconds < _PICTURE_SHARE * elapsed
                or self._pictures_taken < _FREE_PICTURES
            )
            cheap = cheap and len(look.nodes) <= _LARGEST_PICTURE
            detailed, self.ledger.detailed = self.ledger.detailed, True
            # Without the modules, and without the places of what the hooks did not see, the next of its kind is pictured.
            cheap = cheap and detailed and not look.unhooked
            if not cheap and not look.freed and not look.stale:
                return None
            before = time.perf_counter()
            self.names.learn_variables(user_frames(sys._getframe(4)))
            graph = picture(
                look.nodes, look.index, roots, names=self.names, left=look.left, runs=look.will_run
            )
            assert (
                self._sink is not None
            )  # only a look outside a watch has none, and that takes no pictures
            self._sink.graph(shape.number, graph, site_of(place))
            self._shapes.keep_picture(shape, graph)
            self._pictures_taken += 1
            self._picture_seconds += time.perf_counter() - before
        elif self._pictures_taken > _FREE_PICTURES or self.calls > 2 * _FREE_PICTURES:
            self.ledger.detailed = False
        for i, token in enumerate(look.tokens):
            if token.graph is None:
                token.graph, token.index = graph, i
        return graph

    def _name_roots(
        self, place: Place | None, t_outputs: Sequence[Any], look: Look
    ) -> tuple[Root, ...]:
        key = (id(place), len(t_outputs))
        named = self._roots.get(key)
        if named is None:
            frame = user_frame(sys._getframe(4))
            found = [None] * len(t_outputs) if frame is None else names_in(frame, t_outputs)
            named = self._roots[key] = tuple(found)
        roots = []
        for name, output in zip(named, t_outputs, strict=True):
            node = root_node(output)
            if node is not None and node in look.index:
                label = describe(output) if isinstance(output, torch.Tensor) else ""
                roots.append(Root(look.index[node], name, label))
        return tuple(roots)

    def _name_input(self, tensor: Any) -> str:
        if not isinstance(tensor, torch.Tensor):
            return "GradientEdge"
        return self.names.of_tensor(tensor) or describe(tensor)

    # after the engine

    def _finish(self, call: Call, error: BaseException | None) -> None:
        """Book what the call freed; say so if the engine raised what was not called first."""
        call.open = False
        call.completed = error is None
        stack = self._local.stack
        if stack and stack[-1] is call:
            stack.pop()
        now = time.perf_counter() - self.started
        ledger = self.ledger
        fields = call.fields
        text = None
        if error is not None:
            text = f"{type(error).__name__}: {error}"
        saved = fields.get("saved_bytes", 0)
        built = call.sequence_nr - self.generations.newest
        shape = call.shape
        if call.repeat is not None:
            self.steady.after_repeat(call, call.repeat, built)
            call.freed_tensors, call.freed_bytes, call.returned_bytes = shape.freed
            ledger.peak_bytes = max(ledger.peak_bytes, ledger.live_bytes + shape.peak)
        else:
            self._count(call)
        record = call.record = BackwardCall(
            **fields,
            freed_tensors=call.freed_tensors,
            freed_bytes=call.freed_bytes,
            returned_bytes=call.returned_bytes,
            retained_bytes=max(0, saved - call.freed_bytes),
            live_bytes=ledger.live_bytes,
            peak_bytes=ledger.peak_bytes,
            nodes_built=self.nodes_built - self._built_before,
            nodes_destroyed=self.census.destroyed - self._destroyed_before,
            ended=now,
            exception=text,
            last_number=call.number,
        )
        self._built_before, self._destroyed_before = self.nodes_built, self.census.destroyed
        ledger.highest_bytes = max(ledger.highest_bytes, ledger.peak_bytes)
        ledger.peak_bytes = ledger.live_bytes
        ledger.looks_left = LOOKS
        self._sink.call(record, shape.number)
        if now - self._sampled > _SAMPLE_EVERY:
            self._sampled = now
            still_held = record.freed_bytes - record.returned_bytes
            self._sink.sample(Sample(record.started, record.peak_bytes, 0, call.number - 1))
            self._sink.sample(Sample(now, record.live_bytes, still_held, call.number))
        if call.repeat is None:
            shape.fields = fields
            shape.freed = (record.freed_tensors, record.freed_bytes, record.returned_bytes)
            shape.peak = record.peak_bytes - record.live_bytes
            alike = (
                call.plain and call.completed and call.number == self.calls and not call.findings
            )
            self.steady.after_hooked(call, shape, built, alike and not call.exact)
        call.repeat = None
        self.generations.end(call.number, call.place)
        self.restore_stack()
        if error is not None and id(error) != self._local.explained:
            self._local.explained = id(error)
            missed = hazards.missed(call, record, str(error))
            if missed is not None:
                self._report(missed)
        self.observe("after_call", call, record, user_frame(sys._getframe(2)))

    def _count(self, call: Call) -> None:
        """Count what came back of a call's memory, and what it freed that was saved while the hooks were lifted."""
        ledger, shape = self.ledger, call.shape
        tensors, nbytes = call.unhooked
        if tensors and call.completed and not call.keep:
            returned = (
                nbytes * ledger.returned_bytes // (ledger.freed_bytes or 1)
            )  # as much as of all before
            call.returned_bytes += returned
            ledger.returned_bytes += returned
            call.freed_tensors += tensors
            call.freed_bytes += nbytes
            ledger.freed_tensors += tensors
            ledger.freed_bytes += nbytes
        if call.exact:
            shape.returned = call.returned_bytes if call.completed else None
        else:  # alike calls return alike
            returned = min(shape.returned or 0, call.freed_bytes)
            ledger.returned_bytes += returned - call.returned_bytes
            call.returned_bytes = returned

    def restore_stack(self) -> None:
        """Put the stack limit back, unless deep graphs that were looked at still have to be destroyed."""
        if self.census.alive < self.stack_limit.OTHER_THREAD_NODES:
            self.stack_limit.restore()

    @property
    def is_running(self) -> bool:
        """True while a backward call runs in this thread."""
        return bool(self._local.stack)

    def has_explained(self, error: BaseException) -> bool:
        """True for an exception that came out of a backward call."""
        return id(error) == self._local.explained

    @property
    def nodes_built(self) -> int:
        """Nodes built since the watch began in the thread that began it."""
        return self._sequence_seen() - self.sequence_start

    def _sequence_seen(self) -> int:
        if threading.get_ident() == self.generations.thread:
            self._sequence_last = _sequence_nr()
        return self._sequence_last


# One frame of ours lies between a backward call and the engine. Python's warnings do not count a frame of the import
# machinery, which they know by its file's name (Python/_warnings.c, is_internal_filename): the program's stacklevel holds.
Backward.run.__code__ = Backward.run.__code__.replace(
    co_filename=f"{__file__} (as importlib._bootstrap)"
)

_OURS = frozenset({Backward.run.__code__, Backward._announce.__code__, Ledger.unpack.__code__})
