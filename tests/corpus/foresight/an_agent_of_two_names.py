"""What an agent remembers is dropped under the name that its method has for it; outside it has another."""

import torch
from torch import nn
torch.manual_seed(0)

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.layer = [], nn.Linear(3, 1)
    def remember(self, item):
        self.memory.append(item)
    def learn(self):
        total = 0.0
        for reward, value in self.memory[::-1]:
            total = reward + 0.9 * total
            loss = (value - total).pow(2).mean()
            loss.backward()
        self.memory = []
agent = Agent()
for episode in range(3):
    for step in range(4):
        agent.remember((1.0, agent.layer(torch.randn(1, 3))))
    agent.learn()
