"""Whatever values the types of the model allow, a recording gives them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope import model
from gradscope.model import (
    BackwardCall,
    Edge,
    Finding,
    Graph,
    Header,
    Outcome,
    Recording,
    Root,
    Sample,
    Site,
    Summary,
)
from gradscope.record import file as codec
from gradscope.record import writer as writer_module
from gradscope.record.writer import CallFolder, Curve, RecordingWriter

KINDS = [
    kind
    for kind in vars(model).values()
    if isinstance(kind, type) and is_dataclass(kind) and kind is not model.Recording
]
TEXT = st.text(st.characters(exclude_categories=()), max_size=8)


def of_few_lines(place: Any) -> Any:
    """The place, which ends where one may."""
    return replace(place, end_line=min(place.end_line, place.line + 10_000))


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint of the model."""
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        built = st.builds(hint, **{f.name: values(hints[f.name]) for f in fields(hint)})
        return built.map(of_few_lines) if "end_line" in hints else built
    if get_origin(hint) is UnionType:
        return st.one_of(
            *[st.none() if arg is type(None) else values(arg) for arg in get_args(hint)]
        )
    if get_origin(hint) in (tuple, Sequence):
        return st.lists(values(get_args(hint)[0]), max_size=2).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(*map(values, get_args(hint)), max_size=2)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return {
        str: TEXT,
        int: st.integers(-(2**63), 2**63),
        bool: st.booleans(),
        float: st.floats(-1e18, 1e18),
    }[hint]


VALUES = {kind: values(kind) for kind in KINDS}
A_FEW = {kind: st.lists(strategy, max_size=2) for kind, strategy in VALUES.items()}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind])))
def test_every_value_of_the_model_is_read_as_it_was_written(
    kind_and_value: tuple[type[Any], Any],
) -> None:
    kind, value = kind_and_value
    text = codec.dumps(value)
    assert text.isascii()
    assert codec.loads(kind, text) == value


@settings(deadline=None)
@given(
    st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind])),
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT,
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=9,
    ),
    st.data(),
)
def test_a_text_that_does_not_fit_is_a_value_error_or_another_value(
    kind_and_value: tuple[type[Any], Any], junk: Any, data: st.DataObject
) -> None:
    kind, value = kind_and_value
    plain = codec.parse(codec.dumps(value))
    plain[data.draw(st.integers(0, len(plain) - 1))] = junk
    try:
        found = codec.loads(kind, codec.dumps(plain))
    except ValueError:
        return
    assert isinstance(found, kind)


def sound(graph: Graph) -> Graph:
    """``graph`` with all its edges and roots inside it."""
    size = len(graph.nodes)
    edges = (
        tuple(Edge(e.source % size, e.target % size, e.input_nr) for e in graph.edges)
        if size
        else ()
    )
    roots = tuple(replace(root, node=root.node % size) for root in graph.roots) if size else ()
    return replace(graph, edges=edges, roots=roots)


@settings(max_examples=50, deadline=None)
@given(
    header=VALUES[Header],
    outcome=VALUES[Outcome],
    summary=VALUES[Summary],
    graphs=A_FEW[Graph].map(lambda graphs: [sound(graph) for graph in graphs]),
    findings=A_FEW[Finding],
    timeline=A_FEW[Sample],
    sources=st.dictionaries(TEXT, TEXT, max_size=2),
)
def test_a_whole_recording_is_read_as_it_was_written(
    header: Header,
    outcome: Outcome,
    summary: Summary,
    graphs: list[Graph],
    findings: list[Finding],
    timeline: list[Sample],
    sources: dict[str, str],
) -> None:
    writer = RecordingWriter(None, header)
    numbers = [writer.graph(at, graph) for at, graph in enumerate(graphs)]
    for finding in findings:
        writer.finding(finding)
    for sample in timeline:
        writer.sample(sample)
    with patch.object(writer_module, "_source_text", sources.get):
        for file in sources:
            writer.source(file)
    writer.finish(outcome, summary)
    found = writer.read()
    writer.close()
    first_of = dict(reversed(list(zip(numbers, graphs, strict=True))))
    by_cause = {finding.cause: finding for finding in findings}
    assert found == Recording(
        header=header,
        outcome=replace(outcome, finished=True),
        summary=summary,
        graphs=first_of,
        findings=tuple(by_cause.values()),
        timeline=tuple(timeline),
        sources=sources,
    )


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from(["loss", "other"]), st.integers(1, 100)),
        max_size=200,
    )
)
def test_folding_loses_no_call(turns: list[tuple[int, str, int]]) -> None:
    folder = CallFolder()
    number = 0
    numbers = []
    for line, root, distance in turns:
        number += distance
        numbers.append(number)
        folder.add(
            BackwardCall(
                number, "backward", Site("a.py", line), (Root(0, root),), last_number=number
            )
        )
    rows = [row for _, row in folder.take_changed()]
    assert list(folder.take_changed()) == []
    assert sum(row.count for row in rows) == len(turns)
    assert {row.number for row in rows} | {row.last_number for row in rows} <= set(numbers)
    for row in rows:
        own = [
            n
            for n, turn in zip(numbers, turns, strict=True)
            if row.site is not None and (row.site.line, row.roots[0].name) == turn[:2]
        ]
        assert len([n for n in own if row.number <= n <= row.last_number]) == row.count


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=300))
def test_the_changes_of_a_curve_add_up_to_it(levels_and_writes: list[tuple[int, bool]]) -> None:
    whole, pieces = Curve(), Curve()
    places: dict[int, tuple[Sample, ...]] = {}
    for number, (level, write) in enumerate(levels_and_writes):
        sample = Sample(float(number), level, 0, number)
        whole.add(sample)
        pieces.add(sample)
        if write:
            places.update(pieces.take_changed())
    places.update(pieces.take_changed())
    at_once = [run for _, run in sorted(whole.take_changed()) if run]
    assert [run for _, run in sorted(places.items()) if run] == at_once
    if levels_and_writes:
        assert max(point.live_bytes for run in at_once for point in run) == max(
            level for level, _ in levels_and_writes
        )
