# expect: {"error": "double_backward", "raise_line": 49, "culprit_line": 21, "culprit_also": [20, 24, 37, 46], "free_line": 49, "hold_line": 21, "leak": false, "loop_line": 46, "fix": "recompute", "patch": {"18": "    @property"}, "group": "cached_property"}
# Traffic forecasting on a learned graph: the normalised propagation matrix is a cached_property of the layer.
# Mended: Traffic forecasting on a learned graph: the cached propagation matrix is dropped after every optimiser step.

from functools import cached_property

import torch
from torch import nn


class AdaptiveGraphConv(nn.Module):
    def __init__(self, nodes, channels, rank=4):
        super().__init__()
        self.source = nn.Parameter(0.3 * torch.randn(nodes, rank))
        self.sink = nn.Parameter(0.3 * torch.randn(rank, nodes))
        self.mix = nn.Linear(2 * channels, channels)

    @cached_property
    def propagation(self):
        affinity = torch.relu(self.source @ self.sink)
        return torch.softmax(affinity, dim=1)

    def forward(self, signal):
        spread = torch.einsum("nm,bmc->bnc", self.propagation, signal)
        return torch.tanh(self.mix(torch.cat([signal, spread], dim=-1)))

    # + def refresh(self):
    # +     self.__dict__.pop("propagation", None)

class Forecaster(nn.Module):
    def __init__(self, nodes=9, channels=5):
        super().__init__()
        self.graph = AdaptiveGraphConv(nodes, channels)
        self.out = nn.Linear(channels, 1)

    def forward(self, signal):
        return self.out(self.graph(self.graph(signal))).squeeze(-1)


torch.manual_seed(3)
model = Forecaster()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
readings = torch.randn(48, 9, 5)
for epoch in range(2):
    for window in readings.split(12):
        predicted = model(window)
        loss = (predicted - window[..., 0].roll(1, dims=0)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        # + model.graph.refresh()
    print(epoch, f"{loss.item():.4f}")
