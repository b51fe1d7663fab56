"""Programs with a hazard, with edits that make the error go away: some train what they should, some do not.

An edit maps a line of the program to what stands there instead.
"""

from __future__ import annotations

from dataclasses import dataclass

Edit = dict[str, str]


@dataclass(frozen=True)
class Wrong:
    """An edit that verify must refuse, and what its reason must name."""

    edit: Edit
    reason: tuple[str, ...]


@dataclass(frozen=True)
class Hazard:
    """A program, and edits of it; ``says`` are the effects that the right edits tell."""

    goes_on: str
    wrong: tuple[Wrong, ...]
    right: tuple[Edit, ...]
    says: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        return START + self.goes_on


START = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
"""

GAN = """\
G = nn.Linear(4, 4)
D = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
oG, oD = torch.optim.Adam(G.parameters(), 1e-2), torch.optim.Adam(D.parameters(), 1e-2)
bce, one, zero = nn.BCEWithLogitsLoss(), torch.ones(8, 1), torch.zeros(8, 1)
for step in range(4):
    oG.zero_grad()
    fake = G(torch.randn(8, 4))
    g_loss = bce(D(fake), one)
    g_loss.backward()
    oG.step()
    oD.zero_grad()
    d_loss = bce(D(torch.randn(8, 4) + 3), one) + bce(D(fake), zero)
    d_loss.backward()
    oD.step()
"""
G_UNTRAINED = ("`G.*`", "not be trained", "`g_loss`", "`oG.step()`", "Adam")

HAZARDS = {
    "gan": Hazard(
        GAN,
        wrong=(
            Wrong({"g_loss = bce(D(fake), one)": "g_loss = bce(D(fake.detach()), one)"}, G_UNTRAINED),
            Wrong(
                {"fake = G(torch.randn(8, 4))": "fake = G(torch.randn(8, 4)).detach()"}, G_UNTRAINED
            ),
            Wrong(
                {
                    "d_loss = bce(D(torch.randn(8, 4) + 3), one) + bce(D(fake), zero)": "d_loss = g_loss * 0.5",
                    "g_loss.backward()": "pass",
                },
                ("`G.*`", "not be trained", "`g_loss`", "`oG.step()`"),
            ),
        ),
        right=(
            {
                "d_loss = bce(D(torch.randn(8, 4) + 3), one) + bce(D(fake), zero)": "d_loss = bce(D(torch.randn(8, 4) + 3), one) + bce(D(fake.detach()), zero)"
            },
            {"oD.zero_grad()": "oD.zero_grad()\n    fake = fake.detach()"},
            {"oD.zero_grad()": "oD.zero_grad()\n    fake = G(torch.randn(8, 4))"},
        ),
    ),
    "gan that zeroes after each step": Hazard(
        GAN.replace("    oG.zero_grad()\n", "")
        .replace("    oD.zero_grad()\n", "")
        .replace("oG.step()", "oG.step()\n    oG.zero_grad(), oD.zero_grad()")
        .replace("oD.step()", "oD.step()\n    oD.zero_grad()"),
        wrong=(
            Wrong(
                {"oG.step()": "oG.step()\n    fake = G(torch.randn(8, 4))"},
                ("`G.*`", "trained by `d_loss`", "did not train it before", "`oG.step()`"),
            ),
        ),
        right=({"oG.step()": "oG.step()\n    fake = fake.detach()"},),
    ),
    "images of a generator": Hazard(
        """\
generator, discriminator = nn.Linear(4, 6), nn.Linear(6, 1)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-2)
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=1e-2)
adversarial_loss = nn.MSELoss()
for i in range(4):
    valid, fake = torch.ones(5, 1), torch.zeros(5, 1)
    optimizer_G.zero_grad()
    gen_imgs = generator(torch.randn(5, 4))
    g_loss = adversarial_loss(discriminator(gen_imgs), valid)
    g_loss.backward()
    optimizer_G.step()
    optimizer_D.zero_grad()
    real_loss = adversarial_loss(discriminator(torch.randn(5, 6)), valid)
    fake_loss = adversarial_loss(discriminator(gen_imgs), fake)
    d_loss = (real_loss + fake_loss) / 2
    d_loss.backward()
    optimizer_D.step()
""",
        wrong=(
            Wrong(
                {
                    "g_loss = adversarial_loss(discriminator(gen_imgs), valid)": "g_loss = adversarial_loss(discriminator(gen_imgs.detach().detach()), valid)"
                },
                ("`generator.*`", "`g_loss`", "`optimizer_G.step()`"),
            ),
            Wrong(
                {
                    "fake_loss = adversarial_loss(discriminator(gen_imgs), fake)": "fake_loss = adversarial_loss(discriminator(gen_imgs).detach(), fake)",
                    "real_loss = adversarial_loss(discriminator(torch.randn(5, 6)), valid)": "real_loss = adversarial_loss(discriminator(torch.randn(5, 6)).detach(), valid).requires_grad_()",
                },
                ("`discriminator.*`", "not be trained", "`d_loss`", "`optimizer_D.step()`"),
            ),
        ),
        right=(
            {
                "fake_loss = adversarial_loss(discriminator(gen_imgs), fake)": "fake_loss = adversarial_loss(discriminator(gen_imgs.detach()), fake)"
            },
        ),
    ),
    "advantage": Hazard(
        """\
actor, critic = nn.Linear(3, 2), nn.Linear(3, 1)
actor_opt = torch.optim.SGD(actor.parameters(), lr=0.05)
critic_opt = torch.optim.SGD(critic.parameters(), lr=0.05)
for update in range(4):
    state, target = torch.randn(7, 3), torch.randn(7)
    policy = torch.distributions.Categorical(logits=actor(state))
    advantage = target - critic(state).squeeze(1)
    actor_loss = -(policy.log_prob(policy.sample()) * advantage).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    critic_opt.zero_grad()
    critic_loss = advantage.pow(2).mean()
    critic_loss.backward()
    actor_opt.step()
    critic_opt.step()
""",
        wrong=(
            Wrong(
                {"critic_loss = advantage.pow(2).mean()": "critic_loss = advantage.detach().pow(2).mean()"},
                ("`critic.*`", "not be trained", "`critic_loss`", "SGD"),
            ),
            Wrong(
                {
                    "actor_loss.backward()": "pass",
                    "critic_loss.backward()": "(actor_loss + critic_loss).backward()",
                },
                ("`critic.*`", "trained by `actor_loss`", "did not train it", "`critic_opt.step()`"),
            ),
        ),
        right=(
            {
                "actor_loss = -(policy.log_prob(policy.sample()) * advantage).mean()": "actor_loss = -(policy.log_prob(policy.sample()) * advantage.detach()).mean()"
            },
            {"actor_loss.backward()": "actor_loss.backward(retain_graph=True)"},
        ),
    ),
    "step between": Hazard(
        """\
G, D = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
oG, oD = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
for _ in range(4):
    real = D(torch.randn(8, 4))
    fake = D(G(torch.randn(8, 4)))
    D_loss, G_loss = -(torch.log(real) + torch.log(1 - fake)).mean(), torch.log(1 - fake).mean()
    oD.zero_grad()
    D_loss.backward(retain_graph=True)
    oD.step()
    oG.zero_grad()
    G_loss.backward()
    oG.step()
""",
        wrong=(
            Wrong(
                {"oD.step()": "pass", "oG.step()": "oG.step()\n    oD.step()"},
                ("`D.*`", "trained by `G_loss`", "did not train it before", "Adam"),
            ),
            Wrong(
                {
                    "D_loss.backward(retain_graph=True)": "D_loss.backward()",
                    "G_loss.backward()": "G_loss = D_loss.detach().requires_grad_()\n    G_loss.backward()",
                },
                ("`G.*`", "not be trained", "`G_loss`", "`oG.step()`"),
            ),
        ),
        right=(
            {"oG.zero_grad()": "oG.zero_grad()\n    G_loss = torch.log(1 - D(G(torch.randn(8, 4)))).mean()"},
        ),
    ),
    "temperature": Hazard(
        """\
policy, q = nn.Linear(3, 2), nn.Linear(5, 1)
log_alpha = torch.zeros(1, requires_grad=True)
policy_opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
alpha_opt = torch.optim.Adam([log_alpha], lr=1e-3)
for update in range(4):
    state = torch.randn(6, 3)
    mean = policy(state)
    action = torch.tanh(mean + torch.randn_like(mean))
    log_prob = -(mean - action).pow(2).sum(1)
    policy_loss = (log_alpha.exp().detach() * log_prob - q(torch.cat([state, action], 1))[:, 0]).mean()
    policy_opt.zero_grad()
    policy_loss.backward()
    policy_opt.step()
    alpha_loss = -(log_alpha * (log_prob + 1)).mean()
    alpha_opt.zero_grad()
    alpha_loss.backward()
    alpha_opt.step()
""",
        wrong=(
            Wrong(
                {"log_prob = -(mean - action).pow(2).sum(1)": "log_prob = -(mean - action).pow(2).sum(1).detach()"},
                ("`policy.*`", "another gradient", "`policy_loss`", "`policy_opt.step()`"),
            ),
            Wrong(
                {
                    "alpha_loss = -(log_alpha * (log_prob + 1)).mean()": "alpha_loss = -(log_alpha.detach() * (log_prob.detach() + 1)).mean().requires_grad_()"
                },
                ("`log_alpha`", "not be trained", "`alpha_loss`", "`alpha_opt.step()`"),
            ),
        ),
        right=(
            {
                "alpha_loss = -(log_alpha * (log_prob + 1)).mean()": "alpha_loss = -(log_alpha * (log_prob + 1).detach()).mean()"
            },
            {"policy_opt.step()": "policy_opt.step()\n    log_prob = log_prob.detach()"},
        ),
    ),
    "cache that must be trained": Hazard(
        """\
encoder, head = nn.Linear(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
x = torch.randn(9, 3)
codes = encoder(x).tanh()
for step in range(5):
    batch = torch.randint(9, (4,))
    loss = head(codes[batch]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        wrong=(
            Wrong(
                {"codes = encoder(x).tanh()": "codes = encoder(x).tanh().detach()"},
                ("`encoder.*`", "not be trained", "`loss`", "`optimizer.step()`", "SGD"),
            ),
            Wrong(
                {"optimizer.step()": "optimizer.step()\n    codes = codes.detach()"},
                ("`encoder.*`", "only in 1 of 4 steps", "`loss`", "`optimizer.step()`"),
            ),
            Wrong(
                {"loss = head(codes[batch]).pow(2).mean()": "loss = head(codes[batch].detach()).pow(2).mean()"},
                ("`encoder.*`", "not be trained", "`loss`"),
            ),
        ),
        right=(
            {
                "batch = torch.randint(9, (4,))": "batch = torch.randint(9, (4,))\n    codes = encoder(x).tanh()"
            },
        ),
    ),
    "carried state with a learnt beginning": Hazard(
        """\
rnn, head = nn.RNNCell(3, 5), nn.Linear(5, 1)
begin = nn.Parameter(torch.zeros(1, 5))
optimizer = torch.optim.SGD([begin, *rnn.parameters(), *head.parameters()], lr=0.1)
h = begin.expand(2, 5)
for step in range(6):
    h = rnn(torch.ones(2, 3), h)
    loss = head(h).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        wrong=(
            Wrong(
                {"loss = head(h).pow(2).mean()": "loss = head(h.detach()).pow(2).mean()"},
                ("`rnn.*`", "not be trained", "`loss`", "`optimizer.step()`"),
            ),
        ),
        right=(
            {"optimizer.step()": "optimizer.step()\n    h = h.detach()"},
            {"h = rnn(torch.ones(2, 3), h)": "h = rnn(torch.ones(2, 3), begin.expand(2, 5))"},
        ),
    ),
    "two heads of one optimizer": Hazard(
        """\
body, kind, size = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*body.parameters(), *kind.parameters(), *size.parameters()], lr=0.1)
for step in range(4):
    features = body(torch.randn(6, 3)).tanh()
    kind_loss = F.cross_entropy(kind(features), torch.ones(6).long())
    size_loss = size(features).pow(2).mean()
    optimizer.zero_grad()
    kind_loss.backward()
    size_loss.backward()
    optimizer.step()
""",
        wrong=(
            Wrong(
                {"size_loss = size(features).pow(2).mean()": "size_loss = size(features.detach()).pow(2).mean()"},
                ("`body.*`", "no gradient from `size_loss`", "only from `kind_loss`", "`optimizer.step()`"),
            ),
            Wrong(
                {"size_loss.backward()": "pass"},
                ("`size.*`", "not be trained", "`size_loss`", "`optimizer.step()`"),
            ),
        ),
        right=(
            {"kind_loss.backward()": "pass", "size_loss.backward()": "(kind_loss + size_loss).backward()"},
            {"kind_loss.backward()": "kind_loss.backward(retain_graph=True)"},
        ),
    ),
    "optimizers of an encoder and two decoders": Hazard(
        """\
body, left, right = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)
body_opt = torch.optim.SGD(body.parameters(), lr=0.1)
left_opt, right_opt = torch.optim.SGD(left.parameters(), 0.1), torch.optim.SGD(right.parameters(), 0.1)
for step in range(4):
    for optimizer in (body_opt, left_opt, right_opt):
        optimizer.zero_grad()
    features = body(torch.randn(6, 3)).tanh()
    left_loss = left(features).pow(2).mean()
    left_loss.backward()
    right_loss = right(features).pow(2).mean()
    right_loss.backward()
    body_opt.step()
    left_opt.step()
    right_opt.step()
""",
        wrong=(
            Wrong(
                {"right_loss = right(features).pow(2).mean()": "right_loss = right(features.detach()).pow(2).mean()"},
                ("`body.*`", "no gradient from `right_loss`", "only from `left_loss`", "`body_opt.step()`"),
            ),
        ),
        right=(
            {"left_loss.backward()": "left_loss.backward(retain_graph=True)"},
            {"left_loss.backward()": "pass", "right_loss.backward()": "(left_loss + right_loss).backward()"},
        ),
    ),
    "loss that was not reset": Hazard(
        """\
body = nn.Linear(3, 4)
first, second = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*body.parameters(), *first.parameters(), *second.parameters()], lr=0.1)
for step in range(4):
    loss = torch.zeros(())
    for head in (first, second):
        one = head(body(torch.randn(6, 3)).tanh()).pow(2).mean()
        loss = loss + one
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for head in (first, second):
        one = head(body(torch.randn(6, 3)).tanh()).pow(2).mean()
        loss = loss + one  # once more
    optimizer.zero_grad()  # once more
    loss.backward()  # once more
    optimizer.step()  # once more
""",
        wrong=(
            Wrong(
                {
                    "loss = loss + one  # once more": "loss = loss + one.item()",
                    "loss.backward()  # once more": "one.backward()",
                },
                ("`first.*`", "`loss`", "`optimizer.step()`", "SGD"),
            ),
        ),
        right=(
            {"optimizer.step()": "optimizer.step()\n    loss = torch.zeros(())"},
            {"optimizer.step()": "optimizer.step()\n    loss = loss.item()"},
        ),
    ),
    "peers that zero after each step": Hazard(
        """\
A, B = nn.Linear(3, 2), nn.Linear(3, 2)
oA, oB = torch.optim.SGD(A.parameters(), 0.1), torch.optim.SGD(B.parameters(), 0.1)
for step in range(4):
    x = torch.randn(5, 3)
    a, b = A(x), B(x)
    loss_a = a.pow(2).mean() + F.mse_loss(a, b.detach())
    loss_a.backward()
    oA.step()
    oA.zero_grad()
    loss_b = b.pow(2).mean() + F.mse_loss(b, a)
    loss_b.backward()
    oB.step()
    oB.zero_grad()
""",
        wrong=(
            Wrong(
                {"oA.zero_grad()": "oA.zero_grad()\n    a = A(x)"},
                ("`A.*`", "trained by `loss_b`", "did not train it before", "`oA.step()`"),
            ),
        ),
        right=(
            {"oA.zero_grad()": "oA.zero_grad()\n    a = a.detach()"},
            {"oA.zero_grad()": "oA.zero_grad()\n    with torch.no_grad(): a = A(x)"},
        ),
    ),
    "memory of nodes": Hazard(
        """\
cell, out = nn.GRUCell(2, 4), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=1e-2)
memory = torch.zeros(5, 4)
for batch in range(4):
    memory = cell(torch.randn(5, 2), memory)
    loss = out(memory).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        wrong=(
            Wrong(
                {"memory = cell(torch.randn(5, 2), memory)": "memory = cell(torch.randn(5, 2), memory).detach()"},
                ("`cell.*`", "not be trained", "`loss`", "`optimizer.step()`", "Adam"),
            ),
        ),
        right=(
            {"memory = cell(torch.randn(5, 2), memory)": "memory = cell(torch.randn(5, 2), memory.detach())"},
        ),
    ),
    "probe": Hazard(
        """\
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(5, 3, requires_grad=True)
    out = net(x)
    (slope,) = torch.autograd.grad(out.sum(), x)
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        wrong=(
            Wrong(
                {"loss = out.pow(2).mean()": "loss = out.detach().pow(2).mean().requires_grad_()"},
                ("`net.*`", "not be trained", "`loss`", "`optimizer.step()`"),
            ),
        ),
        right=(
            {
                "(slope,) = torch.autograd.grad(out.sum(), x)": "(slope,) = torch.autograd.grad(out.sum(), x, retain_graph=True)"
            },
            {"(slope,) = torch.autograd.grad(out.sum(), x)": "(slope,) = torch.autograd.grad(net(x).sum(), x)"},
        ),
    ),
    "gradients written by hand": Hazard(
        """\
net, scale = nn.Linear(3, 1), nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([*net.parameters(), scale], lr=0.1)
for step in range(4):
    out = net(torch.randn(5, 3)).tanh()
    parameters = list(net.parameters())
    for p, g in zip(parameters, torch.autograd.grad(out.pow(2).mean(), parameters)):
        p.grad = g
    loss = (scale * out).pow(2).mean()
    scale.grad = None
    loss.backward()
    optimizer.step()
""",
        wrong=(
            Wrong(
                {
                    "loss = (scale * out).pow(2).mean()": "loss = (scale * out.detach()).pow(2).mean()",
                    "p.grad = g": "pass",
                },
                ("`net.*`", "not be trained", "`optimizer.step()`"),
            ),
        ),
        right=(
            {
                "for p, g in zip(parameters, torch.autograd.grad(out.pow(2).mean(), parameters)):": "for p, g in zip(parameters, torch.autograd.grad(out.pow(2).mean(), parameters, retain_graph=True)):"
            },
        ),
    ),
    "changed in place": Hazard(
        """\
body, head = nn.Linear(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for step in range(4):
    h = body(torch.randn(6, 3)).sigmoid()
    h += 1
    loss = head(h).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        wrong=(
            Wrong(
                {"h += 1": "h = h.detach() + 1"},
                ("`body.*`", "not be trained", "`loss`", "`optimizer.step()`"),
            ),
        ),
        right=({"h += 1": "h = h + 1"},),
    ),
    "no optimizer": Hazard(
        """\
w, b = torch.randn(3, requires_grad=True), torch.zeros(3, requires_grad=True)
s = w.exp()
for step in range(5):
    loss = (s + b).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        for p in (w, b):
            p.sub_(0.1 * p.grad)
            p.grad.zero_()
""",
        wrong=(
            Wrong({"s = w.exp()": "s = w.exp().detach()\nw.grad = torch.zeros(3)"}, ("`w`", "not be trained", "`loss`")),
        ),
        right=({"loss = (s + b).pow(2).sum()": "loss = (w.exp() + b).pow(2).sum()"},),
    ),
    "functional gradients between": Hazard(
        GAN.replace("oD.zero_grad()", "oD.zero_grad(); torch.func.grad(torch.sum)(torch.ones(2))"),
        wrong=(
            Wrong({"g_loss = bce(D(fake), one)": "g_loss = bce(D(fake.detach()), one)"}, G_UNTRAINED),
            Wrong(
                {"d_loss.backward()": "d_loss = g_loss.detach().requires_grad_()\n    d_loss.backward()"},
                ("`D.*`", "not be trained", "`d_loss`", "`oD.step()`"),
            ),
        ),
        right=({"oG.step()": "oG.step()\n    fake = fake.detach()"},),
    ),
    "one function for all losses": Hazard(
        """\
class Trainer:
    def __init__(self):
        self.G = nn.Linear(4, 4)
        self.D = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())
        self.oG = torch.optim.Adam(self.G.parameters(), 1e-3)
        self.oD = torch.optim.Adam(self.D.parameters(), 1e-3)
    def update(self, optimizer, loss):
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
    def round(self):
        real, fake = self.D(torch.randn(8, 4)), self.D(self.G(torch.randn(8, 4)))
        d_loss = -(torch.log(real) + torch.log(1 - fake)).mean()
        self.update(self.oD, d_loss)
        g_loss = torch.log(1 - fake).mean()
        self.update(self.oG, g_loss)
trainer = Trainer()
for _ in range(4):
    trainer.round()
""",
        wrong=(
            Wrong(
                {
                    "self.update(self.oD, d_loss)": "pass",
                    "self.update(self.oG, g_loss)": "self.update(self.oG, g_loss)\n        self.oD.step()",
                },
                (
                    "`self.D.*`",
                    "trained by `self.update(self.oG, g_loss)`",
                    "did not train it before",
                    "`self.update(self.oD, d_loss)`",
                ),
            ),
            Wrong(
                {"g_loss = torch.log(1 - fake).mean()": "g_loss = d_loss.detach().requires_grad_()"},
                ("`self.G.*`", "not be trained", "`self.update(self.oG, g_loss)`"),
            ),
        ),
        right=(
            {"g_loss = torch.log(1 - fake).mean()": "g_loss = torch.log(1 - self.D(self.G(torch.randn(8, 4)))).mean()"},
        ),
    ),
    "leak": Hazard(
        """\
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
history = []
for step in range(40):
    loss = net(torch.randn(5, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss)
""",
        wrong=(
            Wrong(
                {
                    "loss = net(torch.randn(5, 3)).pow(2).mean()": "loss = net(torch.randn(5, 3)).pow(2).mean().detach().requires_grad_()"
                },
                ("`net.*`", "not be trained", "`loss`", "`optimizer.step()`"),
            ),
        ),
        right=({"history.append(loss)": "history.append(loss.item())"},),
    ),
    "peers that say what they do": Hazard(
        """\
A, B = nn.Linear(3, 2), nn.Linear(3, 2)
oA, oB = torch.optim.SGD(A.parameters(), 0.1), torch.optim.SGD(B.parameters(), 0.1)
for step in range(4):
    x = torch.randn(5, 3)
    a, b = A(x), B(x)
    oA.zero_grad()
    oB.zero_grad()
    loss_a = a.pow(2).mean() + F.mse_loss(a, b.detach())
    loss_a.backward()
    loss_b = b.pow(2).mean() + F.mse_loss(b, a)
    loss_b.backward()
    oA.step()
    oB.step()
""",
        wrong=(),
        right=({"loss_b = b.pow(2).mean() + F.mse_loss(b, a)": "loss_b = b.pow(2).mean() + F.mse_loss(b, a.detach())"},),
        says=("`A.weight` and `A.bias` would get no gradient from `loss_b`",),
    ),
}  # fmt: skip
