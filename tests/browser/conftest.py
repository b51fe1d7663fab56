"""A headless Chromium for the tests of the report; without one, or without Playwright, they are skipped and say why."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradscope.model import Recording
from gradscope.render.html import to_html

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))  # where the canned recordings are

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Report:
    """One opened report: its page, and all that went wrong or went out while it was open."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def open(self, path: Path) -> None:
        """Load the file and wait until the page says that it is drawn."""
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        self.page.wait_for_timeout(100)

    def text(self, selector: str) -> str:
        """What a reader sees in the first element that ``selector`` finds."""
        return str(self.page.locator(selector).first.inner_text())

    def open_finding(self, code: str) -> None:
        """Click on the first finding of ``code``, and wait until the page has heard that it is open.

        Chromium tells of an opened ``<details>`` in another task, after the click is done.
        """
        summary = self.page.locator("summary", has_text=code).first
        finding = summary.locator("xpath=..")
        finding.evaluate(
            "one => { one.heard = new Promise(tell => one.addEventListener('toggle', tell, {once: true})); }"
        )
        summary.click()
        finding.evaluate("one => one.heard.then(() => null)")

    def pixels(self) -> str:
        """The canvas as drawn now."""
        self.page.wait_for_timeout(80)
        return str(self.page.evaluate("document.getElementById('canvas').toDataURL()"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for the tests of one file: while Playwright is up, its event loop runs in this thread."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="Playwright for Python is not installed"
    )
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if path is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Report]]:
    """Writes a recording's report to a file and opens it from there."""
    contexts: list[Any] = []

    def opened(recording: Recording, *, width: int = 1280, dark: bool = False) -> Report:
        path = tmp_path / f"report-{len(contexts)}.html"
        path.write_text(to_html(recording), encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        report = Report(context.new_page())
        report.open(path)
        return report

    yield opened
    for context in contexts:
        context.close()
