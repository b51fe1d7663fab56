"""A function takes several steps of gradient from the log-probabilities that it has collected."""
# fix: recompute

import torch
from torch.distributions import Categorical

net = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def train(epochs):
    state = torch.zeros(4)
    logps, rewards = [], []
    while len(rewards) < 6:
        distribution = Categorical(logits=net(state))
        action = distribution.sample()
        logps.append(distribution.log_prob(action))
        rewards.append(float(action == 1))
        state = state + 1
        if state[0] > 9:
            break
    returns = [sum(rewards[i:]) for i in range(len(rewards))]
    for _ in range(epochs):
        loss = -sum(logp * reward for logp, reward in zip(logps, returns))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert len(logps) == len(returns) == 6


train(2)
