"""Advantage actor-critic with shared layers, an entropy bonus, and rollouts without gradients."""

from collections import namedtuple

import torch
from torch import nn

Saved = namedtuple("Saved", ["log_prob", "value"])


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 20)
        self.actor, self.critic = nn.Linear(20, 3), nn.Linear(20, 1)
        self.saved_actions, self.rewards = [], []

    def forward(self, x):
        x = torch.relu(self.shared(x))
        return torch.softmax(self.actor(x), -1), self.critic(x)


model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
drift = torch.randn(3, 4) * 0.3


def select_action(state):
    probs, value = model(state)
    m = torch.distributions.Categorical(probs)
    action = m.sample()
    model.saved_actions.append(Saved(m.log_prob(action) + 0.01 * m.entropy(), value))
    return action.item()


def finish_episode():
    total, policy_losses, value_losses, returns = 0, [], [], []
    for r in model.rewards[::-1]:
        total = r + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    for (log_prob, value), target in zip(model.saved_actions, returns):
        advantage = target - value.item()
        policy_losses.append(-log_prob * advantage)
        value_losses.append(nn.functional.smooth_l1_loss(value, target.view(1)))
    optimizer.zero_grad()
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    loss.backward()
    optimizer.step()
    del model.rewards[:]
    del model.saved_actions[:]
    return loss.item()


running = 0.0
for episode in range(16):
    state = torch.zeros(4)
    for _ in range(10):
        action = select_action(state)
        state = 0.9 * state + drift[action] + 0.05 * torch.randn(4)
        model.rewards.append(-state.pow(2).sum().item())
    running = 0.9 * running + 0.1 * finish_episode()
    if not episode % 5:
        print("episode", episode, "running loss", f"{running:.4f}")
