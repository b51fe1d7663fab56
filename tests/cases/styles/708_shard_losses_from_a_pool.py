# expect: {"error": "double_backward", "raise_line": 46, "culprit_line": 25, "culprit_also": [24, 30, 40], "free_line": 46, "hold_line": 40, "leak": false, "loop_line": 40, "fix": "recompute", "fix_also": ["sum_losses", "retain_graph"], "patch": {"30": "    return F.mse_loss(model(shard), shard) + 1e-3 * orthogonality(model)"}, "group": "thread pool"}
# Data-parallel shards on a thread pool: every shard's loss includes the orthogonality penalty that was computed once per step.
# Mended: Data-parallel shards on a thread pool: the pool is handed a freshly computed penalty with every shard.

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


def shard_loss(model, penalty, shard):  # -
# + def shard_loss(model, shard, penalty):
    return F.mse_loss(model(shard), shard) + 1e-3 * penalty


torch.manual_seed(19)
model = Autoencoder()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with ThreadPoolExecutor(max_workers=2) as pool:
    for step in range(5):
        shards = torch.randn(24, 12).chunk(3)
        penalty = orthogonality(model)  # -
        # + penalties = (orthogonality(model) for _ in shards)
        opt.zero_grad()
        total = 0.0
        for loss in pool.map(partial(shard_loss, model, penalty), shards):  # -
        # + for loss in pool.map(partial(shard_loss, model), shards, penalties):
            (loss / len(shards)).backward()
            total += loss.item()
        opt.step()
        print(step, f"{total / len(shards):.4f}")
