"""What a finding says in words, for people and machines: all of it, and the choice of fixes."""

from __future__ import annotations

import shlex

from gradscope.formatting import counted, listed, short_path
from gradscope.model import (
    Applicability,
    Failure,
    Finding,
    Fix,
    FixKind,
    Header,
    Proof,
    Recording,
    Site,
    Summary,
    Training,
    outlook,
)

_MOST_SAVED = 4  # saved tensors in a sentence: more are counted
SAFETIES = {
    Applicability.MACHINE_APPLICABLE: "ready to apply",
    Applicability.MAYBE_INCORRECT: "check it first",
}
PROOFS = {
    Proof.UNTRIED: "not tried",
    Proof.HELD: "tried",
    Proof.TRAINS_OTHERWISE: "tried: it trains otherwise",
}
"""What people read for the words that machines get."""
LOOKED_FOR = "nothing freed or changed was needed, nothing grows"


def notes(finding: Finding, announced: Finding | None = None) -> list[tuple[str, Site | None]]:
    """Return what else is known of a finding, each with the place it speaks of; of one that was
    ``announced`` above, only what is new.
    """
    missed = "this is a bug in gradscope: it should have reported this before the call"
    notes = [
        f"withdrawn: {finding.withdrawn}" if finding.withdrawn else "",
        f"suppressed {finding.suppression.reason}" if finding.suppression else "",
        f"seen {finding.count:,} times" if finding.count > 1 else "",
        f"met in {listed(finding.processes)}" if finding.processes else "",
        missed if finding.missed else "",
    ]
    found = [(note, None) for note in notes if note]
    if announced is not None:
        at = f" at backward call {announced.backward_call:,}" if announced.backward_call else ""
        return [*found, (f"announced as {announced.code}{at}, see above", None)]
    text = " ".join((finding.label, *(one.message for one in finding.related)))
    untold = any((name if " " in name else f"`{name}`") not in text for name in finding.saved)
    saved = [(_saved_tensors(finding), None)] if untold else []
    rate, full = outlook([finding.trend] if finding.trend is not None else [])
    if full:
        saved.append((f"that is {rate}: {full}", None))
    # That it was modified here is the finding, unless by a write that torch does not see.
    said = ("modified_by", None if finding.silent else finding.site)
    rest = (one for one in finding.related if (one.role, one.site) != said)
    return [*((one.message, one.site) for one in rest), *saved, *found]


def lives(s: Summary) -> str:
    """Return how many nodes were built in a run, and what became of them, as far as it is known."""
    unmet = f", {s.nodes_unmet:,} reached by no backward call" if s.nodes_unmet else ""
    alive = f", {s.nodes_alive:,} alive" if s.nodes_alive else ""
    return f"{s.nodes:,} built, {s.nodes_destroyed:,} destroyed{alive}{unmet}"


# So many tell whether gradients are reset, and whether graphs grow: what the first leaves, the
# second meets, and the third shows that it goes on.
_STEPS, _CALLS = 3, 3


def nothing_found(recording: Recording, calls: str) -> tuple[str, str, bool]:
    """Return what is said of a run without a finding: the lead, what else is known, and whether it
    is that no problem was found. ``calls`` is how many were looked at.
    """
    outcomes = [recording.outcome, *(one.outcome for one in recording.processes)]
    raised = next((one.exception for one in outcomes if one.exception), "").strip()
    if raised:
        failed = [call for call in recording.calls if call.exception]
        came = failed and raised.endswith((failed[-1].exception or "").strip())
        by = f" in backward call {failed[-1].last_number:,}" if came else ""
        error = f"{raised.split(':')[0].split('.')[-1]}{by}"
        if not any(one.failure for one in outcomes):
            return f"no finding explains {error}", f"; nothing was found in {calls}", False
        made = recording.summary.backward_calls
        rest = f"nothing else was found in {calls}" if made else "no backward call was made"
        return f"the script ended with {error}", f"; {rest}", False
    if not all(one.finished and not one.exit_status for one in outcomes):
        return "nothing found", f" in {calls}, until the run ended", False
    if unclear := _too_short(recording.summary):
        return "nothing found", f" in {calls}; too short to say {unclear}", False
    return "no problem found", f" in {calls}: {_looked_for(recording.summary.training)}", True


def _too_short(summary: Summary) -> str:
    """Return what so few steps and calls do not tell."""
    training = summary.training
    unclear = []
    if training.known and training.optimizers and training.steps < _STEPS:
        what = "whether gradients are reset and every parameter is reached"
        unclear.append(f"{what} ({_STEPS} steps of each optimizer)")
    if summary.backward_calls < _CALLS:
        unclear.append(f"whether graphs grow ({_CALLS} iterations)")
    return ", and ".join(unclear)


def _looked_for(training: Training) -> str:
    """Return what a run was looked at for, and what was found right."""
    if not training.known or (training.optimizers and not training.parameters):
        return LOOKED_FOR  # parameters of steps that are handed their gradients are not counted
    if not training.optimizers:
        return f"no optimizer step was seen, {LOOKED_FOR}"
    of = f"`{training.name}`" if training.name else counted(training.optimizers, "optimizer")
    free = f" that {'is' if training.parameters == 1 else 'are'} not frozen"
    part = f"{training.reached:,} of the" if training.reached < training.parameters else "all"
    whole = f"{part} {counted(training.parameters, 'parameter')} of {of}"
    got = whole.replace("all 1 ", "the only ") + (free if training.frozen else "")
    first = f"none of the first {counted(training.once or 0, 'step')}"
    which = {None: "no step", 0: "some steps"}.get(training.once, first)
    return f"{got} got gradients, {which} used a gradient twice, {LOOKED_FOR}"


def untrained(training: Training) -> list[str]:
    """Return which parameters are not trained, or not yet, a line each."""
    lines = {"not trained": training.frozen, "not reached yet": training.not_yet}
    sites = training.table.frozen_at if training.table is not None else []
    at = f"at {listed(map(opened_as, sites))}" if sites else "(requires_grad is off)"
    told = {"not trained": f", frozen {at}", "not reached yet": ""}
    return [
        f"{what}: {counted(sum(names.values()), 'parameter')}, "
        f"{listed(f'`{name}`' for name in names)}{told[what]}"
        for what, names in lines.items()
        if names
    ]


def _saved_tensors(finding: Finding) -> str:
    """Return the first saved tensors, and their nodes if no note names those."""
    names = listed((f"`{name}`" for name in finding.saved), _MOST_SAVED)
    are = "the saved tensors are" if len(finding.saved) > 1 else "the saved tensor is"
    messages = [related.message for related in finding.related]
    named = any(node in message for node in finding.nodes[:1] for message in messages)
    nodes = "" if named or not finding.nodes else f" of {listed(finding.nodes)}"
    return f"{are} {names}{nodes}"


def reasons(fix: Fix) -> list[tuple[str, str]]:
    """Return why a fix is proposed and what it means for the training, each under its word."""
    why = [("why", fix.reason)] if fix.reason else []
    return why + [("effect", effect) for effect in fix.effects]


def alternative(fix: Fix) -> str:
    """Return an alternative in a line: what it does, how safe it is, what it means."""
    if fix.kind is FixKind.OTHER:
        return "; ".join((with_safety(fix.message, fix), *fix.effects))
    return f"{with_safety(kind_of(fix), fix)}: {'; '.join(fix.effects) or fix.message}"


def opened_as(site: Site, column: str = "") -> str:
    """Return the path and line of a site, so that a terminal can open it; or a notebook's cell."""
    return site.place if site.cell else f"{short_path(site.file)}:{site.line}{column}"


def kind_of(fix: Fix) -> str:
    """Return what a fix does, in a word or two."""
    return fix.kind.value.replace("_", " ")


def safety_of(fix: Fix) -> str:
    """Return how safe a fix is; empty where that is not known."""
    return SAFETIES.get(fix.applicability, "")


def proof_of(fix: Fix) -> str:
    """Return what became of a fix when it was tried; empty where it has no edit to be tried."""
    return PROOFS[fix.proof] if fix.edits else ""


def proposed(fix: Fix) -> str:
    """Return what a fix does and, of one with an edit, whether it was tried and how safe it is."""
    return with_safety(fix.message, fix) if fix.edits else fix.message


def with_safety(text: str, fix: Fix) -> str:
    """Return a text about a fix, and in brackets whether it was tried, and how safe it is."""
    known = ", ".join(filter(None, (proof_of(fix), safety_of(fix))))
    return f"{text} ({known})" if known else text


def fix_command(header: Header, *options: str, file: str = "") -> str:
    """Return the command that tries fixes of a program, or those in a ``file`` that recorded it."""
    words = [file, *options]
    if not file and header.script.endswith(".py"):
        dashes = ["--"] if any(each.startswith("-") for each in header.argv) else []
        words = [short_path(header.script), *options, *dashes, *header.argv]
    return shlex.join(["gradscope", "fix", *filter(None, words)])


def failures(recording: Recording) -> list[tuple[Failure, str, str]]:
    """Return the failures that ended a run, each once, with its process (`` in rank 1``) and the
    first line of its exception.
    """
    ended = [("", recording.outcome)]
    ended += [(f" in {one.name}", one.outcome) for one in recording.processes]
    told: dict[Failure, tuple[str, str]] = {}
    for where, outcome in ended:
        if outcome.failure is not None:
            line = (outcome.exception or "").strip().partition("\n")[0]
            told.setdefault(outcome.failure, (where, line))
    return [(failure, *about) for failure, about in told.items()]


def arose(failure: Failure) -> str:
    """Return in a line where an exception arose that no finding explains, and what can be done."""
    said = [(failure.label, None), *((one.message, one.site) for one in failure.related)]
    places = (f"{text} ({opened_as(site)})" if site else text for text, site in said)
    return "; ".join(filter(None, (*places, failure.help)))


def whole_message(finding: Finding) -> str:
    """Return all that a finding says."""
    lines = [f"{finding.message}: {finding.label}" if finding.label else finding.message]
    for note, site in notes(finding):
        lines.append(f"note: {note}{f' ({opened_as(site)})' if site else ''}")
    if finding.fix is not None:
        lines.append(f"help: {proposed(finding.fix)}")
        lines += [f"{word}: {text}" for word, text in reasons(finding.fix)]
    if finding.untried:
        lines.append(f"note: {finding.untried}")
    lines += [f"or: {alternative(other)}" for other in finding.alternatives]
    return "\n".join(lines)
