"""The documentation site: it builds, has a page for everything, loads nothing from elsewhere, and its search works."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from test_html import data

import gradscope
from gradscope.model import Severity
from gradscope.rules import ALL_RULES, Rule
from tests.command import ROOT, ran, ran_well

COMMANDS = (
    *("doctor", "draw", "explain", "fix"),
    *("report", "rules", "run", "top", "why"),
)

pytest.importorskip("material", reason="mkdocs-material is not installed: the extra `docs`")
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all workers of a run."""
    fcntl = pytest.importorskip("fcntl", reason="the pages are made in forks")
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / "site"
    with open(shared / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "index.html").exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
            done = ran(*command, "--site-dir", folder, cwd=ROOT, NO_MKDOCS_2_WARNING="1")
            assert (done.returncode, done.stderr) == (0, "")
    return folder


def words(page: Path) -> str:
    """What a reader sees of a page's text, in one line."""
    article = page.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
    text = re.sub(r"<[^>]*>", "", article)
    for name, mark in {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&amp;": "&"}.items():
        text = text.replace(name, mark)
    return " ".join(text.split())


def test_each_command_has_a_page_with_all_of_its_options(site: Path) -> None:
    for command in ("", *COMMANDS):
        line = (sys.executable, "-m", "gradscope", *([command] if command else []), "--help")
        help_ = ran_well(*line, COLUMNS="200").stdout
        shown = words(site / "commands" / f"{command or 'index'}.html")
        options = re.findall(r"^ +(--?[\w-]+)", help_, re.MULTILINE)
        assert options
        assert not [option for option in options if option not in shown], command
        if not command:
            listed = re.search(r"^Commands:\n((?:  .*\n)+)", help_, re.MULTILINE)
            assert listed
            assert sorted(line.split()[0] for line in listed[1].splitlines()) == sorted(COMMANDS)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)
def test_each_finding_has_a_page_with_a_real_report(site: Path, rule: Rule) -> None:
    shown = words(site / "findings" / f"{rule.code}.html")
    bad, _, good = shown.partition("The healthy look-alike")
    shown = bad.partition("An example that makes it")[2]
    # Of GS502 it is advice until a rehearsal has found where the way is cut.
    assert any(f"{how}[{rule.code}]: " in shown for how in (rule.severity, Severity.ADVICE))
    healthy = good.partition("The cure")[0]
    assert f"gradscope run {rule.code.lower()}_good.py" in healthy
    assert rule.code not in healthy
    assert f"gradscope fix {rule.code.lower()}.gscope" in good


def test_each_public_name_has_a_page_with_its_signature(site: Path) -> None:
    names = [name for name in gradscope.__all__ if name != "__version__"]
    for name in names:
        shown = words(site / "python" / f"{name}.html")
        docstring = getattr(gradscope, name).__doc__
        assert docstring.split(".")[0].split("`")[0].replace("\n    ", " ").strip() in shown, name
        assert f'href="{name}.html"' in (site / "python/index.html").read_text("utf-8")
    assert "raise_on: str | None = None" in words(site / "python/watch.html")
    data = words(site / "python/what-they-return.html")
    assert "backward_call: int" in data
    assert "findings The findings so far, each cause once" in data


def test_the_menu_leads_to_every_page(site: Path) -> None:
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    pages -= {"404.html", "session-report.html"}  # the latter is a part of session.html
    led_to: set[str] = set()
    for page in pages:
        text = (site / page).read_text(encoding="utf-8")
        links = re.findall(
            r'class="md-nav__link[^"]*"[^>]*href="([^"#]+)|href="([^"#]+)"[^>]*class="md-nav__link',
            text,
        )
        for link in filter(None, (first or second for first, second in links)):
            led_to.add(os.path.normpath(os.path.join(os.path.dirname(page), link)))
    assert pages - led_to == set()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:)?//", re.I
    )
    for page in site.rglob("*.html"):
        assert not loading.search(page.read_text(encoding="utf-8")), page


def test_lists_and_tables_of_markdown_became_lists_and_tables(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(
            r"(?s)<(pre|script|svg|style)\b.*?</\1>", "", page.read_text(encoding="utf-8")
        )
        for paragraph in re.findall(r"(?s)<p>(.*?)</p>", text):
            assert not re.search(r"^(?:[-*] |\d+\. |\|)|```", paragraph, re.MULTILINE), (
                page,
                paragraph,
            )


@pytest.mark.parametrize(
    ("typed", "page"),
    [
        ("expected version 1 instead", "errors/modified-in-place.html"),
        ("backward through the graph a second time", "errors/second-time.html"),
        ("Expected to have finished reduction", "errors/ddp-reduction.html"),
        ("does not require grad and does not have a grad_fn", "errors/others.html"),
        ("appears to not have been used in the graph", "errors/others.html"),
        ("non-empty donated buffers", "errors/donated-buffers.html"),
        ("out of memory", "errors/memory-grows.html"),
    ],
)
def test_the_words_of_an_error_are_in_the_index_of_the_search(
    site: Path, typed: str, page: str
) -> None:
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found: Any = [
        entry["location"]
        for entry in index["docs"]
        if typed in " ".join((entry["title"] + " " + re.sub(r"<[^>]*>", "", entry["text"])).split())
    ]
    assert page in {location.partition("#")[0] for location in found}


def test_a_page_shows_the_report_of_a_real_run(site: Path) -> None:
    assert '<iframe src="session-report.html"' in (site / "session.html").read_text("utf-8")
    report = data((site / "session-report.html").read_text(encoding="utf-8"), "report-data")
    assert [finding["code"] for finding in report["findings"]] == ["GS102", "GS101"]
    assert {site["file"] for site in report["sites"]} == {"train.py"}
