# expect: {"error": "double_backward", "raise_line": 55, "culprit_line": 31, "culprit_also": [16], "free_line": 55, "hold_line": 31, "leak": false, "loop_line": 53, "fix": "recompute", "patch": {"37": "        return F.cross_entropy(self.log_scale.exp() * similarity, torch.arange(len(a)))"}, "group": "metaclass"}
# Metric learning with losses registered by a metaclass, which makes one instance of each; one of them has a learned temperature.
# Mended: Metric learning with losses registered by a metaclass; the learned temperature is a property, worked out at each call.

import torch
import torch.nn.functional as F
from torch import nn


class LossMeta(type):
    registry = {}

    def __new__(meta, name, bases, body, weight=None):
        cls = super().__new__(meta, name, bases, body)
        if weight is not None:
            meta.registry[name] = (weight, cls())
        return cls

    def __init__(cls, name, bases, body, weight=None):
        super().__init__(name, bases, body)


class Loss(metaclass=LossMeta):
    parameters = ()


class Contrastive(Loss, weight=1.0):
    def __init__(self):
        self.log_scale = torch.full((), 1.5, requires_grad=True)
        self.parameters = (self.log_scale,)
        self.scale = self.log_scale.exp()  # -
    # + @property
    # + def scale(self):
    # +     return self.log_scale.exp()
    def __call__(self, a, b):
        similarity = F.normalize(a, dim=1) @ F.normalize(b, dim=1).t()
        return F.cross_entropy(self.scale * similarity, torch.arange(len(a)))


class Variance(Loss, weight=0.1):
    def __call__(self, a, b):
        return sum(F.relu(1 - z.std(dim=0)).mean() for z in (a, b))


torch.manual_seed(43)
embed = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
extra = [p for _, loss in LossMeta.registry.values() for p in loss.parameters]
opt = torch.optim.Adam([*embed.parameters(), *extra], lr=1e-2)

for step in range(6):
    x = torch.randn(10, 8)
    first, second = embed(x), embed(x + 0.1 * torch.randn_like(x))
    terms = {name: weight * loss(first, second) for name, (weight, loss) in LossMeta.registry.items()}
    opt.zero_grad()
    sum(terms.values()).backward()
    opt.step()
    print(step, {name: round(term.item(), 3) for name, term in terms.items()})
