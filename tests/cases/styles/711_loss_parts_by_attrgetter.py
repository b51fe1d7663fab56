# expect: {"error": "double_backward", "raise_line": 37, "culprit_line": 22, "culprit_also": [21, 45], "free_line": 37, "leak": false, "loop_line": 45, "fix": "sum_losses", "fix_also": ["retain_graph", "recompute"], "patch": {"47": "    backward(sum(parts(out)))"}, "group": "operator"}
# VAE whose loss parts are picked off the output by attrgetter and run backward with a methodcaller.
# Mended: VAE whose loss parts are run backward with methodcallers: all but the last keep the graph, the last lets it go.

from collections import deque
from operator import attrgetter, methodcaller
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self, width=14, latent=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, 20), nn.SiLU(), nn.Linear(20, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 20), nn.SiLU(), nn.Linear(20, width))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        spread = (0.5 * log_var).exp()
        z = mean + spread * torch.randn_like(spread)
        return SimpleNamespace(
            reconstruction=F.mse_loss(self.decoder(z), x),
            divergence=0.05 * (mean.square() + spread.square() - log_var - 1).mean(),
            spread=spread.detach(),
        )


parts = attrgetter("reconstruction", "divergence")
backward = methodcaller("backward")
# + backward_keeping = methodcaller("backward", retain_graph=True)


def apply_all(function, items):
    deque(map(function, items), maxlen=0)


torch.manual_seed(31)
vae = VAE()
opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
for step in range(6):
    x = torch.randn(10, 14)
    out = vae(x)
    opt.zero_grad()
    apply_all(backward, parts(out))  # -
    # + *first, last = parts(out)
    # + apply_all(backward_keeping, first)
    # + backward(last)
    opt.step()
    print(step, *(f"{part.item():.4f}" for part in parts(out)), f"spread {out.spread.mean():.3f}")
