# raised: RuntimeError: Function ClipBackward returned an invalid gradient; node `ClipBackward`; help: no
import torch
from torch import nn


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad[x.abs() < 1]


torch.manual_seed(0)
layer = nn.Linear(4, 4)
for step in range(2):
    y = layer(torch.randn(3, 4))
    z = Clip.apply(y)  # note: the node
    loss = (z - 1).pow(2).sum()
    loss.backward(retain_graph=True)  # raised
