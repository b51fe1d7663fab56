"""The edits that fixes are made of: each takes a place and gives the lines that change, or none.

A place is a site: its statement is meant, or the call that begins and ends where the site does. An
expression is given by its text (``fake``, ``self.memory``, ``state[0]``). What cannot be written,
or would not parse, is no edit. Edits of several calls are put together by ``joined``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from gradscope.fixing import again, calls, in_place, moves, refilling, values
from gradscope.fixing.edits import CannotBeWrittenError, checked
from gradscope.fixing.merging import merged
from gradscope.fixing.written import written
from gradscope.model import Edit, Site


@written
def joined(*parts: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return all edits as one change; none if a part is empty or two contradict each other."""
    return checked(*merged(edit for part in parts for edit in part)) if all(parts) else ()


@written
def detach_reads(at: Site, text: str) -> tuple[Edit, ...]:
    """Write ``text.detach()`` wherever the statement at a place reads ``text``.

    Where ``text`` may be None or a number as well, it is detached only if it is a tensor.
    """
    return values.read_with(at, text, ".detach()")


@written
def detach_stored(at: Site, text: str = "", *, elements: bool = False) -> tuple[Edit, ...]:
    """Store the value detached: of an assignment, ``append(x)``, a walrus, an argument, a return.

    ``text`` is the target or the part of the value that is meant. A branch that is a number stays
    as it is; one of several that a call gives is detached after the statement. ``elements``: the
    value is a tuple or a list of tensors, as it is where ``text`` is one of them: ``h[0]``.
    """
    owner = values.owner_of_element(at, text)
    text, elements = owner or text, elements or bool(owner)
    try:
        return values.stored_with(at, ".detach()", text, elements=elements)
    except CannotBeWrittenError:
        name = values.one_of_several(at, text)
        if not name:
            raise
        return moves.detach_after(at, [name], elements=elements, without="")


@written
def detach_returned(function: Site) -> tuple[Edit, ...]:
    """Detach what a function returns."""
    return values.returned_with(function, ".detach()")


@written
def detach_carried(at: Site, text: str) -> tuple[Edit, ...]:
    """Detach what a statement reads of what it stores: ``h = f(x, h.detach())``."""
    return values.carried_with(at, text, ".detach()")


@written
def detach_to_leaf(at: Site, text: str = "") -> tuple[Edit, ...]:
    """Store ``value.detach().requires_grad_()``: a leaf that is trained."""
    return values.stored_with(at, ".detach().requires_grad_()", text)


@written
def detach_after(
    at: Site, names: Sequence[str], *, elements: bool = False, without: str = ""
) -> tuple[Edit, ...]:
    """Put ``name = name.detach()`` after the statement at a place, for each name.

    ``elements``: what the names hold is a tuple of tensors. ``without``: a flag that is left out of
    the call at the place, as ``retain_graph``.
    """
    return moves.detach_after(at, names, elements=elements, without=without)


@written
def no_grad(first: Site, last: Site | None = None, *, context: str = "no_grad") -> tuple[Edit, ...]:
    """Put a statement, or all from the first to the last of a block, under ``torch.no_grad()``, or
    another ``context`` of torch's.

    A function at ``first`` gets ``torch.no_grad()`` as its decorator.
    """
    return moves.under(context, first, last)


@written
def item_added(at: Site, total: str) -> tuple[Edit, ...]:
    """Add ``value.item()`` to a total where the statement at a place adds a tensor."""
    return values.added_with(at, total, ".item()")


@written
def detach_added(at: Site, total: str) -> tuple[Edit, ...]:
    """Add ``value.detach()`` to a total where the statement at a place adds a tensor."""
    return values.added_with(at, total, ".detach()")


@written
def item_stored(at: Site, text: str = "") -> tuple[Edit, ...]:
    """Store ``value.item()``: of an assignment, ``append(x)``, a value in a dict."""
    return values.stored_with(at, ".item()", text)


@written
def stored_as(at: Site, function: str, text: str = "") -> tuple[Edit, ...]:
    """Store ``function(value)``: ``failures.append(str(error))``."""
    return values.called_with(at, function, text)


@written
def backward_of(call: Site, loss: str) -> tuple[Edit, ...]:
    """Call backward on another loss."""
    return calls.backward_of(call, loss)


@written
def sum_losses(first: Site, second: Site) -> tuple[Edit, ...]:
    """Make one backward call of two: ``(first + second).backward()`` where all is computed."""
    return calls.sum_losses(first, second)


@written
def sum_of_loop(call: Site, elements: str) -> tuple[Edit, ...]:
    """Make one backward call of the sum of what a loop runs over."""
    return calls.sum_of_loop(call, elements)


@written
def move_before(at: Site, target: Site) -> tuple[Edit, ...]:
    """Move the statement at a place before another, with the comments above it."""
    return moves.moved(at, target, after=False)


@written
def move_after(at: Site, target: Site) -> tuple[Edit, ...]:
    """Move the statement at a place after another, with the comments above it."""
    return moves.moved(at, target, after=True)


@written
def recompute(at: Site, names: Sequence[str]) -> tuple[Edit, ...]:
    """Compute the names in the loop at or around a place, or else in its function.

    What makes them moves there; where it is used elsewhere as well, it is computed twice.
    """
    return again.recomputed(at, names)


@written
def refilled(store: Site, call: Site) -> tuple[Edit, ...]:
    """Collect anew what a place collects in containers, for each run of a backward call."""
    return refilling.refilled(store, call)


@written
def recompute_in(function: Site, store: Site) -> tuple[Edit, ...]:
    """Move an attribute's store (``self.mix = …`` in ``__init__``) to the head of a method."""
    return again.recomputed_in(function, store)


@written
def forward_again(call: Site, stale: Sequence[str] = ()) -> tuple[Edit, ...]:
    """Compute the loss of a backward call anew before it, from the names that are ``stale`` on."""
    return again.forward_again(call, stale)


@written
def with_flag(call: Site, flag: str) -> tuple[Edit, ...]:
    """Pass ``retain_graph=True`` or ``create_graph=True``, in the place of what is passed now."""
    return calls.with_keyword(call, flag, "True")


@written
def with_keyword(call: Site, name: str, value: str) -> tuple[Edit, ...]:
    """Pass ``name=value`` in a call, in the place of what is passed now."""
    return calls.with_keyword(call, name, value)


@written
def without_flag(call: Site, flag: str) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` or ``create_graph=True`` out of a call."""
    return calls.without_flag(call, flag)


@written
def clone_reads(at: Site, text: str) -> tuple[Edit, ...]:
    """Write ``text.clone()`` wherever the statement at a place reads ``text``."""
    return values.read_with(at, text, ".clone()")


@written
def clone_before(at: Site, name: str) -> tuple[Edit, ...]:
    """Put ``name = name.clone()`` before the statement that changes it in place."""
    return in_place.clone_before(at, name)


@written
def out_of_place(at: Site, methods: Container[str]) -> tuple[Edit, ...]:
    """Write ``x += y`` as ``x = x + y`` and ``x.relu_()`` as ``x = x.relu()``.

    ``methods`` are those that a tensor has. Only of a variable that nothing else knows.
    """
    return in_place.out_of_place(at, methods)


@written
def assigned_instead(at: Site) -> tuple[Edit, ...]:
    """Write ``x.copy_(y)`` as ``x = y``: what a graph saved of the old tensor stays."""
    return in_place.assigned_instead(at)


@written
def not_in_place(at: Site) -> tuple[Edit, ...]:
    """Leave ``inplace=True`` out of the call at a place."""
    return in_place.not_in_place(at)


@written
def reset_at_head(at: Site, name: str, value: str = "") -> tuple[Edit, ...]:
    """Put ``name = value`` at the head of the loop at or around a place.

    By default the value is its first one.
    """
    return again.reset_at_head(at, name, value)


@written
def rebuild_cache(store: Site) -> tuple[Edit, ...]:
    """Make a cached value anew each time: no ``if x is None:`` or early ``return`` comes before."""
    return again.rebuilt(store)


@written
def put_at_end(at: Site, line: str) -> tuple[Edit, ...]:
    """Put a statement at the end of the loop at or around a place."""
    return moves.put_at_end(at, line)


@written
def without_decorator(at: Site) -> tuple[Edit, ...]:
    """Take the decorator at a line off its function, or the one that caches its results."""
    return again.uncached(at)
