"""Advantage actor-critic on a corridor: walkers start anywhere and look for the door."""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F  # noqa: N812 - torch's own name

LENGTH, DOOR, WALKERS, HORIZON, DISCOUNT = 12, 8, 32, 16, 0.95


class ActorCritic(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LENGTH, width), nn.Tanh())
        self.actor = nn.Linear(width, 2)
        self.critic = nn.Sequential(nn.Linear(LENGTH, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, place):
        seen = F.one_hot(place, LENGTH).float()
        return Categorical(logits=self.actor(self.body(seen))), self.critic(seen).squeeze(-1)


def roll_out(model):
    """Let all walkers walk; yield the log-probabilities, values and rewards of each step."""
    place = torch.randint(LENGTH, (WALKERS,))
    log_probs, values, rewards = [], [], []
    for _ in range(HORIZON):
        policy, value = model(place)
        action = policy.sample()
        place = (place + 2 * action - 1).clamp(0, LENGTH - 1)
        at_door = place == DOOR
        log_probs.append(policy.log_prob(action))
        values.append(value)
        rewards.append(at_door.float())
        place = torch.where(at_door, torch.randint(LENGTH, (WALKERS,)), place)
    return torch.stack(log_probs), torch.stack(values), torch.stack(rewards)


def discounted(rewards):
    returns, total = torch.zeros_like(rewards), torch.zeros(WALKERS)
    for t in reversed(range(HORIZON)):
        total = rewards[t] + DISCOUNT * total
        returns[t] = total
    return returns


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    model = ActorCritic()
    actor_optimizer = torch.optim.Adam([*model.body.parameters(), *model.actor.parameters()], lr=1e-2)
    critic_optimizer = torch.optim.Adam(model.critic.parameters(), lr=1e-2)
    for step in range(1, steps + 1):
        log_probs, values, rewards = roll_out(model)
        advantages = discounted(rewards) - values

        critic_loss = advantages.square().mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()

        actor_loss = -(log_probs * advantages.detach()).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        if step == 1 or step % 25 == 0:
            doors = rewards.sum().item() / WALKERS
            print(f"step {step:4}  critic {critic_loss.item():.3f}  doors found per walker {doors:.2f}")


if __name__ == "__main__":
    main()
