"""`gradscope report` and `draw`: show saved recordings, as text, as a page or a picture.

The recordings of several processes of one run make one report.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradscope.commands.outputs import console_on, image, opened, page, print_line, printer
from gradscope.errors import GradscopeError
from gradscope.render.pictures import Options
from gradscope.rules.settings import DEFAULTS, Format, Settings, Suppressor, write_baseline


def report(
    files: Sequence[Path],
    settings: Settings = DEFAULTS,
    memory: bool = False,
    trains: bool = False,
) -> int:
    """Print the reports of saved recordings, write that of one as a page, or a baseline."""
    from gradscope.record.file import load
    from gradscope.record.processes import are_of_one_run, files_of, merged
    from gradscope.render.text.report import print_findings, print_memory
    from gradscope.render.text.tables import print_trains

    found = [file for name in files for file in files_of(name)]
    recordings = [load(file) for file in found]
    names = [str(file) for file in found]
    if are_of_one_run(recordings):
        recordings, names = [merged(recordings)], [" ".join(map(str, files))]
    recordings = [Suppressor(settings).of_findings(recording) for recording in recordings]
    if settings.html is not None:
        if len(recordings) > 1:
            instead = "name one, and another --html file for each further one"
            raise GradscopeError(f"--html takes the recordings of one run: {instead}")
        page(settings.html, "--html").write(recordings[0], console_on(sys.stdout))
        return 0
    if settings.write_baseline is not None:
        findings = [finding for recording in recordings for finding in recording.findings]
        sources = {file: text for one in recordings for file, text in one.sources.items()}
        written = write_baseline(settings.write_baseline, findings, sources)
        print_line(console_on(sys.stdout), written)
        return 0
    if (memory or trains) and settings.format is not Format.TEXT:
        what = "--memory and --trains print text; --format json has the same"
        raise GradscopeError(f"{what} as `memory` and `summary.training.table`")
    show = printer(settings.format, settings.verbose)
    with opened(settings.output, sys.stdout) as stream:
        console = console_on(stream)
        for name, recording in zip(names, recordings, strict=True):
            if trains:
                print_trains(recording, console)
            if memory:
                print_findings([f for f in recording.findings if f.code == "GS401"], console)
                print_memory(recording, console)
            if not (memory or trains):
                show(recording, console, name)
    return 0


def draw(file: Path, output: Path, call: int | None, options: Options, settings: Settings) -> int:
    """Draw a graph of a saved recording."""
    from gradscope.record.processes import load_run

    recording = Suppressor(settings).of_findings(load_run(file))
    image(output, "--output", options, call).write(recording, console_on(sys.stdout))
    return 0
