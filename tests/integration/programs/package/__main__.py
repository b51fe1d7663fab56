"""Prints all that a program can ask of the state in which it was started."""

import inspect
import os
import pickle
import sys
from dataclasses import dataclass


@dataclass
class Point:
    x: int = 1


def where() -> str:
    return inspect.getsource(where)


main = sys.modules["__main__"]
names = [name for name in list(globals()) if name.startswith("__")]
print(names)
for name in names:
    value = globals()[name]
    if name == "__loader__" and not isinstance(value, type):
        value = (type(value), getattr(value, "name", None), getattr(value, "path", None))
    if name == "__spec__" and value is not None:
        value = (value.name, value.origin, value.cached, value.parent, value.has_location)
    print(name, value)
print(sys.argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)
print(main.__dict__ is globals(), type(main))
print(pickle.loads(pickle.dumps(Point(3))) == Point(3), Point.__module__, repr(Point()))
try:
    print(where())
except OSError as error:
    print("no source:", error)
print(
    os.getcwd(),
    sys.stdin.read(),
    sys.excepthook is sys.__excepthook__,
    sys.gettrace(),
    sys.getprofile(),
)
print(
    sys.exc_info(),
    [finder if isinstance(finder, type) else type(finder) for finder in sys.path_hooks][:1],
)
x: int = 3
print(__name__, sys.stdout.encoding, sys.getrecursionlimit(), sorted(os.environ))
