# expect: {"error": "double_backward", "raise_line": 48, "culprit_line": 19, "culprit_also": [18, 33, 45], "free_line": 48, "hold_line": 45, "leak": false, "loop_line": 45, "fix": "detach", "patch": {"45": "    world = replace(world, pos=world.pos.detach(), vel=world.vel.detach())\n    world, cost = rollout(world, policy, goal)"}, "group": "frozen dataclass"}
# Policy search in a differentiable simulator: the world is an immutable dataclass; every update goes on from the last one's end.
# Mended: Policy search through a differentiable simulator: the immutable world is settled (cut from its past) before every update.

from dataclasses import dataclass, replace

import torch
from torch import nn


@dataclass(frozen=True)
class World:
    pos: torch.Tensor
    vel: torch.Tensor
    time: float = 0.0

    def advanced(self, force, dt=0.05):
        vel = self.vel + dt * (force - 0.1 * self.vel)
        return replace(self, vel=vel, pos=self.pos + dt * vel, time=self.time + dt)

    @property
    def observation(self):
        return torch.cat([self.pos, self.vel], dim=-1)

    # + def settled(self):
    # +     loose = {name: value.detach() for name, value in vars(self).items() if torch.is_tensor(value)}
    # +     return replace(self, **loose)

def rollout(world, policy, goal, horizon=4):
    cost = torch.zeros(())
    for _ in range(horizon):
        force = policy(world.observation)
        world = world.advanced(force)
        cost = cost + (world.pos - goal).square().mean() + 1e-3 * force.square().mean()
    return world, cost / horizon


torch.manual_seed(5)
goal = torch.tensor([1.0, -0.5])
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
world = World(pos=torch.randn(8, 2), vel=torch.zeros(8, 2))

for update in range(6):
    world, cost = rollout(world, policy, goal)  # -
    # + world, cost = rollout(world.settled(), policy, goal)
    opt.zero_grad()
    cost.backward()
    opt.step()
    if update % 2 == 0:
        print(f"t={world.time:.2f} cost={cost.item():.4f}")
