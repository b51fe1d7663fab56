"""Programs in styles in which names do not tell where an object goes: what fails is told a call before, and nothing of
what is healthy, which is each of them as its comments mend it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gradscope.model import Severity
from tests.examples import mended
from tests.integration.test_corpus import watched
from tests.property.ahead import Told, told

STYLES = sorted((Path(__file__).parents[1] / "cases" / "styles").glob("*.py"))
LATE = {"712_priority_replay_heap": "which transition is taken depends on random numbers"}
if sys.version_info >= (3, 12):
    LATE["710_neighbouring_frames_tee"] = "which element a tee gives next is not known"

BY_CHANCE = {"708_shard_losses_from_a_pool"}
"""Early only if another thread of the program's has come far enough by the first call."""


@pytest.mark.full(but=6)
@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.stem)
def test_of_what_is_mended_nothing_is_told(path: Path, tmp_path: Path) -> None:
    program = tmp_path / path.name
    program.write_text(mended(path.read_text()))
    found, raised, _ = watched(program)
    assert ([each for each in found if each.severity is not Severity.ADVICE], raised) == ([], "")


@pytest.mark.full(but=6)
@pytest.mark.parametrize("path", STYLES, ids=lambda path: path.stem)
def test_what_fails_is_told_before_and_nothing_else(path: Path) -> None:
    expected = json.loads(path.read_text().splitlines()[0].removeprefix("# expect:"))
    found, raised, _ = watched(path)
    code = {"double_backward": "GS101", "inplace": "GS201"}[expected["error"]]
    lines = [each.site.line for each in found if each.code == code and each.site]
    assert lines == [expected["raise_line"]]
    if path.stem in LATE:
        assert told(found, raised) is Told.LATE, "it is told early now"
        pytest.xfail(LATE[path.stem])
    assert told(found, raised) is Told.EARLY or path.stem in BY_CHANCE


CACHED = """\
import torch
from torch import nn

class Box:
    cache = None

def drop(*_):
    box.cache = None

box = Box()
net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(2, 3, requires_grad=True)
{once}
for _ in range(4):
    if box.cache is None:
        box.cache = net(x)
        {each}
    loss = box.cache.pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
DROPS = {
    "a leaf": ("net[0].weight.register_post_accumulate_grad_hook(drop)", "pass"),
    "a leaf's gradient": ("net[0].weight.register_hook(drop)", "pass"),
    "a tensor": ("", "box.cache.register_hook(drop)"),
    "a module": ("net.register_full_backward_hook(drop)", "pass"),
    "a module, before": ("net.register_full_backward_pre_hook(drop)", "pass"),
    "a step": ("opt.register_step_post_hook(drop)", "pass"),
    "a step, before": ("opt.register_step_pre_hook(drop)", "pass"),
}


@pytest.mark.parametrize("name", [*DROPS, ""])
def test_hooks_run_within_a_call_and_a_step(name: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    once, each = DROPS.get(name, ("", "pass"))
    program.write_text(CACHED.format(once=once, each=each))
    found, raised, _ = watched(program)
    assert told(found, raised) is (Told.HEALTHY if name else Told.EARLY)


TASKS = """\
import asyncio
import torch
from torch import nn

net, head = nn.Linear(3, 3), nn.Linear(3, 1)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
board = {{"h": torch.zeros(2, 3)}}

def learn(h):
    loss = head(h).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()

async def act(lock):
    async with lock:
        await asyncio.sleep(0)
        h = torch.tanh(net(board["h"] + 1))
        learn(h)
        board["h"] = h{cut}
    return len(h)

async def produce(queue):
    h = torch.zeros(2, 3)
    for _ in range(3):
        h = torch.tanh(net(h + 1))
        await queue.put(h)
        h = h{cut}
    await queue.put(None)

async def consume(queue):
    while (h := await queue.get()) is not None:
        learn(h)

async def gathered():
    lock = asyncio.Lock()
    await asyncio.gather(*(act(lock) for _ in range(3)))

async def grouped():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(act(asyncio.Semaphore(2))) for _ in range(3)]
    return [each.result() for each in tasks]

async def queued():
    queue = asyncio.Queue(maxsize=1)
    await asyncio.gather(produce(queue), consume(queue))

try:
    asyncio.run({main}())
except ExceptionGroup as several:
    raise several.exceptions[0]
"""


@pytest.mark.parametrize("main", ["gathered", "grouped", "queued"])
@pytest.mark.parametrize("cut", ["", ".detach()"])
def test_of_several_tasks_nothing_is_foretold(main: str, cut: str, tmp_path: Path) -> None:
    """What one reads of another depends on the order in which the event loop runs them."""
    program = tmp_path / "program.py"
    program.write_text(TASKS.format(main=main, cut=cut))
    found, raised, _ = watched(program)
    assert told(found, raised) is (Told.HEALTHY if cut else Told.LATE)
