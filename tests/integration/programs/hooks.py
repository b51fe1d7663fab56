"""Replaces sys.excepthook in the way that its argument names, then raises."""

import sys


def quiet(kind, value, trace):
    lines = []
    while trace:
        lines.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    print(
        "hook",
        kind,
        value,
        lines,
        value.__traceback__ is not None,
        sys.exc_info(),
        sys.last_value is value,
    )


def failing(kind, value, trace):
    raise LookupError("in the hook")


def exiting(kind, value, trace):
    sys.exit(7)


def deep(n):
    if n == 0:
        raise ValueError("bottom")
    deep(n - 1)


if sys.argv[1] == "missing":
    del sys.excepthook
else:
    sys.excepthook = globals()[sys.argv[1]]
deep(3)
