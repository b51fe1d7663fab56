"""The processes that a watched program starts run as they would, and are watched too."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gradscope.launch.children import ChildPlan, Children
from gradscope.launch.interpreter import header_of
from gradscope.record.file import load
from tests.command import ran
from tests.needs import needs
from tests.reports import valid
from tests.zygote import python

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
RANKS = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, skip):
        h = self.a(x).tanh()
        return h if skip else self.b(h)

def train(rank, skipping, kept):
    torch.manual_seed(0)
    net = Net()
    if "ddp" in sys.argv:
        net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    for step in range(4):
        loss = net(torch.randn(8, 4), rank == skipping and step >= 2).pow(2).mean()
        loss.backward()
        if rank in kept:
            try:
                loss.backward()
            except RuntimeError:
                pass
            return
    print(f"rank {rank} is done\\n", end="")  # in one write

def work(rank, ranks, skipping=-1, kept=()):
    dist.init_process_group("gloo", f"file://{os.getcwd()}/store", rank=rank, world_size=ranks)
    train(rank, skipping, kept)
    dist.destroy_process_group()

def start(method, *args):
    context = mp.get_context(method)
    ranks = args[0]
    processes = [context.Process(target=work, args=(rank, *args)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print([process.exitcode for process in processes])
"""
BROKEN = """
import sys, torch
loss = torch.ones(3, requires_grad=True).exp().sum()
loss.backward()
print("made", sys.argv[1:])
if sys.argv[1:] == ["fail"]:
    loss.backward()
"""

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="torch has no gloo here",
)


@dataclass
class Run:
    stdout: str
    stderr: str
    status: int
    report: dict[str, Any]


class Place:
    """A directory in which programs are run with and without gradscope."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(textwrap.dedent(text))

    def plain(self, *command: str, executable: str = sys.executable) -> Run:
        (self.path / "store").unlink(missing_ok=True)
        done = ran(executable, *command, cwd=self.path, **ENVIRONMENT)
        return Run(done.stdout, done.stderr, done.returncode, {})

    def watched(self, *command: str, executable: str = "") -> Run:
        options = ["--format", "json", "--output", "report.json"]
        command = ("-m", "gradscope", "run", *options, *command)
        done = self.plain(*command, executable=executable or python())
        done.report = valid((self.path / "report.json").read_text())
        return done

    def files(self) -> list[str]:
        return sorted(path.name for path in self.path.glob("*.gscope"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def processes_of(run: Run) -> list[str]:
    return [process["name"] for process in run.report["processes"]]


@pytest.mark.full(but=1)
@needs_gloo
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_are_forked(place: Place, ranks: int) -> None:
    place.write("train.py", RANKS + f"\nstart('fork', {ranks}, 1)\n")
    done = place.watched("--save", "run.gscope", "train.py")
    assert done.stdout.count("is done") == ranks, done.stderr
    assert processes_of(done) == [f"rank {rank}" for rank in range(ranks)]
    assert place.files() == [f"run-{rank}.gscope" for rank in range(ranks)]
    (note,) = done.report["summary"]["notes"]
    assert note.startswith("there is no run.gscope: each process has its own file, run-0.gscope")
    assert note.endswith("run-1.gscope; `gradscope report run.gscope` joins them") == (ranks == 2)
    joined = place.plain("-m", "gradscope", "report", "run.gscope", executable=python())
    assert f"in {4 * ranks} backward calls of {ranks} processes" in joined.stdout
    assert done.report["summary"]["backward_calls"] == 4 * ranks
    differs = {one["name"]: one["differs"] for one in done.report["processes"] if one["differs"]}
    assert list(differs) == ["rank 1"]
    assert "the graph of backward call 3 (train.py:23)" in differs["rank 1"]
    assert "does not lead to `net.b.bias`, `net.b.weight`" in differs["rank 1"]


@pytest.mark.timeout(180)
@needs_gloo
def test_ranks_that_look_for_unused_parameters_go_on_as_they_would(place: Place) -> None:
    """Each rank's reducer waits for the other's: a rank that is held up would hold up both."""
    place.write("train.py", RANKS + "\nstart('fork', 2, 1)\n")
    alone, done = place.plain("train.py", "ddp"), place.watched("train.py", "ddp")
    said = [sorted(run.stdout.splitlines()) for run in (alone, done)]
    assert said[0] == said[1] == ["[0, 0]", "rank 0 is done", "rank 1 is done"], done.stderr
    assert done.report["summary"]["backward_calls"] == 8
    assert done.report["findings"] == []


@needs_gloo
def test_a_finding_names_the_ranks_that_met_it(place: Place) -> None:
    place.write("train.py", RANKS + "\nstart('fork', 3, -1, (0, 1, 2))\n")
    done = place.watched("train.py")
    (found,) = [f for f in done.report["findings"] if f["code"] == "GS101"]
    assert found["processes"] == ["rank 0", "rank 1", "rank 2"]
    assert (found["count"], done.status) == (3, 1)
    assert place.files() == []


@pytest.mark.full
@needs_gloo
@needs("cpu.Stream.record_event")  # which torch 2.6 asks of a CPU's stream
def test_ranks_of_fsdp(place: Place) -> None:
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    sharded = """
    def train(rank, *_):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(0)
        net, mesh = Net(), init_device_mesh("cpu", (2,))
        for module in (net.a, net.b, net):
            fully_shard(module, mesh=mesh)
        for step in range(3):
            loss = net(torch.randn(8, 4), False).pow(2).mean()
            loss.backward()
        print(f"rank {rank} is done\\n", end="")  # in one write
    """
    place.write("train.py", RANKS + textwrap.dedent(sharded) + "\nstart('fork', 2)\n")
    done = place.watched("train.py")
    assert "[0, 0]" in done.stdout, done.stderr
    assert processes_of(done) == ["rank 0", "rank 1"]
    assert done.report["summary"]["backward_calls"] == 6
    assert done.report["findings"] == []
    assert [one["differs"] for one in done.report["processes"]] == ["", ""]


@pytest.mark.full
@needs_gloo
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ranks_that_begin_anew(place: Place, method: str) -> None:
    place.write("train.py", RANKS + f"\nif __name__ == '__main__':\n    start({method!r}, 2)\n")
    done = place.watched("--save", "{rank}-of-it.gscope", "train.py")
    assert "[0, 0]" in done.stdout, done.stderr
    assert processes_of(done) == ["rank 0", "rank 1"]
    assert place.files() == ["0-of-it.gscope", "1-of-it.gscope"]
    assert load(place.path / "1-of-it.gscope").header.script == "train.py"


@pytest.mark.full
@needs_gloo
def test_torchrun_around_gradscope_and_gradscope_around_torchrun(place: Place) -> None:
    begin = "dist.init_process_group('gloo')\ntrain(dist.get_rank(), 1, ())\ndist.destroy_process_group()"
    place.write("train.py", RANKS + "\n" + begin)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    within = place.plain(
        *torchrun, "-m", "gradscope", "run", "--save", "in.gscope", "train.py", executable=python()
    )
    assert within.status == 0, within.stderr
    assert place.files() == ["in-0.gscope", "in-1.gscope"]
    assert "no problem found in 4 backward calls of rank 1" in within.stderr
    around = place.watched("--save", "out.gscope", *torchrun, "train.py", "ddp")
    assert around.stdout.count("is done") == 2
    assert processes_of(around) == ["rank 0", "rank 1"]
    assert place.files() == ["in-0.gscope", "in-1.gscope", "out-0.gscope", "out-1.gscope"]
    for name in ("in", "out"):
        files = [f"{name}-{rank}.gscope" for rank in (0, 1)]
        report = place.plain("-m", "gradscope", "report", *files, executable=python())
        assert "rank 1 differs: the graph of backward call 3 (train.py:23)" in " ".join(
            report.stdout.split()
        )
        assert "in 8 backward calls of 2 processes" in report.stdout
    page = place.plain(
        "-m", "gradscope", "report", *files, "--html", "page.html", executable=python()
    )
    assert (page.status, page.stdout) == (0, "page: page.html\n")


@pytest.mark.full
def test_a_script_that_is_started_by_the_program(place: Place) -> None:
    place.write("child.py", BROKEN)
    place.write(
        "train.py",
        """
        import subprocess, sys
        for arguments in (["a b"], ["fail"]):
            done = subprocess.run([sys.executable, "-u", "child.py", *arguments], capture_output=True, text=True)
            print(done.args[1:], done.returncode, done.stdout, done.stderr)
        print(subprocess.run([sys.executable, "missing.py"], capture_output=True, text=True))
        """,
    )
    plain, watched = place.plain("train.py"), place.watched("train.py")
    assert (watched.stdout, watched.stderr, plain.status) == (plain.stdout, plain.stderr, 0)
    (found,) = [f for f in watched.report["findings"] if f["severity"] == "error"]
    assert found["code"] == "GS101"
    assert found["processes"] == [processes_of(watched)[1]]
    assert watched.status == 1


@pytest.mark.full
def test_a_process_that_the_program_forks_itself(place: Place) -> None:
    place.write(
        "train.py",
        """
        import os, subprocess, sys, threading, torch, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns, with the process's number
        x = torch.ones(3, requires_grad=True)

        def work(times):
            for _ in range(times):
                x.exp().sum().backward()

        def fail():
            loss = x.exp().sum()
            loss.backward()
            try:
                loss.backward()
            except RuntimeError as error:
                print(str(error)[:22], flush=True)

        def leave(status):
            work(1)
            os._exit(status)

        def again():
            child(work, 2)
            os._exit(7)

        def child(do, *given):
            forked = os.fork()
            if not forked:
                do(*given)
                sys.exit(3)
            print(do.__name__, os.waitpid(forked, 0)[1], flush=True)

        work(2)
        child(leave, 5)
        child(fail)
        child(again)
        child(os.execv, "/bin/true", ["true"])
        child(os.abort)
        thread = threading.Thread(target=child, args=(leave, 6))
        thread.start()
        thread.join()
        print(subprocess.run(["echo", "hi"], preexec_fn=lambda: None, capture_output=True).stdout)
        work(2)
        """,
    )
    plain, watched = place.plain("train.py"), place.watched("--save", "run.gscope", "train.py")
    assert (watched.stdout, watched.stderr) == (plain.stdout, plain.stderr)
    calls = [one["summary"]["backward_calls"] for one in watched.report["processes"]]
    assert (calls[0], sorted(calls[1:])) == (4, [1, 1, 2, 2])
    errors = [f for f in watched.report["findings"] if f["severity"] == "error"]
    assert [error["code"] for error in errors] == ["GS101"]
    assert errors[0]["processes"] != [processes_of(watched)[0]]
    assert len(place.files()) == 5
    own = load(place.path / "run.gscope")
    assert (own.summary.backward_calls, own.findings) == (4, ())


@pytest.mark.full
@pytest.mark.parametrize("function", ["posix_spawn", "posix_spawnp"])
def test_a_script_that_is_spawned(place: Place, function: str) -> None:
    """As subprocess does since Python 3.13."""
    place.write("child.py", BROKEN)
    place.write(
        "train.py",
        f"""
        import os, sys
        child = os.{function}(sys.executable, [sys.executable, "-u", "child.py", "fail"], os.environ)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    )
    plain, watched = place.plain("train.py"), place.watched("train.py")
    assert watched.stdout == plain.stdout
    (found,) = [f for f in watched.report["findings"] if f["severity"] == "error"]
    assert found["processes"] == processes_of(watched)


@pytest.mark.full
def test_what_is_not_watched_is_told_with_the_command_that_would(place: Place) -> None:
    place.write("child.py", "print('hello')")
    place.write(
        "train.py",
        f"""
        import os, subprocess, torch
        subprocess.run("{sys.executable} child.py 'a b'", shell=True)
        os.system("torchrun --help > /dev/null")
        os.system("true")
        """,
    )
    done = place.watched("train.py")
    assert done.stdout == "hello\n"
    told = "the program started a process that is not watched; to watch it, run: "
    assert done.report["summary"]["notes"] == [
        f"{told}{sys.executable} -m gradscope run child.py 'a b'"
    ]


def test_a_child_without_backward_calls_leaves_nothing(place: Place) -> None:
    place.write(
        "train.py",
        """
        import torch
        data = torch.utils.data.DataLoader(torch.ones(4, 2), num_workers=2, multiprocessing_context="fork")
        w = torch.ones(2, requires_grad=True)
        for batch in data:
            (w * batch).sum().backward()
        """,
    )
    done = place.watched("--save", "run.gscope", "train.py")
    assert done.report["processes"] == []
    assert done.report["summary"]["backward_calls"] == 4
    assert place.files() == ["run.gscope"]


@pytest.mark.full
def test_a_name_may_hold_the_number_of_the_process(place: Place) -> None:
    place.write(
        "train.py",
        "import torch, os\ntorch.ones(1, requires_grad=True).exp().backward()\nprint(os.getpid())",
    )
    done = place.watched("--save", "run-{pid}.gscope", "train.py")
    assert place.files() == [f"run-{done.stdout.strip()}.gscope"]
    assert load(place.path / place.files()[0]).header.pid == int(done.stdout)


def test_what_fails_in_following_a_process_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a defect")

    monkeypatch.setattr("gradscope.launch.children.command_of", fail)
    header = header_of(["train.py"], hooks=True)
    with Children(ChildPlan("1-1", "{pid}.gscope", {}, "train.py", ()), header) as children:
        for _ in range(2):
            started = subprocess.run([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE)
            assert started.stdout.split() == [b"1"]
        with pytest.raises(TypeError, match="int"):  # the program's own, in Python's words
            subprocess.run([sys.executable, 1])  # type: ignore[list-item]
    assert [*children.failures] == ["TypeError: a defect"]
