# found: GS604 `buffer.steps[1].logp`
import copy
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Step:
    state: torch.Tensor
    logp: torch.Tensor


@dataclass
class Buffer:
    steps: list = field(default_factory=list)


torch.manual_seed(0)
policy = nn.Linear(4, 2)
buffer = Buffer()
for t in range(3):
    state = torch.randn(4)
    logp = policy(state).log_softmax(-1)[0]  # note: its graph was made here
    buffer.steps.append(Step(state, logp.detach() if t != 1 else logp))  # note: stored here
snapshot = copy.deepcopy(buffer)  # error: GS604
