"""Runs programs one after the other, and writes what was looked for to be imported, with the line that asked."""

import atexit
import json
import runpy
import sys
from pathlib import Path

found = {"with torch": [], "later": []}
codes = set()
when = "with torch"


class Seen:
    """A finder that finds nothing."""

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        asked = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
        found[when].append((name, asked))


kind, written, *programs = sys.argv[1:]
# The first of the program's exit handlers is the last to run, after the report of `gradscope run`.
atexit.register(lambda: Path(written).write_text(json.dumps([found, sorted(codes)])))
sys.meta_path.insert(0, Seen())
import torch  # noqa: E402

if kind != "run":
    import gradscope
when = "later"


def run(program):
    try:
        runpy.run_path(program, run_name="__main__")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def ask(scope):
    """Have all that can be asked for said and shown, but what is drawn."""
    layer = torch.nn.Linear(2, 2)
    shown = layer(torch.ones(2)).exp()
    graph = gradscope.snapshot(shown)
    print(scope, scope.findings, graph, gradscope.check(shown), gradscope.uses(shown))
    print(gradscope.saved_tensors(shown), gradscope.holders(shown), gradscope.compare(graph, graph))


for program in programs:
    if kind == "run":
        run(program)
        continue
    with gradscope.watch(hooks=kind == "watch", save=program + ".gscope") as scope:
        run(program)
        ask(scope)
    codes.update(finding.code for finding in scope.findings)
    ask(scope)
if kind != "run":
    print(gradscope.time_graph(lambda: torch.ones(2, requires_grad=True).sum(), duration=0.01))
