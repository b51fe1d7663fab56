"""Adds the pages that are made at build time to the site: MkDocs calls the ``on_…`` functions."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import commands
import findings
import names
import notebooks
import session
import tries
from mkdocs.structure.files import File, Files

from gradscope.rules import ALL_RULES

ROOT = Path(__file__).parents[2]

ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/README.md": "examples.md",
    "docs/recipes/notebook.ipynb": "recipes/notebook.md",
    "tests/faults/records.json": "reliability-tries.md",
}
"""Files of the repository that are pages of the site under another name."""

MADE = {
    "gradscope/__init__.py": "python/index.md",
    "gradscope/commands": "commands/index.md",
    "gradscope/rules": "findings/index.md",
    **{f"gradscope/rules/{each.code.lower()}.py": f"findings/{each.code}.md" for each in ALL_RULES},
}
"""Pages that are made, by what they are made from: a link leads to that in a checkout."""

MAKERS = {".ipynb": notebooks.page, ".json": tries.page}

_SOURCES = {page: path for path, page in ELSEWHERE.items() if page != "index.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and those that lie elsewhere; open the folders of the menu."""
    made = findings.pages() | commands.pages() | names.pages()
    for page, path in _SOURCES.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        made[page] = MAKERS.get(posixpath.splitext(path)[1], str)(text)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, session.REPORT, content=session.report()))
    for path in _SOURCES.values():
        if source := files.get_file_from_path(path.removeprefix("docs/")):
            files.remove(source)
    config["nav"] = _opened(config["nav"], files)
    return files


def _opened(entries: Any, files: Files) -> Any:
    """Return a part of the menu with the pages of each folder in the folder's place."""
    if isinstance(entries, dict):
        return {title: _opened(entry, files) for title, entry in entries.items()}
    if isinstance(entries, list):
        return [_opened(entry, files) for entry in entries]
    if not entries.endswith("/"):
        return entries
    pages = [file.src_uri for file in files.documentation_pages()]
    inside = [page for page in pages if posixpath.dirname(page) == entries.rstrip("/")]
    first = ("README.md", "index.md")
    return sorted(inside, key=lambda page: (posixpath.basename(page) not in first, page))


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Lead links to the pages of the site, pictures to themselves, other links nowhere."""
    here = page.file.src_uri
    home = posixpath.dirname(_SOURCES.get(here, f"docs/{here}"))

    def relinked(link: re.Match[str]) -> str:
        picture, words, target, anchor = link.groups(default="")
        path = posixpath.normpath(posixpath.join(home, target))
        found = (ELSEWHERE | MADE).get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(found) is None:
            return words if (ROOT / path).exists() else link[0]
        target = posixpath.relpath(found, posixpath.dirname(here) or ".")
        inside = f"[{words}]({target}{anchor})"
        return f"[!{inside}]({target})" if picture else inside  # a click shows it in full size

    parts, at = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(relinked, markdown[at : code.start()]), code[0]]
        at = code.end()
    below = session.FRAME if here == "session.md" else ""
    return "".join([*parts, _LINK.sub(relinked, markdown[at:]), below])
