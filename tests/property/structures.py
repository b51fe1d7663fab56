"""Random training programs that differ in how a state travels: control flow, containers, scopes and calls.

``python -m tests.property.structures 17`` prints program 17; with ``--count 500`` it runs 500 programs from that
number on, and says what was told early, what was not, and what was told in vain.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.property.ahead import Told, told_of

HEAD = """\
import asyncio, contextlib, dataclasses, functools, heapq, itertools, operator, queue, types
from collections import ChainMap, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, replace
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed({seed})
net, readout = nn.Linear(4, 3), nn.Linear(3, 2)
cell = nn.GRUCell(3, 3)
modules = nn.ModuleList([net, readout, cell])
opt = torch.optim.SGD(modules.parameters(), lr=0.1)
cfg = types.SimpleNamespace(cut={cut}, every={every}, steps={steps}, mode="{mode}")
log = []
def zeros():
    return torch.zeros(2, 3)
def cut(value):
    if isinstance(value, (tuple, list)):
        return type(value)(cut(each) for each in value)
    return value.detach()
@dataclass(frozen=True)
class Carry:
    h: torch.Tensor
    step: int = 0
State = namedtuple("State", "h step")
class Slots:
    __slots__ = ("h",)
    def __init__(self, h):
        self.h = h
class Guarded:
    def __init__(self):
        self._h = zeros()
    @property
    def h(self):
        return self._h
    @h.setter
    def h(self, value):
        self._h = value
class Table:
    def __init__(self):
        self.rows = [zeros()]
    def __getitem__(self, at):
        return self.rows[at]
    def __setitem__(self, at, value):
        self.rows[at] = value
class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = zeros()
    def recall(self):
        return self.kept
    def remember(self, value, scale=1.0):
        self.kept = value * scale
class Base:
    def store(self, value):
        self.value = value
class Store(Base):
    def __init__(self):
        self.value = zeros()
    def store(self, value):
        super().store(value)
        return self
def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        log.append(function.__name__)
        return function(*args, **kwargs)
    return inner
@contextlib.contextmanager
def update():
    opt.zero_grad()
    try:
        yield opt
    finally:
        opt.step()
def backward(loss, **options):
    loss.backward(**options)
    return float(loss)
def data(n):
    for _ in range(n):
        yield torch.randn(2, 4)
"""

CARRIERS = (
    ("zeros()", "{v}", "{v} = {n}"),
    ("zeros()", "{v}", "{v} = {n}"),
    ("{{'h': zeros()}}", "{v}['h']", "{v}['h'] = {n}"),
    ("{{}}", "{v}.get('h', zeros())", "{v}.update(h={n})"),
    ("{{}}", "{v}.setdefault('h', zeros())", "{v} |= {{'h': {n}}}"),
    ("defaultdict(zeros)", "{v}['h']", "{v}['h'] = {n}"),
    ("OrderedDict(h=zeros())", "{v}.pop('h')", "{v}['h'] = {n}"),
    ("ChainMap({{}}, {{'h': zeros()}})", "{v}['h']", "{v}['h'] = {n}"),
    ("[zeros()]", "{v}[-1]", "{v}.append({n})"),
    ("[zeros()]", "{v}.pop()", "{v}.append({n})"),
    ("[zeros()]", "{v}[0]", "{v}[:] = [{n}]"),
    ("deque([zeros()], maxlen=2)", "{v}[-1]", "{v}.append({n})"),
    ("deque([zeros()])", "{v}.popleft()", "{v}.append({n})"),
    ("Carry(zeros())", "{v}.h", "{v} = replace({v}, h={n}, step={v}.step + 1)"),
    ("Carry(zeros())", "{v}.h", "{v} = Carry({n}, i)"),
    ("State(zeros(), 0)", "{v}.h", "{v} = {v}._replace(h={n})"),
    ("types.SimpleNamespace(h=zeros())", "{v}.h", "{v}.h = {n}"),
    ("Slots(zeros())", "getattr({v}, 'h')", "setattr({v}, 'h', {n})"),
    ("Guarded()", "{v}.h", "{v}.h = {n}"),
    ("Table()", "{v}[0]", "{v}[0] = {n}"),
    ("Memory()", "{v}.recall()", "{v}.remember({n})"),
    ("Store()", "{v}.value", "{v} = {v}.store({n})"),
    ("(zeros(), zeros())", "{v}[0]", "{v} = ({n}, {v}[0])"),
    ("(zeros(), zeros())", "{v}[1]", "{v} = ({v}[1], {n})"),
    (
        "functools.partial(cell, hx=zeros())",
        "{v}.keywords['hx']",
        "{v} = functools.partial(cell, hx={n})",
    ),
    ("(lambda: zeros)()", "{v}()", "{v} = functools.partial(lambda t: t, {n})"),
    ("zeros()", "{v}", "{v} = (lambda t: t * 1)({n})"),
    ("[(0, zeros())]", "heapq.heappop({v})[1]", "heapq.heappush({v}, (i + 1, {n}))"),
    ("iter([zeros()])", "next({v})", "{v} = itertools.chain([{n}], {v})"),
    ("itertools.repeat(zeros())", "next({v})", "{v} = itertools.repeat({n})"),
)
"""What the state is in at first, how it is read from there and how the next one is put there."""

KEPT = (
    "h",
    "h",
    "h",
    "h.clone()",
    "h * 0.5",
    "h if cfg.cut else h",
    "torch.cat([h[:1], h[1:]])",
    "F.relu(h)",
)
CUT = (
    *(
        "h.detach()",
        "cut(h)",
        "cut((h, 1 * h))[0]",
        "h.data",
        "h.detach().clone()",
        "torch.zeros_like(h)",
    ),
    *("torch.tensor(h.tolist())", "h.detach().requires_grad_()"),
)
SOMETIMES = (
    "h.detach() if i % cfg.every == 0 else h",
    "cut(h) if cfg.cut else h",
    "h if cfg.mode == 'whole' else cut(h)",
    "[h, h.detach()][cfg.cut]",
    "h.detach() if i >= cfg.every else h",
)

FEATURES = (
    *("net(x)", "net(x).tanh()", "torch.stack([net(row) for row in x])", "net.forward(x)"),
    *("functools.reduce(lambda a, f: f(a), [net, torch.tanh], x)", "logged(net.forward)(x)"),
    *(
        "torch.cat(tuple(map(net, x.split(1))))",
        "sum([net(x), net(x)])",
        "nn.Sequential(net, nn.Tanh())(x)",
    ),
    *("operator.methodcaller('tanh')(net(x))", "next(net(each) for each in [x])"),
)
STATES = (
    *("cell(features, h)", "torch.tanh(features + h)", "cell.forward(features, hx=h)"),
    *(
        "cell(*(features, h))",
        "cell(**{'input': features, 'hx': h})",
        "features.add(h)",
        "features.lerp(h, 0.5)",
    ),
)
LOSSES = (
    *(
        "readout(h).pow(2).mean()",
        "F.mse_loss(readout(h), torch.ones(2, 2))",
        "(readout(h) ** 2).sum()",
    ),
    *(
        "sum(row.exp().sum() for row in readout(h))",
        "torch.stack([row.exp().mean() for row in readout(h)]).mean()",
    ),
    *(
        "functools.reduce(operator.add, [readout(h).exp().sum()])",
        "max([readout(h).exp().sum()], key=float)",
    ),
)

CALLS = (
    ("opt.zero_grad()", "loss.backward()", "opt.step()"),
    ("opt.zero_grad()", "loss.backward()", "opt.step()"),
    ("opt.zero_grad()", "backward(loss)", "opt.step()"),
    ("with update():", "    loss.backward()"),
    (
        "with contextlib.ExitStack() as stack:",
        "    stack.enter_context(update())",
        "    backward(loss)",
    ),
    ("for each in (loss,):", "    each.backward()"),
    ("[each.backward() for each in (loss,)]",),
    ("list(map(backward, [loss]))",),
    ("torch.autograd.backward([loss])",),
    (
        "grads = torch.autograd.grad(loss, list(modules.parameters()), allow_unused=True)",
        "del grads",
    ),
    ("functools.partial(backward, loss)()",),
    ("try:", "    loss.backward()", "finally:", "    log.append(i)"),
    (
        "match cfg.mode:",
        "    case 'whole':",
        "        loss.backward()",
        "    case _:",
        "        backward(loss)",
    ),
    ("logged(backward)(loss)",),
    ("if (value := loss.item()) < 1e9:", "    loss.backward()", "    log.append(value)"),
    ("losses = {'main': loss, 'small': loss * 0.1}", "sum(losses.values()).backward()"),
    (
        "losses = {'main': loss, 'small': loss * 0.1}",
        "for name, each in losses.items():",
        "    each.backward(retain_graph=name == 'main')",
    ),
    (
        "for number, part in enumerate([loss, loss.exp()]):",
        "    part.backward(retain_graph=number < 1)",
    ),
)
TWICE = (
    (
        "losses = {'main': loss, 'small': loss * 0.1}",
        "for name, each in losses.items():",
        "    each.backward()",
    ),
    ("for part in [loss, loss.exp()]:", "    part.backward()"),
    ("loss.backward()", "if i == cfg.every:", "    (h * h).sum().backward()"),
    ("loss.backward()", "if cfg.cut:", "    (h * h).sum().backward()"),
    ("all(each.backward() is None for each in (loss, loss * 2))",),
)
"""What runs a graph backward twice, or does under a condition."""

LOOPS = (
    ("for i in range(cfg.steps):", "x = torch.randn(2, 4)"),
    ("for i, x in enumerate(data(cfg.steps)):",),
    ("for i, x in zip(range(cfg.steps), itertools.cycle([torch.ones(2, 4)])):",),
    ("for i, x in enumerate(itertools.islice(data(99), cfg.steps)):",),
    ("for i, (x, *_) in enumerate([(torch.ones(2, 4), 1)] * cfg.steps):",),
    ("for i, x in enumerate(map(torch.sin, data(cfg.steps))):",),
    ("for i, x in enumerate(torch.randn(cfg.steps, 2, 4)):",),
    ("for i, x in enumerate(reversed(list(data(cfg.steps)))):",),
    ("i = -1", "while (i := i + 1) < cfg.steps:", "x = torch.randn(2, 4)"),
    ("i = -1", "while True:", "i += 1", "if i == cfg.steps:", "    break", "x = torch.randn(2, 4)"),
    (
        "for i, x in sorted({n: each for n, each in enumerate(data(cfg.steps))}.items(), key=operator.itemgetter(0)):",
    ),
)


def program(seed: int) -> str:
    """Return a random training program."""
    chance = random.Random(seed)
    head = HEAD.format(
        seed=seed,
        cut=chance.random() < 0.5,
        every=chance.randrange(1, 4),
        steps=chance.randrange(2, 6),
        mode=chance.choice(("whole", "parts")),
    )
    layout = chance.choice(LAYOUTS)
    return head + "\n".join(layout(chance)) + "\n"


def body(
    chance: random.Random, variable: str, *, calls: bool = True
) -> tuple[str, list[str], list[str]]:
    """Return what the state is at first, one iteration up to its loss, and the backward call."""
    first, read, write = chance.choice(CARRIERS)
    roll = chance.random()
    value = chance.choice(CUT if roll < 0.42 else SOMETIMES if roll < 0.6 else KEPT)
    read, write = read.format(v=variable), write.format(v=variable, n=value)
    lines = [f"h = {read}"]
    if chance.random() < 0.1:
        lines.append("h = h.detach()")
    lines += [f"features = {chance.choice(FEATURES)}", f"h = {chance.choice(STATES)}"]
    lines.append(f"loss = {chance.choice(LOSSES)}")
    call = list(chance.choice(TWICE if chance.random() < 0.12 else CALLS))
    if not calls:
        return first.format(), [*lines, write], []
    if chance.random() < 0.5:
        return first.format(), [*lines, write], call
    return first.format(), lines, [*call, write]


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def loop(chance: random.Random, inner: Sequence[str]) -> list[str]:
    """Return a loop around an iteration."""
    lines = list(chance.choice(LOOPS))
    at = next(n for n, line in enumerate(lines) if line.startswith(("for", "while")))
    return [*lines[: at + 1], *indented([*lines[at + 1 :], *inner])]


def in_a_function(chance: random.Random) -> list[str]:
    first, lines, call = body(chance, "state")
    return [
        "def train():",
        f"    state = {first}",
        *indented(loop(chance, lines + call)),
        "train()",
    ]


def at_the_top(chance: random.Random) -> list[str]:
    first, lines, call = body(chance, "state")
    return [f"state = {first}", *loop(chance, lines + call)]


def in_a_closure(chance: random.Random) -> list[str]:
    first, lines, call = body(chance, "state")
    return [
        *(
            "def trainer():",
            f"    state = {first}",
            "    def step(i, x):",
            "        nonlocal state",
        ),
        *indented(lines + call, 2),
        *("        return loss.item()", "    return step", "step = trainer()"),
        *loop(chance, ["step(i, x)"]),
    ]


def in_a_class(chance: random.Random) -> list[str]:
    first, lines, call = body(chance, "self.state")
    return [
        *("class Trainer:", "    def __init__(self):", f"        self.state = {first}"),
        *(
            "    def step(self, i, x):",
            *indented(lines, 2),
            "        return self.finish(i, h, loss)",
        ),
        *("    def finish(self, i, h, loss):", *indented(call, 2), "        return loss.item()"),
        *("trainer = Trainer()", *loop(chance, ["log.append(trainer.step(i, x))"])),
    ]


def in_a_generator(chance: random.Random) -> list[str]:
    first, lines, call = body(chance, "state", calls=False)
    call = list(chance.choice(CALLS))
    return [
        *("def stream():", f"    state = {first}", *indented(loop(chance, [*lines, "yield loss"]))),
        *("def train():", "    for i, loss in enumerate(stream()):", *indented(call, 2), "train()"),
    ]


def in_a_coroutine(chance: random.Random) -> list[str]:
    first, lines, call = body(chance, "state")
    inner = [*lines, "await asyncio.sleep(0)", *call]
    return [
        "async def train():",
        f"    state = {first}",
        *indented(loop(chance, inner)),
        "asyncio.run(train())",
    ]


def by_recursion(chance: random.Random) -> list[str]:
    first, lines, call = body(chance, "state")
    return [
        *(
            "def train(i, state):",
            "    if i == cfg.steps:",
            "        return state",
            "    x = torch.randn(2, 4)",
        ),
        *indented(lines + call),
        *("    return train(i + 1, state)", f"train(0, {first})"),
    ]


def by_accumulate(chance: random.Random) -> list[str]:
    roll = chance.random()
    value = chance.choice(CUT if roll < 0.45 else KEPT).replace("i %", "0 %")
    call = [line.replace("append(i)", "append(0)") for line in chance.choice(CALLS)]
    return [
        *(
            "def step(h, x):",
            f"    features = {chance.choice(FEATURES)}",
            f"    h = {chance.choice(STATES)}",
        ),
        *(f"    loss = {chance.choice(LOSSES)}", *indented(call), f"    return {value}"),
        chance.choice(
            (
                "for h in itertools.accumulate(data(cfg.steps), step, initial=zeros()):\n    log.append(h.sum().item())",
                "functools.reduce(step, data(cfg.steps), zeros())",
                "deque(itertools.accumulate(data(cfg.steps), step, initial=zeros()), maxlen=0)",
            )
        ),
    ]


def in_windows(chance: random.Random) -> list[str]:
    """Losses are collected, and run backward together every few steps."""
    first, lines, _ = body(chance, "state", calls=False)
    call = list(chance.choice(CALLS))
    at_end = chance.choice(
        ("window.clear()", "window = []", "del window[:]", "window = window[1:]", "pass")
    )
    cut = chance.choice(("h = h.detach()", "pass", "state = {}"))
    if cut.startswith("state"):
        cut = f"state = {first}"
    join = chance.choice(
        ("sum(window)", "torch.stack(window).mean()", "functools.reduce(operator.add, window)")
    )
    ends = [f"loss = {join}", *call, at_end, cut]
    inner = [*lines, "window.append(loss)", "if len(window) >= cfg.every:", *indented(ends)]
    start = ["window = []", f"state = {first}"]
    return ["def train():", *indented(start), *indented(loop(chance, inner)), "train()"]


LAYOUTS = (
    *(in_a_function, at_the_top, in_a_closure, in_a_class, in_a_generator, in_a_coroutine),
    *(by_recursion, by_accumulate, in_windows),
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--count", type=int, help="run so many programs")
    options = parser.parse_args(arguments)
    if options.count is None:
        print(program(options.seed), end="")
        return 0
    totals = Counter[Told]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.count):
            path = Path(folder) / f"structure_{seed}.py"
            path.write_text(program(seed), encoding="utf-8")
            told = told_of(path)
            totals[told] += 1
            if told not in (Told.EARLY, Told.HEALTHY):
                print(seed, told.value, flush=True)
    print(", ".join(f"{count} {told.value}" for told, count in totals.items()))
    return int(totals[Told.IN_VAIN] + totals[Told.UNTOLD] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
