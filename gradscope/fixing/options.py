"""Finds by simulation what mends a hazard of a rehearsal, and writes it as edits."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gradscope.code import source
from gradscope.code.places import of_node
from gradscope.fixing import calls
from gradscope.fixing.edits import checked, joined
from gradscope.fixing.marks import Place
from gradscope.fixing.rehearsal import Change, Flow, Record, Simulation, Spot
from gradscope.model import Applicability, Edit, Finding, Fix, FixKind, Recording
from gradscope.units import counted, listed

_MOST = 3
_HAZARDS = frozenset({"GS101", "GS102", "GS103", "GS201", "GS202"})
_MEANT = frozenset({FixKind.ITEM, FixKind.NO_GRAD, FixKind.REORDER, FixKind.CLONE})
"""What a cut would do as well, and these say better: a number is wanted, an average is computed, a
step comes too early, a value is overwritten.
"""
_CHANGES = Applicability.MAYBE_INCORRECT
_SIMPLE = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
_MOST_CUTS = 400


def with_options(recording: Recording, record: Record) -> Recording:
    """Return the recording with what the rehearsal found among the fixes of its hazards."""
    findings = tuple(_with(finding, record) for finding in recording.findings)
    return replace(recording, findings=findings)


def _with(finding: Finding, record: Record) -> Finding:
    spot = _fails_at(finding)
    if finding.code not in _HAZARDS or spot is None:
        return finding
    search = _Search(record, spot)
    known = finding.fixes
    own = [*search.detached()]
    kept = [*search.kept()]
    first = known[:1] if known and known[0].kind in _MEANT else ()
    order = [*first, *own, *known[len(first) :], *kept]
    worded = {each.edits: each for each in known if each.edits}
    fixes = [*dict.fromkeys(worded.get(each.edits, each) for each in order)]
    return replace(finding, fix=fixes[0], alternatives=tuple(fixes[1:])) if fixes else finding


def _fails_at(finding: Finding) -> Spot | None:
    """Return the line of the call that fails, or will."""
    site = finding.site
    if finding.code in ("GS102", "GS202"):
        named = {each.role: each.site for each in finding.related}
        site = named.get("failing_node") or named.get("next_read") or site
    return None if site is None else (site.file, site.line)


class _Search:
    """Tries changes on a record, to mend what fails in one line."""

    def __init__(self, record: Record, spot: Spot) -> None:
        self._record = record
        self._base = Simulation(record).run()
        at = [i for i in self._base.hazards if record.events[i].spot == spot]
        self._meant = frozenset(at or self._base.hazards)
        self._fail = min(self._meant, default=-1)

    def detached(self) -> list[Fix]:
        """Return the fixes that detach, in one place each if that is enough."""
        places = self._places()
        harmless = {p: s for p in places if not self._harm(s := self._cut([p]))}
        single = [p for p, s in harmless.items() if self._mends(s)]
        if single:
            best = sorted(single, key=self._worth)
            fixes = (self._detach([each]) for each in best)
            return [fix for fix in fixes if fix is not None][:_MOST]
        several = self._fewest(sorted(harmless, key=self._worth))
        fix = self._detach(several) if several else None
        return [] if fix is None else [fix]

    def kept(self) -> list[Fix]:
        """Return the fix that keeps graphs, in as few calls as that takes."""
        spots = {self._record.events[i].spot for i in self._record.calls}
        keeps = set(spots)
        if not self._mends(self._keep(keeps)):
            return []
        for spot in sorted(spots):
            if self._mends(self._keep(keeps - {spot})):
                keeps.discard(spot)
        sites = {e.spot: e.site for e in self._record.events if e.kind == "call"}
        parts = [_kept(sites[spot]) for spot in sorted(keeps)]
        edits = joined(*parts) if parts else ()
        where = listed([f"line {line}" for _, line in sorted(keeps)])
        return (
            [
                Fix(
                    FixKind.RETAIN_GRAPH,
                    f"pass retain_graph=True to the {counted(len(keeps), 'call')} at {where}",
                    edits,
                    _CHANGES,
                    ("each of these graphs is kept until nothing refers to it",),
                )
            ]
            if edits
            else []
        )

    def _places(self) -> list[int]:
        """Return the places on the way to what fails, of all calls up to it."""
        record = self._record
        roots = [r for i in record.calls if i <= self._fail for r in record.events[i].roots]
        reached = record.reached(roots)
        found = {record.identities[n] for n in reached if n in record.identities}
        found |= {place for (own, _), place in record.added.items() if own in reached}
        return sorted(found)[:_MOST_CUTS]

    def _cut(self, cuts: Iterable[int]) -> Simulation:
        return Simulation(self._record, Change(frozenset(cuts))).run()

    def _keep(self, keeps: Iterable[Spot]) -> Simulation:
        return Simulation(self._record, Change(keeps=frozenset(keeps))).run()

    def _mends(self, changed: Simulation) -> bool:
        left = set(changed.hazards)
        return not left & self._meant and left <= set(self._base.hazards)

    def _harm(self, changed: Simulation) -> bool:
        """Return whether a gradient that is needed changes, or a call has none to make."""
        new = set(changed.fruitless) - set(self._base.fruitless)
        lost = not self._base.needed <= changed.flows
        return bool(new) or lost or self._base.lost(changed) > 0

    def _fewest(self, harmless: Sequence[int]) -> list[int]:
        """Return the fewest of harmless cuts that mend it together; none if all do not."""
        cuts: list[int] = []
        for each in harmless:
            if not self._harm(self._cut([*cuts, each])):
                cuts.append(each)
        if not self._mends(self._cut(cuts)):
            return []
        for each in reversed(cuts.copy()):
            rest = [other for other in cuts if other != each]
            if self._mends(self._cut(rest)):
                cuts = rest
        return cuts

    def _worth(self, number: int) -> tuple[int, int, int, int]:
        """Return what a cut at a place leaves to be wished: graphs of earlier iterations that hang
        on the last one's, and an edit that is awkward to read, unlike that of a tensor's name.
        """
        kinds = self._record.kinds.get(number, frozenset())
        node = _node(self._record.places[number])
        is_plain = isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        length = 0 if node is None else len(ast.unparse(node))
        return self._held(number), len(kinds), not is_plain, length

    def _held(self, number: int) -> int:
        """Return how many nodes of earlier iterations the last one's lead to, with a cut.

        An iteration is what is built between two calls of the line that fails.
        """
        spot = self._record.events[self._fail].spot
        counts = [e.nodes for e in self._record.events if e.kind == "call" and e.spot == spot]
        if len(counts) < 2:
            return 0
        start, end = counts[-2:]
        reached = self._record.reached(range(start, end), {number})
        return sum(1 for node in reached if node < start and self._record.nbytes[node])

    def _detach(self, numbers: Sequence[int]) -> Fix | None:
        record = self._record
        parts = [_detached(record.places[n], record.kinds.get(n, frozenset())) for n in numbers]
        edits = joined(*parts) if len(parts) > 1 else parts[0]
        if not edits:
            return None
        texts = [_text(record.places[n]) for n in numbers]
        lines = sorted({record.places[n].line for n in numbers})
        where = listed([f"line {line}" for line in lines])
        names = listed([f"`{text}`" for text in dict.fromkeys(texts)])
        changed = self._cut(numbers)
        return Fix(
            FixKind.DETACH,
            f"detach() {names} at {where}",
            edits,
            _CHANGES,
            self._effects(changed.flows),
            "no step uses a gradient that goes through it",
        )

    def _effects(self, flows: set[Flow]) -> tuple[str, ...]:
        """Return what the training loses, in words."""
        lost = {(flow[0], flow[1]) for flow in self._base.flows - flows if len(flow) == 2}
        names = self._record.leaves
        told = [
            f"{names[leaf]} would get no gradient from line {spot[1]}"
            for spot, leaf in lost
            if isinstance(leaf, int) and isinstance(spot, tuple) and names[leaf]
        ]
        return (*sorted(told)[:_MOST], "every gradient that a step needs stays as it is")


def _node(place: Place) -> ast.expr | None:
    """Return the expression at a place."""
    for found in source.parsed(place.file).nodes:
        node = found.node
        if isinstance(node, ast.expr) and (
            (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
            == (place.line, place.column, place.end_line, place.end_column)
        ):
            return node
    return None


def _kept(place: Place) -> tuple[Edit, ...]:
    """Return the edit that has a call keep its graph."""
    node = _node(place)
    return calls.with_flag(of_node(node, place.file), "retain_graph") if node is not None else ()


def _text(place: Place) -> str:
    node = _node(place)
    return "" if node is None else ast.unparse(node)


def _detached(place: Place, kinds: frozenset[str]) -> tuple[Edit, ...]:
    """Return the edit that detaches what a place gives."""
    node = _node(place)
    if node is None:
        return ()
    lines = [line.rstrip("\r\n") for line in source.parsed(place.file).lines]
    part = lines[place.line - 1 : place.end_line]
    data = "\n".join(part).encode()
    start = place.column
    end = len("\n".join(part[:-1]).encode()) + (len(part) > 1) + place.end_column
    text = data[start:end].decode()
    if place.is_added:
        return _total_cut(place, lines)
    new = _cut_text(text, node, kinds)
    whole = (data[:start] + new.encode() + data[end:]).decode() if new else ""
    last = place.end_line if place.end_line > place.line else 0
    return checked(Edit(place.file, place.line, whole, last)) if whole else ()


def _cut_text(text: str, node: ast.expr, kinds: frozenset[str]) -> str:
    shown = text if isinstance(node, _SIMPLE) else f"({text})"
    if kinds & {"tuple", "mixed"}:
        if "mixed" in kinds:
            return ""
        cut = f"tuple(t.detach() for t in {text})"
        other = kinds - {"tuple"}
        if not other:
            return cut
        return f"({text} if {text} is None else {cut})" if other == {"none"} else ""
    other = kinds - {"tensor", "number"}
    if not other:
        return f"{shown}.detach()"
    if isinstance(node, ast.Call):
        return ""
    is_other = f"{text} is None" if other == {"none"} else f"not torch.is_tensor({text})"
    return f"({text} if {is_other} else {shown}.detach())"


def _total_cut(place: Place, lines: Sequence[str]) -> tuple[Edit, ...]:
    """Return ``x = x.detach() + y`` for ``x += y``."""
    for found in source.parsed(place.file).nodes:
        node = found.node
        if isinstance(node, ast.AugAssign) and node.target.lineno == place.line:
            if node.target.col_offset != place.column or node.end_lineno != node.lineno:
                continue
            symbol = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
            target, value = ast.unparse(node.target), ast.unparse(node.value)
            if isinstance(node.value, ast.BinOp | ast.IfExp | ast.Lambda):
                value = f"({value})"
            line = lines[place.line - 1].encode()
            cut = f"({target}.detach() if torch.is_tensor({target}) else {target})"
            made = f"{target} = {cut} {symbol} {value}".encode()
            new = line[: node.col_offset] + made + line[node.end_col_offset :]
            return checked(Edit(place.file, place.line, new.decode()))
    return ()
