# raised: KeyError: 'scale'; node `ScaleBackward`; help: no
import torch
from torch import nn


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.kept = {}
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.kept["scale"], None  # raised


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return Scale.apply(self.inner(x), 0.5)  # note: the node


torch.manual_seed(0)
model = nn.Sequential(Block(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    opt.zero_grad()
    loss.backward()  # note: in backward call 1
    opt.step()
