# found: GS604
import torch
from torch import multiprocessing, nn

net = nn.Linear(4, 4)


def score(row):
    return net(row).sum()  # error: GS604


if __name__ == "__main__":
    torch.manual_seed(0)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(score, torch.randn(3, 4)))
