"""Window of retained graphs."""

import torch
from torch import nn
torch.manual_seed(0)

cell = nn.GRUCell(3, 8)
states = [(None, torch.zeros(2, 8))]
for t in range(40):
    state = states[-1][1].detach().requires_grad_()
    new = cell(torch.randn(2, 3), state)
    states.append((state, new))
    while len(states) > 4:
        del states[0]
    loss = new.pow(2).mean()
    loss.backward(retain_graph=True)
    for i in range(len(states) - 1, 0, -1):
        if states[i][0] is None or states[i][0].grad is None or states[i - 1][0] is None:
            break
        states[i - 1][1].backward(states[i][0].grad, retain_graph=True)
