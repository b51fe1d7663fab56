"""GS502 to GS504: parameters that no gradient reaches, gradients that nothing uses or that are used again."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.model import Finding, Severity, Site
from gradscope.rules import gs502, gs503, gs504
from gradscope.rules.base import Rule
from gradscope.rules.parameters import share, short_names
from tests import examples, known
from tests.rules.saying import check_wording, findings_of

RULES = (gs502.RULE, gs503.RULE, gs504.RULE)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
STEP = Site("train.py", 20, 5)
CUT = Site("train.py", 12, 9)

START = """
    import copy
    import torch
    import torch.nn.functional as F
    from torch import nn
    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randn(8, 1)

    class Net(nn.Module):
        def __init__(self, *names):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
            for name in names:
                setattr(self, name, nn.Linear(4, 4))
        def forward(self, x):
            return self.head(self.body(x).tanh())

    def step(opt, loss):
        opt.zero_grad()
        loss.backward()
        opt.step()
    """


def found_in(source: str, folder: Path) -> list[Finding]:
    findings, error = findings_of(textwrap.dedent(START) + textwrap.dedent(source), folder)
    assert error == ""
    return findings


def told(findings: list[Finding]) -> list[str]:
    return [f"{f.severity} {f.code}" for f in findings]


@each_rule
def test_the_bad_example_has_this_finding_and_no_other(rule: Rule, tmp_path: Path) -> None:
    findings, error = findings_of(examples.bad(rule), tmp_path)
    assert ([f.code for f in findings], error) == ([rule.code], "")
    check_wording(findings[0])


@each_rule
def test_the_good_example_has_none(rule: Rule, tmp_path: Path) -> None:
    assert findings_of(examples.good(rule), tmp_path) == ([], "")


HEALTHY = {
    "accumulation": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(16):
            F.mse_loss(net(x), y).backward()
            if i % 4 == 3:
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                opt.step()
                opt.zero_grad(set_to_none=False)
    """,
    "zero_grad after the step": """
        net = Net(); opt = torch.optim.Adam(net.parameters())
        for i in range(12):
            F.mse_loss(net(x), y).backward()
            opt.step()
            opt.zero_grad()
    """,
    "set_to_none=False": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(40):
            opt.zero_grad(set_to_none=False)
            F.mse_loss(net(x), y).backward()
            nn.utils.clip_grad_value_(net.parameters(), 1.0)
            opt.step()
    """,
    "reset through .data": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(40):
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.data.zero_()
            F.mse_loss(net(x), y).backward()
            opt.step()
    """,
    "reset one by one": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            F.mse_loss(net(x), y).backward()
            opt.step()
            for p in net.parameters():
                p.grad.zero_()
    """,
    "a decay of the gradients": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            F.mse_loss(net(x), y).backward()
            opt.step()
            for p in net.parameters():
                p.grad.mul_(0.9)
    """,
    "a closure": """
        net = Net(); opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
        def closure():
            opt.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            return loss
        for i in range(6):
            opt.step(closure)
    """,
    "a scaler that skips": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
        for i in range(12):
            opt.zero_grad()
            loss = F.mse_loss(net(x), y) * (float("inf") if i % 3 == 1 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
    """,
    "two optimizers on one gradient": """
        net = Net()
        fast, slow = torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(net.parameters())
        for i in range(12):
            fast.zero_grad()
            F.mse_loss(net(x), y).backward()
            fast.step()
            slow.step()
    """,
    "a GAN": """
        G, D = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        for i in range(30):
            fake = G(torch.randn(8, 4))
            step(od, D(fake.detach()).mean() - D(x).mean())
            step(og, -D(fake).mean())
    """,
    "a GAN whose critic steps later": """
        G, D = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        for i in range(6):
            step(og, -D(G(torch.randn(8, 4))).mean())
    """,
    "an average of the weights": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        average = torch.optim.swa_utils.AveragedModel(net)
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
            average.update_parameters(net)
    """,
    "a target network": """
        net = Net(); target = copy.deepcopy(net); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            with torch.no_grad():
                wanted = y + 0.9 * target(x)
            step(opt, F.mse_loss(net(x), wanted))
            if i % 5 == 0:
                target.load_state_dict(net.state_dict())
    """,
    "SimSiam": """
        net, predictor = nn.Linear(4, 4), nn.Linear(4, 4)
        opt = torch.optim.SGD([*net.parameters(), *predictor.parameters()], lr=0.1)
        for i in range(12):
            a, b = net(x), net(x + 0.1)
            step(opt, -F.cosine_similarity(predictor(a), b.detach()).mean())
    """,
    "straight-through": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            h = net.body(x)
            hard = h + (h.round() - h).detach()
            step(opt, F.mse_loss(net.head(hard), y))
    """,
    "REINFORCE": """
        policy = nn.Linear(4, 3); opt = torch.optim.SGD(policy.parameters(), lr=0.1)
        for i in range(12):
            dist = torch.distributions.Categorical(logits=policy(x))
            action = dist.sample()
            step(opt, -(dist.log_prob(action) * action.float()).mean())
    """,
    "sparse experts": """
        experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(6))
        opt = torch.optim.SGD(experts.parameters(), lr=0.1)
        for i in range(4):
            step(opt, F.mse_loss(experts[i % 3](x), y))
    """,
    "heads that alternate": """
        body, heads = nn.Linear(4, 4), nn.ModuleDict({k: nn.Linear(4, 1) for k in "abc"})
        opt = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.1)
        for i in range(60):
            step(opt, F.mse_loss(heads["abc"[i // 20]](body(x)), y))
    """,
    "progressive unfreezing": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        net.body.requires_grad_(False)
        for i in range(12):
            if i == 6:
                net.body.requires_grad_(True)
            step(opt, F.mse_loss(net(x), y))
    """,
    "frozen on the way": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            if i == 6:
                net.body.requires_grad_(False)
            step(opt, F.mse_loss(net(x), y))
    """,
    "a frozen backbone": """
        net = Net(); net.body.requires_grad_(False)
        opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "manual updates": """
        net, other = Net(), nn.Linear(1, 1); opt = torch.optim.SGD(other.parameters(), lr=0.1)
        for i in range(12):
            opt.zero_grad()
            net.zero_grad()
            F.mse_loss(other(net(x)), y).backward()
            opt.step()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.1 * p.grad
    """,
    "manual updates through .data": """
        net, other = Net(), nn.Linear(1, 1); opt = torch.optim.SGD(other.parameters(), lr=0.1)
        for i in range(12):
            opt.zero_grad()
            net.zero_grad()
            F.mse_loss(other(net(x)), y).backward()
            opt.step()
            for p in net.parameters():
                p.data -= 0.1 * p.grad.data
    """,
    "saliency of another net": """
        net, other = Net(), nn.Linear(4, 1); opt = torch.optim.SGD(other.parameters(), lr=0.1)
        for i in range(12):
            image = x.clone().requires_grad_()
            net(image).sum().backward()
            step(opt, F.mse_loss(other(image.grad), y))
    """,
    "meta-learning": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            params = dict(net.named_parameters())
            loss = F.mse_loss(torch.func.functional_call(net, params, (x,)), y)
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
            fast = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads)}
            step(opt, F.mse_loss(torch.func.functional_call(net, fast, (x,)), y))
    """,
    "Reptile": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            inner = copy.deepcopy(net)
            inner_opt = torch.optim.SGD(inner.parameters(), lr=0.1)
            for _ in range(3):
                step(inner_opt, F.mse_loss(inner(x), y))
            for p, q in zip(net.parameters(), inner.parameters()):
                p.grad = p.detach() - q.detach()
            opt.step()
    """,
    "a style that is optimized": """
        net = Net().requires_grad_(False); image = x.clone().requires_grad_()
        opt = torch.optim.LBFGS([image])
        def closure():
            opt.zero_grad()
            loss = F.mse_loss(net(image), y)
            loss.backward()
            return loss
        for i in range(4):
            opt.step(closure)
    """,
    "a leaf that is given": """
        scale = torch.tensor(2.0, requires_grad=True); opt = torch.optim.SGD([scale], lr=0.1)
        for i in range(4):
            step(opt, scale)
    """,
    "tied weights": """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.inp, self.out = nn.Linear(4, 4), nn.Linear(4, 4)
                self.out.weight = self.inp.weight
            def forward(self, x):
                return self.out(self.inp(x))
        net = Tied(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            step(opt, F.mse_loss(net(x), x))
    """,
    "a checkpoint": """
        from torch.utils.checkpoint import checkpoint
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            h = checkpoint(net.body, x.clone().requires_grad_(), use_reentrant=True)
            step(opt, F.mse_loss(checkpoint(net.head, h, use_reentrant=False), y))
    """,
    "an optimizer in the backward": """
        net = Net()
        opts = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
        def hook(p):
            opts[p].step()
            opts[p].zero_grad()
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(hook)
        for i in range(12):
            F.mse_loss(net(x), y).backward()
    """,
    "one step": """
        net = Net("unused"); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        step(opt, F.mse_loss(net(x), y))
    """,
    "a gradient that is assigned": """
        net = Net("unused"); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        for i in range(6):
            opt.zero_grad(set_to_none=False)
            F.mse_loss(net(x), y).backward()
            opt.step()
    """,
    "another fit with a model of its own": """
        def fit():
            net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
            for i in range(4):
                step(opt, F.mse_loss(net(x), y))
        for _ in range(5):
            fit()
    """,
}


@pytest.mark.full(but=8)
@pytest.mark.parametrize("program", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_program_has_none(program: str, tmp_path: Path) -> None:
    assert [each for each in told(found_in(program, tmp_path)) if "GS5" in each] == []


CUTS = {
    "detach": "h = net.body(x).detach()",
    "no_grad": "with torch.no_grad():\n    h = net.body(x)",
    "a copy": "h = torch.tensor(net.body(x).tolist())",
    "an integer": "h = net.body(x).round().long().float()",
    "unused": "h = x",
}


@pytest.mark.full(but=2)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("steps", [2, 40])
def test_parameters_that_no_gradient_reaches_are_named(
    cut: str, steps: int, tmp_path: Path
) -> None:
    loop = f"{cut}\nstep(opt, F.mse_loss(net.head(h), y))"
    program = "net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
    program += f"for i in range({steps}):\n{textwrap.indent(loop, '    ')}"
    findings = [f for f in found_in(program, tmp_path) if f.code.startswith("GS5")]
    assert told(findings) == ["advice GS502"]
    (found,) = findings
    check_wording(found)
    assert found.parameters == ("net.body.weight", "net.body.bias")
    assert found.message == (
        f"in {steps} steps, no gradient reached 2 of the 4 parameters of `opt`"
    )
    assert found.label == "has skipped `net.body.*` each time"
    assert found.site == found.step is not None


def test_it_is_said_of_what_is_gone_when_the_watch_ends(tmp_path: Path) -> None:
    program = """
        def main():
            model = Net("unused"); opt = torch.optim.SGD(model.parameters(), lr=0.1)
            for i in range(4):
                step(opt, F.mse_loss(model(x), y))
        main()
    """
    (found,) = found_in(program, tmp_path)
    assert found.parameters == ("model.unused.weight", "model.unused.bias")


def test_experts_are_said_once_there_were_many_steps(tmp_path: Path) -> None:
    program = """
        experts = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
        opt = torch.optim.SGD(experts.parameters(), lr=0.1)
        for i in range(20):
            step(opt, F.mse_loss(experts[i % 2](x), y))
    """
    (found,) = found_in(program, tmp_path)
    assert found.parameters == ("experts.2.weight", "experts.2.bias")


@pytest.mark.parametrize(
    "line",
    [
        "loss.requires_grad_(True)",
        "loss.requires_grad = True",
        "loss = torch.tensor(loss.item(), requires_grad=True)",
    ],
)
def test_a_loss_that_is_made_a_leaf_is_named(line: str, tmp_path: Path) -> None:
    program = f"""
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(4):
            loss = F.mse_loss(net(x).detach(), y)
            {line}
            step(opt, loss)
    """.replace("step(opt, loss)", "opt.zero_grad(); loss.backward(); opt.step()")
    (found,) = found_in(program, tmp_path)
    check_wording(found)
    assert told([found]) == ["warning GS502"]
    site = known(found.site)
    text = (tmp_path / "example.py").read_text().splitlines()[site.line - 1]
    assert text.strip() == line
    assert found.step != site
    assert found.label == "only silences the error: nothing behind `loss` is trained"
    assert len(found.parameters) == 4


NOT_RESET = {
    "plain": "{loss}.backward()\nopt.step()",
    "clipped": "{loss}.backward()\nnn.utils.clip_grad_norm_(net.parameters(), 1.0)\nopt.step()",
    "another module's zero_grad": "other.zero_grad()\n{loss}.backward()\nopt.step()",
    "twice a step": "for _ in range(2):\n    {loss}.backward()\nopt.step()",
}


@pytest.mark.parametrize("loop", NOT_RESET.values(), ids=NOT_RESET)
@pytest.mark.parametrize("steps", [4, 60])
def test_gradients_that_are_used_again_are_said(loop: str, steps: int, tmp_path: Path) -> None:
    body = textwrap.indent(loop.format(loss="F.mse_loss(net(x), y)"), "    ")
    program = (
        "net, other = Net(), nn.Linear(2, 2); opt = torch.optim.SGD(net.parameters(), lr=1e-4)\n"
    )
    (found,) = found_in(f"{program}for i in range({steps}):\n{body}", tmp_path)
    check_wording(found)
    assert told([found]) == ["warning GS504"]
    looked_at = min(steps, 32)
    assert found.message == (
        f"in {looked_at - 1} of {looked_at} steps, `opt` used gradients that it had used before"
    )
    assert found.parameters == tuple(
        f"net.{each}" for each in ("body.weight", "body.bias", "head.weight", "head.bias")
    )


def test_those_that_are_not_reset_are_named(tmp_path: Path) -> None:
    program = """
        net, scale = Net(), nn.Parameter(torch.ones(1))
        opt = torch.optim.SGD([*net.parameters(), scale], lr=0.01)
        for i in range(12):
            net.zero_grad()
            (F.mse_loss(net(x), y) * scale).backward()
            opt.step()
    """
    (found,) = found_in(program, tmp_path)
    assert (told([found]), found.parameters) == (["warning GS504"], ("scale",))


def test_few_steps_are_not_said(tmp_path: Path) -> None:
    program = """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(12):
            if i % 2 == 0:
                opt.zero_grad()
            F.mse_loss(net(x), y).backward()
            opt.step()
    """
    assert told(found_in(program, tmp_path)) == []


NEVER_USED = {
    "replaced": ("net.head = nn.Linear(4, 1)", "warning", ("net.head.weight", "net.head.bias")),
    "replaced by another size": (
        "net.head = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))",
        "warning",
        ("net.head.0.weight", "net.head.0.bias", "net.head.1.weight", "net.head.1.bias"),
    ),
    "copied": (
        "before, net = net, copy.deepcopy(net)",
        "warning",
        ("net.body.weight", "net.body.bias", "net.head.weight", "net.head.bias"),
    ),
    "other submodules only": (
        "opt = torch.optim.SGD(net.head.parameters(), lr=0.1)",
        "advice",
        ("net.body.weight", "net.body.bias"),
    ),
}


@pytest.mark.parametrize(("change", "severity", "names"), NEVER_USED.values(), ids=NEVER_USED)
@pytest.mark.parametrize("in_function", [False, True])
def test_gradients_that_nothing_uses_are_said(
    change: str, severity: str, names: tuple[str, ...], in_function: bool, tmp_path: Path
) -> None:
    loop = f"""
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        {change}
        for i in range(12):
            net.zero_grad()
            F.mse_loss(net(x), y).backward()
            opt.step()
    """
    if in_function:
        loop = f"def main():\n{textwrap.indent(textwrap.dedent(loop), '    ')}\nmain()"
    (found,) = found_in(loop, tmp_path)
    check_wording(found)
    assert told([found]) == [f"{severity} GS503"]
    assert set(found.parameters) == set(names)
    assert found.bytes > 0


def test_modules_in_a_plain_list_are_said(tmp_path: Path) -> None:
    program = """
        class Many(nn.Module):
            def __init__(self):
                super().__init__()
                self.head, self.layers = nn.Linear(4, 1), [nn.Linear(4, 4) for _ in range(2)]
            def forward(self, x):
                for layer in self.layers:
                    x = layer(x).tanh()
                return self.head(x)
        net = Many(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """
    (found,) = found_in(program, tmp_path)
    assert told([found]) == ["warning GS503"]
    assert len(found.parameters) == 4


def test_the_full_form_is_the_same_finding() -> None:
    facts = gs502.NotReached(("net.a.weight",), ("net.b.weight",), 10, "opt", STEP)
    short = gs502.finding(facts)
    full = replace(short, site=CUT, label="cuts the way to `net.a.*`", severity=Severity.WARNING)
    assert (short.severity, short.site, full.anchor) == (Severity.ADVICE, STEP, STEP)
    assert short.cause == full.cause
    silenced = gs502.finding(facts._replace(silenced=CUT))
    assert (silenced.severity, silenced.site, silenced.cause) == (Severity.WARNING, CUT, full.cause)
    others = gs502.finding(facts._replace(names=("net.c.weight",)))
    assert others.cause != short.cause


@pytest.mark.parametrize(
    ("names", "others", "short"),
    [
        (("a.b.w", "a.b.b"), ("a.c.w",), ("a.b.*",)),
        (("a.b.w",), (), ("a.*",)),
        (("a.w",), ("a.b",), ("a.w",)),
        (("m.0.gamma", "m.1.gamma"), ("m.0.w", "m.1.w"), ("m.*.gamma",)),
        (("m.0.gamma", "m.1.gamma"), ("m.0.w", "m.1.w", "m.2.gamma"), ("m.0.gamma", "m.1.gamma")),
        (("m.0.w", "m.0.b", "m.2.w"), ("m.1.w",), ("m.0.*", "m.2.*")),
        (("scale",), ("net.w",), ("scale",)),
    ],
)
def test_many_names_are_short(
    names: tuple[str, ...], others: tuple[str, ...], short: tuple[str, ...]
) -> None:
    assert short_names(names, others) == short


def test_shares_are_counted() -> None:
    assert share(2, 6) == "2 of the 6 parameters"
    assert share(6, 6) == "any of the 6 parameters"
    assert share(1, 1) == "the only parameter"
