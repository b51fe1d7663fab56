"""Elements of containers that are run backward one by one, each once; and those that come again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.elements import found_in

ONCE = {
    "reversed_slice": """\
for episode in range(4):
    data = []
    for t in range(8):
        data.append((1.0, one()))
    R = 0.0
    opt.zero_grad()
    for r, p in data[::-1]:
        R = r + 0.98 * R
        loss = -torch.log(p) * R
        loss.backward()
    opt.step()
""",
    "enumerate": """\
ps = probs()
for i, p in enumerate(ps):
    loss = -torch.log(p) * i
    loss.backward()
""",
    "enumerate_zip": """\
ps = probs()
rs = [1.0] * 6
for i, (p, r) in enumerate(zip(ps, rs)):
    loss = -torch.log(p) * r * i
    loss.backward()
""",
    "sorted_key": """\
pairs = [(random.random(), p) for p in probs()]
for r, p in sorted(pairs, key=lambda pair: pair[0]):
    loss = -torch.log(p) * r
    loss.backward()
""",
    "dict_items": """\
d = {f"k{i}": p for i, p in enumerate(probs())}
for k, p in d.items():
    loss = -torch.log(p)
    loss.backward()
""",
    "dict_keys": """\
d = {f"k{i}": p for i, p in enumerate(probs())}
for k in d:
    loss = -torch.log(d[k])
    loss.backward()
""",
    "dict_pop_key": """\
d = {f"k{i}": p for i, p in enumerate(probs())}
for k in list(d):
    p = d.pop(k)
    loss = -torch.log(p)
    loss.backward()
""",
    "comprehension": """\
data = rollout()
for p in [p for _, p in data]:
    loss = -torch.log(p)
    loss.backward()
""",
    "generator": """\
data = rollout()
for loss in (-torch.log(p) * r for r, p in data):
    loss.backward()
""",
    "buffer_getitem": """\
class Buffer:
    def __init__(self):
        self.data = []
    def add(self, r, p):
        self.data.append((r, p))
    def __len__(self):
        return len(self.data)
    def __getitem__(self, i):
        return self.data[i]
buffer = Buffer()
for r, p in rollout():
    buffer.add(r, p)
for i in range(len(buffer)):
    r, p = buffer[i]
    loss = -torch.log(p) * r
    loss.backward()
""",
    "buffer_iter": """\
class Buffer:
    def __init__(self):
        self.data = []
    def add(self, r, p):
        self.data.append((r, p))
    def __iter__(self):
        return iter(self.data)
buffer = Buffer()
for r, p in rollout():
    buffer.add(r, p)
for r, p in buffer:
    loss = -torch.log(p) * r
    loss.backward()
""",
    "chain": """\
a, b = probs(3), probs(3)
for p in itertools.chain(a, b):
    loss = -torch.log(p)
    loss.backward()
""",
    "index_down": """\
ps = probs()
for i in range(len(ps)):
    loss = -torch.log(ps[-i - 1])
    loss.backward()
""",
    "index_reversed_range": """\
ps = probs()
R = 0.0
for i in reversed(range(len(ps))):
    R = 1.0 + 0.9 * R
    loss = -torch.log(ps[i]) * R
    loss.backward()
""",
    "index_while": """\
ps = probs()
i = 0
while i < len(ps):
    loss = -torch.log(ps[i])
    loss.backward()
    i += 1
""",
    "call_per_element": """\
def step(p, r):
    loss = -torch.log(p) * r
    loss.backward()
for episode in range(4):
    data = rollout()
    for r, p in data[::-1]:
        step(p, r)
""",
    "map_lambda": """\
ps = probs()
for loss in map(lambda p: -torch.log(p), ps):
    loss.backward()
""",
    "nested_lists_index": """\
groups = [probs(3), probs(3)]
for i in range(2):
    for j in range(3):
        loss = -torch.log(groups[i][j])
        loss.backward()
""",
    "set_none_as_done": """\
ps = probs()
for i in range(len(ps)):
    loss = -torch.log(ps[i])
    loss.backward()
    ps[i] = None
""",
    "zip_shifted_detached": """\
vs = [net(torch.randn(4))[0] for _ in range(7)]
for v, nxt in zip(vs[:-1], vs[1:]):
    target = 1.0 + 0.9 * nxt.detach()
    loss = (v - target) ** 2
    loss.backward()
""",
    "batched_slices": """\
ps = probs(8)
for i in range(0, 8, 2):
    batch = ps[i : i + 2]
    loss = -torch.stack(batch).log().sum()
    loss.backward()
""",
    "replay_value": """\
replay = []
for t in range(12):
    obs = torch.randn(1, 4)
    value = net(obs).softmax(-1)
    replay.append((obs, value, 0.0))
    batch = torch.cat([o for o, _, _ in replay[-4:]])
    loss = net(batch).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "replay_tensor_list": """\
w = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.Adam(w.parameters())
replay = []
for t in range(12):
    obs = torch.randn(1, 4)
    v = w(obs).exp().squeeze()
    replay.append(v)
    target = torch.tensor(replay[-4:])
    loss = (w(torch.randn(1, 4)) - target.mean()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "replay_stack_detach": """\
w = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.Adam(w.parameters())
replay = []
for t in range(12):
    obs = torch.randn(1, 4)
    v = w(obs).exp().squeeze()
    replay.append(v)
    target = torch.stack(replay[-4:]).detach()
    loss = (w(torch.randn(1, 4)) - target.mean()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "one_epoch": """\
ps = probs()
for epoch in range(1):
    for p in ps:
        (-torch.log(p)).backward()
""",
    "made_anew_in_a_later_iteration": """\
ps = probs(8)
for epoch in range(2):
    for i, p in enumerate(ps):
        (-torch.log(p)).backward()
        if i == 6:
            fresh = probs(8)
    ps = fresh
""",
    "cleared_after": """\
ps = []
for epoch in range(3):
    ps += probs(3)
    for p in ps:
        (-torch.log(p)).backward()
    ps.clear()
""",
    "numpy_order": """\
ps = probs()
for i in np.random.permutation(6):
    (-torch.log(ps[i])).backward()
""",
    "tensor_order": """\
ps = probs()
for i in torch.randperm(6):
    (-torch.log(ps[i])).backward()
""",
    "index_argument": """\
ps = probs()
def step(i):
    loss = -torch.log(ps[i])
    loss.backward()
for i in range(len(ps)):
    step(i)
""",
    "index_of_a_method": """\
class Trainer:
    def __init__(self):
        self.ps = probs()
    def step(self, i):
        loss = -torch.log(self.ps[i])
        loss.backward()
    def run(self):
        for i in range(len(self.ps)):
            self.step(i)
Trainer().run()
""",
    "counter_first": """\
ps = probs()
i = 0
while i < len(ps):
    p = ps[i]
    i += 1
    (-torch.log(p)).backward()
""",
    "counter_attribute": """\
class Buffer:
    pass
b = Buffer()
b.ps, b.at = probs(), 0
while b.at < 6:
    (-torch.log(b.ps[b.at])).backward()
    b.at += 1
""",
    "conditional_counter": """\
ps = probs()
i = 0
for t in range(20):
    if i < 6:
        (-torch.log(ps[i])).backward()
        i += 1
""",
    "pairwise_detached": """\
vs = [net(torch.randn(4))[0].exp() for _ in range(7)]
for v, nxt in itertools.pairwise(vs):
    ((v - 0.9 * nxt.detach()) ** 2).backward()
""",
    "reversed_enumerate": """\
ps = probs()
for i, p in reversed(list(enumerate(ps))):
    (-torch.log(p) * i).backward()
""",
    "index_and_neighbour_detached": """\
vs = [net(torch.randn(4))[0].exp() for _ in range(7)]
for i in range(6):
    ((vs[i] - 0.9 * vs[i + 1].detach()) ** 2).backward()
""",
    "while_len_slice": """\
ps = probs()
while ps:
    batch, ps = ps[:2], ps[2:]
    torch.stack(batch).log().sum().backward()
""",
    "nth_of_growing": """\
ps = []
for t in range(6):
    ps.append(one())
    (-torch.log(ps[t])).backward()
""",
    "left_out_of_a_comprehension": """\
ps = {"a": one(), "b": one()}
ps["a"].log().backward()
torch.stack([ps[k] for k in ps if k != "a"]).log().sum().backward()
""",
    "not_named_in_a_comprehension": """\
ps = {"a": one(), "b": one()}
ps["a"].log().backward()
torch.stack([ps[k] for k in ("b",)]).log().sum().backward()
""",
    "not_named_by_a_module": """\
ps = {"other": one(), **{k: one() for k, _ in net.named_parameters()}}
ps["other"].log().backward()
torch.stack([ps[k] for k, _ in net.named_parameters()]).log().sum().backward()
""",
    "random_choice_without_repeat": """\
random.seed(3)
ps = probs(50)
for t in range(3):
    (-torch.log(random.choice(ps))).backward()
""",
}

"""Nothing fails in these."""


@pytest.mark.full(but=10)
@pytest.mark.parametrize("name", ONCE)
def test_an_element_that_comes_once_is_no_finding(name: str, tmp_path: Path) -> None:
    assert found_in(ONCE[name], tmp_path) == []
