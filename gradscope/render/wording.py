"""What a finding says in words, for people and machines: all of it, and the choice of fixes."""

from __future__ import annotations

from gradscope.model import Applicability, Finding, Fix, Proof, Recording, Site, Summary
from gradscope.units import counted, listed, short_path

_MOST_SAVED = 4
NOTHING = "no freed, stale or kept graph"
LOOKED_FOR = "nothing freed was needed, nothing saved was changed, no graph grows or is kept"


def notes(finding: Finding, announced: Finding | None = None) -> list[tuple[str, Site | None]]:
    """Return what else is known of a finding, each with the place it speaks of; of one that was
    ``announced`` above, only what is new.
    """
    missed = "this is a fault of gradscope, which should have announced it before the call"
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
    saved = [(_saved_tensors(finding), None)] if finding.saved else []
    return [*((one.message, one.site) for one in finding.related), *saved, *found]


def lives(s: Summary) -> str:
    """Return how many nodes were built in a run, and what became of them, as far as it is known."""
    unmet = f", {s.nodes_unmet:,} met by no call" if s.nodes_unmet else ""
    alive = f", {s.nodes_alive:,} alive" if s.nodes_alive else ""
    return f"{s.nodes:,} built, {s.nodes_destroyed:,} destroyed{alive}{unmet}"


def nothing_found(recording: Recording, calls: str) -> tuple[str, str, bool]:
    """Return what is said of a run without a finding: the lead, what else is known, and whether it
    is that no problem was found. ``calls`` is how many were looked at.
    """
    unreached = recording.summary.without_gradient
    outcomes = [recording.outcome, *(one.outcome for one in recording.processes)]
    raised = next((one.exception for one in outcomes if one.exception), "").strip()
    if raised:
        failed = [call for call in recording.calls if call.exception]
        came = failed and raised.endswith((failed[-1].exception or "").strip())
        by = f" in backward call {failed[-1].last_number:,}" if came else ""
        lead = f"ended with {raised.split(':')[0].split('.')[-1]}{by}"
        return lead, f"; gradscope found {NOTHING} in {calls}", False
    never = ""
    if unreached:
        never = (
            f"; {counted(unreached, 'parameter')} that an optimizer stepped never had a gradient"
        )
    if never or not all(one.finished and not one.exit_status for one in outcomes):
        return f"found {NOTHING}", f" in {calls}{never}", False
    return "no problem found", f" in {calls}: {LOOKED_FOR}", True


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
    return f"{with_safety(kind_of(fix), fix)}: {'; '.join(fix.effects) or fix.message}"


def opened_as(site: Site, column: str = "") -> str:
    """Return the path and line of a site, so that a terminal can open it; or a notebook's cell."""
    return site.place if site.cell else f"{short_path(site.file)}:{site.line}{column}"


def kind_of(fix: Fix) -> str:
    """Return what a fix does, in a word or two."""
    return fix.kind.value.replace("_", " ")


def safety_of(fix: Fix) -> str:
    """Return how safe a fix is, in the word for machines; empty where that is not known."""
    is_known = fix.applicability is not Applicability.UNSPECIFIED
    return fix.applicability.value if is_known else ""


def proof_of(fix: Fix) -> str:
    """Return what became of a fix when it was tried; empty where it has no edit to be tried."""
    words = {Proof.HELD: "tried", Proof.TRAINS_OTHERWISE: "tried: it trains otherwise"}
    return words.get(fix.proof, "not tried") if fix.edits else ""


def proposed(fix: Fix) -> str:
    """Return what a fix does and, of one with an edit, whether it was tried and how safe it is."""
    return with_safety(fix.message, fix) if fix.edits else fix.message


def with_safety(text: str, fix: Fix) -> str:
    """Return a text about a fix, and in brackets whether it was tried, and how safe it is."""
    known = ", ".join(filter(None, (proof_of(fix), safety_of(fix))))
    return f"{text} ({known})" if known else text


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
