# expect: {"error": "inplace", "raise_line": 56, "culprit_line": 38, "culprit_also": [53], "free_line": null, "mutate_line": 26, "leak": false, "loop_line": 53, "fix": "clone", "patch": {"27": "        return weights.clone()"}, "group": "weakref cache"}
# Document ranking: per-document attention weights in a WeakKeyDictionary decay each time a document is looked up.
# Mended: Document ranking: the fading weights in a WeakKeyDictionary are looked up once per document between two backward calls.

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
    better = rng.choices(library, k=4)  # -
    worse = rng.choices(library, k=4)  # -
    # + better, worse = torch.tensor(rng.sample(range(5), k=4)).chunk(2)
    # + better, worse = [library[i] for i in better], [library[i] for i in worse]
    margins = torch.cat([ranker(a) - ranker(b) for a, b in zip(better, worse)])
    loss = F.softplus(-margins).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(query, f"{loss.item():.4f}")
