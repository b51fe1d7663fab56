"""A classifier with a flag for everything, most of them off."""

import argparse
import contextlib

import torch
from torch import nn


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--arch", choices=["mlp", "rnn"], default="rnn")
    parser.add_argument("--aux-weight", type=float, default=0.0)
    parser.add_argument("--adversarial", action="store_true")
    parser.add_argument("--penalty", action="store_true")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--truncate", type=int, default=1)
    parser.add_argument("--debug", action="store_true")
    return parser.parse_args()


def main(args):
    cell = (
        nn.GRU(4, 8, batch_first=True)
        if args.arch == "rnn"
        else nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    )
    head, aux = nn.Linear(8, 3), nn.Linear(8, 4)
    params = [*cell.parameters(), *head.parameters(), *aux.parameters()]
    optimizer = torch.optim.Adam(params, lr=1e-2)
    state, previous, best = None, None, float("inf")
    for step in range(args.steps):
        x, y = torch.randn(6, 5, 4), torch.randint(3, (6,))
        if args.adversarial:
            x.requires_grad_(True)
        if state is not None and step % args.truncate == 0:
            state = state.detach()
        with torch.autograd.detect_anomaly() if args.debug else contextlib.nullcontext():
            if args.arch == "rnn":
                features, state = cell(x, state)
            else:
                features = cell(x)
            loss = nn.functional.cross_entropy(head(features[:, -1]), y)
            if args.aux_weight and previous is not None:
                loss = loss + args.aux_weight * (aux(features) - previous).square().mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=args.penalty)
        if args.penalty:
            (slope,) = torch.autograd.grad(loss, head.weight, create_graph=True)
            slope.square().sum().backward()
        if args.adversarial:
            worse = (x + 0.1 * x.grad.sign()).detach()
            nn.functional.cross_entropy(head(cell(worse)[0][:, -1]), y).backward()
        optimizer.step()
        previous = x.detach() if args.aux_weight else None
        if (step + 1) % args.log_every == 0:
            print(f"step {step + 1:3d} loss {loss.item():.4f} best {best:.4f}")
        if (step + 1) % args.eval_every == 0:
            with torch.no_grad():
                out = cell(torch.ones(1, 5, 4))
                out = out[0] if args.arch == "rnn" else out
                best = min(best, head(out[:, -1]).logsumexp(1).item())


if __name__ == "__main__":
    main(parse())
