"""Recordings of several machines: two launchers, SLURM's variables, Ray's, and one folder that all write into."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradscope.launch.children import own_file
from gradscope.launch.interpreter import header_of
from gradscope.record.file import load
from tests.command import ENVIRONMENT, ROOT, gradscope, ran
from tests.integration.test_child_processes import RANKS, needs_gloo
from tests.integration.test_pages_run import PROGRAM, missing, steps
from tests.reports import valid

PAGE = (ROOT / "docs/recipes/machines.md").read_text(encoding="utf-8")

HOSTS = "import os, platform\nplatform.node = lambda: 'node' + os.environ.get('NODE', '')\n"
"""Python runs it when it starts: two processes of one machine take themselves for two."""


def started(folder: Path, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start a process on a machine that is named by ``NODE``."""
    (folder / "sitecustomize.py").write_text(HOSTS)
    own = {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), "OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    line = [sys.executable, "-m", *map(str, command)]
    env = ENVIRONMENT | own | environment
    return subprocess.Popen(line, cwd=folder, env=env, text=True, **output)  # type: ignore[call-overload,no-any-return]


def ended_well(processes: list[subprocess.Popen[str]]) -> None:
    try:
        for process in processes:
            told, _ = process.communicate(timeout=240)
            assert process.returncode == 0, told
    finally:
        for process in processes:
            process.kill()


def joined(folder: Path) -> tuple[list[str], str]:
    """Return the names of the processes in the report of a folder, and what rank 1 differs in."""
    report = valid(gradscope("report", folder, "--format", "json").stdout)
    differs = {each["name"]: each["differs"] for each in report["processes"]}
    return list(differs), differs["rank 1 on node1"]


@pytest.mark.full
@needs_gloo
def test_two_launchers_write_into_one_folder(tmp_path: Path) -> None:
    begin = "dist.init_process_group('gloo')\ntrain(dist.get_rank(), 1, ())\ndist.destroy_process_group()"
    (tmp_path / "train.py").write_text(RANKS + "\n" + begin)
    shared = tmp_path / "shared"
    shared.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rendezvous = ("--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1")
    torchrun = ("torch.distributed.run", *rendezvous, f"--master_port={port}")
    watched = ("-m", "gradscope", "run", "--save", shared / "run.gscope", "train.py")
    ended_well(
        [
            started(tmp_path, *torchrun, f"--node_rank={node}", *watched, NODE=str(node))
            for node in (0, 1)
        ]
    )
    assert sorted(file.name for file in shared.iterdir()) == ["run-0.gscope", "run-1.gscope"]
    assert load(shared / "run-1.gscope").header.host == "node1"
    names, differs = joined(shared)
    assert names == ["rank 0 on node0", "rank 1 on node1"]
    assert "does not lead to `net.b.bias`, `net.b.weight`" in differs
    text = gradscope("report", shared).stdout
    assert "in 8 backward calls of 2 processes" in text
    assert "rank 1 on node1 differs" in " ".join(text.split())


@pytest.mark.full
@needs_gloo
def test_tasks_of_srun(tmp_path: Path) -> None:
    begin = "\nwork(int(os.environ['SLURM_PROCID']), int(os.environ['SLURM_NTASKS']), 1)\n"
    (tmp_path / "train.py").write_text(RANKS + begin)
    command = ("gradscope", "run", "--save", "shared/run.gscope", "train.py")
    (tmp_path / "shared").mkdir()
    ended_well([started(tmp_path, *command, NODE=str(task), **of_srun(task, 2)) for task in (0, 1)])
    assert joined(tmp_path / "shared")[0] == ["rank 0 on node0", "rank 1 on node1"]


def of_srun(task: int, tasks: int) -> dict[str, str]:
    """The variables that srun sets for a task of a step with one task on each node."""
    number, count = str(task), str(tasks)
    ranks = {"SLURM_PROCID": number, "SLURM_NODEID": number, "SLURM_LOCALID": "0"}
    return ranks | {"SLURM_NTASKS": count, "SLURM_STEP_NUM_TASKS": count, "SLURM_JOB_ID": "17"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (of_srun(1, 2), "run-1.gscope"),
        (of_srun(0, 1), "run.gscope"),  # a step of one task
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "run.gscope"),  # in the batch script itself
        (of_srun(1, 2) | {"RANK": "5", "WORLD_SIZE": "8"}, "run-5.gscope"),  # torchrun within srun
        (of_srun(1, 2) | {"SLURM_PROCID": "one"}, "run.gscope"),
    ],
)
def test_the_file_of_a_task_has_its_number(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], name: str
) -> None:
    for variable in ("RANK", "WORLD_SIZE", *of_srun(0, 1)):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    assert own_file(Path("run.gscope"), header_of(["train.py"], hooks=True)) == Path(name)


RAY = {
    "__init__.py": "",
    "train/__init__.py": """
        class ScalingConfig:
            def __init__(self, num_workers):
                self.num_workers = num_workers

        class RunConfig:
            def __init__(self, storage_path):
                pass
    """,
    "train/torch.py": """
        import os

        def prepare_model(model):
            return model

        class TorchTrainer:
            def __init__(self, train, scaling_config, run_config):
                self.train, self.workers = train, scaling_config.num_workers

            def fit(self):
                for rank in range(self.workers):
                    worker = os.fork()
                    if not worker:
                        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(self.workers)}
                        self.train()
                        os._exit(0)
                    assert not os.waitpid(worker, 0)[1]
    """,
}
"""What the recipe asks of Ray: workers, each a process with the variables that Ray sets."""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the stand-in for Ray forks its workers")
def test_the_recipe_for_ray_train(tmp_path: Path) -> None:
    if ran(sys.executable, "-c", "import ray.train.torch").returncode:
        for name, text in RAY.items():
            file = tmp_path / "ray" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
    ((program, name),) = PROGRAM.findall(PAGE)
    (tmp_path / name).write_text(program)
    (tmp_path / "job-17").mkdir()
    done = ran(sys.executable, name, "job-17", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    shown = next(shown for command, shown in steps(PAGE) if command == "gradscope report job-17")
    printed = gradscope("report", "job-17", cwd=tmp_path).stdout
    assert not missing(shown, printed.splitlines())
    assert re.search(r"rank 0 to rank 1 +12 backward calls", printed)
