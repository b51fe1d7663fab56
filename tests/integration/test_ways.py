"""A rehearsal says where the way from a loss to its parameters was cut, and who was behind the cut.

In each program `# cut` marks the line that cuts, `# mode` the one that switched grad mode off, and `# back` the one
where numbers came back.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradscope.fixing.gradient_paths import Arrival, Cut, Paths
from gradscope.fixing.origins import Origins
from gradscope.fixing.runs import Bounds, Program
from gradscope.launch.interpreter import header_of
from gradscope.model import Site
from tests.command import started

HEAD = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
"""
LOOP = """\
x, y = torch.randn(8, 4), torch.randn(8, 1)
for step in range(3):
    loss = loss_of(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
NETS = """\
enc, head = nn.Linear(4, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*enc.parameters(), *head.parameters()], 0.1)
"""

ENC = ["enc.bias", "enc.weight"]
HEADS = ["head.bias", "head.weight"]
BOTH = [*ENC, *HEADS]

SILENT: dict[str, tuple[str, str, list[str]]] = {
    "a detach": (
        """
        def loss_of(x, y):
            h = enc(x).detach()  # cut
            return F.mse_loss(head(h), y)
        """,
        "detach",
        ENC,
    ),
    "data of a tensor": (
        """
        def loss_of(x, y):
            h = torch.relu(enc(x))
            return F.mse_loss(head(h.data), y)  # cut
        """,
        "data",
        ENC,
    ),
    "a block under no_grad": (
        """
        def loss_of(x, y):
            with torch.no_grad():  # mode
                h = enc(x)  # cut
            return F.mse_loss(head(h), y)
        """,
        "mode",
        ENC,
    ),
    "a decorated function": (
        """
        @torch.no_grad()  # mode
        def features(x):
            h = enc(x)  # cut
            return h * 2

        def loss_of(x, y):
            return F.mse_loss(head(features(x)), y)
        """,
        "mode",
        ENC,
    ),
    "a decorator of several": (
        """
        def plain(function):
            return function

        @plain
        @torch.inference_mode()  # mode
        def features(x):
            return enc(x)  # cut

        def loss_of(x, y):
            return F.mse_loss(head(features(x).clone()), y)
        """,
        "mode",
        ENC,
    ),
    "set_grad_enabled as a context": (
        """
        def loss_of(x, y):
            with torch.set_grad_enabled(bool(x.mean() > 100)):  # mode
                h = enc(x)  # cut
            return F.mse_loss(head(h), y)
        """,
        "mode",
        ENC,
    ),
    "a switch that is turned on again later": (
        """
        def loss_of(x, y):
            torch.set_grad_enabled(False)  # mode
            h = enc(x)  # cut
            torch.set_grad_enabled(True)
            return F.mse_loss(head(h), y)
        """,
        "mode",
        ENC,
    ),
    "enable_grad within no_grad that ends before": (
        """
        def loss_of(x, y):
            with torch.no_grad():  # mode
                with torch.enable_grad():
                    enc(x).sum()
                h = enc(x)  # cut
            return F.mse_loss(head(h), y)
        """,
        "mode",
        ENC,
    ),
    "no_grad within a function of no_grad": (
        """
        @torch.no_grad()
        def inner(x):
            return x + 1

        def loss_of(x, y):
            with torch.no_grad():  # mode
                h = enc(inner(x))  # cut
            return F.mse_loss(head(h), y)
        """,
        "mode",
        ENC,
    ),
    "an argmax": (
        """
        def loss_of(x, y):
            chosen = F.one_hot(enc(x).argmax(1), 4).float()  # cut
            return F.mse_loss(head(chosen), y)
        """,
        "integers",
        ENC,
    ),
    "a comparison": (
        """
        def loss_of(x, y):
            mask = enc(x) > 0  # cut
            return F.mse_loss(head(x * mask), y)
        """,
        "integers",
        ENC,
    ),
    "a number": (
        """
        scale = nn.Parameter(torch.tensor(0.5))
        optimizer = torch.optim.SGD([scale, *enc.parameters(), *head.parameters()], 0.1)

        def loss_of(x, y):
            return F.mse_loss(head(enc(x)) * scale.item(), y)  # cut # back
        """,
        "left",
        ["scale"],
    ),
    "a number that is computed with": (
        """
        def loss_of(x, y):
            gate = enc(x).mean().item()  # cut
            gate = 1 - gate / 2
            return F.mse_loss(head(x) * gate, y)  # back
        """,
        "left",
        ENC,
    ),
    "a list of numbers": (
        """
        def loss_of(x, y):
            rows = enc(x).tolist()  # cut
            return F.mse_loss(head(torch.tensor(rows)), y)  # back
        """,
        "left",
        ENC,
    ),
    "float": (
        """
        def loss_of(x, y):
            gate = float(enc(x).mean())  # cut
            return F.mse_loss(head(x * gate), y)  # back
        """,
        "left",
        ENC,
    ),
    "an array": (
        """
        def loss_of(x, y):
            h = enc(x).detach().numpy()  # cut
            h = h / (abs(h).max() + 1)
            return F.mse_loss(head(torch.from_numpy(h)), y)
        """,
        "detach",
        ENC,
    ),
    "numbers of numpy": (
        """
        import numpy as np

        def loss_of(x, y):
            with torch.no_grad():  # mode
                h = enc(x)  # cut
            h = np.concatenate([np.tanh(h.numpy()), np.ones((8, 1), dtype=np.float32)], axis=1)[:, :4]
            return F.mse_loss(head(torch.as_tensor(h)), y)
        """,
        "mode",
        ENC,
    ),
    "torch.tensor of tensors": (
        """
        def loss_of(x, y):
            h = torch.tensor([enc(row).mean() for row in x])  # cut
            return F.mse_loss(head(x) * h[:, None], y)
        """,
        "copy",
        ENC,
    ),
    "a gradient without a graph": (
        """
        def loss_of(x, y):
            x = x.clone().requires_grad_()
            (force,) = torch.autograd.grad(enc(x).sum(), x)  # cut
            return F.mse_loss(head(force), y)
        """,
        "create_graph",
        ENC,
    ),
    "a sample": (
        """
        def loss_of(x, y):
            h = torch.distributions.Normal(enc(x), 1.0).sample()  # cut
            return F.mse_loss(head(h), y)
        """,
        "sample",
        ENC,
    ),
    "a reentrant checkpoint": (
        """
        from torch.utils.checkpoint import checkpoint

        def loss_of(x, y):
            h = checkpoint(enc, x, use_reentrant=True)  # cut
            return F.mse_loss(head(h), y)
        """,
        "checkpoint",
        ENC,
    ),
    "a Function that marks its result": (
        """
        class Round(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                out = x.round()
                ctx.mark_non_differentiable(out)  # cut
                return out

            @staticmethod
            def backward(ctx, grad):
                return grad

        def loss_of(x, y):
            return F.mse_loss(head(Round.apply(enc(x))), y)
        """,
        "marked",
        ENC,
    ),
    "written into a buffer's data": (
        """
        buffer = torch.zeros(8, 4)

        def loss_of(x, y):
            buffer.copy_(enc(x).detach())  # cut
            return F.mse_loss(head(buffer), y)
        """,
        "detach",
        ENC,
    ),
    "kept in an attribute for the next step": (
        """
        class Memory:
            last = torch.zeros(8, 4)

        def loss_of(x, y):
            loss = F.mse_loss(head(Memory.last), y)
            Memory.last = enc(x).detach()  # cut
            return loss
        """,
        "detach",
        ENC,
    ),
    "in a thread": (
        """
        import threading

        def loss_of(x, y):
            found = []

            def work():
                found.append(enc(x).detach())  # cut

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return F.mse_loss(head(found[0]), y)
        """,
        "detach",
        ENC,
    ),
    "within torch.func": (
        """
        def loss_of(x, y):
            def inner(row):
                return head(enc(row).detach()).square().sum()  # cut

            return torch.func.vmap(inner)(x).mean()
        """,
        "detach",
        ENC,
    ),
    "a compiled function": (
        """
        @torch.compile
        def features(x):
            return enc(x).detach()  # cut

        def loss_of(x, y):
            return F.mse_loss(head(features(x)), y)
        """,
        "detach",
        ENC,
    ),
    "a choice, beside what has its shape alone": (
        """
        def loss_of(x, y):
            h = enc(x).softmax(-1)
            chosen = F.one_hot(h.argmax(-1), 4).float()  # cut
            out = torch.zeros_like(h) + h.new_ones(8, 4)
            return F.mse_loss(head(out * chosen), y)
        """,
        "integers",
        ENC,
    ),
}

LOUD: dict[str, tuple[str, str, list[str]]] = {
    "an error rate": (
        """
        def loss_of(x, y):
            hits = head(enc(x)).argmax(1) == 0  # cut
            return 1 - hits.float().mean()
        """,
        "integers",
        BOTH,
    ),
    "a loss of numbers": (
        """
        def loss_of(x, y):
            losses = []
            for row, target in zip(x, y):
                losses.append(F.mse_loss(head(enc(row)), target).item())  # cut
            return torch.tensor(sum(losses) / len(losses))  # back
        """,
        "left",
        BOTH,
    ),
    "numbers by way of numpy": (
        """
        import numpy as np

        def loss_of(x, y):
            errors = [F.mse_loss(head(enc(r)), t).item() for r, t in zip(x, y)]  # cut
            return torch.tensor(np.mean(errors))  # back
        """,
        "left",
        BOTH,
    ),
    "in inference mode": (
        """
        def loss_of(x, y):
            with torch.inference_mode():  # mode
                out = head(enc(x))  # cut
                return F.mse_loss(out, y)
        """,
        "mode",
        BOTH,
    ),
    "a switch left off": (
        """
        torch.set_grad_enabled(False)  # mode

        def loss_of(x, y):
            return F.mse_loss(head(enc(x)), y)  # cut
        """,
        "mode",
        BOTH,
    ),
}

SKIPPED = """
def features(x):
    torch.set_grad_enabled(False)  # mode
    if x.shape[0] > 4:
        raise ValueError("too many")  # raised
    torch.set_grad_enabled(True)
    return x

def loss_of(x, y):
    try:
        x = features(x)
    except ValueError:
        pass
    return F.mse_loss(head(enc(x)), y)  # cut
"""

HEALTHY = {
    "a target network": """
        import copy
        target = copy.deepcopy(enc)

        def loss_of(x, y):
            with torch.no_grad():
                goal = target(x)
                for one, other in zip(target.parameters(), enc.parameters()):
                    one.mul_(0.9).add_(other, alpha=0.1)
            return F.mse_loss(head(enc(x)), y) + F.mse_loss(enc(x), goal)
        """,
    "a stopped gradient beside another way": """
        def loss_of(x, y):
            h = enc(x)
            return F.mse_loss(head(h), y) + F.mse_loss(h, h.detach() * 2)
        """,
    "straight through": """
        def loss_of(x, y):
            h = enc(x)
            h = h + (h.round() - h).detach()
            return F.mse_loss(head(h), y)
        """,
    "reinforce": """
        def loss_of(x, y):
            policy = torch.distributions.Categorical(logits=enc(x))
            action = policy.sample()
            reward = [float(a == 0) for a in action.tolist()]
            return -(policy.log_prob(action) * torch.tensor(reward)).mean() + head(x).pow(2).mean()
        """,
    "a checkpoint without reentrance": """
        from torch.utils.checkpoint import checkpoint

        def loss_of(x, y):
            h = checkpoint(enc, x, use_reentrant=False)
            return F.mse_loss(checkpoint(head, h, use_reentrant=True), y)
        """,
    "a Function and its parameters": """
        class Linear(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w, b):
                ctx.save_for_backward(x, w)
                return x @ w.t() + b

            @staticmethod
            def backward(ctx, grad):
                x, w = ctx.saved_tensors
                return grad @ w, grad.t() @ x, grad.sum(0)

        def loss_of(x, y):
            h = Linear.apply(x, enc.weight, enc.bias)
            print(h.mean().item(), h.detach().numpy().max())
            return F.mse_loss(head(h), y)
        """,
    "a penalty with create_graph": """
        def loss_of(x, y):
            x = x.clone().requires_grad_()
            out = head(torch.tanh(enc(x)))
            (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return F.mse_loss(out, y) + g.pow(2).mean()
        """,
    "torch.func": """
        from torch.func import functional_call, grad

        def loss_of(x, y):
            own = dict(enc.named_parameters())
            inner = grad(lambda p: functional_call(enc, p, (x,)).pow(2).mean())(own)
            fast = {k: p - 0.1 * inner[k] for k, p in own.items()}
            return F.mse_loss(head(functional_call(enc, fast, (x,))), y)
        """,
}


def followed(program: str, folder: Path, calls: int = 0) -> Origins:
    file = folder / "train.py"
    file.write_text(program)
    return Program(header_of([str(file)], hooks=True), True, started).follow(Bounds(calls, 60))


def written(body: str) -> str:
    return HEAD + NETS + textwrap.dedent(body) + LOOP


def marked(program: str, word: str) -> int | None:
    lines = enumerate(program.splitlines(), 1)
    return next((number for number, line in lines if f"# {word}" in line), None)


def names(ways: Paths, cut: Cut) -> list[str]:
    return sorted(ways.record.leaves[n].name for n in cut.behind)


def line(site: Site | None) -> int | None:
    return None if site is None else site.line


def check(program: str, cut: Cut, reason: str) -> None:
    assert str(cut.reason) == reason
    assert line(cut.site) == marked(program, "cut")
    assert line(cut.mode_site) == marked(program, "mode")
    if reason == "left":
        assert line(next(iter(cut.back), None)) == marked(program, "back")


def unreached(ways: Paths) -> list[int]:
    """What an optimizer holds, and neither a call has reached nor a step found with a gradient."""
    own = (*(call.reached for call in ways.losses), *(step.given for step in ways.record.steps))
    reached = frozenset[int]().union(*own)
    held = {n for holder in ways.record.optimizers for n in holder.leaves if n >= 0}
    return [n for n in sorted(held - reached) if ways.record.leaves[n].requires_grad]


@pytest.mark.parametrize(("body", "reason", "behind"), SILENT.values(), ids=SILENT)
def test_it_says_where_the_way_to_a_parameter_is_cut(
    body: str, reason: str, behind: list[str], tmp_path: Path
) -> None:
    program = written(body)
    ways = Paths(followed(program, tmp_path))
    assert ways.record.ended == "enough"
    leaves = unreached(ways)
    assert sorted({ways.record.leaves[n].name for n in leaves}) == behind
    (answer,) = ways.of_leaves(leaves)
    assert answer.state is Arrival.CUT
    assert sorted({n for cut in answer.cuts[:1] for n in names(ways, cut)}) == behind
    check(program, answer.cuts[0], reason)


@pytest.mark.parametrize(("body", "reason", "behind"), LOUD.values(), ids=LOUD)
def test_it_says_why_a_call_has_no_graph(
    body: str, reason: str, behind: list[str], tmp_path: Path
) -> None:
    program = written(body)
    ways = Paths(followed(program, tmp_path))
    assert "does not require grad" in ways.record.ended
    call = ways.record.calls[-1]
    assert not call.has_graph
    cuts = ways.cuts(call.roots) or ways.left_unseen(call)
    assert names(ways, cuts[0]) == behind
    check(program, cuts[0], reason)


@pytest.mark.parametrize("body", HEALTHY.values(), ids=HEALTHY)
def test_it_says_nothing_of_what_is_trained(body: str, tmp_path: Path) -> None:
    ways = Paths(followed(written(body), tmp_path))
    assert ways.record.ended == "enough"
    assert not unreached(ways)
    assert {answer.state for answer in ways.of_leaves(ways.named("enc"))} == {Arrival.ARRIVES}
    assert all(call.has_graph for call in ways.record.calls)


def test_a_view_that_torch_refuses_is_left_alone(tmp_path: Path) -> None:
    program = HEAD + textwrap.dedent("""
        net = nn.Linear(4, 4)
        nn.init.orthogonal_(net.weight)
        net.requires_grad_(False)
        net(torch.ones(4)).sum().backward()
    """)
    record = followed(program, tmp_path)
    assert "does not require grad" in record.ended
    assert len(record.calls) == 1


def test_a_function_that_gives_no_gradient_is_named(tmp_path: Path) -> None:
    program = HEAD + textwrap.dedent("""
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                return x * scale
            @staticmethod
            def backward(ctx, grad):
                return grad, None
        net, scale = nn.Linear(4, 1), nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([*net.parameters(), scale], 0.1)
        for step in range(3):
            loss = Scaled.apply(net(torch.ones(4)), scale).sum()
            loss.backward()
            optimizer.step()
    """)
    ways = Paths(followed(program, tmp_path))
    (answer,) = ways.of_leaves(ways.named("scale"))
    assert answer.state is Arrival.LOST
    begin = ways.lost_by(answer.leaves[0])
    assert begin is not None
    assert program.splitlines()[begin.line].strip() == "def backward(ctx, grad):"


def test_it_says_which_exception_left_grad_mode_off(tmp_path: Path) -> None:
    program = written(SKIPPED)
    ways = Paths(followed(program, tmp_path))
    cut = ways.cuts(ways.record.calls[-1].roots)[0]
    check(program, cut, "mode")
    assert cut.mode is not None
    assert line(cut.mode.skipped) == marked(program, "raised")


def test_it_goes_on_to_the_call_that_is_asked_for(tmp_path: Path) -> None:
    later = "head.requires_grad_(False)\nenc.requires_grad_(False)\nloss_of(x, y).backward()\n"
    program = written("def loss_of(x, y):\n    return F.mse_loss(head(enc(x)), y)\n") + later
    assert followed(program, tmp_path).ended == "enough"
    ways = Paths(followed(program, tmp_path, calls=4))
    call = ways.record.calls[-1]
    assert not call.has_graph
    assert not ways.cuts(call.roots)
    frozen = [ways.record.leaves[n] for n in ways.frozen_behind(call.roots)]
    assert sorted(leaf.name for leaf in frozen) == BOTH
    lines = program.splitlines()
    assert {lines[(line(ways.record.site(leaf.frozen)) or 0) - 1] for leaf in frozen} == {
        "head.requires_grad_(False)",
        "enc.requires_grad_(False)",
    }


def test_an_input_that_is_not_reached_is_known_by_its_place(tmp_path: Path) -> None:
    body = """
    def loss_of(x, y):
        loss = F.mse_loss(head(enc(x)), y)
        torch.autograd.grad(loss, [enc.weight, x.requires_grad_(), head.bias], retain_graph=True)
        return loss
    """
    record = followed(
        written(body.replace("x.requires_grad_()", "torch.ones(1).requires_grad_()")), tmp_path
    )
    assert record.calls[-1].unused == (1,)
