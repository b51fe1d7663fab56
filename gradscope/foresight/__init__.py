"""Says what will go wrong at a later backward call: which held graphs are about to be freed, or went stale."""

from gradscope.foresight.freed import ForwardOnFreed
from gradscope.foresight.inplace import InPlace
from gradscope.foresight.lines import LineWatch
from gradscope.foresight.observer import Foresight

__all__ = ["Foresight", "ForwardOnFreed", "InPlace", "LineWatch"]
