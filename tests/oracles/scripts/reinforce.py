"""REINFORCE on a corridor, with a backward call for every step of an episode."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

GAMMA = 0.95


class Corridor:
    def reset(self):
        self.at, self.time = 3, 0
        return self.observe()

    def observe(self):
        return F.one_hot(torch.tensor(self.at), 7).float()

    def step(self, action):
        self.at = min(6, max(0, self.at + (1 if action == 1 else -1)))
        self.time += 1
        over = self.at == 6 or self.time == 15
        return self.observe(), float(self.at == 6) - 0.01 * random.random(), over


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.data = []
        self.layers = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.Adam(self.parameters(), lr=5e-3)

    def forward(self, x):
        return F.softmax(self.layers(x), dim=-1)

    def put(self, item):
        self.data.append(item)

    def train_net(self):
        ret = 0.0
        self.optimizer.zero_grad()
        for reward, log_prob in self.data[::-1]:
            ret = reward + GAMMA * ret
            loss = -log_prob * ret
            loss.backward()
        self.optimizer.step()
        self.data = []


env, policy, score = Corridor(), Policy(), 0.0
for episode in range(12):
    state, over = env.reset(), False
    while not over:
        choice = Categorical(policy(state))
        action = choice.sample()
        state, reward, over = env.step(action.item())
        policy.put((reward, choice.log_prob(action)))
        score += reward
    policy.train_net()
    if episode % 4 == 3:
        print(f"episode {episode + 1} mean score {score / 4:.3f}")
        score = 0.0
