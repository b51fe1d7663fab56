"""Real graphs of real networks: each default picture is small, acyclic and says what matters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from drawn import graph, op
from torch import nn

import gradscope
from gradscope.model import Graph
from gradscope.render.pictures import OLDER, SHARED, Options, Picture
from gradscope.render.pictures.compose import compose
from gradscope.render.pictures.draw import draw_graphs
from gradscope.render.pictures.folding import COMFORTABLE


def picture_of(graph: Graph, **options: object) -> Picture:
    picture = compose([graph], Options(**options))  # type: ignore[arg-type]
    assert all(arrow.source < arrow.target for arrow in picture.arrows)
    return picture


def transformer() -> Graph:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    with gradscope.watch():
        loss = model(torch.randn(2, 8, 32)).pow(2).mean()
        return gradscope.snapshot(loss)


def lstm() -> Graph:
    cell, out = nn.LSTMCell(8, 8), nn.Linear(8, 2)
    h, c, outputs = torch.zeros(2, 8), torch.zeros(2, 8), []
    with gradscope.watch():
        for _ in range(200):
            h, c = cell(torch.randn(2, 8), (h, c))
            outputs.append(out(h))
        loss = torch.stack(outputs).mean()
        return gradscope.snapshot(loss)


def gan() -> Graph:
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    fake = generator(torch.randn(3, 4))
    d_loss = discriminator(fake).mean() + discriminator(torch.randn(3, 6)).mean()
    g_loss = -discriminator(fake).mean()
    return gradscope.snapshot(d_loss, g_loss)


def maml() -> Graph:
    w, x, target = torch.randn(4, 4, requires_grad=True), torch.randn(3, 4), torch.randn(3, 4)
    fast = w
    for _ in range(3):
        (gradient,) = torch.autograd.grad(
            (torch.tanh(x @ fast) - target).pow(2).mean(), fast, create_graph=True
        )
        fast = fast - 0.1 * gradient
    meta_loss = (torch.tanh(x @ fast) - target).pow(2).mean()
    return gradscope.snapshot(meta_loss)


def shared_y() -> Graph:
    a, t, x = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3), torch.randn(3, 3)
    with gradscope.watch():
        y = t @ a
        loss0 = (t @ (x + y)).pow(2).sum()
        torch.ones(1, requires_grad=True).backward()
        loss1 = (t @ (x + y)).pow(2).sum()
        return gradscope.snapshot(loss0, loss1)


@pytest.mark.parametrize("network", [transformer, lstm, gan, maml, shared_y])
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_default_pictures_are_small(
    network: Callable[[], Graph], suffix: str, tmp_path: Path
) -> None:
    result = draw_graphs([network()], tmp_path / f"graph{suffix}")
    assert result.boxes <= 2 * COMFORTABLE
    assert result.notes == ()


def test_numbered_layers_show_one_and_fold_those_alike() -> None:
    names = ("Mul", "Add", "Mm", "Relu")
    nodes = [
        op(n, names[n % 4], 200 - n, module=f"layers.{5 - n // 20}.{part}", module_class=kind)
        for n in range(120)
        for part, kind in [(("attn", "Attention"), ("linear", "Linear"))[n // 10 % 2]]
    ]
    whole = graph(nodes, [(n, n + 1) for n in range(119)], loss=0)
    titles = [box.title for box in picture_of(whole).boxes if box.is_fold]
    assert any(title.startswith("layers.0 … layers.4") for title in titles)
    assert "layers.5.attn  Attention" in titles
    assert len(picture_of(whole, depth=2).boxes) < 12


def test_lstm_shows_one_step_of_two_hundred() -> None:
    picture = picture_of(lstm())
    assert [group.title for group in picture.clusters if "alike" in group.title] == [
        "1 of 200 alike"
    ]
    assert len(picture.boxes) < 25


def test_gan_frames_what_both_losses_need() -> None:
    picture = picture_of(gan(), focus="shared")
    assert [group.title.partition(":")[0] for group in picture.clusters] == [
        "SHARED by d_loss and g_loss"
    ]
    shared = [row.text for box in picture.boxes if box.cluster is not None for row in box.rows]
    assert any("generator.0.weight" in text for text in shared)
    assert not any("discriminator" in text for text in shared)


def test_both_iterations_meet_in_the_one_shared_y() -> None:
    picture = picture_of(shared_y())
    shared = {group.id for group in picture.clusters if group.is_shared}
    (y,) = [box for box in picture.boxes if box.cluster in shared]
    assert y.title == "MmBackward0"
    assert {arrow.enters for arrow in picture.arrows if arrow.target == y.id} == {
        SHARED,
        OLDER,
    }
