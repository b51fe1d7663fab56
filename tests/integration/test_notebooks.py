"""Real notebooks, run by a real kernel: places are cells, and what is found is shown under its cell."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gradscope.record.file import load
from tests import known
from tests.command import ran

nbformat = pytest.importorskip("nbformat", reason="notebooks are run by nbclient")
nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
pytest.importorskip("ipykernel", reason="notebooks need a kernel")

DOCS = Path(__file__).parents[2] / "docs"

SETUP = """
import torch
net, log = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), []
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOOP = """
for step in range(30):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    log.append(loss)
    opt.step()
"""
BROKEN = "y = net(torch.ones(1, 4)).exp()\ny.sum().backward()\ny.sum().backward()"


class Shown:
    """What a notebook shows under one cell."""

    def __init__(self, cell: Any) -> None:
        self.bundles = [output.data for output in cell.outputs if "data" in output]
        self.text = "\n".join(bundle.get("text/plain", "") for bundle in self.bundles)
        raised = [o for o in cell.outputs if o.output_type == "error"]
        self.errors = [error.ename for error in raised]
        self.messages = [error.evalue for error in raised]
        self.printed = "".join(o.text for o in cell.outputs if o.output_type == "stream")
        self.codes = re.findall(r"^\w+\[(GS\d+)\]", self.text, re.MULTILINE)


class Kernel:
    """A kernel that lives from cell to cell; in a thread, as the tests' own may have a loop."""

    def __init__(self, thread: ThreadPoolExecutor, folder: Path) -> None:
        self._thread = thread
        self._number = 0
        self._client = nbclient.NotebookClient(
            nbformat.v4.new_notebook(),
            timeout=240,
            kernel_name="python3",
            allow_errors=True,
            resources={"metadata": {"path": str(folder)}},
        )

    def run(self, *cells: str) -> list[Shown]:
        return self._thread.submit(self._run, cells).result()

    def _run(self, sources: tuple[str, ...]) -> list[Shown]:
        if self._client.kc is None:
            self._client.create_kernel_manager()
            self._client.start_new_kernel()
            self._client.start_new_kernel_client()
        shown = []
        for source in sources:
            cell = nbformat.v4.new_code_cell(source.strip())
            self._client.nb.cells.append(cell)
            self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
            self._number = cell.execution_count
            shown.append(Shown(cell))
        return shown

    def place(self, back: int, line: int) -> str:
        """How a line of the cell that ran ``back`` cells ago reads."""
        return f"Cell In[{self._number - back}], line {line}"

    def end(self) -> None:
        self._thread.submit(self._client._cleanup_kernel).result()


@pytest.fixture(scope="module")
def one_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with ThreadPoolExecutor(1) as thread:
        kernel = Kernel(thread, tmp_path_factory.mktemp("notebook"))
        kernel.run("%load_ext gradscope", SETUP, "import gradscope")
        yield kernel
        kernel.end()


@pytest.fixture
def kernel(one_kernel: Kernel) -> Kernel:
    one_kernel.run("%gradscope on", "log.clear()")
    return one_kernel


def test_a_leak_is_shown_under_its_cell_and_names_the_append(kernel: Kernel) -> None:
    (shown,) = kernel.run(LOOP)
    assert shown.codes == ["GS302"]
    assert f"--> {kernel.place(0, 4)}" in shown.text
    assert "4 |     log.append(loss)\n  |     ^^^^" in shown.text
    assert "/tmp" not in shown.text
    assert "log.append(loss)" in shown.bundles[0]["text/html"]


def test_a_cell_run_twice_is_told_as_such(kernel: Kernel) -> None:
    made, once, twice = kernel.run(
        "loss = net(torch.ones(1, 4)).exp().sum()", *["loss.backward()"] * 2
    )
    assert (made.text, once.text) == ("", "")
    assert twice.errors == ["RuntimeError"]
    text = " ".join(twice.text.split())
    before, built = kernel.place(1, 1), kernel.place(2, 1)
    assert f"when this cell ran before as {before.partition(',')[0].removeprefix('Cell ')}" in text
    assert f"--> {built}" in text
    assert f"help: run {built.partition(',')[0]} again before this one" in text


def test_a_cell_that_carries_its_own_state_is_told_to_detach(kernel: Kernel) -> None:
    step = "h = net(h)\nh.sum().backward()"
    *_, shown = kernel.run("h = torch.zeros(1, 4)", step, step)
    assert "when this cell ran before as In[" in " ".join(shown.text.split())
    assert "run Cell" not in shown.text
    assert "help: detach() what this cell carries from one run into the next" in shown.text


def test_nothing_is_shown_under_a_healthy_cell(kernel: Kernel) -> None:
    cell = "net(torch.ones(1, 4)).sum().backward()"
    assert [shown.text for shown in kernel.run(cell, cell, "torch.ones(1).item()")] == [
        "",
        "",
        "1.0",
    ]


def test_the_watch_is_ended_with_its_report(kernel: Kernel) -> None:
    _, shown, after = kernel.run(
        "net(torch.ones(1, 4)).sum().backward()", "%gradscope off", "%gradscope"
    )
    assert "nothing found in 1 backward call" in shown.text
    assert after.printed == "no watch is active; start one with %gradscope on\n"


def test_one_cell_alone(kernel: Kernel) -> None:
    cell = f"%%gradscope --save one.gscope\n{BROKEN}\n7"
    off, shown, healthy = kernel.run(
        "%gradscope off", cell, "%%gradscope\nawait __import__('asyncio').sleep(0)\n7"
    )
    assert "nothing to report" in off.text
    assert shown.codes == ["GS102", "GS101"]
    assert shown.errors == ["RuntimeError"]
    assert f"{kernel.place(1, 3)}" in shown.text
    assert healthy.text.splitlines()[0] == "7"
    path = kernel.run("import os; print(os.getcwd())")[0].printed.strip()
    for finding in load(Path(path, "one.gscope")).findings:
        assert known(finding.site).place in shown.text


def test_a_cell_in_a_watch_of_all_is_seen_by_both(kernel: Kernel) -> None:
    shown, after = kernel.run(f"%%gradscope\n{BROKEN}", "%gradscope")
    assert shown.codes == after.codes == ["GS102", "GS101"]


def test_the_guard_raises_first(kernel: Kernel) -> None:
    (shown,) = kernel.run(f"%%gradscope --guard\n{BROKEN}")
    assert shown.errors == ["FreedGraphError"]
    assert f"({kernel.place(0, 2)})" in shown.messages[0]
    assert "ipykernel" not in shown.messages[0]


def test_wrong_options_say_what_there_is(kernel: Kernel) -> None:
    for wrong in ("%gradscope what", "%gradscope on --what"):
        (shown,) = kernel.run(wrong)
        assert "%gradscope on [OPTIONS]" in shown.printed
    (shown,) = kernel.run("%gradscope on --ignore GS1O1")
    assert "did you mean 'GS101'?" in shown.printed


def test_what_is_suppressed_is_not_shown(kernel: Kernel) -> None:
    known = BROKEN.replace("backward()", "backward()  # gradscope: ignore[GS101, GS102]")
    shown, option, all_the_same, _ = kernel.run(
        known,
        f"%%gradscope --ignore gs101,GS102\n{BROKEN}",
        f"%%gradscope --no-settings\n{known}",
        "from pathlib import Path\n"
        "Path('pyproject.toml').write_text('[tool.gradscope]\\nignore = [\"GS101\", \"GS102\"]')",
    )
    assert (shown.codes, shown.errors) == ([], ["RuntimeError"])
    assert option.codes == []
    assert "suppressed" in option.text
    assert all_the_same.codes == ["GS102", "GS101"]
    of_project, _ = kernel.run(f"%%gradscope\n{BROKEN}", "Path('pyproject.toml').unlink()")
    assert of_project.codes == []


def test_what_gradscope_returns_shows_itself(kernel: Kernel) -> None:
    cells = {
        "gradscope.snapshot(loss)": "image/svg+xml",
        "gradscope.check(loss)": "text/html",
        "gradscope.check(net(torch.ones(4)).sum())": "",
        "scope": "text/html",
        "scope.findings": "text/html",
        "scope.findings[0]": "text/html",
        "scope.recording()": "text/html",
        "scope.recording().calls[0]": "",
        "scope.summary": "",
        "gradscope.holders(loss)": "",
        "gradscope.holders(loss)[0]": "",
        "gradscope.follow(loss)": "",
        "gradscope.uses(loss)": "",
    }
    broken = "with gradscope.watch() as scope:\n    loss = net(torch.ones(1, 4)).exp().sum()\n    loss.backward()\n    loss.backward()"
    _, _, *shown = kernel.run("%gradscope off", broken, *cells)
    for (cell, rich), one in zip(cells.items(), shown, strict=True):
        assert one.errors == [], cell
        (bundle,) = one.bundles
        assert set(bundle) == {"text/plain", rich} - {""}, cell
        assert "object at 0x" not in one.text
        assert "NodeState" not in one.text
    assert shown[0].bundles[0]["image/svg+xml"].count("<svg") == 1
    assert "<details>" in shown[3].bundles[0]["text/html"]


def test_without_the_extension_places_are_cells_too(kernel: Kernel) -> None:
    cells = (
        "%gradscope off",
        "%unload_ext gradscope",
        "%gradscope",
        "with gradscope.watch() as scope:\n" + LOOP.replace("\n", "\n    "),
    )
    _, _, gone, _, shown = kernel.run(*cells, "print(scope.findings[0])")
    assert "not found" in gone.printed
    assert f"--> {kernel.place(1, 6)}" in shown.printed
    kernel.run("%load_ext gradscope")


@pytest.mark.full
def test_the_notebook_of_the_docs() -> None:
    script = [sys.executable, str(DOCS / "make_notebook.py"), "--check"]
    done = ran(*script)
    assert (done.returncode, done.stdout) == (0, "")
