"""Folding: no picture is too large, nothing is lost, nothing that matters is hidden, and no fold makes a cycle."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from drawn import chain, graph, iterations, leaf, op, two_losses, with_failing
from hypothesis import given, settings
from hypothesis import strategies as st

from gradscope.errors import GradscopeError
from gradscope.model import Graph, NodeState
from gradscope.render.pictures import (
    OLDER,
    SHARED,
    TIMES,
    UNMARKED,
    Marking,
    Options,
    Picture,
)
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.folding import COMFORTABLE, MOST, Repeat, find_repeats, fold, merge


def titles(picture: Picture) -> list[str]:
    return [box.title for box in picture.boxes]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any DAG a program can build: edges from newer to older nodes, modules, generations, roots, shared leaves."""
    size = draw(st.integers(1, 700))
    seed = draw(st.randoms(use_true_random=False))
    names = ["Add", "Mul", "T", "Relu", "View"][: draw(st.integers(1, 5))]
    borders = sorted(seed.randrange(size + 1) for _ in range(draw(st.integers(0, 3))))
    modules = [None, "a", "a.0", "a.1", "b.0.c", "b.1.c"]
    nodes = []
    for index in range(size):
        number = size - index
        nodes.append(
            op(
                index,
                seed.choice(names),
                number,
                seed.choice([NodeState.LIVE, NodeState.BUFFERLESS]),
                module=modules[(index // 7) % len(modules)],
                built_after=sum(size - index > border for border in borders),
            )
        )
    edges = []
    for index in range(size - 1):
        edges += [
            (index, target)
            for target in {seed.randrange(index + 1, size) for _ in range(seed.randrange(1, 3))}
        ]
    leaves = [leaf(size + n, f"p.{n}") for n in range(seed.randrange(4))]
    edges += [
        (seed.randrange(size), node.index) for node in leaves for _ in range(seed.randrange(1, 6))
    ]
    roots = {f"loss{n}": seed.randrange(min(size, 5)) for n in range(draw(st.integers(1, 3)))}
    return graph([*nodes, *leaves], list(dict.fromkeys(edges)), **roots)


options = st.builds(
    Options,
    focus=st.sampled_from([None, None, "shared", "a.1", "AddBackward0", "#3-90"]),
    depth=st.sampled_from([None, None, 1, 2]),
)
markings = st.sampled_from([UNMARKED, Marking((0,), stops=True)])


@pytest.mark.full
@settings(max_examples=150, deadline=None)
@given(graphs(), options, markings)
def test_any_fold_is_acyclic_complete_and_small(
    whole: Graph, chosen: Options, marks: Marking
) -> None:
    merged = merge([whole])
    try:
        folded = fold(merged, chosen, marks)
    except GradscopeError as unknown:  # the graph has nothing of that name
        assert "nothing in this graph is called" in str(unknown)
        return
    drawn = [head for part in folded.parts for head in part.heads]
    written = {n for leaves in folded.inlined.values() for n in leaves}
    assert len(drawn) == len(set(drawn))
    assert set(drawn) | written == set(range(len(whole.nodes)))
    assert not set(drawn) & written
    picture = compose([whole], chosen, marks)
    assert len(picture.boxes) <= MOST
    assert all(arrow.source < arrow.target for arrow in picture.arrows)
    if marks.stops:
        assert [box.is_fold for box in picture.boxes if box.alarm] == [False]


@settings(max_examples=50, deadline=None)
@given(graphs())
def test_unfolded_shows_every_node_and_edge(whole: Graph) -> None:
    picture = compose([whole], Options(fold=False))
    assert len(picture.boxes) == len(whole.nodes)
    assert (
        {(e.source, e.target) for e in whole.edges}
        and sum(arrow.count for arrow in picture.arrows) == len(whole.edges)
    ) or not whole.edges


@pytest.mark.parametrize(
    ("tokens", "repeats"),
    [
        ("abcabcabcabc", [Repeat(0, 3, 4)]),
        ("xyabababababz", [Repeat(2, 2, 5)]),
        ("aaaaaaaaaaaa", [Repeat(0, 1, 12)]),
        ("abcdefgh", []),
        ("ababab", []),  # would leave out too few
        ("aabaabaabaab", [Repeat(0, 3, 4)]),
    ],
)
def test_repeats(tokens: str, repeats: list[Repeat]) -> None:
    assert find_repeats(tokens) == repeats


def test_a_loop_without_modules_shows_one_turn_and_how_many_more() -> None:
    picture = compose([chain(900, ("Add", "Mul", "Tanh"))], Options())
    folds = [box for box in picture.boxes if box.is_fold]
    assert len(picture.boxes) < 15
    assert any(f"{TIMES}298" in box.title or f"{TIMES}299" in box.title for box in folds)
    assert any("alike" in group.title for group in picture.clusters)


def test_neighbours_share_boxes_where_nothing_repeats() -> None:
    picture = compose([chain(400, [f"Op{number}x" for number in range(400)])], Options())
    folds = [box for box in picture.boxes if box.is_fold]
    assert 10 < len(picture.boxes) <= COMFORTABLE
    assert len(folds) == len(picture.boxes) - 1
    assert picture.boxes[0].root


def test_a_fold_names_the_key_that_opens_it() -> None:
    whole = chain(90, ("Add", "Mul", "Tanh"))
    picture = compose([whole], Options())
    (row,) = [
        row.text for box in picture.boxes for row in box.rows if row.text.startswith("open: ")
    ]
    opened = compose([whole], Options(focus=row.removeprefix("open: ")))
    assert sum(not box.is_fold and box.state is not None for box in opened.boxes) >= 84


def test_a_state_that_differs_is_not_folded_away() -> None:
    whole = with_failing(chain(300), 150, NodeState.STALE)
    picture = compose([whole], Options())
    assert [box.title for box in picture.boxes if box.state is NodeState.STALE] == ["MulBackward0"]


def test_the_failing_node_has_its_own_box() -> None:
    picture = compose([chain(5000)], Options(), Marking((2500,), stops=True))
    (box,) = [box for box in picture.boxes if box.alarm]
    assert not box.is_fold
    assert box.alarm == "backward stops here"


@pytest.mark.full
def test_deep_chain() -> None:
    picture = compose([chain(200_000)], Options())
    assert titles(picture) == ["MulBackward0", f"MulBackward0 {TIMES}199,999"]
    assert picture.subtitle.startswith("200,001 nodes")


def test_small_graphs_are_drawn_as_they_are() -> None:
    picture = compose([two_losses()], Options())
    assert titles(picture) == [
        "MseLossBackward0",
        "NllLossBackward0",
        "ReluBackward0",
        "AddmmBackward0",
        "fc1.weight",
    ]


def test_shared_part_is_framed_with_its_bytes_and_entered_by_emphasised_links() -> None:
    picture = compose([two_losses()], Options())
    (frame,) = [group for group in picture.clusters if group.is_shared]
    assert frame.title == "SHARED by loss_a and loss_b: 2 nodes, 32 KiB freed"
    inside = {box.id for box in picture.boxes if box.cluster == frame.id}
    boundary = {(arrow.source, arrow.target) for arrow in picture.arrows if arrow.enters == SHARED}
    assert boundary == {(0, 2), (1, 2)}
    assert inside == {2, 3}


def test_what_one_root_alone_needs_becomes_one_box() -> None:
    a = [op(n, "Mul", 90 - n) for n in range(40)]
    b = [op(40 + n, "Add", 50 - n) for n in range(40)]
    common = [op(80, "Relu", 1), leaf(81, "w")]
    edges = (
        [(n, n + 1) for n in range(39)]
        + [(39, 80)]
        + [(40 + n, 41 + n) for n in range(39)]
        + [(79, 80), (80, 81)]
    )
    picture = compose([graph([*a, *b, *common], edges, loss_a=0, loss_b=40)], Options())
    assert sorted(titles(picture)) == [
        "AddBackward0",
        "MulBackward0",
        "ReluBackward0",
        "only loss_a",
        "only loss_b",
    ]


def test_iterations_are_framed_and_carried_links_emphasised() -> None:
    picture = compose([iterations(3)], Options())
    assert [group.title for group in picture.clusters] == [
        "built after backward call 2",
        "built after backward call 1",
        "built before backward call 1",
    ]
    assert sum(arrow.enters == OLDER for arrow in picture.arrows) == 2


def test_many_alike_iterations_are_one_box() -> None:
    picture = compose([iterations(500)], Options())
    assert len(picture.boxes) < 20
    assert "built after calls 0 to 497: 498 alike" in titles(picture)


def test_nodes_of_two_graphs_with_the_same_number_and_name_are_one() -> None:
    old = graph([op(0, "Sum", 3), op(1, "Mm", 1), leaf(2, "a")], [(0, 1), (1, 2)], loss0=0)
    new = graph(
        [op(0, "Sum", 7, built_after=1), op(1, "Mm", 1, NodeState.FREED), leaf(2, "a")],
        [(0, 1), (1, 2)],
        loss1=0,
    )
    picture = compose([old, new], Options())
    assert sorted(titles(picture)) == ["MmBackward0", "SumBackward0", "SumBackward0", "a"]
    (shared,) = [box for box in picture.boxes if box.title == "MmBackward0"]
    assert shared.state is NodeState.FREED  # the latest look counts
    assert picture.title == "Backward graph of loss0, loss1"


def test_parameters_are_written_into_the_box_that_uses_them() -> None:
    users = [op(n, "Addmm", 99 - n, NodeState.LIVE, module=f"layer{n}") for n in range(40)]
    nodes = [*users, op(40, "T", 1), leaf(41, "w", "f32[8, 8]")]
    edges = [(n, n + 1) for n in range(39)] + [(n, 41) for n in range(39)] + [(39, 40), (40, 41)]
    picture = compose([graph(nodes, edges, loss=0)], Options())
    rows = [row for box in picture.boxes for row in box.rows if "→ w" in row.text]
    assert rows
    assert rows[0].text == "→ w  f32[8, 8]"
    assert rows[0].note == f"used {TIMES}40"


def test_module_calls_fold_and_a_module_called_twice_stays_acyclic() -> None:
    nodes = [
        op(n, "Mul" if n % 2 else "Add", 200 - n, module=("cell", "other")[(n // 20) % 2])
        for n in range(80)
    ]
    picture = compose([graph(nodes, [(n, n + 1) for n in range(79)], loss=0)], Options(depth=1))
    assert titles(picture)[1:] == ["cell", "other", "cell", "other"]
    assert all(arrow.source < arrow.target for arrow in picture.arrows)


def test_focus_opens_what_it_names_and_joins_the_rest() -> None:
    nodes = [op(n, "Mul", 200 - n, module=f"layer{n // 10}") for n in range(100)]
    whole = graph(nodes, [(n, n + 1) for n in range(99)], loss=0)
    picture = compose([whole], Options(focus="layer4"))
    assert (
        len(picture.boxes) == 1 + 1 + 12 + 1
    )  # the root, what is above, layer4 with its two neighbours, what is below


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Options(focus="layer.77"), "'layer.77'; did you mean 'layer.7'?"),
        (
            Options(focus="xyz"),
            "'xyz': it has loss, layer.0, layer.1, layer.2, layer.3, layer.4 and",
        ),
        (Options(focus="finding"), "'finding': it has loss"),
        (Options(focus="los"), "'los'; did you mean 'loss'?"),
        (Options(focus="#900-999"), "'#900-999': it has loss"),
    ],
)
def test_what_is_not_in_the_graph_is_said(asked: Options, said: str) -> None:
    nodes = [op(n, "Mul", 200 - n, module=f"layer.{n // 10}") for n in range(100)]
    whole = graph(nodes, [(n, n + 1) for n in range(99)], loss=0)
    for known in ("layer", "layer.7", "loss", "n77", "MulBackward0"):
        assert compose([whole], Options(focus=known)).boxes
    with pytest.raises(GradscopeError, match=re.escape(f"nothing in this graph is called {said}")):
        compose([whole], asked)


def test_a_leaf_in_the_box_of_its_user_can_be_focused() -> None:
    nodes = [op(n, "Mul", 200 - n) for n in range(100)] + [leaf(100, "fc.weight")]
    edges = [(n, n + 1) for n in range(99)] + [(50, 100)]
    picture = compose([graph(nodes, edges, loss=0)], Options(focus="fc.weight"))
    assert [box.title for box in picture.boxes].count("MulBackward0") == 4  # the root, and three


def test_edges_not_followed_are_said() -> None:
    picture = compose([replace(chain(3), not_looked_at=2)], Options())
    assert picture.notes == ("2 edges not followed: the graph is too deep to touch safely",)
