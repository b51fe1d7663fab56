"""Runs backward in the workers of a pool, which ends them when the last result is there."""

import multiprocessing

import torch


def gradient(_: int) -> float:
    x = torch.ones(3, requires_grad=True)
    (x * x).sum().backward()
    return float(x.grad.sum())


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(gradient, range(100), chunksize=5)))
