"""Starts the command line: ``gradscope`` and ``python -m gradscope``.

A script to be run without options needs no parser: that takes longer to import than all else here,
and would stay in the program's process.
"""

import os
import sys

_OPTIONS = {"CI", "GRADSCOPE_BUDGET", "GRADSCOPE_NO_REHEARSAL", "_GRADSCOPE_COMPLETE"}
"""Variables that stand for options."""


def main() -> None:
    """Run the command line."""
    command, *words = sys.argv[1:] or [""]
    script = words[0] if command == "run" and words and not _OPTIONS & os.environ.keys() else "-"
    if script.startswith("-") or not (script.endswith(".py") and os.path.isfile(script)):
        from gradscope import cli

        cli.main()
    else:
        from gradscope.commands.outputs import attempted
        from gradscope.commands.run import run
        from gradscope.rules.settings import settings_at

        if status := attempted(lambda: run(words, settings_at())):
            raise SystemExit(status)


if __name__ == "__main__":
    main()
