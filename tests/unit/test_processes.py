"""The recordings of several processes as one: findings once, calls side by side, what differs."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from canned import small_finding
from recorded import DONE, HEADER, SITE, call_of
from test_html import data

from gradscope.errors import GradscopeError
from gradscope.launch.interpreter import (
    Command,
    command_of,
    program_of,
    watched,
)
from gradscope.model import (
    BackwardCall,
    Edge,
    Graph,
    Node,
    Outcome,
    Recording,
    Root,
    Sample,
    Severity,
    Summary,
)
from gradscope.record.processes import are_of_one_run, files_of, merged
from gradscope.render.html import page_data, to_html
from gradscope.render.machine import to_json
from gradscope.render.printing import report_text

LEAK = small_finding("GS302", SITE, severity=Severity.WARNING, graph=1)


def graph(*nodes: tuple[str, str | None]) -> Graph:
    """A chain of nodes; one with a variable feeds that leaf."""
    made = tuple(
        Node(
            i, name, module=None if variable else "net", variable=variable, variable_label=variable
        )
        for i, (name, variable) in enumerate(nodes)
    )
    edges = tuple(Edge(i, i + 1) for i in range(len(nodes) - 1))
    return Graph(made, edges, (Root(0, "loss"),))


BOTH = graph(("MulBackward0", None), ("AccumulateGrad", "net.a"), ("AccumulateGrad", "net.b"))
ONE = graph(("MulBackward0", None), ("AccumulateGrad", "net.a"))
OTHER = graph(("DivBackward0", None), ("AccumulateGrad", "net.a"), ("AccumulateGrad", "net.b"))


def rank(number: int | None, *calls: BackwardCall, **more: object) -> Recording:
    made = sum(call.count for call in calls)
    recording = Recording(
        replace(HEADER, rank=number, ranks=4, pid=100 + (number or 0)),
        DONE,
        Summary(backward_calls=made, saved_bytes=10 * made, peak_saved_bytes=10 + (number or 0)),
        calls,
        {1: BOTH, 2: ONE, 3: OTHER},
    )
    return replace(recording, **more)  # type: ignore[arg-type]


def row(number: int, last: int, shape: int) -> BackwardCall:
    return replace(
        call_of(number), last_number=last, count=last - number + 1, graph=shape, nodes_run=shape
    )


def differing(*recordings: Recording) -> dict[str, str]:
    return {one.name: one.differs for one in merged(recordings).processes if one.differs}


ALIKE = row(1, 10, 1)


def test_ranks_that_are_alike_do_not_differ() -> None:
    assert differing(*(rank(number, ALIKE) for number in range(4))) == {}


def test_the_first_missing_parameter_is_named() -> None:
    (text,) = differing(
        rank(0, ALIKE), rank(1, row(1, 3, 1), row(4, 10, 2)), rank(2, ALIKE)
    ).values()
    assert "backward call 4 (train.py:7) does not lead to `net.b`" in text
    assert "DistributedDataParallel" in text


def test_the_odd_one_out_is_named_even_if_it_is_the_first() -> None:
    assert list(differing(rank(0, row(1, 10, 2)), rank(1, ALIKE), rank(2, ALIKE))) == ["rank 0"]


def test_of_two_the_higher_rank_differs() -> None:
    assert differing(rank(1, ALIKE), rank(0, row(1, 10, 2))) == {
        "rank 1": "the graph of backward call 1 (train.py:7) leads to `net.b`, and those of the others do not"
    }


def test_the_first_other_node_is_named() -> None:
    (text,) = differing(rank(0, ALIKE), rank(1, row(1, 10, 3))).values()
    assert text.endswith("has DivBackward0 of `net` where the others have MulBackward0 of `net`")


def test_calls_in_turns_are_in_no_known_order() -> None:
    turns = (replace(row(1, 9, 1), count=5), replace(row(2, 10, 3), count=5))
    apart = (replace(row(1, 9, 3), count=5), replace(row(2, 10, 1), count=5))
    assert differing(rank(0, *turns), rank(1, *turns)) == {}
    assert len(differing(rank(0, *turns), rank(1, *apart))) <= 1


def test_a_rank_that_made_fewer_calls() -> None:
    assert differing(rank(0, ALIKE), rank(1, row(1, 9, 1))) == {
        "rank 1": "it made 9 backward calls, and another rank 10"
    }


def test_processes_that_are_no_ranks_may_differ() -> None:
    assert differing(rank(None, ALIKE), rank(None, row(1, 3, 2))) == {}


def test_findings_are_said_once_with_the_ranks_that_met_them() -> None:
    other = replace(LEAK, code="GS303", graph=2)
    whole = merged(
        [
            rank(0, ALIKE, findings=(LEAK,)),
            rank(1, ALIKE, findings=(replace(LEAK, count=2), other)),
            rank(2, ALIKE),
        ]
    )
    leak, second = whole.findings
    assert (leak.processes, leak.count) == (("rank 0", "rank 1"), 3)
    assert second.processes == ("rank 1",)
    assert whole.graphs[second.graph or 0] == ONE
    assert [one.findings for one in whole.processes] == [1, 2, 0]
    assert "note: met in rank 0, rank 1" in report_text(whole)


def test_calls_and_findings_of_each_process_lead_to_its_own_graphs() -> None:
    first, second = rank(0, ALIKE), rank(1, row(1, 10, 1), findings=(LEAK,))
    other = replace(second.graphs[1], not_looked_at=7)
    whole = merged([first, replace(second, graphs={**second.graphs, 1: other})])
    graphs = {call.process: whole.graphs[call.graph or 0] for call in whole.calls}
    assert graphs == {"rank 0": first.graphs[1], "rank 1": other}
    assert whole.graphs[whole.findings[0].graph or 0] == other
    assert len(whole.graphs) == len(first.graphs) + 1, "the same graph is there once"


def test_each_process_has_its_own_memory_curve() -> None:
    samples = {0: (Sample(0.1, 5, 0, 1),), 1: (Sample(0.2, 7, 0, 1), Sample(0.4, 0, 0, 2))}
    whole = merged([replace(rank(n, ALIKE), timeline=samples[n]) for n in (0, 1)])
    tracks = page_data(whole, ())["tracks"]
    assert [track["name"] for track in tracks] == ["rank 0", "rank 1"]
    assert [len(track["calls"]) for track in tracks] == [1, 1]
    assert [[point[1] for point in track["samples"]] for track in tracks] == [[5], [7, 0]]
    assert [one.timeline for one in whole.processes] == list(samples.values())
    assert "timeline" not in json.loads(to_json(whole))["processes"][0]


def test_totals_are_sums_and_the_highest_peak() -> None:
    summary = merged([rank(0, ALIKE), rank(1, ALIKE)]).summary
    assert (summary.backward_calls, summary.saved_bytes, summary.peak_saved_bytes) == (20, 200, 11)


def test_what_was_not_read_is_counted_over_all_processes() -> None:
    first, second = (Summary(unread=each) for each in ({"a": 1, "b": 2}, {"b": 3}))
    both = [rank(0, ALIKE, summary=first), rank(1, ALIKE, summary=second)]
    assert merged(both).summary.unread == {"a": 1, "b": 5}


def test_calls_that_all_make_alike_are_one_row() -> None:
    text = report_text(
        merged([rank(0, ALIKE), rank(1, ALIKE), rank(2, row(1, 3, 1), row(4, 10, 2))])
    )
    assert text.count("loss.backward()") == 3
    assert "loss.backward() (rank 0, rank 1)" in text
    assert "no finding in 30 backward calls of 3 processes" in text


def test_how_each_process_ended_is_told() -> None:
    killed, failed = Outcome(), replace(DONE, exit_status=1, exception="ValueError: no")
    whole = merged([rank(0, ALIKE), rank(1, ALIKE, outcome=killed), rank(2, ALIKE, outcome=failed)])
    assert whole.outcome == failed
    assert "the recording of rank 1 ends here" in report_text(whole)
    assert "rank 2 raised ValueError: no" in report_text(whole)


def test_machines_and_pages_carry_the_ranks() -> None:
    whole = merged([rank(0, ALIKE, findings=(LEAK,)), rank(1, row(1, 10, 2))])
    report = json.loads(to_json(whole))
    assert report["findings"][0]["processes"] == ["rank 0"]
    assert [call["process"] for call in report["calls"]] == ["rank 0", "rank 1"]
    assert [one["name"] for one in report["processes"]] == ["rank 0", "rank 1"]
    assert "net.b" in report["processes"][1]["differs"]
    assert "rank 1" in json.dumps(data(to_html(whole), "report-data"))


def test_which_recordings_belong_together() -> None:
    header = replace(HEADER, run="7-a")
    assert are_of_one_run([rank(0), rank(1)])
    assert are_of_one_run([Recording(header), Recording(replace(header, pid=8))])
    assert not are_of_one_run([Recording(header), Recording(header)])
    assert not are_of_one_run([rank(0)])
    assert not are_of_one_run([rank(0), rank(0)])
    assert not are_of_one_run([Recording(HEADER), Recording(HEADER)])
    assert not are_of_one_run([Recording(header), Recording(replace(header, run="8-a"))])


PYTHON = sys.executable
BESIDE = str(Path(PYTHON).parent / "torchrun")


@pytest.mark.parametrize(
    ("executable", "line", "expected"),
    [
        (PYTHON, "python a.py -c b", Command(["python"], ["a.py", "-c", "b"])),
        (PYTHON, "python -u -Bs -W error -Xdev -m a b", Command(["python", "-u", "-Bs", "-W", "error", "-Xdev"], ["-m", "a", "b"])),
        (PYTHON, "python -c pass", Command(["python"], ["-c", "pass"])),
        (PYTHON, "python", None),
        (PYTHON, "python -", None),
        (PYTHON, "python -i a.py", None),
        (PYTHON, "python -x a.py", None),
        (PYTHON, "python --version", None),
        (PYTHON, "python -m", None),
        (PYTHON, "python -um a", None),
        (PYTHON, "python -m torch._inductor.compile_worker", None),
        ("/bin/sh", "sh -c python", None),
        ("/other/python", "python a.py", None),
    ],
)  # fmt: skip
def test_command_lines_of_this_interpreter(
    executable: str, line: str, expected: Command | None
) -> None:
    assert command_of(executable, line.split()) == expected


def test_a_script_beside_this_interpreter_that_names_it() -> None:
    if not Path(BESIDE).is_file():
        pytest.skip("torchrun is not installed beside this Python")
    assert command_of(BESIDE, ["torchrun", "a.py"]) == Command(["torchrun"], [BESIDE, "a.py"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["ls", "-l"], None),
        (["/other/python3.9", "-u", "a.py", "x y"], "/other/python3.9 -u -m gradscope run a.py 'x y'"),
        (["sh", "-c", "python a.py"], "python -m gradscope run a.py"),
        (["sh", "-c", "python a.py | tee log"], None),
        (["sh", "-c", "echo 'python"], None),
        (["torchrun", "--nproc_per_node", "2", "a.py"], "gradscope run torchrun --nproc_per_node 2 a.py"),
        (["accelerate", "launch", "a.py"], "gradscope run accelerate launch a.py"),
        (["python", "-c", "from multiprocessing.resource_tracker import main"], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_command_that_would_watch(line: list[str], expected: str | None) -> None:
    assert watched(line) == expected


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: A001
    """A folder on the PATH; the working folder is the one above."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize(
    ("first_lines", "expected"),
    [
        (f"#!{PYTHON}\nimport launcher", ["{file}", "-n", "2"]),
        (f"#!/bin/sh\n'''exec' {PYTHON} \"$0\" \"$@\"\n' '''", ["{file}", "-n", "2"]),
        (f"#!{PYTHON} -u\n", Command([PYTHON, "-u"], ["{file}", "-n", "2"])),
        ("#!/other/python3.12\n", Command(["/other/python3.12"], ["{file}", "-n", "2"])),
        ("#!/usr/bin/env -S /other/python -u\n", Command(["/other/python", "-u"], ["{file}", "-n", "2"])),
        ("#!/bin/bash\n", None),
        ("\x7fELF", None),
    ],
)  # fmt: skip
def test_a_launcher_on_the_path_is_the_script_that_it_is(
    bin: Path,  # noqa: A002
    first_lines: str,
    expected: list[str] | Command | None,
) -> None:
    (bin / "launcher").write_text(first_lines)
    (bin / "launcher").chmod(0o755)
    file = str(bin / "launcher")
    match expected:
        case None:
            with pytest.raises(GradscopeError, match="launcher is not a Python program; put"):
                program_of("launcher", ["-n", "2"])
            return
        case Command(python, program):
            expected = Command(python, [file, *program[1:]])
        case [_, *args]:
            expected = [file, *args]
    assert program_of("launcher", ["-n", "2"]) == expected
    (bin.parent / "launcher").write_text("print(1)")  # a file of that name is what Python would run
    assert program_of("launcher", []) == ["launcher"]


def test_an_installed_command_that_is_no_script(
    bin: Path,  # noqa: A002
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Windows `torchrun` is a separate program; its entry point says what it runs."""
    (bin / "made.dist-info").mkdir()
    entry = "[console_scripts]\nlaunch-it = json.tool:main\n"
    (bin / "made.dist-info" / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(str(bin))
    found = program_of("launch-it", ["a"])
    assert not isinstance(found, Command)
    assert [found[0], *found[2:]] == ["-c", "a"]
    assert found[1].splitlines()[1:] == [
        "from json.tool import main",
        "sys.argv[0] = 'launch-it'",
        "sys.exit(main())",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["env"], "put `gradscope run` before the Python program that it starts"),
        (["a.ipynb"], "a.ipynb is a notebook: run it in Jupyter, with `%load_ext gradscope`"),
        ([PYTHON], "names no program"),
        ([PYTHON, "-X"], "names no program"),
    ],
)
def test_what_cannot_be_run_is_told_with_what_can(line: list[str], says: str) -> None:
    with pytest.raises(GradscopeError, match=re.escape(says)):
        program_of(line[0], line[1:])


def test_python_itself_runs_gradscope(bin: Path) -> None:  # noqa: A002
    program = ["-m", "a", "-O"]
    assert program_of(PYTHON, ["-O", "-u", *program]) == Command([PYTHON, "-O", "-u"], program)
    (bin.parent / "python").mkdir()  # as many repositories have one
    (bin / "python").symlink_to(PYTHON)
    assert program_of("python", ["a.py"]) == Command([str(bin / "python")], ["a.py"])


def on(host: str, number: int, *calls: BackwardCall) -> Recording:
    one = rank(number, *calls)
    return replace(one, header=replace(one.header, host=host))


def test_of_several_machines_each_rank_has_its_own() -> None:
    together = merged([on("a", 0), on("a", 1), on("b", 2)])
    assert [one.name for one in together.processes] == ["rank 0 on a", "rank 1 on a", "rank 2 on b"]
    assert [one.name for one in merged([on("a", 0), on("a", 1)]).processes] == ["rank 0", "rank 1"]


def test_ranks_with_the_same_figures_are_one_line() -> None:
    recordings = [on("ab"[i // 2], i, row(1, 4 if i < 3 else 5, 1)) for i in range(4)]
    alike = replace(recordings[0].summary, peak_saved_bytes=20)
    recordings[:3] = [replace(each, summary=alike) for each in recordings[:3]]
    lines = report_text(merged(recordings)).splitlines()
    assert [line.split("  ")[1] for line in lines if line.startswith("  rank")] == [
        "rank 0 on a to rank 2 on b",
        "rank 3 on b",
    ]


def test_a_folder_stands_for_the_recordings_in_it(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("b.gscope", "a.gscope", "notes.txt")]
    for file in files:
        file.touch()
    assert files_of(tmp_path) == [files[1], files[0]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(GradscopeError, match="no recording"):
        files_of(tmp_path / "empty")
