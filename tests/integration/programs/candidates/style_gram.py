"""The Gram matrix of a style."""
# fix: detach

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
vgg = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))


def gram(f):
    f = f.flatten(1)
    return f @ f.t()


style, content = torch.rand(3, 8, 8), torch.rand(3, 8, 8)
target = gram(vgg(style))
image = content.clone().requires_grad_()
opt = torch.optim.Adam([image], 0.01)
for i in range(4):
    loss = F.mse_loss(gram(vgg(image)), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
