"""Train a generator to throw points onto a ring, against a discriminator that knows the ring."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name

BATCH, NOISE = 128, 8


def real_points(count: int):
    angle = torch.rand(count) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], dim=1) * 2 + 0.05 * torch.randn(count, 2)


def distance_to_ring(points):
    return (points.norm(dim=1) - 2).abs().mean().item()


def mlp(inputs: int, outputs: int):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    generator, discriminator = mlp(NOISE, 2), mlp(2, 1)
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    for step in range(1, steps + 1):
        real, fake = real_points(BATCH), generator(torch.randn(BATCH, NOISE))

        d_loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()

        g_loss = F.softplus(-discriminator(fake)).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()
        if step == 1 or step % 100 == 0:
            print(
                f"step {step:4}  discriminator {d_loss.item():.3f}  generator {g_loss.item():.3f}"
                f"  off the ring by {distance_to_ring(fake.detach()):.3f}"
            )


if __name__ == "__main__":
    main()
