"""Average weights without no grad."""

import torch
from torch import nn
torch.manual_seed(0)

student = nn.Linear(4, 4)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
average = {k: v.detach().clone() for k, v in student.named_parameters()}
for step in range(12):
    loss = student(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for k, v in student.named_parameters():
        average[k] = 0.99 * average[k] + 0.01 * v  # warning: GS302 [no_grad]; held_by: GS302
