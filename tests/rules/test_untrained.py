"""GS502 to GS504: parameters that no gradient reaches, gradients that nothing uses or that are used again."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.model import Finding, Severity, Site
from gradscope.rules import gs502, gs503, gs504
from gradscope.rules.base import Rule, share, short_names
from tests import examples, known
from tests.rules.saying import LOOP, check_wording, findings_of

RULES = (gs502.RULE, gs503.RULE, gs504.RULE)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
STEP = Site("train.py", 20, 5)
CUT = Site("train.py", 12, 9)


def found_in(source: str, folder: Path) -> list[Finding]:
    findings, error = findings_of(LOOP + textwrap.dedent(source), folder)
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


def test_an_optimizer_that_steps_behind_another_one_is_looked_at_as_often(tmp_path: Path) -> None:
    program = """
        net, last = Net(), nn.Linear(1, 1)
        own, behind = (torch.optim.SGD(each.parameters(), lr=1e-4) for each in (net, last))
        for i in range(60):
            own.zero_grad()
            F.mse_loss(last(net(x)), y).backward()
            for opt in (own, behind):
                opt.step()
    """
    (found,) = found_in(program, tmp_path)
    assert (told([found]), found.parameters) == (
        ["warning GS504"],
        ("last.weight", "last.bias"),
    )
    assert found.message.startswith("in 31 of 32 steps")


def test_few_steps_are_not_said(tmp_path: Path) -> None:
    program = """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
        for i in range(12):
            if i % 4:
                opt.zero_grad()
            F.mse_loss(net(x), y).backward()
            opt.step()
    """
    assert told(found_in(program, tmp_path)) == []
    (found,) = found_in(program.replace("if i % 4", "if i % 2"), tmp_path)
    assert found.message == "in 5 of 12 steps, `opt` used gradients that it had used before"


def test_what_a_derivative_gives_no_gradient_is_named(tmp_path: Path) -> None:
    program = """
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.save_for_backward(scale)
                return x * scale
            @staticmethod
            def backward(ctx, grad):
                return grad * ctx.saved_tensors[0], None
        net, scale = Net(), nn.Parameter(torch.ones(1))
        opt = torch.optim.SGD([*net.parameters(), scale], lr=0.01)
        for i in range(4):
            opt.zero_grad()
            F.mse_loss(Scaled.apply(net(x), scale), y).backward()
            opt.step()
    """
    (found,) = found_in(program, tmp_path)
    assert (told([found]), found.parameters) == (["advice GS502"], ("scale",))
    freed = "scale.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', None))"
    again = program.replace("], None", "], grad.sum().reshape(1)")
    again = again.replace("for i in", f"{freed}\n        for i in")
    assert told(found_in(again, tmp_path)) == []


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


RESET_TOO_EARLY = {
    "plain": "opt.zero_grad()  # here",
    "zeros": "opt.zero_grad(set_to_none=False)  # here",
    "by the module, then clipped": (
        "net.zero_grad()  # here\nnn.utils.clip_grad_norm_(net.parameters(), 1.0)"
    ),
    "by hand": "for p in net.parameters():\n    p.grad = None  # here",
    "before that of another": "opt.zero_grad()  # here\nother.zero_grad()",
    "when enough was accumulated": "if i % 2:\n    opt.zero_grad()  # here",
    "in a function that is not seen": "reset(); opt.step()  # here",
}


@pytest.mark.full(but=3)
@pytest.mark.parametrize("lines", RESET_TOO_EARLY.values(), ids=RESET_TOO_EARLY)
@pytest.mark.parametrize("steps", [4, 60])
def test_gradients_that_are_reset_before_the_step_are_said(
    lines: str, steps: int, tmp_path: Path
) -> None:
    step = "if i % 2:\n    opt.step()" if "i % 2" in lines else "opt.step()"
    body = textwrap.indent(f"F.mse_loss(net(x), y).backward()\n{lines}\n{step}", "    ")
    program = "net = Net(); opt, reset = torch.optim.SGD(net.parameters(), lr=0.1), net.zero_grad\n"
    program += f"other = nn.Linear(1, 1)\nfor i in range({steps}):\n{body}"
    (found,) = found_in(program, tmp_path)
    check_wording(found)
    assert told([found]) == ["warning GS503"]
    assert len(found.parameters) == 4
    site = known(found.site)
    text = (tmp_path / "example.py").read_text().splitlines()[site.line - 1]
    assert text.endswith("# here")
    assert (found.label == "resets the gradients before `opt` steps") == ("reset()" not in lines)


def test_what_resets_is_found_in_the_function_that_steps(tmp_path: Path) -> None:
    program = """
        def update(opt):
            opt.zero_grad()
            opt.step()
        def both(opt, loss):
            opt.zero_grad()
            run(loss)
            opt.step()
        def run(loss):
            loss.backward(); opt.zero_grad()
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(4):
            {}
    """
    (found,) = found_in(program.format("F.mse_loss(net(x), y).backward(); update(opt)"), tmp_path)
    assert known(found.site).line == known(found.step).line - 1
    (found,) = found_in(program.format("both(opt, F.mse_loss(net(x), y))"), tmp_path)
    assert found.site == found.step
    assert found.label == "has found those of `net.*` reset each time"


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
