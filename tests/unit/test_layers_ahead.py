"""A layer whose result is needed ahead is run without memory once for arguments of the same shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import gradscope

STEPS = 24


def train(net: nn.GRU, steps: int) -> None:
    head = nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.01)
    held = []
    for _ in range(steps):
        hidden, _last = net(torch.randn(2, 5, 3))
        loss = torch.stack([head(each).mean() for each in hidden.split(1)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        held.append(net(torch.randn(2, 5, 3))[0].mean())


def test_a_recurrent_layer_is_run_once_for_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    original, ahead = nn.GRU.forward, []

    def forward(self: nn.GRU, *given: Any) -> Any:
        ahead.extend([each.shape for each in given[:1] if each.is_meta])
        return original(self, *given)

    monkeypatch.setattr(nn.GRU, "forward", forward)
    net = nn.GRU(3, 4, batch_first=True)
    with gradscope.watch():
        train(net, STEPS)
    assert len(ahead) == len(set(ahead))
