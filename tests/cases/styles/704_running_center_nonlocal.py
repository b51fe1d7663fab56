# expect: {"error": "double_backward", "raise_line": 49, "culprit_line": 45, "culprit_also": [22], "free_line": 49, "hold_line": 22, "leak": false, "loop_line": 45, "fix": "detach", "fix_also": ["no_grad"], "patch": {"22": "        center = torch.lerp(targets.detach().mean(0), center, momentum)"}, "group": "closure"}
# Self-distillation: the criterion is a closure that keeps a running centre of the targets in a nonlocal variable.
# Mended: Self-distillation: the closure's nonlocal centre is computed by a helper that records no graph.

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


def make_criterion(dim, momentum=0.9, temperature=0.2):
    center, calls = torch.zeros(dim), 0

    def sharpen(logits):
        return F.softmax((logits - center) / temperature, dim=-1)

    def criterion(student, targets):
        nonlocal center, calls
        loss = -(sharpen(targets) * F.log_softmax(student, dim=-1)).sum(-1).mean()
        calls += 1
        center = torch.lerp(targets.mean(0), center, momentum)  # -
        # + center = blended(center, targets, momentum)
        return loss

    return criterion
# + @torch.no_grad()
# + def blended(old, targets, momentum):
# +     return torch.lerp(targets.mean(0), old, momentum)


def augmented(images, strength):
    return images + strength * torch.randn_like(images)


torch.manual_seed(2)
encoder = nn.Sequential(nn.Linear(10, 24), nn.GELU(), nn.Linear(24, 8))
predictor = nn.Linear(8, 8)
opt = torch.optim.AdamW([*encoder.parameters(), *predictor.parameters()], lr=1e-3)
criterion = make_criterion(dim=8)
weak, strong = partial(augmented, strength=0.05), partial(augmented, strength=0.3)

for step in range(6):
    images = torch.randn(12, 10)
    targets = encoder(weak(images))
    student = predictor(encoder(strong(images)))
    loss = criterion(student, targets)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.4f}")
