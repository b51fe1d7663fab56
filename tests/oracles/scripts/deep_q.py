"""Deep Q-learning with a replay memory, a target network, and a soft update in place."""

import copy
import random
from collections import deque

import torch
from torch import nn

online = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 2))
target = copy.deepcopy(online)
optimizer = torch.optim.AdamW(online.parameters(), lr=2e-3, amsgrad=True)
memory = deque(maxlen=200)
steps_done = 0


def act(state):
    global steps_done
    steps_done += 1
    if random.random() < 0.9 * 0.99**steps_done:
        return random.randrange(2)
    with torch.no_grad():
        return online(state).argmax().item()


def optimize():
    if len(memory) < 32:
        return None
    batch = random.sample(memory, 32)
    states, actions, rewards, following = map(list, zip(*batch))
    value = online(torch.stack(states)).gather(1, torch.tensor(actions).unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = target(torch.stack(following)).max(1).values
    expected = torch.tensor(rewards) + 0.9 * best
    loss = nn.functional.smooth_l1_loss(value, expected)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(online.parameters(), 1.0)
    optimizer.step()
    for slow, fast in zip(target.parameters(), online.parameters()):
        slow.data.copy_(0.05 * fast.data + 0.95 * slow.data)
    return loss


state, last = torch.zeros(3), None
for t in range(90):
    action = act(state)
    following = torch.tanh(state + (action - 0.5) + 0.1 * torch.randn(3))
    memory.append((state, action, float(following[0] > 0.3), following))
    state = following
    loss = optimize()
    last = loss if loss is not None else last
    if t % 30 == 29:
        shown = "no loss yet" if last is None else f"loss {last:.4f}"
        print(f"step {t + 1}: {shown}, memory {len(memory)}")
