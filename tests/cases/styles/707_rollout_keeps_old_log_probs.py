# expect: {"error": "double_backward", "raise_line": 64, "culprit_line": 46, "culprit_also": [22, 38, 49, 56], "free_line": 64, "hold_line": 56, "leak": false, "loop_line": 59, "fix": "no_grad", "fix_also": ["detach"], "patch": {"56": "    with torch.no_grad():\n        batch = collect(agent)"}, "group": "rollout object"}
# PPO with several epochs over one rollout object, which collected log-probabilities and values while acting.
# Mended: PPO with several epochs over one rollout object, whose columns come out of it without their graphs.

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributions import Normal


class Rollout:
    FIELDS = ("obs", "action", "log_prob", "value", "reward")

    def __init__(self):
        self.steps = []

    def record(self, **fields):
        self.steps.append(SimpleNamespace(**fields))

    def column(self, name):
        return torch.stack([getattr(step, name) for step in self.steps])  # -
        # + return torch.stack([getattr(step, name).detach() for step in self.steps])

    def as_batch(self):
        return SimpleNamespace(**{name: self.column(name) for name in self.FIELDS})


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.mean, self.value = nn.Linear(16, 1), nn.Linear(16, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, obs):
        h = self.body(obs)
        return Normal(self.mean(h), self.log_std.exp()), self.value(h).squeeze(-1)


def collect(agent, length=10):
    rollout, obs = Rollout(), torch.randn(4)
    for _ in range(length):
        dist, value = agent(obs)
        action = dist.sample()
        log_prob = dist.log_prob(action).sum()
        rollout.record(obs=obs, action=action, log_prob=log_prob, value=value, reward=-obs.abs().sum())
        obs = 0.9 * obs + 0.1 * action + 0.05 * torch.randn(4)
    return rollout.as_batch()


torch.manual_seed(17)
agent = ActorCritic()
opt = torch.optim.Adam(agent.parameters(), lr=3e-4)
for iteration in range(2):
    batch = collect(agent)
    for epoch in range(3):
        dist, value = agent(batch.obs)
        ratio = (dist.log_prob(batch.action).sum(-1) - batch.log_prob).exp()
        advantage = (batch.reward - batch.value).detach()
        policy_loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = policy_loss + 0.5 * (value - batch.reward).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(iteration, f"{loss.item():.4f}")
