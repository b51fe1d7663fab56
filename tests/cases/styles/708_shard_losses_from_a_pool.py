# expect: {"error": "double_backward", "raise_line": 42, "culprit_line": 24, "culprit_also": [23, 28, 38], "free_line": 42, "hold_line": 38, "leak": false, "loop_line": 38, "fix": "recompute", "fix_also": ["sum_losses", "retain_graph"], "patch": {"28": "    return F.mse_loss(model(shard), shard) + 1e-3 * orthogonality(model)"}, "group": "thread pool"}
# Data-parallel shards on a thread pool: every shard's loss includes the orthogonality penalty that was computed once per step.

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, width=12, code=4):
        super().__init__()
        self.down = nn.Linear(width, code)
        self.up = nn.Linear(code, width)

    def forward(self, x):
        return self.up(torch.tanh(self.down(x)))


def orthogonality(model):
    gram = model.down.weight @ model.down.weight.t()
    return (gram - torch.eye(len(gram))).square().sum()


def shard_loss(model, penalty, shard):
    return F.mse_loss(model(shard), shard) + 1e-3 * penalty


torch.manual_seed(19)
model = Autoencoder()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with ThreadPoolExecutor(max_workers=2) as pool:
    for step in range(5):
        shards = torch.randn(24, 12).chunk(3)
        penalty = orthogonality(model)
        opt.zero_grad()
        total = 0.0
        for loss in pool.map(partial(shard_loss, model, penalty), shards):
            (loss / len(shards)).backward()
            total += loss.item()
        opt.step()
        print(step, f"{total / len(shards):.4f}")
