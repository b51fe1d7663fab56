"""Scripts that leak graphs, as people write them, and healthy ones that look alike: what is said of each, and of which line."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path

import pytest

from gradscope import watch
from gradscope.fixing.patch import apply, decoded
from gradscope.model import Finding, Severity

HEAD = """
import copy, gc
from collections import deque
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
"""

LEAKS = {
    "state_of_an_lstm_next_to_its_output": (
        "GS301",
        """
        lstm, head = nn.LSTM(3, 5), nn.Linear(5, 1)
        state = (torch.zeros(1, 2, 5), torch.zeros(1, 2, 5))
        for step in range(10):
            out, state = lstm(torch.randn(4, 2, 3), state)  # HOLD
            loss = head(out).pow(2).mean()
            loss.backward(retain_graph=True)
        """,
    ),
    "state_handed_on_only_after_the_call": (
        "GS301",
        """
        cell, h = nn.RNNCell(3, 5), torch.zeros(2, 5)
        for step in range(10):
            new = cell(torch.randn(2, 3), h)
            new.pow(2).mean().backward(retain_graph=True)
            h = new
        """,
    ),
    "total_of_losses": (
        "GS302",
        """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        epoch_total = 0.0
        for step in range(10):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            epoch_total += loss  # HOLD
        """,
    ),
    "outputs_in_an_attribute": (
        "GS302",
        """
        class Trainer:
            def __init__(self):
                self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
                self.outputs = []

            def step(self, x, y):
                out = self.net(x)
                loss = F.cross_entropy(out, y)
                loss.backward()
                self.outputs.append({"loss": loss, "out": out})  # HOLD
                return loss.item()

        trainer = Trainer()
        for batch in range(12):
            trainer.step(torch.randn(8, 6), torch.randint(0, 3, (8,)))
        """,
    ),
    "replay_of_values_with_graph": (
        "GS302",
        """
        policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        opt = torch.optim.Adam(policy.parameters())
        replay = []
        for t in range(12):
            obs = torch.randn(1, 4)
            logits = policy(obs)
            value = logits.softmax(-1)
            replay.append((obs, value, 0.0))  # HOLD
            batch = torch.cat([o for o, _, _ in replay[-4:]])
            loss = policy(batch).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """,
    ),
    "statistic_buffer_updated_with_graph": (
        "GS302",
        """
        class Quantizer(nn.Module):
            def __init__(self):
                super().__init__()
                self.encode = nn.Linear(6, 4)
                self.register_buffer("mean_code", torch.zeros(4))

            def forward(self, x):
                z = torch.tanh(self.encode(x))
                self.mean_code = 0.9 * self.mean_code + 0.1 * z.mean(0)  # HOLD
                return z

        model = Quantizer()
        for step in range(12):
            loss = model(torch.randn(8, 6)).pow(2).mean()
            loss.backward()
            model.zero_grad()
        """,
    ),
    "average_weights_without_no_grad": (
        "GS302",
        """
        student = nn.Linear(4, 4)
        opt = torch.optim.SGD(student.parameters(), lr=0.1)
        average = {k: v.detach().clone() for k, v in student.named_parameters()}
        for step in range(12):
            loss = student(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            for k, v in student.named_parameters():
                average[k] = 0.99 * average[k] + 0.01 * v  # HOLD
        """,
    ),
    "accumulating_grads_with_create_graph": (
        "GS304",
        """
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        for step in range(10):
            loss = net(torch.randn(8, 3)).pow(2).mean()
            loss.backward(create_graph=True)
        """,
    ),
    "new_model_every_time_with_create_graph": (
        "GS304",
        """
        gc.disable()
        for trial in range(10):
            net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
            loss = net(torch.randn(8, 3)).pow(2).mean()
            loss.backward(create_graph=True)  # HOLD
        """,
    ),
    "meter_class": (
        "GS302",
        """
        class Meter:
            def __init__(self):
                self.sum, self.count = 0, 0

            def update(self, value):
                self.sum = self.sum + value  # HOLD
                self.count += 1

        net, meter = nn.Linear(4, 1), Meter()
        for step in range(10):
            loss = net(torch.randn(8, 4)).abs().mean()
            loss.backward()
            meter.update(loss)
        """,
    ),
    "adversarial_input_carried_on": (
        "GS302",
        """
        net = nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 1))
        x = torch.randn(4, 5, requires_grad=True)
        momentum = torch.zeros(4, 5)
        scale = nn.Parameter(torch.ones(()))
        for i in range(12):
            loss = net(x).mean()
            g, = torch.autograd.grad(loss, x)
            momentum = 0.9 * momentum + scale * g  # HOLD
            x = (x + 0.1 * g).detach().requires_grad_()
        """,
    ),
    "hook_that_closes_over_its_tensor": (
        "GS304",
        """
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        norms = []

        def forward(x):
            z = net[1](net[0](x))
            z.register_hook(lambda g: norms.append(float((g * z).norm())))  # HOLD
            return net[2](z)

        for step in range(12):
            forward(torch.randn(8, 4)).mean().backward()
        """,
    ),
    "grads_stored_by_a_hook_with_create_graph": (
        "GS302",
        """
        net = nn.Linear(4, 1)
        grads = []
        net.weight.register_hook(lambda g: grads.append(g))  # HOLD
        for step in range(10):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            g, = torch.autograd.grad(loss, net.weight, create_graph=True)
            (loss + g.pow(2).sum()).backward()
            net.zero_grad()
        """,
    ),
    "recurrent_state_with_retain_graph": (
        "GS301",
        """
        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.memory = nn.GRUCell(3, 8), torch.zeros(2, 8)

            def forward(self, x):
                self.memory = self.rnn(x, self.memory)  # HOLD
                return self.memory.mean()

        model = Tagger()
        for step in range(10):
            model(torch.randn(2, 3)).backward(retain_graph=True)
        """,
    ),
    "validation_after_training": (
        "GS302",
        """
        net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        for step in range(6):
            net(torch.randn(8, 4)).pow(2).mean().backward()
        predictions = []
        for batch in range(20):
            predictions.append(net(torch.randn(8, 4)))  # HOLD
        """,
    ),
    "short_loop_in_a_function": (
        "GS302",
        """
        def train(net, steps):
            history = {"loss": [], "step": []}
            for step in range(steps):
                loss = net(torch.randn(8, 4)).pow(2).mean()
                loss.backward()
                history["loss"].append(loss)  # HOLD
                history["step"].append(step)
            return history

        train(nn.Linear(4, 1), 7)
        """,
    ),
}

HEALTHY = {
    "detached_log": """
        net, curve, total = nn.Linear(4, 1), [], 0.0
        for step in range(20):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            curve.append(loss.detach())
            total += loss.item()
        """,
    "losses_summed_then_one_backward": """
        net = nn.Linear(4, 1)
        for step in range(10):
            losses, total = [], 0
            for micro in range(6):
                loss = net(torch.randn(8, 4)).pow(2).mean()
                losses.append(loss)
                total = total + loss
            total.backward()
        """,
    "unrolled_recurrence": """
        cell, head = nn.GRUCell(3, 8), nn.Linear(8, 1)
        for sequence in range(10):
            h, outs = torch.zeros(2, 8), []
            for t in range(12):
                h = cell(torch.randn(2, 3), h)
                outs.append(head(h))
            torch.stack(outs).mean().backward()
        """,
    "long_unrolled_recurrence_once": """
        cell, head = nn.GRUCell(3, 8), nn.Linear(8, 1)
        h, outs = torch.zeros(2, 8), []
        for t in range(100):
            h = cell(torch.randn(2, 3), h)
            outs.append(head(h))
        torch.stack(outs).mean().backward()
        """,
    "residual_forward_only": """
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(40))
        x = torch.randn(2, 8)
        for block in blocks:
            x = x + block(x)
        """,
    "truncated_backpropagation": """
        cell, head = nn.GRUCell(3, 8), nn.Linear(8, 1)
        h, loss = torch.zeros(2, 8), 0
        for t in range(60):
            h = cell(torch.randn(2, 3), h)
            loss = loss + head(h).pow(2).mean()
            if t % 5 == 4:
                loss.backward()
                h, loss = h.detach(), 0
        """,
    "window_of_retained_graphs": """
        cell = nn.GRUCell(3, 8)
        states = [(None, torch.zeros(2, 8))]
        for t in range(40):
            state = states[-1][1].detach().requires_grad_()
            new = cell(torch.randn(2, 3), state)
            states.append((state, new))
            while len(states) > 4:
                del states[0]
            loss = new.pow(2).mean()
            loss.backward(retain_graph=True)
            for i in range(len(states) - 1, 0, -1):
                if states[i][0] is None or states[i][0].grad is None or states[i - 1][0] is None:
                    break
                states[i - 1][1].backward(states[i][0].grad, retain_graph=True)
        """,
    "inner_loop_of_meta_learning": """
        net = nn.Linear(4, 1)
        meta = torch.optim.Adam(net.parameters())
        for episode in range(6):
            fast = dict(net.named_parameters())
            path = []
            for inner in range(10):
                loss = torch.func.functional_call(net, fast, (torch.randn(8, 4),)).pow(2).mean()
                grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
                fast = {k: v - 0.1 * g for (k, v), g in zip(fast.items(), grads)}
                path.append(loss)
            meta.zero_grad()
            torch.func.functional_call(net, fast, (torch.randn(8, 4),)).pow(2).mean().backward()
            meta.step()
        """,
    "cleared_rollouts": """
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        rollout = []
        for t in range(60):
            rollout.append(net(torch.randn(1, 4)).log_softmax(-1)[0, 0])
            if len(rollout) == 5:
                torch.stack(rollout).mean().backward()
                rollout.clear()
        """,
    "create_graph_and_grads_set_to_none": """
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        for step in range(12):
            loss = net(torch.randn(8, 3)).pow(2).mean()
            loss.backward(create_graph=True)
            penalty = sum(p.grad.pow(2).sum() for p in net.parameters())
            for p in net.parameters():
                p.grad = None
            penalty.backward()
            for p in net.parameters():
                p.grad = None
        """,
    "hooks_that_keep_numbers": """
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        norms, acts = [], {}
        net[1].register_forward_hook(lambda m, i, o: acts.__setitem__("z", o))
        for step in range(12):
            out = net(torch.randn(8, 4))
            acts["z"].register_hook(lambda g: norms.append(g.norm().item()))
            out.mean().backward()
        """,
    "two_networks_taking_turns": """
        G, D = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(), nn.Linear(6, 1))
        og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        losses = {"d": [], "g": []}
        for it in range(16):
            fake = G(torch.randn(5, 3))
            d = D(fake.detach()).mean() - D(torch.randn(5, 4)).mean()
            od.zero_grad(); d.backward(); od.step()
            g = -D(fake).mean()
            og.zero_grad(); g.backward(); og.step()
            losses["d"].append(d.item()); losses["g"].append(g.item())
        """,
    "validation_without_graph": """
        net, total = nn.Linear(4, 1), 0
        for epoch in range(5):
            net(torch.randn(8, 4)).pow(2).mean().backward()
            with torch.no_grad():
                for batch in range(8):
                    total += net(torch.randn(8, 4)).pow(2).mean()
        """,
    "shared_precomputed_constant": """
        net, table = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))
        fixed = (table * 2).softmax(-1)
        for step in range(20):
            (net(torch.randn(8, 4)) @ fixed.detach()).pow(2).mean().backward()
        """,
    "losses_of_micro_batches": """
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(10):
            losses = []
            for micro in range(16):
                loss = net(torch.randn(8, 4)).pow(2).mean() / 16
                loss.backward()
                losses.append(loss)
            opt.step()
            opt.zero_grad()
        """,
    "losses_of_tasks": """
        heads = nn.ModuleDict({f"t{i}": nn.Linear(4, 1) for i in range(5)})
        losses = {}
        for name, head in heads.items():
            losses[name] = head(torch.randn(8, 4)).pow(2).mean()
            losses[name].backward()
        """,
    "moving_window_of_numbers": """
        net, window = nn.Linear(4, 1), deque(maxlen=5)
        for step in range(20):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            window.append(float(loss.detach()))
        """,
}


WITHOUT_EDITS = {
    "state_handed_on_only_after_the_call",
    "outputs_in_an_attribute",
    "replay_of_values_with_graph",
    "average_weights_without_no_grad",
    "accumulating_grads_with_create_graph",
    "new_model_every_time_with_create_graph",
    "hook_that_closes_over_its_tensor",
}
"""Leaks whose cure is more than a line, or not to be told from the code."""


def findings_of(source: str, folder: Path) -> tuple[list[Finding], list[str], str]:
    script = folder / "train.py"
    text = HEAD + textwrap.dedent(source)
    script.write_text(text, encoding="utf-8")
    with watch() as scope:
        runpy.run_path(str(script), run_name="__main__")
    return scope.findings, list(scope.recording().summary.notes), text


def warnings_about_leaks(findings: list[Finding]) -> list[str]:
    return [
        f.code for f in findings if f.severity is not Severity.ADVICE and f.code.startswith("GS3")
    ]


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found_and_the_line_that_holds_it_is_named(name: str, tmp_path: Path) -> None:
    code, source = LEAKS[name]
    findings, notes, text = findings_of(source, tmp_path)
    assert notes == []
    assert warnings_about_leaks(findings) == [code]
    (finding,) = (f for f in findings if f.code == code)
    assert finding.fix is not None
    if "# HOLD" in text:
        line = next(i for i, each in enumerate(text.splitlines(), 1) if "# HOLD" in each)
        assert [r.site.line for r in finding.related if r.role == "held_by" and r.site] == [line]


@pytest.mark.parametrize("name", LEAKS)
def test_with_its_edits_made_the_script_runs_clean(name: str, tmp_path: Path) -> None:
    findings, _, text = findings_of(LEAKS[name][1], tmp_path)
    edits = [edit for finding in findings if finding.fix for edit in finding.fix.edits]
    assert bool(edits) is (name not in WITHOUT_EDITS)
    change = apply(decoded("train.py", text.encode()), edits)
    (tmp_path / "again").mkdir()
    again, _, _ = findings_of("".join(change.after.lines).removeprefix(HEAD), tmp_path / "again")
    assert not edits or warnings_about_leaks(again) == []


@pytest.mark.parametrize("name", HEALTHY)
def test_of_a_healthy_script_nothing_is_said_but_advice(name: str, tmp_path: Path) -> None:
    findings, notes, _ = findings_of(HEALTHY[name], tmp_path)
    assert notes == []
    assert warnings_about_leaks(findings) == []
