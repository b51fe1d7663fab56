"""Every rule's page: its sections are there, its bad example fails as it says, its good example runs clean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradscope.errors import GradscopeError
from gradscope.model import BackwardCall, Certainty, Severity, Site
from gradscope.rules import ALL_RULES, ENGINE_ERRORS, by_code, unannounced
from gradscope.rules.base import Rule, rule
from tests import examples, known
from tests.command import ran
from tests.needs import DONATES_BUFFERS, needs
from tests.zygote import python

HEADINGS = (
    "What it says",
    "Why it happens",
    "Bad example",
    "Good example",
    "What to do",
    "What it costs",
    "Known limits",
)
"""The sections of every rule's page, in this order."""
CERTAIN = tuple(rule for rule in ALL_RULES if rule.certainty is Certainty.CERTAIN)
NEEDS = {"GS104": needs(DONATES_BUFFERS)}
each_rule = pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)
each_example = pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=NEEDS.get(r.code, ()), id=r.code) for r in ALL_RULES]
)
each_certain_example = pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=NEEDS.get(r.code, ()), id=r.code) for r in CERTAIN]
)


def run(source: str, folder: Path) -> tuple[int, str, str, str]:
    script = folder / "example.py"
    script.write_text(source, encoding="utf-8")
    done = ran(python(), script, cwd=folder)
    return done.returncode, done.stdout, done.stderr, str(script)


@each_rule
def test_a_page_has_the_sections_in_order(rule: Rule) -> None:
    assert tuple(re.findall(r"^## (.*)$", rule.explain, re.MULTILINE)) == HEADINGS
    for heading in HEADINGS:
        section = rule.explain.split(f"## {heading}\n")[1].split("\n## ")[0]
        assert section.strip(), heading


@each_rule
def test_a_page_opens_with_the_code_and_a_one_line_summary(rule: Rule) -> None:
    opening = (
        f"# {rule.code}: {rule.name}\n\n*{rule.severity}, {rule.certainty}*\n\n{rule.summary}."
    )
    assert rule.explain.startswith(opening)
    assert rule.summary.count("\n") == 0
    assert 20 < len(rule.summary) < 120
    assert re.fullmatch(r"GS\d{3}", rule.code)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", rule.name)


@each_rule
def test_the_examples_differ_and_are_whole_programs(rule: Rule) -> None:
    assert examples.bad(rule) != examples.good(rule)
    for source in (examples.bad(rule), examples.good(rule)):
        compile(source, rule.code, "exec")
        assert source.startswith("import torch\n")


@pytest.mark.full(but=1)
@each_certain_example
def test_the_bad_example_fails_in_its_last_line_with_the_error_of_the_rule(
    rule: Rule, tmp_path: Path
) -> None:
    status, stdout, stderr, script = run(examples.bad(rule), tmp_path)
    assert (status, stdout) == (1, "")
    lines = [int(line) for line in re.findall(rf'File "{re.escape(script)}", line (\d+)', stderr)]
    assert lines[0] == len(examples.bad(rule).splitlines())
    assert re.search(r"(RuntimeError|CheckpointError)\b", stderr)
    assert [code for text, code in ENGINE_ERRORS.items() if text in stderr] == [rule.code]


@each_example
def test_the_good_example_runs_clean(rule: Rule, tmp_path: Path) -> None:
    assert run(examples.good(rule), tmp_path)[:3] == (0, "", "")


def test_codes_and_names_are_unique_and_in_order() -> None:
    codes = [rule.code for rule in ALL_RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in ALL_RULES}) == len(ALL_RULES)


@each_rule
def test_a_rule_is_found_by_code_and_by_name(rule: Rule) -> None:
    for spelling in (rule.code, rule.code.lower(), f" {rule.code} ", rule.name, rule.name.upper()):
        assert by_code(spelling) is rule


@pytest.mark.parametrize("code", ["GS999", "", "backward"])
def test_an_unknown_code_names_those_there_are(code: str) -> None:
    with pytest.raises(GradscopeError) as raised:
        by_code(code)
    assert repr(code) in str(raised.value)
    assert all(rule.code in str(raised.value) for rule in ALL_RULES)


def test_a_code_like_one_there_is_gets_that_one() -> None:
    with pytest.raises(GradscopeError, match=r"'GS1011'; did you mean 'GS101'\?"):
        by_code("GS1011")


def test_without_docstrings_a_rule_still_makes_findings() -> None:
    bare = rule(None, "GS101", "name-of-it", Severity.ERROR, Certainty.CERTAIN)
    assert (bare.summary, bare.explain) == ("", "# GS101: name-of-it\n\n*error, certain*\n\n\n\n")
    assert bare.finding("message", None).code == "GS101"


def test_the_errors_of_the_engine_belong_to_rules() -> None:
    assert set(ENGINE_ERRORS.values()) == {rule.code for rule in CERTAIN}


def test_an_error_of_the_engine_that_was_not_called_first_is_shown_as_our_miss() -> None:
    text = "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors)."
    call = BackwardCall(number=7, kind="backward", site=Site("train.py", 12), graph=3)
    finding = known(unannounced(text, call))
    assert (finding.code, finding.missed, finding.site, finding.backward_call) == (
        "GS101",
        True,
        call.site,
        7,
    )
    assert text in finding.related[0].message
    assert "report" in known(finding.fix).message


def test_an_error_that_is_not_about_a_graph_s_life_is_no_miss() -> None:
    call = BackwardCall(number=1, kind="backward")
    other = "RuntimeError: grad can be implicitly created only for scalar outputs"
    assert unannounced(other, call) is None
