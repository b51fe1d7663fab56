# found: GS604 `rollout['value']`
import queue

import torch
from torch import multiprocessing, nn

torch.manual_seed(0)
critic = nn.Linear(4, 1)
rollouts = multiprocessing.get_context("fork").Queue()
states = torch.randn(6, 4)
value = critic(states).squeeze(1)  # note: its graph was made here
rollout = {"states": states, "value": value}  # note: stored here
rollouts.put(rollout)  # error: GS604
try:
    print(rollouts.get(timeout=2))
except queue.Empty:
    print("nothing came")
