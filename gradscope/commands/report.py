"""`gradscope report`, `diff` and `draw`: show saved recordings, as text, as a page or a picture.

The recordings of several processes of one run make one report.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from gradscope.commands.outputs import console_on, image, opened, page, paged, print_line, printer
from gradscope.errors import GradscopeError
from gradscope.model import Recording
from gradscope.render.machine import Format
from gradscope.render.pictures.options import Options
from gradscope.rules.settings import DEFAULTS, Settings
from gradscope.rules.suppressing import Suppressor, write_baseline


def report(
    files: Sequence[Path],
    format: Format,  # noqa: A002 - the option's name
    output: Path | None,
    html: Path | None = None,
    settings: Settings = DEFAULTS,
    memory: bool = False,
) -> int:
    """Print the reports of saved recordings, write that of one as a page, or a baseline."""
    from gradscope.record.file import load
    from gradscope.record.processes import are_of_one_run, files_of, merged

    files = [file for name in files for file in files_of(name)]
    recordings = [load(file) for file in files]
    names = [str(file) for file in files]
    if are_of_one_run(recordings):
        recordings, names = [merged(recordings)], [" ".join(names)]
    recordings = [Suppressor(settings).applied(recording) for recording in recordings]
    if html is not None:
        if len(recordings) > 1:
            raise GradscopeError(
                "--html takes the recordings of one run:"
                " name one, and another --html file for each further one"
            )
        page(html, "--html").write(recordings[0], console_on(sys.stdout))
        return 0
    if settings.write_baseline is not None:
        findings = [finding for recording in recordings for finding in recording.findings]
        sources = {
            file: text for recording in recordings for file, text in recording.sources.items()
        }
        written = write_baseline(settings.write_baseline, findings, sources)
        print_line(console_on(sys.stdout), written)
        return 0
    show = _memory(format) if memory else printer(format)
    with opened(output, sys.stdout) as stream:
        console = console_on(stream)
        with paged(console):
            for name, recording in zip(names, recordings, strict=True):
                show(recording, console, name)
    return 0


def _memory(format: Format) -> Callable[[Recording, Console, str | None], None]:  # noqa: A002
    """Return what prints where the memory is."""
    from gradscope.render.machine.json import memory_to_json
    from gradscope.render.text.memory import print_memory
    from gradscope.render.text.terminal import write_text

    match format:
        case Format.TEXT:
            return lambda recording, console, _: print_memory(recording, console)
        case Format.JSON:
            return lambda recording, console, _: write_text(memory_to_json(recording), console)
    raise GradscopeError("--memory prints text or json")


def diff(before: Path, after: Path) -> int:
    """Print how memory, totals and findings differ."""
    from gradscope.record.processes import load_run
    from gradscope.render.text.memory import print_diff

    console = console_on(sys.stdout, highlight=False)
    recordings = load_run(before), load_run(after)
    with paged(console):
        print_diff(*recordings, console)
    return 0


_WIDEST = 1_000
"""Columns for a tree that goes to a file or another program, which can take lines of any length."""


def draw(
    file: Path,
    output: Path | None,
    call: int | None,
    options: Options,
    settings: Settings = DEFAULTS,
) -> int:
    """Draw a graph of a saved recording: to a file, or as a tree."""
    from gradscope.record.processes import load_run
    from gradscope.render.pictures.draw import recording_tree

    recording = Suppressor(settings).of_findings(load_run(file))
    console = console_on(sys.stdout)
    if output is not None:
        image(output, "--output", options, call).write(recording, console)
        return 0
    tree = recording_tree(recording, options, call=call)
    if not console.is_terminal:
        console.width = _WIDEST
    console.print(tree)
    return 0
