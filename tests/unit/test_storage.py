"""The recording's file: where it may be written, and what can be wrong with one that is read."""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from canned import canned_recording
from recorded import HEADER, call_of, chain, rewrite

from gradscope.errors import GradscopeError
from gradscope.model import Edge, Finding, Recording
from gradscope.record import __version__
from gradscope.record.file import PAGE, create, load, read_log
from gradscope.record.writer import RecordingWriter

DATABASE = b"SQLite format 3\0".ljust(4_096, b"\0")
"""How recordings began that older versions wrote."""

# Where it is written


def test_an_older_recording_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run.gscope"
    for script in ("old.py", "new.py"):
        writer = RecordingWriter(path, replace(HEADER, script=script))
        if script == "old.py":
            writer.call(call_of(1))
        writer.close()
    assert load(path) == Recording(replace(HEADER, script="new.py"))


def test_an_empty_file_and_a_link_to_a_recording_may_be_used(tmp_path: Path) -> None:
    path = tmp_path / "run.gscope"
    path.touch()
    (tmp_path / "link").symlink_to(path)
    RecordingWriter(tmp_path / "link", HEADER).close()
    assert load(path) == Recording(HEADER)
    assert (tmp_path / "link").is_symlink()


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("do not lose me " * 20)
    database = tmp_path / "other.db"
    database.write_bytes(DATABASE)
    for path in (text, database):
        before = path.read_bytes()
        with pytest.raises(GradscopeError, match="exists and is not a gradscope recording"):
            RecordingWriter(path, HEADER)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "where", [".", "missing/run.gscope", "file.txt/run.gscope", "/dev/null", "a\0b", "x" * 300]
)
def test_a_path_that_cannot_be_written_is_refused_at_once(where: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(GradscopeError) as refused:
        RecordingWriter(tmp_path / where, HEADER)
    assert "\n" not in str(refused.value)
    assert "choose another file" in str(refused.value)


# What can be wrong with a file


def one_line(path: Path) -> str:
    with pytest.raises(GradscopeError) as refused:
        load(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The canned recording in a file."""
    whole = canned_recording()
    path = tmp_path / "run.gscope"
    writer = RecordingWriter(path, whole.header)
    rewrite(writer, whole)
    writer.finish(whole.outcome, whole.summary)
    writer.close()
    return path


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    assert "no such file" in one_line(tmp_path / "missing.gscope")
    assert "directory" in one_line(tmp_path)
    for name, content in (
        ("empty", b""),
        ("text", b"print('hello')\n" * 30),
        ("zeros", bytes(200)),
    ):
        (tmp_path / name).write_bytes(content)
        assert "not a gradscope recording" in one_line(tmp_path / name)
    (tmp_path / "other.db").write_bytes(DATABASE)
    assert "not a gradscope recording" in one_line(tmp_path / "other.db")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in one_line(tmp_path / "pipe")


def test_a_recording_of_another_version_is_refused(written: Path) -> None:
    content = bytearray(written.read_bytes())
    content[8] ^= 1  # the digest of the layout
    content[40:46] = b"0.3.17"
    written.write_bytes(content)
    assert one_line(written).endswith(
        f": written by another gradscope (0.3.17) than this ({__version__}):"
        " read it with that one, or record the run again"
    )
    content[40:56] = bytes(16)  # as before there was a version there
    written.write_bytes(content)
    assert "another gradscope (an older one) than this" in one_line(written)


def test_of_a_recording_that_is_cut_off_all_is_shown_that_is_left(
    written: Path, tmp_path: Path
) -> None:
    whole, content = load(written), written.read_bytes()
    cut, least = tmp_path / "cut.gscope", len(content)
    for end in [*range(0, PAGE, 500), *range(PAGE, len(content), 1_999), len(content) - 1]:
        cut.write_bytes(content[:end])
        try:
            found = load(cut)
        except GradscopeError as refused:
            assert "\n" not in str(refused)
            assert least == len(content)
            continue
        least = min(least, end)
        assert set(found.calls) <= set(whole.calls)
        assert set(found.findings) <= set(whole.findings)
        *_, note = found.summary.notes
        assert note.startswith("the recording is cut off: ")
        assert note.endswith(" at its end are missing, the rest is shown")
    cut.write_bytes(content[: len(content) * 9 // 10])
    found = load(cut)
    assert (found.calls, found.findings) == (whole.calls, whole.findings)
    assert least < PAGE + 8_000  # layout and header


def test_damage_in_the_middle_is_passed_over(written: Path, tmp_path: Path) -> None:
    whole, content = load(written), bytearray(written.read_bytes())
    at = content.index(b'"GS101"')
    content[at] ^= 1
    written.write_bytes(content)
    found = load(written)
    assert len(found.findings) == len(whole.findings) - 1
    assert (found.calls, found.graphs) == (whole.calls, whole.graphs)
    (note,) = set(found.summary.notes) - set(whole.summary.notes)
    assert re.fullmatch(r"the recording is damaged: .* cannot be read, the rest is shown", note)


def changed(file: Path, table: str, change: Callable[[bytes], bytes]) -> None:
    """Rewrite the first record of a table."""
    descriptor = os.open(file, os.O_RDONLY)
    payloads = read_log(descriptor).payloads
    os.close(descriptor)
    key = next(key for key in payloads if key[0] == table)
    file.unlink()
    store = create(file)
    store.write(payloads | {key: change(payloads[key])})
    store.finish()
    store.close()


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("graphs", lambda _: b"0"),
        ("graphs", lambda _: zlib.compress(bytes(200 << 20))),
        ("graphs", lambda payload: payload[:-9]),
        ("sources", lambda _: zlib.compress(b"1")),
        ("sources", lambda _: zlib.compress(b'["a", "' + b"x" * (65 << 20) + b'"]')),
        ("calls", lambda _: b"[1]"),
        ("calls", lambda _: b"{"),
        ("calls", lambda _: b"\xff"),
        ("calls", lambda _: b"[" * 200_000),
        ("findings", lambda payload: payload.replace(b'"error"', b'"awful"')),
        ("timeline", lambda _: b'[1.0, "a", 2, 3]'),
        ("timeline", lambda _: b"[NaN, 1, 2, 3, false]"),
        ("timeline", lambda _: b"[1e999, 1, 2, 3, false]"),
        ("timeline", lambda _: b"[" + b"[]," * 2_000_000 + b"0]"),
        ("summary", lambda _: b"[" + b"9" * 5_000 + b"]"),
    ],
)
def test_a_record_that_cannot_be_read_is_left_out_and_counted(
    table: str, change: Callable[[bytes], bytes], written: Path
) -> None:
    whole = load(written)
    changed(written, table, change)
    found = load(written)
    (note,) = set(found.summary.notes) - set(whole.summary.notes)
    assert note.startswith("skipped 1 ")
    assert "unreadable or too large" in note
    for other in {"calls", "findings", "graphs", "sources", "timeline"} - {table}:
        assert getattr(found, other) == getattr(whole, other)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("header", b"[]"),
        ("header", b""),
    ],
)
def test_without_a_header_it_is_refused(table: str, text: bytes, written: Path) -> None:
    changed(written, table, lambda _: text)
    assert "damaged or cut off (it has no header): record the run again" in one_line(written)


def test_a_graph_that_names_missing_nodes_is_left_out(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "run.gscope", HEADER)
    writer.graph("g", replace(chain(2), edges=(Edge(0, 5),)))
    writer.close()
    assert load(tmp_path / "run.gscope").graphs == {}


def test_a_recording_may_be_read_where_nothing_may_be_written(written: Path) -> None:
    whole = load(written)
    written.chmod(stat.S_IRUSR)
    written.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert load(written) == whole
    finally:
        written.parent.chmod(stat.S_IRWXU)


def test_the_causes_of_the_canned_findings_differ() -> None:
    findings: tuple[Finding, ...] = canned_recording().findings
    assert len({finding.cause for finding in findings}) == len(findings)
