"""Says what will go wrong at a later backward call: which held graphs are about to be freed, or went stale."""

from gradscope.detect.foresight.freed import ForwardOnFreed
from gradscope.detect.foresight.inplace import InPlace
from gradscope.detect.foresight.lines import LineWatch
from gradscope.detect.foresight.observer import Foresight

__all__ = ["Foresight", "ForwardOnFreed", "InPlace", "LineWatch"]
