"""Makes ``docs/pictures/terminal.svg``: a session in a real terminal, as a picture that moves.

The commands of the tutorial run one after the other in a pseudo-terminal, and the picture has every
line that they print; only the folder of the program and that of the packages are left out of paths,
and the pauses are those of a reader. Whoever asks for less motion sees the report, at rest.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PICTURE = HERE / "pictures" / "terminal.svg"
SESSION = (
    "python train.py",
    "gradscope run --save run.gscope train.py",
    "gradscope fix run.gscope --write",
    "python train.py",
)
AT_REST = 1  # the command whose output stands there without motion

COLUMNS, ROWS = 80, 30  # what most terminals have, and a few rows more
_MOST_ROWS = 300  # of one command: nothing scrolls away while it runs
WIDTH, HEIGHT, MARGIN, BAR = (
    8.4,
    18,
    16,
    34,
)  # of a letter, a row, the border and the title, in pixels

# Seconds: a key, the wait for an answer, a row that is read, a part at least, the end.
_KEY, _ANSWER, _ROW, _PART, _END = 0.05, 0.6, 0.17, 0.7, 5.0

INK, PAPER, FRAME = "#d6deeb", "#0d1526", "#1c2740"
COLORS = {
    "default": INK,
    "black": "#8593ad",
    "red": "#ff7b86",
    "green": "#7fdb8a",
    "brown": "#f3c969",
    "yellow": "#f3c969",
    "blue": "#82aaff",
    "magenta": "#d6a2ff",
    "cyan": "#7fdbca",
    "white": INK,
}
"""Pyte's names of colours, each with one that is read easily on the dark ground."""

Line = list[tuple[int, str, str]]
"""The texts of a row: the column where each begins, its classes, and the text."""


@dataclass
class Part:
    """Rows that appear together, ``at`` a time; those of a command are typed."""

    rows: list[Line]
    at: float = 0.0
    typed: int = 0


def program() -> str:
    """Return the program of the tutorial."""
    page = (HERE / "tutorial.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(# train\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def session() -> Iterator[tuple[str, list[Line]]]:
    """Run each command, and yield it with the rows that the terminal shows."""
    import pexpect  # not needed for ``program()``, which the site asks for

    left_out = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI", "GRADSCOPE_NO_REHEARSAL")
    env = {key: value for key, value in os.environ.items() if key not in left_out}
    env |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    env["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), env.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(program(), encoding="utf-8")
        shape = {"dimensions": (_MOST_ROWS, COLUMNS), "env": env, "cwd": folder}
        for command in SESSION:
            run: Any = pexpect.spawn("/bin/sh", ["-c", command], timeout=600, **shape)
            run.expect(pexpect.EOF)
            printed = run.before.replace(os.fsencode(f"{folder}/"), b"")
            printed = printed.replace(os.fsencode(f"{sysconfig.get_path('purelib')}/"), b"")
            run.close()
            yield command, rows_of(printed)


def rows_of(printed: bytes) -> list[Line]:
    """Return the rows that a terminal shows which gets these bytes."""
    import pyte

    screen = pyte.Screen(COLUMNS, _MOST_ROWS)
    pyte.ByteStream(screen).feed(printed)
    rows = [_line([screen.buffer[y][x] for x in range(COLUMNS)]) for y in range(_MOST_ROWS)]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def _line(cells: list[Any]) -> Line:
    found, column = [], 0
    for style, same in groupby(cells, _style):
        text = "".join(cell.data for cell in same)
        begin = column + len(text) - len(text.lstrip())
        column += len(text)
        if text.strip():
            found.append((begin, style, text.strip()))
    return found


def _style(cell: Any) -> str:
    color = cell.fg.removeprefix("bright")
    return f"{color if color in COLORS else 'default'}{' bold' if cell.bold else ''}"


def parts() -> tuple[list[Part], int, float]:
    """Return all that appears, the row that is first without motion, and the seconds in all."""
    made: list[Part] = []
    now, first, rows = 1.0, 0, 0
    for number, (command, lines) in enumerate(session()):
        first = rows if number == AT_REST else first
        prompt = [(0, "green bold", "$"), (2, "default bold", command)]
        made.append(Part([prompt], now, len(command)))
        now += len(command) * _KEY + _ANSWER
        for part in (*_divided(lines), [[]]):
            made.append(Part(part, now))
            now += max(len(part) * _ROW, _PART) if any(part) else 0
        rows = sum(len(part.rows) for part in made)
    return made, first, now + _END


def _divided(lines: list[Line]) -> Iterator[list[Line]]:
    """Yield rows up to and with the next empty one."""
    part: list[Line] = []
    for line in lines:
        part.append(line)
        if not line:
            yield part
            part = []
    if part:
        yield part


def svg(made: list[Part], first: int, seconds: float) -> str:
    """Return the picture."""

    def share(at: float) -> str:
        return f"{100 * at / seconds:.2f}%"

    rules, groups, rolled, row = [], [], {0.0: 0}, 0
    for number, part in enumerate(made):
        texts = [_texts(line, row + index) for index, line in enumerate(part.rows)]
        groups.append(f'<g class="p" id="p{number}">{"".join(texts)}</g>')
        rules.append(f"@keyframes p{number}{{0%{{opacity:0}}{share(part.at)}{{opacity:1}}}}")
        if part.typed:
            groups.append(_cover(number, row, part.typed))
            end = part.at + part.typed * _KEY
            away = f"transform:translateX({part.typed * WIDTH:.1f}px)"
            rules.append(
                f"@keyframes c{number}{{0%{{opacity:0;transform:none}}"
                f"{share(part.at)}{{opacity:1;transform:none;"
                f"animation-timing-function:steps({part.typed})}}"
                f"{share(end)}{{opacity:1;{away}}}"
                f"{share(end + _ANSWER)},100%{{opacity:0;{away}}}}}"
            )
            rules.append(f"#c{number}{{animation:c{number} {seconds:.1f}s infinite step-end}}")
        rules.append(f"#p{number}{{animation:p{number} {seconds:.1f}s infinite step-end}}")
        row += len(part.rows)
        rolled[part.at] = max(row - ROWS, 0) * HEIGHT
    steps = "".join(f"{share(at)}{{transform:translateY(-{y}px)}}" for at, y in rolled.items())
    at_rest = first * HEIGHT
    rules += [
        f"@keyframes roll{{{steps}}}",
        f"#roll{{animation:roll {seconds:.1f}s infinite step-end}}",
    ]
    colors = "".join(f".{name}{{fill:{color}}}" for name, color in COLORS.items())
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + BAR + MARGIN
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" \
aria-labelledby="title desc">
<title id="title">A crash in backward, its diagnosis, and the fix</title>
<desc id="desc">A terminal. {escape("; ".join(f"$ {command}" for command in SESSION))}.</desc>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",\
monospace;white-space:pre}}
.bold{{font-weight:bold}}.c{{opacity:0}}{colors}
@media (prefers-reduced-motion:no-preference){{
{chr(10).join(rules)}
}}
</style>
<rect width="{width:g}" height="{height}" rx="8" fill="{PAPER}"/>
<path d="M0 {BAR - 8}V8a8 8 0 0 1 8-8H{width - 8:g}a8 8 0 0 1 8 8V{BAR - 8}z" fill="{FRAME}"/>
<circle cx="18" cy="13" r="5" fill="#ff7b86"/><circle cx="36" cy="13" r="5" fill="#f3c969"/>\
<circle cx="54" cy="13" r="5" fill="#7fdb8a"/>
<svg x="{MARGIN}" y="{BAR}" width="{COLUMNS * WIDTH:g}" height="{ROWS * HEIGHT}">
<g id="roll" transform="translate(0 -{at_rest})">
{chr(10).join(groups)}
</g>
</svg>
</svg>
"""


def _texts(line: Line, row: int) -> str:
    y = row * HEIGHT + 13
    return "".join(
        f'<text x="{column * WIDTH:.1f}" y="{y}" class="{style}" '
        f'textLength="{len(text) * WIDTH:.1f}">{escape(text, quote=False)}</text>'
        for column, style, text in line
    )


def _cover(number: int, row: int, letters: int) -> str:
    """Return what hides the letters that were not typed yet, with the cursor before it."""
    place = f'x="{2 * WIDTH:.1f}" y="{row * HEIGHT}" height="{HEIGHT}"'
    cover = f'<rect {place} width="{letters * WIDTH:.1f}" fill="{PAPER}"/>'
    cursor = f'<rect {place} width="{WIDTH}" fill="{INK}"/>'
    return f'<g class="c" id="c{number}">{cover}{cursor}</g>'


if __name__ == "__main__":
    PICTURE.write_text(svg(*parts()), encoding="utf-8")
