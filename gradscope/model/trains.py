"""Who trains what: for each module and each loss whether a gradient comes, and is used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gradscope.model.graph import Site


class CellState(StrEnum):
    """What becomes of the gradients of a module's parameters that the calls at one line give."""

    TRAINS = "trains"
    REACHED = "reached"
    """They come, and no step of their optimizer was seen since, or no optimizer is known."""
    ZEROED = "zeroed_unused"
    NEVER_USED = "never_used"
    """They come, and no optimizer that has stepped holds the parameters."""
    CUT = "cut"
    NO_WAY = "no_way"
    FROZEN = "frozen"
    NO_GRADIENT = "no_gradient"
    """None comes, and no rehearsal has shown why."""


@dataclass(frozen=True, slots=True)
class TrainingCell:
    """What the calls of one loss are to a module.

    ``optimizer`` is the number of the one that holds the parameters. ``first_step`` is the first
    of its steps that used such a gradient, where that came late, else 0. ``site`` is the line that
    cuts the way by an ``operation``, or that froze the parameters, where a rehearsal has shown it.
    """

    state: CellState
    optimizer: int | None = None
    first_step: int = 0
    site: Site | None = None
    operation: str = ""


@dataclass(frozen=True, slots=True)
class TrainingLoss:
    """The backward calls of one line; ``name`` is what they start from, if that has a name."""

    name: str
    site: Site | None
    calls: int


@dataclass(frozen=True, slots=True)
class TrainingOptimizer:
    """An optimizer that has stepped."""

    name: str
    kind: str
    site: Site | None
    steps: int


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """The outermost module whose parameters have all cells in common, or what the names of several
    have in common: ``blocks.*.gamma``. ``sizes`` are the numbers that each parameter has.
    """

    module: str
    parameters: tuple[str, ...]
    sizes: tuple[int, ...]
    cells: tuple[TrainingCell, ...]

    @property
    def is_fine(self) -> bool:
        """Whether some loss trains it, or none is to."""
        return any(cell.state in (CellState.TRAINS, CellState.FROZEN) for cell in self.cells)


@dataclass(frozen=True, slots=True)
class TrainingTable:
    """A row for each module, with a cell for each loss."""

    optimizers: tuple[TrainingOptimizer, ...]
    losses: tuple[TrainingLoss, ...]
    rows: tuple[TrainingRow, ...]
    rehearsed: bool = False

    @property
    def frozen_at(self) -> list[Site]:
        """The lines that froze parameters, if all of them are known."""
        frozen = [row.cells[0].site for row in self.rows if row.cells[0].state is CellState.FROZEN]
        known = [site for site in frozen if site is not None]
        return known if len(known) == len(frozen) else []
