"""A backward call goes through a graph whose saved tensors an earlier backward call has freed.

## What it says

The backward call that is about to start will run a node that needs a tensor it saved in the forward
pass, and that tensor is gone: an earlier `backward()` or `autograd.grad()` ran the node, and let go
of what it had saved. The engine raises `RuntimeError: Trying to backward through the graph a second
time`. gradscope says so before the engine starts, so no `.grad` has been touched yet, and names the
line that built the freed part and the call that freed it.

## Why it happens

Every forward pass builds a new graph. A backward call frees the saved tensors of each node that it
runs, unless it gets `retain_graph=True`. So a second call fails where it meets a node of the first:
two losses share a part, a state is carried from one iteration into the next, or something made
before the loop is used in every iteration. Nodes that saved nothing (`sum`, `add`, `view`) can be
run any number of times, which is why some shared graphs never fail.

## Bad example

```python
import torch

encoder = torch.nn.Linear(4, 8)
animal, age = torch.nn.Linear(8, 3), torch.nn.Linear(8, 1)

z = torch.tanh(encoder(torch.randn(2, 4)))
loss_animal = animal(z).pow(2).mean()
loss_age = age(z).pow(2).mean()
loss_animal.backward()
loss_age.backward()
```

## Good example

```python
import torch

encoder = torch.nn.Linear(4, 8)
animal, age = torch.nn.Linear(8, 3), torch.nn.Linear(8, 1)

z = torch.tanh(encoder(torch.randn(2, 4)))
loss_animal = animal(z).pow(2).mean()
loss_age = age(z).pow(2).mean()
(loss_animal + loss_age).backward()
```

## What to do

- Two losses over one forward pass, one optimizer: add them and call backward once.
- Two losses, and the first should not train the shared part (a discriminator on `fake`, an actor on
  the advantage): `detach()` the shared tensor where the first loss takes it.
- A state that is carried on (`h`, a memory, a queue): `detach()` it at the boundary between
  iterations.
- Something made once before the loop: make it again inside the loop, or `detach()` it if it should
  not be trained.
- The first call was an `autograd.grad` used as a probe: pass `retain_graph=True` to that one.
- The same loss twice: run the forward pass again.

`retain_graph=True` everywhere is rarely the fix: with a carried state the graph then grows with
every iteration, and an optimizer step in between turns this error into GS201.

`gradscope fix` shows the fix as an edit of your lines where a few of them do it, and tries it out.

## What it costs

Adding the losses costs nothing: one backward runs the shared part once instead of twice. `detach()`
costs nothing and stops training through that path. Running the forward again costs its time.
`retain_graph=True` keeps every saved tensor of the call until the graph itself goes.

## Known limits

Saved tensors of a C++ custom function are seen only while gradscope's hooks are installed (not with
`--no-hooks`). A graph that was freed before gradscope began to watch is recognised, and the call
that freed it is not known. Reading `node._saved_…` after a backward raises the same text; that is
no backward call, and it is explained after the fact. So is a graph that another thread, or a
backward call in a hook, frees after the call has begun: no look before it can see that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradscope.formatting import counted, listed, nbytes
from gradscope.model.calls import BackwardCall
from gradscope.model.finding import Certainty, Finding, Fix, FixKind, Related, Severity
from gradscope.model.graph import Node, SavedState, Site, activation_bytes
from gradscope.rules.base import Situation, built, called, head, is_grad, met, rule

RULE = rule(__doc__, "GS101", "backward-through-freed-graph", Severity.ERROR, Certainty.CERTAIN)


_BEFORE = "before gradscope began to watch"


class FreedGraph(NamedTuple):
    """What is known when ``call`` is about to run ``nodes``, whose saved tensors ``freed_by`` has
    freed.

    ``nodes`` begins with the one the engine will stop at; ``made`` holds the user's lines that
    built them, the one to blame first. ``freed_by`` is None if it ran before gradscope watched
    or, ``freed_unseen``, was not inspected.
    ``freed_same_statement``: it came from the same place in the code as ``call``. ``same_root``:
    both start at the same node. ``made_again``: the first of ``made`` has built nodes once more
    since, so that a new iteration has begun. ``trains_anew``: the call also reaches a leaf outside
    of what is freed. ``stepped_between``: an optimizer has stepped since.
    ``foreseen`` are the fixes that were proposed when ``freed_by`` was about to run, if the failure
    was predicted then, and ``foretold`` the line that the prediction pointed at.
    """

    call: BackwardCall
    nodes: tuple[Node, ...]
    made: tuple[Site, ...] = ()
    freed_by: BackwardCall | None = None
    freed_unseen: bool = False
    freed_same_statement: bool = False
    same_root: bool = False
    made_again: bool = False
    trains_anew: bool = True
    stepped_between: bool = False
    foreseen: tuple[Fix, ...] = ()
    foretold: Site | None = None


def finding(facts: FreedGraph) -> Finding:
    """Return the finding, with what can be done about it, in words."""
    saved = tuple(s for node in facts.nodes for s in node.saved if s.state is SavedState.FREED)
    needed = counted(len(saved), "saved tensor") if saved else "the saved tensors"
    where = "" if facts.call.site is not None else f", in thread {facts.call.thread!r}"
    return RULE.finding(
        f"{'autograd.grad' if is_grad(facts.call) else 'backward'} through a freed graph",
        facts.call,
        site=head(facts.call, facts.foretold, *facts.made),
        label=f"needs {needed} of {counted(len(facts.nodes), 'node')}, already freed{where}",
        related=_related(facts, activation_bytes(saved)),
        nodes=facts.nodes,
        saved=saved,
        fixes=facts.foreseen or (_fix(facts),),
    )


def _earlier_run(facts: FreedGraph) -> str:
    """Return as which cell the notebook ran the call's own cell before, if that freed."""
    by = facts.freed_by
    if by is None or by.site is None or by.site != facts.call.site:
        return ""
    return by.site.cell if by.site.cell != _cell(facts.call) else ""


def _cell(call: BackwardCall) -> str:
    return "" if call.site is None else call.site.cell


def finding_meanwhile(facts: FreedGraph) -> Finding:
    """Return the finding for a graph that was whole when ``call`` began."""
    by = facts.freed_by
    assert by is not None
    apart = by.thread != facts.call.thread
    who = f"in thread {by.thread!r}" if apart else "made inside of this one, in a hook"
    names = listed(node.name for node in facts.nodes)
    notes = [*built(facts.made, f"the shared part was built here: {names}")]
    notes.append(Related("freed_by", by.site, f"freed by {called(by)}, {who}, while this one ran"))
    order = "run only one of the calls at a time" if apart else "move that call out of the hook"
    return RULE.finding(
        f"another {'thread' if apart else 'call'} freed the graph while backward ran",
        facts.call,
        site=head(facts.call, *facts.made),
        label="the graph was intact when this call began, and was partly freed while it ran",
        related=notes,
        nodes=facts.nodes,
        fixes=(Fix(FixKind.REORDER, f"{order}, or add the losses and call backward once"),),
        certainty=Certainty.OBSERVED,
    )


def finding_of_read(
    site: Site | None,
    after: int,
    node: str = "",
    made: Site | None = None,
    freed_by: BackwardCall | None = None,
) -> Finding:
    """Return the finding for code at ``site`` that read what a node had saved (``_saved_...``), and
    that ``freed_by`` has let go of.

    This is no backward call, so it can only be explained after torch has raised. ``after`` is the
    number of the last completed backward call.
    """
    notes = []
    if made is not None:
        notes.append(Related("created", made, f"{node} was built here"))
    if freed_by is not None:
        message = f"freed by {called(freed_by)}, which ran without retain_graph=True"
        notes.append(Related("freed_by", freed_by.site, message))
    earlier = "read saved tensors before the backward call, or pass retain_graph=True to it"
    return RULE.finding(
        "saved tensor read after it was freed",
        site=site,
        after=after,
        label=f"reads what {node or 'a node'} saved, already freed",
        related=notes,
        nodes=(node,) if node else (),
        fixes=(Fix(FixKind.REORDER, earlier),),
        certainty=Certainty.OBSERVED,
    )


def _related(facts: FreedGraph, freed_bytes: int) -> Iterator[Related]:
    """Yield where it was built, what freed it, and where the engine would stop if that is yet
    another line.
    """
    by, same_line = facts.freed_by, facts.freed_same_statement
    # Freed in an earlier iteration, not by a sibling loss.
    loop = facts.made_again or same_line
    part = "the freed part" if by is None or loop else "the shared part"
    names = listed(node.name for node in facts.nodes)
    what = f"{names}, {nbytes(freed_bytes)} saved" if freed_bytes else names
    once = ", once" if same_line and not facts.made_again else ""
    subject = "the graph" if facts.same_root else part
    yield from built(facts.made, f"{subject} was built here{once}: {what}", f"and here{once}")
    if by is None:
        unseen = "by a call that gradscope did not inspect" if facts.freed_unseen else _BEFORE
        yield Related("freed_by", None, f"it was freed {unseen}")
    else:
        again = ", an earlier run of this line" if same_line else ""
        if before := _earlier_run(facts):
            again = f", when this cell ran before as {before}"
        apart = by.thread != facts.call.thread
        where = f" in thread {by.thread!r}" if apart else ""
        how = "" if by.retain_graph else ", which ran without retain_graph=True"
        yield Related("freed_by", by.site, f"freed by {called(by)}{where}{again}{how}")
    stops = facts.nodes[0]
    if stops.site is not None and stops.site not in facts.made:
        message = f"the engine would stop at {stops.name}, built here"
        yield Related("failing_node", stops.site, message)


def _fix(facts: FreedGraph) -> Fix:
    """Return what can be done in the first situation whose facts hold."""
    call, by = facts.call, facts.freed_by
    if by is None:
        return Situation.USED_UP.fix(made=facts.made, runs=call.site)
    cell, before = facts.made[0].cell if facts.made else "", _earlier_run(facts)
    same_line, stepped = facts.freed_same_statement, facts.stepped_between
    is_sibling = not (facts.same_root or facts.made_again or same_line)
    is_asked = is_grad(by) or (is_grad(call) and not stepped)
    is_older = facts.made_again or (stepped and not (same_line or is_grad(by)))
    situations = {
        Situation.CELL_CARRIES: bool(before) and cell == before != _cell(call),
        Situation.CELL_BEFORE: bool(before and cell) and cell != _cell(call),
        Situation.NESTED: None is not call.parent == by.parent and not is_grad(call),
        Situation.ONCE_MORE: is_asked if is_sibling else facts.same_root and by.inputs is not None,
        Situation.TWICE: facts.same_root,
        Situation.USED_UP: is_older and not facts.trains_anew,
        Situation.CARRIED: facts.made_again,
        Situation.SOMETIMES_KEPT: same_line and call.retain_graph,
        Situation.MADE_ONCE: same_line,
        Situation.PARTED: stepped,
        Situation.SIBLINGS: True,
    }
    return met(situations).fix(made=facts.made, frees=by.site, runs=call.site)
