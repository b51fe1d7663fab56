# expect: {"error": null, "raise_line": null, "culprit_line": null, "free_line": null, "leak": false, "loop_line": 44, "fix": "none", "group": "generator"}
# Multi-task sequence tagger: a generator yields one loss per task, each over its own pass of the encoder.

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
    for task, head in model.heads.items():
        logits = head(model.encode(tokens))
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
