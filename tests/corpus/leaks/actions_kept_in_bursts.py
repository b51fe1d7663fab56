"""A replay buffer in a function grows in bursts and keeps the graph of each action."""

import random

import torch
from torch import nn

torch.manual_seed(0)


def main():
    pi, q = nn.Linear(3, 2), nn.Linear(5, 1)
    op, oq = torch.optim.Adam(pi.parameters()), torch.optim.Adam(q.parameters())
    memory = []
    for episode in range(12):
        for t in range(20):
            s = torch.randn(3)
            a = torch.tanh(pi(s))
            memory.append((s, a, 0.1))  # warning: GS302 [detach]; held_by: GS302
        for k in range(5):
            batch = random.sample(memory, 16)
            s = torch.stack([b[0] for b in batch])
            a = torch.stack([b[1].detach() for b in batch])
            oq.zero_grad()
            (q(torch.cat([s, a], 1)) - 0.1).pow(2).mean().backward()
            oq.step()
            op.zero_grad()
            (-q(torch.cat([s, torch.tanh(pi(s))], 1)).mean()).backward()
            op.step()


main()
