"""Adds to findings about missing gradients where the path was cut, and tries fixes for them."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from gradscope.code import source
from gradscope.code.statements import resets_in, stored_names
from gradscope.errors import GradscopeError
from gradscope.fixing import reconnecting
from gradscope.fixing.gradient_paths import Arrival, Cut, Paths, spot_of
from gradscope.fixing.origins import CutReason, EngineUse, Origins
from gradscope.fixing.plan import Plan, alone, none_held, plan
from gradscope.fixing.runs import LEAST_SECONDS, REFUSED, Bounds, Program
from gradscope.fixing.verify import LEAST_CALLS
from gradscope.formatting import counted, gathered, lines_told
from gradscope.model import (
    Applicability,
    CellState,
    Finding,
    Fix,
    FixKind,
    Proof,
    Recording,
    Related,
    Severity,
    Site,
    TrainingCell,
    TrainingTable,
)
from gradscope.rules.base import table_rows

# Fixes of one finding that are tried: each takes a run of the program and a rehearsal.
_MOST_TRIED = 5
# Lines that reset gradients, each of which may be the one that does so too early: a training loop
# has one ``zero_grad()``, a GAN has two.
_MOST_RESETS = 2
_MOST_NOTES = 3  # notes of one finding on where a path was cut: nobody reads more
_ATTACHED = Fix(FixKind.ATTACH, "use the value itself, with its graph")


class Diagnosis(NamedTuple):
    """Why no gradient arrives: the line to edit, what it does (``cuts the way to
    `agent.critic.*```), notes in the order in which a reader needs them, and what can be done.

    ``is_unused``: nothing was computed from the parameters.
    """

    site: Site
    label: str
    notes: Sequence[Related] = ()
    fixes: Sequence[Fix] = ()
    is_unused: bool = False


def improved(
    recording: Recording, program: Program, end: float, tell: Callable[[str], None]
) -> Recording:
    """Return the recording with what a rehearsal, up to the second step of each optimizer, has
    shown of where gradients are lost, and with fixes that were tried and passed.
    """
    own = [each for each in recording.findings if each.is_born and each.counts]
    tell("rehearses the run, to see where the way is cut")
    # A call that fails is the last one of its run.
    calls = max((f.backward_call for f in own if f.severity is Severity.ERROR), default=0)
    try:
        record = program.follow(Bounds(calls, end - time.monotonic()))
    except GradscopeError as failure:
        tell(str(failure))
        return recording
    ways = Paths(record)
    fuller = {id(each): full(each, ways) for each in own}
    found = [fuller.get(id(each), each) for each in recording.findings]
    summary = recording.summary
    table = summary.training.table and filled(summary.training.table, ways)
    summary = replace(summary, training=replace(summary.training, table=table))
    better = replace(recording, findings=tuple(found), summary=summary)
    return _tried(better, program, end, tell)


def full(finding: Finding, ways: Paths) -> Finding:
    """Return a finding with the place where the path is cut, if the rehearsal has shown it."""
    if finding.is_of_resets and finding.step is not None:
        place = finding.site
        places = [place] if place is not None and place != finding.step else []
        if places and finding.code == "GS504":
            fixes = reconnecting.reset_at(finding.step, *places)
        else:
            fixes = reconnecting.reset(finding.step, places)
        return finding.with_fixes([*fixes, *finding.fixes])
    to_find = _ASKED.get(finding.code)
    way = None if to_find is None else to_find(finding, ways)
    if way is None:
        return finding
    changed = replace(finding, related=tuple(way.notes))
    if finding.step is None:  # the call that fails stays the place
        changed = replace(changed, parameters=finding.parameters or _names_behind(finding, ways))
    else:
        severity = finding.severity
        if finding.code == "GS502":
            severity = Severity.ADVICE if way.is_unused else Severity.WARNING
        changed = replace(changed, site=way.site, label=way.label, severity=severity)
    return changed.with_fixes([*way.fixes] or [*finding.fixes])


def filled(table: TrainingTable, ways: Paths) -> TrainingTable:
    """Return the table of who trains what, with the cuts that the rehearsal has shown."""
    record = ways.record
    leaves = {leaf.name: n for n, leaf in enumerate(record.leaves)}
    calls = [ways.calls_at(*spot_of(loss.site)) for loss in table.losses]
    cuts: list[dict[int, Cut]] = [{} for _ in calls]
    for own, there in zip(calls, cuts, strict=True):
        for call in own:
            for cut in [*ways.cuts(call.roots, leaves.values()), *ways.left_unseen(call)]:
                there.update({leaf: cut for leaf in cut.behind if leaf not in there})

    def cell(leaf: int | None, place: int, old: TrainingCell) -> TrainingCell:
        if leaf is not None and old.state is CellState.FROZEN:
            return replace(old, site=record.site(record.leaves[leaf].frozen))
        if leaf is None or old.state is not CellState.NO_GRADIENT or not calls[place]:
            return old
        if (cut := cuts[place].get(leaf)) is not None:
            return TrainingCell(CellState.CUT, site=cut.site, operation=cut.word)
        is_met = any(leaf in call.reached | call.lost for call in calls[place])
        return old if is_met else TrainingCell(CellState.NO_WAY)

    cells = {
        name: (size, [cell(leaves.get(name), i, old) for i, old in enumerate(row.cells)])
        for row in table.rows
        for name, size in zip(row.parameters, row.sizes, strict=True)
    }
    return replace(table, rows=table_rows(cells), rehearsed=True)


# what is asked


def _call_of(finding: Finding, ways: Paths) -> EngineUse | None:
    """Return the call that a finding is about, as it was in the rehearsal."""
    calls = ways.calls_at(*spot_of(finding.site))
    wrong = [call for call in calls if not call.has_graph or call.unused]
    return wrong[-1] if wrong else None


def _names_behind(finding: Finding, ways: Paths) -> tuple[str, ...]:
    call = _call_of(finding, ways)
    if call is None:
        return ()
    cuts, frozen = ways.lost(call)
    leaves = {n for cut in cuts for n in cut.behind} or {*frozen}
    names = (ways.record.leaves[n].name for n in sorted(leaves))
    return tuple(name for name in names if name)


def without_graph(finding: Finding, ways: Paths) -> Diagnosis | None:
    """Return why the roots of a call have no graph."""
    call = _call_of(finding, ways)
    if call is None or finding.site is None:
        return None
    cuts, frozen = ways.lost(call)
    notes: list[Related] = []
    if cuts:
        notes = [*_notes_of(cuts[0], ways, called=finding.site)]
        fixes = reconnecting.fixes_of(cuts[0], ways, call.roots)
    elif frozen:
        notes = [*_frozen_notes(frozen, ways)]
        fixes = reconnecting.thawed(frozen, ways)
    else:
        return None
    silenced = _silenced(call, ways)
    return Diagnosis(finding.site, finding.label, [*notes[:_MOST_NOTES], *silenced], fixes)


def _silenced(call: EngineUse, ways: Paths) -> list[Related]:
    origins = (ways.record.origins[root] for root in call.roots)
    sites = [ways.record.site(o.route) for o in origins if o.leaf >= 0 and o.parents]
    said = "this only silences the error: nothing behind it is trained"
    return [Related("made", site, said) for site in sites if site is not None]


def not_reached(finding: Finding, ways: Paths) -> Diagnosis | None:
    """Return why no gradient reaches the parameters of a finding."""
    leaves = [n for name in finding.parameters for n in ways.named(name)[:1]]
    answers = [a for a in ways.of_leaves(leaves) if a.state not in (Arrival.ARRIVES, Arrival.ZERO)]
    frozen = [leaf for a in answers if a.state is Arrival.FROZEN for leaf in a.leaves]
    if frozen and finding.site is not None:  # though they are to be trained
        fixes = reconnecting.thawed(frozen, ways)[:-1] or finding.fixes
        return Diagnosis(finding.site, finding.label, finding.related, fixes)
    cut_off = [a for a in answers if a.state is Arrival.CUT]
    if cut_off:
        cuts = [*filter(ways.is_last, cut_off[0].cuts)] or cut_off[0].cuts
        return _of_cut(cuts[0], cuts[1:], ways)
    without = [leaf for a in answers if a.state is Arrival.LOST for leaf in a.leaves]
    if without and (begin := ways.lost_by(without[0])) is not None:
        return _of_lost(without, begin, ways)
    unused = [a for a in answers if a.state in (Arrival.UNUSED, Arrival.ASIDE)]
    return _of_unused(unused[0].leaves, unused[0].state, ways) if unused else None


def _of_cut(cut: Cut, others: Sequence[Cut], ways: Paths) -> Diagnosis | None:
    if cut.site is None:
        return None
    whom = ways.record.told(cut.behind)
    notes = [*cut.notes()]
    roots = [root for call in ways.losses for root in call.roots]
    after = next(iter(ways.bare_lines(roots, cut.value)[-1:]), None)
    if after is not None and not notes:
        said = f"{_assigned(after)} is made from it, so it trains nothing behind the cut"
        notes.append(Related("made", after, said))
    if others:
        lines = lines_told(c.site.line for c in others if c.site is not None)
        ways_more = counted(len(others), "more way")
        notes.append(Related("cut", None, f"{ways_more} cut, at {lines}"))
    notes = [*notes[:_MOST_NOTES], *_silenced(ways.losses[-1], ways)]
    fixes = reconnecting.fixes_of(cut, ways, roots)
    return Diagnosis(cut.site, label_of(cut, whom), notes, fixes)


def _of_lost(leaves: Sequence[int], begin: Site, ways: Paths) -> Diagnosis:
    """Return the diagnosis for a Function whose backward, beginning at this line, returns no
    gradient.
    """
    own = source.statement_at(begin) or ast.Pass()
    returns = [n for n in ast.walk(own) if isinstance(n, ast.Return)]
    at = source.of_node(returns[-1], begin.file, begin.function) if returns else begin
    label = f"gives no gradient to {ways.record.told(leaves)}"
    fix = Fix(FixKind.OTHER, "return a gradient for each argument of `forward` that requires one")
    return Diagnosis(at, label, (), (fix,))


def _of_unused(leaves: Sequence[int], state: Arrival, ways: Paths) -> Diagnosis | None:
    record = ways.record
    whom = record.told(leaves)
    made = next((site for n in leaves if (site := ways.made_at(n)) is not None), None)
    if state is Arrival.ASIDE:
        last = ways.last_of_values(map(ways.value_of, leaves))
        site = last or made
        label = f"is computed from {whom}, and no loss from that"
    else:
        site, label = made, f"no value comes from {whom}"
    if site is None:
        return None
    use = Fix(FixKind.OTHER, "use it in what is trained, or remove it")
    if made is None or state is not Arrival.UNUSED:
        return Diagnosis(site, label, (), (use,), is_unused=True)
    fixes = (*reconnecting.mistaken(made), use)
    return Diagnosis(site, label, [*_not_read(made)], fixes, is_unused=True)


def never_used(finding: Finding, ways: Paths) -> Diagnosis | None:
    """Return where parameters were made that no optimizer holds, and where the optimizer was made:
    if that was earlier, it could not hold them.
    """
    record, step = ways.record, finding.step
    leaves = [n for name in finding.parameters for n in ways.named(name)[:1]]
    numbers = (s.optimizer for s in record.steps if spot_of(record.site(s.route)) == spot_of(step))
    number = next(numbers, -1)
    if not leaves or number < 0:
        return None
    is_held = record.leaves[leaves[0]].optimizer == number
    if is_held and step is not None:  # the optimizer holds them, but finds their gradients reset
        places = resets_in(step.file)[:_MOST_RESETS]
        fixes = reconnecting.reset(step, places) if places else []
        return Diagnosis(step, finding.label, (), [*fixes, *finding.fixes])
    holder = record.optimizers[number]
    fixes = reconnecting.given_to(holder, leaves, ways)
    emptied = [each for each in finding.related if each.role == "emptied"]
    if step is not None and emptied:
        fixes = [*reconnecting.listed_once(step.file), *fixes]
    first = record.leaves[leaves[0]]
    made, built = ways.line_beside(first.made, holder.made), record.site(holder.made)
    if made is None or built is None or finding.site is None:
        return None
    who = f"`{holder.name}`" if holder.name else "the optimizer"
    if first.turn > holder.turn:
        label = f"{record.told(leaves)} {'are' if len(leaves) > 1 else 'is'} made after {who}"
        said = f"{who} was built here, and does not hold {'them' if len(leaves) > 1 else 'it'}"
        return Diagnosis(made, label, (Related("made", built, said),), fixes or finding.fixes)
    note = Related("made", made, "they are made here" if len(leaves) > 1 else "it is made here")
    return Diagnosis(built, finding.label, (*emptied, note), [*fixes, *finding.fixes])


def _not_read(made: Site) -> Iterator[Related]:
    """Yield a note if the ``forward`` of a class does not read what its ``__init__`` has made."""
    owner, making = source.innermost(made.file, made.line, ast.ClassDef), source.statement_at(made)
    if owner is None or not isinstance(making, ast.Assign):
        return
    name = ast.unparse(making.targets[0])
    for each in owner.body:
        if isinstance(each, ast.FunctionDef) and each.name == "forward":
            reads = {ast.unparse(read) for read in source.reads_of(each)}
            if name not in reads:
                at = source.of_node(each, made.file, f"{owner.name}.forward")
                yield Related("made", at, "`forward` does not read it")


def unused_inputs(finding: Finding, ways: Paths) -> Diagnosis | None:
    """Return why no path leads to some inputs of a call."""
    call, record = _call_of(finding, ways), ways.record
    if call is None or finding.site is None or not call.unused:
        return None
    values = [call.inputs[place] for place in call.unused]
    notes = [each for each in finding.related if each.role == "made"]
    cuts = ways.cuts_of_values(call.roots, values)
    if cuts:
        own = cuts[0].behind & {record.origins[value].leaf for value in values}
        cuts[0] = cuts[0]._replace(behind=own or cuts[0].behind)
        fixes = [*reconnecting.fixes_of(cuts[0], ways, call.roots), *finding.fixes]
        return Diagnosis(finding.site, finding.label, [*notes, *_notes_of(cuts[0], ways)], fixes)
    root = next((s for r in call.roots if (s := record.site(record.origins[r].route))), None)
    function = root.function if root is not None else ""
    after = ways.last_of_values(values, function, call.values)
    if after is not None:
        them = "them" if len(values) > 1 else "it"
        notes.append(Related("made", after, f"what is computed from {them} ends here"))
    else:
        before = next((s for v in values if (s := record.site(record.origins[v].route))), None)
        if before is not None and record.origins[values[0]].leaf < 0:
            notes.append(Related("made", before, "it was made here, and is another tensor"))
    if root is not None:
        notes.append(Related("cut", root, "and is not used in what is differentiated"))
    return Diagnosis(finding.site, finding.label, notes, finding.fixes)


# words


def behind(leaves: Iterable[int], record: Origins) -> str:
    """Return leaves with their number: ``all 6 parameters of `model```."""
    own = [*leaves]
    whom, count = record.told(own), counted(len(own), "parameter")
    if whom.endswith(".*`") and "," not in whom and whom.count("*") == 1:
        return f"all {count} of `{whom[1:-3]}`" if len(own) > 1 else f"{count} of `{whom[1:-3]}`"
    return f"{count}, {whom}" if len(own) > 1 else whom


def label_of(cut: Cut, whom: str) -> str:
    """Return what a line does to the way to some parameters."""
    if cut.reason is CutReason.COPY:
        return f"copies the values of {whom}, and leaves their graph"
    if cut.reason is CutReason.LEFT:
        return f"makes numbers of what comes from {whom}, and these have no graph"
    return f"cuts the way to {whom}{f': {cut.why}' if cut.why else ''}"


def _notes_of(cut: Cut, ways: Paths, called: Site | None = None) -> Iterator[Related]:
    """Yield what a reader needs to know of a cut, where the primary place is another one."""
    whom = behind(cut.behind, ways.record)
    are = "are" if len(cut.behind) > 1 else "is"
    back = next(iter(cut.back), None)
    if cut.reason is CutReason.LEFT:
        is_one = cut.site and back and (cut.site.file, cut.site.line) == (back.file, back.line)
        what = "numbers left torch and came back here" if is_one else "numbers left torch here"
        yield Related("left", cut.site, f"{what}; behind it {are} {whom}")
        if back is not None and not is_one:
            yield Related("back", back, "and came back here, without a graph")
    else:
        so = f", as {cut.why}" if cut.why else ""
        yield from cut.notes()
        yield Related("cut", cut.site, f"the way was cut here{so}; behind it {are} {whom}")
        if cut.reason is CutReason.CHECKPOINT and (froze := _frozen_before(cut, ways)) is not None:
            yield Related("mode", froze, "what its inputs come from was frozen here")
    others = (s for s in cut.route[1:] if called is None or spot_of(s) != spot_of(called))
    caller = next(others, None)
    if caller is not None and cut.site is not None and caller.function != cut.site.function:
        name = cut.site.function.rpartition(".")[2]
        yield Related("made", caller, f"`{name}` was called here")


def _frozen_before(cut: Cut, ways: Paths) -> Site | None:
    frozen = ways.frozen_behind([cut.value])
    sites = (ways.record.site(ways.record.leaves[n].frozen) for n in frozen)
    return next(filter(None, sites), None)


def _frozen_notes(frozen: Sequence[int], ways: Paths) -> Iterator[Related]:
    record = ways.record
    at = gathered(frozen, lambda n: record.leaves[n].frozen)
    for route, own in at.items():
        site = record.site(route)
        which = f"all {counted(len(own), 'parameter')} that lead here"
        if len(at) > 1 or len(own) == 1:
            which = behind(own, record)
        if site is not None:
            yield Related("mode", site, f"{which} were frozen here")
            continue
        made = next((s for n in own if (s := record.site(record.leaves[n].made))), None)
        if made is not None:
            yield Related("made", made, f"{which} require no grad since they were made here")


def _assigned(site: Site) -> str:
    """Return the variable that a line binds, in backticks; ``what this line makes`` if none."""
    statement = source.statement_at(site)
    names = sorted(stored_names(statement)) if statement is not None else []
    return f"`{names[0]}`" if len(names) == 1 else "what this line makes"


# trying


def _tried(
    recording: Recording, program: Program, end: float, tell: Callable[[str], None]
) -> Recording:
    """Return the recording with the fixes of its findings tried, with those that held."""
    results: dict[int, Finding] = {}
    proposed = plan(recording)
    for proposal in proposed.proposals:
        finding = proposal.finding
        if not finding.is_born or finding.severity is Severity.ADVICE:
            continue
        held, why, tried = list[Fix](), "", 0
        for candidate in [c for c in proposal.candidates if c.can_be_tried][:_MOST_TRIED]:
            if end - time.monotonic() < LEAST_SECONDS:
                why = "not tried: no time was left"
                break
            tell(f"tries fix {candidate.number}")
            works = _works(finding, alone(proposed, proposal, candidate), program, end)
            if works is None:
                why = "not tried: the run took too long"
                break
            tried += 1
            if works:
                held.append(_proven(candidate.fix))
                break
        if tried and not (held or why):
            why = none_held(tried)
        for each in proposal.findings:
            words = [fix for fix in each.fixes if not fix.edits]
            others = [] if held else [fix for fix in each.fixes if fix.edits][tried:]
            left = [*held, *others[:1], *words] or [_ATTACHED]
            changed = each.with_fixes(left)
            results[id(each)] = replace(changed, untried=why)
    return replace(recording, findings=tuple(results.get(id(f), f) for f in recording.findings))


def _proven(fix: Fix) -> Fix:
    if fix.applicability is Applicability.UNSPECIFIED:
        fix = replace(fix, applicability=Applicability.MACHINE_APPLICABLE)
    return replace(fix, proof=Proof.HELD)


def _works(finding: Finding, with_it: Plan, program: Program, end: float) -> bool | None:
    """Return whether a change mends a finding: the parameters that it names get gradients that are
    not all zero, and nothing fails; None where no time was left to see that.
    """
    left = end - time.monotonic()
    ran = program.run(with_it.changes, Bounds(LEAST_CALLS, max(left / 2, LEAST_SECONDS)))
    if ran.exit_status is None:
        return None
    if ran.exit_status == REFUSED or ran.exception:
        return False
    if any(e.severity is Severity.ERROR or e.code == finding.code for e in ran.findings):
        return False
    with suppress(GradscopeError):
        calls = finding.backward_call if finding.severity is Severity.ERROR else 0
        left = max(end - time.monotonic(), LEAST_SECONDS)
        record = program.follow(Bounds(calls, left), with_it.changes)
        after = Paths(record)
        if record.stopped or any(not call.has_graph for call in record.calls):
            return False
        # What a call asks of its own inputs it gets, or fails.
        is_own = finding.site is not None and source.runs_a_part(finding.site)
        if not finding.parameters or finding.code == "GS504" or is_own:
            return bool(record.calls)
        own = [n for name in finding.parameters for n in after.named(name)[:1]]
        if finding.code == "GS503" and not finding.is_of_resets:
            return bool(own) and all(record.leaves[n].optimizer >= 0 for n in own)
        # A gradient that no step finds changes nothing. What is frozen still is so on purpose.
        answers = [each for each in after.of_leaves(own) if each.state is not Arrival.FROZEN]
        states = {each.state if each.given else Arrival.LOST for each in answers}
        return Arrival.ARRIVES in states <= {Arrival.ARRIVES, Arrival.ZERO}
    return None


_ASKED = {"GS501": without_graph, "GS502": not_reached, "GS503": never_used, "GS505": unused_inputs}
