"""Drawing from Python: live graphs, graphs as plain data, and what a watch has seen; the states come out the same."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from canned import small_finding
from drawn import graph, leaf, op, saved, texts, two_losses
from torch import nn

import gradscope
from gradscope.errors import GradscopeError
from gradscope.model import (
    BackwardCall,
    Certainty,
    Finding,
    Graph,
    Header,
    Node,
    NodeState,
    Recording,
    SavedState,
    Severity,
)
from gradscope.render.pictures import Options
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import draw_graphs, draw_recording, select
from gradscope.render.pictures.folding import merge
from tests import known


class Mark:
    """Something that can be referred to weakly."""


def losses() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    encoder, head_a, head_b = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 2)
    z = encoder(torch.randn(3, 4)).tanh()
    return head_a(z).pow(2).mean(), head_b(z).exp().mean()


def states(
    graphs: tuple[Graph, ...],
) -> dict[tuple[str, int], tuple[NodeState, int | None, tuple[object, ...]]]:
    """What a picture of the graphs says of each node, counted from its oldest."""
    nodes = [node for node in merge(graphs).nodes if node.sequence_nr is not None]
    first = min(node.sequence_nr or 0 for node in nodes)
    return {
        (node.name, (node.sequence_nr or 0) - first): (
            node.state,
            node.freed_by,
            tuple((tensor.label, tensor.state) for tensor in node.saved),
        )
        for node in nodes
    }


def test_a_live_graph_with_the_users_names(tmp_path: Path) -> None:
    loss_a, loss_b = losses()
    drawing = gradscope.draw(loss_a, loss_b, file=tmp_path / "shared.svg")
    said = texts((tmp_path / "shared.svg").read_bytes())
    assert "Backward graph of loss_a, loss_b" in said
    assert any(text.startswith("SHARED by loss_a and loss_b") for text in said)
    assert drawing.boxes > 5
    assert drawing.notes == ()


def test_a_view_says_that_the_bytes_are_those_of_its_storage(tmp_path: Path) -> None:
    weight, file = torch.ones(3, requires_grad=True), tmp_path / "product.svg"
    for other, is_view in ((torch.ones(100, 3)[0], True), (torch.ones(3), False)):
        gradscope.draw((other * weight).sum(), file=file)
        said = " ".join(texts(file.read_bytes()))
        assert ("view of 1.2 KiB" in said, "view of" in said) == (is_view, is_view)


def test_without_a_file_a_notebook_shows_the_picture() -> None:
    loss_a, _ = losses()
    drawing = gradscope.draw(loss_a)
    assert drawing._repr_svg_() is not None
    assert "Backward graph of loss_a" in texts(drawing.content)
    assert len(repr(drawing)) < 200


def test_a_drawing_to_another_format_is_no_svg(tmp_path: Path) -> None:
    drawing = gradscope.draw(two_losses(), file=tmp_path / "graph.dot")
    assert drawing._repr_svg_() is None
    assert (tmp_path / "graph.dot").read_bytes() == drawing.content


def test_a_graph_that_was_looked_at_earlier_is_drawn_as_it_was() -> None:
    loss_a, _ = losses()
    before = gradscope.snapshot(loss_a)
    loss_a.backward()
    assert "live" in texts(gradscope.draw(before).content)
    assert "live" not in texts(gradscope.draw(loss_a).content)
    assert "freed" in texts(gradscope.draw(loss_a).content)


def test_gradient_edges_are_roots_too() -> None:
    loss_a, _ = losses()
    edge = torch.autograd.graph.get_gradient_edge(loss_a)
    assert "MeanBackward0" in texts(gradscope.draw(edge).content)


def test_dot_text_is_what_a_dot_file_has(tmp_path: Path) -> None:
    gradscope.draw(two_losses(), file=tmp_path / "graph.dot", sites=True, fold=False)
    assert gradscope.to_dot(two_losses(), sites=True, fold=False) == (
        tmp_path / "graph.dot"
    ).read_text(encoding="utf-8")
    loss_a, _ = losses()
    assert "loss_a" in gradscope.to_dot(loss_a)


@pytest.mark.parametrize(
    ("roots", "options", "says"),
    [
        ((), {}, "no tensor given"),
        ((torch.ones(2),), {}, "no backward graph"),
        (("loss",), {}, "a str"),
        ((two_losses(),), {"file": "graph.bmp"}, ".svg, .png, .dot"),
        ((two_losses(),), {"file": "missing/graph.svg"}, "missing/graph.svg"),
        ((Graph((), (), ()),), {}, "nothing to draw"),
    ],
)
def test_used_wrongly(roots: tuple[object, ...], options: dict[str, str], says: str) -> None:
    with pytest.raises(GradscopeError, match=says.replace(".", r"\.")):
        gradscope.draw(*roots, **options)  # type: ignore[arg-type]


def test_drawing_keeps_nothing_alive_and_changes_nothing() -> None:
    loss_a, loss_b = losses()
    gradscope.draw(loss_a, loss_b)
    # The mark dies with the node.
    mark = known(loss_a.grad_fn).metadata["mark"] = Mark()  # type: ignore[index]
    watched = weakref.ref(mark)
    loss_a.backward(retain_graph=True)
    loss_b.backward()
    del loss_a, loss_b, mark
    gc.collect()
    assert watched() is None


def test_a_watch_draws_what_it_saw_last(tmp_path: Path) -> None:
    with gradscope.watch() as scope:
        loss_a, loss_b = losses()
        loss_a.backward(retain_graph=True)
        loss_b.backward()
        scope.draw(tmp_path / "inside.svg")
    scope.draw(tmp_path / "after.svg")
    assert (tmp_path / "inside.svg").read_bytes() == (tmp_path / "after.svg").read_bytes()
    said = texts((tmp_path / "after.svg").read_bytes())
    assert "Backward graph of loss_a (call 1), loss_b (call 2)" in said
    assert "retained" in said
    assert "freed" not in said
    first = scope.draw(call=1)
    assert "Backward graph of loss_a" in texts(first.content)
    with pytest.raises(GradscopeError, match="no backward call 3"):
        scope.draw(call=3)


@pytest.mark.parametrize("retain", [False, True])
def test_the_same_states_from_a_live_graph_and_from_the_recording(
    retain: bool, tmp_path: Path
) -> None:
    with gradscope.watch(save=tmp_path / "run.gscope") as scope:
        loss_a, loss_b = losses()
        loss_a.backward(retain_graph=retain)
        live = gradscope.snapshot(loss_a, loss_b)
        try:
            loss_b.backward()
        except RuntimeError:
            assert not retain
    chosen = select(scope.recording(), 2)
    assert states((live,)) == states(chosen.graphs)
    live_text = compose([live], Options()).subtitle
    assert compose(chosen.graphs, Options()).subtitle == live_text


def test_a_single_call_gives_the_very_same_picture_live_and_recorded() -> None:
    with gradscope.watch() as scope:
        loss, _ = losses()
        live = gradscope.draw(loss)
        loss.backward()
    recorded = draw_graphs(select(scope.recording(), 1).graphs, None)
    assert recorded.content == live.content


# which graphs of a recording are chosen


def recording_of(graphs: list[Graph], calls: list[BackwardCall], *findings: Finding) -> Recording:
    header = Header("0", "2", "3.11", "train.py")
    return Recording(
        header, calls=tuple(calls), graphs=dict(enumerate(graphs, 1)), findings=findings
    )


def call(number: int, graph: int | None = None, **more: object) -> BackwardCall:
    return BackwardCall(number, "backward", graph=number if graph is None else graph, **more)  # type: ignore[arg-type]


def carried(calls: int) -> list[Graph]:
    """The graph of call k has k nodes: one of its own, and all those of the calls before."""
    graphs = []
    for k in range(1, calls + 1):
        nodes = []
        for i in range(k):
            own = (saved("self", 2, storage=i + 1),)
            nodes.append(op(i, "Mul", k - i, NodeState.LIVE, saved=own, built_after=k - i - 1))
        graphs.append(graph([*nodes, leaf(k, "w")], [(i, i + 1) for i in range(k)], loss=0))
    return graphs


def found(call: int, *nodes: int, **more: Any) -> Finding:
    return small_finding(graph=call, backward_call=call, graph_nodes=nodes, **more)


def test_earlier_graphs_are_shown_as_their_calls_left_them() -> None:
    graphs = carried(2)
    chosen = select(recording_of(graphs, [call(1), call(2)]))
    assert chosen.graphs[0].nodes[0].state is NodeState.FREED
    assert chosen.graphs[0].nodes[0].freed_by == 1
    assert chosen.graphs[0].nodes[0].saved[0].state is SavedState.FREED
    assert chosen.graphs[1].nodes == graphs[1].nodes
    roots = [root.name for g in chosen.graphs for root in g.roots]
    assert roots == ["loss (call 1)", "loss (call 2)"]

    def after(first: BackwardCall) -> Node:
        return select(recording_of(graphs, [first, call(2)])).graphs[0].nodes[0]

    kept = after(call(1, retain_graph=True))
    told = (kept.state, kept.freed_by, kept.saved[0].state)
    assert told == (NodeState.RETAINED, None, SavedState.SAVED)
    assert after(call(1, exception="RuntimeError: no")).state is NodeState.LIVE


def test_only_a_few_calls_that_follow_each_other_and_share_nodes_are_joined() -> None:
    graphs = carried(8)
    assert len(select(recording_of(graphs, [call(n) for n in range(1, 9)])).graphs) == 4
    other = [graph([op(0, "Exp", 1), leaf(1, "w")], [(0, 1)], loss=0), *carried(2)[1:]]
    assert len(select(recording_of(other, [call(1), call(2)])).graphs) == 1
    threads = [call(1, thread="a"), call(2, thread="b")]
    assert len(select(recording_of(carried(2), threads)).graphs) == 1


def test_a_graph_met_again_is_not_joined_with_what_came_between() -> None:
    graphs = carried(2)
    again = [call(1), call(2), call(3, graph=1)]
    chosen = select(recording_of(graphs, again))
    assert chosen.graphs == (graphs[0],)


def test_calls_that_take_turns_have_rows_that_overlap() -> None:
    rows = [call(1, count=5, last_number=9), call(2, count=5, last_number=10)]
    recording = recording_of(carried(2), rows)
    sizes = [len(select(recording, number).graphs[-1].nodes) for number in (3, 4, 9, 10)]
    assert sizes == [2, 3, 2, 3]


def test_the_gravest_finding_is_shown() -> None:
    mild = found(1, 0, severity=Severity.WARNING, certainty=Certainty.PREDICTED)
    recording = recording_of(carried(2), [call(1), call(2)], mild, found(2, 1, 0))
    chosen = select(recording)
    assert (chosen.marks.stops, chosen.marks.highlight, len(chosen.graphs)) == (True, (1, 0), 2)
    other = select(recording, 1)
    assert (other.marks.stops, other.marks.highlight) == (False, (0,))
    boxes = compose(chosen.graphs, Options(), chosen.marks).boxes
    assert [(box.alarm, box.root) for box in boxes if box.alarm] == [
        ("part of the finding", "loss (call 2) f32[]"),
        ("backward stops here", "loss (call 1) f32[]"),
    ]


def test_a_finding_whose_graph_is_not_there_is_not_what_is_drawn() -> None:
    kept = small_finding(graph=None, graph_nodes=())
    note = f"the recording has no graph of {kept.code}: this is that of a backward call"
    recording = recording_of(carried(2), [call(1), call(2)], kept)
    assert draw_recording(recording).notes == (note,)
    assert draw_recording(recording, call=1).notes == ()
    own = replace(recording, findings=(kept, found(1, 0)))
    assert draw_recording(own).notes == ()


def test_a_large_graph_is_focused_on_its_finding_unless_the_user_asked_otherwise() -> None:
    whole = carried(60)[-1]
    recording = recording_of([whole], [call(1)], found(1, 30))
    assert len(select(recording).graphs[0].nodes) == 61
    focused, asked = draw_recording(recording), draw_recording(recording, None, Options(fold=False))
    assert focused.boxes < 10
    assert asked.boxes == 61
    assert "backward stops here" in texts(focused.content)


@pytest.mark.parametrize(
    ("calls", "number", "says"),
    [
        ([], None, "no backward call was made"),
        ([call(1)], 2, "no backward call 2 in the recording: it has 1 call"),
        (
            [call(1), call(2, graph=7)],
            2,
            "graph of backward call 2 is not in the recording; draw one of calls 1",
        ),
        (
            [call(1, graph=7)],
            None,
            "graph of backward call 1 is not in the recording; it has none at all",
        ),
    ],
)
def test_what_is_not_there(calls: list[BackwardCall], number: int | None, says: str) -> None:
    with pytest.raises(GradscopeError, match=says):
        select(recording_of(carried(1), calls), number)


def test_storages_of_different_graphs_are_counted_apart() -> None:
    """Each graph numbers its own storages from 1: the two that are held here are not the same one."""
    graphs = carried(2)
    retained = select(recording_of(graphs, [call(1, retain_graph=True), call(2)])).graphs
    assert compose(retained, Options()).subtitle.startswith("3 nodes · 16 B saved")
    freed = select(recording_of(graphs, [call(1), call(2)])).graphs
    assert compose(freed, Options()).subtitle.startswith("3 nodes · 16 B saved")


def test_a_node_that_saved_nothing_is_where_those_built_around_it_are() -> None:
    paths = [None, "net.1.b", None, "net.1.a", None, "net.0.a", None]
    nodes = [
        op(at, "Mul", 7 - at, module=path, module_class="Linear", saved=(saved("self", 2),))
        if path
        else op(at, "View", 7 - at)
        for at, path in enumerate(paths)
    ]
    whole = graph(nodes, [(n, n + 1) for n in range(6)], loss=0)
    modules = [node.module for node in merge([whole]).nodes]
    assert modules == [None, "net.1.b", "net.1", "net.1.a", "net", "net.0.a", None]
    captions = [box.caption for box in compose([whole], Options()).boxes]
    assert captions == ["", "net.1.b · Linear", "", "net.1.a · Linear", "", "net.0.a · Linear", ""]


def test_a_real_transformer_is_folded_by_its_layers() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    with gradscope.watch() as scope:
        loss = model(torch.randn(2, 4, 16)).pow(2).mean()
        loss.backward()
    drawing = scope.draw()
    said = texts(drawing.content)
    assert drawing.boxes <= 25
    assert "model.layers.5  TransformerEncoderLayer" in said
    assert any(text.startswith("1 of 5 alike") for text in said)
    opened = scope.draw(depth=4)
    assert opened.boxes > drawing.boxes
    assert "model.layers.5.self_attn  MultiheadAttention" in texts(opened.content)
