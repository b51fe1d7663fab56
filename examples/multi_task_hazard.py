"""One encoder, two heads: name the kind of a noisy curve and its frequency."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name

BATCH, POINTS = 64, 32


def make_batch(count: int):
    """Sine, square and triangle waves of random frequency and phase, with noise."""
    kind = torch.randint(3, (count,))
    frequency = 1 + 2 * torch.rand(count, 1)
    angle = 2 * math.pi * (frequency * torch.linspace(0, 1, POINTS) + torch.rand(count, 1))
    sine = angle.sin()
    waves = torch.stack([sine, sine.sign(), 2 / math.pi * sine.asin()])
    curves = waves[kind, torch.arange(count)] + 0.05 * torch.randn(count, POINTS)
    return curves, kind, frequency - 2


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=2), nn.ReLU(), nn.Flatten()
        )
        self.kind = nn.Linear(16 * 14, 3)
        self.frequency = nn.Sequential(nn.Linear(16 * 14, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, curves):
        features = self.encoder(curves.unsqueeze(1))
        return self.kind(features), self.frequency(features)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    model = MultiTask()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(1, steps + 1):
        curves, kind, frequency = make_batch(BATCH)
        kind_scores, guessed_frequency = model(curves)
        kind_loss = F.cross_entropy(kind_scores, kind)
        frequency_loss = F.mse_loss(guessed_frequency, frequency)
        optimizer.zero_grad()
        kind_loss.backward()
        frequency_loss.backward()
        optimizer.step()
        if step == 1 or step % 50 == 0:
            right = (kind_scores.argmax(1) == kind).float().mean().item()
            print(f"step {step:4}  kind {kind_loss.item():.3f} ({right:4.0%})  frequency {frequency_loss.item():.3f}")


if __name__ == "__main__":
    main()
