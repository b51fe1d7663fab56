# expect: {"error": "double_backward", "raise_line": 48, "culprit_line": 22, "culprit_also": [33, 47], "free_line": 48, "leak": false, "loop_line": 47, "fix": "sum_losses", "fix_also": ["recompute", "retain_graph"], "patch": {"47": "    losses = list(task_losses(model, tokens, tags))\n    sum(loss for _, loss in losses).backward()\n    for task, loss in losses:", "48": ""}, "group": "generator"}
# Multi-task sequence tagger: a generator encodes the sentence once and yields one loss per task; each is run backward as it comes.
# Mended: Multi-task sequence tagger: a generator yields one loss per task, each over its own pass of the encoder.

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

TASKS = {"pos": 5, "ner": 3, "chunk": 4}


class Tagger(nn.Module):
    def __init__(self, vocab=50, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.heads = nn.ModuleDict({task: nn.Linear(dim, size) for task, size in TASKS.items()})

    def encode(self, tokens):
        hidden, _ = self.encoder(self.embed(tokens))
        return hidden


def batches(count, size=6, length=9):
    for _ in range(count):
        tokens = torch.randint(0, 50, (size, length))
        yield tokens, {task: torch.randint(0, n, (size, length)) for task, n in TASKS.items()}


def task_losses(model, tokens, tags):
    hidden = model.encode(tokens)  # -
    for task, head in model.heads.items():
        logits = head(hidden)  # -
        # + logits = head(model.encode(tokens))
        yield task, F.cross_entropy(logits.flatten(0, 1), tags[task].flatten())


torch.manual_seed(7)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
history = defaultdict(list)

for step, (tokens, tags) in enumerate(batches(6)):
    opt.zero_grad()
    for task, loss in task_losses(model, tokens, tags):
        loss.backward()
        history[task].append(loss.item())
    opt.step()

print({task: round(sum(values) / len(values), 3) for task, values in history.items()})
