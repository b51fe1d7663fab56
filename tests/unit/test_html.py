"""The report's Python side: one self-contained page, its data, the lives of graphs and the placing of nodes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from typing import Any

import pytest
from canned import (
    canned_recording,
    clean_recording,
    empty_recording,
    small_finding,
    unfinished_recording,
)
from canned.recordings import TWO_LOSS
from drawn import graph, leaf, op, saved

from gradscope.model import (
    Applicability,
    BackwardCall,
    Edge,
    Edit,
    Failure,
    Fix,
    FixKind,
    Graph,
    Header,
    Node,
    NodeState,
    Outcome,
    Recording,
    Root,
    Sample,
    Site,
    Summary,
)
from gradscope.render import html as page_module
from gradscope.render.html import (
    MAX_LANES,
    graph_data,
    lifetimes,
    page_data,
    run_end,
    to_html,
    verdict,
)
from gradscope.render.html.placing import ROOT, Placing, place
from gradscope.render.pictures import Options
from gradscope.render.pictures.compose import compose

RECORDINGS = [canned_recording, clean_recording, empty_recording, unfinished_recording]


def data(page: str, name: str) -> Any:
    """What the page's own reader makes of the data block ``name``."""
    found = re.search(rf'<script type="text/plain" id="{name}">([^<]*)</script>', page)
    assert found, name
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def chain(length: int, **module: str) -> Graph:
    """A chain of nodes that each saved a tensor; ``module`` maps ``n3`` to the module of node 3."""
    nodes = [mul(i, length - i, module.get(f"n{i}")) for i in range(length)]
    return graph(nodes, [(i, i + 1) for i in range(length - 1)], loss=0)


def mul(index: int, number: int, module: str | None = None, name: str = "Mul") -> Node:
    """An operation that saved a tensor."""
    return op(index, name, number, NodeState.LIVE, saved=(saved("other", 2),), module=module)


def test_an_edit_brings_all_lines_that_it_replaces() -> None:
    edit, other = Edit("a.py", 1, "new", 2), Edit("a.py", 3, "")
    finding = small_finding(
        "GS305",
        fix=Fix(FixKind.NO_GRAD, "m", (edit,), Applicability.MAYBE_INCORRECT, ("e",), "r"),
        alternatives=(Fix(FixKind.DETACH, "other", (other,)),),
    )
    found = Recording(
        Header("", "", "", "a.py"), findings=(finding,), sources={"a.py": "one\ntwo\nthree\n"}
    )
    (shown,) = page_data(found, ())["findings"]
    (replaced,) = shown["fix"]["edits"]
    assert replaced == {
        "file": "a.py",
        "line": 1,
        "end_line": 2,
        "before": "one\ntwo",
        "replacement": "new",
    }
    assert (shown["fix"]["applicability"], shown["fix"]["effects"]) == ("maybe-incorrect", ["e"])
    (deleted,) = shown["alternatives"][0]["edits"]
    assert (deleted["before"], deleted["replacement"], deleted["end_line"]) == ("three", "", 3)


@pytest.mark.parametrize("make", RECORDINGS)
def test_same_recording_same_bytes(make: Any) -> None:
    assert to_html(make()) == to_html(make())


@pytest.mark.parametrize("make", RECORDINGS)
def test_policy_allows_this_script_and_style_and_nothing_else(make: Any) -> None:
    page = to_html(make())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]


def test_page_names_no_address() -> None:
    page = to_html(canned_recording())
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|img|iframe|script [^>]*src)", page)
    assert not re.search(r"\bstyle=|\bon\w+=", page.split("<script", 1)[0].split("</style>")[1])


def test_hostile_strings_cannot_leave_the_data() -> None:
    hostile = "</script><script>hurt()</script>{{style}}&amp;\ud800\u2028"
    whole = empty_recording()
    page = to_html(replace(whole, header=replace(whole.header, script=hostile, argv=(hostile,))))
    assert data(page, "report-data")["header"]["script"] == hostile
    assert "hurt()" not in re.sub(r"<title>.*?</title>|<script type=.*?</script>", "", page)
    title = re.search(r"<title>(.*?)</title>", page)
    assert title
    assert "<" not in title[1]
    assert "{{style}}" in title[1]
    page.encode("utf-8")


def test_findings_carry_their_lines_and_places() -> None:
    whole = data(to_html(canned_recording()), "report-data")
    freed = next(finding for finding in whole["findings"] if finding["code"] == "GS101")
    site = whole["sites"][freed["location"]]
    assert [site["line"], "    loss_age.backward()"] in site["lines"]
    roles = [related["role"] for related in freed["related"]]
    assert roles == ["created", "freed_by", "failing_node"]
    assert freed["graph"] == TWO_LOSS
    assert freed["graph_nodes"] == [4, 5]


def test_a_form_feed_ends_no_line_of_a_source() -> None:
    whole = canned_recording()
    text = "\x0c" + whole.sources["train.py"].replace("import torch\n", "import torch\x0c\n", 1)
    page = page_data(replace(whole, sources={**whole.sources, "train.py": text}), ())
    freed = next(finding for finding in page["findings"] if finding["code"] == "GS101")
    site = page["sites"][freed["location"]]
    assert (site["line"], "    loss_age.backward()") in site["lines"]


def test_missing_source_leaves_the_place() -> None:
    recording = replace(canned_recording(), sources={})
    page = page_data(recording, ())
    site = page["sites"][page["findings"][0]["location"]]
    assert site["lines"] == []
    assert site["file"] == "train.py"


def test_graph_columns_agree_with_the_graph() -> None:
    recording = canned_recording()
    whole = recording.graphs[TWO_LOSS]
    columns = data(to_html(recording), f"graph-{TWO_LOSS}")
    assert columns["node"]["name"] == [node.name for node in whole.nodes]
    assert columns["node"]["state"] == [node.state.value for node in whole.nodes]
    assert columns["saved_count"] == [len(node.saved) for node in whole.nodes]
    assert columns["edge"]["source"] == [edge.source for edge in whole.edges]
    assert columns["edge"]["target"] == [edge.target for edge in whole.edges]


def test_graphs_that_do_not_fit_are_left_out_but_not_those_of_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    about = tuple(each for each in canned_recording().findings if each.code == "GS101")
    recording = replace(canned_recording(), findings=about)
    block = len(
        page_module._data_block(
            f"graph-{TWO_LOSS}", graph_data(recording.graphs[TWO_LOSS], recording.sources)
        )
    )
    monkeypatch.setattr(page_module, "GRAPH_BUDGET", block)
    page = to_html(recording)
    assert data(page, "report-data")["embedded"] == [TWO_LOSS]
    assert 'id="graph-1"' not in page


def test_a_huge_graph_is_left_out_before_it_is_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "graph_data", None)
    recording = replace(clean_recording(), graphs={1: chain(200_000)})
    assert data(to_html(recording), "report-data")["embedded"] == []


def test_verdicts() -> None:
    assert verdict(canned_recording())["headline"] == "2 errors, 2 warnings, 1 advice"
    assert verdict(canned_recording())["level"] == "error"
    assert verdict(clean_recording())["level"] == "clean"
    assert verdict(empty_recording())["headline"] == "No backward call was seen"
    assert "stopped before it could finish" in verdict(unfinished_recording())["detail"]
    going_on = replace(unfinished_recording(), outcome=Outcome(running="the run is going on"))
    assert verdict(going_on)["detail"] == "The run is going on"
    crashed = replace(clean_recording(), outcome=Outcome(1, "ValueError: no", True))
    assert verdict(crashed)["headline"] == "No finding explains ValueError"
    found = "Nothing was found in 500 backward calls"
    assert verdict(crashed)["detail"] == f"{found}. The program ended with ValueError: no"
    failure = Failure(Site("x.py", 3), "raised here", help="call it once")
    failed = replace(crashed, outcome=replace(crashed.outcome, failure=failure))
    assert verdict(failed) == {
        "level": "error",
        "headline": "The script ended with ValueError",
        "detail": "Nothing else was found in 500 backward calls",
    }
    with_findings = replace(failed, findings=canned_recording().findings)
    assert verdict(with_findings)["headline"] == "The script ended with ValueError"
    assert verdict(with_findings)["detail"].startswith("2 errors, 2 warnings")
    (told,) = page_data(with_findings, [])["failures"]
    assert (told["exception"], told["where"], told["help"]) == (
        "ValueError: no",
        "",
        "call it once",
    )
    early = replace(failed, summary=Summary(), calls=())
    assert verdict(early)["detail"] == "No backward call was made"
    assert verdict(clean_recording())["detail"].startswith("in 500 backward calls: no optimizer")


def run(*calls: BackwardCall, samples: tuple[Sample, ...] = (), **summary: Any) -> Recording:
    header, outcome = Header("0", "2", "3", "x.py"), Outcome(0, None, True)
    return Recording(header, outcome, Summary(**summary), calls, timeline=samples)


def call(number: int, started: float, **facts: Any) -> BackwardCall:
    usual = {"ended": started + 0.1, "nodes_built": 3, "last_number": number}
    return BackwardCall(number=number, kind="backward", started=started, **(usual | facts))


def test_bars_of_a_plain_loop_share_one_lane() -> None:
    recording = run(*(call(i + 1, i + 0.5, freed_bytes=8) for i in range(4)))
    bars = lifetimes(recording)
    assert {bar.lane for bar in bars} == {0}
    assert [bar.built for bar in bars] == pytest.approx([0, 0.6, 1.6, 2.6])
    assert all(bar.kept is None for bar in bars)


def test_retained_graph_is_kept_until_it_runs_again() -> None:
    first, second = call(1, 1, graph=7, retained_bytes=8), call(2, 3, graph=7, freed_bytes=8)
    bars = lifetimes(run(first, second))
    assert bars[0].kept == 3
    assert bars[1].lane == bars[0].lane
    assert bars[1].built == 3


def test_retained_graph_is_kept_until_less_is_held() -> None:
    held = {1.1: 100, 2.0: 100, 2.5: 10, 5.0: 10}
    samples = tuple(Sample(time, nbytes, 0, 1) for time, nbytes in held.items())
    (bar,) = lifetimes(run(call(1, 1, retained_bytes=100), samples=samples))
    assert bar.kept == 2.5


def test_folded_row_lasts_until_the_next_other_call() -> None:
    folded = call(1, 0.5, count=100, last_number=199)
    other = call(2, 0.7, count=100, last_number=200)
    bars = lifetimes(run(folded, other, call(201, 9.0)))
    assert (bars[0].ended, bars[1].ended) == (9.0, 9.0)
    assert bars[0].lane != bars[1].lane
    assert run_end(run(folded, call(201, 9.0))) == pytest.approx(9.1)


def test_lanes_are_few() -> None:
    bars = lifetimes(run(*(call(i + 1, i + 0.5, retained_bytes=8) for i in range(50))))
    assert max(bar.lane for bar in bars) == MAX_LANES - 1


def ranks_go_down(graph: Graph, placing: Placing) -> bool:
    """Whether every arrow between boxes of one group points to a lower rank."""
    rank = {index: placing.rank[index] for index in range(len(graph.nodes))}
    for edge in graph.edges:
        inside = (
            placing.parent[edge.source] == placing.parent[edge.target]
            and placing.beside[edge.target] < 0
        )
        if inside and rank[edge.source] >= rank[edge.target]:
            return False
    return True


def test_rows_and_groups_of_the_two_losses() -> None:
    whole = canned_recording().graphs[TWO_LOSS]
    placing = place(whole)
    assert ranks_go_down(whole, placing)
    labels = {group.label for group in placing.groups[1:]}
    assert labels == {"net.animal", "net.age", "net.encoder"}
    for one in (node for node in whole.nodes if node.is_leaf):
        consumers = [edge.source for edge in whole.edges if edge.target == one.index]
        assert placing.beside[one.index] == consumers[0]


def test_module_called_twice_is_two_groups_one_below_the_other() -> None:
    modules = {f"n{i}": "cell" for i in (0, 1, 2, 4, 5, 6)}
    placing = place(chain(7, **modules))
    assert [group.label for group in placing.groups[1:]] == ["cell #2", "cell #1"]
    newest, oldest = placing.groups[1:]
    assert newest.rank < placing.rank[3] < oldest.rank


def test_nodes_that_saved_nothing_join_the_module_around_them() -> None:
    nodes = [mul(0, 5, "net.head", "Addmm"), op(1, "T", 4), leaf(2, "net.head.weight")]
    nodes += [op(3, "View", 3), mul(4, 2, "net.body"), mul(5, 1, "net.body")]
    placing = place(graph(nodes, [(0, 1), (1, 2), (0, 3), (3, 4), (4, 5)], loss=0))
    paths = [placing.groups[group].path for group in placing.parent]
    assert paths == ["net.head", "net.head", "net.head", "net", "net.body", "net.body"]


def test_graph_carried_over_calls_is_grouped_by_what_was_built_when() -> None:
    nodes = [op(i, "Mul", 9 - i, NodeState.LIVE, built_after=int(i < 3)) for i in range(6)]
    placing = place(graph(nodes, [(i, i + 1) for i in range(5)], loss=0))
    labels = [group.label for group in placing.groups[1:]]
    assert labels == ["built after backward call 1", "built before the first backward call"]


def test_shared_leaf_stands_below_all_its_consumers_and_outside_of_their_groups() -> None:
    modules = {f"n{i}": "a" for i in (0, 1)} | {f"n{i}": "b" for i in (2, 3)}
    whole = chain(4, **modules)
    edges = (*whole.edges, Edge(1, 4), Edge(3, 4))
    placing = place(Graph((*whole.nodes, leaf(4, "w")), edges, whole.roots))
    assert placing.parent[4] == ROOT
    assert placing.beside[4] == -1
    assert placing.rank[4] > max(group.rank for group in placing.groups[1:])


def test_cycles_of_groups_and_graphs_without_sequence_numbers_end() -> None:
    nodes = tuple(Node(i, "MulBackward0", module="ab"[i % 2]) for i in range(8))
    whole = Graph(nodes, (*(Edge(i, i + 1) for i in range(7)), Edge(7, 0)), (Root(0),))
    placing = place(whole)
    assert len(placing.rank) == 8
    assert place(Graph((), (), ())).parent == []


def shown_at_first(graph: Graph) -> tuple[list[Any], list[int]]:
    """The closed groups and the nodes that the page shows before anything is clicked."""
    placing = place(graph)
    is_shown = [True]
    for group in placing.groups[1:]:
        is_shown.append(is_shown[group.parent] and placing.groups[group.parent].is_open)
    closed = [
        group
        for group, shown in zip(placing.groups, is_shown, strict=True)
        if shown and not group.is_open
    ]
    nodes = [
        node.index
        for node, parent in zip(graph.nodes, placing.parent, strict=True)
        if is_shown[parent] and placing.groups[parent].is_open and not node.is_leaf
    ]
    return closed, nodes


def steps_of_a_cell(steps: int) -> Graph:
    """A chain of like steps, each of three nodes of one module, under a loss."""
    names = ["Mean", *["Mul", "Tanh", "Addmm"] * steps]
    nodes = []
    for at, name in enumerate(names):
        own = (saved("self", 4, storage=at),) if at else ()
        module, kind = ("cell", "Cell") if at else (None, None)
        more = {"saved": own, "module": module, "module_class": kind}
        nodes.append(op(at, name, len(names) - at, NodeState.LIVE, **more))
    return graph(nodes, [(at, at + 1) for at in range(len(names) - 1)], loss=0)


def test_the_page_folds_as_the_picture_does() -> None:
    whole = steps_of_a_cell(600)
    closed, nodes = shown_at_first(whole)
    boxes = compose([whole], Options()).boxes
    folds = [box.title for box in boxes if box.is_fold]
    assert (
        [group.label for group in closed] == folds == ["cell · 3 nodes \N{MULTIPLICATION SIGN}599"]
    )
    assert nodes == [0, 1, 2, 3]
    assert len(nodes) + len(closed) == len(boxes)


def test_each_of_alike_pieces_is_a_group_of_its_own() -> None:
    placing = place(steps_of_a_cell(20))
    pieces = [group for group in placing.groups if group.label == "1 of 19"]
    assert len(pieces) == 19
    assert {placing.groups[group.parent].label for group in pieces} == {
        "cell · 3 nodes \N{MULTIPLICATION SIGN}19"
    }


def test_a_small_graph_is_open_as_a_whole() -> None:
    whole = steps_of_a_cell(5)
    assert shown_at_first(whole) == ([], [node.index for node in whole.nodes])
