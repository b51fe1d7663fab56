"""Prints whether a gradient arrives at parameters, over which lines, and where the way is cut."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gradscope.fixing.gradient_paths import Answer, Arrival, Cut, LineState, Paths, Row
from gradscope.fixing.origins import EngineUse
from gradscope.formatting import counted, lines_told, listed
from gradscope.model import Site
from gradscope.render.text import plain, print_lines, prose, shorten, source_line, wrapped

_MOST_ROWS = 12  # lines of a way: of a longer one both ends and what is around the cut, 11 at most
_MOST_ALSO = 4  # further cuts that are named: more are counted
_SIGNS = {
    LineState.GRADIENT: ("│", "|", "green"),
    LineState.BARE: ("╎", ":", "dim"),
    LineState.CUT: ("✂", "8<", "red"),
    LineState.BEHIND: ("┊", ".", "dim"),
}
_LAST = {LineState.GRADIENT: ("●", "*"), LineState.BEHIND: ("○", "o"), LineState.BARE: ("○", "o")}


def print_answer(answer: Answer, ways: Paths, script: str, console: Console) -> None:
    """Print what is known of some leaves that have the same ways."""
    _say(said_of(answer, ways), console)
    leaf = answer.leaves[0]
    call, rows = ways.shown(answer)
    if answer.state in (Arrival.ARRIVES, Arrival.ZERO):
        _print_way(call, rows, "", ways, script, console)
        if also := ways.also_by(leaf):
            lines = lines_told(site.line for site in also)
            lines = lines if len(also) <= 8 else counted(len(also), "more line")
            _say(f"  it also comes by {lines}", console)
        for cut in answer.cuts[:1]:
            more = f" and {len(answer.cuts) - 1} more" if len(answer.cuts) > 1 else ""
            _say(f"another way is cut: {_cut_words(cut)}{more}", console)
    elif answer.state is Arrival.CUT:
        cut = answer.cuts[0]
        _print_way(call, rows, cut.word, ways, script, console)
        _print_cut(cut, ways, console)
        if len(answer.cuts) > 1:
            rest = (_cut_words(each) for each in answer.cuts[1:])
            _say(f"cut as well: {listed(rest, _MOST_ALSO)}", console)
    elif answer.state is Arrival.ASIDE:
        last = ways.last_of_values(map(ways.value_of, answer.leaves))
        if last is not None:
            at = f"{_place(last, script)}: {_text(last, console)}"
            _say(f"what is computed from it ends at {at}", console)


def print_call(call: EngineUse, ways: Paths, script: str, console: Console, name: str = "") -> None:
    """Print what a call starts from, or a value of some name, and where the way there is cut."""
    record = ways.record
    site = record.site(call.route)
    where = _place(site, script) if site is not None else "an unknown line"
    has, lacks = (f"`{name}` has {a} graph" for a in ("a", "no"))
    if not name:
        has = f"the call at {where} has a graph"
        lacks = f"the call at {where} starts from what has no graph"
    if call.has_graph:
        names = record.told(call.reached)
        count = counted(len(call.reached), "leaf", "leaves")
        _say(f"{has}: it leads to {count}, {names}", console)
        if call.unused:
            _say(f"inputs {listed(f'[{p}]' for p in call.unused)} are not reached", console)
        return
    cuts, frozen = ways.lost(call)
    if not cuts:
        whose = "no parameter leads there"
        if frozen:
            whose = f"{record.told(frozen)} require no grad"
        _say(f"{lacks}: {whose}", console)
        for route in dict.fromkeys(record.leaves[n].frozen for n in frozen):
            if (froze := record.site(route)) is not None:
                _say(f"frozen at {_place(froze, script)}: {_text(froze, console)}", console)
        return
    cut = cuts[0]
    _say(f"{lacks}: the way is cut", console)
    rows = ways.cut_way(cut, call.roots)
    _print_way(call, rows, cut.word, ways, script, console)
    _print_cut(cut, ways, console)
    if cut.value not in record.before(call.roots):
        _say("what happened between leaving torch and coming back is not seen", console)
    if len(cuts) > 1:
        _say(f"cut as well: {listed(map(_cut_words, cuts[1:]), _MOST_ALSO)}", console)


def said_of(answer: Answer, ways: Paths) -> str:
    """Return what is known of some leaves, in a sentence."""
    first, count = ways.record.leaves[answer.leaves[0]], len(answer.leaves)
    who = f"`{first.name}` {first.shape}"
    if count > 1:
        who = f"{ways.record.told(answer.leaves)} ({counted(count, 'parameter')})"
    return f"{who}: {_what(answer, ways)}"


def _what(answer: Answer, ways: Paths) -> str:
    record = ways.record
    leaf = record.leaves[answer.leaves[0]]
    steps = [step for step in record.steps if step.optimizer == leaf.optimizer]
    unit = "step" if leaf.optimizer >= 0 and steps else "call"
    times = counted(answer.of, unit)
    arrives = f"in {answer.given} of {times}" if not ways.asked else f"from `{ways.asked}`"
    when = f"in {times}" if not ways.asked else f"from `{ways.asked}`"
    holder = record.optimizers[leaf.optimizer] if leaf.optimizer >= 0 else None
    name = (holder.name or f"the {holder.kind}") if holder is not None else ""
    it = "it" if len(answer.leaves) == 1 else "them"
    match answer.state:
        case Arrival.ARRIVES:
            if ways.asked:
                return f"a gradient arrives {arrives}"
            failed = sum(answer.leaves[0] in c.reached and c.has_failed for c in ways.losses)
            but = f" ({failed} failed)" if failed and unit == "call" else ""
            used = f"no optimizer has {it}"
            if not record.steps and record.ended not in ("", "enough", "end"):
                end = "was stopped" if record.stopped else "failed"
                used = f"no optimizer stepped before the run {end}"
            if holder:
                used = f"{name} has {it}, and did not step"
            if holder and steps:
                used = f"{name}.step() {f'uses {it}' if answer.given else 'finds none'}"
            return f"a gradient arrives {arrives}{but}{'; ' if holder else ', and '}{used}"
        case Arrival.ZERO:
            return f"a gradient arrives {arrives}, and is zero (not a cut)"
        case Arrival.FROZEN:
            site = record.site(leaf.frozen)
            return f"frozen at line {site.line}" if site is not None else "requires_grad is off"
        case Arrival.UNUSED:
            return f"nothing was computed from {it} {when}"
        case Arrival.LOST:
            return f"a graph leads to {it}, and no derivative gives {it} a gradient"
        case Arrival.ASIDE:
            return f"no loss was computed from {it} {when}"
    skips = f"; {name}.step() skips {it}" if holder and steps else ""
    return f"no gradient arrives {when}{skips}"


def _print_cut(cut: Cut, ways: Paths, console: Console) -> None:
    if cut.why and cut.mode_site is None:
        _say(f"why: {cut.why}", console)
    if cut.mode is not None and cut.mode_site is not None:
        text = _text(cut.mode_site, console)
        _say(f"grad mode is off since line {cut.mode_site.line}: {text}", console)
    if cut.back and (cut.site is None or cut.back[0].line != cut.site.line):
        _say(f"came back at line {cut.back[0].line}: {_text(cut.back[0], console)}", console)
    numbers = sum(ways.record.leaves[n].numbers for n in cut.behind)
    whom = ways.record.told(cut.behind)
    _say(f"behind the cut: {whom} ({counted(numbers, 'number')})", console)


def _cut_words(cut: Cut) -> str:
    return f"{cut.word} at line {cut.site.line}" if cut.site is not None else cut.word


def _print_way(
    use: EngineUse | None, rows: Sequence[Row], cut: str, ways: Paths, script: str, console: Console
) -> None:
    """Print the lines of a way, the loss on top."""
    is_wide = not console.encoding.lower().startswith(("ascii", "latin", "iso"))
    site = ways.record.site(use.route) if use is not None else None
    if site is not None:
        _print_row("", site, "", "bold", script, console, lead="line ")
    keep = {*range(len(rows))}
    if len(rows) > _MOST_ROWS:
        cut_at = next((i for i, r in enumerate(rows) if r.state is LineState.CUT), len(rows) // 2)
        keep = {*range(4), *range(len(rows) - 4, len(rows)), *range(cut_at - 1, cut_at + 2)}
    for place, row in enumerate(rows):
        if place not in keep:
            if place - 1 in keep:
                hidden = min(i for i in keep if i > place) - place
                _say(f"  {'…' if is_wide else '...'} {counted(hidden, 'line')}", console)
            continue
        wide, narrow, style = _SIGNS[row.state]
        if row is rows[-1] and row.state in _LAST:
            wide, narrow = _LAST[row.state]
        word = "" if row is rows[-1] or row.state is LineState.GRADIENT else str(row.state)
        word = f"cut: {cut}" if row.state is LineState.CUT else word
        _print_row(wide if is_wide else narrow, row.site, word, style, script, console)


def _print_row(
    sign: str, site: Site, word: str, style: str, script: str, console: Console, lead: str = ""
) -> None:
    where = f"{lead}{site.line}" if site.file == script else f"{lead}{site.place}"
    right = f"{word}  {where:>9}" if word else f"{where:>9}"
    mark = f"  {sign:<2}" if sign else "  "
    room = console.width - cell_len(mark) - cell_len(right) - 3
    text = shorten(_text(site, console), max(room, 10))
    filled = text + " " * max(room - cell_len(text), 0)
    line = Text.assemble((mark, style), filled, "  ", (right, "dim" if not word else style))
    line.rstrip()
    print_lines(console, [line])


def _text(site: Site, console: Console) -> str:
    return plain((source_line(site, None) or "").strip(), console)


def _place(site: Site, script: str) -> str:
    return f"line {site.line}" if site.file == script else site.place


def _say(text: str, console: Console) -> None:
    print_lines(console, wrapped(prose(text, console), console.width, console))
