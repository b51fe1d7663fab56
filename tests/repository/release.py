"""The checks before a release that need no build: version, changelog, layout of recordings, README.

``python -m tests.repository.release`` prints them, and exits with 1 if one fails; ``nox -s release``
runs it first. Each answer is empty, or says what to do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gradscope.record import __version__
from gradscope.record.file import FORMAT

ROOT = Path(__file__).parents[2]
LAYOUTS = Path(__file__).parent / "layouts.json"
"""The layout of the recordings of each version: one of another layout is refused."""

SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
RELEASED = re.compile(r"(\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)")


@dataclass(frozen=True)
class Tree:
    """What a release is made of."""

    version: str
    layout: int
    changelog: str
    readme: str
    project: str
    layouts: Mapping[str, int]
    tags: frozenset[str]
    changed: str = ""
    """What git says of files that are not committed."""

    @property
    def sections(self) -> dict[str, str]:
        """The sections of the changelog by their headings, the newest first."""
        return {title: text.strip() for title, text in SECTION.findall(self.changelog)}


def here() -> Tree:
    """Return the tree that this file is in."""

    def text(name: str) -> str:
        return (ROOT / name).read_text(encoding="utf-8")

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout

    return Tree(
        __version__,
        FORMAT,
        text("CHANGELOG.md"),
        text("README.md"),
        text("pyproject.toml"),
        json.loads(LAYOUTS.read_text(encoding="utf-8")),
        frozenset(git("tag").split()),
        git("status", "--short"),
    )


def is_committed(tree: Tree) -> str:
    return f"commit or remove:\n{tree.changed}" if tree.changed else ""


def version_is_new(tree: Tree) -> str:
    if f"v{tree.version}" in tree.tags:
        return f"v{tree.version} is tagged: raise the version in gradscope/record/__init__.py"
    return ""


def changelog_is_in_order(tree: Tree) -> str:
    """Look at the form of the changelog, which holds between releases too."""
    first, *others = tree.sections or {"": ""}
    if first != "Unreleased":
        return "CHANGELOG.md: the first section is to be ## Unreleased"
    wrong = [title for title in others if not RELEASED.fullmatch(title)]
    if wrong:
        return f"CHANGELOG.md: ## {wrong[0]} is to be ## X.Y.Z (YYYY-MM-DD)"
    versions = [tuple(map(int, title.split(" ")[0].split("."))) for title in others]
    if versions != sorted(set(versions), reverse=True):
        return "CHANGELOG.md: the newest version comes first, and each once"
    empty = [title for title in others if not tree.sections[title]]
    return f"CHANGELOG.md: ## {empty[0]} says nothing" if empty else ""


def changelog_has_the_version(tree: Tree) -> str:
    dated = [title for title in tree.sections if title.startswith(f"{tree.version} (")]
    if not dated:
        return f"CHANGELOG.md: give what is unreleased the heading ## {tree.version} (YYYY-MM-DD)"
    if tree.sections.get("Unreleased"):
        return "CHANGELOG.md: ## Unreleased still has something in it"
    return ""


def layout_is_noted(tree: Tree) -> str:
    """See that whoever has older recordings is told if they are refused."""
    if tree.layouts.get(tree.version) != tree.layout:
        return f'{LAYOUTS.name}: write "{tree.version}": {tree.layout}'
    *older, _ = tree.layouts.values()
    told = "".join(text for title, text in tree.sections.items() if tree.version in title)
    if older and older[-1] != tree.layout and "**Upgrading.**" not in told:
        return "CHANGELOG.md: a paragraph **Upgrading.** says that older recordings are refused"
    return ""


def readme_names_the_versions(tree: Tree) -> str:
    project = tomllib.loads(tree.project)["project"]
    python = project["requires-python"].removeprefix(">=")
    torch = next(each for each in project["dependencies"] if each.startswith("torch>="))
    needs = f"Python {python} and torch {torch.removeprefix('torch>=')} or newer"
    return "" if needs in tree.readme else f'README.md: say that it needs "{needs}"'


CHECKS: tuple[Callable[[Tree], str], ...] = (
    is_committed,
    version_is_new,
    changelog_is_in_order,
    changelog_has_the_version,
    layout_is_noted,
    readme_names_the_versions,
)


def main() -> int:
    tree, failed = here(), False
    for check in CHECKS:
        to_do = check(tree)
        failed = failed or bool(to_do)
        print(f"{'TO DO' if to_do else 'ok':6} {check.__name__.replace('_', ' ')}")
        if to_do:
            print(f"       {to_do}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
