"""A DataLoader whose workers are started by fork and by spawn, and which build graphs themselves."""

import torch
from _show import show, small
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        x = small(4, seed=index).requires_grad_()
        x.exp().sum().backward()
        return x.grad, index


def main(start):
    w = small(4).requires_grad_()
    loader = DataLoader(Numbers(), batch_size=3, num_workers=2, multiprocessing_context=start)
    for x, index in loader:
        (x @ w).sin().sum().backward()
        show(str(index.tolist()), x, w.grad)
    w.grad = None
    print(torch.initial_seed() == torch.default_generator.initial_seed())


if __name__ == "__main__":
    main("fork")
    main("spawn")
