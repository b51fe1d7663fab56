"""`pytest --gradscope`: the options, the marker and the fixture; watching is loaded only if on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gradscope.api.scope import Scope

# pytest imports this file in every project of an environment with gradscope in it: what a watch
# needs, torch among it, is imported with the first one.

MARKER = (
    "gradscope(allow=(), expect=()): with --gradscope, codes of findings that do not count in this"
    " test, and of those without which it fails"
)

WATCHING = "gradscope watching"
"""The name of the plugin that watches."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gradscope", "backward graphs (gradscope)")
    severities = ("error", "warning", "advice", "never")
    watch = "Watch the backward graphs of every test."
    lowest = "Lowest severity of a finding that fails its test (default: error)."
    known = "Count only findings that this file does not have."
    written = "Write a baseline of all findings that count, and fail no test for them."
    group.addoption("--gradscope", action="store_true", help=watch)
    group.addoption("--gradscope-fail-on", choices=severities, help=lowest)
    group.addoption("--gradscope-baseline", metavar="FILE", type=Path, help=known)
    group.addoption("--gradscope-write-baseline", metavar="FILE", type=Path, help=written)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and watch if that was asked for."""
    config.addinivalue_line("markers", MARKER)
    if config.getoption("gradscope"):
        from gradscope.commands.pytest_verdicts import Watching

        config.pluginmanager.register(Watching(config), WATCHING)


@pytest.fixture
def gradscope(request: pytest.FixtureRequest) -> Iterator[Scope]:
    """Return the watch on the test, also without ``--gradscope``: what ``gradscope.watch()`` gives.

    Only ``--gradscope`` fails a test for a finding; without it, ask for ``gradscope.findings``.
    """
    from gradscope.api.watch import watch

    watching = request.config.pluginmanager.get_plugin(WATCHING)
    if watching is not None and watching.scope is not None:
        yield watching.scope
        return
    with watch() as scope:
        yield scope
