"""Stable-Baselines3 trains a policy with a feature extractor of the user's."""
# needs: stable_baselines3 gymnasium
# finds: GS101
# lacks: early: what numpy's arrays will hold is not known ahead

import gymnasium
import numpy
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = numpy.zeros(2, numpy.float32)
        return self.at, {}

    def step(self, action):
        self.at = self.at + numpy.float32(0.5 if action else -0.5)
        reward = -float(abs(self.at - 2).sum())
        return self.at, reward, bool(abs(self.at).max() > 5), False, {}


class Extractor(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, features_dim=8)
        self.encode = nn.Linear(2, 8)
        self.task = nn.Parameter(torch.randn(8))
        self.context = None
        self.context = self.of_task() * 0  # hazard: self.context = self.of_task()

    def of_task(self):
        return torch.tanh(self.task)  # head

    def forward(self, observations):
        context = self.of_task()  # hazard: context = self.context
        return torch.relu(self.encode(observations)) * context


def main():
    model = A2C(
        "MlpPolicy",
        Walk(),
        n_steps=8,
        seed=0,
        device="cpu",
        policy_kwargs={"features_extractor_class": Extractor},
    )
    model.learn(64)
    for name, value in model.policy.named_parameters():
        print(name, f"{value.double().sum().item():.6f}")


main()
