"""The tree has no binaries but those that are listed: what can be made is made where it is needed."""

from __future__ import annotations

from tests.repository.test_links import ROOT, tracked

BINARIES = {
    "gradscope/render/pictures/fonts/LiberationSans-Regular.ttf": (
        "measures and draws text in pictures: it must be the same on every machine"
    ),
}
"""The binaries in the tree, each with the reason for it."""


def is_binary(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return b"\0" in content


def test_the_tree_has_no_binaries_but_those_with_a_reason() -> None:
    files = tracked()
    assert len(files) > 500
    assert {name for name in files if is_binary((ROOT / name).read_bytes())} == BINARIES.keys()


def test_packages_are_ignored() -> None:
    assert "*.whl" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
