"""Memory ran out, and this is what the graphs held by then.

## What it says

Torch could not allocate memory, and that ended the program. gradscope looks at the graphs that were
alive at that moment: what the graph that was being built had saved, by module, line and operation,
and which other graphs there were and what holds them. The first line names the largest of what was
kept for nothing: graphs of earlier iterations that a variable keeps alive, an evaluation without
`torch.no_grad()`, a graph kept by `retain_graph=True`. If there was none of that, one batch is too
large, and the line is the one that saved most of it.

## Why it happens

Each operation saves what its derivative will need, and that stays until backward runs or the graph
goes: a forward pass needs memory for all of its activations at once. What is kept of earlier passes
comes on top of that, a little more with each.

## Bad example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 4))
model.eval()
hits = 0
for batch in range(3):
    out = model(torch.randn(1024, 64))
    hits += int(out.argmax(1).eq(0).sum())
torch.empty(2**50)  # stands for a batch that does not fit any more
```

## Good example

```python
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 4))
model.eval()
hits = 0
with torch.no_grad():
    for batch in range(3):
        out = model(torch.randn(1024, 64))
        hits += int(out.argmax(1).eq(0).sum())
```

## What to do

- What grows: store numbers (`loss.item()`) or `detach()`, see GS302 and GS301.
- An evaluation: run it under `torch.no_grad()` or `torch.inference_mode()`, see GS305.
- `retain_graph=True` that nothing needs: leave it away, see GS303.
- One batch: take a smaller one, and add up the gradients of several before a step; or run a part of
  the model under `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`. The help says how
  many bytes each sample has saved, and how many the modules that alone need most.

## What it costs

Without graphs that are kept for nothing, nothing. Modules under a checkpoint run once more during
backward: the help says how many of their operations at least. A smaller batch changes what batch
norms see, and nothing else if the gradients are added up.

## Known limits

It is said when the error ends the program or leaves the `with` block of the watch. Where the
program catches it, that is advice, of the first one only; of the CPU's allocator nothing is said
then. A function given to `torch.compile` whose own code raises `torch.OutOfMemoryError` has a break
in its graph there, while a watch sees such errors. gradscope counts what graphs have saved and no
other memory: weights, gradients, states of optimizers, what an operation needs while it runs,
fragments of an allocator.
Where the error tells what torch has allocated and graphs hold less than a tenth, they are not
blamed. What was kept is named as the cause from a tenth on, and from 3 iterations on where it
grows. What a checkpoint is worth is an estimate: a module's input stays, and so does what others
hold. Graphs are found from the variables of the functions in the traceback, and of those that
called them; those of an expression that was being computed are gone by then, and with gradscope's
hooks the report says how much that was. Where the hooks were suspended, the lines are told by the
graphs before, and modules are not. Where a budget has let backward calls pass, it is not said that
something is never run, or how much each iteration adds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

from gradscope.formatting import counted, gathered, nbytes
from gradscope.model import Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import rule

RULE = rule(__doc__, "GS401", "out-of-memory", Severity.ERROR, Certainty.OBSERVED)

_LEAST_SHARE = 0.1  # of what graphs held, or all of torch, for what was kept to be the cause
_ALMOST_ALL = 0.95  # of what was saved, for the samples in it to be those of the batch
_MOST_TIMES = 10  # as large as all graphs is what fails for a reason of its own
_MOST_LINES, _MOST_OPERATIONS = 3, 2  # that are named, with what they saved: those of most bytes


@dataclass(slots=True)
class Memory:
    """Memory that the node with a ``number`` was the first to save; most often it made that. All
    nodes that have saved it were built in one ``module``. Its first dimension are ``samples``.
    """

    number: int
    nbytes: int
    operation: str
    module: str
    site: Site | None
    samples: int


class OutOfMemory(NamedTuple):
    """What is known of an allocation that failed: ``asked`` bytes at the line ``failed``, and the
    bytes that torch had ``allocated`` then; 0 if that is not known.

    ``saved`` is what the graph held that was being built, or ``in_call`` was run. ``kept`` says
    what others were kept by, for nothing, and ``held`` by which variables. All graphs together have
    ``total`` bytes, ``after`` that many backward calls; ``most`` is what they had before.
    """

    failed: Site | None
    asked: int
    allocated: int
    saved: Sequence[Memory]
    in_call: bool
    kept: Sequence[Finding]
    held: Sequence[tuple[str, Site | None, int]]
    total: int
    most: int
    after: int


def total_of(saved: Iterable[Memory]) -> int:
    """Return the bytes of what was saved."""
    return sum(one.nbytes for one in saved)


def finding(facts: OutOfMemory) -> Finding:
    """Return the finding, with what would have helped: of what was kept, the most bytes first."""
    kept, saved = sorted(facts.kept, key=lambda each: -each.bytes), total_of(facts.saved)
    least = _LEAST_SHARE * max(facts.total, facts.allocated)
    causes, lines = [each for each in kept if each.bytes >= least], _by("site", facts.saved)
    asked, site, fewer = nbytes(facts.asked) if facts.asked else "memory", facts.failed, ""
    if causes:
        message, site, label = causes[0].message, causes[0].site, causes[0].label
    elif facts.asked > _MOST_TIMES * facts.most or not facts.most >= max(least, 1):
        message, of = "the live graphs do not explain it", nbytes(facts.allocated)
        held = f"all graphs hold {nbytes(facts.total)}{f' of {of}' if facts.allocated else ''}"
        label = f"tried to allocate {asked} here; {held}"
    else:
        message, fewer = "one batch is too large", "give the model fewer samples at a time"
        label = f"{nbytes(saved)} saved" if saved else f"graphs held {nbytes(facts.most)}"
        if lines and lines[0][0]:
            site, label = lines[0][0], f"{label}{', most of it here' if lines[1:] else ''}"
    related = [note for each in kept for note in each.related] + [*_told(facts, lines)]
    for name, stored, size in facts.held:
        related.append(Related("held_by", stored, f"`{name}` holds another graph, {nbytes(size)}"))
    related.append(Related("failing_node", facts.failed, f"torch could not allocate {asked} here"))
    fixes = [fix for each in causes for fix in each.fixes] + [*_checkpoint(facts.saved)]
    samples, of_batch = next(iter(_by("samples", facts.saved)), (0, []))
    if samples > 1 and total_of(of_batch) >= _ALMOST_ALL * saved:
        each = f"one of the {samples:,} samples (first dimension) saves {nbytes(saved // samples)}"
        fewer = f"take fewer samples at a time: dropping {each}"
    fixes += [Fix(FixKind.SMALLER_BATCH, fewer)] if fewer else []
    return RULE.finding(
        f"out of memory: {message}",
        site=site,
        after=facts.after,
        label=label,
        related=related,
        bytes=facts.total,
        fixes=fixes,
    )


def survived(found: Finding) -> Finding:
    """Return the finding where the program has caught the error."""
    message = found.message.replace("out of memory:", "out of memory, but the program caught it:")
    return replace(found, message=message, severity=Severity.ADVICE)


def _by(name: str, saved: Iterable[Memory]) -> list[tuple[Any, list[Memory]]]:
    """Return what was saved by one of its fields, the most bytes first."""
    groups = gathered(saved, attrgetter(name))
    return sorted(groups.items(), key=lambda group: -total_of(group[1]))


def _told(facts: OutOfMemory, lines: Sequence[tuple[Any, list[Memory]]]) -> Iterator[Related]:
    """Yield what the graph had saved, and a note for each line of those that saved most."""
    running = f"of backward call {facts.after:,} still held"
    whose = running if facts.in_call else "being built had saved"
    what = f"{nbytes(total_of(facts.saved))} in {counted(len(facts.saved), 'tensor')}"
    none = "nothing more" if facts.kept else "nothing"
    yield Related("created", None, f"the graph {whose} {what if facts.saved else none}")
    for site, here in lines[:_MOST_LINES]:
        told = [f"{nbytes(total_of(here))} of it {'here' if site else 'at unknown lines'}"]
        operations = _by("operation", here)[:_MOST_OPERATIONS]
        told += [f"{nbytes(total_of(of))} by {name}" for name, of in operations]
        told += [f"most in `{name}`" for name, _ in _by("module", here)[:1] if name]
        yield Related("created", site, ", ".join(told))
    if facts.most > _MOST_TIMES * facts.total:
        gone = f"graphs held {nbytes(facts.most)} before; the rest was gone when the error came"
        yield Related("created", None, gone)


class _Checkpoint(NamedTuple):
    """A ``module`` to run under a checkpoint, or each of the ``parts`` in it, which saves
    ``nbytes``.
    """

    nbytes: int
    module: str
    parts: int = 0

    @property
    def what(self) -> str:
        """What to run so, as text."""
        each = f"each of the {self.parts} modules in " if self.parts else ""
        return f"{each}`{self.module}`"

    def has(self, module: str) -> bool:
        """Return whether a module is run so, by itself or inside of one."""
        is_inside = module.startswith(f"{self.module}.")
        return is_inside or (module == self.module and not self.parts)


def _best(saved: Sequence[Memory]) -> _Checkpoint | None:
    """Return what to run under checkpoints: a module, or each of those in one, that alone needs
    much of what was saved. What its first node saved stays: that is what the module was given.
    """
    first, before = dict[str, int](), dict[str, int]()
    spared, so_far = Counter[str](), 0
    for one in sorted(saved, key=lambda one: one.number):
        so_far += one.nbytes
        for name in accumulate(one.module.split("."), "{}.{}".format):
            before[name] = so_far
            spared[name] += one.nbytes * (first.setdefault(name, one.number) != one.number)
    parts = defaultdict[str, list[_Checkpoint]](list)
    for name, size in spared.items():
        if "." in name and size:
            parts[name.rpartition(".")[0]].append(_Checkpoint(size, name))
    total, options = total_of(saved), list[_Checkpoint]()
    for parent, of in parts.items():
        # What comes behind a module is gone when it runs again, and needs all of its memory.
        gains = (min(each.nbytes, total - before[each.module]) for each in of)
        options += [each._replace(nbytes=gain) for each, gain in zip(of, gains, strict=True)]
        gain = sum(each.nbytes for each in of) - max(of).nbytes
        options.append(_Checkpoint(gain, parent, len(of)))
    best = max(options, default=None)
    return best if best is not None and best.nbytes > _LEAST_SHARE * total else None


def _checkpoint(saved: Sequence[Memory]) -> Iterator[Fix]:
    """Yield what to run under checkpoints, and what that costs."""
    if (best := _best(saved)) is not None:
        again = len({one.number for one in saved if best.has(one.module)})
        cost = f"about {nbytes(best.nbytes)} less, {counted(again, 'operation')} or more run again"
        what = f"run {best.what} under torch.utils.checkpoint: {cost}"
        yield Fix(FixKind.RECOMPUTE, what)
