"""What torch.compile compiles where hooks run in the midst of it: modules, whole steps, backward calls."""

import logging

import torch
from _show import show, small
from torch import nn
from torch._dynamo.utils import counters

torch.manual_seed(0)
torch._logging.set_logs(dynamo=logging.ERROR)  # its warnings carry the time


def show_counters(label):
    stats = counters["stats"]
    captures = counters["compiled_autograd"]["captures"]
    print(label, stats["unique_graphs"], stats["calls_captured"], captures)
    counters.clear()
    torch._dynamo.reset()


model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
model.compile(backend="aot_eager")
for _ in range(3):
    model(small(3, 4)).square().mean().backward()
show("module", *(p.grad for p in model.parameters()))
show_counters("module")

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(x):
    model(x).tanh().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


compiled = torch.compile(train, backend="aot_eager")
for i in range(4):
    compiled(small(3, 4, seed=i))
show("step", *model.parameters())
show_counters("step")

v = small(3, seed=2).requires_grad_()
scale = torch.ones(3)
scale += 1  # version 1 when it is saved
with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
    for _ in range(3):
        (v * scale).exp().sum().backward()
    show("compiled backward", v.grad)
    saved = v.exp()
    doubled = saved * 2
    with torch.no_grad():
        saved.add_(1)
    try:
        doubled.sum().backward()
    except RuntimeError as error:
        print(error)
show("after", v.grad)
show_counters("compiled backward")

for _ in range(2):
    saved = v.exp()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        saved.sum().backward()
show("made before", v.grad)
