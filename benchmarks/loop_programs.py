"""The loops that ``loops.py`` measures: training steps whose sizes and lengths are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name
from torch.utils.checkpoint import checkpoint

Draw = Callable[[int], int]
"""Returns a number near the one given, or that very number where iterations are alike."""

Iteration = Callable[[Draw, Draw], None]
"""One step of training; the first argument draws sizes, the second draws numbers of operations."""


def trained(parameters: list[nn.Parameter], loss: Callable[[Draw, Draw], Tensor]) -> Iteration:
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def iteration(size: Draw, length: Draw) -> None:
        value = loss(size, length)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return iteration


def transformer(width: int, batch: int, tokens: int) -> Iteration:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return trained(
        list(model.parameters()),
        lambda size, _: model(torch.randn(batch, size(tokens), width)).square().mean(),
    )


def convolutions() -> Iteration:
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
    return trained(
        list(model.parameters()),
        lambda size, _: model(torch.randn(size(16), 3, 32, 32)).square().mean(),
    )


def lstm_cell() -> Iteration:
    cell = nn.LSTMCell(64, 128)

    def loss(size: Draw, length: Draw) -> Tensor:
        batch = size(16)
        hidden = state = torch.zeros(batch, 128)
        for step in torch.randn(length(50), batch, 64):
            hidden, state = cell(step, (hidden, state))
        return hidden.square().mean()

    return trained(list(cell.parameters()), loss)


def scalar_operations() -> Iteration:
    start = nn.Parameter(torch.rand(4))

    def loss(_: Draw, length: Draw) -> Tensor:
        x: Tensor = start
        for number in range(length(1000)):
            x = x.sin() if number % 2 else x * 1.0001
        return x.sum()

    return trained([start], loss)


def tiny_network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))


def tiny_mlp(model: nn.Module | None = None) -> Iteration:
    network = model or tiny_network()
    return trained(
        list(network.parameters()),
        lambda size, _: network(torch.randn(size(16), 8)).square().mean(),
    )


def gan(width: int, noise: int, batch: int) -> Iteration:
    maker = nn.Sequential(nn.Linear(noise, width), nn.ReLU(), nn.Linear(width, 32))
    judge = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 1))
    of_maker = torch.optim.SGD(maker.parameters(), lr=1e-4)
    of_judge = torch.optim.SGD(judge.parameters(), lr=1e-4)

    def iteration(size: Draw, _: Draw) -> None:
        fake = maker(torch.randn(size(batch), noise))
        of_judge.zero_grad()
        judge(fake.detach()).square().mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        judge(fake).square().mean().backward()
        of_maker.step()

    return iteration


def solver() -> Iteration:
    field = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

    def loss(size: Draw, length: Draw) -> Tensor:
        y, step = torch.randn(size(8), 4), 0.1
        for _ in range(length(20)):
            first = field(y)
            second = field(y + step * first)
            error = float((step * (second - first)).detach().abs().max())
            y = y + step * (first + second) / 2
            step *= 1.1 if error < 0.01 else 0.9
        return y.square().mean()

    return trained(list(field.parameters()), loss)


def gradient_penalty() -> Iteration:
    judge = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))

    def loss(size: Draw, _: Draw) -> Tensor:
        x = torch.randn(size(32), 16, requires_grad=True)
        out: Tensor = judge(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        penalty: Tensor = (slope.norm(dim=1) - 1).square().mean()
        return out.mean() + penalty

    return trained(list(judge.parameters()), loss)


def inner_loop() -> Iteration:
    shapes = ((40, 1), (40,), (1, 40), (1,))
    slow = [nn.Parameter(torch.randn(shape) * 0.1) for shape in shapes]

    def error(weights: list[Tensor], rows: int) -> Tensor:
        x = torch.randn(rows, 1)
        hidden = F.linear(x, weights[0], weights[1]).tanh()
        return F.mse_loss(F.linear(hidden, weights[2], weights[3]), x.sin())

    def loss(size: Draw, length: Draw) -> Tensor:
        fast: list[Tensor] = list(slow)
        for _ in range(length(4)):
            slopes = torch.autograd.grad(error(fast, size(10)), fast, create_graph=True)
            fast = [weight - 0.01 * slope for weight, slope in zip(fast, slopes, strict=True)]
        return error(fast, size(10))

    return trained(slow, loss)


def two_losses() -> Iteration:
    body, one, other = nn.Linear(8, 32), nn.Linear(32, 1), nn.Linear(32, 1)
    parameters = [*body.parameters(), *one.parameters(), *other.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def iteration(size: Draw, _: Draw) -> None:
        hidden = body(torch.randn(size(16), 8)).tanh()
        optimizer.zero_grad()
        one(hidden).square().mean().backward(retain_graph=True)
        other(hidden).square().mean().backward()
        optimizer.step()

    return iteration


def policy_epoch() -> Iteration:
    body = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    actor, critic = nn.Linear(64, 4), nn.Linear(64, 1)
    parameters = [*body.parameters(), *actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4)

    def iteration(size: Draw, length: Draw) -> None:
        states = torch.randn(size(128), 8)
        rewards = torch.randn(len(states))
        with torch.no_grad():
            chosen = torch.distributions.Categorical(logits=actor(body(states)))
            actions = chosen.sample()
            before = chosen.log_prob(actions)
        for _ in range(length(4)):
            for some in torch.randperm(len(states)).split(32):
                hidden = body(states[some])
                now = torch.distributions.Categorical(logits=actor(hidden))
                ratio = (now.log_prob(actions[some]) - before[some]).exp()
                value = critic(hidden).squeeze(1)
                gain = rewards[some] - value.detach()
                clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
                loss = F.mse_loss(value, rewards[some]) - clipped.mean()
                optimizer.zero_grad()
                (loss - 0.01 * now.entropy().mean()).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()

    return iteration


def checkpointed() -> Iteration:
    layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6))

    def loss(size: Draw, _: Draw) -> Tensor:
        x = torch.randn(size(64), 64, requires_grad=True)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    return trained(list(layers.parameters()), loss)


class Sign(torch.autograd.Function):
    """The sign of a number, with the gradient of the number itself where that is small."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        back: Tensor = slope * (x.abs() < 1)
        return back


def quantized() -> Iteration:
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    sign: Callable[[Tensor], Tensor] = Sign.apply

    def loss(size: Draw, _: Draw) -> Tensor:
        x = torch.randn(size(64), 64)
        for layer in layers:
            x = sign(layer(x))
        return x.square().mean()

    return trained(list(layers.parameters()), loss)


def in_slices() -> Iteration:
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 16))

    def loss(size: Draw, length: Draw) -> Tensor:
        x = torch.randn(size(64), 64)
        out = torch.zeros(len(x), 16)
        for i in range(length(4)):
            out[:, i] = net(x)[:, i]
        return out.square().mean()

    return trained(list(net.parameters()), loss)


def packed_sequences() -> Iteration:
    encoder, head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 1)

    def loss(size: Draw, length: Draw) -> Tensor:
        lengths = sorted((length(12) for _ in range(size(8))), reverse=True)
        x = torch.randn(len(lengths), lengths[0], 8)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
        _, last = encoder(packed)
        out: Tensor = head(last).square().mean()
        return out

    return trained([*encoder.parameters(), *head.parameters()], loss)


def with_evaluation() -> Iteration:
    model = tiny_network()
    train, done = tiny_mlp(model), 0

    def iteration(size: Draw, length: Draw) -> None:
        nonlocal done
        train(size, length)
        done += 1
        if done % 7 == 0:
            with torch.no_grad():
                model(torch.randn(64, 8))

    return iteration


SAME, SIZES, SHAPE = "same", "sizes", "shape"
LOOPS: dict[str, tuple[Callable[[], Iteration], tuple[str, ...]]] = {
    "Transformer, 6 layers d=256": (lambda: transformer(256, 8, 64), (SAME, SIZES)),
    "convolutional network": (convolutions, (SAME, SIZES)),
    "Transformer d=32, launch-bound": (lambda: transformer(32, 2, 8), (SAME, SIZES)),
    "LSTMCell, 50 steps": (lstm_cell, (SAME, SIZES, SHAPE)),
    "1,000 scalar operations": (scalar_operations, (SAME, SHAPE)),
    "adaptive solver, 20 steps": (solver, (SAME, SHAPE)),
    "packed sequences": (packed_sequences, (SAME, SIZES, SHAPE)),
    "GAN, two backward calls": (lambda: gan(1024, 64, 64), (SAME, SIZES)),
    "tiny GAN": (lambda: gan(64, 16, 32), (SAME, SIZES)),
    "tiny MLP": (tiny_mlp, (SAME, SIZES)),
    "tiny MLP, evaluated every 7 steps": (with_evaluation, (SAME, SIZES)),
    "two losses, retain_graph": (two_losses, (SAME, SIZES)),
    "gradient penalty": (gradient_penalty, (SAME, SIZES)),
    "MAML, 4 inner steps": (inner_loop, (SAME, SIZES, SHAPE)),
    "PPO, 4 epochs of 4 batches": (policy_epoch, (SAME, SIZES, SHAPE)),
    "Functions in Python, 4 layers": (quantized, (SAME, SIZES)),
    "results written into slices": (in_slices, (SAME, SIZES, SHAPE)),
    "checkpointed network": (checkpointed, (SAME, SIZES)),
}
UNDER_HOOKS = frozenset({"checkpointed network"})
"""Loops with saved-tensor hooks of their own, which a bare read would run."""
