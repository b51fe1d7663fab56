"""Runs a program that a watched program has started, as Python would, and watches it.

``python OPTIONS child.py PLAN PROGRAM ARGS``. Where it cannot begin, Python runs it without us.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> int:
    """Run the program; return its exit status."""
    try:
        import json

        from gradscope.errors import GradscopeError
        from gradscope.launch.children import ChildPlan, Children, ChildWatch
        from gradscope.launch.interpreter import header_of
        from gradscope.launch.runner import run_program

        plan = ChildPlan(**json.loads(sys.argv[1]))
        target = sys.argv[2:]
        header = plan.header_of(header_of(target, plan.options["hooks"]))
        children = Children(plan, header)
    except Exception:  # whatever fails in ours: Python runs the program without us
        run_plainly()
    try:
        with children:
            ended = run_program(target, lambda: ChildWatch(plan, header))
    except GradscopeError:  # there is no such program: Python says it in its own words
        run_plainly()
    return ended.leave()


def run_plainly() -> NoReturn:
    """Have Python run the program in the place of this process."""
    at = sys.orig_argv.index(__file__)
    os.execv(sys.executable, [*sys.orig_argv[:at], *sys.orig_argv[at + 2 :]])


if __name__ == "__main__":
    # In the place of this file's folder; the program's own folder comes there next.
    sys.path[: not sys.flags.safe_path] = [_ROOT]
    status = main()
    if status:
        raise SystemExit(status)
