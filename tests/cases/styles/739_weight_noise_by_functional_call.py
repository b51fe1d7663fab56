# expect: {"error": null, "raise_line": null, "culprit_line": null, "free_line": null, "leak": false, "loop_line": 38, "fix": "none", "group": "try/finally"}
# Adversarial weight perturbation without touching the weights: the shifted ones are new tensors; the finally clause restores the mode.

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call


class WeightPerturbation:
    def __init__(self, model, strength=0.02):
        self.model, self.strength = model, strength

    def direction(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        grads = torch.autograd.grad(loss, list(self.model.parameters()))
        return [self.strength * p.detach().norm() * g / (g.norm() + 1e-12) for p, g in zip(self.model.parameters(), grads)]

    def perturbed_loss(self, x, y):
        offsets = self.direction(x, y)
        shifted = {name: p + offset for (name, p), offset in zip(self.model.named_parameters(), offsets)}
        self.model.eval()
        try:
            logits = functional_call(self.model, shifted, (x,))
            return F.cross_entropy(logits, y)
        finally:
            self.model.train()


torch.manual_seed(67)
model = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
awp = WeightPerturbation(model)

for step in range(5):
    x, y = torch.randn(14, 7), torch.randint(0, 3, (14,))
    opt.zero_grad()
    loss = awp.perturbed_loss(x, y)
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.4f}")
