"""The edits that fixes are made of: each takes a place and gives the lines that change, or none.

A place is a site: its statement is meant, or the call that begins and ends where the site does. An
expression is given by its text (``fake``, ``self.memory``, ``state[0]``). What cannot be written,
or would not parse, is no edit. Edits of several calls are put together by ``joined``.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from gradscope.model import Edit, Site


def joined(*parts: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return all edits as one change; none if a part is empty or two parts change one line."""
    return ()


def detach_reads(at: Site, text: str) -> tuple[Edit, ...]:
    """Write ``text.detach()`` wherever the statement at a place reads ``text``."""
    return ()


def detach_stored(at: Site, text: str = "", *, elements: bool = False) -> tuple[Edit, ...]:
    """Store the value detached: of an assignment, ``append(x)``, a walrus, an argument, a return.

    ``text`` is the target, where the statement has several. A branch that is a number stays as it
    is. ``elements``: the value is a tuple or a list of tensors.
    """
    return ()


def detach_after(at: Site, names: Sequence[str], *, elements: bool = False) -> tuple[Edit, ...]:
    """Put ``name = name.detach()`` after the statement at a place, for each name."""
    return ()


def detach_returned(at: Site, text: str = "") -> tuple[Edit, ...]:
    """Detach what the ``return`` at a place gives, or the part of it that is ``text``."""
    return ()


def no_grad(first: Site, last: Site | None = None) -> tuple[Edit, ...]:
    """Put a statement, or all from the first to the last of a block, under ``torch.no_grad()``."""
    return ()


def item_added(at: Site, total: str) -> tuple[Edit, ...]:
    """Add ``value.item()`` to a total where the statement at a place adds a tensor."""
    return ()


def item_stored(at: Site) -> tuple[Edit, ...]:
    """Store ``value.item()``: of an assignment, ``append(x)``, a value in a dict."""
    return ()


def backward_of(call: Site, loss: str) -> tuple[Edit, ...]:
    """Call backward on another loss."""
    return ()


def sum_losses(first: Site, second: Site) -> tuple[Edit, ...]:
    """Make one backward call of two: ``(first + second).backward()`` where all is computed."""
    return ()


def sum_of_loop(call: Site, elements: str) -> tuple[Edit, ...]:
    """Make one backward call of the sum of what a loop runs over."""
    return ()


def move_before(at: Site, target: Site) -> tuple[Edit, ...]:
    """Move the statement at a place before another, with the comments above it."""
    return ()


def move_after(at: Site, target: Site) -> tuple[Edit, ...]:
    """Move the statement at a place after another, with the comments above it."""
    return ()


def recompute(at: Site, names: Sequence[str]) -> tuple[Edit, ...]:
    """Move what makes the names into the loop around a place, or else its function."""
    return ()


def recompute_in(function: Site, store: Site) -> tuple[Edit, ...]:
    """Move an attribute's store (``self.mix = …`` in ``__init__``) to the head of a method."""
    return ()


def forward_again(call: Site, stale: Sequence[str] = ()) -> tuple[Edit, ...]:
    """Compute the loss of a backward call anew before the call, and what is ``stale`` for it."""
    return ()


def with_flag(call: Site, flag: str) -> tuple[Edit, ...]:
    """Pass ``retain_graph=True`` or ``create_graph=True``; a False that is there becomes True."""
    return ()


def without_flag(call: Site, flag: str) -> tuple[Edit, ...]:
    """Leave ``retain_graph=True`` or ``create_graph=True`` out of a call."""
    return ()


def clone_reads(at: Site, text: str) -> tuple[Edit, ...]:
    """Write ``text.clone()`` wherever the statement at a place reads ``text``."""
    return ()


def clone_stored(at: Site, text: str = "") -> tuple[Edit, ...]:
    """Store a clone: ``append(x)`` becomes ``append(x.clone())``."""
    return ()


def out_of_place(at: Site, methods: Container[str]) -> tuple[Edit, ...]:
    """Write ``x += y`` as ``x = x + y`` and ``x.relu_()`` as ``x = x.relu()``.

    ``methods`` are those that a tensor has.
    """
    return ()


def reset_at_head(at: Site, name: str, value: str = "") -> tuple[Edit, ...]:
    """Put ``name = value`` at the head of the loop around a place; by default its first value."""
    return ()


def drop_after(at: Site, name: str) -> tuple[Edit, ...]:
    """Let go of what a name holds, after the statement at a place (``del x``, ``x.y = None``)."""
    return ()


def rebuild_cache(store: Site) -> tuple[Edit, ...]:
    """Make the value anew each time: the store is taken out of its ``if x is None:``."""
    return ()


def without_decorator(at: Site) -> tuple[Edit, ...]:
    """Take the decorator at a line off its function, or the cache's off the function there."""
    return ()
