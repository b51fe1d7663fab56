"""`gradscope top` shows a run in a terminal, by reading its recording again and again."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from operator import attrgetter
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from gradscope.commands.outputs import console_on, print_line
from gradscope.formatting import counted, gathered, nbytes
from gradscope.model import BackwardCall, Sample
from gradscope.record.processes import load_run
from gradscope.render.memory import GroupBy, growing
from gradscope.render.text import (
    console_in_memory,
    place_of,
    plain,
    print_lines,
    print_table,
    shorten,
    tail,
    written_on,
)
from gradscope.render.text.report import print_list, print_memory, print_processes, tally
from gradscope.rules.settings import Settings, Suppressor

try:
    import termios
    import tty
except ImportError:  # on Windows, where no key is read
    termios = None  # type: ignore[assignment]

_LEVELS = "▁▂▃▄▅▆▇█"
_KEYS = "q quit  p pause  m module/line/operation  sort: c calls, s saved, n nodes"
_LATE = 40  # points of the memory curve, the last, that the calls per second are computed from


def top(file: Path, every: float, settings: Settings) -> int:
    """Show a run until q is pressed; without a terminal, print a line at a time until it ends."""
    console = console_on(sys.stdout)
    view = _View(file, settings)
    view.obey("")
    with suppress(KeyboardInterrupt):  # Ctrl-C ends it as q does
        if not console.is_terminal or console.is_dumb_terminal:
            print_line(console, "  ".join(view.lines()))
            while view.goes_on:
                time.sleep(every)
                view.obey("")
                print_line(console, "  ".join(view.lines()))
            return 0
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            live.update(view.screen(console), refresh=True)
            while (key := pressed(every)) != "q":
                view.obey(key)
                live.update(view.screen(console), refresh=True)
    return 0


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that returns the next key, or an empty string after ``seconds``."""
    if termios is None or not sys.stdin.isatty():
        yield _none
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)

    def pressed(seconds: float) -> str:
        is_pressed, _, _ = select.select([stdin], [], [], seconds)
        return os.read(stdin, 1).decode(errors="replace") if is_pressed else ""

    try:
        tty.setcbreak(stdin)
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _none(seconds: float) -> str:
    time.sleep(seconds)
    return ""


class _View:
    """How a run is shown: its order, how memory is grouped, and whether the view stays.

    It is read when a key is obeyed; the first may be none.
    """

    def __init__(self, file: Path, settings: Settings) -> None:
        self._file, self._judge = file, Suppressor(settings)
        self._groups, self._sorted, self._is_paused = deque(GroupBy), "c", False

    def obey(self, key: str) -> None:
        """Do what a key asks for, and read the recording again unless it is to stay as it is."""
        self._is_paused ^= key == "p"
        self._sorted = key if key in _SORTED else self._sorted
        self._groups.rotate(-(key == "m"))
        if not self._is_paused:
            self.recording, self._read = self._judge.of_findings(load_run(self._file)), time.time()

    @property
    def goes_on(self) -> bool:
        """Whether more can come."""
        one = self.recording
        return any(each.outcome.running for each in one.processes or [one])

    def lines(self) -> tuple[str, ...]:
        """Return how far the run is, and what it holds and has found."""
        one, summary = self.recording, self.recording.summary
        after = timedelta(seconds=round((one.outcome.ended or self._read) - one.header.started))
        calls = f"{counted(summary.backward_calls, 'backward call')}{_pace(one.timeline)}"
        held, most = nbytes(summary.live_bytes), nbytes(summary.peak_saved_bytes)
        found = ", ".join(tally(one.findings)) or "no finding"
        held = f"graphs hold {held}, {most} at the peak; {found}"
        return f"{after}  {calls}", held, *filter(None, [growing(one)])

    def screen(self, terminal: Console) -> Text:
        """Return what fits into a terminal: what matters most at the top, the keys at the end."""
        width, height = terminal.size
        lines = self._lines_for(width)[: height - 1]
        lines += [Text()] * (height - 1 - len(lines))
        return Text("\n").join([*lines, Text(shorten(_KEYS, width), style="reverse")])

    def _lines_for(self, width: int) -> list[Text]:
        """Return all that is shown of the run."""
        one = self.recording
        console = console_in_memory(width, color_system="truecolor", force_terminal=True)
        state = "" if self.goes_on else "ended  " if one.outcome.finished else "was stopped  "
        state = "paused  " if self._is_paused else state
        script = " ".join((one.header.script, *one.header.argv))
        title = state + tail(plain(script, console), width - len(state))
        print_lines(console, [Text(shorten(line, width)) for line in (title, *self.lines())])
        print_lines(console, [Text(_curve(one.timeline, width), style="cyan"), Text()])
        if shown := [finding for finding in one.findings if not finding.suppression]:
            print_list(shown, console)
            print_lines(console, [Text()])
        print_table(self._table(console), console)
        print_lines(console, [Text()])
        if one.processes:
            print_processes(one, console)
        if one.graphs:
            print_memory(one, console, [self._groups[0]])
        return [*Text.from_ansi(written_on(console)).split()]

    def _table(self, console: Console) -> Table:
        """Return the calls: a row for those of a kind at one place, with the last one's figures."""
        calls = sorted(self.recording.calls, key=attrgetter("last_number"))
        rows = gathered(calls, lambda call: (call.kind, call.site))
        figures = (Column(name, justify="right", no_wrap=True) for name in _FIGURES)
        where = Column("where", no_wrap=True, ratio=1)
        table = Table(where, *figures, box=None, padding=(0, 2, 0, 0), header_style="dim")
        for own in sorted(rows.values(), key=_SORTED[self._sorted], reverse=True):
            first, last = own[0], own[-1]
            table.add_row(
                tail(place_of(last.site, console) or "unknown line", console.width - _TAKEN),
                f"{sum(call.count for call in own):,}",
                _since(f"{first.nodes:,}", f"{last.nodes:,}"),
                _since(nbytes(first.saved_bytes), nbytes(last.saved_bytes)),
            )
        return table


_FIGURES = "calls", "nodes", "saved"
_TAKEN = 40  # cells of these columns, if the graphs grow

_SORTED: dict[str, Callable[[list[BackwardCall]], int]] = {
    "c": lambda calls: sum(call.count for call in calls),
    "s": lambda calls: calls[-1].saved_bytes,
    "n": lambda calls: calls[-1].nodes,
}


def _since(first: str, last: str) -> str:
    """Return a figure, and what it was at first."""
    return last if first == last else f"{first} → {last}"


def _pace(timeline: Sequence[Sample]) -> str:
    """Return how many calls a second came of late."""
    late = timeline[-_LATE:]
    seconds = late[-1].time - late[0].time if late else 0
    return f", {(late[-1].call - late[0].call) / seconds:,.1f} a second" if seconds else ""


def _curve(timeline: Sequence[Sample], width: int) -> str:
    """Return a bar for each stretch of time: the most bytes that graphs held in it."""
    if not timeline:
        return ""
    end, most = timeline[-1].time or 1, max(sample.live_bytes for sample in timeline) or 1
    bars, before, held = [0] * width, 0, 0
    for sample in timeline:
        at = min(int(sample.time / end * width), width - 1)
        bars[before + 1 : at + 1] = [held] * (at - before)
        before, held = at, sample.live_bytes
        bars[at] = max(bars[at], held)
    return "".join(_LEVELS[(len(_LEVELS) - 1) * height // most] for height in bars)
