"""Weights clipped between the calls of two losses."""
# gradients: wrong

import torch
from torch import nn
torch.manual_seed(0)

made, critic = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
class Trainer:
    def clip(self):
        for p in critic.parameters():
            p.data.clamp_(-0.05, 0.05)  # warning (since 3.12: advice): GS202 [reorder]; modified_by: GS202
    def step(self):
        fake = made(torch.randn(5, 2))
        self.loss = -critic(fake).mean()  # created: GS202
        loss = critic(fake.detach()).mean() - critic(torch.randn(5, 3)).mean()
        loss.backward()
        self.clip()
        self.loss.backward()  # failing_node: GS202; next_read: GS202
trainer = Trainer()
for _ in range(3):
    trainer.step()
