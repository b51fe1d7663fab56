"""Its exit handlers look at what is left, and raise."""

import atexit
import sys


@atexit.register
def look() -> None:
    print(getattr(sys, "last_type", None), sys.excepthook is sys.__excepthook__, sys.exc_info())
    print(__name__, "__file__" in globals(), sys.modules["__main__"].__name__)
    raise RuntimeError("in an exit handler")


@atexit.register
def leave() -> None:
    sys.exit(9)


exec(sys.argv[1] if len(sys.argv) > 1 else "")
