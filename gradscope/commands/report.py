"""`gradscope report`: print the reports of saved recordings, or write one as a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradscope.commands.outputs import console_on, opened, page, printer
from gradscope.errors import GradscopeError
from gradscope.render.machine import Format


def report(
    files: Sequence[Path],
    format: Format,  # noqa: A002 - the option's name
    output: Path | None,
    html: Path | None = None,
) -> int:
    """Print the reports of saved recordings, or write that of one as a page."""
    from gradscope.record.file import load

    if html is not None:
        if len(files) > 1:
            raise GradscopeError(
                "--html takes one recording: name one, and another --html file for each further one"
            )
        page(html, "--html").write(load(files[0]), console_on(sys.stdout))
        return 0
    recordings = [load(file) for file in files]
    show = printer(format)
    with opened(output, sys.stdout) as stream:
        console = console_on(stream)
        for file, recording in zip(files, recordings, strict=True):
            show(recording, console, file)
    return 0
