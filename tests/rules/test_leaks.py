"""GS301 to GS305: their pages' examples, what they say and how they word it, and where a name is stored."""

from __future__ import annotations

import ast
import ctypes
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gradscope import watch
from gradscope.code.statements import data_lines, store_of
from gradscope.formatting import nbytes
from gradscope.model import BackwardCall, Finding, Severity, Site, variable_paths
from gradscope.model.variable_paths import FrameOf, Origin, Step
from gradscope.rules import gs301, gs302, gs303, gs304, gs305
from gradscope.rules.base import NODE_BYTES, Grown, Rule
from tests import examples, known
from tests.rules.saying import findings_of as found_in

past = pytest.mark.usefixtures("little_is_read_ahead")
RULES = (gs301.RULE, gs302.RULE, gs303.RULE, gs304.RULE, gs305.RULE)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
CALL = BackwardCall(12, "backward", Site("train.py", 20), retain_graph=True)
STORED = Site("train.py", 9)


class Arena(ctypes.Structure):
    """What glibc's ``mallinfo2`` returns."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "free", "small", "maps")),
        ("mapped", ctypes.c_size_t),
        *((name, ctypes.c_size_t) for name in ("most", "small_free")),
        ("used", ctypes.c_size_t),
        *((name, ctypes.c_size_t) for name in ("all_free", "top")),
    )


def findings_of(source: str, folder: Path) -> list[Finding]:
    findings, error = found_in(source, folder)
    assert error == ""
    return findings


def held_by(findings: list[Finding]) -> Finding:
    (finding,) = (f for f in findings if f.code == "GS302")
    return finding


@each_rule
def test_the_bad_example_has_this_finding_and_no_other(rule: Rule, tmp_path: Path) -> None:
    assert [f.code for f in findings_of(examples.bad(rule), tmp_path)] == [rule.code]


@each_rule
def test_the_good_example_has_none(rule: Rule, tmp_path: Path) -> None:
    assert findings_of(examples.good(rule), tmp_path) == []


@each_rule
def test_only_what_grows_is_a_warning(rule: Rule) -> None:
    grows = rule.code in ("GS301", "GS302", "GS304")
    assert rule.severity is (Severity.WARNING if grows else Severity.ADVICE)


KEEPING = """
    import torch
    torch.manual_seed(0)
    body, head = torch.nn.Linear(64, 128), torch.nn.Linear(128, 10)
    opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    batch, weight, kept = torch.randn(32, 64), torch.ones(32, 64, requires_grad=True), []
    for step in range(12):
        x = torch.randn(32, 64)
        {own}
        hidden = body(x)
        logits = head(hidden.tanh())
        flat = logits.view(-1)
        loss = flat.mean()
        opt.zero_grad()
        loss.backward({retain})
        opt.step()
        kept.append({kept})
    """
X, HIDDEN, LOGITS, NUMBER = 32 * 64 * 4, 32 * 128 * 4, 32 * 10 * 4, 4


@past
@pytest.mark.full(but=3)
@pytest.mark.parametrize(
    ("own", "retain", "kept", "nodes", "tensors"),
    [
        ("pass", "", "loss", 7, NUMBER),
        ("pass", "", "{'a': logits, 'b': hidden}", 5, LOGITS + HIDDEN),
        ("pass", "", "(logits, flat)", 6, LOGITS),
        ("pass", "retain_graph=True", "logits", 5, LOGITS + X + HIDDEN),
        # The same batch for all of them is no iteration's own, nor is a weight.
        ("x = batch", "retain_graph=True", "logits", 5, LOGITS + HIDDEN),
        ("x.requires_grad_()", "", "logits", 5, LOGITS + 2 * X),  # with its .grad
        ("x = x.detach() * weight", "", "logits", 6, LOGITS),
    ],
)
def test_a_holder_keeps_all_that_is_reached_from_it_once_for_each_storage(
    own: str, retain: str, kept: str, nodes: int, tensors: int, tmp_path: Path
) -> None:
    run = held_by(findings_of(KEEPING.format(own=own, retain=retain, kept=kept), tmp_path))
    found = re.fullmatch(
        r"keeps graphs of (\d+) iterations(?: \(last seen in .*\))?, .*", run.label
    )
    assert found is not None
    once = X if own == "x = batch" else 0
    assert run.bytes == int(found[1]) * (nodes * NODE_BYTES + tensors) + once
    more = nbytes(nodes * NODE_BYTES + tensors)
    message = run.related[0].message
    assert message.endswith(f"; each iteration adds {nodes} nodes, {more} in all")
    assert "`kept` holds" in message


def test_a_node_costs_what_is_said() -> None:
    """Measured where glibc tells it: what malloc gives out for a chain of nodes that save nothing."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("no mallinfo2")
    mallinfo.restype = Arena

    def used() -> int:
        arena = mallinfo()
        return int(arena.used + arena.mapped)

    total = torch.ones((), requires_grad=True) + 1
    before = used()
    for _ in range(10_000):
        total = total + 1
    assert 1 <= (used() - before) / 10_000 / NODE_BYTES < 1.5


@past
@pytest.mark.full(but=2)
@pytest.mark.parametrize("kept", ["kept.append(out)", "total = total + out"])
@pytest.mark.parametrize(("before", "watched"), [(0, 20), (60, 8), (160, 6), (160, 40)])
def test_what_was_there_before_the_watch_is_not_what_iterations_add(
    kept: str, before: int, watched: int, tmp_path: Path
) -> None:
    script = f"""
    import gradscope, torch
    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    kept, total = [], torch.zeros(())
    watching = gradscope.watch(settings=False)
    for step in range({before + watched}):
        if step == {before}:
            scope = watching.__enter__()
        net(torch.ones(16, 8)).mean().backward()
        out = net(torch.ones(16, 8)).mean()
        {kept}
    watching.__exit__(None, None, None)
    findings = list(scope.findings)
    """
    names: dict[str, list[Finding]] = {}
    exec(textwrap.dedent(script), names)
    (said,) = (note.message for note in names["findings"][0].related if " adds " in note.message)
    each = 6 if "append" in kept else 7  # with that of the sum
    tensors = 2560 + 4 * ("append" in kept)  # the outputs themselves, or only the last total
    more = nbytes(each * NODE_BYTES + tensors)
    assert said.endswith(f"; each iteration adds {each} nodes, {more} in all")


@past
@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    "store",
    [
        "total = total + (loss if step > 400 else loss.item())",
        "kept += [loss] if step > 400 else []",
    ],
)
def test_a_leak_that_starts_late_is_seen(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gradscope.detect.growth._SHARE", 1.0
    )  # whatever the scans cost on this machine
    monkeypatch.setattr("gradscope.detect.growth._SHARE_TO_CONFIRM", 1.0)
    source = f"""
    import torch
    net = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    total, kept = torch.zeros(()), []
    for step in range(2500):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        {store}
    """
    (finding,) = findings_of(source, tmp_path)
    assert (finding.code, finding.site and finding.site.line) == ("GS302", 11)


LOGGED = """
    import torch
    net = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    def main():
        {first}
        for step in range({steps}):
            loss = net(torch.randn(8, 4)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            {store}
    """


@past
@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("first", "store", "steps"),
    [
        ("global kept; kept = []", "kept.append(loss)", 40),
        ("global kept; kept = []", "kept.append(loss)", 300),
        ("global total; total = 0", "total = total + loss", 40),
        ("global total; total = 0", "total = total + loss", 300),
    ],
)
def test_the_figures_at_the_end_are_the_last_ones(
    first: str, store: str, steps: int, tmp_path: Path
) -> None:
    source = LOGGED.format(first=first, store=store, steps=steps)
    script = tmp_path / "example.py"
    script.write_text(textwrap.dedent(source), encoding="utf-8")
    announced: list[Finding] = []
    module = ModuleType("__main__")
    with watch(on_finding=announced.append) as scope:
        exec(compile(script.read_text(), str(script), "exec"), vars(module))
        module.main()
    (finding,) = scope.findings
    assert re.match(r"keeps graphs of [789] iterations, ", announced[0].label)
    assert finding.label.startswith(f"keeps graphs of {steps} iterations")
    assert finding.count == 1
    assert scope.recording().findings == tuple(scope.findings)
    assert finding.cause == announced[0].cause
    assert finding.label in str(scope)


@past
def test_where_the_holder_is_gone_in_the_end_the_figures_say_when_it_was_seen(
    tmp_path: Path,
) -> None:
    source = LOGGED.format(first="kept = []", store="kept.append(loss)", steps=40)
    (finding,) = findings_of(f"{source}\n    main()", tmp_path)
    kept = nbytes(32 * (4 * NODE_BYTES + 4))
    assert (
        finding.label == f"keeps graphs of 32 iterations (last seen in iteration 33 of 40), {kept}"
    )


def test_what_a_long_program_keeps_that_trains_nothing_is_told_while_it_runs() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    kept = []
    with watch() as scope:
        for _ in range(600):
            net(torch.randn(2, 4)).sum().backward()
            kept.append(net(torch.randn(2, 4)))
        (finding,) = scope.findings
    assert finding.backward_call == 512
    assert held_by([finding]).message.startswith("`kept` keeps ")


def test_a_holder_that_a_later_loop_no_longer_has_keeps_its_last_figures(tmp_path: Path) -> None:
    program = """
    import torch
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    def one(losses):
        loss = net(torch.randn(4, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    def main():
        losses = []
        for step in range(10):
            one(losses)
        for step in range(38):
            one([])
    main()
    """
    (finding,) = findings_of(program, tmp_path)
    assert finding.label.startswith("keeps graphs of 8 iterations (last seen in iteration 9 of 48)")


def test_the_figures_of_a_cycle_are_the_last_ones(tmp_path: Path) -> None:
    source = examples.bad(gs304.RULE).replace("range(10)", "range(13)")
    (finding,) = findings_of(source, tmp_path)
    assert finding.label.startswith("13 iterations seen, ")


def test_an_object_in_a_container_is_not_told_to_be_detached(tmp_path: Path) -> None:
    program = """
    import dataclasses, torch
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    @dataclasses.dataclass
    class Row:
        loss: torch.Tensor
        step: int
    log = []
    for step in range(12):
        loss = net(torch.randn(4, 4)).pow(2).mean()
        loss.backward()
        log.append(Row(loss, step))
    """
    fix = held_by(findings_of(program, tmp_path)).fix
    assert fix is not None
    assert fix.message.startswith("store .detach() or .item() of its tensors (`loss`) at ")


TOLD_ONCE = """
import torch
net, curve = torch.nn.Linear(4, 1), []
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def learn(net, {curve}):
    opt.zero_grad()
    net(torch.randn(8, 4)).pow(2).mean().backward()
    opt.step()
for step in range(30):
    for _ in range(6):
        curve.append(net(torch.randn(8, 4)).pow(2).mean())
    learn(net, curve)
    {then}
"""


@pytest.mark.parametrize("curve", ["curve", "stored"])
@pytest.mark.parametrize("then", ["", "net(torch.randn(8, 4)).mean().backward()"])
def test_a_holder_is_told_of_once(curve: str, then: str, tmp_path: Path) -> None:
    """Whichever of its variables, a loop's or a called function's, the scans have seen."""
    source = TOLD_ONCE.format(curve=curve, then=then)
    assert [f.code for f in findings_of(source, tmp_path)] == ["GS302"]


REPLAYED = """
import collections
import torch

Step = collections.namedtuple("Step", "seen done worth")
policy = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(policy.parameters(), lr=0.1)
memory = {{}} if "memory[" in {stored!r} else []
for t in range(30):
    seen = torch.randn(3)
    done = torch.tanh(policy(seen))
    {stored}
    opt.zero_grad()
    policy(seen).sum().backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("stored", "detached"),
    [
        ("memory.append((seen, done, 0.1))", "memory.append((seen, done.detach(), 0.1))"),
        ("memory[t] = {'o': seen, 'a': done}", "memory[t] = {'o': seen, 'a': done.detach()}"),
        (
            "memory.append(Step(seen=seen, done=done, worth=policy(seen)))",
            "memory.append(Step(seen=seen, done=done.detach(), worth=policy(seen).detach()))",
        ),
    ],
)
def test_what_holds_graphs_is_to_be_stored_detached(
    stored: str, detached: str, tmp_path: Path
) -> None:
    finding = held_by(findings_of(REPLAYED.format(stored=stored), tmp_path))
    assert [(fix.kind, fix.edits) for fix in finding.fixes] == [("detach", ())]
    line = 1 + REPLAYED[: REPLAYED.index("{stored}\n")].count("\n")
    what = "the tensors (`done`) of what" if "Step" in stored else "what"
    words = f"detach() {what} is stored in `memory` at example.py:{line}; "
    assert finding.fixes[0].message == f"{words}no gradient then flows through it"
    cured = REPLAYED.format(stored=detached)
    assert findings_of(cured, tmp_path) == []


def test_what_is_only_appended_to_holds_numbers(tmp_path: Path) -> None:
    source = LOGGED.format(first='kept = {"a": []}', store='kept["a"].append(loss)', steps=40)
    source += "main()"
    (fix,) = held_by(findings_of(source, tmp_path)).fixes
    assert (fix.kind, fix.edits) == ("item", ())
    assert fix.message.startswith("store .detach() or .item() of it at example.py:12; ")


def test_retaining_for_a_second_call_is_needed_and_at_the_second_is_not(tmp_path: Path) -> None:
    source = """
    import torch
    trunk, a, b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
    for step in range(20):
        z = torch.tanh(trunk(torch.randn(6, 4)))
        first, second = a(z).pow(2).mean(), b(z).pow(2).mean()
        first.backward(retain_graph=True)
        second.backward()
    """
    assert findings_of(source, tmp_path) == []
    last = source.replace("second.backward(", "second.backward(retain_graph=True")
    (tmp_path / "last").mkdir()
    (finding,) = findings_of(last, tmp_path / "last")
    assert (finding.code, finding.site and finding.site.line) == ("GS303", 8)
    assert finding.bytes > 0


def test_nothing_of_the_program_is_kept(tmp_path: Path) -> None:
    source = """
    import gc, weakref, torch
    net, kept = torch.nn.Linear(4, 1), []
    for step in range(12):
        loss = net(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        kept.append(loss)
    dead = weakref.ref(kept[5])
    kept.clear()
    assert dead() is None
    """
    assert [f.code for f in findings_of(source, tmp_path)] == ["GS302"]


FRAME = Origin("local", "train", "train.py", 1)
CARRIED = gs301.Carried(
    CALL,
    variable_paths.Path.of(FRAME, "self", [Step("attribute", "h")]),
    STORED,
    Grown(8, 480, 81920, 60.0, 10240.0),
)
KEPT = gs302.KeptAlive(
    CALL,
    variable_paths.Path.of(FRAME, "losses", []),
    STORED,
    Grown(8, 80, 0, 10.0, 0.0),
    True,
    True,
)


def test_gs301_names_the_carrier_its_size_and_its_growth() -> None:
    finding = gs301.finding(CARRIED)
    assert finding.site == CALL.site
    assert [(r.role, r.site) for r in finding.related] == [
        ("held_by", STORED),
        ("linked_by", STORED),
    ]
    assert (
        "480 nodes (240 KiB) and 80 KiB of tensors; each iteration adds 60 nodes, 40 KiB in all"
        in finding.related[0].message
    )
    assert finding.fix is not None
    assert "`self.h` where it is handed on (train.py:9)" in finding.fix.message
    assert "gradients then stop at the start" in finding.fix.message


def test_gs301_says_that_gradients_are_wrong_where_weights_change_unseen() -> None:
    finding = gs301.finding(CARRIED._replace(silent=True))
    assert "gradients are wrong" in finding.message
    assert ".data" in finding.related[-1].message


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (KEPT, "item"),
        (KEPT._replace(is_scalar=False), "detach"),
        (KEPT._replace(is_scalar=False, is_container=False), "no_grad"),
        (KEPT._replace(call=None, is_container=False), "no_grad"),
        (
            KEPT._replace(
                holder=variable_paths.Path.of(
                    FRAME, "e", [Step("frame", FrameOf("f", "train.py", 2, "train.py:3"))]
                ),
            ),
            "other",
        ),
        (
            KEPT._replace(
                holder=variable_paths.Path.of(FRAME, "w", [Step("hook", "_backward_hooks")])
            ),
            "other",
        ),
    ],
)
def test_gs302_gives_the_fix_for_what_is_held(facts: gs302.KeptAlive, kind: str) -> None:
    finding = gs302.finding(facts)
    assert finding.site == STORED
    assert known(finding.fix).kind == kind


def test_gs303_and_gs305_say_bytes() -> None:
    kept = gs303.finding(CALL, 5, 2048)
    built = gs305.finding(STORED, STORED, 5, 4096, after=3)
    assert (kept.bytes, built.bytes) == (2048, 4096)
    assert "2 KiB" in kept.label
    assert "4 KiB" in built.label
    assert [(r.role, r.site) for r in built.related] == [("created", STORED)]
    assert built.backward_call == 3


def test_gs305_says_how_often_and_names_no_line_that_is_trained_through() -> None:
    finding = gs305.finding(STORED, None, 5, 4096, exactly=False)
    assert finding.label == "4 KiB saved and dropped, at least 5 times; never run backward"
    assert not finding.related


@pytest.mark.parametrize("kind", ["ctx", "hook", "grad"])
def test_gs304_says_how_many_iterations_it_saw(kind: str) -> None:
    finding = gs304.finding(CALL, kind, "ctx.out", STORED, 8, 3.0)
    assert finding.label == "8 iterations seen, 3 nodes more with each"
    assert finding.related[0].site == STORED


STORES = """\
total = 0
class Meter:
    def __init__(self):
        self.sum = 0
    def update(self, value):
        self.sum += value
losses, log = [], {"r": []}
def train(data):
    total = 1
    for x in data:
        losses.append(x)
        log["r"].append(x)
        h, c = cell(x, h)
        total = total + x
        table[x] = x
        average.mul_(0.9).add_(x)
cell.weight.data -= 1
class Judge:
    def judge(self, name):
        self.history[name].append(name)
class Folds:
    def __init__(self):
        self.folds = [{"loss": [], "steps": 0}]
        self.parts, self.curves = {"a": []}, {"a": {"y": []}}
    def keep(self, fold, loss, split):
        entry = self.folds[fold]
        entry["steps"] += 1
        entry["best"].append(loss)
        entry["loss"].append(loss)
        part = self.parts[split]
        part += [loss]
        for name, curve in zip(self.curves, self.curves.values()):
            points = curve.setdefault("y", [])
            points.append(loss)
"""


@pytest.mark.parametrize(
    ("text", "root", "attribute", "container", "line"),
    [
        ("total", "total", None, False, 14),
        ("meter.sum", "meter", "sum", False, 6),
        ("losses", "losses", None, True, 11),
        ("log['r']", "log", None, True, 12),
        ("h", "h", None, False, 13),
        ("table", "table", None, True, 15),
        ("average", "average", None, False, 16),
        ("judge.history['a']", "judge", "history", True, 20),
        ("folds.folds[0]['loss']", "folds", "folds", True, 29),
        ("folds.parts['a']", "folds", "parts", True, 31),
        ("folds.curves['a']['y']", "folds", "curves", True, 34),
    ],
)
def test_the_line_that_stores_a_name(
    text: str, root: str, attribute: str | None, container: bool, line: int, tmp_path: Path
) -> None:
    file = tmp_path / "stores.py"
    file.write_text(STORES, encoding="utf-8")
    held = [Step("item", ast.literal_eval(key)) for key in re.findall(r"\[(.*?)\]", text)]
    steps = (Step("attribute", attribute), *held) if attribute else ()
    name = variable_paths.Path(text, root, Origin("global", "<module>", str(file), 1), steps)
    found, _ = store_of((name,), container=container)
    assert known(found).line == line


def test_a_name_that_nothing_stores_and_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "stores.py"
    file.write_text(STORES, encoding="utf-8")
    origin = Origin("global", "<module>", str(file), 1)
    assert store_of((variable_paths.Path("other", "other", origin),))[0] is None
    assert (
        store_of((variable_paths.Path("total", "total", replace(origin, file="<string>")),))[0]
        is None
    )


def test_a_file_s_writes_through_data(tmp_path: Path) -> None:
    file, other = tmp_path / "stores.py", tmp_path / "other.py"
    file.write_text(STORES, encoding="utf-8")
    other.write_text("data = 1\ndata += 2\n", encoding="utf-8")
    assert any(line.writes for line in data_lines(str(file)).values())
    assert not data_lines(str(other))
