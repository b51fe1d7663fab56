"""Edits become sources and diffs that patch(1) and git accept; what cannot be applied is said and left alone."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canned import small_finding

from gradscope.errors import GradscopeError
from gradscope.fixing.patch import Source, apply, decoded, read, split, unified_diff, write
from gradscope.fixing.plan import ADVICE, Plan, plan
from gradscope.model import (
    Certainty,
    Edit,
    Finding,
    Fix,
    FixKind,
    Header,
    Recording,
    Severity,
    Site,
)

TEXT = "".join(f"line {number}\n" for number in range(1, 13))


def changed(text: str, *edits: tuple[int, str] | tuple[int, str, int]) -> str:
    return "".join(
        apply(Source("f.py", split(text)), [Edit("f.py", *edit) for edit in edits]).after.lines
    )


@pytest.mark.parametrize(
    ("text", "edits", "expected"),
    [
        ("a\nb\nc\n", [(2, "B")], "a\nB\nc\n"),
        ("a\nb\nc\n", [(2, "")], "a\nc\n"),
        ("a\nb\nc\n", [(2, "b\nB"), (3, "")], "a\nb\nB\n"),
        ("a\r\nb\r\n", [(1, "x\ny")], "x\r\ny\r\nb\r\n"),
        ("a\nb", [(2, "b\nB")], "a\nb\nB"),
        ("a\r\nb", [(2, "b\nB")], "a\r\nb\r\nB"),
        ("a\x0cb\nc\n", [(2, "C")], "a\x0cb\nC\n"),
        ("a\nb\nc\nd\n", [(2, "B", 3)], "a\nB\nd\n"),
        ("a\nb\nc\nd\n", [(1, "", 3), (4, "D\nd")], "D\nd\n"),
        ("a\r\nb\r\nc", [(2, "x\ny", 3)], "a\r\nx\r\ny"),
        ("\u00e4 = '\u2028'\nb\n", [(2, "B")], "\u00e4 = '\u2028'\nB\n"),
    ],
)
def test_lines_are_those_of_python_and_keep_their_ends(
    text: str, edits: list[tuple[int, str] | tuple[int, str, int]], expected: str
) -> None:
    assert changed(text, *edits) == expected


def test_new_lines_are_known_by_the_line_that_they_stand_for() -> None:
    change = apply(
        Source("f.py", split("a\nb\nc\nd\n")), [Edit("f.py", 2, "b\nB"), Edit("f.py", 3, "")]
    )
    assert [change.old_line(line) for line in range(1, 5)] == [1, 2, 2, 4]


def test_the_lines_of_an_edit_keep_the_numbers_of_those_that_they_were() -> None:
    source = Source("f.py", split("a\nb\nc\nd\ne\n"))
    change = apply(source, [Edit("f.py", 2, "with x:\n    b\n    c\nlast", 4)])
    text = "".join(change.after.lines)
    assert text == "a\nwith x:\n    b\n    c\nlast\ne\n"
    assert [change.old_line(line) for line in range(1, 7)] == [1, 2, 2, 3, 3, 5]


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"# coding: latin-1\ns = '\xe4'\n", "iso8859-1"),
        (b"\xef\xbb\xbfs = 1\n", "utf-8-sig"),
        ("s = '\u00e4'\r\n".encode(), "utf-8"),
    ],
)
def test_a_file_is_written_as_it_was(tmp_path: Path, content: bytes, encoding: str) -> None:
    file = tmp_path / "s.py"
    file.write_bytes(content)
    source = read(str(file))
    assert (source.encoding, source.data) == (encoding, content)


@pytest.mark.parametrize(
    "tool", [["patch", "-p0", "--binary"], ["git", "apply", "-p0"]], ids=["patch", "git"]
)
@pytest.mark.parametrize("name", ["train.py", "my train.py"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "no end at the end"])
def test_the_diff_can_be_applied(
    tmp_path: Path, tool: list[str], name: str, ends: str, last: bool
) -> None:
    before = (TEXT if last else TEXT[:-1]).replace("\n", ends)
    (tmp_path / name).write_bytes(before.encode())
    edits = [Edit(name, 2, ""), Edit(name, 5, "line 5\nand more"), Edit(name, 12, "the end")]
    change = apply(decoded(name, before.encode()), edits)
    diff = "".join(["1. some words before\n", *unified_diff(change, name)])
    subprocess.run(tool, cwd=tmp_path, input=diff.encode(), check=True, capture_output=True)
    assert (tmp_path / name).read_bytes() == change.after.data != before.encode()


def finding(
    code: str, line: int, fix: Fix | None, severity: Severity = Severity.WARNING
) -> Finding:
    site, certainty = Site("f.py", line), Certainty.PREDICTED
    return small_finding(code, site, severity=severity, certainty=certainty, fix=fix)


def planned(
    tmp_path: Path, *findings: Finding, now: str | None = TEXT, chosen: str | None = None
) -> Plan:
    """The plan for findings in a file that had TEXT when it was recorded; edits of ``f.py`` are of that file."""
    file = str(tmp_path / "f.py")
    if now is not None:
        Path(file).write_text(now)
    there = []
    for each in findings:
        fix = each.fix
        if fix is not None:
            fix = replace(fix, edits=tuple(replace(e, file=file) for e in fix.edits))
        there.append(replace(each, fix=fix))
    return plan(
        Recording(Header("", "", "", "f.py"), findings=tuple(there), sources={file: TEXT}), chosen
    )


ONE = Fix(FixKind.DETACH, "detach it", (Edit("f.py", 5, "fixed"),))
OTHER = Fix(FixKind.ITEM, "take its value", (Edit("f.py", 5, "otherwise"), Edit("f.py", 9, "")))
APART = Fix(FixKind.ITEM, "take its value", (Edit("f.py", 11, "apart"),))
WORDS = Fix(FixKind.REORDER, "call it earlier")


def test_one_fix_of_a_prediction_and_its_failure_is_shown_once_under_the_failure(
    tmp_path: Path,
) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE), finding("GS101", 5, ONE, Severity.ERROR))
    (proposal,) = found.proposals
    assert [f.code for f in proposal.findings] == ["GS101", "GS102"]
    assert "".join(found.changes[0].after.lines) == TEXT.replace("line 5", "fixed")


@pytest.mark.parametrize("chosen", [None, "1", "GS305"])
def test_advice_is_followed_only_if_it_is_named(chosen: str | None, tmp_path: Path) -> None:
    found = planned(tmp_path, finding("GS305", 5, ONE, Severity.ADVICE), chosen=chosen)
    assert found.proposals[0].problem == ("" if chosen else ADVICE)
    assert bool(found.changes) == found.can_be_tried == bool(chosen)
    assert found.proposals[0].hazard == "finding"


def test_of_two_fixes_of_one_line_the_second_waits(tmp_path: Path) -> None:
    found = planned(
        tmp_path, finding("GS102", 5, ONE), finding("GS302", 7, OTHER), finding("GS302", 11, APART)
    )
    assert [proposal.applies for proposal in found.proposals] == [True, False, True]
    assert found.proposals[1].problem.startswith("waits for fix 1")
    expected = TEXT.replace("line 5", "fixed").replace("line 11", "apart")
    assert "".join(found.changes[0].after.lines) == expected


def test_an_edit_of_several_lines_takes_all_of_them(tmp_path: Path) -> None:
    wide = Fix(FixKind.NO_GRAD, "under no_grad", (Edit("f.py", 3, "wide", 5),))
    found = planned(tmp_path, finding("GS305", 3, wide), finding("GS102", 5, ONE))
    assert [proposal.applies for proposal in found.proposals] == [True, False]
    twice = replace(wide, edits=(*wide.edits, Edit("f.py", 4, "again")))
    assert (
        "two edits of one line"
        in planned(tmp_path, finding("GS305", 3, twice)).proposals[0].problem
    )


def test_one_change_that_is_explained_in_two_ways_is_made_once(tmp_path: Path) -> None:
    later = replace(ONE, effects=("`a` would get no gradient",), reason="it is a constant")
    found = planned(tmp_path, finding("GS102", 5, ONE), finding("GS101", 5, later))
    assert [len(proposal.findings) for proposal in found.proposals] == [2]


@pytest.mark.parametrize("chosen", ["2", "gs302", "GS302"])
def test_one_is_chosen_by_number_or_code(tmp_path: Path, chosen: str) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE), finding("GS302", 7, OTHER), chosen=chosen)
    assert [proposal.number for proposal in found.proposals] == [2]
    assert "otherwise" in "".join(found.changes[0].after.lines)


def test_a_choice_that_is_not_there_is_told_what_is(tmp_path: Path) -> None:
    with pytest.raises(
        GradscopeError, match=r"no finding '7': choose one of 1 \(GS102\), 2 \(GS202\)"
    ):
        planned(tmp_path, finding("GS102", 5, ONE), finding("GS202", 7, WORDS), chosen="7")


def test_a_fix_in_words_changes_nothing(tmp_path: Path) -> None:
    found = planned(tmp_path, finding("GS202", 5, WORDS), finding("GS101", 5, None))
    assert [p.fix for p in found.proposals] == [WORDS]
    assert (found.changes, found.proposals[0].applies) == ((), False)


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (TEXT.replace("line 5", "line five"), "has changed at these lines"),
        (TEXT.replace("line 7", "line seven"), "has changed at these lines"),
        ("\n" + TEXT, "has changed at these lines"),
        ("line 1\n", "has changed at these lines"),
        (None, "cannot be read (No such file or directory)"),
        ("# coding: nonsense\n", "is not Python source any more"),
    ],
)
def test_what_has_changed_since_is_left_alone(
    tmp_path: Path, now: str | None, problem: str
) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE), now=now)
    assert problem in found.proposals[0].problem
    assert found.changes == ()


def test_a_change_elsewhere_is_only_told(tmp_path: Path) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE), now=TEXT + "more\n")
    assert found.notes == (f"{tmp_path / 'f.py'} has changed since the recording, at other lines",)
    assert found.proposals[0].applies


def test_an_edit_that_the_encoding_cannot_hold_is_not_made(tmp_path: Path) -> None:
    fix = Fix(FixKind.DETACH, "detach it", (Edit("f.py", 5, "\u20ac"),))
    now = "# coding: latin-1\n" + TEXT.partition("\n")[2]
    assert (
        "has no place in the encoding"
        in planned(tmp_path, finding("GS102", 9, fix), now=now).proposals[0].problem
    )


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE))
    file = tmp_path / "f.py"
    file.chmod(0o750)
    write(found.changes)
    assert file.read_text() == TEXT.replace("line 5", "fixed")
    assert stat.S_IMODE(file.stat().st_mode) == 0o750
    assert os.listdir(tmp_path) == ["f.py"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE))
    real = tmp_path / "real.py"
    (tmp_path / "f.py").rename(real)
    (tmp_path / "f.py").symlink_to(real)
    write(found.changes)
    assert (tmp_path / "f.py").is_symlink()
    assert real.read_text() == TEXT.replace("line 5", "fixed")


@pytest.mark.parametrize("call", ["access", "replace"])
def test_all_files_are_written_or_none(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE))
    other = tmp_path / "other.py"
    other.write_text(TEXT)
    one = found.changes[0]
    before, after = (source._replace(file=str(other)) for source in (one.before, one.after))
    changes = [one, one._replace(before=before, after=after)]
    real = getattr(os, call)

    def refused(*args: Any) -> Any:
        if str(other) in args:
            if call == "access":
                return False
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(*args)

    monkeypatch.setattr(os, call, refused)
    said = f"cannot write {re.escape(str(other))}: Permission denied; nothing was changed: make"
    with pytest.raises(GradscopeError, match=said):
        write(changes)
    assert sorted(os.listdir(tmp_path)) == ["f.py", "other.py"]
    assert (tmp_path / "f.py").read_text() == other.read_text() == TEXT


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    found = planned(tmp_path, finding("GS102", 5, ONE))
    (tmp_path / "f.py").write_text(TEXT + "mine\n")
    with pytest.raises(GradscopeError, match="was changed while the fix was tried out"):
        write(found.changes)
    assert (tmp_path / "f.py").read_text() == TEXT + "mine\n"


def test_code_given_with_c_is_a_source_too() -> None:
    fix = Fix(FixKind.DETACH, "detach it", (Edit("<string>", 5, "fixed"),))
    header = Header("", "", "", "-c", code=TEXT)
    found = plan(Recording(header, findings=(finding("GS102", 5, fix),)))
    assert found.proposals[0].applies
    assert "".join(found.changes[0].after.lines).startswith(
        "line 1\nline 2\nline 3\nline 4\nfixed\nline 6\n"
    )
