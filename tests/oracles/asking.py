"""Asks gradscope what the engine will do with a program, and then the engine itself."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks

import gradscope
from gradscope.collect.marks import NodeMark, Packed
from gradscope.collect.observers import Observer
from gradscope.detect.foresight import Foresight
from gradscope.detect.inplace import InPlace
from gradscope.model import Certainty
from tests.oracles.samples import Built, Sample, TooSlowError

FREED, STALE, OTHER = "GS101", "GS201", "other"
HOOKS, NO_HOOKS, OUTSIDE = "hooks", "no hooks", "outside"
WAYS = (HOOKS, NO_HOOKS, OUTSIDE)
_TEXTS = (
    ("Trying to backward through the graph a second time", FREED),
    ("modified by an inplace operation", STALE),
    ("detached in-place", STALE),
)
FORETELLING = (
    *(
        mock.patch.object(Foresight, name, getattr(Observer, name))
        for name in ("before_call", "after_step")
    ),
    mock.patch.object(InPlace, "changed"),
)
"""What reads the program ahead: here it would read this oracle, which takes most of the time."""
_OUTPUT = re.compile(r", which is output \d+ of \S+,")
_OWN_FAULTS = re.compile("failed in gradscope|please report|switched off|bug in gradscope")


@dataclass
class Outcome:
    """What came of a run: values of results and gradients, or what was raised."""

    values: list[Any] = field(default_factory=list)
    error: str = ""

    @property
    def code(self) -> str:
        """The finding that is due."""
        if not self.error:
            return ""
        return next((code for text, code in _TEXTS if text in self.error), OTHER)


@dataclass
class Answers:
    """How many questions were asked about one sample, and which answers were wrong."""

    asked: int = 0
    unseen: int = 0
    """Of those the ones to which the answer is known to be out of sight: see ``is_unseen``."""
    faults: list[str] = field(default_factory=list)

    def expect(self, what: str, said: object, true: object, *, unseen: bool = False) -> None:
        """Compare one answer with the truth; it may be wrong where that is ``unseen``."""
        self.asked += 1
        if said != true and unseen:
            self.unseen += 1
        elif said != true:
            self.faults.append(f"{what}: {said}, and it is {true}")


Deed = Callable[[Built], None]


def backward(built: Built, *, keep: bool = False) -> None:
    """Call backward on all results, with gradients that are the same in each run."""
    gradients = [torch.full_like(output, 0.5) for output in built.outputs]
    torch.autograd.backward(built.outputs, gradients, retain_graph=keep)


def nothing(built: Built) -> None:
    """Do nothing before the call in question."""


def deeds(built: Built) -> Iterator[tuple[str, Deed]]:
    """Yield what can be done between the forward pass and the call in question."""
    yield "second backward", backward
    yield "after a retaining backward", partial(backward, keep=True)
    if built.step is not None:
        yield "after a step", _step
    for i, one in enumerate(built.inputs[:3]):
        yield f"input {i} written", partial(_write, "inputs", i)
        if not one.is_leaf and not one._is_view():
            yield f"input {i} detached", partial(_detach, i)
    for i in range(len(built.outputs[:2])):
        yield f"output {i} written", partial(_write, "outputs", i)


def _write(which: str, i: int, built: Built) -> None:
    """Write a tensor in place: what it already has."""
    tensor = getattr(built, which)[i]
    with torch.no_grad():
        tensor.copy_(tensor.clone())


def _is_needed(which: str, i: int, sample: Sample) -> bool:
    """Return whether other gradients come of other values written into a tensor."""
    found = []
    for more in (0, 1):
        built = sample.build()
        tensor = getattr(built, which)[i]
        with torch.no_grad():
            tensor.copy_(tensor + more)
        outcome = call(built)
        found.append([outcome.error, *outcome.values[len(built.outputs) :]])
    return found[0] != found[1]


def _detach(i: int, built: Built) -> None:
    built.inputs[i].detach_()


def _step(built: Built) -> None:
    if built.step is not None:
        built.step()


def call(built: Built) -> Outcome:
    """Make the call in question."""
    for leaf in built.leaves:
        leaf.grad = None
    results = [bits(output) for output in built.outputs]
    try:
        backward(built)
    except RuntimeError as error:
        return Outcome(results, str(error))
    return Outcome(results + [bits(leaf.grad) for leaf in built.leaves])


def twice_differentiated(built: Built) -> Outcome:
    """Differentiate, and then the gradients."""
    gradients = [torch.full_like(output, 0.5) for output in built.outputs]
    try:
        first = torch.autograd.grad(
            built.outputs, built.leaves, gradients, create_graph=True, allow_unused=True
        )
        again = [one for one in first if one is not None and one.requires_grad]
        if again:
            torch.autograd.backward(again, [torch.full_like(one, 0.25) for one in again])
    except RuntimeError as error:
        return Outcome(error=str(error))
    return Outcome([bits(one) for one in first] + [bits(leaf.grad) for leaf in built.leaves])


def bits(tensor: torch.Tensor | None) -> Any:
    """Return what a tensor is: its kind, and a hash of its bytes."""
    if tensor is None:
        return None
    with torch.no_grad():
        shape = tuple(tensor.shape) if tensor.layout is not torch.jagged else None
        dense = tensor.detach()
        if dense._is_zerotensor():
            dense = torch.zeros(dense.shape, dtype=dense.dtype)
        if dense.is_nested:
            dense = torch.cat([part.reshape(-1) for part in dense.unbind()])
        if dense.layout is not torch.strided:
            dense = dense.to_dense()
        dense = dense.resolve_conj().resolve_neg().contiguous().reshape(-1)
        return tensor.dtype, tensor.layout, shape, hash(bytes(dense.view(torch.uint8).numpy().data))


def is_unseen(built: Built, way: str) -> bool:
    """Return whether a node has saved a list, or keeps to itself what it saved, and no hooks saw."""
    return way != HOOKS and any(map(_is_closed, walk(built)))


def _is_closed(node: Any) -> bool:
    names = [name for name in dir(type(node)) if name.startswith("_raw_saved_")]
    is_function = "_raw_saved_tensors" in names and isinstance(node, BackwardCFunction)
    is_list = not is_function and any(isinstance(getattr(node, name), tuple) for name in names)
    return is_list or type(node).__name__ == "CppFunction"


def walk(built: Built) -> list[Any]:
    """Return all nodes, with a walk of our own."""
    nodes: list[Any] = list(dict.fromkeys(output.grad_fn for output in built.outputs))
    for node in nodes:
        known = set(nodes)
        nodes += dict.fromkeys(
            n for n, _ in node.next_functions if n is not None and n not in known
        )
    return nodes


def nodes_of(built: Built) -> tuple[int, int]:
    """Count the nodes, and what Python can read of their saved tensors."""
    nodes, saved = walk(built), 0
    for node in nodes:
        for name in dir(type(node)):
            if name.startswith("_raw_saved_"):
                value = getattr(node, name)
                listed = value if isinstance(value, tuple | list) else (value,)
                saved += sum(one is not None and one.data is not None for one in listed)
    return len(nodes), saved


def ask(sample: Sample) -> Answers | None:
    """Ask all questions about a sample; None if torch itself cannot run it."""
    with ExitStack() as without:
        for patch in FORETELLING:
            without.enter_context(patch)
        return _ask(sample)


def _ask(sample: Sample) -> Answers | None:
    answers = Answers()
    packed: list[int] = []
    try:
        built = sample.build()
        if not built.outputs:
            return None
        plain, again = call(built), call(sample.build())
        if plain.error:
            return None
        with saved_tensors_hooks(partial(_counted, packed), _given):
            sample.build()
    except TooSlowError:
        raise
    except Exception:  # what torch lists and cannot do
        return None
    repeats = plain.values == again.values
    del again
    due: dict[str, Outcome] = {}
    acts: dict[str, Deed] = {"first backward": nothing}
    for name, deed in deeds(built):
        built = sample.build()
        try:
            deed(built)
            is_cut = any(
                output.grad_fn is None for output in built.outputs
            )  # detached, or its base
        except RuntimeError:  # an expanded tensor, or one of several views
            continue
        if is_cut:
            continue
        acts[name] = deed
        due[name] = call(built)
    doubled = twice_differentiated(sample.build())
    doubles = bool(doubled.error) or doubled.values == twice_differentiated(sample.build()).values
    gone = [weakref.ref(one) for one in sample.build().outputs]
    gc.collect()
    dies = not any(one() is not None for one in gone)
    del built
    due["first backward"] = plain
    for way in (HOOKS,) if sample.variant in ("method", "complex") else WAYS:
        for name, deed in acts.items():
            compare(answers, sample, way, name, deed, due[name], repeats, len(packed), due)
        if way is not OUTSIDE and doubles:
            with gradscope.watch(hooks=way is HOOKS) as scope:
                answers.expect(
                    f"{way}: double backward",
                    _short(twice_differentiated(sample.build())),
                    _short(doubled),
                )
            _expect_no_fault(answers, f"{way}: double backward", scope)
    if dies:
        before = marks()
        gone = [weakref.ref(one) for one in _outputs_in_a_watch(sample)]
        gc.collect()
        alive = sum(one() is not None for one in gone)
        answers.expect("hooks: results alive after", alive, 0)
        answers.expect("hooks: marks alive after", max(0, marks() - before), 0)
    return answers


def marks() -> int:
    """Count what is left of gradscope's in graphs that still live."""
    return sum(isinstance(one, Packed | NodeMark) for one in gc.get_objects())


def _counted(packed: list[int], tensor: torch.Tensor) -> torch.Tensor:
    packed.append(1)
    return tensor.detach()


def _given(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _outputs_in_a_watch(sample: Sample) -> list[torch.Tensor]:
    with gradscope.watch():
        backward(sample.build())
        built = sample.build()
        gradscope.check(*built.outputs)
        return built.outputs


def compare(
    answers: Answers,
    sample: Sample,
    way: str,
    name: str,
    deed: Deed,
    due: Outcome,
    repeats: bool,
    packed: int,
    all_due: dict[str, Outcome],
) -> None:
    """Run a sample in one way, do something, ask, and let the engine answer."""
    is_first, what = name == "first backward", f"{way}: {name}"
    watch: Any = nullcontext() if way is OUTSIDE else gradscope.watch(hooks=way is HOOKS)
    with watch as scope:
        built = sample.build()
        unseen = due.code == STALE and is_unseen(built, way)
        if is_first:
            if way is HOOKS and scope.summary.exact:  # else hooks were lifted in what it did
                answers.expect(
                    f"{what}: saved tensors counted", scope.summary.saved_tensors, packed
                )
            graph = gradscope.snapshot(*built.outputs)
            counts = len(graph.nodes), sum(len(node.saved) for node in graph.nodes)
            answers.expect(f"{what}: nodes and saved tensors shown", counts, nodes_of(built))
            ask_uses(answers, what, sample, built, all_due, repeats)
        deed(built)
        codes = {hazard.code for hazard in gradscope.check(*built.outputs)}
        outcome = call(built)
    true = {due.code} - {"", OTHER}
    if due.code != OTHER:
        answers.expect(f"{what}: check", sorted(codes), sorted(true), unseen=unseen)
    if outcome.error or due.error or repeats:
        answers.expect(f"{what}: outcome", _short(outcome), _short(due))
    if scope is None:
        return
    certain = [one for one in scope.findings if one.code in (FREED, STALE)]
    called = {one.code for one in certain if one.certainty is Certainty.CERTAIN and not one.missed}
    if due.code != OTHER:
        answers.expect(f"{what}: announced", sorted(called), sorted(true), unseen=unseen)
    answers.expect(f"{what}: missed", any(one.missed for one in certain), False, unseen=unseen)
    _expect_no_fault(answers, what, scope)


def ask_uses(
    answers: Answers,
    what: str,
    sample: Sample,
    built: Built,
    due: dict[str, Outcome],
    repeats: bool,
) -> None:
    """Ask of each tensor whether it may be changed in place: not if the engine refuses it then, or
    computes other gradients from it (of memory that was saved with a version counter of its own).
    """
    for kind, tensors in (("input", built.inputs), ("output", built.outputs)):
        for i, one in enumerate(tensors):
            outcome = due.get(f"{kind} {i} written")
            if outcome is None or outcome.code == OTHER:
                continue
            found = {use.name: use.in_place for use in _uses(built.outputs, one)}
            unseen = is_unseen(built, NO_HOOKS)
            true = outcome.code != STALE
            if true and repeats and not found["one"]:
                true = not _is_needed(f"{kind}s", i, sample)
            answers.expect(f"{what}: uses of {kind} {i}", found["one"], true, unseen=unseen)


def _uses(roots: list[torch.Tensor], one: torch.Tensor) -> Any:
    return gradscope.uses(*roots)


def _short(outcome: Outcome) -> str:
    return _OUTPUT.sub("", outcome.error) or f"values {hash(tuple(outcome.values)):x}"


def _expect_no_fault(answers: Answers, what: str, scope: Any) -> None:
    notes = [note for note in scope.summary.notes if _OWN_FAULTS.search(note)]
    said = [one.message for one in scope.findings if _OWN_FAULTS.search(one.message)]
    answers.expect(f"{what}: faults of its own", notes + said, [])
