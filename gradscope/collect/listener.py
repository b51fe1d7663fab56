"""What the collecting layer reports while the program runs, for those who detect hazards from
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType

from gradscope.collect.calls import Call
from gradscope.collect.look import Look
from gradscope.collect.marks import Packed
from gradscope.model import BackwardCall, Finding


class Listener:
    """Ignores every event; override those that matter.

    The events come from inside the program's forward pass, its backward calls and destructors of
    its tensors, so a listener must let no exception out, and must keep no tensor, node or frame.
    """

    # points at which findings are announced

    def before_call(
        self, call: Call, look: Look, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """A backward call is about to run on the nodes of ``look``; ``frame`` makes the call."""
        return ()

    def before_guarded(self, call: Call) -> Iterable[Finding]:
        """A backward call is about to run on a recognized graph, while the hooks are lifted."""
        return ()

    def after_guarded(self, call: Call) -> Iterable[Finding]:
        """Such a call has ended; if it failed, ``after_call`` comes."""
        return ()

    def after_call(
        self, call: Call, record: BackwardCall, frame: FrameType | None
    ) -> Iterable[Finding]:
        """A backward call has ended."""
        return ()

    # events in the midst of the program, of which is only taken note

    def saved(self, packed: Packed) -> None:
        """A tensor was saved, while graphs are looked at in detail."""

    def grown(self, frame: FrameType) -> None:
        """The ledger counts as many saved tensors as it was asked to look out for."""

    def dropped(self, packed: Packed, nbytes: int) -> None:
        """A saved tensor was destroyed with its graph, outside of any backward call."""

    def outgrown(self) -> None:
        """More nodes are alive after a guarded call than after earlier ones of its kind."""
