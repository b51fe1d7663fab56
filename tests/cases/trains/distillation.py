# trains: soft_loss, hard_loss
# trains: teacher: frozen 18; frozen 18
# trains: student: trains opt; trains opt
# trains: projector: trains opt; no_way
"""Distil a teacher into a student, with the labels besides; a projector is for the features alone."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
projector = nn.Linear(3, 3)
opt = torch.optim.SGD([*student.parameters(), *projector.parameters()], lr=0.1)

for parameter in teacher.parameters():
    # It is a target, and stays as it is.
    parameter.requires_grad_(False)

for step in range(8):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    opt.zero_grad()
    aim = teacher(x).softmax(1)
    soft_loss = F.cross_entropy(projector(student(x)), aim)
    soft_loss.backward()
    hard_loss = F.cross_entropy(student(x), y)
    hard_loss.backward()
    opt.step()
