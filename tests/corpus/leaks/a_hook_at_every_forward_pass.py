"""A hook at every forward pass."""

import torch
from torch import nn
torch.manual_seed(0)

scale = nn.Parameter(torch.ones(16))
body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
likeness = []

def read(grad, features):
    likeness.append(torch.cosine_similarity(grad, features.detach().mean(0), dim=0).item())

def forward(x):
    features = body(x)
    scale.register_hook(lambda g: read(g, features))  # warning: GS302 [other]; held_by: GS302
    return (features * scale).sum(-1)

opt = torch.optim.SGD([scale, *body.parameters()], lr=0.01)
for step in range(30):
    opt.zero_grad()
    forward(torch.randn(8, 6)).pow(2).mean().backward()
    opt.step()
