"""A hook at every forward pass."""

import torch
from torch import nn
torch.manual_seed(0)

class Probed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.head = nn.Linear(16, 1)
        self.likeness = []

    def forward(self, x):
        features = self.body(x)
        self.head.weight.register_hook(lambda g: self.read(g, features))  # warning: GS302 [other]; held_by: GS302
        return self.head(features)

    def read(self, grad, features):
        self.likeness.append(torch.cosine_similarity(grad[0], features.detach().mean(0), dim=0).item())

net = Probed()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(60):
    opt.zero_grad()
    net(torch.randn(8, 6)).pow(2).mean().backward()
    opt.step()
