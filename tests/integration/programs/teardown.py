"""Prints in which order what it holds is released."""

import atexit
import sys


class Loud:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        print("released", self.name, sys is not None, "__main__" in getattr(sys, "modules", ()))


first = Loud("first")
second = Loud("second")
cycle = [Loud("in a cycle")]
cycle.append(cycle)
atexit.register(print, "first registered")
atexit.register(print, "second registered")
_private = Loud("private")


def leave() -> None:
    local = Loud("local")
    if len(sys.argv) > 1 and sys.argv[1] == "exit":
        sys.exit(4)
    if len(sys.argv) > 1 and sys.argv[1] == "raise":
        raise RuntimeError(local.name)


leave()
print("end")
