# expect: {"error": "inplace", "raise_line": 55, "culprit_line": 31, "culprit_also": [50], "free_line": null, "mutate_line": 36, "leak": false, "loop_line": 50, "fix": "reorder", "patch": {"43": "callbacks.on(\"before_forward\", renormalise)"}, "group": "callbacks"}
# Clustering with learned prototypes: callbacks in a dict of lists, one of which renormalises the prototypes after the forward pass.
# Mended: Clustering with learned prototypes: callbacks in a dict of lists, one of which renormalises the prototypes after each step.

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn


class Callbacks:
    def __init__(self):
        self.by_event = defaultdict(list)

    def on(self, event, function):
        self.by_event[event].append(function)

    def fire(self, event, *args):
        for function in self.by_event[event]:
            function(*args)


class Clusterer(nn.Module):
    def __init__(self, dim=6, clusters=5):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, dim))
        self.prototypes = nn.Parameter(torch.randn(clusters, dim))

    def forward(self, x):
        return F.normalize(self.backbone(x), dim=1) @ self.prototypes.t()


@torch.no_grad()
def renormalise(model):
    model.prototypes.div_(model.prototypes.norm(dim=1, keepdim=True))


torch.manual_seed(59)
model = Clusterer()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
callbacks, usage = Callbacks(), []
callbacks.on("after_forward", renormalise)  # -
# + callbacks.on("after_step", renormalise)
callbacks.on("after_step", lambda m: usage.append(round(m.prototypes.norm().item(), 3)))

for step in range(5):
    x = torch.randn(12, 9)
    callbacks.fire("before_forward", model)
    scores = model(x)
    targets = (scores.detach() / 0.1).softmax(1)
    loss = -(targets * F.log_softmax(scores, dim=1)).sum(1).mean()
    callbacks.fire("after_forward", model)
    opt.zero_grad()
    loss.backward()
    opt.step()
    callbacks.fire("after_step", model)
print(usage)
