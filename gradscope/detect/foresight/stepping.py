"""Gathers the facts of a step that came between a forward pass and its backward call."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

import torch

from gradscope.code import source
from gradscope.collect.state import State
from gradscope.collect.walk import Walker
from gradscope.detect.foresight.evidence import is_carried, link_of
from gradscope.detect.foresight.stale import Needed
from gradscope.detect.foresight.training import reason_for_a_constant
from gradscope.fixing.gs201 import Stepped
from gradscope.program.sites import place_in
from gradscope.program.tensors import held_node
from gradscope.rules.gs202 import StaleSoon

_MOST_NODES = 2_000


def stepped(watch: State, facts: StaleSoon, needed: Needed, frames: Sequence[FrameType]) -> Stepped:
    """Return what decides how a stale graph is cured."""
    reading = needed.reading
    loop = source.loop_around(place_in(reading.frame).site)
    again = reading.again or reading.read.after_back_edge
    carried = again and is_carried(reading, loop)
    walker = Walker(_MOST_NODES)
    nodes = walker.walk([held_node(needed.held.tensor)])
    leaves = [v for n in nodes if isinstance(v := getattr(n, "variable", None), torch.Tensor)]
    constant = reason_for_a_constant(watch, reading, leaves, frames) if again else ""
    return Stepped(
        step=facts.changed_at,
        next_call=facts.next_call,
        holder=facts.holder,
        tensors=facts.tensors,
        made=facts.made,
        carried=carried,
        again=again,
        constant=constant,
        link=link_of(reading, facts.made),
        kept=facts.next_call if again else None,
        in_tuple=reading.holder().in_tuple,
    )
