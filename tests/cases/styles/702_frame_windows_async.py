# expect: {"error": "double_backward", "raise_line": 49, "culprit_line": 35, "culprit_also": [46], "free_line": 49, "hold_line": 35, "leak": false, "loop_line": 46, "fix": "detach", "patch": {"41": "            outputs, truth, state = [], [], state.detach()"}, "group": "async generator"}
# Online tracking of a frame stream: an async generator cuts the stream into windows and keeps the recurrent state between them.
# Mended: Online tracking of a frame stream: the async generator passes its recurrent state through a helper at the end of every window.

import asyncio

import torch
import torch.nn.functional as F
from torch import nn


class Tracker(nn.Module):
    def __init__(self, features=6, hidden=12):
        super().__init__()
        self.cell = nn.GRUCell(features, hidden)
        self.readout = nn.Linear(hidden, 2)

    def initial(self, batch):
        return torch.zeros(batch, self.cell.hidden_size)


# + def at_boundary(*carried):
# +     return tuple(value.detach() for value in carried)
async def camera(frames, batch=4):
    position = torch.zeros(batch, 2)
    for _ in range(frames):
        await asyncio.sleep(0)
        position = position + 0.1 * torch.randn(batch, 2)
        yield torch.cat([position, torch.randn(batch, 4)], dim=1), position


async def windows(stream, tracker, length=5):
    state, outputs, truth = tracker.initial(4), [], []
    async for frame, position in stream:
        state = tracker.cell(frame, state)
        outputs.append(tracker.readout(state))
        truth.append(position)
        if len(outputs) == length:
            yield torch.stack(outputs), torch.stack(truth)
            # + (state,) = at_boundary(state)
            outputs, truth = [], []


async def train(tracker, opt):
    errors = []
    async for guess, truth in windows(camera(frames=40), tracker):
        loss = F.smooth_l1_loss(guess, truth)
        opt.zero_grad()
        loss.backward()
        opt.step()
        errors.append(loss.item())
    return errors


torch.manual_seed(11)
tracker = Tracker()
errors = asyncio.run(train(tracker, torch.optim.SGD(tracker.parameters(), lr=0.05)))
print(f"{len(errors)} windows, last error {errors[-1]:.4f}")
