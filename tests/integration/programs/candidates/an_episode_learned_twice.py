"""An agent updates twice from the log-probabilities of one episode."""
# fix: recompute

import torch
from torch.distributions import Categorical


class Agent:
    def __init__(self):
        self.net = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.logps = []
        self.rewards = []
        self.returns = []

    def play(self, steps):
        for _ in range(steps):
            distribution = Categorical(logits=self.net(torch.randn(4)))
            action = distribution.sample()
            self.logps.append(distribution.log_prob(action))
            self.rewards.append(float(action == 1))
        self.returns.append(sum(self.rewards))

    def learn(self):
        loss = torch.zeros(())
        for logp, reward in zip(self.logps, self.rewards):
            loss = loss - logp * reward
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


agent = Agent()
agent.play(5)
for _ in range(3):
    agent.learn()
assert len(agent.logps) == 5
assert len(agent.returns) == 3 or agent.returns == []
