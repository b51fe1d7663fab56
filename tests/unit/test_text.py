"""The terminal report: as a whole against golden files, and line by line where a terminal can go wrong."""

from __future__ import annotations

import io
import os
import re
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from canned import CHOICE, RECORDINGS, SUM, small_finding
from golden import assert_golden
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gradscope.commands.outputs import console_on, printer
from gradscope.formatting import counted, listed, nbytes
from gradscope.model import (
    BackwardCall,
    Certainty,
    Failure,
    Finding,
    Fix,
    FixKind,
    Outcome,
    Process,
    Proof,
    Recording,
    Related,
    Root,
    Severity,
    Site,
    Training,
)
from gradscope.render.text import SafeConsole, begin_line, cut, plain, show_progress
from gradscope.render.text.report import print_finding, print_report
from gradscope.render.text.tables import MOST_ROWS
from gradscope.rules.settings import Format
from tests import known


def console(width: int = 80, **options: object) -> Console:
    settings = {"file": io.StringIO(), "width": width, "color_system": None} | options
    return Console(**settings)  # type: ignore[arg-type]


def written(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def report(
    recording: Recording, width: int = 80, saved: str | None = None, verbose: bool = False
) -> str:
    target = console(width)
    print_report(recording, target, saved, verbose=verbose)
    return written(target)


def shown(
    finding: Finding, sources: dict[str, str] | None, width: int = 80, **options: object
) -> list[str]:
    target = console(width, **options)
    print_finding(finding, target, sources)
    return written(target).splitlines()


def finding(site: Site | None, label: str = "label", **fields: Any) -> Finding:
    return small_finding(site=site, label=label, **fields)


# The whole report


@pytest.mark.parametrize(("width", "verbose"), [(80, False), (60, True)])
@pytest.mark.parametrize("name", RECORDINGS)
def test_the_report_is_as_it_was(name: str, width: int, verbose: bool) -> None:
    text = report(RECORDINGS[name], width, "run.gscope", verbose)
    assert_golden(f"report-{name}-{width}.txt", text)


@pytest.mark.parametrize("verbose", [False, True], ids=["short", "verbose"])
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_none_ends_in_spaces(
    width: int, verbose: bool
) -> None:
    for line in report(RECORDINGS["canned"], width, verbose=verbose).splitlines():
        assert cell_len(line) <= width
        assert line == line.rstrip()


def test_colour_adds_nothing_that_the_words_do_not_say() -> None:
    coloured = console(force_terminal=True, color_system="truecolor")
    print_report(RECORDINGS["canned"], coloured)
    text = re.sub(r"\x1b\[[0-9;]*m", "", written(coloured))
    assert text != written(coloured)
    assert text == report(RECORDINGS["canned"])


def test_without_colour_there_are_no_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    target = Console(file=io.StringIO(), width=80, force_terminal=True)
    print_report(RECORDINGS["canned"], target)
    assert "\x1b[3" not in written(target), "a colour"
    assert "\x1b" not in report(RECORDINGS["canned"])


def test_an_encoding_without_unicode_is_served_in_ascii() -> None:
    raw = io.BytesIO()
    target = SafeConsole(file=io.TextIOWrapper(raw, encoding="ascii"), width=80)
    recording = replace(
        RECORDINGS["canned"],
        findings=(finding(Site("d\u00e9.py", 1)),),
        sources={"d\u00e9.py": "\u03b1 = 1"},
    )
    print_report(recording, target, verbose=True)
    target.file.flush()
    text = raw.getvalue().decode("ascii")
    assert "1-1,999" in text
    assert "x1,000" in text
    assert r"d\xe9.py:1:1" in text
    assert r"\u03b1 = 1" in text


def test_the_next_command_is_for_the_worst_finding_and_names_the_recording() -> None:
    lines = report(RECORDINGS["canned"], saved="run.gscope").splitlines()
    assert lines[-3:] == [
        "next: gradscope fix run.gscope",
        "      gradscope explain GS201",
        "      gradscope report --verbose run.gscope",
    ]
    words = tuple(replace(f, fix=None, alternatives=()) for f in RECORDINGS["canned"].findings)
    of_run = replace(RECORDINGS["canned"].header, run="7-1")
    sought = replace(RECORDINGS["canned"], header=of_run, findings=words)
    command = "gradscope fix train.py -- --epochs 1"
    assert f"next: {command}\n      gradscope explain GS201\n" in report(sought)
    assert f"next:\n  {command}\n  gradscope explain" in report(sought, 40)
    found_none = tuple(replace(f, untried="not tried: no edit was found") for f in words)
    assert "next: gradscope explain" in report(replace(sought, findings=found_none))


def test_a_watch_in_a_script_names_the_command_that_mends_it() -> None:
    canned = RECORDINGS["canned"]
    header = replace(canned.header, script="train.py", cwd="/work", run="")
    own = replace(canned, header=header, sources={"/work/train.py": ""})
    assert "\nnext: gradscope fix train.py -- --epochs 1\n" in report(own)
    kernel = replace(canned, header=header, sources={"/tmp/kernel/1.py": ""})
    assert "gradscope fix" not in report(kernel)


def test_what_has_held_is_written_next() -> None:
    canned = RECORDINGS["canned"]
    held = tuple(
        replace(f, fix=f.fix and replace(f.fix, proof=Proof.HELD)) for f in canned.findings
    )
    lines = report(replace(canned, findings=held), saved="run.gscope").splitlines()
    assert "next: gradscope fix run.gscope --write" in lines


def test_a_report_that_was_asked_for_does_not_name_itself_as_next() -> None:
    target = console()
    show = printer(Format.TEXT, verbose=True)
    show(RECORDINGS["canned"], target, "run.gscope")
    assert written(target).splitlines()[-1] == "      gradscope report --memory run.gscope"
    target = console()
    show(RECORDINGS["empty"], target, "run.gscope")
    assert "next:" not in written(target)


def test_no_fix_is_offered_where_none_is_an_edit() -> None:
    whole = RECORDINGS["canned"]
    words = tuple(
        replace(f, fix=f.fix and replace(f.fix, edits=()), untried="not tried: no edit was found")
        for f in whole.findings
    )
    lines = report(replace(whole, findings=words), saved="run.gscope").splitlines()
    assert "next: gradscope explain GS201" in lines
    by_hand = (small_finding("GS603", fix=Fix(FixKind.OTHER, "use all outputs")),)
    of_run = replace(whole, header=replace(whole.header, run="7-1"), findings=by_hand)
    assert "next: gradscope explain GS603" in report(of_run, saved="run.gscope").splitlines()
    looked_for = "no optimizer step was seen, nothing freed or changed was needed, nothing grows"
    said = " ".join(report(RECORDINGS["clean"]).splitlines()[-2:])
    assert said == f"no problem found in 500 backward calls: {looked_for}"


def test_only_of_a_run_that_ended_well_it_is_said_that_there_was_no_problem() -> None:
    clean = RECORDINGS["clean"]
    killed = replace(clean, outcome=Outcome(-9))
    left = replace(clean, outcome=Outcome(3, None, finished=True))
    raised = replace(clean, outcome=Outcome(1, "KeyError: 'train'", finished=True))
    pair = tuple(Process(n, "x.py", clean.summary, clean.outcome) for n in ("rank 0", "rank 1"))
    of_two = replace(clean, processes=(pair[0], replace(pair[1], outcome=raised.outcome)))
    short = replace(clean, summary=replace(clean.summary, backward_calls=2))
    once = replace(clean, summary=replace(clean.summary, training=Training(1, 2, "opt", 4, 4)))
    steps = "whether gradients are reset and every parameter is reached (3 steps of each optimizer)"
    calls = "500 backward calls"
    said = {
        "killed": f"nothing found in {calls}, until the run ended",
        "left": f"nothing found in {calls}, until the run ended",
        "raised": f"no finding explains KeyError; nothing was found in {calls}",
        "of_two": f"no finding explains KeyError; nothing was found in {calls} of 2 processes",
        "short": "nothing found in 2 backward calls; too short to say whether graphs grow (3 iterations)",
        "once": f"nothing found in {calls}; too short to say {steps}",
    }
    runs = {"killed": killed, "left": left, "raised": raised, "of_two": of_two}
    for name, recording in (runs | {"short": short, "once": once}).items():
        text = " ".join(report(recording).split())
        assert text.endswith(said[name]), name
        assert "no problem" not in text, name


def test_an_error_that_came_out_of_a_backward_call_is_said_to_have() -> None:
    clean = RECORDINGS["clean"]
    error = "torch.utils.checkpoint.CheckpointError: other shapes\n"
    failed = replace(clean.calls[0], number=501, last_number=501, count=1)
    failed = replace(failed, exception="CheckpointError: other shapes")
    outcome = Outcome(1, error, finished=True)
    ended = replace(clean, calls=(*clean.calls, failed), outcome=outcome)
    said = "\nno finding explains CheckpointError in backward call 501; nothing was found"
    assert said in report(ended)
    elsewhere = replace(ended, outcome=replace(outcome, exception="ValueError: other"))
    assert "\nno finding explains ValueError; nothing was found" in report(elsewhere)
    ours = finding(None, message="it will raise")
    assert "\n1 error in 500 backward calls; the script ended with that error" in report(
        replace(ended, findings=(ours,))
    )
    assert "ended with that error" not in report(replace(elsewhere, findings=(ours,)))


def test_the_report_leads_with_an_exception_that_no_finding_explains() -> None:
    notes = (Related("failing_node", None, "at node `ExpBackward0`"),)
    failure = Failure(Site("train.py", 7, 5), "raised here", notes, "call it once")
    outcome = Outcome(1, "KeyError: 'a'\nmore of it", finished=True, failure=failure)
    canned, clean = (replace(RECORDINGS[name], outcome=outcome) for name in ("canned", "clean"))
    for recording in (canned, clean):
        lines = report(recording).splitlines()
        assert lines[0] == "raised: KeyError: 'a'"
        assert lines[1].split() == ["-->", "train.py:7:5"]
        assert {"note: at node `ExpBackward0`", "help: call it once"} <= {*lines}
    assert "script ended with KeyError; nothing else was found in 500" in report(clean)
    assert "the script ended with KeyError, see above" in " ".join(report(canned).split())
    first, second = (
        Process(name, "x.py", clean.summary, replace(outcome, exception=f"{name}: no"))
        for name in ("rank 0", "rank 1")
    )
    of_two = replace(clean, outcome=Outcome(1, finished=True), processes=(first, second))
    assert report(of_two).startswith("raised in rank 0: rank 0: no\n")
    assert report(of_two).count("raised in rank") == 1


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (Training(2, 600, "", 12, 12), "all 12 parameters of 2 optimizers got gradients, no step"),
        (Training(1, 9, "opt", 6, 4, {"experts.7.*": 2}), "4 of the 6 parameters of `opt` got"),
        (
            Training(1, 9, "opt", 6, 6, {}, {"model.encoder.*": 9}),
            "all 6 parameters of `opt` that are not frozen got gradients, no step used a gradient",
        ),
        (
            Training(1, 9, "opt", 1, 1, {}, {"model.encoder.*": 9}),
            "the only parameter of `opt` that is not frozen got gradients, no step used a gradient",
        ),
        (
            Training(1, 600, "opt", 6, 6, once=32),
            "all 6 parameters of `opt` got gradients, none of the first 32 steps used a gradient",
        ),
        (Training(1, 9, "opt", 6, 6, once=0), "got gradients, some steps used a gradient twice"),
        (Training(known=False), "500 backward calls: nothing freed or changed was needed, nothing"),
    ],
)
def test_the_last_line_says_what_was_looked_for(training: Training, said: str) -> None:
    clean = RECORDINGS["clean"]
    text = " ".join(
        report(replace(clean, summary=replace(clean.summary, training=training))).split()
    )
    assert "no problem found in 500 backward calls: " in text
    assert said in text
    lines = {
        "not reached yet: 2 parameters, `experts.7.*`": training.not_yet,
        "not trained: 9 parameters, `model.encoder.*`, frozen (requires_grad is off)": training.frozen,
    }
    for line, facts in lines.items():
        assert (line in text) == bool(facts)


def test_what_was_not_counted_is_not_told_as_zero() -> None:
    clean = RECORDINGS["clean"]
    text = report(replace(clean, header=replace(clean.header, hooks=False)), verbose=True)
    assert re.search(r"saved tensors  not counted without hooks\n\n", text)
    assert not re.search(r"\d ([KM]i)?B\b", text)
    assert "nodes run\n" in text
    summary = replace(clean.summary, nodes=0, nodes_before=8, nodes_unmet=0, nodes_destroyed=5)
    text = report(replace(clean, summary=summary), verbose=True)
    assert "0 built, 5 destroyed, 3 alive\n" in text
    assert "8 nodes that a call met; what these saved is not counted" in " ".join(text.split())


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (0.0, ""),
        (0.004, "gradscope took less than 1 % of the loop"),
        (0.042, "gradscope took about 4 % of the loop"),
        (0.38, "gradscope took about 38 % of the loop; `--budget 3` inspects fewer calls"),
    ],
)
def test_a_watch_says_what_it_took(cost: float, said: str) -> None:
    clean = RECORDINGS["clean"]
    costly = replace(clean, summary=replace(clean.summary, cost=cost))
    text = report(costly, verbose=True)
    assert said in " ".join(text.split())
    assert ("took" in text) == bool(said)
    assert ("took" in report(costly)) == ("--budget" in said)


def test_released_and_returned_are_told_apart() -> None:
    text = report(RECORDINGS["canned"], verbose=True)
    assert re.search(r"released by the graph +1,010 freed in backward, 31\.3 MiB\n", text)
    assert re.search(r"memory returned +31\.3 MiB of those; 57\.2 KiB still held elsewhere\n", text)


def test_how_the_run_ended_is_said() -> None:
    assert "the run was stopped before it could finish" in report(RECORDINGS["unfinished"])
    assert "the script raised RuntimeError: Trying to backward" in report(RECORDINGS["canned"])


# One finding


def test_missed_and_repeated_findings_say_so() -> None:
    lines = shown(finding(None, missed=True, count=1200), {})
    assert lines[:2] == ["error[GS101]: message", "  = label"]
    assert "note: seen 1,200 times" in lines
    assert any("bug in gradscope" in line for line in lines)


def test_what_was_announced_above_says_only_what_is_new() -> None:
    freed = Related("freed_by", Site("a.py", 3), "freed here")
    ahead = Related("failing_node", Site("a.py", 7, 5), "will fail")
    warning = finding(
        Site("a.py", 3), severity=Severity.WARNING, related=(freed, ahead), backward_call=4
    )
    error = finding(
        Site("a.py", 7, 9), related=(freed,), saved=("self f32[]",), fix=Fix(FixKind.OTHER, "")
    )
    target = console(80)
    print_finding(error, target, {"a.py": "\n" * 6 + "loss.backward()"}, [warning])
    assert written(target).splitlines() == [
        "error[GS101]: message",
        " --> a.py:7:9",
        "  |",
        "7 | loss.backward()",
        "  |         ^^^^^^^ label",
        "note: announced as GS101 at backward call 4, see above",
        "",
    ]
    elsewhere = replace(error, related=(replace(freed, site=Site("a.py", 2)),))
    assert warning.announces(error)
    assert not warning.announces(elsewhere)
    assert not warning.announces(warning)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_what_was_printed_before_takes_a_row(width: int) -> None:
    recording = RECORDINGS["canned"]
    target = console(width)
    print_report(recording, target, printed={found.cause for found in recording.findings})
    title, *lines = written(target).partition("\nnote:")[0].splitlines()
    assert title == "findings"
    assert all(cell_len(line) <= width for line in lines)
    tags = [f"{found.severity}[{found.code}]" for found in recording.findings]
    assert re.findall(r"^  (\w+\[GS\d+\])", "\n".join(lines), re.MULTILINE) == tags
    for found in recording.findings if width >= 80 else ():
        is_watched = found.certainty is Certainty.OBSERVED and found.severity is Severity.WARNING
        said = found.label[:20] if is_watched else found.name
        assert any(f":{known(found.site).line}  {said}" in line for line in lines)
        seen = f"seen {found.count} times"
        assert found.count == 1 or any(line.endswith(seen) for line in lines)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_fix_has_its_reason_and_effects_and_each_alternative_a_line(width: int) -> None:
    text = "\n".join(shown(finding(None, fix=CHOICE, alternatives=(SUM, CHOICE)), {}, width))
    told = text.partition("help: ")[2]
    assert " ".join(told.split()) == (
        "detach `fake` why: why so effect: `G.*` would get nothing"
        " or: sum losses (ready to apply): add them"
        " or: detach (check it first): `G.*` would get nothing"
    )
    assert max(map(cell_len, told.splitlines())) <= width
    assert "\n  or: sum losses" in told


def test_long_messages_are_wrapped_under_themselves() -> None:
    lines = shown(finding(None, fix=Fix(FixKind.OTHER, "word " * 40)), {}, width=50)
    first = next(i for i, line in enumerate(lines) if line.startswith("help: "))
    assert all(line.startswith("      word") for line in lines[first + 1 : -2])


def test_paths_are_short_below_the_working_directory_and_whole_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = os.path.join(tmp_path, "pkg", "a.py")
    assert shown(finding(Site(inside, 3, 5)), {})[1] == f" --> {os.path.join('pkg', 'a.py')}:3:5"
    far = os.path.join(os.sep, "elsewhere", *["folder"] * 20, "a.py")
    assert shown(finding(Site(far, 3, 5)), {})[1] == f" --> {far}:3:5", (
        "a path is not broken, however long"
    )


def test_the_source_is_the_recorded_one_or_that_of_a_program_that_runs(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("first\nsecond = 2\n", encoding="utf-8")
    there = finding(Site(str(file), 2, 1, 2, 7))
    lines = shown(there, None)
    assert "2 | second = 2" in lines
    assert "  | ^^^^^^ label" in lines
    for sources in ({}, {"b.py": "first\nsecond = 2\n"}):  # of a recording, which may be anyone's
        assert "second" not in "\n".join(shown(there, sources))
    assert "2 | recorded" in shown(there, {str(file): "first\nrecorded\n"})


@pytest.mark.parametrize(
    "site", [Site("<string>", 3), Site("gone.py", 9), Site("short.py", 9), Site("short.py", 0)]
)
def test_without_source_the_place_and_the_label_are_shown(site: Site) -> None:
    lines = shown(finding(site), {"short.py": "a = 1\n"})
    assert lines[1:3] == [f" --> {site.file}:{site.line}:1", "  | label"]


@pytest.mark.parametrize(
    ("site", "carets"),
    [
        (Site("a.py", 1, 9, 1, 17), (8, 8)),  # exactly
        (Site("a.py", 1, 1), (4, 17)),  # columns unknown: the code of the line
        (Site("a.py", 1, 90, 1, 99), (4, 17)),  # columns that this line does not have
        (Site("a.py", 1, 9, 1, 99), (8, 13)),  # an end it does not have
        (Site("a.py", 1, 9, 3, 4), (8, 13)),  # goes on below
    ],
)
def test_carets_stand_under_what_is_meant(site: Site, carets: tuple[int, int]) -> None:
    lines = shown(finding(site), {"a.py": "    y = f(x, 1, 2, 3)\n\n    )"})
    start, size = carets
    assert lines[4] == f"  | {' ' * start}{'^' * size} label"
    assert (lines[5] == "…") == (site.end_line > site.line)


def test_a_label_that_does_not_fit_goes_below_its_carets() -> None:
    site = Site("a.py", 1, 5, 1, 22)
    lines = shown(
        finding(site, "needs 4 saved tensors of 2 nodes, already freed"),
        {"a.py": "    loss_age.backward()"},
        50,
    )
    assert lines[4] == "  |     " + "^" * 17
    assert lines[5].startswith("  |     needs 4 saved")
    assert (
        " ".join(line[3:].strip() for line in lines[5:7])
        == "needs 4 saved tensors of 2 nodes, already freed"
    )


def test_tabs_and_wide_characters_keep_the_carets_in_place() -> None:
    source = '\tx = "日本語"; loss.backward()'
    start = source.index("loss")
    lines = shown(finding(Site("a.py", 1, start + 1, 1, len(source) + 1)), {"a.py": source})
    code, carets = lines[3], lines[4]
    assert "\t" not in code
    assert cell_len(code[: code.index("loss")]) == carets.index("^")
    assert carets.count("^") == len("loss.backward()")


@pytest.mark.parametrize("before", [0, 30, 500, 10_000])
@pytest.mark.parametrize("after", [0, 30, 10_000])
@pytest.mark.parametrize("width", [40, 80])
def test_a_very_long_line_is_cut_around_the_carets(before: int, after: int, width: int) -> None:
    source = "a" * before + "loss.backward()" + "b" * after
    lines = shown(finding(Site("a.py", 1, before + 1, 1, before + 16)), {"a.py": source}, width)
    code, carets = lines[3], lines[4]
    assert cell_len(code) <= width
    start = carets.index("^")
    assert code[start : start + 15] == "loss.backward()"
    assert carets.count("^") == 15


@given(st.text(st.characters(exclude_characters="\r\n"), min_size=1, max_size=120), st.data())
def test_no_source_line_can_disturb_the_terminal(source: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(1, len(source)))
    end = data.draw(st.integers(start, len(source) + 1))
    related = (Related("created", Site("a.py", 1), source),)
    for line in shown(
        finding(Site("a.py", 1, start, 1, end), source, related=related), {"a.py": source}
    ):
        assert cell_len(line) <= 80
        assert all(
            unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in line
        )


def test_hostile_text_stays_text() -> None:
    source = "x = '[red]\x1b[2J[/red]\u202egnp' # :smile:"
    file = "[bold]\x07.py"
    fix = Fix(FixKind.OTHER, "[link=http://x]y[/link] \x1b]0;title\x07")
    lines = shown(finding(Site(file, 1, function="[blink]"), "[/]", fix=fix), {file: source})
    assert lines[1] == r" --> [bold]\x07.py:1:1 in [blink]"
    assert lines[3] == r"1 | x = '[red]\x1b[2J[/red]\u202egnp' # :smile:"
    assert lines[4].endswith(" [/]")
    assert lines[5] == r"help: [link=http://x]y[/link] \x1b]0;title\x07"


def test_hostile_names_of_calls_stay_text() -> None:
    call = BackwardCall(
        1, "backward", Site("a\x1b.py", 1), (Root(0, "[red]\nloss"),), thread="\x07"
    )
    text = report(Recording(RECORDINGS["clean"].header, calls=(call,)), verbose=True)
    assert r"a\x1b.py:1" in text
    assert r"[red]\nloss.backward() (thread \x07)" in text


@given(st.text(max_size=30), st.integers(0, 20), st.integers(0, 20))
def test_cut_has_the_cells_that_were_asked_for(text: str, start: int, width: int) -> None:
    clean = plain(text, console())
    assert cell_len(cut(clean, start, width)) == min(width, max(cell_len(clean) - start, 0))


# The table of backward calls


def call(number: int, name: str, **fields: object) -> BackwardCall:
    return BackwardCall(number, "backward", Site("a.py", 1), (Root(0, name),), **fields)  # type: ignore[arg-type]


def table(*calls: BackwardCall) -> list[str]:
    return report(Recording(RECORDINGS["clean"].header, calls=calls), verbose=True).splitlines()


def test_a_long_table_shows_its_beginning_and_its_end() -> None:
    calls = tuple(call(i + 1, f"loss_{i}") for i in range(172))
    lines = table(*calls)
    assert sum(line.strip().startswith("loss_") for line in lines) == MOST_ROWS
    assert any("loss_0." in line for line in lines)
    assert any("loss_171." in line for line in lines)
    assert any(line.strip() == "… 132 more rows, see --format json" for line in lines)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "loss.backward()"),
        ({"retain_graph": True}, "loss.backward(retain_graph=True)"),
        ({"retain_graph": True, "create_graph": True}, "loss.backward(create_graph=True)"),
        ({"inputs": ("w",)}, "loss.backward(inputs=[w])"),
        ({"inputs": ("a", "b", "c", "d")}, "loss.backward(inputs=4 inputs)"),
        ({"kind": "grad", "inputs": ("x", "y")}, "autograd.grad(loss, [x, y])"),
        (
            {"kind": "grad", "inputs": ("x",), "roots": (Root(0, None, "f32[2]"),)},
            "autograd.grad([x]) of f32[2]",
        ),
        ({"roots": (Root(0, "a"), Root(1, "b"))}, "backward([a, b])"),
        ({"roots": (Root(0, "a"), Root(1, None))}, "backward() of 2 roots"),
        ({"exception": "RuntimeError: no"}, "loss.backward() raised RuntimeError"),
        ({"parent": 3}, "loss.backward() (inside call 3)"),
    ],
)
def test_a_call_is_shown_as_it_is_written(fields: dict[str, object], expected: str) -> None:
    row = replace(call(9, "loss"), **fields)  # type: ignore[arg-type]
    lines = table(row)
    assert lines[3].strip() == expected


def test_a_long_place_keeps_its_end_and_the_columns_their_place() -> None:
    row = replace(call(1, "loss"), site=Site("/very/long" * 20 + "/train.py", 7))
    lines = table(row)
    assert "/train.py:7  " in lines[2]
    assert len(lines[1]) == len(lines[2]) == 80


# Units


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (12_800, "12.5 KiB"),
        (1024**2 - 1, "1 MiB"),
        (3 * 1024**3, "3 GiB"),
        (5000 * 1024**4, "5,000 TiB"),
    ],
)
def test_bytes(number: int, text: str) -> None:
    assert nbytes(number) == text


def test_counts_and_lists() -> None:
    assert counted(1, "node") == "1 node"
    assert counted(1234, "node") == "1,234 nodes"
    assert counted(2, "entry", "entries") == "2 entries"
    assert listed(["a", "b", "a"]) == "a, b"
    assert listed("abcde") == "a, b, c and 2 more"


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((20, 24)))
    monkeypatch.setattr(Terminal, "fileno", lambda _: 2)
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("_narrow_terminal")
def test_progress_is_shown_on_a_terminal_and_gives_way_to_the_next_line() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        show_progress("tries fix 1", stream)
    assert rows_of(terminal.getvalue(), 20) == ["tries fix 1"]
    assert pipe.getvalue() == ""
    show_progress("tries fix 2, for quite a while", terminal)
    assert rows_of(terminal.getvalue(), 20) == ["tries fix 2, for qu"]
    begin_line(terminal)
    assert rows_of(terminal.getvalue() + "done", 20) == ["done"]
    terminal.close()
    show_progress("tries fix 2", terminal)


# A line of its own


def rows_of(text: str, width: int) -> list[str]:
    """What a terminal shows: after its last cell, the cursor wraps with the next character only."""
    rows, column = [[" "] * width], 0
    for char in text:
        if char == "\r":
            column = 0
        elif char == "\n":
            rows.append([" "] * width)
        else:
            if column == width:
                rows.append([" "] * width)
                column = 0
            rows[-1][column] = char
            column += 1
    return ["".join(row).rstrip() for row in rows]


@pytest.mark.usefixtures("_narrow_terminal")
@pytest.mark.parametrize(
    ("left", "above"),
    [
        ("", []),
        ("a line\r\n", ["a line"]),
        ("\r 50%|####|", [" 50%|####|"]),
        ("x", ["x"]),
        ("=" * 19, ["=" * 19]),
        ("=" * 20, ["=" * 20]),
        ("=" * 25, ["=" * 20, "=" * 5]),
    ],
)
def test_a_line_begins_below_what_the_program_left(
    left: str, above: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, pipe = Terminal(left), io.StringIO(left)
    for stream in (terminal, pipe):
        stream.seek(0, io.SEEK_END)
        begin_line(stream)
    assert rows_of(terminal.getvalue() + "warning", 20) == [*above, "warning"]
    assert pipe.getvalue() == left
    monkeypatch.setenv("TERM", "dumb")
    begin_line(terminal)
    assert terminal.getvalue().count("\r") <= 2


def test_a_terminal_of_few_columns_gets_lines_for_forty(monkeypatch: pytest.MonkeyPatch) -> None:
    def on(width: int) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        target = console_on(io.StringIO())
        print_report(RECORDINGS["canned"], target)
        return written(target)

    assert on(20) == on(40) != on(60)
    assert max(map(cell_len, on(40).splitlines())) <= 40
