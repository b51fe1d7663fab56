"""`gradscope diff`: say how two saved recordings differ, as before and after a change."""

from __future__ import annotations

import sys
from pathlib import Path

from gradscope.commands.outputs import console_on, paged


def diff(before: Path, after: Path) -> int:
    """Print how memory, totals and findings differ."""
    from gradscope.record.processes import load_run
    from gradscope.render.text.memory import print_diff

    console = console_on(sys.stdout, highlight=False)
    recordings = load_run(before), load_run(after)
    with paged(console):
        print_diff(*recordings, console)
    return 0
