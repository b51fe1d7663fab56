"""Figures reach the tools that people watch: from the command line, in MLflow and W&B themselves, and as the page says."""

from __future__ import annotations

import json
import re
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.command import gradscope, ran_well, refused
from tests.integration.test_pages_run import DOCS, PROGRAM, faults, of_pinned_torch
from tests.zygote import python

TRAINS = """
import os, random, sys, threading
import torch

torch.manual_seed(0)
random.seed(0)
weight = torch.ones(3, requires_grad=True)
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
for _ in range(5):
    (weight * torch.randn(3)).exp().sum().backward()
tools = {"google", "mlflow", "numpy", "prometheus_client", "tensorboard", "tensorflow", "wandb"}
print(weight.grad.tolist(), torch.rand(2).tolist(), random.random())
print(tools & sys.modules.keys(), threading.active_count())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    return path


def test_the_command_line_writes_the_file_and_the_program_is_the_same(script: Path) -> None:
    plain = ran_well(sys.executable, script, cwd=script.parent)
    options = ("--metrics", "train.prom", script)
    done = gradscope("run", *options, cwd=script.parent, executable=sys.executable)
    assert (done.stdout, done.returncode) == (plain.stdout, 0)
    assert not [line for line in done.stderr.splitlines() if line.startswith("note")]
    metrics = (script.parent / "train.prom").read_text()
    assert 'gradscope_backward_calls_total{run="train"} 5\n' in metrics
    left = {each.name for each in script.parent.iterdir()}
    assert left == {"train.py", "elsewhere", "train.prom"}


def test_each_rank_has_its_own_file(script: Path) -> None:
    options = ("--metrics", "train.prom", script)
    ranked = {"RANK": "1", "WORLD_SIZE": "2"}
    gradscope("run", *options, cwd=script.parent, executable=None, **ranked)
    assert 'run="train-1"' in (script.parent / "train-1.prom").read_text()


def test_a_note_says_that_processes_which_were_started_log_nothing(script: Path) -> None:
    start = "import subprocess, sys\nimport torch\nsubprocess.run([sys.executable, 'train.py'])\n"
    (script.parent / "start.py").write_text(start)
    note = "note: the logged metrics cover this process only, not those it started"
    for options, notes in (((), 0), (("--metrics", "train.prom"), 1)):
        done = gradscope("run", *options, "start.py", cwd=script.parent)
        assert done.stderr.count(note) == notes, done.stderr
    assert not list(script.parent.glob("*.prom"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--metrics", "none/there.prom"), "cannot write "),
        (("--metrics", "."), "name another file with --metrics"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_program_runs(
    script: Path, options: tuple[str, ...], says: str
) -> None:
    refused(gradscope("run", *options, "train.py", cwd=script.parent), says)


def test_a_program_without_torch_leaves_no_figures(tmp_path: Path) -> None:
    done = gradscope("run", "--metrics", "train.prom", "-c", "print(1)", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("1\n", 0)
    assert "train.prom was not written" in done.stderr
    assert not list(tmp_path.iterdir())


# the tools themselves

TRAIN = """
import json, os, sys
import torch
import gradscope
from gradscope.record.loggers import FIGURES

def train(after=lambda: None):
    weight = torch.ones(3, requires_grad=True)
    for _ in range(3):
        (weight * 2).exp().sum().backward()
        after()
"""

MLFLOW = """
import mlflow

mlflow.set_tracking_uri((__import__("pathlib").Path("store").absolute()).as_uri())
with gradscope.watch(log=mlflow) as before:
    train()
assert mlflow.last_active_run() is None, "a run was begun"
with mlflow.start_run() as run, gradscope.watch(log=mlflow) as scope:
    train()
assert not (*before.recording().summary.notes, *scope.recording().summary.notes)
client = mlflow.MlflowClient()
read = {name: client.get_metric_history(run.info.run_id, name) for name in FIGURES}
print(json.dumps({name: [(one.step, one.value) for one in all] for name, all in read.items()}))
"""

WANDB = """
import wandb

run = wandb.init(project="p", dir=".")
with gradscope.watch(log=run) as scope:
    train(lambda: run.log({"loss": 1.0}))
assert not scope.recording().summary.notes
steps, file = run.step, run.settings.sync_file
run.finish()
print(json.dumps([steps, file]))
"""

OFFLINE = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
OFFLINE |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "GIT_PYTHON_REFRESH": "quiet"}


def printed_by(program: str, folder: Path) -> Any:
    (folder / "train.py").write_text(TRAIN + program)
    done = ran_well(sys.executable, "train.py", cwd=folder, **OFFLINE)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
def test_mlflow_has_the_figures_in_the_run_of_the_program(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    history = printed_by(MLFLOW, tmp_path)
    assert history["gradscope/backward_calls"] == [[1, 1], [3, 3]]
    assert all(len(each) == 2 for each in history.values())
    assert len(history) == 5


@pytest.mark.full
def test_wandb_has_the_figures_beside_those_of_the_program(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    wandb: Any = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    steps, file = printed_by(WANDB, tmp_path)
    assert steps == 3  # those of the program alone
    rows = []
    for content in records_of((tmp_path / file).read_bytes()):
        record = wandb.Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append(
                {each.key or each.nested_key[0]: json.loads(each.value_json) for each in items}
            )
    calls = [(row["_step"], row.get("gradscope/backward_calls"), row.get("loss")) for row in rows]
    assert calls == [(0, 1, 1.0), (1, None, 1.0), (2, None, 1.0), (3, 3, None)]


def records_of(log: bytes) -> Iterator[bytes]:
    """The records of an offline run's file, which are in pieces in blocks of 32 KiB, as in LevelDB."""
    record, at = b"", 7  # what begins the file
    while at < len(log):
        left = -at % 32768
        if 0 < left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", log, at)
        record += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


# the page

PAGE = (DOCS / "recipes" / "handing-on.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ") if "```python" in part}


class Chat(BaseHTTPRequestHandler):
    """Takes what is said there."""

    said: list[str] = []  # noqa: RUF012 - one for all requests

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.said.append(json.loads(body)["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    Chat.said.clear()
    with HTTPServer(("127.0.0.1", 0), Chat) as server:
        monkeypatch.setenv("CHAT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Chat.said
        server.shutdown()
        thread.join()


@of_pinned_torch
@pytest.mark.full
@pytest.mark.parametrize("title", SECTIONS)
def test_programs_of_the_page_do_what_it_shows(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat: list[str]
) -> None:
    section = SECTIONS[title]
    imported = {
        *re.findall(r"^(?:import|from) (\w+)", section, re.M),
        *(["tensorboard"] if "torch.utils.tensorboard" in section else []),
    }
    if missing := [name for name in imported if find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    if "```console" not in section:
        (name,) = (name for _, name in PROGRAM.findall(section))
        section += f"\n```console\n$ python {name}\n```\n"
    page = tmp_path / "page.md"
    page.write_text(section, encoding="utf-8")
    if fault := faults(page, tmp_path, python()):
        pytest.fail(fault, pytrace=False)
    assert [said.splitlines()[0] for said in chat] == (
        ["```warning[GS302]: `losses` keeps the graphs of earlier iterations alive"]
        if "CHAT_URL" in section
        else []
    )
