# expect: {"error": "double_backward", "raise_line": 47, "culprit_line": 18, "culprit_also": [29, 56], "free_line": 31, "hold_line": 18, "leak": false, "loop_line": 56, "fix": "detach", "fix_also": ["recompute"], "patch": {"45": "        logits = self.probe(super().kept_features().detach())"}, "group": "inheritance"}
# Self-supervised trainer with a template method; the subclass extends after_backward() with an online linear probe on the kept features.
# Mended: Self-supervised trainer with a template method; the base class hands the probe of the subclass features without their graph.

import torch
import torch.nn.functional as F
from torch import nn


class Trainer:
    def __init__(self, width=10):
        self.encoder = nn.Sequential(nn.Linear(width, 20), nn.ReLU(), nn.Linear(20, 8), nn.Tanh())
        self.head = nn.Linear(8, width)
        self.opt = torch.optim.Adam([*self.encoder.parameters(), *self.head.parameters()], lr=1e-3)
        self.log = []

    def compute_loss(self, x):
        self.features = self.encoder(x * (torch.rand_like(x) > 0.3))
        return F.mse_loss(self.head(self.features), x)

    def after_backward(self, y):
        self.opt.step()

    def kept_features(self):
        return self.features  # -
        # + return self.features.detach()

    def step(self, x, y):
        loss = self.compute_loss(x)
        self.opt.zero_grad()
        loss.backward()
        self.after_backward(y)
        self.log.append(loss.item())


class ProbedTrainer(Trainer):
    def __init__(self, *args, classes=3, **kwargs):
        super().__init__(*args, **kwargs)
        self.probe = nn.Linear(8, classes)
        self.probe_opt = torch.optim.SGD(self.probe.parameters(), lr=0.1)
        self.hits = []

    def after_backward(self, y):
        super().after_backward(y)
        logits = self.probe(super().kept_features())
        self.probe_opt.zero_grad()
        F.cross_entropy(logits, y).backward()
        self.probe_opt.step()
        self.hits.append((logits.argmax(1) == y).float().mean().item())


torch.manual_seed(47)
trainer = ProbedTrainer(width=10)
for _ in range(6):
    x = torch.randn(16, 10)
    trainer.step(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())
print(f"loss {trainer.log[-1]:.4f}, probe {sum(trainer.hits) / len(trainer.hits):.2f}")
