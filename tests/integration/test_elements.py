"""Elements of containers that are run backward one by one, each once; and those that come again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import known
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

REPLAY = ONCE["replay_tensor_list"]
ONCE["replay_stack_detach"] = REPLAY.replace("tensor(replay[-4:])", "stack(replay[-4:]).detach()")


@pytest.mark.full(but=10)
@pytest.mark.parametrize("name", ONCE)
def test_an_element_that_comes_once_is_no_finding(name: str, tmp_path: Path) -> None:
    assert found_in(ONCE[name], tmp_path) == []


AGAIN = {
    "second_epoch": """\
ps = probs()
for epoch in range(2):
    for p in ps:
        loss = -torch.log(p)
        loss.backward()
""",
    "second_epoch_function": """\
def train(data):
    for r, p in reversed(data):
        loss = -torch.log(p) * r
        loss.backward()
data = rollout()
for epoch in range(3):
    train(data)
""",
    "index_stays": """\
ps = probs()
i = 2
for t in range(5):
    loss = -torch.log(ps[i])
    loss.backward()
""",
    "shared_by_pairs": """\
ps = probs()
pairs = list(zip(ps[:-1], ps[1:]))
for p, q in pairs:
    loss = -torch.log(p) - torch.log(q)
    loss.backward()
""",
    "zip_shifted": """\
vs = [net(torch.randn(4))[0].exp() for _ in range(7)]
for v, nxt in zip(vs[:-1], vs[1:]):
    loss = (v - (1.0 + 0.9 * nxt)) ** 2
    loss.backward()
""",
    "same_element_twice_in_list": """\
p = one()
ps = [p, one(), p]
for q in ps:
    loss = -torch.log(q)
    loss.backward()
""",
    "shared_trunk": """\
z = torch.tanh(net(torch.randn(3, 4)))
parts = [z[i] for i in range(3)]
for part in parts:
    loss = (part ** 2).sum()
    loss.backward()
""",
    "put_back": """\
ps = collections.deque(probs())
for t in range(20):
    p = ps.popleft()
    loss = -torch.log(p)
    loss.backward()
    ps.append(p)
""",
    "self_policy_not_cleared": """\
class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
        self.data = []
        self.opt = torch.optim.Adam(self.parameters(), 1e-3)
    def forward(self, x):
        return torch.softmax(self.net(x), 0)
    def put_data(self, item):
        self.data.append(item)
    def train_net(self):
        R = 0
        self.opt.zero_grad()
        for r, prob in self.data[::-1]:
            R = r + 0.98 * R
            loss = -torch.log(prob) * R
            loss.backward()
def main():
    pi = Policy()
    for n in range(5):
        for t in range(5):
            prob = pi(torch.randn(4))
            pi.put_data((1.0, prob[0]))
        pi.train_net()
main()
""",
    "window": """\
ps = []
for t in range(6):
    ps.append(one())
    loss = -sum(torch.log(p) for p in ps[-3:])
    loss.backward()
""",
    "dict_second_epoch": """\
d = {f"k{i}": p for i, p in enumerate(probs())}
for epoch in range(2):
    for k, p in d.items():
        loss = -torch.log(p)
        loss.backward()
""",
    "chain_twice": """\
ps = probs(3)
for p in itertools.chain(ps, ps):
    loss = -torch.log(p)
    loss.backward()
""",
    "cycle": """\
ps = probs(3)
for p in itertools.islice(itertools.cycle(ps), 7):
    loss = -torch.log(p)
    loss.backward()
""",
    "losses_twice": """\
losses = [-torch.log(p) for p in probs()]
for epoch in range(2):
    for loss in losses:
        loss.backward()
""",
    "losses_index_stays": """\
losses = [-torch.log(p) for p in probs()]
for i in range(len(losses)):
    losses[0].backward()
""",
    "carried_list_of_states": """\
cells = [torch.nn.Linear(4, 4) for _ in range(2)]
h = [torch.zeros(4), torch.zeros(4)]
for t in range(4):
    x = torch.randn(4)
    for l in range(2):
        h[l] = torch.tanh(cells[l](x) + h[l])
        x = h[l]
    x.sum().backward()
""",
    "zip_star_second_epoch": """\
data = rollout()
rs, ps = zip(*data)
for epoch in range(2):
    for r, p in zip(rs, ps):
        (-torch.log(p) * r).backward()
""",
    "long_second_epoch": """\
data = rollout(40)
for epoch in range(2):
    for r, p in data:
        (-torch.log(p) * r).backward()
""",
    "modulo_index": """\
ps = probs(3)
for t in range(7):
    (-torch.log(ps[t % 3])).backward()
""",
    "overlapping_batches": """\
ps = probs(8)
for i in range(0, 7):
    torch.stack(ps[i : i + 2]).log().sum().backward()
""",
    "same_pair_twice": """\
ps = probs()
for p, q in zip(ps, ps[::-1]):
    (-torch.log(p) - torch.log(q)).backward()
""",
}
"""These fail, as an element comes again."""

STALE = {
    "elements_stepped": """\
w = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.Adam(w.parameters())
vs = [w(torch.randn(1, 4)).exp().squeeze() for _ in range(5)]
for v in vs:
    opt.zero_grad()
    (v ** 2).backward()
    opt.step()
""",
}


STALE["replay_stale"] = REPLAY.replace("tensor(replay", "stack(replay").replace(
    "backward()", "backward(retain_graph=True)"
)


@pytest.mark.full(but=10)
@pytest.mark.parametrize("name", AGAIN)
def test_an_element_that_comes_again_is_told_early(name: str, tmp_path: Path) -> None:
    found = found_in(AGAIN[name], tmp_path, "second time")
    assert [found[0].code, found[-1].code] == ["GS102", "GS101"]
    assert {f.code for f in found[:-1]} == {"GS102"}
    assert found[0].backward_call < found[-1].backward_call
    sites = {note.role: note.site for note in found[0].related}
    failing, error = sites.get("failing_node") or sites["next_read"], found[-1].site
    assert failing is not None
    assert failing.line == known(error).line


@pytest.mark.parametrize("name", STALE)
def test_an_element_that_a_step_makes_stale_is_told_early(name: str, tmp_path: Path) -> None:
    found = found_in(STALE[name], tmp_path, "inplace operation")
    assert [f.code for f in found] == ["GS202", "GS201"]
