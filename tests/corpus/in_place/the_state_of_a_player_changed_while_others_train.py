"""The state of a player, changed while others train."""

import torch
from torch import nn
torch.manual_seed(0)

class Player:
    def __init__(self):
        self.value, self.visits = torch.zeros(3), torch.zeros(3)
    def see(self, reward):
        self.visits += 1
        self.value += (reward - self.value) / self.visits
policy, player = nn.Linear(3, 3), Player()
for _ in range(3):
    logits = policy(torch.randn(3))
    reward = torch.rand(3)
    advantage = reward - player.value
    player.see(reward)
    loss = -(logits.log_softmax(0) * advantage).sum()
    loss.backward()
