"""The documentation site in a real browser, opened from a folder: its search works and nothing goes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.repository.test_site import site as site

pytestmark = [pytest.mark.browser, pytest.mark.full]
PAGES = ("index", "tutorial", "commands/run", "findings/GS101", "python/what-they-return")


def test_search_works_from_a_folder(chromium: Any, site: Path) -> None:
    page = chromium.new_page()
    went: list[str] = []
    page.on("request", lambda request: went.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("expected version 1 instead")
    first = page.locator(".md-search-result__item a").first
    first.wait_for()
    assert "errors/modified-in-place.html" in str(first.get_attribute("href"))
    assert not [url for url in went if not url.startswith(("file:", "data:"))]
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_a_telephone(chromium: Any, site: Path, name: str, scheme: str) -> None:
    page = chromium.new_page(viewport={"width": 400, "height": 900}, color_scheme=scheme)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator("h1").is_visible()
    assert not errors
    page.close()
