"""A teacher under no_grad."""

import torch
from torch import nn
torch.manual_seed(0)

student = nn.Linear(4, 4)
teacher = {k: v.detach().clone() for k, v in student.named_parameters()}
for _ in range(5):
    x = torch.randn(2, 4)
    target = torch.func.functional_call(student, teacher, (x,))
    (student(x) - target).pow(2).mean().backward()
    with torch.no_grad():
        teacher = {k: 0.9 * teacher[k] + 0.1 * v for k, v in student.named_parameters()}
