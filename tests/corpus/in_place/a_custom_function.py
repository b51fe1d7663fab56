"""A custom function."""

import torch
torch.manual_seed(0)

class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]
w = torch.randn(3, requires_grad=True)
y = Exp.apply(w)  # created: GS202 GS201
y.add_(1)  # warning: GS202 [clone]; modified_by: GS202 GS201
loss = y.sum()  # next_read: GS202
loss.backward()  # error: GS201 [clone]; failing_node: GS202
