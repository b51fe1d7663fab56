"""A program is rehearsed and its fixes are tried, and nothing outside is changed by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import GradscopeError
from gradscope.fixing.rehearsal import Simulation
from gradscope.fixing.runs import Bounds, Program
from gradscope.launch.fork_server import Workshop, started
from gradscope.launch.interpreter import header_of
from tests.command import ROOT, gradscope, ran_well
from tests.zygote import python

CASES = Path(__file__).parents[1] / "cases"

SEEDED = "import torch\ntorch.manual_seed(0)\n"

GAN = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
G, D = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)
steps_g, steps_d = (torch.optim.SGD(net.parameters(), 0.1) for net in (G, D))
one, zero = torch.ones(8, 1), torch.zeros(8, 1)
bce = F.binary_cross_entropy_with_logits

for _ in range(3):
    fake = G(torch.randn(8, 4))
    pred = D(fake)
    d_loss = bce(D(torch.randn(8, 6)), one) + bce(pred, zero)
    steps_d.zero_grad()
    d_loss.backward()
    steps_d.step()
    g_loss = bce(pred, one)
    steps_g.zero_grad()
    g_loss.backward()
    steps_g.step()
print("trained")
"""

CLOSURE = """
import torch

torch.manual_seed(0)

def world(policy):
    place, speed = torch.zeros(1), torch.ones(1)

    def advance(n):
        nonlocal place, speed
        cost = 0.0
        for _ in range(n):
            speed = speed + 0.1 * policy(torch.cat([place, speed]))
            place = place + 0.1 * speed
            cost = cost + place.square().sum()
        return cost

    return advance

policy = torch.nn.Linear(2, 1)
advance = world(policy)
opt = torch.optim.SGD(policy.parameters(), 0.1)
for window in range(3):
    cost = advance(4)
    opt.zero_grad()
    cost.backward()
    opt.step()
"""

LBFGS = """
import torch

class Model:
    def __init__(self):
        self.net = torch.nn.Linear(3, 1)
        self.opt = torch.optim.LBFGS(self.net.parameters(), max_iter=3)

    def fit(self, x, y):
        def closure():
            self.opt.zero_grad()
            loss = (self.net(x) - y).square().mean()
            loss.backward()
            return loss

        self.opt.step(closure)

torch.manual_seed(0)
model = Model()
for _ in range(2):
    model.fit(torch.randn(8, 3), torch.randn(8, 1))
"""

WRITES = """
import torch

with open("log.txt", "a") as log:
    log.write("began\\n")
weight = torch.ones(3, requires_grad=True)
loss = (weight * weight).sum()
loss.backward()
loss.backward()
"""

WINDOWS = """
cell = torch.nn.GRUCell(3, 4)
opt = torch.optim.SGD(cell.parameters(), 0.1)
for _ in range(3):
    loss = torch.zeros(())
    for _ in range(2):
        {step}
        loss = loss + {h}.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
MENDED = {
    "compute what a dict keeps once it was missing each time that it is read": (
        """
class Codes(dict):
    def __missing__(self, key):
        code = torch.tanh(net(torch.full((2, 3), key)))
        self[key] = code
        return code

codes, net = Codes(), torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = sum(codes[key].square().mean() for key in (0.5, 1.0))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "def __getitem__(self, key):\n        code = torch.tanh(",
    ),
    "wait for others only when the step is over": (
        """
import asyncio

net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)

async def train():
    for _ in range(3):
        loss = net(torch.randn(5, 3)).square().mean()
        await asyncio.sleep(0)
        opt.zero_grad()
        loss.backward()
        opt.step()

async def main():
    await asyncio.gather(train(), train())

asyncio.run(main())
""",
        "opt.step()\n        await asyncio.sleep(0)",
    ),
    "cut a tensor of a class of its own": (
        """
class Money(torch.Tensor):
    pass

net, last = torch.nn.Linear(3, 1), torch.zeros(()).as_subclass(Money)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = (net(torch.randn(5, 3)).as_subclass(Money) - 0.5 * last).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    last = loss
""",
        "(0.5 * last).detach()",
    ),
    "cut between windows what a frozen dataclass carries": (
        """
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class Memory:
    h: torch.Tensor
    x: torch.Tensor

def remember(x, memory):
    return replace(memory, h=cell(x, memory.h), x=x)

memory = Memory(torch.zeros(2, 4), torch.zeros(2, 3))
"""
        + WINDOWS.format(step="memory = remember(torch.randn(2, 3), memory)", h="memory.h"),
        "3):\n    memory = replace(memory, h=memory.h.detach())\n",
    ),
    "cut between windows what an object carries": (
        """
class Walker:
    h = torch.zeros(2, 4)

    def walk(self, x):
        self.h = cell(x, self.h)

walker = Walker()
"""
        + WINDOWS.format(step="walker.walk(torch.randn(2, 3))", h="walker.h"),
        "3):\n    walker.h = walker.h.detach()\n",
    ),
    "cut what a list has from earlier iterations": (
        """
net, activities = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), []
net[1].register_forward_hook(lambda module, x, y: activities.append(y))
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = net(torch.randn(4, 3)).square().mean() + torch.cat(activities).abs().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "3):\n    activities = [t.detach() for t in activities]\n",
    ),
    "empty a list of what was added already": (
        """
net, activities = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()), []
net[1].register_forward_hook(lambda module, x, y: activities.append(y.abs().mean()))
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = net(torch.randn(4, 3)).square().mean() + torch.stack(activities).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "sum()\n    activities.clear()\n",
    ),
    "empty the list of each module once it was added": (
        """
class Noisy(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.terms = []

    def forward(self, x):
        self.terms.append(self.weight.square().sum())
        return super().forward(x).tanh()

net = torch.nn.Sequential(Noisy(), Noisy())
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = net(torch.randn(4, 3)).square().mean()
    for each in net:
        loss = loss + sum(each.terms)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "sum(each.terms)\n        each.terms.clear()\n",
    ),
    "empty what is read for the same sum, and no log": (
        """
class Agent(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.terms, self.weights, self.log = [], [], []

    def total(self):
        weights = [w / len(self.weights) for w in self.weights]
        return sum(w * t for w, t in zip(weights, self.terms))

agent = Agent()
opt = torch.optim.SGD(agent.parameters(), 0.1)
for _ in range(3):
    for w in range(2):
        agent.terms.append(agent(torch.randn(3)).square().sum())
        agent.weights.append(float(w))
    agent.log.append(len(agent.terms))
    opt.zero_grad()
    loss = agent.total()
    loss.backward()
    opt.step()
print(agent.log[-1])
""",
        "self.terms))\n        self.terms.clear()\n        self.weights.clear()\n        return result",
    ),
    "compute anew what a call has cached": (
        """
from functools import lru_cache as memo

table = torch.nn.Linear(3, 2)
embed = memo(maxsize=4)(lambda n: torch.tanh(table(torch.full((3,), float(n)))))
opt = torch.optim.SGD(table.parameters(), 0.1)
for _ in range(3):
    opt.zero_grad()
    torch.stack([embed(1), embed(2)]).square().sum().backward()
    opt.step()
""",
        "embed = (lambda n: torch.tanh(table(torch.full((3,), float(n)))))\n",
    ),
    "clone what is overwritten rather than train less": (
        """
net, u = torch.nn.Linear(3, 3), torch.ones(3)

def forward(x):
    with torch.no_grad():
        u.copy_(torch.nn.functional.normalize(net.weight @ torch.ones(3), dim=0))
    sigma = torch.dot(u, net.weight @ torch.ones(3))
    return torch.nn.functional.linear(x, net.weight / sigma)

(forward(torch.randn(4, 3)).mean() - forward(torch.randn(4, 3)).square().mean()).backward()
""",
        "torch.dot(u.clone(), ",
    ),
    "cut what a penalty takes of a generator": (
        """
G, D = torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt_g, opt_d = (torch.optim.SGD(net.parameters(), 0.1) for net in (G, D))

def penalty(real, fake):
    between = torch.lerp(real, fake, 0.5).requires_grad_(True)
    (slope,) = torch.autograd.grad(D(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()

for _ in range(3):
    fake, real = G(torch.randn(5, 2)), torch.randn(5, 3)
    opt_d.zero_grad()
    (D(fake.detach()).mean() - D(real).mean() + penalty(real, fake)).backward()
    opt_d.step()
    opt_g.zero_grad()
    (-D(fake).mean()).backward()
    opt_g.step()
""",
        "(D(fake.detach()).mean() - D(real).mean() + penalty(real, fake.detach()))",
    ),
    "forget gradients that have graphs": (
        """
def curvature(x):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model(x).square().mean().backward(create_graph=True)
    total = sum(p.grad.square().sum() for p in model.parameters())
    return torch.autograd.grad(total, model[0].weight)[0].norm().item()

for _ in range(10):
    curvature(torch.randn(5, 3))
""",
        "model.parameters())\n    model.zero_grad()\n    return",
    ),
    "train through a trace that is taken in a loop": (
        """
field = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
opt = torch.optim.SGD(field.parameters(), 0.1)
for _ in range(2):
    z = torch.randn(5, 2, requires_grad=True)
    dz, trace = field(z), 0.0
    for i in range(2):
        trace = trace + torch.autograd.grad(dz[:, i].sum(), z)[0][:, i]
    opt.zero_grad()
    (dz.square().mean() - trace.mean()).backward()
    opt.step()
""",
        "z, create_graph=True)[0]",
    ),
    "run inside a closure what stands before it": (
        """
canvas = torch.zeros(4, requires_grad=True)
opt = torch.optim.LBFGS([canvas], lr=0.5, max_iter=3)
for _ in range(3):
    image = torch.sigmoid(canvas)
    smooth = image.diff().square().mean()

    def closure():
        \"\"\"Return the loss.\"\"\"
        opt.zero_grad()
        loss = (image - 0.3).square().sum() + smooth
        loss.backward()
        return loss

    opt.step(closure)
""",
        """the loss.\"\"\"
        image = torch.sigmoid(canvas)
        smooth = image.diff().square().mean()
        opt.zero_grad()""",
    ),
    "store each time what was stored once": (
        """
class Hints:
    def __init__(self, project):
        self.project, self.store = project, {}

    def get(self, key, x):
        if key not in self.store:
            self.store[key] = torch.tanh(self.project(x))
        return self.store[key]

hints = Hints(torch.nn.Linear(3, 2))
head = torch.nn.Linear(2, 1)
opt = torch.optim.SGD([*hints.project.parameters(), *head.parameters()], 0.1)
for _ in range(3):
    for key, x in enumerate(torch.eye(3)):
        loss = head(hints.get(key, x)).square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
        """        self.store[key] = torch.tanh(self.project(x))
        return""",
    ),
    "store each time what takes several statements, in each place that has stored it": (
        """
class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.width, self.layer, self.table = torch.nn.Parameter(torch.ones(3)), torch.nn.Linear(3, 3), {}

    def forward(self, x):
        table = self.table.get(len(x))
        if table is None:
            steps = torch.arange(len(x)).float()[:, None]
            table = torch.sin(steps * self.width)
            self.table[len(x)] = table
        return self.layer(x * table)

class Windowed(Scaled):
    def forward(self, x):
        try:
            return self.layer(x * self.window)
        except AttributeError:
            steps = torch.linspace(0, 1, len(x))[:, None]
            self.window = torch.exp(steps * self.width)
            return self.layer(x * self.window)

net = torch.nn.Sequential(Scaled(), Windowed())
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = net(torch.ones(4, 3)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        """    def forward(self, x):
        steps = torch.arange(len(x)).float()[:, None]
        table = torch.sin(steps * self.width)
        self.table[len(x)] = table
        return""",
    ),
    "take clones of parameters that are clipped before each use": (
        """
class Critic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        with torch.no_grad():
            for p in self.parameters():
                p.clamp_(-0.1, 0.1)
        return self.last(torch.relu(self.first(x)))

critic = Critic()
opt = torch.optim.SGD(critic.parameters(), 0.1)
for _ in range(3):
    loss = critic(torch.zeros(4, 3)).mean() - critic(torch.ones(4, 3)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "        return torch.func.functional_call(self.last, "
        "{k: p.clone() for k, p in self.last.named_parameters()}, (torch.relu(self.first(x)),))",
    ),
    "take a clone of a table that is renormalized at each look-up where it is read as a whole": (
        """
class Scores(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(6, 4, max_norm=0.5)

    def forward(self, at):
        return self.table(at) @ self.table.weight.t()

scores = Scores()
opt = torch.optim.SGD(scores.parameters(), 0.1)
for step in range(3):
    loss = torch.nn.functional.cross_entropy(scores(torch.arange(2)), torch.arange(2))
    loss = loss + scores.table(torch.arange(6)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "@ self.table.weight.clone().t()",
    ),
    "change in place what a variable stands for": (
        """
class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            weight = self.layer.weight
            weight.div_(weight.norm().clamp(min=1))
        return self.layer(x)

net = torch.nn.Sequential(Normed(), Normed())
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    loss = (net(torch.ones(4, 3)) - net(torch.zeros(4, 3))).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "            weight.div_(weight.norm().clamp(min=1))\n        return torch.func",
    ),
    "cut after the call what another method adds to": (
        """
class Bucket:
    def __init__(self, opt):
        self.opt, self.total, self.pending = opt, 0.0, 0

    def add(self, loss):
        self.total = self.total + loss
        self.pending += 1
        if self.pending == 3:
            self.flush()

    def flush(self):
        self.opt.zero_grad()
        (self.total / self.pending).backward()
        self.opt.step()
        self.pending = 0

model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
bucket = Bucket(torch.optim.SGD(model.parameters(), 0.1))
for x in torch.randn(9, 3):
    bucket.add(model(x).square().sum())
""",
        """.backward()
        self.total = self.total.detach() if""",
    ),
    "cut a state that an async loop carries on in a named tuple, none at first": (
        """
import asyncio
from typing import NamedTuple
import torch.nn.functional as F

class Memory(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor

cell = torch.nn.LSTMCell(3, 4)
opt = torch.optim.SGD(cell.parameters(), 0.1)

async def chunks():
    for number in range(6):
        await asyncio.sleep(0)
        yield number in (0, 3), torch.randn(2, 3)

async def train():
    state = None
    async for is_first, x in chunks():
        if is_first:
            state = None
        state = Memory(*cell(x, state))
        opt.zero_grad()
        state.h.square().sum().backward()
        opt.step()
        state = state._replace(h=state.h.detach())

asyncio.run(train())
""",
        "c=state.c.detach()",
    ),
    "cut what is descended from, of which gradients are asked": (
        """
from collections import namedtuple
from functools import reduce
Theta = namedtuple("Theta", "weight bias")
rate = torch.tensor(0.1, requires_grad=True)
outer = torch.optim.SGD([rate], 0.01)
x, y = torch.randn(8, 3), torch.randn(8)

def cost(theta):
    return (x @ theta.weight + theta.bias - y).square().mean()

def descend(theta, _):
    grads = torch.autograd.grad(cost(theta), theta, create_graph=True)
    return Theta(*(t - rate.exp() * g for t, g in zip(theta, grads)))

theta = Theta(torch.zeros(3, requires_grad=True), torch.zeros((), requires_grad=True))
for _ in range(4):
    theta = reduce(descend, range(2), theta)
    loss = cost(theta)
    outer.zero_grad()
    loss.backward()
    outer.step()
""",
        "weight=theta.weight.detach().requires_grad_())",
    ),
    "keep the graph for a gradient that is only looked at": (
        """
model = torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)])
opt = torch.optim.SGD(model.parameters(), 0.1)
norms = []

def forward(x):
    hidden = torch.tanh(model[0](x))
    return hidden, model[1](hidden * 2)

for step in range(6):
    hidden, out = forward(torch.randn(5, 3))
    loss = out.square().mean()
    opt.zero_grad()
    loss.backward()
    if step % 3 == 2:
        (seen,) = torch.autograd.grad(loss, hidden)
        norms.append(seen.norm().item())
    opt.step()
""",
        "loss.backward(retain_graph=True)",
    ),
    "compute anew what a branch that is not taken again has computed": (
        """
camera = torch.zeros(2, requires_grad=True)
shade = torch.ones(3, requires_grad=True)
entered = None
for step in range(6):
    stage = step // 3
    if stage != entered:
        active = [shade, camera][: stage + 1]
        camera.requires_grad_(stage == 1)
        opt = torch.optim.SGD(active, 0.1)
        rays = torch.linspace(-1, 1, 6).reshape(3, 2) * camera.exp()
        entered = stage
    opt.zero_grad()
    loss = (rays.sum(1) * shade - 1).square().mean()
    loss.backward()
    opt.step()
""",
        "rays = torch.linspace(-1, 1, 6).reshape(3, 2) * camera.exp()\n    loss = ",
    ),
    "cut what others go on to use where it is, and not within a window": (
        """
cells = [torch.nn.GRUCell(3, 4), torch.nn.GRUCell(4, 4)]

def run(xs, states):
    loss = 0.0
    for x in xs:
        for cell, state in zip(cells, states):
            state["h"] = x = cell(x, state["h"])
        loss = loss + x.square().mean()
    return loss

opt = torch.optim.SGD([p for cell in cells for p in cell.parameters()], 0.1)
states = [{"h": torch.zeros(2, 4)} for _ in cells]
for window in torch.randn(4, 3, 2, 3):
    loss = run(window, states)
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        """    states[:] = [{k: u.detach() for k, u in t.items()} for t in states]
    loss = 0.0""",
    ),
    "build what a property keeps each time": (
        """
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.raw, self._matrix = torch.nn.Parameter(torch.randn(3, 3)), None

    def assemble(self):
        return self.raw @ self.raw.T

    @property
    def matrix(self):
        if self._matrix is None:
            self._matrix = self.assemble()
        return self._matrix

    def forward(self, x):
        return x @ self.matrix

layer = Layer()
opt = torch.optim.SGD(layer.parameters(), 0.1)
for x in torch.randn(3, 2, 3):
    loss = layer(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        """    def matrix(self):
        self._matrix = self.assemble()
        return""",
    ),
    "move the call of the helper that steps": (
        """
actor, heat = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.tensor(0.5))
steps = {"actor": torch.optim.SGD(actor.parameters(), 0.1), "heat": torch.optim.SGD([heat], 0.1)}

def apply(name, loss):
    steps[name].zero_grad()
    loss.backward()
    steps[name].step()

for x in torch.randn(3, 4, 3):
    value = actor(x).square().mean()
    actor_loss = heat * value
    heat_loss = heat * value.detach()
    apply("heat", heat_loss)
    apply("actor", actor_loss)
""",
        """    apply("actor", actor_loss)
    apply("heat", heat_loss)""",
    ),
    "run inside a closure what is stale": (
        """
x, y = torch.randn(6, 2), torch.randn(6)
length = torch.ones(2, requires_grad=True)

def objective():
    scaled = x / length
    gram = torch.exp(-torch.cdist(scaled, scaled))

    def error():
        return (gram @ y - y).square().mean()

    return error

opt, error = torch.optim.SGD([length], 0.1), objective()
for _ in range(3):
    loss = error()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
""",
        """    def error():
        scaled = x / length
        gram = torch.exp""",
    ),
    "train through a derivative": (
        """
torch.func.hessian(lambda x: x.square().sum())(torch.ones(2))  # refuses hooks on saved tensors

def derivative(y, x):
    return torch.autograd.grad(y.sum(), x)[0]

field = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
opt = torch.optim.SGD(field.parameters(), 0.1)
for _ in range(3):
    t = torch.rand(8, 1).requires_grad_()
    u = field(t)
    loss = (derivative(u, t) + u).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "grad(y.sum(), x, create_graph=True)",
    ),
    "do not train through a weight": (
        """
body, head = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
for _ in range(3):
    y = head(torch.tanh(body(torch.randn(8, 2))))
    fit, size = (y - 1).square().mean(), y.abs().mean()
    weight = torch.autograd.grad(fit, head.weight)[0].norm()
    opt.zero_grad()
    (fit + weight * size).backward()
    opt.step()
""",
        "head.weight, retain_graph=True)",
    ),
    "change out of place what a helper overwrites": (
        """
def modulate(h, scale):
    h *= 1 + scale
    return h

body, film = torch.nn.Linear(2, 4), torch.nn.Linear(2, 4)
opt = torch.optim.SGD([*body.parameters(), *film.parameters()], 0.1)
for x in torch.randn(4, 3, 2):
    h = torch.tanh(body(x))
    loss = modulate(h, film(x)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "h = h * (1 + scale)",
    ),
    "pass over a view that torch refuses to use": (
        """
words = torch.nn.Embedding(5, 3, padding_idx=0)
opt = torch.optim.SGD(words.parameters(), 0.1)
for step in range(3):
    h = words(torch.tensor([1, 2])).exp()
    opt.zero_grad()
    h.square().sum().backward()
    h.sum().backward()
    opt.step()
""",
        "(h.square().sum() + h.sum()).backward()",
    ),
    "train through the gradient that a loss is computed of, not through its target": (
        """
def energy(net, x):
    return net(x).square().sum()

true = torch.nn.Linear(3, 1).requires_grad_(False)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
data = []
for _ in range(3):
    x = torch.randn(2, 3, requires_grad=True)
    data.append((x.detach(), torch.autograd.grad(energy(true, x), x)[0]))
for x, force in data:
    x = x.clone().requires_grad_()
    value = energy(net, x)
    own = torch.autograd.grad(value, x)[0]
    opt.zero_grad()
    ((own - force).square().mean() + 0.1 * value).backward()
    opt.step()
""",
        "own = torch.autograd.grad(value, x, create_graph=True)[0]",
    ),
    "take for a constant what no step needs to train by": (
        """
from collections import deque

net = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
replay = deque(maxlen=4)
for step in range(6):
    state = torch.randn(3)
    target = 1.0 + 0.9 * net(torch.randn(3)).max()
    replay.append((state, target))
    if len(replay) > 1:
        states, targets = zip(*replay)
        loss = (net(torch.stack(states)).mean(1) - torch.stack(targets)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
""",
        "    with torch.no_grad():\n        target = 1.0 + 0.9 * net(torch.randn(3)).max()",
    ),
    "build what is changed when that is over": (
        """
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
slow = [p.detach().clone() for p in net.parameters()]
opt = torch.optim.SGD(net.parameters(), 0.1)

@torch.no_grad()
def swap():
    for mean, p in zip(slow, net.parameters()):
        kept = p.clone()
        p.copy_(mean)
        mean.copy_(kept)

for _ in range(4):
    x = torch.randn(6, 3)
    out = net(x)
    swap()
    goal = net(x).detach()
    swap()
    loss = (out - goal).square().mean() + out.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        """    goal = net(x).detach()
    swap()
    out = net(x)
    loss = """,
    ),
    "keep values where they are handed on": (
        """
class History:
    def __init__(self):
        self.rows = []

    def on_step(self, step, logs):
        self.rows.append({"step": step, **logs})

model, history = torch.nn.Linear(3, 1), History()
opt = torch.optim.SGD(model.parameters(), 0.1)
for step in range(40):
    error = model(torch.randn(4, 3)).square().mean()
    loss = error + 0.01 * model.weight.abs().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.on_step(step, {"loss": loss, "error": error})
""",
        """{"loss": loss.item(), "error": error.item()}""",
    ),
    "cut what a loss takes as its target, though each step uses that": (
        """
class Peer:
    def __init__(self):
        self.net = torch.nn.Linear(2, 3)
        self.opt = torch.optim.SGD(self.net.parameters(), 0.1)

    def learn(self, soft):
        hard = self.own.logsumexp(1).mean()
        loss = hard + torch.nn.functional.kl_div(self.own.log_softmax(1), soft)
        self.opt.zero_grad()
        loss.backward()

peers = [Peer() for _ in range(3)]
for _ in range(3):
    given = torch.rand(4, 2)
    for peer in peers:
        peer.own = peer.net(given)
    for peer in peers:
        peer.learn(torch.stack([p.own.softmax(1) for p in peers if p is not peer]).mean(0))
    for peer in peers:
        peer.opt.step()
""",
        "(self.own.log_softmax(1), soft.detach())",
    ),
    "keep what only says how a later call is to look": (
        """
net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), 0.1)
params = list(net.parameters())
for _ in range(4):
    loss = net(torch.rand(4, 2)).square().mean()
    grads = torch.autograd.grad(loss, params, create_graph=True)
    flat = torch.cat([g.flatten() for g in grads])
    v = torch.randn_like(flat)
    for _ in range(3):
        v = torch.cat([h.flatten() for h in torch.autograd.grad(flat @ v, params)])
        v = v / v.norm()
    opt.zero_grad()
    net(torch.rand(4, 2)).square().mean().backward()
    opt.step()
""",
        "torch.autograd.grad(flat @ v, params, retain_graph=True)",
    ),
    "cut where no step uses the gradients in time": (
        """
nets = [torch.nn.Conv1d(i + 1, 1, 3, padding=1) for i in range(3)]
opts = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
for _ in range(3):
    seen = given = torch.rand(2, 1, 8)
    losses = []
    for net in nets:
        own = net(seen)
        losses.append((own - given).square().mean())
        seen = torch.cat([seen, own], 1)
    for opt in opts:
        opt.zero_grad()
    for opt, loss in zip(opts, losses):
        loss.backward(retain_graph=loss is not losses[-1])
        opt.step()
""",
        "seen = torch.cat([seen, own.detach()], 1)",
    ),
    "enter a context in each iteration, not around the loop": (
        """
import contextlib

@contextlib.contextmanager
def using(module, weight):
    module.weight = weight.view(1, 3)
    yield module
    del module.weight

class Target:
    def __call__(self, given):
        return given @ self.weight.t()

def made(code):
    return torch.tanh(maker(code))

target, maker = Target(), torch.nn.Linear(2, 3)
opt = torch.optim.SGD(maker.parameters(), 0.1)
for code in torch.eye(2):
    with using(target, made(code)):
        for given in torch.ones(3, 4, 3):
            loss = target(given).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
""",
        "    for given in torch.ones(3, 4, 3):\n        with using(target, made(code)):\n",
    ),
    "clone what an operation changes that is named for something else": (
        """
table = torch.nn.Embedding(6, 3, max_norm=0.1)
project = torch.nn.Linear(3, 3)
opt = torch.optim.SGD([*table.parameters(), *project.parameters()], 0.1)
for _ in range(3):
    keys = project(table.weight)
    loss = (table(torch.arange(6)) @ keys.t()).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "    keys = project(table.weight.clone())",
    ),
    "rehearse what torch swaps": (
        """
torch.__future__.set_swap_module_params_on_conversion(True)
model = torch.nn.Linear(4, 4)
h = torch.zeros(3, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = model(torch.ones(3, 4)).sum()
    loss.backward()
del loss
model.double().float()
for _ in range(3):
    h = torch.tanh(model(h + 1))
    loss = h.square().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
        "model(h.detach() + 1)",
    ),
    "rehearse what has no version": (
        """
net, h = torch.nn.Linear(3, 3), torch.zeros(4, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    with torch.inference_mode():
        net(torch.ones(4, 3)).add_(1)
    h = torch.tanh(net(h))
    opt.zero_grad()
    h.mean().backward()
    opt.step()
""",
        "torch.tanh(net(h.detach()))",
    ),
}


def rehearsed(
    *args: str | Path, cwd: Path, executable: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that rehearses the program."""
    return gradscope(*args, cwd=cwd, executable=executable, GRADSCOPE_NO_REHEARSAL="")


def _ran(program: str, folder: Path, *options: str) -> dict[str, Any]:
    (folder / "train.py").write_text(program)
    report = folder / "report.json"
    options = ("--format", "json", "--output", str(report), *options)
    rehearsed("run", *options, "train.py", cwd=folder)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def _edited(report: dict[str, Any], folder: Path) -> str:
    """Return the program with the first fix of its first finding."""
    lines = (folder / "train.py").read_text().split("\n")
    fix = report["findings"][0]["fix"]
    for edit in sorted(fix["edits"], key=lambda each: -each["line"]):
        last = edit.get("end_line") or edit["line"]
        lines[edit["line"] - 1 : last] = [edit["replacement"]]
    return "\n".join(lines)


@pytest.mark.full
@pytest.mark.parametrize(
    "number", ["002", "007", "012", "014", "023", "031", "036", "038", "040", "061", "066", "074"]
)
def test_what_is_called_safe_runs_to_its_end(number: str, tmp_path: Path) -> None:
    (case,) = CASES.glob(f"{number}_*.py")
    report = _ran(case.read_text(), tmp_path)
    fix = report["findings"][0]["fix"]
    assert fix["edits"]
    assert fix["applicability"] == "machine-applicable"
    (tmp_path / "mended.py").write_text(_edited(report, tmp_path))
    ran_well(python(), tmp_path / "mended.py")


def test_a_gan_gets_its_pair_of_edits(tmp_path: Path) -> None:
    report = _ran(GAN, tmp_path)
    mended = _edited(report, tmp_path)
    assert "pred = D(fake.detach())" in mended
    assert "    pred = D(fake)\n    g_loss = bce(pred, one)" in mended
    assert report["findings"][0]["fix"]["applicability"] == "machine-applicable"


def test_a_report_of_a_crash_opens_with_the_fix_and_says_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GAN)
    told = rehearsed("run", "train.py", cwd=tmp_path).stderr
    raised, closing = told.split("RuntimeError: ", 1)
    assert raised.count("error[GS101]") == 1
    first, *rest = closing.splitlines()[1:]
    assert first.startswith("help: ")
    assert "(tried, ready to apply)" in " ".join(closing.split())
    assert not [line for line in rest if line == "findings" or line.startswith("note: the script")]
    assert rest[-1].startswith("next: ") or rest[-2].startswith("next: ")


LOGGED = """
import torch

net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
losses = []
for _ in range({calls}):
    loss = net(torch.ones(4, 3)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss)
print(torch.stack(losses).mean() < 1e9)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("calls", "kind", "applicability"),
    [(20, "detach", "machine-applicable"), (120, "detach", "machine-applicable")],
    ids=["seen to its end", "stopped before"],
)
def test_a_number_in_place_of_a_tensor_is_not_sure_before_the_end(
    calls: int, kind: str, applicability: str, tmp_path: Path
) -> None:
    fix = _ran(LOGGED.format(calls=calls), tmp_path)["findings"][0]["fix"]
    assert (fix["kind"], fix["applicability"]) == (kind, applicability)


def test_the_state_of_a_closure_is_cut_between_windows_alone(tmp_path: Path) -> None:
    mended = _edited(_ran(CLOSURE, tmp_path), tmp_path)
    begin = mended.index("nonlocal place, speed")
    between = mended[begin : mended.index("for _ in range(n)")]
    assert "place = place.detach()" in between
    assert "speed = speed.detach()" in between
    assert mended.count(".detach()") == 2
    ran_well(python(), "-c", mended)


@pytest.mark.full
@pytest.mark.parametrize(("program", "text"), MENDED.values(), ids=MENDED)
def test_the_first_fix_is_the_right_one(program: str, text: str, tmp_path: Path) -> None:
    mended = _edited(_ran(SEEDED + program, tmp_path), tmp_path)
    assert text in mended
    ran_well(python(), "-c", mended)


def test_a_step_uses_what_its_closure_has_made(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LBFGS)
    header = header_of([str(tmp_path / "train.py")], hooks=True)
    record = Program(header, sandboxed=True).rehearse(Bounds(0, 60))
    assert record.ended == "end"
    assert record.optimizers == ["LBFGS"]
    assert {record.leaves[leaf]: at for leaf, at in record.owners.items()} == {
        "self.net.weight": (0, 0),
        "self.net.bias": (0, 1),
    }
    steps = [i for i, e in enumerate(record.events) if e.kind == "step" and e.leaves]
    used = Simulation(record).used
    assert [{max(calls) < step for calls in used[step].values()} for step in steps] == [{True}] * 2
    assert [len(used[step]) for step in steps] == [2, 2]


def test_nothing_is_written_a_second_time(tmp_path: Path) -> None:
    report = _ran(WRITES, tmp_path)
    assert (tmp_path / "log.txt").read_text() == "began\n"
    assert {each["code"] for each in report["findings"]} == {"GS101", "GS102"}


@pytest.mark.full
def test_a_rehearsal_can_be_left_out(tmp_path: Path) -> None:
    report = _ran(GAN, tmp_path, "--no-rehearsal")
    assert "D(fake.detach())" not in _edited(report, tmp_path)


@pytest.mark.full
def test_what_is_not_tried_says_why(tmp_path: Path) -> None:
    report = _ran(GAN, tmp_path, "--stop-after", "9")
    told = {finding["untried"] for finding in report["findings"]}
    assert told == {"not tried: the run ends with --stop-after; `gradscope fix train.py` tries"}


SUM = """
import os, sys, time, torch
net, total = torch.nn.Linear(3, 1), 0.0
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    total = total + net(torch.ones(2, 3)).pow(2).mean()
    opt.zero_grad()
    total.backward()
    opt.step()
"""


def test_a_program_imports_its_own_modules_again(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "elsewhere" / "shared.py").write_text("")
    (tmp_path / "train.py").write_text(f"import beside, shared\n{SUM}")
    path = f"{ROOT}{os.pathsep}{tmp_path / 'elsewhere'}"
    options = "--format", "json", "--output", "report.json"
    gradscope("run", *options, "train.py", cwd=tmp_path, PYTHONPATH=path, GRADSCOPE_NO_REHEARSAL="")
    report = json.loads((tmp_path / "report.json").read_text())
    assert "total.detach()" in _edited(report, tmp_path)
    assert {finding["untried"] for finding in report["findings"]} == {""}


def test_the_report_says_what_the_rehearsal_took(tmp_path: Path) -> None:
    told = _ran(SUM, tmp_path)["summary"]["notes"]
    assert [re.sub(r"[\d.]+", "N", note) for note in told] == [
        "looked for fixes: N s (--no-rehearsal leaves it out)"
    ]
    assert _ran(SUM.replace("total + ", ""), tmp_path)["summary"]["notes"] == []


@pytest.mark.full
def test_a_rehearsal_that_takes_too_long_is_ended_and_says_what_to_type(tmp_path: Path) -> None:
    slow = SUM + "if 'gradscope.launch.rehearsal_run' in sys.modules:\n    time.sleep(500)\n"
    slow = slow.replace("    total.backward()", "    total.backward(retain_graph=True)")
    report = _ran(slow + "total.backward()\ntotal.backward()\n", tmp_path)
    more = "; `gradscope fix train.py` takes more time"
    assert all(finding["untried"].endswith(more) for finding in report["findings"])
    assert any(finding["untried"] for finding in report["findings"])


def test_all_runs_are_copies_of_one_process_which_does_only_what_it_can(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    notes = "open(sys.argv[1], 'a').write(f'{os.getppid()} ')"
    program.write_text(SUM.replace("total + ", "") + notes)
    header = header_of([str(program), str(tmp_path / "parents")], hooks=True)
    with Workshop(lambda doing: None) as workshop:
        runs = [workshop.do("runs.recorded", header, 60, started) for _ in range(2)]
        with pytest.raises(GradscopeError, match="please report it: AttributeError"):
            workshop.do("nowhere.nothing")
    assert [run.summary.backward_calls for run in runs] == [3, 3]
    first, second = (tmp_path / "parents").read_text().split()
    assert first == second != str(os.getpid())


def test_one_that_holds_is_enough_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SUM)
    tried = [
        rehearsed("fix", "train.py", option, cwd=tmp_path, executable=sys.executable).stdout
        for option in ("--verify", "--write")
    ]
    assert [text.count("\n  verdict holds") > 1 for text in tried] == [True, False]
    assert tried[1].endswith(f"the fix holds\nwritten: {tmp_path / 'train.py'}\n")


@pytest.mark.full
def test_a_script_can_be_named_in_place_of_a_recording(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GAN)
    done = rehearsed("fix", "train.py", cwd=tmp_path, executable=sys.executable)
    assert done.returncode == 0, done.stderr
    assert "+    pred = D(fake.detach())" in done.stdout
    assert (tmp_path / "train.py").read_text() == GAN
