"""A checkpoint computes something else in the backward call than in the forward pass.

## What it says

A checkpoint keeps no intermediate tensors: it runs its function again in the backward call. That
run has just saved another tensor than the forward pass (another operation, shape or type, or one
more, or one less), so torch raises `CheckpointError`. gradscope says before that which checkpoint
it is, which operation is the first that differs, with its line and module, and what it has seen to
be another thing than in the forward pass: random numbers that were drawn anew, a mode, a counter or
a cache of the module, another thread.

Where shapes and types are the same and the values are others, torch raises nothing, and the
gradients are those of neither run. That is a warning.

## Why it happens

The function depends on something that has changed since: `preserve_rng_state=False` draws another
mask or other noise, and Python's or NumPy's random numbers are other ones in any case; a router,
which then sends other tokens to an expert; `model.eval()` between the forward pass and the
backward call; a cache that is filled by now; a global counter; parameters that a step has changed.

## Bad example

```python
import torch
from torch.utils.checkpoint import checkpoint

gate = torch.nn.Linear(8, 8)

def route(x):
    chosen = (torch.rand(64) < 0.5).nonzero().squeeze(-1)
    return x.index_add(0, chosen, gate(x[chosen]).tanh())

torch.manual_seed(0)
y = checkpoint(route, torch.randn(64, 8), use_reentrant=False, preserve_rng_state=False)
y.sum().backward()
```

## Good example

```python
import torch
from torch.utils.checkpoint import checkpoint

gate = torch.nn.Linear(8, 8)

def route(x):
    chosen = (torch.rand(64) < 0.5).nonzero().squeeze(-1)
    return x.index_add(0, chosen, gate(x[chosen]).tanh())

torch.manual_seed(0)
y = checkpoint(route, torch.randn(64, 8), use_reentrant=False, preserve_rng_state=True)
y.sum().backward()
```

## What to do

- Leave `preserve_rng_state` at True, its default.
- Decide before the checkpoint what shapes depend on (routing, sampling, layers that are dropped),
  and hand that to its function as an argument. Draw from `random` and `numpy.random` there, too.
- Change modes, counters and settings after the backward call. Fill caches before the checkpoint.
- Step after the backward call, or run the forward pass again after the step.

## What it costs

While graphs are looked at in full, some numbers for each tensor that a checkpoint saves; no tensor
is kept. Nothing while the hooks are suspended.

## Known limits

Values are compared on the CPU, by sums of samples, for a limited number of tensors. A reentrant
checkpoint saves nothing in its forward pass: of it random numbers and parameters are known to
differ, and after the error its output. With `determinism_check="none"` torch compares nothing, and
what then fails is another error. An error in an iteration in which the hooks were suspended is
explained after it, without the line where no earlier iteration saved the same. Buffers that the
function itself updates, as the running statistics of a batch norm, are updated twice: that changes
no gradient, and is not said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradscope.formatting import listed
from gradscope.model import BackwardCall, Certainty, Finding, Fix, FixKind, Related, Severity, Site
from gradscope.rules.base import rule

RULE = rule(__doc__, "GS601", "checkpoint-recomputes-otherwise", Severity.ERROR, Certainty.CERTAIN)

PRESERVED = "pass preserve_rng_state=True to the checkpoint, so that both runs draw the same"


class Operand(NamedTuple):
    """What an operation saves: its line, its module, and a label (``f32[8]``)."""

    site: Site | None = None
    module: str = ""
    label: str = "a tensor"


class Recomputed(NamedTuple):
    """What is known when ``call`` runs a ``checkpoint`` again: the first operation that differs, of
    a ``kind``, has saved ``then``, and saves ``now``; None of nothing, both of what is not known.

    ``drawn`` are the modules whose random numbers the forward pass has drawn, ``changed`` the names
    of what the function reads. ``has_raised``: torch has said so before. ``elsewhere``: it runs in
    another thread than the forward pass.
    """

    call: BackwardCall
    checkpoint: Site | None = None
    then: Operand | None = None
    now: Operand | None = None
    kind: str = ""
    drawn: tuple[str, ...] = ()
    preserves: bool = True
    changed: tuple[str, ...] = ()
    is_silent: bool = False
    is_reentrant: bool = False
    has_raised: bool = False
    elsewhere: bool = False


def finding(facts: Recomputed) -> Finding:
    """Return the finding, with what may be the cause."""
    causes = [*_causes(facts)]
    again = "this checkpoint runs its function again"
    if facts.is_reentrant and facts.then is not None and facts.now is not None:
        again += f": the output was {facts.then.label}, and is {facts.now.label} now"
    notes = [Related("created", facts.checkpoint, again)]
    notes += () if facts.is_reentrant else _difference(facts)
    says = "torch raised" if facts.has_raised else "torch will raise"
    label = f"runs the checkpoint again: {says}"
    what = "something else"
    if facts.is_silent:
        what, label = "other values", "gradients come out wrong, without an error"
    return RULE.finding(
        f"a checkpoint computes {what} in the backward call than in the forward pass",
        facts.call,
        label=label,
        related=(*notes, *(Related("made", None, cause) for cause, _ in causes)),
        fixes=(Fix(FixKind.OTHER, "; ".join(way for _, way in causes) or _UNKNOWN),),
        severity=Severity.WARNING if facts.is_silent else None,
        certainty=Certainty.OBSERVED if facts.is_silent or facts.has_raised else None,
    )


_UNKNOWN = (
    "keep out of the checkpoint what shapes depend on (routing, sampling, caches); "
    "torch.utils.checkpoint.set_checkpoint_debug_enabled(True) prints the operations of both runs"
)


def _difference(facts: Recomputed) -> Iterator[Related]:
    then, now = facts.then, facts.now
    shown = now or then
    if shown is None:
        return
    who = " ".join(filter(None, (facts.kind, f"in `{shown.module}`" * bool(shown.module))))
    first = f"the first operation that differs{f' ({who})' if who else ''}"
    if now is None:
        text = f"{first} saved {shown.label} here, and does not run again"
    elif then is None:
        text = f"{first} saves {now.label} here, and nothing in the forward pass"
    elif then.site != now.site:
        text = f"{first} saves {now.label} here; the forward pass saved {then.label} elsewhere"
    elif then.label == now.label:
        text = f"{first} saves {now.label} with other values"
    else:
        text = f"{first} saved {then.label} in the forward pass, {now.label} now"
    yield Related("failing_node", shown.site or facts.checkpoint, text)
    if then is not None and now is not None and then.site not in (None, now.site):
        yield Related("made", then.site, f"the forward pass saved {then.label} here")


def _causes(facts: Recomputed) -> Iterator[tuple[str, str]]:
    """Yield what differs around the two runs, each with what can be done about it."""
    if "torch" in facts.drawn and not facts.preserves:
        drawn = "the forward pass drew random numbers, and preserve_rng_state=False draws others"
        yield drawn, PRESERVED
    for name in facts.drawn:
        if name != "torch":
            kept = f"the forward pass drew from `{name}`, whose state no checkpoint keeps"
            yield (
                kept,
                f"draw from `{name}` before the checkpoint, and hand the numbers to its function",
            )
    if facts.changed:
        names = listed(f"`{_named(name)}`" for name in facts.changed)
        modes = [name for name in facts.changed if name.endswith(".training")]
        one = f"`{_named(facts.changed[0])}`"
        if modes:
            way = "call train() and eval() before the forward pass or after the backward call"
        elif facts.is_silent:
            way = f"change {one} after the backward call, or run the forward pass again after that"
        else:
            way = (
                f"have both runs find the same {one}: change it before the checkpoint or after the "
                "backward call, or hand it over as an argument"
            )
        yield f"changed since the forward pass: {names}", way
    if {*facts.drawn} - {"torch"} or facts.changed or (facts.drawn and not facts.preserves):
        return
    if not facts.preserves:
        yield "preserve_rng_state=False: random numbers are drawn anew", PRESERVED
    elif facts.elsewhere:
        where = "it runs in another thread than the forward pass"
        yield where, "have the function read nothing that each thread has for itself"


def _named(name: str) -> str:
    """Return the name of what changes with a tensor that is only counted up."""
    return name.replace("num_batches_tracked", "running_mean")
