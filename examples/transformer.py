"""Train a small causal Transformer to sort: it reads digits and then has to say them in order.

A small network computes a bias of attention from distance ("continuous" relative positions).
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name

BATCH, COUNT, DIGITS, WIDTH, HEADS = 64, 5, 10, 32, 4
LENGTH = 2 * COUNT


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, bias):
        q, k, v = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.distance = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, HEADS))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, DIGITS)

    def attention_bias(self):
        place = torch.arange(LENGTH)
        apart = (place[:, None] - place[None, :]).float()
        bias = self.distance(apart.unsqueeze(-1) / LENGTH).permute(2, 0, 1)
        return bias.masked_fill(apart < 0, float("-inf"))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        bias = self.attention_bias()
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x[:, COUNT - 1 : -1])


def make_batch():
    digits = torch.randint(DIGITS, (BATCH, COUNT))
    answer = digits.sort(dim=1).values
    return torch.cat([digits, answer], dim=1), answer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    model = Sorter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, steps + 1):
        tokens, answer = make_batch()
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), answer.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 50 == 0:
            right = (logits.argmax(-1) == answer).float().mean().item()
            print(f"step {step:4}  loss {loss.item():.3f}  digits right {right:4.0%}")


if __name__ == "__main__":
    main()
