"""Defines a rule: a page that can be read and run, helpers to word its findings, and for each
situation in which a graph fails what kind of thing can be done.

Also how findings speak of parameters: few names for many of them, and how many there are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypedDict, Unpack

from gradscope.formatting import counted, gathered, listed, nbytes
from gradscope.model import TrainingCell, TrainingRow
from gradscope.model.calls import BackwardCall
from gradscope.model.finding import Certainty, Finding, Fix, FixKind, Related, Severity, Trend
from gradscope.model.graph import Node, SavedTensor, Site, activation_bytes

_ELEMENT = re.compile(r"(\[\d+\])+$")


class Details(TypedDict, total=False):
    """Fields of a finding that only some rules fill, by the names that a ``Finding`` has."""

    label: str
    count: int
    missed: bool
    silent: bool
    parameters: tuple[str, ...]
    step: Site | None
    trend: Trend | None


class Rule(NamedTuple):
    """One kind of finding: its code and name never change meaning; ``explain`` is its page in
    Markdown, with two programs: the bad one has this finding and no other, the good one has none.
    """

    code: str
    name: str
    severity: Severity
    certainty: Certainty
    summary: str
    explain: str

    def finding(
        self,
        message: str,
        call: BackwardCall | None = None,
        *,
        site: Site | None = None,
        after: int = 0,
        related: Iterable[Related] = (),
        nodes: Sequence[Node | str] = (),
        saved: Sequence[SavedTensor | str] = (),
        bytes: int = 0,  # noqa: A002 - the name of the field it fills
        fixes: Iterable[Fix] = (),
        severity: Severity | None = None,
        certainty: Certainty | None = None,
        **details: Unpack[Details],
    ) -> Finding:
        """Return a finding of this rule, made at ``call``, or else after the call of number
        ``after``.

        ``site`` is that of the call, if it is not given, and severity and certainty are those of
        the rule. ``bytes`` are those of the saved tensors, if not given. ``fixes`` are what can be
        done, the better first.
        """
        tensors = [each for each in saved if isinstance(each, SavedTensor)]
        return Finding(
            *(self.code, self.name, severity or self.severity, certainty or self.certainty),
            *(message, site or (call.site if call else None)),
            related=tuple(related),
            nodes=tuple(n.name if isinstance(n, Node) else n for n in nodes),
            saved=tuple(s.label if isinstance(s, SavedTensor) else s for s in saved),
            bytes=bytes or activation_bytes(tensors),
            backward_call=call.number if call else after,
            graph=call.graph if call else None,
            graph_nodes=tuple(node.index for node in nodes if isinstance(node, Node)),
            **details,
        ).with_fixes((*fixes,))


def rule(
    docstring: str | None, code: str, name: str, severity: Severity, certainty: Certainty
) -> Rule:
    """Return the rule of a module: its docstring is the page, the first line the summary."""
    page = inspect.cleandoc(docstring or "")  # -OO drops docstrings; findings must work even so
    summary, _, body = page.partition("\n")
    explain = f"# {code}: {name}\n\n*{severity}, {certainty}*\n\n{summary}\n{body}\n"
    return Rule(code, name, severity, certainty, summary.rstrip("."), explain)


NOT_REENTRANT = Fix(
    FixKind.REORDER,
    "if this is a reentrant checkpoint, use checkpoint(..., use_reentrant=False) "
    "or hand the shared tensor to it as an argument",
)


def built(made: Iterable[Site], message: str, again: str = "and here") -> Iterator[Related]:
    """Yield a note for each line that built the nodes, another one for the first."""
    for position, site in enumerate(made):
        yield Related("created", site, again if position else message)


# What a node costs beside the tensors that it has saved: malloc gave out 513 to 576 bytes for
# each more in a chain of additions, negations, sums or views (torch 2.13 on Linux, 64 bits).
NODE_BYTES = 512


class Grown(NamedTuple):
    """What something keeps of ``iterations`` iterations, and what each of them adds; ``at_least``:
    there may be more of them. ``seen``: so it was in this iteration of so many, and the holder is
    gone since. ``trend`` has how it came to that.

    The bytes are those of tensors, once for each storage. Without hooks those of saved tensors are
    not known: ``counts_bytes`` is False.
    """

    iterations: int
    nodes: int
    nbytes: int
    nodes_each: float
    nbytes_each: float
    counts_bytes: bool = True
    at_least: bool = False
    seen: tuple[int, int] | None = None
    trend: Trend | None = None

    @property
    def span(self) -> str:
        """The iterations as text: ``at least 31 iterations (last seen in the 32nd of 48)``."""
        last = f" (last seen in iteration {' of '.join(map(str, self.seen))})" if self.seen else ""
        return f"{'at least ' * self.at_least}{counted(self.iterations, 'iteration')}{last}"

    @property
    def total(self) -> int:
        """The bytes of nodes and tensors."""
        return self.nodes * NODE_BYTES + self.nbytes

    @property
    def kept(self) -> str:
        """All bytes as text."""
        return nbytes(self.total) if self.counts_bytes else "bytes not counted without hooks"

    def __str__(self) -> str:
        held = f"{counted(self.nodes, 'node')} ({nbytes(self.nodes * NODE_BYTES)})"
        held += f" and {nbytes(self.nbytes)} of tensors" if self.counts_bytes else ""
        if not self.nodes_each:
            return held
        each = counted(round(self.nodes_each), "node")
        more = round(self.nodes_each * NODE_BYTES + self.nbytes_each)
        added = f"{each}, {nbytes(more)} in all" if self.counts_bytes else each
        return f"{held}; each iteration adds {added}"


def called(call: BackwardCall) -> str:
    """Return how a sentence names a call: ``backward call 3``, ``autograd.grad call 3``."""
    return f"{'autograd.grad' if is_grad(call) else 'backward'} call {call.number:,}"


def head(call: BackwardCall, *own: Site | None) -> Site | None:
    """Return the line to point at: where a library makes the call in its own loop, the first
    known of the user's ``own`` lines that had a part in it; else that of the call.
    """
    known = (site for site in own if site is not None)
    return next(known, call.site) if call.driven else call.site


def is_grad(call: BackwardCall) -> bool:
    """Return whether it is ``torch.autograd.grad``, which leaves every ``.grad`` alone."""
    return call.kind == "grad"


def on_rank(rank: tuple[int, int] | None) -> str:
    """Return `` on rank 1``, to continue a sentence with; empty where there are no others."""
    return "" if rank is None or rank[1] < 2 else f" on rank {rank[0]}"


def place(site: Site | None) -> str:
    """Return a place inside a sentence, by line and without its directories: ``train.py:41``."""
    return "an unknown line" if site is None else site.place


def at(site: Site | None) -> str:
    """Return `` at train.py:41``, to continue a sentence with; empty if the place is not known."""
    return f" at {place(site)}" if site else ""


_MOST_NAMED = 3  # patterns of parameters in a sentence, as `encoder.*`: more are counted


def patterns(names: Iterable[str], others: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the ``names`` by patterns that match them and none of the ``others``:
    ``agent.critic.*`` for a module that is named in full, ``blocks.*.gamma`` for what modules of a
    list have in common.
    """
    inside = {other[: i + 1] for other in others for i, sign in enumerate(other) if sign == "."}
    found = gathered(dict.fromkeys(names), lambda name: _module_or_name(name, inside))
    taken = {_without_numbers(other) for other in others}
    short: dict[str, list[str]] = {}
    for pattern, alike in gathered(found, _without_numbers).items():
        stem = pattern.removesuffix("*")
        is_taken = any(each.startswith(stem) for each in taken)
        for each in alike:
            own = each if len(alike) == 1 or is_taken else pattern
            short.setdefault(own, []).extend(found[each])
    return short


def short_names(names: Iterable[str], others: Collection[str] = ()) -> tuple[str, ...]:
    """Return the patterns alone."""
    return tuple(patterns(names, others))


def counts(names: Iterable[str], others: Collection[str] = ()) -> dict[str, int]:
    """Return the patterns, each with how many of the names it matches."""
    return {each: len(own) for each, own in patterns(names, others).items()}


def table_rows(cells: Mapping[str, tuple[int, Sequence[TrainingCell]]]) -> tuple[TrainingRow, ...]:
    """Return the rows of a table of parameters, each of which has its size and its cells: those
    with the same ones together.
    """
    found = {}
    for same in gathered(cells, lambda name: (*cells[name][1],)).values():
        for pattern, own in patterns(same, cells.keys() - {*same}).items():
            about = tuple(own), tuple(cells[name][0] for name in own), tuple(cells[own[0]][1])
            found[own[0]] = TrainingRow(pattern.removesuffix(".*"), *about)
    return tuple(found[name] for name in cells if name in found)


def told(names: Sequence[str], others: Collection[str] = (), most: int = _MOST_NAMED) -> str:
    """Return the patterns in a sentence, in backticks; of none how many parameters there are."""
    short = [f"`{each}`" for each in short_names(names, others)]
    return listed(short, most) if short else counted(len(names), "parameter")


def share(part: int, whole: int) -> str:
    """Return ``2 of the 6 parameters``, ``any of the 6 parameters``, ``the only parameter``."""
    if part == whole == 1:
        return "the only parameter"
    return f"{'any' if part == whole else f'{part:,}'} of the {counted(whole, 'parameter')}"


def _module_or_name(name: str, inside: Collection[str]) -> str:
    """Return the outermost module that a parameter is in and none of the others."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        module = ".".join(parts[:depth]) + "."
        if module not in inside:
            return f"{module}*"
    return name


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


class Situation(Enum):
    """What the facts come to: the kind of edit that mostly mends it, and a sentence for people.

    The sentence names the lines and the variable. Which edit it comes to, and what that does to the
    training, is known once it was tried.
    """

    # The call at {frees} frees what the call at {runs} needs.
    NESTED = NOT_REENTRANT.kind, NOT_REENTRANT.message
    TOTAL = (
        FixKind.ITEM,
        "call backward on the newest loss alone and add its value to {what} with item(), or start "
        "{what} anew in each iteration",
    )
    PARTS = (
        FixKind.RETAIN_GRAPH,
        "keep the graph in each run of the call at {frees} but the last, or ask for all in one "
        "call",
    )
    SOMETIMES_KEPT = (
        FixKind.RETAIN_GRAPH,
        "have the call at {frees} keep the graph until the last call that needs it, or run the "
        "forward pass again for each call",
    )
    ONCE_MORE = (
        FixKind.RETAIN_GRAPH,
        "keep the graph in the call at {frees}, as the call at {runs} runs it once more",
    )
    ELEMENTS = (
        FixKind.SUM_LOSSES,
        "add the elements of {what} and call backward once, or keep the graph in each run of the "
        "call at {frees} but the last",
    )
    TWICE = (
        FixKind.RECOMPUTE,
        "run the forward pass again before the call at {runs}, or call backward once",
    )
    AVERAGED = (
        FixKind.NO_GRAD,
        "compute {what}{made} under torch.no_grad(), or detach() it {when}",
    )
    CARRIED = FixKind.DETACH, "detach() {what}, carried from one iteration into the next, {when}"
    CACHED = (
        FixKind.REORDER,
        "open parametrize.cached() in each iteration of the loop, not around it",
    )
    MADE_ONCE = (
        FixKind.RECOMPUTE,
        "compute {what}{made} again for each backward call, or detach() it if nothing should be "
        "trained through it",
    )
    USED_UP = (
        FixKind.RECOMPUTE,
        "run the forward pass that built the graph again before the call at {runs}",
    )
    PARTED = (
        FixKind.DETACH,
        "detach() {shared} in the loss that should not train it, or run the forward pass again "
        "before the call at {runs}",
    )
    SIBLINGS = (
        FixKind.SUM_LOSSES,
        "add the losses of the calls at {frees} and {runs} and call backward once, or detach() "
        "{shared} in the one that should not train it",
    )

    CELL_CARRIES = (
        FixKind.DETACH,
        "detach() what this cell carries from one run into the next, where it is stored",
    )
    CELL_BEFORE = (
        FixKind.RECOMPUTE,
        "run Cell {cell} again before this one, or build the graph in this cell",
    )

    # What a graph saved is changed at {write}, before the call at {runs}.
    EARLY_STEP = (
        FixKind.REORDER,
        "compute {what} after the step at {write}, or move that step after the backward call at "
        "{runs}",
    )
    OVERWRITTEN = (
        FixKind.CLONE,
        "use the out-of-place form of the operation{where}, or have it change a clone()",
    )
    TABLE = (
        FixKind.CLONE,
        "let the forward pass{made} read a clone() of {tensors}, or write to it{where} after the "
        "backward call at {runs}",
    )
    PARAMETER = (
        FixKind.REORDER,
        "write to {tensors}{where} after the backward call at {runs}, or compute {what} after that",
    )
    UNSEEN = (
        FixKind.REORDER,
        "write to {tensors}{where} after the backward call at {runs}, under torch.no_grad() and "
        "not through .data",
    )

    def fix(
        self,
        holder: str = "",
        made: Sequence[Site] = (),
        *,
        frees: Site | None = None,
        runs: Site | None = None,
        write: Site | None = None,
        tensors: str = "",
        is_driven: bool = False,
    ) -> Fix:
        """Return it with what is known: the variable that has the graph and the lines that
        ``made`` it, the calls, and the line that changed ``tensors``; ``is_driven``: a library
        makes the calls.
        """
        kind, sentence = self.value
        shared = f"what {place(made[0])} builds" if made else "what is shared"
        what = f"`{holder}`" if holder else shared
        whole = _ELEMENT.sub("", holder)
        if self is Situation.CARRIED and whole != holder:  # the others are carried along
            what = f"each tensor of `{whole}`"
        words = {
            "what": what,
            "made": at(made[0]) if holder and made else "",
            "shared": shared,
            "cell": made[0].cell if made else "",
            "frees": place(frees),
            "runs": place(runs),
            "when": "where it is stored" if is_driven else f"after the call at {place(frees)}",
            "write": place(write),
            "where": at(write),
            "tensors": tensors,
        }
        return Fix(kind, sentence.format_map(words))


def met(situations: Mapping[Situation, bool]) -> Situation:
    """Return the first situation whose facts hold: the order of the questions matters."""
    return next(situation for situation, holds in situations.items() if holds)
