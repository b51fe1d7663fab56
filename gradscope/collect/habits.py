"""What backward calls of one kind at one place have in common, whatever their graphs' sizes."""

from __future__ import annotations

from gradscope.collect.shapes import Repeat, Shape
from gradscope.program.sites import Place

_MOST = 1_000
_MOST_KINDS = 5_000  # of nodes, in all habits
_MEASURED = 4  # calls of which is found out, tensor by tensor, what memory came back
_MUCH_MEASURED = 1_000  # tensors in them: fewer calls are enough

HabitKey = tuple[Place | None, int, bool]
"""The call's place, what it asks of the engine, and whether it runs within another."""


Reads = tuple[tuple[str, str, str, int | None], ...]
"""What to read of a node, as ``gradscope.collect.nodes.Kind`` has it."""


class Habit:
    """The calls of one kind at one place: which kinds of nodes their graphs have, and how they are
    counted.

    ``reads`` has for each kind of node that was met what to read of it, ``shape`` is the shape
    of the last graph that was looked at in full, ``ended`` the sequence number at which the last
    call ended, ``extra`` how many nodes at the most were built before a call that its graph has
    not, and ``alive`` how many saved tensors and nodes of other graphs lived at the most after one.
    """

    __slots__ = (
        "alive",
        "ended",
        "extra",
        "measured",
        "measured_tensors",
        "reads",
        "returned",
        "scale",
        "shape",
    )

    def __init__(self) -> None:
        self.reads: dict[type, Reads] = {}
        self.shape: Shape | None = None
        self.alive = (0, 0)
        self.ended = 0
        self.extra = 0
        self.measured = self.measured_tensors = 0
        self.scale: tuple[float, float] | None = None
        """Tensors and bytes that the hooks counted, of each that a bare walk reads."""
        self.returned = (0, 0)
        """Bytes whose memory came back, and bytes freed, where that was found out exactly."""

    def bounds(self, tensors: int, nodes: int) -> bool:
        """Return whether no more saved tensors and other graphs' nodes are alive than after earlier
        calls.
        """
        most_tensors, most_nodes = self.alive
        self.alive = (max(tensors, most_tensors), max(nodes, most_nodes))
        return tensors <= most_tensors and nodes <= most_nodes

    def scaled(self, tensors: int, nbytes: int) -> tuple[int, int]:
        """Return what the hooks would have counted of what a bare walk has read."""
        of_tensors, of_bytes = self.scale or (1.0, 1.0)
        return round(tensors * of_tensors), round(nbytes * of_bytes)

    def coming_back(self, freed: int) -> int:
        """Return how much memory comes back where so many bytes are freed: the share of before."""
        back, of = self.returned
        return freed * back // of if of else 0

    def returned_by(self, shape: Shape, freed: int) -> int:
        """Return how much memory comes back where a graph of this shape is freed."""
        back = shape.returned
        return min(self.coming_back(freed) if back is None else back, freed)

    def freed(self, repeat: Repeat, keeps: bool) -> tuple[int, int, int]:
        """Return how many tensors and bytes a call on a recognized graph frees, and the bytes whose
        memory comes back.
        """
        if repeat.estimate is None:
            return repeat.shape.freed
        if keeps:
            return 0, 0, 0
        tensors, nbytes = repeat.estimate
        return tensors, nbytes, self.coming_back(nbytes)

    @property
    def is_measured(self) -> bool:
        """Whether enough is known of what memory comes back."""
        return self.measured >= _MEASURED or self.measured_tensors >= _MUCH_MEASURED

    def measure(self, returned: int, freed: int, tensors: int) -> None:
        """Note how many bytes came back of those that a call has freed, with so many tensors."""
        self.measured += 1
        self.measured_tensors += tensors
        self.returned = (self.returned[0] + returned, self.returned[1] + freed)


class Habits:
    """All habits that were met. Of too many all are forgotten."""

    def __init__(self) -> None:
        self._habits: dict[HabitKey, Habit] = {}
        self._kinds = 0

    def of(self, key: HabitKey) -> Habit:
        """Return the habit of these calls, made new if there is none."""
        habit = self._habits.get(key)
        if habit is None:
            if len(self._habits) >= _MOST:
                self._habits.clear()
            habit = self._habits[key] = Habit()
        return habit

    def learn(self, habit: Habit, kinds: dict[type, Reads]) -> None:
        """Add kinds of nodes to a habit."""
        self._kinds += len(kinds)
        if self._kinds > _MOST_KINDS:
            for each in self._habits.values():
                each.reads.clear()
            self._kinds = len(kinds)
        habit.reads.update(kinds)
