# found: GS604
import torch
from torch import multiprocessing, nn


def score(row):
    return float(row.sum())


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    rows = net(torch.randn(3, 4)).unbind(0)  # note: its graph was made here
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(score, rows))  # error: GS604
