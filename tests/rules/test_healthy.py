"""GS502 to GS504 say nothing of healthy programs, and the last lines say what is true of these."""

from __future__ import annotations

import linecache
import runpy
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import gradscope
from gradscope.model import Outcome, Severity
from gradscope.render.wording import LOOKED_FOR, nothing_found, untrained
from tests.rules.saying import LOOP

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
    "the first half of an accumulation reset": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            for half in range(4):
                F.mse_loss(net(x), y).backward()
                if half < 2:
                    opt.zero_grad()
            opt.step()
            opt.zero_grad()
    """,
    "sharpness-aware": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            F.mse_loss(net(x), y).backward()
            with torch.no_grad():
                away = [0.05 * p.grad for p in net.parameters()]
                torch._foreach_add_([*net.parameters()], away)
            opt.zero_grad()
            F.mse_loss(net(x), y).backward()
            with torch.no_grad():
                torch._foreach_sub_([*net.parameters()], away)
            opt.step()
            opt.zero_grad()
    """,
    "gradients summed by hand and reset in place": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            total = [torch.zeros_like(p) for p in net.parameters()]
            for one, right in zip(x, y):
                F.mse_loss(net(one), right).backward()
                for t, p in zip(total, net.parameters()):
                    t += p.grad
                opt.zero_grad(set_to_none=False)
            for t, p in zip(total, net.parameters()):
                p.grad.copy_(t)
            opt.step()
            opt.zero_grad()
    """,
    "gradients of the last layer dropped": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            opt.zero_grad()
            F.mse_loss(net(x), y).backward()
            for p in net.head.parameters():
                p.grad = None
            opt.step()
    """,
    "a net that is dead": """
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        nn.init.zeros_(net[0].weight); nn.init.constant_(net[0].bias, -1); nn.init.zeros_(net[2].bias)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(6):
            opt.zero_grad(set_to_none=False)
            net(x).pow(2).mean().backward()
            opt.step()
    """,
    "steps by hooks, and one that finds nothing": """
        def now(p):
            p.data -= 0.1 * p.grad
            p.grad = None
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(now)
        for i in range(6):
            F.mse_loss(net(x), y).backward()
            opt.step()
    """,
    "a GAN with a shared body": """
        body = nn.Linear(4, 4); gen, net = nn.Sequential(nn.Linear(4, 4), body), Net()
        net.body = body; opt = torch.optim.SGD(net.parameters(), lr=0.1)
        opt_g = torch.optim.SGD(gen.parameters(), lr=0.1)
        for i in range(6):
            opt_g.zero_grad()
            (-net(gen(x))).mean().backward()
            opt_g.step()
            opt.zero_grad()
            (net(gen(x).detach()) - net(x)).mean().backward()
            opt.step()
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
    "an optimizer that is handed its gradients": """
        class Given(torch.optim.SGD):
            @torch.no_grad()
            def step(self, gradients):
                for p, gradient in zip(self.param_groups[0]["params"], gradients):
                    p -= 0.1 * gradient
        net = Net(); opt = Given(net.parameters())
        for i in range(12):
            opt.step(torch.autograd.grad(F.mse_loss(net(x), y), [*net.parameters()]))
    """,
    "an optimizer that draws its steps, through .data": """
        class Drawn(torch.optim.SGD):
            def step(self):
                for p in self.param_groups[0]["params"]:
                    p.data += 0.01 * torch.randn(p.shape)
        net = Net(); opt = Drawn(net.parameters())
        for i in range(12):
            opt.step()
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
    "a frozen backbone that the optimizer has": """
        net = Net(); net.body.requires_grad_(False)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "LoRA": """
        class LoRA(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = base.requires_grad_(False)
                self.A = nn.Parameter(torch.randn(2, base.in_features))
                self.B = nn.Parameter(torch.zeros(base.out_features, 2))
            def forward(self, x):
                return self.base(x) + x @ self.A.T @ self.B.T
        net = Net(); net.body, net.head = LoRA(net.body), LoRA(net.head)
        opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "only the norms": """
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        net.requires_grad_(False)
        net[1].requires_grad_(True)
        opt = torch.optim.Adam(net[1].parameters())
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "an average through .data": """
        net = Net(); average = copy.deepcopy(net)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
            for p, q in zip(average.parameters(), net.parameters()):
                p.data.mul_(0.9).add_(q.data, alpha=0.1)
    """,
    "a function of the parameters": """
        net = Net()
        params = {k: p.detach().clone().requires_grad_() for k, p in net.named_parameters()}
        opt = torch.optim.Adam(params.values())
        for i in range(12):
            step(opt, F.mse_loss(torch.func.functional_call(net, params, (x,)), y))
    """,
    "gradients of torch.func": """
        net = Net(); opt = torch.optim.Adam(net.parameters())
        def loss(params):
            return F.mse_loss(torch.func.functional_call(net, params, (x,)), y)
        for i in range(12):
            grads = torch.func.grad(loss)({k: p.detach() for k, p in net.named_parameters()})
            for k, p in net.named_parameters():
                p.grad = grads[k]
            opt.step()
    """,
    "meta-learning by torch.func": """
        net = Net(); opt = torch.optim.Adam(net.parameters())
        def inner(params, x, y):
            return F.mse_loss(torch.func.functional_call(net, params, (x,)), y)
        def task(params, x, y):
            grads = torch.func.grad(inner)(params, x, y)
            return inner({k: p - 0.1 * grads[k] for k, p in params.items()}, x, y)
        tasks = torch.stack([x, -x]), torch.stack([y, y])
        for i in range(6):
            params = dict(net.named_parameters())
            step(opt, torch.func.vmap(task, (None, 0, 0))(params, *tasks).mean())
    """,
    "sparse gradients": """
        table, head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1)
        sparse, opt = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(head.parameters())
        rows = torch.arange(8)
        for i in range(12):
            sparse.zero_grad()
            step(opt, F.mse_loss(head(table(rows)), y))
            sparse.step()
    """,
    "fused": """
        net = Net(); opt = torch.optim.AdamW(net.parameters(), fused=True)
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "for each, zeroed for each": """
        net = Net(); opt = torch.optim.AdamW(net.parameters(), foreach=True)
        for i in range(12):
            F.mse_loss(net(x), y).backward()
            opt.step()
            torch._foreach_zero_([p.grad for p in net.parameters()])
    """,
    "an optimizer of the program's": """
        class Own(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        p.add_(p.grad, alpha=-group["lr"])
        net = Net(); opt = Own(net.parameters(), {"lr": 0.1})
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "an optimizer that keeps what it did not use": """
        class Signs(torch.optim.Optimizer):
            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        sent = p.grad.sign() * p.grad.abs().mean()
                        p.sub_(group["lr"] * sent)
                        p.grad.sub_(sent)
        net = Net(); opt = Signs(net.parameters(), {"lr": 0.01})
        for i in range(12):
            F.mse_loss(net(x), y).backward()
            opt.step()
    """,
    "an optimizer in another one": """
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, base):
                self.base, self.steps = base, 0
                self.defaults, self.state = base.defaults, base.state
                self.param_groups = base.param_groups
                self.slow = [p.detach().clone() for p in base.param_groups[0]["params"]]
            def zero_grad(self):
                self.base.zero_grad()
            def step(self):
                self.base.step()
                self.steps += 1
                for p, q in zip(self.param_groups[0]["params"], self.slow):
                    if self.steps % 5 == 0:
                        q += 0.5 * (p.data - q)
                        p.data.copy_(q)
        net = Net(); opt = Lookahead(torch.optim.SGD(net.parameters(), lr=0.1))
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "a group that is added later": """
        net, more = Net(), nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            if i == 6:
                opt.add_param_group({"params": more.parameters()})
            step(opt, F.mse_loss(net(x) + (more(x) if i >= 6 else 0), y))
    """,
    "a group that is added before the last step": """
        net, more = Net(), nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            if i == 11:
                opt.add_param_group({"params": more.parameters()})
            step(opt, F.mse_loss(net(x), y))
    """,
    "layers unfrozen one by one": """
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))
        net.requires_grad_(False)
        net[3].requires_grad_(True)
        opt = torch.optim.SGD(net[3].parameters(), lr=0.1)
        for i in range(12):
            if i in (4, 8):
                layer = net[2 if i == 4 else 0].requires_grad_(True)
                opt.add_param_group({"params": layer.parameters()})
            step(opt, F.mse_loss(net(x), y))
    """,
    "norms of weights": """
        from torch.nn.utils.parametrizations import spectral_norm, weight_norm
        net = Net(); weight_norm(net.body); spectral_norm(net.head)
        opt = torch.optim.Adam(net.parameters())
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "hooks that compute weights": """
        import warnings
        from torch.nn.utils import prune, spectral_norm
        warnings.simplefilter("ignore", FutureWarning)
        net = Net(); spectral_norm(net.body); prune.l1_unstructured(net.head, "weight", 0.5)
        opt = torch.optim.Adam(net.parameters())
        for i in range(12):
            step(opt, F.mse_loss(net(x), y))
    """,
    "a net of a later phase": """
        net, later = Net(), nn.Linear(4, 1)
        opt = torch.optim.Adam([*net.parameters(), *later.parameters()])
        for i in range(60):
            step(opt, F.mse_loss((net if i < 50 else later)(x), y))
    """,
    "an optimizer of a later phase": """
        G, D = nn.Linear(4, 4), nn.Linear(4, 1)
        og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        for i in range(60):
            og.zero_grad()
            od.zero_grad()
            (F.mse_loss(G(x), x) - (D(G(x)).mean() if i >= 50 else 0)).backward()
            og.step()
            od.step()
    """,
    "two optimizers in turn": """
        net = Net()
        first, then = torch.optim.Adam(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            step(first if i < 6 else then, F.mse_loss(net(x), y))
    """,
    "saliency": """
        net = Net()
        for i in range(6):
            image = x.clone().requires_grad_()
            net(image).sum().backward()
            image.grad.abs()
    """,
    "an attack": """
        net = Net(); noise = torch.zeros_like(x, requires_grad=True)
        for i in range(12):
            F.mse_loss(net(x + noise), y).backward()
            noise.data = (noise + 0.1 * noise.grad.sign()).clamp(-0.3, 0.3)
            noise.grad.zero_()
    """,
    "an attack by an optimizer": """
        net = Net(); noise = nn.Parameter(torch.zeros_like(x)); opt = torch.optim.Adam([noise])
        for i in range(12):
            step(opt, -F.mse_loss(net(x + noise), y))
    """,
    "training on attacks": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            image = x.clone().requires_grad_()
            F.mse_loss(net(image), y).backward()
            step(opt, F.mse_loss(net((image + 0.1 * image.grad.sign()).detach()), y))
    """,
    "a style of a net that is not frozen": """
        net = Net(); image = x.clone().requires_grad_(); opt = torch.optim.LBFGS([image])
        def closure():
            opt.zero_grad()
            loss = F.mse_loss(net(image), y)
            loss.backward()
            return loss
        for i in range(4):
            opt.step(closure)
    """,
    "a dream": """
        net = Net(); image = x.clone().requires_grad_()
        for i in range(12):
            net.zero_grad()
            net(image).norm().backward()
            image.data += 0.1 * image.grad.data / image.grad.data.norm()
            image.grad.data.zero_()
    """,
    "experts of bare parameters": """
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.weights = nn.ParameterList(torch.randn(4, 1) for _ in range(6))
            def forward(self, x, i):
                return x @ self.weights[i]
        net = Experts(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(4):
            step(opt, F.mse_loss(net(x, i % 3), y))
    """,
    "a critic in a dictionary of optimizers": """
        G, D = nn.Linear(4, 4), nn.Linear(4, 1)
        opts = {"G": torch.optim.Adam(G.parameters()), "D": torch.optim.Adam(D.parameters())}
        for i in range(6):
            step(opts["G"], -D(G(x)).mean())
    """,
    "a critic that is frozen for a while": """
        G, D = nn.Linear(4, 4), nn.Linear(4, 1)
        og, od = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        for i in range(12):
            step(od, D(G(x).detach()).mean() - D(x).mean())
            D.requires_grad_(False)
            step(og, -D(G(x)).mean())
            D.requires_grad_(True)
    """,
    "gradients used and gone in the backward": """
        net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        def hook(p):
            with torch.no_grad():
                p.sub_(0.1 * p.grad)
            p.grad = None
        for p in net.body.parameters():
            p.register_post_accumulate_grad_hook(hook)
        for i in range(12):
            F.mse_loss(net(x), y).backward()
            opt.step()
            opt.zero_grad()
    """,
    "checkpoints in a model": """
        from torch.utils.checkpoint import checkpoint
        class Deep(Net):
            def forward(self, x):
                h = self.body(x)
                for reentrant in (True, False):
                    h = checkpoint(self.body, h, use_reentrant=reentrant)
                return self.head(h)
        net = Deep(); opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(12):
            opt.zero_grad(set_to_none=False)
            F.mse_loss(net(x), y).backward()
            opt.step()
    """,
}

USUAL = "all 4 parameters of `opt` got gradients"
SAID = {
    "a GAN with a shared body": "all 6 parameters of 2 optimizers got gradients",
    "set_to_none=False": (
        "all 4 parameters of `opt` got gradients, none of the first 32 steps used a gradient twice"
    ),
    "reset through .data": (
        "all 4 parameters of `opt` got gradients, none of the first 32 steps used a gradient twice"
    ),
    "two optimizers on one gradient": "all 4 parameters of 2 optimizers got gradients",
    "a GAN": "all 6 parameters of 2 optimizers got gradients",
    "a GAN whose critic steps later": "all 2 parameters of `opt` got gradients",
    "REINFORCE": "all 2 parameters of `opt` got gradients",
    "sparse experts": (
        "6 of the 12 parameters of `opt` got gradients; not reached yet: 6 "
        "parameters, `experts.3.*`, `experts.4.*`, `experts.5.*`"
    ),
    "heads that alternate": (
        "all 8 parameters of `opt` got gradients, none of the first 32 steps used a gradient twice"
    ),
    "a frozen backbone": (
        "all 2 parameters of `opt` that are not frozen got gradients; not trained: "
        "2 parameters, `net.body.*`, frozen (requires_grad is off)"
    ),
    "manual updates": "all 2 parameters of `opt` got gradients",
    "manual updates through .data": "all 2 parameters of `opt` got gradients",
    "saliency of another net": "all 2 parameters of `opt` got gradients",
    "Reptile": "all 28 parameters of 7 optimizers got gradients",
    "a style that is optimized": (
        "the only parameter of `opt` that is not frozen got gradients; not trained: "
        "4 parameters, `net.*`, frozen (requires_grad is off)"
    ),
    "a leaf that is given": "the only parameter of `opt` got gradients",
    "tied weights": "all 3 parameters of `opt` got gradients",
    "an optimizer in the backward": "all 4 parameters of 4 optimizers got gradients",
    "an optimizer that is handed its gradients": LOOKED_FOR,
    "an optimizer that draws its steps, through .data": (
        "nothing found: too short to say whether graphs grow (3 iterations)"
    ),
    "one step": (
        "nothing found: too short to say whether gradients are reset and every "
        "parameter is reached (3 steps of each optimizer), and whether graphs grow "
        "(3 iterations)"
    ),
    "a gradient that is assigned": "all 6 parameters of `opt` got gradients",
    "another fit with a model of its own": "all 20 parameters of 5 optimizers got gradients",
    "a frozen backbone that the optimizer has": (
        "all 2 parameters of `opt` that are not frozen got gradients; not trained: "
        "2 parameters, `net.body.*`, frozen (requires_grad is off)"
    ),
    "LoRA": (
        "all 4 parameters of `opt` that are not frozen got gradients; not trained: "
        "4 parameters, `net.body.base.*`, `net.head.base.*`, frozen (requires_grad "
        "is off)"
    ),
    "only the norms": (
        "all 2 parameters of `opt` that are not frozen got gradients; not trained: "
        "4 parameters, `net.0.*`, `net.2.*`, frozen (requires_grad is off)"
    ),
    "sparse gradients": "all 3 parameters of 2 optimizers got gradients",
    "an optimizer in another one": "all 4 parameters of `self.base` got gradients",
    "a group that is added later": "all 6 parameters of `opt` got gradients",
    "a group that is added before the last step": "4 of the 6 parameters of `opt` got gradients",
    "layers unfrozen one by one": "all 6 parameters of `opt` got gradients",
    "norms of weights": "all 5 parameters of `opt` got gradients",
    "a net of a later phase": (
        "all 6 parameters of `opt` got gradients, none of the first 32 steps used a gradient twice"
    ),
    "an optimizer of a later phase": (
        "all 4 parameters of 2 optimizers got gradients, none of the first 32 steps "
        "used a gradient twice"
    ),
    "two optimizers in turn": "all 4 parameters of 2 optimizers got gradients",
    "saliency": "no optimizer step was seen",
    "an attack": "no optimizer step was seen",
    "an attack by an optimizer": "the only parameter of `opt` got gradients",
    "a style of a net that is not frozen": "the only parameter of `opt` got gradients",
    "a dream": "no optimizer step was seen",
    "experts of bare parameters": (
        "3 of the 6 parameters of `opt` got gradients; not reached yet: 3 "
        "parameters, `net.weights.3`, `net.weights.4`, `net.weights.5`"
    ),
    "a critic in a dictionary of optimizers": "all 2 parameters of `opt` got gradients",
    "a critic that is frozen for a while": "all 4 parameters of 2 optimizers got gradients",
}
"""What the last lines say of the healthy programs of which they do not say the usual."""


def last_lines(scope: gradscope.Scope) -> str:
    """Return what is said of a run that went well and has no finding."""
    recording = replace(scope.recording(), outcome=Outcome(0, None, finished=True))
    lead, rest, _ = nothing_found(recording, "n calls")
    rest = rest.removeprefix(" in n calls").lstrip(":; ")
    said = rest.removesuffix(f", {LOOKED_FOR}").removesuffix(", no step used a gradient twice")
    said = said if lead == "no problem found" else f"{lead}: {said}"
    return "; ".join([said, *untrained(recording.summary.training)])


@pytest.mark.full(but=8)
@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_has_none(name: str, in_function: bool, tmp_path: Path) -> None:
    program = textwrap.dedent(HEALTHY[name])
    if in_function:
        program = f"def main():\n{textwrap.indent(program, '    ')}\nmain()"
    path = tmp_path / "example.py"
    path.write_text(LOOP + program, encoding="utf-8")
    linecache.checkcache(str(path))
    with gradscope.watch() as scope:
        runpy.run_path(str(path), run_name="__main__")
    grave = (f for f in scope.findings if f.severity is not Severity.ADVICE)
    assert [*grave, *(f for f in scope.findings if f.code.startswith("GS5"))] == []
    assert not scope.recording().summary.notes
    assert last_lines(scope) == SAID.get(name, USUAL)
