"""`gradscope report`: print the reports of saved recordings, or write one as a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradscope.commands.outputs import console_on, opened, page, paged, printer
from gradscope.commands.settings import DEFAULTS, Settings
from gradscope.commands.suppressing import Suppressor, write_baseline
from gradscope.errors import GradscopeError
from gradscope.render.machine import Format


def report(
    files: Sequence[Path],
    format: Format,  # noqa: A002 - the option's name
    output: Path | None,
    html: Path | None = None,
    settings: Settings = DEFAULTS,
) -> int:
    """Print the reports of saved recordings, write that of one as a page, or a baseline."""
    from gradscope.record.file import load

    if html is not None:
        if len(files) > 1:
            raise GradscopeError(
                "--html takes one recording: name one, and another --html file for each further one"
            )
        recording = Suppressor(settings).applied(load(files[0]))
        page(html, "--html").write(recording, console_on(sys.stdout))
        return 0
    recordings = [Suppressor(settings).applied(load(file)) for file in files]
    if settings.write_baseline is not None:
        findings = [finding for recording in recordings for finding in recording.findings]
        sources = {
            file: text for recording in recordings for file, text in recording.sources.items()
        }
        write_baseline(settings.write_baseline, findings, sources, console_on(sys.stdout))
        return 0
    show = printer(format)
    with opened(output, sys.stdout) as stream:
        console = console_on(stream)
        with paged(console):
            for file, recording in zip(files, recordings, strict=True):
                show(recording, console, file)
    return 0
