"""Measure the interactive report in Chromium: size, time to first paint, frames while panning.

Run it as ``python benchmarks/html_report.py [--chromium PATH] [--keep FOLDER]``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from gradscope.model import (
    BackwardCall,
    Edge,
    Graph,
    Header,
    Node,
    NodeState,
    Outcome,
    Recording,
    Root,
    Sample,
    SavedTensor,
    Site,
    Summary,
)
from gradscope.render.html import to_html

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    " --disable-background-networking"
)

OPERATIONS = [
    "AddBackward0",
    "NativeDropoutBackward0",
    "AddmmBackward0",
    "GeluBackward0",
    "AddmmBackward0",
    "NativeLayerNormBackward0",
    "AddBackward0",
    "AddmmBackward0",
    "TransposeBackward0",
    "BmmBackward0",
    "SoftmaxBackward0",
    "BmmBackward0",
    "NativeLayerNormBackward0",
]


class Builder:
    """Grow a graph from its root downwards, as a backward pass would walk it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []

    def operation(self, name: str, module: str | None, line: int, *consumers: int) -> int:
        """Add one node, which saved a tensor unless it only adds."""
        index = len(self.nodes)
        saved = (
            ()
            if name == "AddBackward0"
            else (SavedTensor("self", (32, 256), "f32", "cpu", 32_768, storage=index),)
        )
        state = NodeState.FREED if saved else NodeState.BUFFERLESS
        place = Site("model.py", line, 9, line, 30, "forward")
        order = self.size - index
        self.nodes.append(
            Node(
                index,
                name,
                state,
                order,
                saved,
                place,
                module,
                "Block",
                freed_by=1 if saved else None,
            )
        )
        self.edges += (Edge(consumer, index) for consumer in consumers)
        return index

    def leaf(self, name: str, *consumers: int) -> int:
        """Add the AccumulateGrad node of a parameter."""
        index = len(self.nodes)
        self.nodes.append(
            Node(
                index,
                "AccumulateGrad",
                NodeState.BUFFERLESS,
                variable=name,
                variable_label="f32[256]",
            )
        )
        self.edges += (Edge(consumer, index, 1) for consumer in consumers)
        return index

    def graph(self) -> Graph:
        """Return the graph, with node 0 as the root."""
        return Graph(tuple(self.nodes), tuple(self.edges), (Root(0, "loss", "f32[]"),))


def transformer(size: int, modules: bool = True) -> Graph:
    """Return a long chain of residual blocks with parameters; without modules nothing folds."""
    build = Builder(size)
    below = build.operation("NllLossBackward0", None, 90)
    block = 0
    while len(build.nodes) < size:
        skip = below
        for step, name in enumerate(OPERATIONS):
            part = "mlp" if step < 6 else "attn"
            module = f"h.{block}.{part}" if modules else None
            consumers = (below, skip) if step in (5, 12) and skip != below else (below,)
            below = build.operation(name, module, 10 + step, *consumers)
            if name == "AddmmBackward0":
                build.leaf(f"h.{block}.{part}.{step}.weight", below)
                build.leaf(f"h.{block}.{part}.{step}.bias", below)
        block += 1
    return build.graph()


def unrolled(steps: int) -> Graph:
    """Return a recurrent cell called again and again: every step uses the same six parameters."""
    build = Builder(steps * 12)
    below = build.operation("MeanBackward0", None, 50)
    users: list[int] = []
    for _ in range(steps):
        for name in (
            "MulBackward0",
            "TanhBackward0",
            "AddBackward0",
            "SigmoidBackward0",
            "MmBackward0",
            "AddmmBackward0",
        ):
            below = build.operation(name, "cell", 20, below)
            users.append(below)
        below = build.operation("UnbindBackward0", None, 48, below)
    for number in range(6):
        build.leaf(f"cell.weight_{number}", *users[number::6])
    return build.graph()


def recording(graph: Graph, iterations: int, *, folded: bool = True) -> Recording:
    """Return a run of ``iterations`` backward calls that each ran ``graph``."""
    size = len(graph.nodes)
    site = Site("train.py", 12, 5, 12, 20)
    rows = 1 if folded else iterations
    calls = tuple(
        BackwardCall(
            number=row + 1, kind="backward", site=site, roots=graph.roots, graph=1,
            nodes=size, nodes_run=size, nodes_built=size, saved_bytes=graph.saved_bytes,
            freed_bytes=32_768 * size, returned_bytes=32_768 * size,
            nodes_destroyed=size, started=row * 0.01 + 0.004, ended=row * 0.01 + 0.008,
            count=iterations // rows, last_number=row + iterations // rows,
        )
        for row in range(rows)
    )  # fmt: skip
    samples = tuple(
        Sample(i * 0.005, (i % 2) * 4_000_000 + i * 10, 4096, i // 2) for i in range(iterations * 2)
    )
    return Recording(
        Header("0", "2.13.0", "3.11", "train.py"),
        Outcome(0, None, True, iterations * 0.01),
        Summary(backward_calls=iterations, nodes=size * iterations, peak_saved_bytes=4_200_000),
        calls,
        {1: graph},
        (),
        samples,
        {
            "train.py": "import torch\n" * 11 + "    loss.backward()\n",
            "model.py": "y = layer(x)  # a line of the model\n" * 100,
        },
    )


CASES = {
    "10,000 iterations, folded": lambda: recording(transformer(400), 10_000),
    "10,000 iterations, none alike": lambda: recording(transformer(400), 10_000, folded=False),
    "5,000 nodes": lambda: recording(transformer(5_000), 3),
    "20,000 nodes": lambda: recording(transformer(20_000), 3),
    "20,000 nodes, no modules": lambda: recording(transformer(20_000, modules=False), 3),
    "LSTM of 1,000 steps": lambda: recording(unrolled(1_000), 3),
}

FRAMES = """
async ({ zoom }) => {
  const canvas = document.getElementById("canvas");
  const fire = (type, x, y) =>
    canvas.dispatchEvent(new PointerEvent(
      type, { clientX: x, clientY: y, pointerId: 1, bubbles: true, button: 0 }));
  canvas.setPointerCapture = () => {};
  const box = canvas.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  if (zoom === "all") {
    document.getElementById("open-all").click();
    document.getElementById("fit").click();
  }
  await new Promise(requestAnimationFrame);
  fire("pointerdown", x, y);
  const start = performance.now();
  let frames = 0;
  let longest = 0;
  let before = start;
  while (performance.now() - start < 2000) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    longest = Math.max(longest, now - before);
    before = now;
    frames += 1;
    fire("pointermove", x + 80 * Math.sin(frames / 9), y - (frames % 200) * 2);
  }
  fire("pointercancel", x, y);
  return { perSecond: frames / ((performance.now() - start) / 1000), longest };
}
"""

PAINTED = """
() => new Promise((done) => {
  const ready = () => document.documentElement.dataset.ready
    && document.getElementById("canvas").width > 300;
  const look = () => ready()
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0))
    : setTimeout(look, 5);
  look();
})
"""


def main() -> int:
    """Print one row for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--chromium", default=shutil.which("chromium") or shutil.which("google-chrome")
    )
    parser.add_argument("--keep", type=Path, help="keep the reports in this folder")
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("Playwright for Python is needed: pip install playwright", file=sys.stderr)
        return 2
    if not options.chromium:
        print("no Chromium found: give --chromium PATH", file=sys.stderr)
        return 2
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    heads = (
        f"{'write s':>8} {'MB':>6} {'paint ms':>9} {'graph ms':>9} {'pan fps':>8}"
        f" {'all open fps':>13} {'worst ms':>9}"
    )
    print(f"{'case':32} {heads}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS.split())
        for name, make in CASES.items():
            case = make()
            start = time.perf_counter()
            text = to_html(case)
            wrote = time.perf_counter() - start
            path = folder / f"{name.replace(',', '').replace(' ', '-')}.html"
            path.write_text(text, encoding="utf-8")
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(path.absolute().as_uri(), wait_until="commit")
            graph = page.evaluate(PAINTED)
            first = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"
            )
            page.evaluate("document.getElementById('graph').scrollIntoView()")
            pan = page.evaluate(FRAMES, {"zoom": "home"})
            whole = page.evaluate(FRAMES, {"zoom": "all"})
            size = len(text.encode()) / 1e6
            print(
                f"{name:32} {wrote:8.2f} {size:6.2f} {first:9.0f} {graph:9.0f}"
                f" {pan['perSecond']:8.0f} "
                f"{whole['perSecond']:13.0f} {whole['longest']:9.0f}"
            )
            page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
