"""A Function whose backward takes several products with one Jacobian."""

import torch
torch.manual_seed(0)

w = torch.nn.Parameter(torch.randn(3, 3) / 4)

class Settle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(w, x)
        return torch.tanh(x @ w)

    @staticmethod
    def backward(ctx, slope):
        w, x = (each.detach().requires_grad_() for each in ctx.saved_tensors)
        with torch.enable_grad():
            out = torch.tanh(x @ w)  # created: GS102 GS102 GS101; held_by: GS102
        total = slope
        for _ in range(3):
            total = slope + torch.autograd.grad(out, x, total)[0]
            # ^ warning: GS102 [retain_graph] `out`; error: GS101 [retain_graph]
            # ^ failing_node: GS102; freed_by: GS102 GS101; next_read: GS102
        return torch.autograd.grad(out, w, total)[0], total

for _ in range(2):
    Settle.apply(w, torch.randn(2, 3)).sum().backward()
