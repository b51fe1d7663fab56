"""Tracks which parameters the calls at each line reach, and whether a step used their gradients.

Nothing is read from a device, and guarded calls are only counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from torch import Tensor
from torch.nn import Parameter

from gradscope.collect.calls import Call, Guarded
from gradscope.model import (
    BackwardCall,
    CellState,
    Site,
    TrainingCell,
    TrainingLoss,
    TrainingOptimizer,
    TrainingTable,
)
from gradscope.program.sites import Place
from gradscope.program.tensors import (
    TensorRef,
    grad_of,
    is_given,
    is_zero,
    requires_grad,
    shape_of,
    version_of,
)
from gradscope.rules.base import table_rows

# Lines with backward calls that have a column in the table of who trains what: nobody reads more,
# and each call is checked for all its parameters.
_MOST_LOSSES = 12
# Calls at one line for which it is noted what becomes of a gradient that no step uses: as many as
# there are inspected steps of an optimizer.
_FOLLOWED = 32
# Steps of an optimizer before anything is said about what it lacks: at the first, another
# optimizer may still be to come (of the generator, in a GAN).
ENOUGH_STEPS = 2
# Steps that use, with a gradient, what another optimizer's loss has left in it: one may begin a
# phase of training. `generator_loss` reaches the discriminator, too, and is in its next step:
#
#     d_loss.backward()  # d_opt.zero_grad() comes too late, or never
#     d_opt.step()
#     generator_loss.backward()
#     g_opt.step()
_OFTEN = 2
Mixed: TypeAlias = dict[int, tuple[Site | None, Site | None]]
_LATE = 10  # steps: before that, several losses may have come by in turns


@dataclass(slots=True)
class _Reach:
    """What the calls at one line did for one parameter.

    ``is_given``: one gave a gradient, as a graph may reach it, and a derivative return none.
    ``is_lost``: a gradient that one gave was reset before a step could use it.
    """

    calls: int = 0
    first_step: int = 0
    is_given: bool = False
    is_lost: bool = False


class _Known:
    """A parameter, and which lines with calls have added to the gradient that it has now."""

    __slots__ = "by", "grad", "mixed", "name", "numbers", "reaches", "tensor", "version", "was_off"

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = TensorRef(tensor)
        self.name = ""
        self.numbers = prod(shape_of(tensor) or ())
        self.was_off = not requires_grad(tensor)
        self.reaches = defaultdict[Place | None, _Reach](_Reach)
        self.by: dict[Place | None, int] = {}
        """With the turn of each: how many steps there had been."""
        self.mixed = 0
        """How many steps used with its gradient what another optimizer's loss had left there."""
        self.grad: TensorRef | None = None
        self.version = 0

    @property
    def now(self) -> Tensor | None:
        """Its gradient."""
        tensor = self.tensor()
        return None if tensor is None else grad_of(tensor)

    @property
    def is_frozen(self) -> bool:
        """Whether it requires no grad, and has had none."""
        tensor = self.tensor()
        return not self.reaches and (
            not requires_grad(tensor) if tensor is not None else self.was_off
        )

    def take(self, place: Place | None, turn: int) -> None:
        """Note that a call at this place gave it a gradient, or added to it."""
        grad, tensor, reach = self.now, self.tensor(), self.reaches[place]
        reach.is_given = reach.is_given or (tensor is not None and is_given(tensor))
        if grad is not None:
            self.by[place] = turn
            self.grad, self.version = TensorRef(grad), version_of(grad)

    def has_kept(self, *, unread: bool, guarded: bool = False) -> bool | None:
        """Return whether its gradient still holds what calls gave, be it scaled or clipped.

        Return ``unread`` if only reading it from a device could tell, and None if it is not known,
        such as after calls that were ``guarded``.
        """
        grad = self.now
        is_there = grad is not None and self.grad is not None and grad is self.grad()
        if grad is not None and is_there and version_of(grad) == self.version:
            return True
        if grad is None or guarded or not is_there:
            return None if guarded else False
        # The version has moved on: clip_grad_norm_() scales a gradient, and zero_() empties it.
        is_emptied = is_zero(grad)
        return unread if is_emptied is None else not is_emptied or None

    def lose(self) -> None:
        """Note that its gradient was reset before a step used it."""
        for place in self.by:
            self.reaches[place].is_lost = True
        self.by.clear()


class Losses:
    """What is known of the lines that call backward, and of the parameters that they reach."""

    def __init__(self) -> None:
        self._records: dict[Place | None, BackwardCall] = {}
        """The first calls at these lines."""
        self._calls = Counter[Place | None]()
        self._known: dict[int, _Known] = {}
        self._filled: dict[int, _Known] = {}
        """Those with a gradient that no step has used yet."""
        self._open: dict[Call, list[_Known]] = {}
        self._turn = 0

    def learn(self, key: int, name: str, tensor: Tensor) -> None:
        """Take the name of a parameter, which gets a row of the table."""
        known = self._of(key, tensor)
        known.name = name
        self._known[key] = self._known.pop(key)  # in the order of the program

    def _of(self, key: int, tensor: Tensor) -> _Known:
        known = self._known.get(key)
        if known is None or known.tensor() is not tensor:
            known = self._known[key] = _Known(tensor)
        return known

    @property
    def frozen(self) -> list[str]:
        """The names of the parameters that require no grad."""
        return [each.name for each in self._known.values() if each.name and each.is_frozen]

    def unused(self, held: Collection[int]) -> dict[int, list[Site | None]]:
        """Return which of the ``held`` parameters had gradients, with the lines that gave them;
        none if any optimizer step has used one of them.
        """
        own = {key: self._known[key].reaches for key in self._known.keys() & held}
        if any(reach.first_step for reaches in own.values() for reach in reaches.values()):
            return {}
        met = {key: own[key] for key in own if self._known[key].grad is not None}
        return {key: [self._records[at].site for at in by] for key, by in met.items()}

    # at calls and steps

    def before_call(self, call: Call, leaves: Iterable[Tensor], held: Collection[int]) -> None:
        """Note the leaves to which a call is about to add a gradient."""
        if call.place not in self._records:
            if len(self._records) == _MOST_LOSSES:
                return
            self._records[call.place] = call.record
        self._calls[call.place] += 1
        followed = []
        for leaf in leaves:
            key = id(leaf)
            if not (isinstance(leaf, Parameter) or key in held):
                continue
            known = self._of(key, leaf)
            if known.by and not known.has_kept(unread=False):
                known.lose()
            reach = known.reaches[call.place]
            reach.calls += 1
            is_new = not reach.first_step and reach.calls <= _FOLLOWED
            if known.by or is_new or 0 < known.mixed < _OFTEN:
                followed.append(known)
                self._filled[key] = known
        if followed:
            self._open[call] = followed

    def guarded(self, calls: Iterable[Guarded]) -> None:
        """Count calls that were not inspected."""
        self._calls.update(call.place for call in calls if call.place in self._records)

    def after_call(self, call: Call) -> None:
        """Note the gradients that a call has left."""
        for known in self._open.pop(call, ()):
            known.take(call.place, self._turn)

    @property
    def waits(self) -> bool:
        """Whether there is a gradient that no step has used yet, as far as is known."""
        return bool(self._open or self._filled)

    def step(self, held: Collection[int], steps: int, *, guarded: bool) -> Mixed:
        """Note which gradients an optimizer uses in its ``steps``-th step. ``guarded``: some calls
        since the step before were guarded, so what they did to gradients is not known.

        Return which of them a call has added to what the loss of another optimizer had left, in
        this step and one before, with that call and the line of the other.
        """
        mixed: Mixed = {}
        if not self.waits:
            return mixed
        self._turn += 1
        for call, followed in self._open.items():  # a hook steps within the call
            for known in followed:
                known.take(call.place, self._turn)
        for key in self._filled.keys() & held if self._filled else ():
            known = self._filled.pop(key)
            kept = known.has_kept(unread=True, guarded=guarded)
            if kept is False:
                known.lose()
            for reach in map(known.reaches.__getitem__, known.by if kept else ()):
                reach.first_step = reach.first_step or steps
            newest = max(known.by.values(), default=0)
            late = [place for place, turn in known.by.items() if turn == newest]
            left = [place for place in known.by if place not in late]
            if kept and left and self._is_own(late, held):
                known.mixed += 1
                if known.mixed >= _OFTEN:
                    mixed[key] = self._records[late[0]].site, self._records[left[0]].site
            known.by.clear()
        return mixed

    def _is_own(self, places: Collection[Place | None], held: Collection[int]) -> bool:
        """Return whether the calls at these lines reach nothing but what an optimizer holds."""
        others = (each for key, each in self._known.items() if key not in held)
        return not any(place in each.reaches for each in others for place in places)

    # at the end

    def table(
        self,
        optimizers: Sequence[tuple[TrainingOptimizer, Collection[int]]],
        used: Mapping[int, bool],
    ) -> TrainingTable | None:
        """Return the table of who trains what, or None if it would be empty.

        ``optimizers`` are those that have stepped, with what they hold. ``used`` says of parameters
        that none of them holds whether their values have changed, as far as that is known.
        """
        told = tuple(each for each, _ in optimizers)
        holder = {key: number for number, (_, held) in enumerate(optimizers) for key in held}
        enough = any(each.steps >= ENOUGH_STEPS for each in told)

        def cell(key: int, known: _Known, place: Place | None) -> TrainingCell:
            reach, by = known.reaches.get(place), holder.get(key)
            if reach is None or not reach.is_given:
                state = CellState.FROZEN if known.is_frozen else CellState.NO_GRADIENT
                return TrainingCell(state)
            if reach.first_step:
                late = reach.first_step > _LATE
                return TrainingCell(CellState.TRAINS, by, late * reach.first_step)
            state = CellState.ZEROED if reach.is_lost and by is not None else CellState.REACHED
            if by is None and enough and key in used:
                state = CellState.TRAINS if used[key] else CellState.NEVER_USED
            return TrainingCell(state, by)

        cells = {
            known.name: (known.numbers, [cell(key, known, place) for place in self._records])
            for key, known in self._known.items()
            if known.name
        }
        if not (cells and self._records):
            return None
        losses = [
            TrainingLoss((one.roots[0].name or "") if one.roots else "", one.site, self._calls[at])
            for at, one in self._records.items()
        ]
        return TrainingTable(told, tuple(losses), table_rows(cells))
