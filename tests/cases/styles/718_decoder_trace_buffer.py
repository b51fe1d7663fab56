# expect: {"error": "inplace", "raise_line": 56, "culprit_line": 36, "culprit_also": [35, 42, 43], "free_line": null, "mutate_line": 19, "leak": false, "loop_line": 54, "fix": "clone", "patch": {"24": "        return self.buffer[: self.filled].clone()"}, "group": "dataclass buffers"}
# Autoregressive decoder with a preallocated trace: a dataclass buffer, made by default_factory, is filled row by row and attended to.
# Mended: Autoregressive decoder with a trace: a dataclass list, made by default_factory, grows row by row and is stacked to be attended to.

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Trace:
    buffer: torch.Tensor = field(default_factory=lambda: torch.zeros(8, 6))  # -
    # + rows: list = field(default_factory=list)
    filled: int = 0

    def write(self, row):
        self.buffer[self.filled] = row  # -
        # + self.rows.append(row)
        self.filled += 1

    def read(self):
        return self.buffer[: self.filled]  # -
        # + return torch.stack(self.rows[: self.filled])


class Decoder(nn.Module):
    def __init__(self, dim=6, vocab=11):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix, self.out = nn.Linear(2 * dim, dim), nn.Linear(dim, vocab)

    def attend(self, query, rows):
        weights = torch.softmax(rows @ query / len(query) ** 0.5, dim=0)
        return weights @ rows

    def forward(self, tokens):
        trace, logits = Trace(), []
        for token in tokens:
            query = self.embed(token)
            trace.write(query)
            context = self.attend(query, trace.read())
            state = torch.tanh(self.mix(torch.cat([query, context])))
            logits.append(self.out(state))
        return torch.stack(logits)


torch.manual_seed(61)
decoder = Decoder()
opt = torch.optim.Adam(decoder.parameters(), lr=1e-2)
for step in range(5):
    tokens = torch.randint(0, 11, (7,))
    loss = F.cross_entropy(decoder(tokens[:-1]), tokens[1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.4f}")
