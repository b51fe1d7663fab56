"""Bit-for-bit training with several optimizers, schedulers, gradient accumulation, EMA and random numbers."""

import torch
from _show import show, small
from torch import nn

for kind, foreach in (
    (torch.optim.SGD, True),
    (torch.optim.AdamW, False),
    (torch.optim.RMSprop, True),
    (torch.optim.Adagrad, False),
):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(144, 2),
    )
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = kind(net.parameters(), lr=0.01, foreach=foreach)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for step in range(4):
        for half in range(2):
            loss = (
                nn.functional.cross_entropy(
                    net(small(4, 1, 8, 8, seed=step + half)), torch.tensor([0, 1, 0, 1])
                )
                / 2
            )
            loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.update_parameters(net)
        print(kind.__name__, step, loss.item().hex())
    show("weights", *net.parameters(), *net.buffers(), *average.parameters())
    show("random", torch.rand(3), torch.get_rng_state())
