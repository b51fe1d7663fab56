"""Elements of containers that are run backward again: told before the call that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.elements import found_in

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
    "replay_stale": """\
w = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
opt = torch.optim.Adam(w.parameters())
replay = []
for t in range(12):
    obs = torch.randn(1, 4)
    v = w(obs).exp().squeeze()
    replay.append(v)
    target = torch.stack(replay[-4:])
    loss = (w(torch.randn(1, 4)) - target.mean()).pow(2).mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
""",
}


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
    assert error is not None
    assert failing.line == error.line


@pytest.mark.parametrize("name", STALE)
def test_an_element_that_a_step_makes_stale_is_told_early(name: str, tmp_path: Path) -> None:
    found = found_in(STALE[name], tmp_path, "inplace operation")
    assert [f.code for f in found] == ["GS202", "GS201"]
