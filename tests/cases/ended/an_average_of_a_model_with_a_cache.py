# found: GS604 `model.decoder.cache[0]`
import copy

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.cache = []

    def forward(self, x):
        key = self.project(x)  # note: its graph was made here
        self.cache.append(key)  # note: stored here
        del self.cache[:-3]
        return torch.cat(self.cache[-1:], 0).sum(0, keepdim=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 8), Decoder()

    def forward(self, x):
        return self.decoder(self.encoder(x))


torch.manual_seed(0)
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    loss = model(torch.randn(4, 8)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
ema = copy.deepcopy(model)  # error: GS604
