"""Outputs of a teacher."""
# fix: detach

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
student = nn.Linear(4, 3)
opt = torch.optim.SGD(student.parameters(), 0.1)
x = torch.randn(16, 4)
teacher_logits = teacher(x)
for epoch in range(4):
    loss = F.kl_div(
        F.log_softmax(student(x), 1), F.softmax(teacher_logits, 1), reduction="batchmean"
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
