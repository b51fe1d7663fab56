# expect: {"error": null, "raise_line": null, "culprit_line": null, "free_line": null, "leak": false, "loop_line": 50, "fix": "none", "group": "weakref cache"}
# Document ranking: the fading weights in a WeakKeyDictionary are looked up once per document between two backward calls.

import random
import weakref

import torch
import torch.nn.functional as F
from torch import nn


class Document:
    def __init__(self, length):
        self.words = torch.randint(0, 40, (length,))


class FadingWeights:
    def __init__(self, rate=0.95):
        self.rate, self._weights = rate, weakref.WeakKeyDictionary()

    def __getitem__(self, doc):
        if doc not in self._weights:
            self._weights[doc] = torch.ones(len(doc.words), 1)
        weights = self._weights[doc]
        weights.mul_(self.rate)
        return weights


class Ranker(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.embed, self.score = nn.Embedding(40, dim), nn.Linear(dim, 1)
        self.fading = FadingWeights()

    def forward(self, doc):
        words = torch.tanh(self.embed(doc.words))
        pooled = (words * self.fading[doc]).mean(0)
        return self.score(pooled)


torch.manual_seed(71)
rng = random.Random(4)
library = [Document(length) for length in (5, 7, 6, 9, 4)]
ranker = Ranker()
opt = torch.optim.Adagrad(ranker.parameters(), lr=0.05)

for query in range(5):
    better, worse = torch.tensor(rng.sample(range(5), k=4)).chunk(2)
    better, worse = [library[i] for i in better], [library[i] for i in worse]
    margins = torch.cat([ranker(a) - ranker(b) for a, b in zip(better, worse)])
    loss = F.softplus(-margins).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(query, f"{loss.item():.4f}")
