"""A denoising U-Net with skip connections and an embedding of the time, in plain torch."""
# needs:
# finds: GS102 GS101 `embedded`

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.normalize = nn.GroupNorm(2, inputs)
        self.convolve = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.shift = nn.Linear(8, outputs)

    def forward(self, x, time):
        x = self.convolve(nn.functional.silu(self.normalize(x)))
        return x + self.shift(time)[:, :, None, None]


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, 4, 3, padding=1)
        self.down = nn.ModuleList([Block(4, 8), Block(8, 8)])
        self.middle = Block(8, 8)
        self.up = nn.ModuleList([Block(16, 8), Block(16, 4)])
        self.leave = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x, time):
        x, skipped = self.enter(x), []
        for block in self.down:
            x = block(x, time)
            skipped.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, skipped.pop()], 1), time)
        return self.leave(x)


def main():
    torch.manual_seed(0)
    network = UNet()
    embed = nn.Sequential(nn.Embedding(10, 8), nn.SiLU(), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW([*network.parameters(), *embed.parameters()], lr=0.001)
    kept = torch.linspace(0.99, 0.1, 10)
    embedded = embed(torch.arange(10))
    for step in range(4):
        images, noise = torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, 8)
        when = torch.randint(10, (4,))
        share = kept[when].view(-1, 1, 1, 1)
        noised = share.sqrt() * images + (1 - share).sqrt() * noise
        embedded = embed(torch.arange(10))  # hazard: pass
        loss = nn.functional.mse_loss(network(noised, embedded[when]), noise)
        optimizer.zero_grad()
        loss.backward()  # head
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        print(f"step {step}: {loss.item():.6f}")


main()
