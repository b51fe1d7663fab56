# expect: {"error": "inplace", "raise_line": 48, "culprit_line": 31, "culprit_also": [35], "free_line": null, "mutate_line": 23, "leak": false, "loop_line": 47, "fix": "reorder", "patch": {"33": "            loss = F.cross_entropy(logits, y)\n            loss.backward()\n            return loss.detach()", "48": ""}, "group": "try/finally"}
# Adversarial weight perturbation: weights are shifted in place for the loss, and a finally clause puts them back.
# Mended: Adversarial weight perturbation without touching the weights: the shifted ones are new tensors; the finally clause restores the mode.

import torch
import torch.nn.functional as F
from torch import nn
# + from torch.func import functional_call


class WeightPerturbation:
    def __init__(self, model, strength=0.02):
        self.model, self.strength = model, strength

    def direction(self, x, y):
        loss = F.cross_entropy(self.model(x), y)
        grads = torch.autograd.grad(loss, list(self.model.parameters()))
        return [self.strength * p.detach().norm() * g / (g.norm() + 1e-12) for p, g in zip(self.model.parameters(), grads)]

    @torch.no_grad()  # -
    def shift(self, offsets, sign):  # -
        for p, offset in zip(self.model.parameters(), offsets):  # -
            p.add_(offset, alpha=sign)  # -

    def perturbed_loss(self, x, y):
        offsets = self.direction(x, y)
        self.shift(offsets, +1.0)  # -
        # + shifted = {name: p + offset for (name, p), offset in zip(self.model.named_parameters(), offsets)}
        # + self.model.eval()
        try:
            logits = self.model(x)  # -
            # + logits = functional_call(self.model, shifted, (x,))
            return F.cross_entropy(logits, y)
        finally:
            self.shift(offsets, -1.0)  # -
            # + self.model.train()


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
