# expect: {"error": "double_backward", "raise_line": 40, "culprit_line": 32, "culprit_also": [54], "free_line": 36, "hold_line": 32, "leak": false, "loop_line": 54, "fix": "sum_losses", "fix_also": ["retain_graph", "recompute"], "patch": {"36": "                self.bag[\"rebuilt\"] = rebuilt", "40": "                (self.bag.pop(\"rebuilt\") + scored).backward()"}, "group": "match"}
# Training as a state machine: a match statement goes from encoding to decoding to scoring, sharing a latent in a dict.
# Mended: Training as a state machine over a match statement, whose guard leaves the scoring stage out.

from enum import Enum, auto

import torch
import torch.nn.functional as F
from torch import nn


class Stage(Enum):
    ENCODE = auto()
    DECODE = auto()
    SCORE = auto()
    UPDATE = auto()


class Machine:
    def __init__(self, judge_latents=True):  # -
    # + def __init__(self, judge_latents=False):
        self.encoder = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 5))
        self.decoder, self.scorer = nn.Linear(5, 9), nn.Linear(5, 2)
        modules = nn.ModuleList([self.encoder, self.decoder, self.scorer])
        self.opt = torch.optim.SGD(modules.parameters(), lr=0.05)
        self.stage, self.bag, self.judge_latents = Stage.ENCODE, {}, judge_latents

    def tick(self, x, y):
        match self.stage:
            case Stage.ENCODE:
                self.opt.zero_grad()
                self.bag["latent"] = self.encoder(x)
                self.stage = Stage.DECODE
            case Stage.DECODE:
                rebuilt = F.mse_loss(self.decoder(self.bag["latent"]), x)
                rebuilt.backward()
                self.stage = Stage.SCORE
            case Stage.SCORE if self.judge_latents:
                scored = F.cross_entropy(self.scorer(self.bag["latent"]), y)
                scored.backward()
                self.stage = Stage.UPDATE
            case Stage.SCORE | Stage.UPDATE:
                self.opt.step()
                self.stage = Stage.ENCODE
                return float(self.bag.pop("latent").detach().norm())


torch.manual_seed(41)
machine = Machine()
for batch in range(5):
    x, y = torch.randn(7, 9), torch.randint(0, 2, (7,))
    done = None
    while done is None:
        done = machine.tick(x, y)
    print(batch, machine.stage.name, f"{done:.3f}")
