"""Wakes the full look where a counter of the program comes to a value at which a branch turns."""

from __future__ import annotations

from types import CodeType, FrameType
from typing import NamedTuple

from gradscope.program.variables import Variable, is_module_level

_MOST_FRAMES = 8
_AHEAD = 2  # iterations: the graphs of the one before are then built under hooks


class Alarm(NamedTuple):
    """A counter, the code that has it, and the value at which the code will go another way."""

    code: CodeType
    name: str
    at: int

    def rings(self, frame: FrameType | None) -> bool:
        """Return whether the counter, in a frame or one that called it, is about to be there."""
        for _ in range(_MOST_FRAMES):
            if frame is None:
                break
            if frame.f_code is self.code:
                value = frame.f_globals.get(self.name)
                if not is_module_level(frame):
                    value = Variable(self.code, self.name).of(frame)
                return type(value) is int and self.at - _AHEAD <= value <= self.at
            frame = frame.f_back
        return False
