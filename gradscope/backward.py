"""The choke point: looks at every backward call before the engine runs it and books what it did afterwards."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.autograd.graph import GradientEdge, Node

from gradscope import hazards
from gradscope.hooks import StackLimit, erase
from gradscope.model import BackwardCall, Finding, Fix, Graph, Root, Sample, Site
from gradscope.mutations import Mutations
from gradscope.names import Names, variables
from gradscope.saved import LOOKS, Ledger, Packed
from gradscope.sites import Place, place_in, site_of, user_frame, user_frames
from gradscope.tokens import KEY, OPAQUE, Call, Census, Stale, Token
from gradscope.traverse import (
    dependencies_last,
    describe,
    edges_of,
    held,
    kind_of,
    known_kinds,
    picture,
    root_node,
    stale_by_engine,
    stale_inputs_of_checkpoint,
    was_freed,
    will_run,
)

_sequence_nr = torch._C._autograd._get_sequence_nr
_NO_SEQUENCE = 2**64 - 1  # torch's number for AccumulateGrad
_MOST_NODES = 300_000  # looked at in one call
_MOST_BOUNDARIES = 1_000_000
_FREE_PICTURES = 20  # taken whatever they cost; later ones only while they stay cheap
_PICTURE_SHARE = 0.05  # of the run's time
_MOST_PICTURED_NODES = 200_000  # kept in memory
_LARGEST_PICTURE = 50_000  # nodes
_MOST_SIGNATURES = 1_000
_SAMPLE_EVERY = 0.01  # seconds between points of the memory curve
_NOTHING: list[weakref.ref[Packed]] = []


class Sink(Protocol):
    """Where a watch writes what it sees; ``gradscope.recording.RecordingWriter`` is one."""

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


class Look:
    """What a look at the graph of one backward call found; it lives only until the engine starts."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.index: dict[Node, int] = {}
        self.tokens: list[Token] = []
        self.left = 0
        self.nbytes = 0
        self.tensors = 0
        self.freed: list[int] = []
        self.stale: list[tuple[int, Stale]] = []
        self.compiled: list[int] = []
        self.oldest: int | None = None
        self.runs: list[bool] | None = None
        self.signature: list[Any] = []

    def will_run(self, i: int) -> bool:
        """True when the engine will run the i-th node."""
        return self.runs is None or self.runs[i]


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
        self._token: type[Token] = type("Token", (Token,), {"census": self.census})  # spares one attribute each
        self.calls = 0
        self.steps = 0
        self.nodes_looked_at = 0
        self.sequence_start = _sequence_nr()
        self.started = time.perf_counter()
        self.stack_limit = StackLimit()
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
        self._thread = threading.get_ident()
        self._boundaries = array("Q")  # the sequence number at which each backward call ended …
        self._ended = array("Q")  # … and the number of that call
        self._places: list[Place | None] = []
        self._roots: dict[tuple[int, int], tuple[str | None, ...]] = {}
        self._pictures: dict[Any, Graph] = {}
        self._pictured_nodes = 0
        self._pictures_taken = 0
        self._returned: dict[Any, int] = {}
        self._picture_seconds = 0.0
        self._sampled = -1.0
        self._sequence_last = self.sequence_start
        self._built_before = self._destroyed_before = 0

    def run(self, original: Callable[..., Any], t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
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

    def _prepare(self, t_outputs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
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

    def _begin(self, t_outputs: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
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
        with torch._C.DisableTorchFunction():
            roots = [n for n in map(root_node, t_outputs) if n is not None]
            look = self._look(roots)
            call.roots = tuple(look.tokens[look.index[n]].sequence_nr for n in roots if n in look.index)
            if inputs:
                look.runs = self._runs(look, inputs, captured_only=not accumulate)
            call.sequence_nr = _sequence_nr()
            findings = self._examine(call, look, t_outputs, inputs, "backward" if accumulate else "grad", create)
            self.observe("before_call", call, look, BackwardCall(**call.fields), frame)
        runs = look.runs
        for i, token in enumerate(look.tokens):
            if runs is None or runs[i]:
                token.call = call
        del look, roots  # no node is held while the engine runs
        call.findings = findings
        call.calls_first.update(finding.code for finding in findings)
        return call

    def foresee(self, t_outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Finding]:
        """What a backward call on these outputs would raise if it were made now; books nothing."""
        frame = user_frame(sys._getframe(2))
        call = Call(self.calls, None if frame is None else place_in(frame), keep=False)
        with torch._C.DisableTorchFunction():
            roots = [n for n in map(root_node, t_outputs) if n is not None]
            look = self._look(roots)
            call.roots = tuple(look.tokens[look.index[n]].sequence_nr for n in roots if n in look.index)
            del roots
            if inputs:
                look.runs = self._runs(look, inputs, captured_only=False)
            if not (look.freed or look.stale or look.compiled):
                return []
            graph = picture(look.nodes, look.index, (), names=self.names, left=look.left, runs=look.will_run)
            record = BackwardCall(self.calls, "backward", site_of(call.place))
            return hazards.examine(self, call, look, record, graph)

    def _look(self, roots: list[Node]) -> Look:
        """Walk the graph, mark what is new, and check every saved tensor that is there.

        This runs at every backward call, so it is one loop with local names.
        """
        look = Look()
        nodes, index, tokens, signature = look.nodes, look.index, look.tokens, look.signature
        census, pending = self.census, self.ledger.pending
        boundaries = self._boundaries
        newest = boundaries[-1] if boundaries else 0
        generation = self._ended[-1] if boundaries else 0
        thread = threading.get_ident()
        room = self.stack_limit.room_for(0)
        nbytes = tensors = 0
        slices: list[int] = []
        make, kinds = self._token, known_kinds
        stack = roots[::-1]
        while stack:
            node = stack.pop()
            if node in index:
                continue
            i = len(nodes)
            if i >= room:
                room = min(self.stack_limit.room_for(_MOST_NODES), _MOST_NODES)
                if i >= room:
                    look.left = len(stack) + 1
                    self._note_depth(i)
                    break
            index[node] = i
            nodes.append(node)
            kind = type(node)
            metadata: Any = node.metadata  # a property, though its stub says a method
            token = metadata.get(KEY)
            if token is None or token.census is not census:
                token = make()
                census.alive += 1
                token.generation = generation
                sequence_nr = token.sequence_nr = node._sequence_nr()
                known = kinds.get(kind) or kind_of(kind)
                packs = pending.pop(sequence_nr, _NOTHING) if known.saves else _NOTHING
                if packs:
                    token.packs = packs
                if known.is_function:
                    token.is_function = True
                    if known.is_compiled:
                        look.compiled.append(i)
                    self._tie(token, node, known)
                elif known.is_slices:
                    if packs:  # claimed with those of its inner node, once the other nodes have theirs
                        pending[sequence_nr] = packs
                    token.packs = ()
                    token.unseen = OPAQUE
                    slices.append(i)
                elif packs:
                    first = packs[0]()
                    if first is not None and first.thread != thread:
                        self._tie(token, node, known)
                    else:
                        self._claim(token, packs)
                elif known.names:
                    self._tie(token, node, known)
                if sequence_nr < newest:
                    token.generation = self._generation(sequence_nr)
                metadata[KEY] = token
            else:
                if token.unseen and token.freed_by is None:
                    self._recheck(token, node)
                if kind.__name__ == "CompiledFunctionBackward":
                    look.compiled.append(i)
            if token.freed_by is not None:
                look.freed.append(i)
            tokens.append(token)
            older = token.generation != generation and token.sequence_nr != _NO_SEQUENCE
            if older and (look.oldest is None or token.generation < look.oldest):
                look.oldest = token.generation
            for reference in token.packs:
                packed = reference()
                if packed is not None:
                    tensors += 1
                    nbytes += packed.nbytes
                    tensor = packed.tensor
                    if tensor is not None and (
                        tensor._version != packed.version
                        or (packed.original and not packed.was_leaf and tensor.is_leaf and not token.is_function)
                    ):
                        look.stale.append((i, Stale(tensor, packed.version)))
                    elif tensor is None:
                        look.stale += [(i, stale) for stale in stale_inputs_of_checkpoint(packed)]
            if token.probed:
                look.stale += [(i, stale) for stale in stale_by_engine(node, kind_of(kind))]
            signature.append(kind)
            signature.append(token.place)
            following = node.next_functions
            if len(following) == 1:
                target = following[0][0]
                if target is not None and target not in index:
                    stack.append(target)
            else:
                for target, _ in reversed(following):
                    if target is not None and target not in index:
                        stack.append(target)
        look.nbytes, look.tensors = nbytes, tensors
        if slices:
            self._claim_slices(look, slices)
        self.nodes_looked_at += len(nodes)
        return look

    def _note_depth(self, nodes: int) -> None:
        note = f"a graph was not looked at beyond {nodes:,} nodes: looking further could overflow the stack when it is destroyed"
        if note not in self.ledger.notes:
            self.ledger.notes.append(note)

    def _tie(self, token: Token, node: Node, kind: Any) -> None:
        """Ask the node itself what it saved, where the sequence number does not tell or our hooks were not there."""
        packs, unseen = [], []
        for name, data in held(node, kind):
            if isinstance(data, Packed) and data.ledger is self.ledger:
                data.token = token
                token.place = token.place or data.place
                token.module = token.module or data.module
                packs.append(weakref.ref(data))
            else:
                unseen.append((name.split("[", 1)[0], data))
        token.packs = packs
        token.unseen = tuple(dict.fromkeys(name for name, _ in unseen))
        # a Python number that was wrapped into a tensor goes past the hooks, and nobody can modify it
        token.probed = any(data.ndim > 0 or not self.hooked for _, data in unseen if isinstance(data, torch.Tensor))
        if not packs and not unseen and was_freed(node, kind):
            token.unseen = kind.names
            token.freed_by = BEFORE_WATCH
            token.generation = 0

    def _claim(self, token: Token, packs: list[weakref.ref[Packed]]) -> list[weakref.ref[Packed]]:
        """Tie saved tensors to the node of a token."""
        for reference in packs:
            packed = reference()
            if packed is not None:
                packed.token = token
                if token.place is None:
                    token.place, token.module = packed.place, packed.module
        return packs

    def _claim_slices(self, look: Look, slices: list[int]) -> None:
        """Tie to new CopySlices nodes what the nodes that they wrap have saved.

        The wrapped node was built just before, by the same instruction. Between the two lies at most a node for a view that the
        operation saved and that had been modified, which makes torch build its node anew.
        """
        pending = self.ledger.pending
        previous = -1
        for i in sorted(slices, key=lambda i: look.tokens[i].sequence_nr):
            token = look.tokens[i]
            place = None
            for number in range(token.sequence_nr + 1, max(previous, token.sequence_nr - 4), -1):
                packs = [p for p in (r() for r in pending.get(number, _NOTHING)) if p is not None]
                if not packs or (place is not None and packs[0].place is not place):
                    continue
                if number < token.sequence_nr - 1 and not any(
                    _renewed_view(p, number, token.sequence_nr) for p in packs
                ):
                    continue
                place = packs[0].place
                token.packs = [*token.packs, *self._claim(token, pending.pop(number))]
            previous = token.sequence_nr
            pending.pop(token.sequence_nr, None)
            for packed in (r() for r in token.packs):
                if packed is not None:
                    look.tensors += 1
                    look.nbytes += packed.nbytes
                    if packed.tensor is not None and packed.is_stale:
                        look.stale.append((i, Stale(packed.tensor, packed.version)))

    def _recheck(self, token: Token, node: Node) -> None:
        """Find out whether a call has freed what our hooks did not see."""
        call = token.call
        if call is None or call.open:
            return
        kind = kind_of(type(node))
        if call.completed and not call.keep if kind.is_slices else not held(node, kind):
            token.freed_by = call

    def _generation(self, sequence_nr: int) -> int:
        """The number of the last backward call that had ended when a node with this number was built."""
        ended = bisect_right(self._boundaries, sequence_nr)
        return self._ended[ended - 1] if ended else 0

    def calls_around(self, sequence_nr: int) -> tuple[tuple[int, Place | None] | None, tuple[int, Place | None] | None]:
        """The last backward call before a node was built and the first after: at which sequence number it ended, and its place."""
        i = bisect_right(self._boundaries, sequence_nr)
        around = [
            (n, p)
            for n, p in zip(self._boundaries[max(i - 1, 0) : i + 1], self._places[max(i - 1, 0) : i + 1], strict=True)
        ]
        earlier = around.pop(0) if i else None
        return earlier, around[0] if around else None

    def _runs(self, look: Look, inputs: Sequence[Any], *, captured_only: bool) -> list[bool]:
        edges = edges_of(look.nodes, look.index)
        wanted = set()
        for tensor in inputs:
            node = root_node(tensor)
            if node is None and not isinstance(tensor, GradientEdge):
                node = next((n for n in look.nodes if kind_of(type(n)).is_leaf and n.variable is tensor), None)  # type: ignore[attr-defined]
            if node is not None and node in look.index:
                wanted.add(look.index[node])
        return will_run(edges, dependencies_last(edges), wanted, captured_only)

    def _examine(
        self, call: Call, look: Look, t_outputs: Sequence[Any], inputs: Sequence[Any], kind: str, create: bool
    ) -> list[Finding]:
        """Book the call's beginning; the findings that are certain before the engine runs."""
        roots = self._name_roots(call.place, t_outputs, look)
        signature = (
            call.place,
            look.nbytes,
            look.left,
            tuple(look.signature),
            tuple(look.freed),
            None if look.runs is None else tuple(look.runs),
        )
        graph = self._picture(signature, look, roots, call.place)
        call.signature = signature
        call.exact = signature not in self._returned
        call.fields = {
            "number": call.number,
            "kind": kind,
            "site": site_of(call.place),
            "roots": roots,
            "retain_graph": call.keep,
            "create_graph": create,
            "inputs": tuple(self._name_input(t) for t in inputs) if inputs else None,
            "graph": self._sink.number(signature, site_of(call.place)) or None,
            "nodes": len(look.nodes),
            "nodes_run": len(look.nodes) if look.runs is None else sum(look.runs),
            "saved_tensors": look.tensors,
            "saved_bytes": graph.saved_bytes if graph is not None else look.nbytes,
            "oldest_generation": look.oldest,
            "parent": call.parent.number if call.parent else None,
            "thread": threading.current_thread().name,
            "started": time.perf_counter() - self.started,
        }
        if not (look.freed or look.stale or look.compiled):
            return []
        return hazards.examine(self, call, look, BackwardCall(**call.fields), graph)

    def _picture(self, signature: Any, look: Look, roots: tuple[Root, ...], place: Place | None) -> Graph | None:
        """The graph as plain data: taken once for graphs that are alike, and always when something is wrong with it."""
        graph = self._pictures.get(signature)
        if graph is None:
            elapsed = time.perf_counter() - self.started
            cheap = self._picture_seconds < _PICTURE_SHARE * elapsed or self._pictures_taken < _FREE_PICTURES
            cheap = cheap and len(look.nodes) <= _LARGEST_PICTURE
            detailed, self.ledger.detailed = self.ledger.detailed, True
            cheap = cheap and detailed  # else the modules are not known: the next graph of this kind will be pictured
            if not cheap and not look.freed and not look.stale:
                return None
            before = time.perf_counter()
            self.names.learn_variables(user_frames(sys._getframe(4)))
            graph = picture(look.nodes, look.index, roots, names=self.names, left=look.left, runs=look.will_run)
            assert self._sink is not None  # only a look outside a watch has none, and that takes no pictures
            self._sink.graph(signature, graph, site_of(place))
            self._pictured_nodes += len(graph.nodes)
            if self._pictured_nodes > _MOST_PICTURED_NODES:
                self._pictures.clear()
                self._pictured_nodes = len(graph.nodes)
            self._pictures[signature] = graph
            self._pictures_taken += 1
            self._picture_seconds += time.perf_counter() - before
        elif self._pictures_taken > _FREE_PICTURES or self.calls > 2 * _FREE_PICTURES:
            self.ledger.detailed = False
        for i, token in enumerate(look.tokens):
            if token.graph is None:
                token.graph, token.index = graph, i
        return graph

    def _name_roots(self, place: Place | None, t_outputs: Sequence[Any], look: Look) -> tuple[Root, ...]:
        key = (id(place), len(t_outputs))
        named = self._roots.get(key)
        if named is None:
            frame = user_frame(sys._getframe(4))
            found = {id(value): name for name, value in reversed(variables(frame))} if frame is not None else {}
            named = self._roots[key] = tuple(found.get(id(t)) for t in t_outputs)
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
        if call.exact:
            if error is None and len(self._returned) < _MOST_SIGNATURES:
                self._returned[call.signature] = call.returned_bytes
        else:  # alike calls return alike
            call.returned_bytes = min(self._returned[call.signature], call.freed_bytes)
            ledger.returned_bytes += call.returned_bytes
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
        self._sink.call(record, call.signature)
        call.signature = None
        if now - self._sampled > _SAMPLE_EVERY:
            self._sampled = now
            still_held = record.freed_bytes - record.returned_bytes
            self._sink.sample(Sample(record.started, record.peak_bytes, 0, call.number - 1))
            self._sink.sample(Sample(now, record.live_bytes, still_held, call.number))
        if threading.get_ident() == self._thread and len(self._boundaries) < _MOST_BOUNDARIES:
            self._boundaries.append(max(_sequence_nr(), self._boundaries[-1] if self._boundaries else 0))
            self._ended.append(call.number)
            self._places.append(call.place)
        self.restore_stack()
        if error is not None and id(error) != self._local.explained:
            self._local.explained = id(error)
            missed = hazards.missed(call, record, str(error))
            if missed is not None:
                self._report(missed)
        self.observe("after_call", call, record, user_frame(sys._getframe(2)))

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
        if threading.get_ident() == self._thread:
            self._sequence_last = _sequence_nr()
        return self._sequence_last


def _renewed_view(packed: Packed, after: int, before: int) -> bool:
    tensor = packed.tensor
    if tensor is None or not packed.original or not tensor._is_view() or tensor.grad_fn is None:
        return False
    return after < tensor.grad_fn._sequence_nr() < before


BEFORE_WATCH = Call(0, None, keep=False)
"""Stands for a backward call that ran before the watch began."""

_OURS = frozenset({Backward.run.__code__, Backward._announce.__code__, Ledger.unpack.__code__})
