"""The recording's file: where it may be written, and what can be wrong with one that is read."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from canned import canned_recording
from recorded import HEADER, call_of, chain, rewrite

from gradscope.errors import GradscopeError
from gradscope.model import (
    SCHEMA,
    Edge,
    Finding,
    Recording,
)
from gradscope.record import file as storage
from gradscope.record.file import load
from gradscope.record.writer import RecordingWriter

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
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.commit()
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
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.commit()
    assert "not a gradscope recording" in one_line(tmp_path / "other.db")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in one_line(tmp_path / "pipe")


def test_a_recording_of_a_newer_schema(written: Path) -> None:
    with closing(sqlite3.connect(written)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    message = one_line(written)
    assert (
        f"written by a newer gradscope (schema {SCHEMA + 1}); this one reads up to {SCHEMA}: upgrade"
        in message
    )


def test_a_recording_cut_off_anywhere_is_never_a_traceback(written: Path, tmp_path: Path) -> None:
    content = written.read_bytes()
    cut = tmp_path / "cut.gscope"
    for end in [17, 60, 99, 100, 500, *range(1_024, len(content), 1_999), len(content) - 1]:
        cut.write_bytes(content[:end])
        assert "damaged or cut off" in one_line(cut)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE graphs SET value = x'00'",
        "UPDATE graphs SET value = 5",
        "UPDATE calls SET value = '[1]'",
        "UPDATE calls SET value = '{'",
        "UPDATE calls SET value = 7",
        "UPDATE findings SET value = replace(value, '\"error\"', '\"awful\"')",
        "UPDATE timeline SET value = '[1.0, \"a\", 2, 3]'",
        "UPDATE sources SET value = 'text'",
        "UPDATE meta SET value = '" + "[" * 200_000 + "' WHERE key = 'summary'",
        "UPDATE sources SET value = x'780133040000320032'",  # the number 1, packed
        "UPDATE meta SET value = '[]' WHERE key = 'layout'",
        "UPDATE meta SET value = '{\"Header\": [[1]]}' WHERE key = 'layout'",
        "UPDATE meta SET value = replace(value, '\"script\"', '\"scroll\"') WHERE key = 'layout'",
        "DELETE FROM meta",
        "DROP TABLE calls",
    ],
)
def test_damaged_contents_are_told_in_one_line(damage: str, written: Path) -> None:
    with closing(sqlite3.connect(written)) as connection:
        connection.execute(damage)
        connection.commit()
    assert "damaged" in one_line(written)


def test_a_graph_that_names_missing_nodes_is_damage(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "run.gscope", HEADER)
    writer.graph("g", replace(chain(2), edges=(Edge(0, 5),)))
    writer.close()
    assert "a graph names a node" in one_line(tmp_path / "run.gscope")


def test_fields_that_come_and_go_between_versions(written: Path) -> None:
    whole = load(written)
    with closing(sqlite3.connect(written)) as connection:
        (layout,) = connection.execute("SELECT value FROM meta WHERE key = 'layout'").fetchone()
        assert '"missed"' in layout
        connection.execute(
            "UPDATE meta SET value = ? WHERE key = 'layout'",
            (layout.replace('"missed"', '"of_a_later_version"'),),
        )
        connection.commit()
    found = load(written)
    assert found.findings == tuple(replace(finding, missed=False) for finding in whole.findings)
    assert found.graphs == whole.graphs


def test_a_recording_may_be_read_where_nothing_may_be_written(written: Path) -> None:
    whole = load(written)
    written.chmod(stat.S_IRUSR)
    written.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert load(written) == whole
    finally:
        written.parent.chmod(stat.S_IRWXU)


def test_half_a_commit_of_a_killed_process_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "run.gscope"
    writer = RecordingWriter(path, HEADER)
    writer.call(call_of(1))
    writer.flush()
    # What is on disk in the middle of a commit: a journal of old pages, and some pages already new.
    connection = writer._connection
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    for number in range(200):
        connection.execute("INSERT OR REPLACE INTO calls VALUES (?, ?)", (number, "x" * 4_000))
    killed = tmp_path / "killed"
    killed.mkdir()
    for file in (path, tmp_path / "run.gscope-journal"):
        shutil.copy(file, killed / file.name)
    connection.execute("ROLLBACK")
    writer.close()
    assert (killed / path.name).stat().st_size > path.stat().st_size
    assert load(killed / path.name).calls == (call_of(1),)
    assert [file.name for file in killed.iterdir()] == [path.name]


def test_the_tables_are_those_that_the_storage_names(written: Path) -> None:
    with closing(sqlite3.connect(written)) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
    assert sorted(names) == sorted(storage.TABLES)


def test_the_causes_of_the_canned_findings_differ() -> None:
    findings: tuple[Finding, ...] = canned_recording().findings
    assert len({finding.cause for finding in findings}) == len(findings)
