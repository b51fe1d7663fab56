"""The report for people: findings, backward calls, totals, and the next command to type.

Also where the memory of a run is, as tables with bars.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from gradscope.formatting import Sources, counted, listed, nbytes
from gradscope.model import (
    Cause,
    Certainty,
    Failure,
    Finding,
    Fix,
    Outcome,
    Process,
    Proof,
    Recording,
    Severity,
    Site,
)
from gradscope.render.memory import (
    GroupBy,
    Largest,
    Size,
    Storage,
    by,
    growing,
    largest,
    name_of,
    trends,
)
from gradscope.render.text import (
    ELLIPSIS,
    gutter_width,
    mentioned,
    place_of,
    plain,
    pointed,
    print_labelled,
    print_lines,
    print_message,
    print_table,
    shorten,
    tail,
    wrapped,
)
from gradscope.render.text.tables import as_code, calls_table, is_telling, print_trains
from gradscope.render.theme import SEVERITIES
from gradscope.render.wording import (
    alternative,
    failures,
    fix_command,
    lives,
    notes,
    nothing_found,
    proposed,
    reasons,
    untrained,
)
from gradscope.rules.gs604 import CROSSES

_COSTLY = 0.15  # of a loop's time: where the watch took more, the report says how it takes less


def print_finding(
    finding: Finding, console: Console, sources: Sources = None, before: Sequence[Finding] = ()
) -> None:
    """Print one finding: its place, the places it names, and what to do.

    ``before`` are the findings printed above; of one that they announced, print what is new.
    """
    look = SEVERITIES[finding.severity]
    announced = next((one for one in before if one.announces(finding)), None)
    said = notes(finding, announced)
    lead = Text.assemble(tag(finding, console), ": ")
    print_message(lead, finding.message, console, style="bold")
    _print_places(finding, said, console, sources, look.terminal)
    if announced is None and finding.fix is not None:
        print_help(proposed(finding.fix), finding.fix, console)
        for other in finding.alternatives:
            print_message(Text("  or: ", style="green"), alternative(other), console)
    print_lines(console, [Text()])


def _print_places(
    about: Finding | Failure,
    said: Sequence[tuple[str, Site | None]],
    console: Console,
    sources: Sources,
    style: str,
) -> None:
    """Print the line that something is about with its label, and notes with the lines they name."""
    site, label = about.site, about.label
    gutter = gutter_width(site, *(each for _, each in said))
    if site is None:
        print_message(Text(" " * gutter + " = ", style="dim"), label, console)
    else:
        print_lines(console, pointed(site, label, console, sources, style=style, gutter=gutter))
    shown = {site and (site.file, site.line)}
    for note, each in said:
        place = each and (each.file, each.line)
        is_shown = place in shown and each is not None
        print_note(f"{note} ({place_of(each, console)})" if is_shown else note, console)
        if each is not None and not is_shown:
            print_lines(console, mentioned(each, console, sources, gutter=gutter))
        shown.add(place)


def _print_failures(recording: Recording, console: Console) -> None:
    """Print the exceptions that ended a run and that no finding explains, and where they arose."""
    style = SEVERITIES[Severity.ERROR].terminal
    for failure, where, exception in failures(recording):
        raised = shorten(exception, 2 * console.width - 40)
        lead = Text(f"raised{plain(where, console)}: ", style=style)
        print_message(lead, raised, console, style="bold")
        said = [(each.message, each.site) for each in failure.related]
        _print_places(failure, said, console, recording.sources, style)
        if failure.help:
            print_message(Text("help: ", style="bold green"), failure.help, console)
        print_lines(console, [Text()])


def print_help(message: str, fix: Fix, console: Console) -> None:
    """Print what to do, why, and what it means for the training."""
    print_message(Text("help: ", style="bold green"), message, console)
    for word, text in reasons(fix):
        print_labelled(word, "bold cyan", text, console)


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print findings one after the other; of those that are suppressed, how many there are."""
    shown = [finding for finding in findings if not finding.suppression]
    for place, finding in enumerate(shown):
        print_finding(finding, console, before=shown[:place])
    if len(shown) < len(findings):
        print_lines(console, [Text(", ".join(tally(findings)), style="dim"), Text()])


def print_list(findings: Sequence[Finding], console: Console) -> None:
    """Print a row for each finding: severity, code, place, name, and how often it was seen."""
    columns = Column(no_wrap=True), Column(no_wrap=True), Column(overflow="fold")
    table = Table(*columns, box=None, show_header=False, padding=(0, 2, 0, 0))
    for finding in findings:
        seen = f", seen {finding.count:,} times" if finding.count > 1 else ""
        seen += ", withdrawn" if finding.withdrawn else ""
        seen += f", in {listed(finding.processes)}" if finding.processes else ""
        grows = finding.severity is Severity.WARNING and finding.certainty is Certainty.OBSERVED
        # The figures of what grows have changed since it was printed.
        text = (grows and finding.label) or finding.name
        place = Text(tail(place_of(finding.site, console), console.width // 3))
        table.add_row(tag(finding, console), place, Text(plain(text, console) + seen))
    print_table(table, console)


def tally(findings: Iterable[Finding]) -> list[str]:
    """Return the findings counted: ``1 error``, ``2 warnings``, ``3 advice``, ``1 suppressed``."""
    found = list(findings)
    standing = Counter(finding.severity for finding in found if finding.counts)
    plural = {Severity.ADVICE: "advice"}  # it has none
    parts = [counted(standing[one], one, plural.get(one, "")) for one in Severity if standing[one]]
    if withdrawn := sum(bool(one.withdrawn) and not one.suppression for one in found):
        parts.append(f"{counted(withdrawn, 'prediction')} withdrawn")
    if suppressed := sum(one.suppression is not None for one in found):
        parts = [*(parts or ["no finding"]), f"{suppressed:,} suppressed"]
    return parts


def tag(finding: Finding, console: Console) -> Text:
    """Return ``error[GS101]``."""
    look = SEVERITIES[finding.severity]
    return Text(f"{look.word}[{plain(finding.code, console)}]", style=look.terminal)


def print_note(message: str, console: Console) -> None:
    """Print a note."""
    print_labelled("note", "bold cyan", message, console)


def print_report(
    recording: Recording,
    console: Console,
    saved: str | None = None,
    printed: Collection[Cause] = (),
    *,
    verbose: bool = False,
) -> None:
    """Print the report on a screen, or all of it; ``saved`` is the path of the recording, if there
    is one.

    Findings whose causes are in ``printed`` were printed on this console before: one line each.
    """
    findings = [finding for finding in recording.findings if not finding.suppression]
    _print_failures(recording, console)
    for place, finding in enumerate(findings):
        if finding.cause not in printed:
            print_finding(finding, console, recording.sources, findings[:place])
    is_told = bool(printed) and "that error" in _ended(recording)  # Python has printed it, too
    known = [finding for finding in findings if finding.cause in printed]
    if again := [one for one in known if one.count > 1 or not is_told]:
        print_lines(console, [Text("findings", style="bold")])
        print_list(again, console)
    if is_telling(recording):
        print_trains(recording, console)
    if recording.calls and verbose:
        table = calls_table(recording.calls, console, hooks=recording.header.hooks)
        above = [Text()] if again else []
        print_lines(console, [*above, Text("backward calls", style="bold"), *table, Text()])
        print_lines(console, [Text("totals", style="bold")])
        _print_rows(_totals(recording), "  ", console)
        print_lines(console, [Text()])
    elif recording.calls:
        totals = _totals(recording)
        told = {"growing"} | ({"gradscope took"} if recording.summary.cost > _COSTLY else set())
        told |= set() if recording.findings else {"nodes", "held by graphs"}
        _print_rows({name: totals[name] for name in totals if name in told}, "", console)
    if recording.processes:
        print_processes(recording, console)
    why = (f"{each.code}: {each.untried}" for each in findings if each.untried)
    for note in (*recording.summary.notes, *why):
        print_note(note, console)
    if not (recording.processes or is_told):
        _outcome(recording.outcome, "the script", console)
    _headline(recording, console)
    _next(recording, console, saved, verbose)


def _totals(recording: Recording) -> dict[str, str]:
    """Return what was built and saved, what graphs released of it, and what memory came back."""
    s = recording.summary
    held = s.freed_bytes - s.returned_bytes
    elsewhere = f"; {nbytes(held)} still held elsewhere" if held > 0 else ""
    freed, dropped = nbytes(s.freed_bytes), nbytes(s.dropped_bytes)
    end, peak = nbytes(s.live_bytes), nbytes(s.peak_saved_bytes)
    about = "" if s.exact else "about "
    rows = {
        "nodes": lives(s),
        "saved tensors": f"{about}{s.saved_tensors:,} saved, {nbytes(s.saved_bytes)}",
        "released by the graph": f"{about}{s.freed_tensors:,} freed in backward, {freed}",
        "memory returned": f"{about}{nbytes(s.returned_bytes)} of those{elsewhere}",
        "dropped": f"{about}{s.dropped_tensors:,} destroyed with their graph, {dropped}",
        "held by graphs": f"{about}{end} at the end, {peak} at the peak",
    }
    rows |= {"growing": rate} if (rate := growing(recording)) else {}
    if not s.dropped_tensors:
        del rows["dropped"]
    if not recording.header.hooks:
        rows = {"nodes": rows["nodes"], "saved tensors": "not counted without hooks"}
    if s.estimated_calls:
        guarded = counted(s.estimated_calls, "lightly inspected call")
        rows["estimated"] = f"for {guarded}, extrapolated from fully inspected ones"
    if s.nodes_before:
        older = counted(s.nodes_before, "node")
        rows["built before"] = f"{older} that a call met; what these saved is not counted"
    if s.uncounted_nodes:
        rows["not counted"] = f"what the last {counted(s.uncounted_nodes, 'node')} may have saved"
    if s.predicted:
        rows["predictions"] = f"predicted {s.predicted:,}, came true {s.came_true:,}"
    if s.left_out:
        found = counted(s.left_out, "place that wastes", "places that waste")
        rows["not reported"] = f"{found} less than 1 MB and less than 1 % of the peak"
    if s.cost:
        less = "; `--budget 3` inspects fewer calls" if s.cost > _COSTLY else ""
        took = f"about {100 * s.cost:.0f} %" if s.cost > 0.01 else "less than 1 %"
        rows["gradscope took"] = f"{took} of the loop{less}"
    return rows


def _print_rows(rows: dict[str, str], indent: str, console: Console) -> None:
    width = max(map(cell_len, rows), default=0)
    for name, value in rows.items():
        lead = Text(f"{indent}{name}{'':{width - cell_len(name)}}  ", style="dim")
        print_message(lead, value, console)


def print_processes(recording: Recording, console: Console) -> None:
    """Print a line for each process, or for several in a row with the same figures, and in what it
    differs from the others.
    """
    print_lines(console, [Text("processes", style="bold")])
    rows = {}
    for figures, alike in groupby(recording.processes, _figures):
        names = [plain(one.name, console) for one in alike]
        rows[" to ".join(dict.fromkeys((names[0], names[-1])))] = figures
    _print_rows(rows, "  ", console)
    print_lines(console, [Text()])
    for one in recording.processes:
        if one.differs:
            print_note(f"{one.name} differs: {one.differs}", console)
        _outcome(one.outcome, one.name, console)


def _figures(one: Process) -> str:
    s = one.summary
    saved = f"{nbytes(s.saved_bytes)} saved, {nbytes(s.peak_saved_bytes)} at the peak"
    found = counted(one.findings, "finding") if one.findings else "no finding"
    return f"{counted(s.backward_calls, 'backward call')}, {saved}, {found}"


def _outcome(outcome: Outcome, who: str, console: Console) -> None:
    """Print how the run ended, if it ended early or raised."""
    if not outcome.finished:
        what = "the recording" if who == "the script" else f"the recording of {who}"
        print_note(f"{what} ends here: {outcome.unfinished}", console)
    elif outcome.exception and (outcome.failure is None or who != "the script"):
        raised = outcome.exception.splitlines()[0]
        print_note(f"{who} raised {shorten(raised, 2 * console.width - 40)}", console)


def _headline(recording: Recording, console: Console) -> None:
    """Print the result in one line."""
    words, style, made = ", ".join(tally(recording.findings)), "bold", _made(recording)
    calls = f" in {made}" if recording.summary.backward_calls else "; no backward call was made"
    rest = f"{calls}{_ended(recording)}"
    if recording.findings:
        found = [finding.severity for finding in recording.findings if finding.counts]
        style = SEVERITIES[min(found, key=lambda one: one.rank)].terminal if found else style
    elif not recording.summary.backward_calls and recording.outcome.failure is None:
        print_lines(console, [Text("no backward call was made, so there is nothing to report")])
        return
    elif any(one.differs for one in recording.processes):
        words = "no finding"
    else:
        words, rest, is_well = nothing_found(recording, made)
        style = "bold green" if is_well else style
    lines = [Text.assemble((plain(words, console), style), rest)]
    lines += [Text(plain(each, console)) for each in untrained(recording.summary.training)]
    for line in lines:
        print_lines(console, wrapped(line, console.width, console))


def _ended(recording: Recording) -> str:
    """Return how a run with findings ended: with the one error that was found, or another one."""
    raised = (recording.outcome.exception or "").strip()
    failed = [call.exception for call in recording.calls if call.exception]
    errors = [each for each in recording.findings if each.severity is Severity.ERROR]
    crosses = any(words in raised for words in CROSSES)
    is_that = crosses and any(each.code == "GS604" for each in errors)
    is_that = is_that or bool(failed and raised and raised.endswith(failed[-1].strip()))
    if recording.outcome.failure is not None:
        return f"; the script ended with {raised.partition(':')[0].rpartition('.')[2]}, see above"
    return "; the script ended with that error" if is_that and len(errors) == 1 else ""


def _made(recording: Recording) -> str:
    """Return how many backward calls were made, and in how many processes."""
    calls = counted(recording.summary.backward_calls, "backward call")
    if recording.processes:
        return f"{calls} of {counted(len(recording.processes), 'process', 'processes')}"
    header = recording.header
    return f"{calls} of rank {header.rank}" if header.ranks > 1 else calls


def _next(recording: Recording, console: Console, saved: str | None, verbose: bool) -> None:
    """Print what to type next, what helps most first."""
    commands = []
    findings = [finding for finding in recording.findings if not finding.suppression]
    header = recording.header
    is_own = header.run or os.path.join(header.cwd, header.script) in recording.sources  # no kernel
    is_script = is_own and header.script.endswith(".py") and header.ranks <= 1
    if recording.processes:
        pass  # a fix is tried in one process
    elif saved is not None and any(f.fix and f.fix.edits for f in findings):
        commands.append(fix_command(header, *_asking(findings), file=saved))
    elif is_script and any(f.is_fixable for f in findings):
        commands.append(fix_command(header, *_asking(findings)))
    if findings:
        gravest = min(findings, key=lambda finding: finding.severity.rank)
        commands.append(f"gradscope explain {gravest.code}")
    if saved is not None and (recording.graphs or (recording.calls and not verbose)):
        more = "memory" if verbose else "verbose"
        commands.append(f"gradscope report --{more} {saved}")
    lines = [plain(command, console) for command in commands]
    lead = "next: "
    if lines and len(lead) + max(map(cell_len, lines)) > console.width:
        print_lines(console, [Text(lead.rstrip(), style="dim")])
        lead = "  "
    for line in lines:
        print_lines(console, [Text.assemble((lead, "dim"), line)])
        lead = " " * len(lead)


def _asking(findings: Sequence[Finding]) -> list[str]:
    """Return the options of `gradscope fix` that write what has held, or follow an advice."""
    graver = [f for f in findings if f.counts and f.severity is not Severity.ADVICE]
    if any(f.fix and f.fix.proof is Proof.HELD for f in graver):
        return ["--write"]
    advice = [f.code for f in findings if f.counts and any(fix.edits for fix in f.fixes)]
    return ["--finding", advice[0], "--write"] if advice and not graver else []


_MOST_ROWS = 12  # of a table; those left out are counted below it
_NOTHING = "no graph was recorded, so there is nothing to show"

BarRow = tuple[str, Sequence[str], float]
"""A name, its figures, and how long the bar behind them is, of 1."""


def _by(kind: GroupBy, saved: Iterable[Storage], console: Console) -> dict[str, Size]:
    """Return the sizes of the rows of a table."""
    return by(lambda one: name_of(kind, one, lambda site: place_of(site, console)), saved)


def print_memory(
    recording: Recording, console: Console, kinds: Iterable[GroupBy] = GroupBy
) -> None:
    """Print what grows, and what the largest graph saved, a table for each kind."""
    graph = largest(recording)
    _print_growing(recording, console)
    if graph is None:
        print_lines(console, [Text(_NOTHING)])
        return
    _print_head(graph, recording, console)
    for kind in kinds:
        sums = _by(kind, graph.saved, console)
        most = max((size.nbytes for size in sums.values()), default=1)
        rows = [(name, _cells(size, graph), size.nbytes / most) for name, size in sums.items()]
        head = ("", "") if graph.alone is None else ("saved", "", "alone")
        _print_table(f"by {kind}", head, rows, console)


def _print_growing(recording: Recording, console: Console) -> None:
    """Print who keeps ever more, of what kind it is, and when memory is full."""
    rows: list[BarRow] = []
    for one in trends(recording):
        last, hourly = one.looks[-1], nbytes(round(one.hourly)) if one.hourly else "?"
        kinds = map(nbytes, (last.saved, last.outputs, last.nodes))
        rows.append((one.holder, (*kinds, nbytes(round(one.each)), hourly), 0))
    if rows:
        head = "graphs", "outputs", "nodes", "per step", "per hour"
        _print_table("growing, and kept in all", head, rows, console, growing(recording))


def _cells(size: Size, graph: Largest) -> tuple[str, ...]:
    """Return the figures of a row; without those that the recording does not have."""
    cells = nbytes(size.nbytes), f"{size.nbytes / graph.nbytes:.0%}"
    return cells if graph.alone is None else (*cells, nbytes(size.alone))


def _print_head(graph: Largest, recording: Recording, console: Console) -> None:
    """Print which graph it is, and what else is known of its bytes."""
    call, summary = graph.call, recording.summary
    where = place_of(call.site, console)
    of = f"backward call {call.number:,}"
    if call.count > 1:
        of = f"each of backward calls {call.number:,}\N{EN DASH}{call.last_number:,}"
    of += f" of {call.process}" if call.process else ""
    at = f" at {where}" if where else ""
    lead = Text("memory: ", style="bold")
    what = f"{nbytes(graph.nbytes)} saved in the graph of {of}{at}: `{as_code(call)}`"
    print_message(lead, what, console)
    indent = Text(" " * lead.cell_len)
    if summary.peak_saved_bytes > graph.nbytes:
        peak = nbytes(summary.peak_saved_bytes)
        print_message(indent, f"all graphs together held {peak} at the peak of the run", console)
    devices = by(lambda one: one.tensor.device, graph.saved)
    if devices.keys() - {"cpu"}:
        sizes = listed(f"{nbytes(size.nbytes)} on {name}" for name, size in devices.items())
        print_message(indent, f"of that {sizes}", console)
    if graph.alone is not None:
        others = graph.nbytes - graph.alone
        rest = f"{nbytes(others)} was held by something else too, the rest by the graph alone"
        print_message(indent, rest if others else "only this graph held it", console)
    elif call.freed_bytes > call.returned_bytes:
        elsewhere = nbytes(call.freed_bytes - call.returned_bytes)
        freed = nbytes(call.freed_bytes)
        held = f"of {freed} that the call released, {elsewhere} was still held elsewhere"
        print_message(indent, held, console)
    known = [one for one in graph.saved if one.source]
    if known:
        heaviest = sorted(known, key=lambda one: -one.tensor.nbytes)
        names = listed(f"`{one.source}`" for one in heaviest)
        size = nbytes(sum(one.tensor.nbytes for one in known))
        print_message(indent, f"{size} is in variables of the program too: {names}", console)
    print_lines(console, [Text()])


def _print_table(
    title: str, head: Sequence[str], rows: Sequence[BarRow], console: Console, foot: str = ""
) -> None:
    """Print rows under a title: names, folded between words, figures right, then a bar in what room
    the longest word leaves; and what they mean.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="", show_header=any(head))
    table.add_column(overflow="fold")
    for column in head:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    shown = [(plain(name, console), cells, share) for name, cells, share in rows[:_MOST_ROWS]]
    words = [cell_len(word) for name, _, _ in shown for word in name.split()]
    columns = zip(head, *(cells for _, cells, _ in shown), strict=True)
    figures = sum(max(map(cell_len, column)) + 2 for column in columns)
    room = max(0, min(console.width // 4, console.width - max(words, default=0) - figures - 6))
    for name, cells, share in shown:
        table.add_row(Text(name), *cells, "█" * round(share * room))
    print_lines(console, [Text(title, style="bold")])
    print_table(table, console)
    if len(rows) > _MOST_ROWS:
        more = f"  {ELLIPSIS} {counted(len(rows) - _MOST_ROWS, 'more row')}"
        print_lines(console, [Text(more, style="dim")])
    if foot:
        print_message(Text("  "), foot, console)
    print_lines(console, [Text()])
