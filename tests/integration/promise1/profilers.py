"""What profiles, traces or counts while findings are made ends as it does alone, and sees the program's own calls."""

import cProfile
import gc
import io
import json
import profile
import pstats
import re
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import torch
from _show import show
from torch import profiler
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile as autograd_profile

FOLDER = Path(tempfile.mkdtemp())
ANALYSIS = re.compile(r"rich/|gradscope/(program/ahead|fixing|program/reach|record|render)")
OWN = ("aten::addmm", "aten::tanh", "Optimizer.step#SGD.step")


def train(step=None, steps=15):
    """Keep all losses, which is found; return them with the net."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = net(torch.ones(2, 4)).tanh().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        if step is not None:
            step()
    return net, losses


# Torch itself imports with the first optimizer, and its profiler garbles what is imported meanwhile.
torch.optim.SGD(torch.nn.Linear(1, 1).parameters()).step()


def by_torch(steps=15, **options):
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], **options) as seen:
        train(steps=steps)
    gc.collect()
    counted(seen)
    if options.get("with_stack"):
        names = {event.name() for event in seen.profiler.kineto_results.events()}
        print([name for name in names if ANALYSIS.search(name)])
        seen.export_stacks(str(FOLDER / "stacks"), "self_cpu_time_total")
    else:
        traced(seen)


def counted(seen):
    print({event.key: event.count for event in seen.key_averages() if event.key in OWN})


def traced(seen):
    counted(seen)
    seen.key_averages(group_by_input_shape=True, group_by_stack_n=5).table(row_limit=3)
    seen.export_chrome_trace(str(FOLDER / "trace.json"))
    json.loads((FOLDER / "trace.json").read_text())


def by_schedule():
    plan = profiler.schedule(wait=2, warmup=1, active=2, repeat=2)
    with profiler.profile(schedule=plan, on_trace_ready=traced, with_stack=True) as seen:
        train(seen.step)


def by_handler():
    handler = profiler.tensorboard_trace_handler(str(FOLDER / "board"))
    with profiler.profile(on_trace_ready=handler):
        train()
    print(len([*(FOLDER / "board").iterdir()]))


def by_autograd(**options):
    with autograd_profile(**options) as seen:
        train()
    counted(seen)
    seen.key_averages(group_by_stack_n=5).table(row_limit=3)


def by_statistics(kind):
    seen = kind()
    seen.runcall(train)
    stats = pstats.Stats(seen, stream=io.StringIO()).sort_stats("cumulative").print_stats(3).stats
    print({key[2]: value[1] for key, value in stats.items() if key[0] == __file__})


class Counts(Counter):
    """The events of the functions of this file."""

    def event(self, frame, event, _):
        if frame.f_code.co_filename == __file__:
            self[event, frame.f_code.co_name] += 1
        return self.event


@contextmanager
def set_by(setter):
    seen = Counts()
    setter(seen.event)
    try:
        yield seen
    finally:
        setter(None)


def by_event(setter):
    with set_by(setter) as seen:
        train()
    print(sorted((key, n) for key, n in seen.items() if key[1] == "train"))


def by_thread(setter):
    with set_by(setter) as seen:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    print(sorted((key, n) for key, n in seen.items() if key[1] == "train"))


def by_tracemalloc():
    tracemalloc.start(5)
    kept = train()
    seen = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)])
    tracemalloc.stop()
    print(len(kept[1]), sum(trace.size for trace in seen.traces) > 0)


every = {"record_shapes": True, "profile_memory": True, "with_flops": True, "with_modules": True}
verbose = {"experimental_config": _ExperimentalConfig(verbose=True)}
for work in (
    lambda: by_torch(with_stack=True),
    lambda: by_torch(**every),
    lambda: by_torch(steps=3, with_stack=True, **every, **verbose),
    by_schedule,
    by_handler,
    lambda: by_autograd(use_kineto=False, with_stack=True),
    lambda: by_autograd(with_modules=True, record_shapes=True),
    lambda: by_statistics(cProfile.Profile),
    lambda: by_statistics(profile.Profile),
    lambda: by_event(sys.setprofile),
    lambda: by_event(sys.settrace),
    lambda: by_thread(threading.setprofile),
    lambda: by_thread(threading.settrace),
    by_tracemalloc,
):
    work()
net, losses = train()
show("end", *net.parameters(), *losses)
