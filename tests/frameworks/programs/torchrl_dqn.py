"""Deep Q-learning with the losses and buffers of torchrl."""
# needs: torchrl tensordict
# finds: GS101
# lacks: early: what a tensordict will hold is not known ahead

import logging

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import LazyTensorStorage, OneHot, TensorDictReplayBuffer
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate


def main():
    logging.getLogger("torchrl").setLevel(logging.ERROR)
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
    actor = QValueActor(nn.Linear(8, 2), in_keys=["features"], spec=OneHot(2))
    objective = DQNLoss(actor, action_space=OneHot(2), delay_value=True)
    objective.make_value_estimator(gamma=0.9)
    follow = SoftUpdate(objective, eps=0.9)
    optimizer = torch.optim.Adam([*objective.parameters(), *encoder.parameters()], lr=0.01)

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(64), batch_size=8)
    for _ in range(32):
        buffer.add(
            TensorDict(
                {
                    "seen": torch.randn(3),
                    "action": nn.functional.one_hot(torch.randint(2, ()), 2),
                    "after": torch.randn(3),
                    "reward": torch.randn(1),
                    "done": torch.zeros(1, dtype=torch.bool),
                    "terminated": torch.zeros(1, dtype=torch.bool),
                }
            )
        )
    states = torch.zeros(8, 8)
    for step in range(5):
        batch = buffer.sample()
        states = 0.5 * states + encoder(batch["seen"])
        batch["features"] = states
        batch["next"] = TensorDict(
            {
                "features": encoder(batch["after"]).detach(),
                "reward": batch["reward"],
                "done": batch["done"],
                "terminated": batch["terminated"],
            },
            batch.batch_size,
        )
        loss = objective(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()  # head
        optimizer.step()
        follow.step()
        states = states.detach()  # hazard: pass
        print(f"step {step}: {loss.item():.6f}")


main()
