# expect: {"error": "double_backward", "raise_line": 51, "culprit_line": 24, "culprit_also": [32, 48], "free_line": 51, "hold_line": 32, "leak": false, "loop_line": 48, "fix": "detach", "patch": {"32": "    ring[0] = written.detach()"}, "group": "deque rotation"}
# Memory-augmented reader: a deque of slots is rotated and overwritten each step, and settings come from a ChainMap.
# Mended: Memory-augmented reader: the deque of slots rotates with its graph inside a step and starts empty in the next one.

from collections import ChainMap, Counter, deque

import torch
import torch.nn.functional as F
from torch import nn

DEFAULTS = {"slots": 3, "dim": 8, "lr": 1e-2, "steps": 7}


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.write = nn.Sequential(nn.Linear(6, dim), nn.Tanh())
        self.query, self.answer = nn.Linear(6, dim), nn.Linear(2 * dim, 4)

    def forward(self, x, memory):
        slots = torch.stack(list(memory), dim=1)
        weights = torch.softmax((slots @ self.query(x).unsqueeze(-1)).squeeze(-1), dim=1)
        fetched = torch.einsum("bs,bsd->bd", weights, slots)
        written = self.write(x)
        return self.answer(torch.cat([fetched, written], dim=1)), written


# + def empty_ring(cfg):
# +     return deque((torch.zeros(5, cfg["dim"]) for _ in range(cfg["slots"])), maxlen=cfg["slots"])
def remember(ring, written):
    ring.rotate(1)
    ring[0] = written


torch.manual_seed(53)
cfg = ChainMap({"lr": 5e-3}, DEFAULTS)
reader = Reader(cfg["dim"])
opt = torch.optim.RMSprop(reader.parameters(), lr=cfg["lr"])
ring = deque((torch.zeros(5, cfg["dim"]) for _ in range(cfg["slots"])), maxlen=cfg["slots"])  # -
answers = Counter()

for step in range(cfg["steps"]):
    x, y = torch.randn(5, 6), torch.randint(0, 4, (5,))
    # + ring = empty_ring(cfg)
    # + for piece in torch.randn(4, 5, 6):
    # +     _, written = reader(piece, ring)
    # +     remember(ring, written)
    logits, written = reader(x, ring)
    loss = F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    remember(ring, written)  # -
    answers.update(logits.argmax(1).tolist())
print(dict(answers), f"{loss.item():.4f}")
