"""What the search offers comes from the record of a rehearsal, and the program runs with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.fixing import what_if
from gradscope.fixing.candidates import Search
from gradscope.fixing.patch import apply, read
from gradscope.fixing.rehearsal import Trace
from gradscope.fixing.runs import Bounds, Program
from gradscope.launch.interpreter import header_of
from gradscope.model import Certainty, Finding, Fix, FixKind, Severity, Site
from tests.command import command, ran_well
from tests.zygote import python

pytestmark = pytest.mark.full(but=2)

LOOP = """\
import torch

torch.manual_seed(0)
{before}
for step in range(4):
    {body}
print("trained")
"""


def loop(before: str, body: str) -> str:
    """A program that does something in each iteration."""
    return LOOP.format(before=before, body=body.replace("\n", "\n    "))


def rehearsed(program: str, folder: Path) -> Trace:
    """The record of a program, which is written to a file."""
    (folder / "train.py").write_text(program)
    header = header_of([str(folder / "train.py")], hooks=True)
    return Program(header, sandboxed=True).rehearse(Bounds(0, 60))


def offered(program: str, folder: Path, fails: str) -> dict[FixKind, list[Fix]]:
    """What mends a program that fails at the last line with some text."""
    record, file = rehearsed(program, folder), str(folder / "train.py")
    line = max(n for n, text in enumerate(program.split("\n"), 1) if fails in text)
    site, certainty = Site(file, line), Certainty.OBSERVED
    finding = Finding("GS101", "it-fails", Severity.ERROR, certainty, "it fails", site)
    search = Search(record, (file, line))
    assert search.fails
    return search.options(finding)


def mended(fix: Fix, folder: Path) -> str:
    """The program with a fix: it runs to its end."""
    text = "".join(apply(read(str(folder / "train.py")), fix.edits).after.lines)
    assert "trained" in ran_well(python(), "-c", text).stdout
    return text


def fixed(program: str, folder: Path) -> str:
    """The program as ``fix --write`` leaves it: it runs to its end."""
    file = folder / "train.py"
    file.write_text(program)
    ran_well(*command("fix", file, "--write"), GRADSCOPE_NO_REHEARSAL="")
    assert "trained" in ran_well(python(), file).stdout
    return file.read_text()


STEP = "opt.zero_grad()\nloss.backward()\nopt.step()"
SGD = "opt = torch.optim.SGD(net.parameters(), 0.1)"

GATED = loop(
    f"net, h = torch.nn.Linear(4, 4), torch.zeros(2, 4)\n{SGD}",
    f"h = torch.tanh(net(h) + h.sin() * h)\nloss = h.square().mean()\n{STEP}",
)


def test_a_value_is_cut_in_all_its_uses(tmp_path: Path) -> None:
    for fix in offered(GATED, tmp_path, "backward")[FixKind.DETACH]:
        text = mended(fix, tmp_path)
        cut = text.count("h.detach()")
        assert cut in (1, 3)
        assert cut == 3 or "    h = h.detach()\n" in text


LARGE = """\
import torch

net, h = torch.nn.Linear(2, 2), torch.zeros(2, 2)
for step in range(40):
    for _ in range({times}):
        h = torch.tanh(net(h))
    h.sum().backward()
"""


@pytest.mark.parametrize(("times", "calls"), [(1, 16), (500, 8)])
def test_of_large_graphs_fewer_calls_are_rehearsed(times: int, calls: int, tmp_path: Path) -> None:
    assert len(rehearsed(LARGE.format(times=times), tmp_path).calls) == calls


GRAM = loop(
    f"net, total = torch.nn.Linear(4, 4), 0.0\n{SGD}",
    f"""out = net(torch.ones(2, 4))
loss = out.square().mean()
{STEP}
total = total + out.t() @ out""",
)


def test_what_lets_go_of_a_value_cuts_all_its_uses(tmp_path: Path) -> None:
    record = rehearsed(GRAM, tmp_path)
    search = Search(record, ("", 0))
    line = GRAM[: GRAM.index("total + out.t()")].count("\n") + 1
    near = [n for n in record.given if record.places[n].line == line]
    text = {
        n: GRAM.split("\n")[line - 1][p.column : p.end_column] for n, p in enumerate(record.places)
    }
    assert {text[n] for n in near if search.lets_go(n, near)} >= {"out", "out.t() @ out"}
    assert "out.t()" not in {text[n] for n in near if search.lets_go(n, near)}
    assert all(len(search.value(n)) == 2 for n in near if text[n] == "out")


POOL = loop(
    f"""import heapq

class Pool:
    def __init__(self):
        self.heap = []

    def offer(self, scores, xs):
        for at, item in enumerate(zip(scores, xs)):
            entry = (item[0], (step, at), item[1:])
            heapq.heappush(self.heap, entry)

net, pool = torch.nn.Linear(4, 1), Pool()
{SGD}""",
    f"""loss = net(torch.rand(3, 4)).square().mean()
{STEP}
x = torch.rand(8, 4)
pool.offer(net(x).square().sum(1), x)""",
).replace("range(4)", "range(40)")


def test_what_holds_a_graph_among_other_things_is_let_go_where_it_is_put_in(
    tmp_path: Path,
) -> None:
    assert "entry = (item[0].item(), (step, at), item[1:])" in fixed(POOL, tmp_path)


TWO_LOSSES = """body = torch.nn.Linear(4, 4)
one, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
first = torch.optim.SGD([*body.parameters(), *one.parameters()], 0.1)
second = torch.optim.SGD(other.parameters(), 0.1)"""
STALE = loop(
    TWO_LOSSES,
    """part = torch.tanh(body(torch.ones(2, 4)))
deep = body(part)
a, b = one(deep).square().mean(), other(deep).square().mean()
first.zero_grad()
a.backward()
first.step()
second.zero_grad()
b.backward()
second.step()""",
)


def test_no_graph_is_kept_of_which_a_step_changes_what_it_has_saved(tmp_path: Path) -> None:
    options = offered(STALE, tmp_path, "b.backward()")
    assert not options[FixKind.RETAIN_GRAPH]
    assert "deep.detach()" in mended(options[FixKind.DETACH][0], tmp_path)


CARRIED = loop(
    f"""
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.h, self.c = torch.nn.LSTMCell(3, 4), None, None

    def forward(self, x):
        if self.h is None:
            self.h, self.c = torch.zeros(2, 4), torch.zeros(2, 4)
        self.h, self.c = self.cell(x, (self.h, self.c))
        return self.h

net = Net()
{SGD}""",
    f"loss = net(torch.ones(2, 3)).square().mean()\n{STEP}",
)


OBJECT = loop(
    """
class State:
    h = c = None

def run(state, x):
    if state.h is None:
        state.h, state.c = torch.zeros(2, 4), torch.zeros(2, 4)
    state.h, state.c = net(x, (state.h, state.c))
    return state.h

net, state = torch.nn.LSTMCell(3, 4), State()
"""
    + SGD,
    f"loss = run(state, torch.ones(2, 3)).square().mean()\n{STEP}",
)


@pytest.mark.parametrize("program", [CARRIED, OBJECT], ids=["module", "object"])
def test_all_that_carries_a_graph_is_cut_where_it_may_be_none(program: str, tmp_path: Path) -> None:
    options = offered(program, tmp_path, "backward")
    assert options[FixKind.DETACH]
    for fix in options[FixKind.DETACH]:
        text = mended(fix, tmp_path)
        assert "h.detach()" in text
        assert "c.detach()" in text
    assert not options[FixKind.RECOMPUTE]  # another run of it would move its state


RETAINED = loop(
    f"net, h = torch.nn.GRU(3, 4), None\n{SGD}",
    "y, h = net(torch.ones(5, 2, 3), h)\nloss = y.square().mean()\n"
    + STEP.replace("()\nopt.step", "(retain_graph=True)\nopt.step"),
)


def test_what_is_carried_past_a_step_that_changes_what_it_needs_is_cut(tmp_path: Path) -> None:
    """Some of its ways lead through nothing that was changed; no call has ever trained by them."""
    cut = offered(RETAINED, tmp_path, "backward")[FixKind.DETACH]
    assert {effect for fix in cut for effect in fix.effects} == {what_if.OUTDATED}
    assert "None if h is None else h.detach()" in fixed(RETAINED, tmp_path)


EPOCHS = loop(
    f"""
class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.rnn = torch.nn.Parameter(torch.ones(1, 3, 3)), torch.nn.GRU(3, 3)
        self.weight = None

    def forward(self, x):
        if self.weight is None:
            self.weight = self.start.data
        self.weight = self.rnn(self.weight)[0]
        return x @ self.weight.squeeze(0)

net = torch.nn.Sequential(Weight(), torch.nn.Linear(3, 1))
{SGD}""",
    f"loss = 0.0\nfor x in torch.ones(3, 2, 3):\n    loss = loss + net(x).square().mean()\n{STEP}",
)


def test_what_a_module_carries_is_cut_after_the_call(tmp_path: Path) -> None:
    options = offered(EPOCHS, tmp_path, "backward")
    first = mended(options[FixKind.DETACH][0], tmp_path)
    assert "loss.backward()\n    net[0].weight = net[0].weight.detach()\n" in first
    assert not options[FixKind.RECOMPUTE]  # it is computed from itself


BUFFER = loop(
    f"""
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.sums = torch.nn.Parameter(torch.ones(4)), torch.zeros(4)

    def forward(self, x):
        self.sums.zero_()
        self.sums.add_(self.scale * x.square())
        return self.sums.exp()

net = Net()
{SGD}""",
    f"out = net(torch.ones(4))\nloss = out.mean()\n{STEP}",
)


TWO_PASSES = loop(
    f"net, tasks = torch.nn.Linear(4, 4), range(2)\n{SGD}",
    """loss = 0
for task in tasks:
    loss = loss + net(torch.ones(2, 4))[:, task].square().mean()
opt.zero_grad()
loss.backward()
opt.step()
for task in tasks:
    loss = loss + net(torch.ones(2, 4))[:, task].square().mean()
opt.zero_grad()
loss.backward()  # fails
opt.step()""",
)


def test_what_an_iteration_has_bound_is_cut_behind_a_call(tmp_path: Path) -> None:
    first = offered(TWO_PASSES, tmp_path, "# fails")[FixKind.DETACH][0]
    assert "loss.backward()\n    loss = loss.detach()" in mended(first, tmp_path)


def test_nothing_runs_again_that_writes_to_what_has_a_graph(tmp_path: Path) -> None:
    options = offered(BUFFER, tmp_path, "backward")
    assert not options[FixKind.RECOMPUTE]
    assert options[FixKind.DETACH]
    mended(options[FixKind.DETACH][0], tmp_path)


CLEARED = loop(
    f"net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())\n{SGD}\nseen = []",
    """out = net(torch.ones(2, 4))
probe = out.sum()
loss = out.square().mean()
opt.zero_grad()
probe.backward()
seen.append(float(net[0].weight.grad.norm()))
opt.zero_grad()
loss.backward()
opt.step()""",
)


def test_losses_are_not_added_if_a_gradient_is_cleared_between(tmp_path: Path) -> None:
    options = offered(CLEARED, tmp_path, "loss.backward()")
    assert not options[FixKind.SUM_LOSSES]
    assert "probe.backward(retain_graph=True)" in mended(options[FixKind.RETAIN_GRAPH][0], tmp_path)


IN_PLACE = loop(
    f"net, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)\n{SGD}",
    f"h = torch.sigmoid(net(torch.ones(2, 4)))\ng = other(h)\nh += 0.1 * g\nloss = h.mean()\n{STEP}",
)


def test_what_is_written_in_place_is_first_written_out_of_place(tmp_path: Path) -> None:
    first, second = offered(IN_PLACE, tmp_path, "backward")[FixKind.CLONE]
    assert "    h = h + 0.1 * g\n" in mended(first, tmp_path)
    assert ".clone()" in mended(second, tmp_path)


KEPT = loop(
    f"net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())\n{SGD}",
    """a, b, c = net(torch.ones(2, 4)).square().sum(0)[:3]
opt.zero_grad()
a.backward(retain_graph=True)
b.backward()
c.backward()
opt.step()""",
)


def test_a_graph_is_kept_as_others_of_the_program_are(tmp_path: Path) -> None:
    (fix,) = offered(KEPT, tmp_path, "c.backward()")[FixKind.RETAIN_GRAPH]
    line = KEPT[: KEPT.index("a.backward")].count("\n") + 1
    assert fix.reason == f"the program keeps its graphs so at line {line}"
    assert "    b.backward(retain_graph=True)\n" in mended(fix, tmp_path)


GAN = loop(
    """G, D = torch.nn.Linear(4, 6), torch.nn.Sequential(
    torch.nn.Linear(6, 8), {layer}, torch.nn.Linear(8, 1), torch.nn.Sigmoid())
oG, oD = (torch.optim.Adam(net.parameters(), 0.01) for net in (G, D))""",
    """fake = G(torch.randn(8, 4))
score = D(fake)
d_loss = score.mean() - D(torch.randn(8, 6)).log().mean()
g_loss = -score.log().mean()
oD.zero_grad()
d_loss.backward(retain_graph=True)
oD.step()
oG.zero_grad()
g_loss.backward()
oG.step()""",
)


@pytest.mark.parametrize("layer", ["torch.nn.Tanh()", "torch.nn.Dropout()"])
def test_a_step_between_two_losses_keeps_what_each_trains(layer: str, tmp_path: Path) -> None:
    options = offered(GAN.replace("{layer}", layer), tmp_path, "g_loss.backward()")
    assert not options[FixKind.REORDER]  # the discriminator would step with both losses
    (fix,) = options[FixKind.RECOMPUTE]
    again = "    score = D(fake)\n    g_loss = -score.log().mean()\n    g_loss.backward()\n"
    assert again in mended(fix, tmp_path)
    assert any("drawn anew" in effect for effect in fix.effects) == ("Dropout" in layer)


SHARED = loop(
    """body = torch.nn.Linear(4, 4)
one, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
first = torch.optim.SGD([*body.parameters(), *one.parameters()], 0.1)
second = torch.optim.SGD([*body.parameters(), *other.parameters()], 0.1)""",
    """deep = body(body(torch.ones(2, 4)))
a, b = one(deep).square().mean(), other(deep).square().mean()
first.zero_grad()
a.backward(retain_graph=True)
first.step()
second.zero_grad()
b.backward()
second.step()""",
)


def test_no_step_waits_until_its_gradient_is_cleared(tmp_path: Path) -> None:
    options = offered(SHARED, tmp_path, "b.backward()")
    assert not options[FixKind.REORDER]
    assert "second.zero_grad()\n    deep = body(body(" in mended(
        options[FixKind.RECOMPUTE][0], tmp_path
    )


HANDED_ON = loop(
    f"""net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
{SGD}


def slope(out, x, **options):
    return torch.autograd.grad(out.sum(), x, **options)[0]

""",
    f"""x, t = torch.rand(2, 6, 1).requires_grad_().unbind()
u = net(torch.cat([x, t], 1))
u_t = slope(u, t)
u_x = slope(u, x, create_graph=True)
loss = (u_t - slope(u_x, x, create_graph=True)).square().mean()
{STEP}""",
)


def test_a_flag_is_written_where_the_options_of_a_function_are(tmp_path: Path) -> None:
    """Each caller has its own; what the loss is computed from is differentiated, too."""
    options = offered(HANDED_ON, tmp_path, "grad(out.sum()")
    (trained,), (kept,) = options[FixKind.CREATE_GRAPH], options[FixKind.RETAIN_GRAPH]
    assert "u_t = slope(u, t, create_graph=True)" in mended(trained, tmp_path)
    text = mended(kept, tmp_path)
    assert "u_t = slope(u, t, retain_graph=True)" in text
    assert text.count("retain_graph") == 1


ONCE = loop(
    f"""net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
rates = torch.zeros(4, requires_grad=True)
{SGD}
opt.add_param_group({{"params": [rates]}})
scale = rates.exp()  # its result is saved, which no step changes
""",
    f"""loss = net(torch.rand(3, 4) * scale).square().mean()
{STEP}""",
)
SECOND = loop(
    f"""net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
{SGD}""",
    f"""t = torch.rand(6, 1).requires_grad_()
u = net(t)
du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
d2u = torch.autograd.grad(du.sum(), t)[0]
loss = (d2u + u).square().mean()
{STEP}""",
)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (ONCE, "for step in range(4):\n    scale = rates.exp()"),
        (SECOND, "d2u = torch.autograd.grad(du.sum(), t, create_graph=True)[0]"),
    ],
    ids=["built once of what is stepped", "a derivative of a derivative"],
)
def test_what_trains_as_it_is_written_is_tried_before_what_only_runs(
    program: str, line: str, tmp_path: Path
) -> None:
    """``retain_graph=True`` runs both to their ends: at the values of the first step, and without
    the second derivative.
    """
    assert offered(program, tmp_path, "loss.backward()")[FixKind.RETAIN_GRAPH]
    assert line in fixed(program, tmp_path)


CARRIED = loop(
    f"""class Cells(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = torch.nn.LSTM(4, 4)

    def forward(self, x, state):
        out, state = self.cells(x, state)
        return out, state

net, state = Cells(), (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
{SGD}""",
    f"""out, state = net(torch.rand(3, 2, 4), state)
loss = out.square().mean()
{STEP}""",
)
SCORED = loop(
    """critic = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(inplace=True))
critic.append(torch.nn.Linear(8, 1))
maker = torch.nn.Linear(4, 4)
critic_opt = torch.optim.SGD(critic.parameters(), 0.1)
opt = torch.optim.SGD(maker.parameters(), 0.1)""",
    f"""made = maker(torch.rand(2, 4))
judged = critic(made.detach()).mean() - critic(torch.rand(2, 4)).mean()
score = critic(made)
loss = -score.mean()
critic_opt.zero_grad()
judged.backward()
critic_opt.step()
{STEP}""",
)


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (CARRIED, "out, state = net(torch.rand(3, 2, 4), tuple(t.detach() for t in state))"),
        (SCORED, "critic_opt.step()\n    score = critic(made)\n    loss = -score.mean()"),
    ],
    ids=["not in what others call", "not twice"],
)
def test_an_edit_is_made_where_it_is_for_this_training_alone(
    program: str, lines: str, tmp_path: Path
) -> None:
    """A module's forward is for all who call it; what nobody has read by then is moved and not run
    again, though it changes in place what it has made itself.
    """
    text = fixed(program, tmp_path)
    assert lines in text
    assert text.count("critic(made)") < 2


PRIOR = loop(
    f"""class Prior(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(4))
        scale = self.log.exp()
        self.given = torch.distributions.Normal(self.mean, scale)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.prior, self.layer = Prior(), torch.nn.Linear(4, 4)

    def forward(self, x):
        return -self.prior.given.log_prob(self.layer(x))

net = Model()
{SGD}""",
    f"loss = net(torch.rand(3, 4)).mean()\n{STEP}",
)
FED = loop(
    f"""class Prompt(torch.nn.Module):
    def __init__(self, words):
        super().__init__()
        self.context = torch.nn.Parameter(torch.rand(4))
        self.words = words
        mixed = self.context + self.words
        self.text = torch.nn.functional.normalize(mixed)

    def forward(self, x):
        return x @ self.text.T

net = Prompt(torch.rand(3, 4))
{SGD}""",
    f"loss = net(torch.rand(2, 4)).square().mean()\n{STEP}",
)
BOUND = loop(
    f"""class Bound(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.rand(4, 4))

    def scores(self):
        return self.table.softmax(1)

    def bind(self):
        self.weight = self.scores()
        return self

    def forward(self, x):
        return x @ self.weight

net = Bound().bind()
{SGD}""",
    f"loss = net(torch.rand(3, 4)).square().mean()\n{STEP}",
)
PROPERTY = """
    @property
    def given(self):
        scale = self.log.exp()
        return torch.distributions.Normal(self.mean, scale)
"""
TEXT = """
    @property
    def text(self):
        mixed = self.context + self.words
        return torch.nn.functional.normalize(mixed)
"""


@pytest.mark.parametrize(
    ("program", "lines"),
    [(PRIOR, PROPERTY), (FED, TEXT), (BOUND, "def forward(self, x):\n        self.bind()\n")],
    ids=["a property", "with what it is computed from", "by its method"],
)
def test_what_an_object_computes_once_is_computed_each_time(
    program: str, lines: str, tmp_path: Path
) -> None:
    """``retain_graph=True`` would train both at the values that they had before the first step."""
    kept = offered(program, tmp_path, "loss.backward()")[FixKind.RETAIN_GRAPH]
    assert {*kept[0].effects} == {what_if.STALE}
    assert lines in fixed(program, tmp_path)


BUILT = loop(
    f"""class Sampled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Parameter(torch.zeros(4, 4))

    def resample(self):
        self.weight = self.mean.exp() * {{noise}}

    def forward(self, x):
        return x @ self.weight

net = Sampled()
{SGD}""",
    f"""net.resample()
for batch in torch.ones(2, 3, 4):
    loss = net(batch).square().mean()
    {STEP.replace(chr(10), chr(10) + "    ")}""",
)


@pytest.mark.parametrize("noise", ["torch.ones(4, 4)", "torch.randn(4, 4)"])
def test_what_is_called_to_build_it_is_called_in_the_inner_loop(noise: str, tmp_path: Path) -> None:
    options = offered(BUILT.replace("{noise}", noise), tmp_path, "loss.backward()")
    fixes = [fix for fix in options[FixKind.RECOMPUTE] if "in each iteration" in fix.message]
    assert "(2, 3, 4):\n        net.resample()\n" in mended(fixes[0], tmp_path)
    assert any("drawn anew" in effect for effect in fixes[0].effects) == ("randn" in noise)
