"""What the tests of recordings share: small calls and graphs, and a run played from a recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from gradscope.model import BackwardCall, Edge, Graph, Header, Node, Outcome, Recording, Root, Site
from gradscope.record import writer as writer_module
from gradscope.record.writer import RecordingWriter

HEADER = Header(gradscope="0.1.0", torch="2.13.0", python="3.11.9", script="train.py")
DONE = Outcome(exit_status=0, finished=True, ended=2.0)
SITE = Site("train.py", 7, 5, 7, 20, "step")


def rewrite(writer: RecordingWriter, whole: Recording) -> dict[int, int]:
    """Hand a recording to a writer as a run would; the numbers its graphs got."""
    numbers = {
        number: writer.graph(("signature", number), graph) for number, graph in whole.graphs.items()
    }
    with patch.object(writer_module, "_source_text", whole.sources.get):
        for file in whole.sources:
            writer.source(file)
    for sample in whole.timeline:
        writer.sample(sample)
    for call in whole.calls:
        writer.call(call if call.graph is None else replace(call, graph=numbers[call.graph]))
    for finding in whole.findings:
        writer.finding(
            finding if finding.graph is None else replace(finding, graph=numbers[finding.graph])
        )
    return numbers


def renumbered(whole: Recording, numbers: dict[int, int]) -> Recording:
    """``whole`` with its graphs' numbers as the writer gave them."""
    return replace(
        whole,
        graphs={numbers[number]: graph for number, graph in whole.graphs.items()},
        calls=tuple(
            replace(c, graph=None if c.graph is None else numbers[c.graph]) for c in whole.calls
        ),
        findings=tuple(
            replace(f, graph=None if f.graph is None else numbers[f.graph]) for f in whole.findings
        ),
    )


def call_of(number: int, **more: Any) -> BackwardCall:
    return replace(
        BackwardCall(number, "backward", SITE, (Root(0, "loss"),), last_number=number), **more
    )


def chain(length: int, site: Site = SITE, *, sequence_nr: int = 0, built_after: int = 0) -> Graph:
    last = sequence_nr + length
    more: dict[str, Any] = {"site": site, "built_after": built_after}
    nodes = tuple(Node(i, "MulBackward0", sequence_nr=last - i, **more) for i in range(length))
    return Graph(nodes, tuple(Edge(i, i + 1) for i in range(length - 1)), (Root(0, "loss"),))
