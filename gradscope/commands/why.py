"""`gradscope why`: whether a gradient reaches a parameter, by which lines, or where it is cut."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from gradscope.commands.outputs import console_on, image, print_line
from gradscope.errors import GradscopeError, meant
from gradscope.formatting import counted, lines_told, listed
from gradscope.render.machine import plain
from gradscope.render.text import begin_line, show_progress, write_text
from gradscope.render.wording import fix_command
from gradscope.rules.settings import DEFAULTS, Format, Settings

# Engine calls up to which a program is followed if its first steps do not show what is asked for;
# the timeout mostly ends it earlier.
_MOST_CALLS = 10_000


def why(
    script: Path,
    name: str | None,
    args: tuple[str, ...],
    line: int | None = None,
    settings: Settings = DEFAULTS,
) -> int:
    """Say why a gradient does or does not arrive at what a name means, or why the call at a line
    has no graph. Return 0 if one arrives, or is not wanted; else 1.
    """
    from gradscope.fixing.gradient_paths import Paths
    from gradscope.fixing.runs import Bounds, Program
    from gradscope.launch.interpreter import header_of

    if line is not None and name is not None:
        args, name = (name, *args), None
    if name is None and line is None:
        raise GradscopeError("say what to look for: a parameter, a module, or --line N")
    if settings.format not in (Format.TEXT, Format.JSON):
        raise GradscopeError("gradscope why has the formats text and json")
    if not script.is_file():
        raise GradscopeError(f"there is no script {script}")
    if settings.draw is not None:
        image(settings.draw, "--picture")  # that is, it can be written
    program = Program(header_of((str(script), *args), hooks=True), settings.sandboxed)
    file = os.path.abspath(script)

    def followed(calls: int) -> Paths:
        show_progress(f"gradscope rehearses {script} (Ctrl-C leaves it)", sys.stderr)
        ways = Paths(program.follow(Bounds(calls, settings.timeout)))
        begin_line(sys.stderr)
        return ways

    fixing = fix_command(program.header, "--finding", "GS502")
    ways = followed(0)
    found = ways.named(name or "") if line is None else ways.calls_at(file, line)
    if not found and ways.record.ended == "enough":
        ways = followed(_MOST_CALLS)  # what comes after the second step
    if line is not None:
        return _of_call(ways, file, line, settings)
    assert name is not None
    return _of_name(ways, file, name, settings, fixing)


def _of_call(ways: Any, file: str, line: int, settings: Settings) -> int:
    from gradscope.render.text.why import print_call

    calls = ways.calls_at(file, line)
    if not calls:
        known = {site.line for c in ways.record.calls if (site := ways.record.site(c.route))}
        there = f"calls are made at {lines_told(known)}" if known else "it makes none"
        raise GradscopeError(
            f"the rehearsal met no backward call at line {line}: {there}{_ended(ways)}"
        )
    call = next((each for each in reversed(calls) if not each.has_graph), calls[-1])
    if settings.format is Format.JSON:
        _write({"line": line, **_call_data(call, ways)}, ways, file)
    else:
        console = console_on(sys.stdout)
        print_call(call, ways, file, console)
        _print_ended(ways, console)
    _draw(ways, call, settings)
    return int(not call.has_graph or bool(call.unused))


def _of_name(ways: Any, file: str, name: str, settings: Settings, fixing: str) -> int:
    from gradscope.fixing.gradient_paths import Arrival
    from gradscope.render.text.why import print_answer

    leaves = ways.named(name)
    if not leaves:
        every = [leaf.name for leaf in ways.record.leaves if leaf.name]
        modules = [each.split(".")[:-1] or [each] for each in every]
        owners = {".".join(parts[:n]) for parts in modules for n in range(1, len(parts) + 1)}
        like = meant(name, [*every, *owners])
        known = listed(dict.fromkeys(".".join(parts[:2]) for parts in modules), 4)
        raise GradscopeError(
            f"the rehearsal met no parameter or module {name!r}, of "
            f"{counted(len(every), 'parameter')}{known and f' ({known})'}{like}{_ended(ways)}"
        )
    answers = ways.of_leaves(leaves)
    if settings.format is Format.JSON:
        _write({"name": name, "answers": [_answer_data(a, ways) for a in answers]}, ways, file)
    else:
        console = console_on(sys.stdout)
        for answer in answers:
            print_answer(answer, ways, file, console)
        if any(answer.state is Arrival.CUT for answer in answers):
            if len(f"next: {fixing}") > console.width:
                fixing = fixing.replace(" --finding", " \\\n      --finding", 1)
            for each in f"next: {fixing}".splitlines():
                print_line(console, each)
        _print_ended(ways, console)
    _draw(ways, max(answers, key=lambda answer: answer.state is Arrival.CUT), settings)
    fine = (Arrival.ARRIVES, Arrival.ZERO, Arrival.FROZEN)
    return int(not all(answer.state in fine for answer in answers))


def _draw(ways: Any, about: Any, settings: Settings) -> None:
    from gradscope.render.pictures.why import draw_way

    if settings.draw is not None:
        draw_way(ways, about, settings.draw)
        print_line(console_on(sys.stderr), f"picture: {settings.draw}")


def _ended(ways: Any) -> str:
    who = "the script ended with" if ways.record.failed else "the rehearsal"
    return f" ({who} {ways.record.ended})" if ways.record.failed or ways.record.stopped else ""


def _print_ended(ways: Any, console: Any) -> None:
    if ways.record.stopped:
        print_line(console, f"note: the rehearsal {ways.record.ended}; --yes lets it")


# for machines


def _write(data: dict[str, Any], ways: Any, file: str) -> None:
    head = {"schema": 1, "script": file, "ended": ways.record.ended}
    text = json.dumps(head | data, indent=2, ensure_ascii=False)
    write_text(text + "\n", console_on(sys.stdout))


def _cut_data(cut: Any, ways: Any) -> dict[str, Any]:
    names = [ways.record.leaves[n].name for n in sorted(cut.behind)]
    return {
        "reason": str(cut.reason),
        "operation": cut.how,
        "location": plain(cut.site),
        "mode": plain(cut.mode_site),
        "back": plain(next(iter(cut.back), None)),
        "parameters": names,
    }


def _call_data(call: Any, ways: Any) -> dict[str, Any]:
    record = ways.record
    cuts = [] if call.has_graph else ways.cuts(call.roots)
    return {
        "location": plain(record.site(call.route)),
        "has_graph": call.has_graph,
        "reached": [record.leaves[n].name for n in sorted(call.reached)],
        "frozen": [record.leaves[n].name for n in ways.frozen_behind(call.roots)],
        "unused_inputs": list(call.unused),
        "cuts": [_cut_data(cut, ways) for cut in cuts],
    }


def _answer_data(answer: Any, ways: Any) -> dict[str, Any]:
    record, leaf = ways.record, answer.leaves[0]
    _, rows = ways.shown(answer)
    return {
        "state": str(answer.state),
        "parameters": [record.leaves[n].name for n in answer.leaves],
        "given": answer.given,
        "of": answer.of,
        "frozen_at": plain(record.site(record.leaves[leaf].frozen)),
        "way": [{"state": str(row.state), "location": plain(row.site)} for row in rows],
        "cuts": [_cut_data(cut, ways) for cut in answer.cuts],
    }
