# expect: {"error": "double_backward", "raise_line": 58, "culprit_line": 39, "culprit_also": [24, 42, 52], "free_line": 58, "hold_line": 24, "leak": false, "loop_line": 52, "fix": "no_grad", "fix_also": ["detach"], "patch": {"39": "    with torch.no_grad():\n        target = reward + gamma * q(following).max()"}, "group": "heapq"}
# Q-learning with linear features and a priority heap: the bootstrapped target is stored with each transition when it is pushed.
# Mended: Q-learning with linear features and a priority heap: the stored targets come from a helper that records no graph.

import heapq
from itertools import count
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Transition(NamedTuple):
    features: torch.Tensor
    action: int
    target: torch.Tensor


class PriorityReplay:
    def __init__(self, capacity):
        self.capacity, self.heap, self.order = capacity, [], count()

    def push(self, priority, transition):
        heapq.heappush(self.heap, (priority, next(self.order), transition))
        if len(self.heap) > self.capacity:
            heapq.heappop(self.heap)

    def best(self, n):
        return [entry[-1] for entry in heapq.nlargest(n, self.heap)]


# + @torch.no_grad()
# + def bootstrap(q, reward, features, gamma):
# +     return reward + gamma * q(features).max()
def push_experience(q, replay, gamma=0.9):
    features, following = torch.randn(8), torch.randn(8)
    action = int(q(features).argmax())
    reward = features[action] - 0.1 * features.abs().sum()
    target = reward + gamma * q(following).max()  # -
    # + target = bootstrap(q, reward, following, gamma)
    surprise = (target - q(features)[action]).abs().item()
    replay.push(surprise, Transition(features, action, target))


torch.manual_seed(37)
q = torch.nn.Linear(8, 3)
opt = torch.optim.SGD(q.parameters(), lr=0.02)
replay = PriorityReplay(capacity=12)

for step in range(10):
    for _ in range(3):
        push_experience(q, replay)
    batch = Transition(*zip(*replay.best(4)))
    values = q(torch.stack(batch.features))
    chosen = values.gather(1, torch.tensor(batch.action)[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(chosen, torch.stack(batch.target))
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{len(replay.heap)} kept, loss {loss.item():.4f}")
