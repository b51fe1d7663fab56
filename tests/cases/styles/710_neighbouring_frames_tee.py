# expect: {"error": "double_backward", "raise_line": 35, "culprit_line": 31, "culprit_also": [32], "free_line": 35, "leak": false, "loop_line": 32, "fix": "detach", "fix_also": ["sum_losses", "recompute", "retain_graph"], "patch": {"34": "        loss = F.mse_loss(predictor(code), following.detach())"}, "group": "itertools.tee"}
# Next-frame prediction in code space: tee() pairs the code of each frame with the code of the next, and every pair is run backward.
# Mended: Next-frame prediction in code space: the frames are paired with tee(), and each of the pair is encoded anew.

from itertools import chain, islice, tee

import torch
import torch.nn.functional as F
from torch import nn


def neighbours(items):
    left, right = tee(items)
    return zip(left, islice(right, 1, None))


def synthetic_clips(count, frames=5, batch=4, size=10):
    for _ in range(count):
        start, drift = torch.randn(batch, size), 0.1 * torch.randn(batch, size)
        yield [start + i * drift for i in range(frames)]


torch.manual_seed(29)
encoder = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 6))
predictor = nn.Linear(6, 6)
opt = torch.optim.Adam(chain(encoder.parameters(), predictor.parameters()), lr=1e-3)

for clip in synthetic_clips(5):
    opt.zero_grad()
    losses = []
    codes = (encoder(frame) for frame in clip)  # -
    for code, following in neighbours(codes):  # -
    # + for code, following in (map(encoder, pair) for pair in neighbours(clip)):
        loss = F.mse_loss(predictor(code), following)
        loss.backward()
        losses.append(loss.item())
    opt.step()
    print(", ".join(f"{value:.4f}" for value in losses))
