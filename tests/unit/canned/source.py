"""The imagined program of the canned recordings, and the sites in it."""

from __future__ import annotations

from collections.abc import Mapping

from gradscope.model import Site

TRAIN = """\
import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from model import TwoTask

torch.manual_seed(0)
net = TwoTask()
critic = nn.Linear(256, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
history = []


def warm_up(images):
    for _ in range(1000):
        loss_d = critic(net.encode(images).detach()).mean()
        loss_d.backward()
        loss_g = net(images)[0].pow(2).mean()
        loss_g.backward(retain_graph=True)
        optimizer.step()
        critic_optimizer.step()


def validate(images, animals):
    loss_v = F.cross_entropy(net(images)[0], animals)
    history.append(loss_v)


def checkpointed(images):
    z = checkpoint(net.encode, images, use_reentrant=True)
    loss_c = critic(z).mean()
    loss_c.backward()


def penalty(x):
    (slope,) = torch.autograd.grad(critic(x).pow(2).sum(), [x], create_graph=True)
    return slope.norm()


def offset():
    shift = (net.age.bias + critic.bias).sum()
    shift.backward()


def late(images):
    loss_fake = critic(net.encode(images)).mean()
    critic_optimizer.step()
    try:
        loss_fake.backward()
    except RuntimeError as error:
        print("skipped:", error)


def step(images, animals, ages):
    z = net.encode(images)
    loss_animal = F.cross_entropy(net.animal(z), animals)
    loss_age = F.mse_loss(net.age(z), ages)
    loss_animal.backward()
    loss_age.backward()


images, animals, ages = torch.randn(32, 100), torch.randint(10, (32,)), torch.rand(32, 1)
warm_up(images)
for _ in range(20):
    validate(images, animals)
checkpointed(images.requires_grad_())
total = penalty(torch.randn(32, 256, requires_grad=True))
worker = threading.Thread(target=offset, name="worker-1")
worker.start()
worker.join()
late(images.detach())
step(images.detach(), animals, ages)
"""

MODEL = '''\
import torch
from torch import nn


class TwoTask(nn.Module):
    """An encoder and two heads: which animal, and how old."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(100, 256)
        self.animal = nn.Linear(256, 10)
        self.age = nn.Linear(256, 1)

    def encode(self, images):
        return torch.tanh(self.encoder(images))

    def forward(self, images):
        z = self.encode(images)
        return self.animal(z), self.age(z)
'''

SOURCES = {"train.py": TRAIN, "model.py": MODEL}


def at(
    file: str, text: str, function: str = "<module>", sources: Mapping[str, str] = SOURCES
) -> Site:
    """The site of the first occurrence of ``text`` in ``file``, after the head of ``function``."""
    lines = sources[file].splitlines()
    first = (
        0
        if function == "<module>"
        else next(i for i, line in enumerate(lines) if f"def {function}(" in line)
    )
    for number, line in enumerate(lines[first:], first + 1):
        if (column := line.find(text)) >= 0:
            return Site(file, number, column + 1, number, column + 1 + len(text), function)
    raise LookupError(f"{text!r} is not in {file}")
