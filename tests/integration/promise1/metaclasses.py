"""How often classes of classes are asked for equality, a hash or an instance: only by the program itself."""

from collections import Counter

import torch
from _show import small
from torch import nn

torch.manual_seed(0)
asked = Counter()


class Asked(type):
    def __eq__(cls, other):
        asked["equality"] += 1
        return NotImplemented

    def __hash__(cls):
        asked["hash"] += 1
        return 1


class Settings(metaclass=Asked):
    """Also says that it is of another class, as a proxy does."""

    def __init__(self, **given):
        self.__dict__.update(given)

    @property
    def __class__(self):
        asked["class"] += 1
        return dict


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * settings.scale * x


settings = Settings(scale=2, most=3, state=small(4))
nets = [nn.Linear(4, 4)]
optimizer = torch.optim.SGD(nets[0].parameters(), lr=0.1)


def trained(settings, rounds):
    kept = []
    for number, _ in enumerate(zip(range(rounds), [settings] * rounds, strict=True)):
        state = nets[0](settings.state).tanh()
        loss = Square.apply(state).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        settings.state = state if number == settings.most * 100 else state.detach()
        kept.append(Settings(loss=loss))
        if settings:
            print(f"{loss.item():.4f}")
    return kept


trained(settings, 8)
print(dict(asked))
try:
    loss = Square.apply(nets[0](settings.state)).sum()
    loss.backward()
    loss.backward()
except RuntimeError as error:
    print(error)
print(dict(asked))
