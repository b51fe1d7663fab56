"""The recording: what is written is read again, whatever becomes of the process, the file or the length of the run."""

from __future__ import annotations

import gc
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from canned import canned_recording, clean_recording, empty_recording, unfinished_recording
from recorded import DONE, HEADER, SITE, call_of, chain, renumbered, rewrite

from gradscope.api.announcements import Announcements, WatchOptions
from gradscope.collect.notes import Notes
from gradscope.model import (
    Finding,
    Fix,
    FixKind,
    Outcome,
    Proof,
    Recording,
    Sample,
    Severity,
    Summary,
)
from gradscope.record import file as file_module
from gradscope.record import writer as writer_module
from gradscope.record.file import Store, amend, create, load, load_from
from gradscope.record.writer import RecordingWriter, begun
from tests.command import ran_well


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("make", [canned_recording, clean_recording, empty_recording])
def test_what_a_run_handed_over_is_read_again(
    make: Callable[[], Recording], in_memory: bool, tmp_path: Path
) -> None:
    whole = make()
    path = None if in_memory else tmp_path / "run.gscope"
    writer = RecordingWriter(path, whole.header)
    numbers = rewrite(writer, whole)
    writer.finish(whole.outcome, whole.summary)
    live = writer.read()
    writer.close()
    assert live == renumbered(whole, numbers)
    if path:
        assert load(path) == live


@pytest.mark.parametrize("times", range(1, 15))
def test_an_interrupt_anywhere_in_a_write_loses_nothing(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RecordingWriter(tmp_path / "run.gscope", HEADER)
    left = times

    def interrupted(*arguments: Any) -> int:
        nonlocal left
        done = pwrite(*arguments)
        left -= 1
        if not left:
            raise KeyboardInterrupt  # by a signal's handler
        return done

    pwrite, store = file_module._write_at, writer._store
    assert store is not None
    writer.call(call_of(1))
    for number in range(2_000):  # dead records, so that the log is moved meanwhile
        store.write({("graphs", 9): bytes(number)})
        if store._end > store._most - 5_000:
            break
    monkeypatch.setattr(file_module, "_write_at", interrupted)
    met = 0
    for number in range(2, 20):
        with suppress(KeyboardInterrupt):
            writer.call(call_of(number, site=replace(SITE, line=number, function="f" * 4_000)))
            met += 1
    assert met == 17
    monkeypatch.undo()
    store.write({("graphs", 9): b""})
    writer.close()
    found = load(tmp_path / "run.gscope")
    assert {call.site.line for call in found.calls if call.site} == {SITE.line, *range(2, 20)}
    assert found.summary.notes == ()


def test_a_run_that_did_not_finish_is_read_as_such(tmp_path: Path) -> None:
    whole = unfinished_recording()
    writer = RecordingWriter(tmp_path / "run.gscope", whole.header)
    numbers = rewrite(writer, whole)
    writer.follow(lambda: whole.summary)
    writer.close()
    assert load(tmp_path / "run.gscope") == renumbered(whole, numbers)
    assert not load(tmp_path / "run.gscope").outcome.finished


def test_finish_marks_the_run_as_finished_and_leaves_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.gscope"
    writer = RecordingWriter(path, HEADER)
    writer.call(call_of(1))
    writer.finish(Outcome(exit_status=3), Summary(backward_calls=1))
    writer.close()
    writer.close()
    assert load(path).outcome == Outcome(exit_status=3, finished=True)
    assert [file.name for file in tmp_path.iterdir()] == ["run.gscope"]


@pytest.mark.parametrize("ended", [True, False])
def test_fixes_are_put_into_a_recording_that_is_over(tmp_path: Path, ended: bool) -> None:
    whole, path = canned_recording(), tmp_path / "run.gscope"
    writer = RecordingWriter(path, whole.header)
    rewrite(writer, whole)
    if ended:
        writer.finish(whole.outcome, whole.summary)
        writer.close()
    before = load(path)
    better = Fix(FixKind.DETACH, "detach it", proof=Proof.HELD)
    found = tuple(replace(each, fix=better, untried="") for each in before.findings[:1])
    amend(path, replace(before, findings=found))
    after = load(path)
    assert [each.fix == better for each in after.findings] == [
        ended and place == 0 for place in range(len(before.findings))
    ]
    assert replace(after, findings=(), outcome=before.outcome) == replace(before, findings=())
    writer.close()


def test_nothing_is_taken_in_after_close(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "run.gscope", HEADER)
    writer.close()
    writer.call(call_of(1))
    writer.finding(canned_recording().findings[0])
    assert writer.graph("g", chain(2)) == 0
    assert load(tmp_path / "run.gscope") == Recording(HEADER)


def test_strings_that_are_hard_to_store(tmp_path: Path) -> None:
    hard = "tab\t nul\0 lone \udcff emoji \N{SNAKE} </script>"
    writer = RecordingWriter(tmp_path / "run.gscope", replace(HEADER, argv=(hard,)))
    with patch.object(writer_module, "_source_text", lambda file: file):
        writer.source(hard)
    writer.call(call_of(1, exception=hard))
    writer.close()
    found = load(tmp_path / "run.gscope")
    assert (found.header.argv, found.sources) == ((hard,), {hard: hard})
    assert found.calls[0].exception == hard


def test_a_writer_that_is_dropped_unclosed_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (None, tmp_path / "run.gscope"):
            writer = RecordingWriter(path, HEADER)
            store = writer._store
            del writer
            gc.collect()
            if isinstance(store, Store):
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(store.fileno())


# Findings, sources, summary


def test_a_finding_met_again_raises_the_count_of_the_first() -> None:
    first = canned_recording().findings[0]
    writer = RecordingWriter(None, HEADER)
    told: list[Finding] = []
    found = Announcements(writer, WatchOptions(on_finding=told.append), Notes())
    found.report(replace(first, count=0))
    assert found.findings == []
    found.report(replace(first, count=1))
    for call in range(5, 14):
        found.report(replace(first, count=1, message="said differently", backward_call=call))
    assert writer.read().findings == (replace(first, count=10),)
    found.report(replace(first, count=0, message="with new figures"))
    assert tuple(found.findings) == writer.read().findings
    assert found.findings == [replace(first, count=10, message="with new figures")]
    assert told == [replace(first, count=1)]


def test_sources_are_read_once_and_unreadable_ones_passed_over(tmp_path: Path) -> None:
    script = tmp_path / "latin.py"
    script.write_bytes(b"# coding: latin-1\nname = 'caf\xe9'\n")
    (tmp_path / "bad.py").write_bytes(b"# coding: no-such-coding\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge.py").write_bytes(b"#" * (writer_module.SOURCE_BYTES + 1))
    writer = RecordingWriter(None, HEADER)
    for name in ("latin.py", "bad.py", "binary.py", "huge.py", "missing.py", ".", "a\0b"):
        writer.source(str(tmp_path / name))
    writer.source("<string>")
    script.write_text("changed = True\n")
    writer.source(str(script))
    assert writer.read().sources == {str(script): "# coding: latin-1\nname = 'café'\n"}


def test_the_latest_summary_wins() -> None:
    writer = RecordingWriter(None, HEADER)
    writer.follow(lambda: Summary(backward_calls=1))
    last = Summary(backward_calls=2, unread={"deep recursion": 3}, notes=("a note",))
    writer.follow(lambda: last)
    assert writer.read().summary == last


@pytest.mark.parametrize("unread", [["a"], {"a": "b"}, 3])
def test_what_is_no_count_by_reason_is_refused(unread: object) -> None:
    written = [
        unread if name == "unread" else getattr(Summary(), name)
        for name in file_module.LAYOUT["Summary"]
    ]
    with pytest.raises(ValueError, match=r"expected (dict|int)"):
        file_module.loads(
            Summary, file_module.dumps([[] if each == () else each for each in written])
        )


# Graphs


def test_a_known_signature_is_not_looked_at_again() -> None:
    writer = RecordingWriter(None, HEADER)
    assert writer.known("a") is None
    number = writer.graph("a", chain(3))
    assert writer.known("a") == number == writer.graph("a", chain(5))
    assert writer.read().graphs == {number: chain(3)}


def test_graphs_without_end_are_not_all_stored() -> None:
    writer = RecordingWriter(None, HEADER)
    numbers = [writer.graph(length, chain(length)) for length in range(1, 301)]
    assert numbers == [*range(1, 201), *[0] * 100]
    assert writer.known(300, SITE) == 0
    assert writer.known(7, SITE) == 7
    elsewhere = replace(SITE, line=99)
    assert writer.graph("elsewhere", chain(2, elsewhere)) == 201
    writer.follow(Summary)
    found = writer.read()
    assert len(found.graphs) == 201
    assert found.summary.notes == ("graphs not stored because too many others were: 101",)


def test_large_graphs_use_up_the_room_of_their_site_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "NODES_AT_SITE", 4_000)
    writer = RecordingWriter(None, HEADER)
    assert [writer.graph(n, chain(1_500 + n)) for n in range(5)] == [1, 2, 3, 0, 0]


def test_all_graphs_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GRAPH_BYTES", 500)
    writer = RecordingWriter(None, HEADER)
    numbers = [
        writer.graph(n, chain(50, replace(SITE, line=n, function="f" * n))) for n in range(1, 50)
    ]
    stored = [number for number in numbers if number]
    assert 0 < len(stored) < 10
    assert numbers == [*stored, *[0] * (49 - len(stored))]


# The process


def test_a_reader_sees_each_call_of_a_process_that_goes_on_and_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run.gscope"
    child = start_writing(path)
    assert child.stdout is not None
    try:
        for _ in range(20):  # reads while it is being written
            number = int(child.stdout.readline())
            found = load(path)
            assert found.summary.backward_calls >= number
            assert found.outcome.unfinished == f"the run has not ended yet (process {HEADER.pid})"
    finally:
        os.kill(child.pid, signal.SIGKILL)
        last = [number, *map(int, child.stdout.readlines())][-1]
        child.wait()
        child.stdout.close()
    found = load(path)
    assert found.calls[0].count == found.summary.backward_calls in (last, last + 1)
    assert found.outcome == Outcome()
    assert found.header == HEADER
    assert found.summary.freed_bytes == 3 * found.calls[0].count


def start_writing(path: Path) -> subprocess.Popen[str]:
    """A process that calls backward for ever."""
    program = f"""
        from pathlib import Path
        from time import sleep
        from gradscope.model import *
        from gradscope.record.writer import RecordingWriter
        writer = RecordingWriter(Path({str(path)!r}), {HEADER!r})
        number = 0
        writer.follow(lambda: Summary(number, freed_bytes=3 * number))
        while True:
            number += 1
            writer.call(BackwardCall(number, "backward", {SITE!r}, freed_bytes=3))
            writer.sample(Sample(number * 0.002, number % 7, 0, number))
            print(number, flush=True)
            sleep(0.002)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def test_what_began_and_did_not_end_is_told(tmp_path: Path) -> None:
    path = tmp_path / "run.gscope"
    writer = RecordingWriter(path, HEADER)
    writer.follow(Summary, lambda: f"[5,{begun('grad', SITE)}],[6,{begun('backward', None)}]")
    writer.call(call_of(4))
    writer.begin()
    assert load(path).summary.notes == (
        "backward call 5 (autograd.grad) at train.py:7 had begun and had not ended",
        "backward call 6 had begun and had not ended",
    )
    writer.finish(DONE, Summary())
    assert load(path).summary.notes == ()


def test_what_counts_on_is_written_from_time_to_time_and_that_a_call_has_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now, running = tmp_path / "run.gscope", 0.0, ""
    monkeypatch.setattr(writer_module, "monotonic", lambda: now)
    writer = RecordingWriter(path, HEADER)
    writer.follow(Summary, lambda: running)
    last = writer_module.AT_ONCE + 1
    for number in range(1, last + 1):
        running = f"[{number},{begun('backward', SITE)}]"
        writer.begin()
        assert load(path).summary.notes
        running = ""
        add = writer.call(call_of(number))
    found = load(path)
    assert (found.calls[0].count, found.summary.notes) == (last - 1, ())
    assert add is not None
    now = writer_module.WRITE_EVERY
    further = [call_of(number) for number in range(last + 1, last + 10)]
    add([call.number for call in further], further[-1].ended)
    found = load(path)
    assert (found.calls[0].count, found.calls[0].last_number) == (last + 9, last + 9)
    writer.close()


@pytest.mark.parametrize("host", ["another", platform.node()])
def test_who_goes_on_is_told_only_where_it_can_be_seen(host: str, tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "run.gscope", replace(HEADER, host=host, pid=17))
    told = load(tmp_path / "run.gscope").outcome.unfinished
    writer.close()
    after = load(tmp_path / "run.gscope").outcome.unfinished
    if host == "another":
        assert told == after
        assert "process 17 on another still runs, or was stopped" in told
    else:
        assert told == "the run has not ended yet (process 17)"
        assert after == Outcome().unfinished


def test_a_log_without_end_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.gscope"
    monkeypatch.setattr(writer_module, "_source_text", dict.fromkeys("0123456", "x" * 100).get)
    writer = RecordingWriter(path, HEADER)
    largest = 0
    for number in range(1, 3_000):
        writer.source(str(number % 7))
        writer.call(call_of(number, site=replace(SITE, line=number % 20)))
        writer.amend(argv=(str(number), "x" * 2_000))
        largest = max(largest, path.stat().st_size)
    found = load(path)
    assert (largest < 1_300_000, path.stat().st_size > 50_000) == (True, True)
    assert (found.header.argv[0], len(found.sources)) == ("2999", 7)
    writer.finish(DONE, Summary())
    assert path.stat().st_size < 20_000
    assert load(path).calls == found.calls


def test_a_forked_child_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.gscope"
    program = f"""
        import os, sys
        from pathlib import Path
        from gradscope.model import *
        from gradscope.record.writer import RecordingWriter
        writer = RecordingWriter(Path({str(path)!r}), {HEADER!r})
        writer.call(BackwardCall(1, "backward"))
        if os.fork() == 0:
            for number in range(2, 50):
                writer.call(BackwardCall(number, "backward"))
            writer.source("<string>", "x")
            assert writer.graph("g", Graph((Node(0, "A"),), (), ())) == 0
            assert writer.read() == Recording({HEADER!r})
            writer.finish(Outcome(exit_status=9), Summary())
            writer.close()
            sys.exit(0)
        assert os.wait()[1] == 0
        writer.call(BackwardCall(2, "backward"))
        writer.finish(Outcome(exit_status=0), Summary(backward_calls=2))
        writer.close()
    """
    ran_well(sys.executable, "-c", textwrap.dedent(program))
    found = load(path)
    assert (found.calls[0].count, found.outcome.exit_status, found.sources) == (2, 0, {})


def test_several_threads_write_one_recording(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "run.gscope", HEADER)

    def work(line: int) -> None:
        site = replace(SITE, line=line)
        for number in range(500):
            writer.call(call_of(number * 4 + line, site=site, thread=f"worker-{line}"))
            writer.sample(Sample(number, number, 0, number))
            writer.graph((line, number % 5), chain(1 + number % 5, site))

    threads = [threading.Thread(target=work, args=(line,)) for line in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    found = load(tmp_path / "run.gscope")
    counts = {call.thread: call.count for call in found.calls}
    assert counts == {f"worker-{line}": 500 for line in range(1, 5)}
    assert len(found.graphs) == 20


def test_a_full_disk_ends_the_recording_and_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.gscope"
    writer = RecordingWriter(path, HEADER)
    writer.call(call_of(1))
    room, pwrite = path.stat().st_size + 2_000, file_module._write_at
    monkeypatch.setattr(
        file_module, "_write_at", lambda f, data, at: pwrite(f, data[: room - at], at)
    )
    for line in range(1, 200):
        writer.call(call_of(line + 1, site=replace(SITE, line=line, function="f" * 500)))
    assert writer.problem is not None
    assert str(path) in writer.problem
    assert "No space left" in writer.problem
    writer.finding(canned_recording().findings[0])
    writer.finish(DONE, Summary())
    found = writer.read()
    writer.close()
    assert 1 < len(found.calls) < 5
    assert load(path) == found


def test_a_file_of_the_programs_is_never_written_to(tmp_path: Path) -> None:
    store = create(tmp_path / "run.gscope")
    writer = RecordingWriter(store, HEADER)
    assert store.fileno() >= 900
    with (tmp_path / "theirs").open("w+b") as theirs:
        os.dup2(theirs.fileno(), store.fileno())  # as a daemon closes what it finds, and opens more
        writer.call(call_of(1))
        assert theirs.read() == b""
    assert "Bad file descriptor" in (writer.problem or "")
    writer.close()


def test_a_nameless_recording_is_read_by_a_forked_process(tmp_path: Path) -> None:
    store = create(None)
    writer = RecordingWriter(store, HEADER)
    for number in range(1, 300):
        writer.call(call_of(number))
        writer.amend(argv=("x" * 10_000, str(number)))  # so that the log is moved
    assert writer.path is None
    assert load_from(store.fileno()).calls[0].count == 299
    writer.close()


def test_errors_come_first_each_behind_what_foretold_it_then_warnings_then_advice() -> None:
    (leak,) = (each for each in canned_recording().findings if each.code == "GS302")
    late = replace(leak, code="GS101", severity=Severity.ERROR, backward_call=9)
    soon = replace(late, code="GS201", backward_call=4)
    foretold = replace(leak, code="GS102", backward_call=8, came_true=True)
    advice = replace(leak, code="GS303", severity=Severity.ADVICE, backward_call=1)
    gone = replace(leak, code="GS102", backward_call=2, withdrawn="it was reset")
    made = (advice, gone, leak, foretold, late, soon)
    ordered = replace(canned_recording(), findings=made).findings
    assert ordered == (soon, foretold, late, leak, advice, gone)
