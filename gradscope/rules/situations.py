"""Says of each situation in which a graph's failure is found what kind of thing can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from gradscope.model.finding import Fix, FixKind
from gradscope.model.graph import Site
from gradscope.rules.base import NOT_REENTRANT, at, place


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
        words = {
            "what": f"`{holder}`" if holder else shared,
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
