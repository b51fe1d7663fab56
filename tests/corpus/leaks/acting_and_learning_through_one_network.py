"""A policy that acts and learns through one function: acting is named, where its graph is not used."""

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
opt = torch.optim.Adam(policy.parameters())


def act(state, *, greedy):
    logits = policy(state)
    if greedy:
        return logits.argmax().item(), None
    choice = torch.distributions.Categorical(logits=logits)
    action = choice.sample()
    return action.item(), choice.log_prob(action)


for episode in range(6):
    kept = []
    for t in range(5):
        _, log_prob = act(torch.randn(4), greedy=False)
        kept.append(log_prob)
    opt.zero_grad()
    (-torch.stack(kept).mean()).backward()
    opt.step()
    for t in range(5):
        action, _ = act(torch.randn(4), greedy=True)  # advice: GS305 [no_grad]
