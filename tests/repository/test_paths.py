"""The files that the guides and the picture of the rooms name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gradscope"
NEW = {"rules/gs306.py", "gradscope/rules/gsNNN.py"}  # examples of a file to add
HOMES = (PACKAGE, ROOT, PACKAGE / "detect")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/how-it-works.md"])
def test_files_that_a_guide_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(files_in(text)) - NEW
    assert named
    assert not {name for name in named if not any((home / name).exists() for home in HOMES)}


def files_in(text: str) -> list[str]:
    return re.findall(r"`((?:\w+/)*\w+(?:\.(?:py|css|js)|/))`", text)


HOME_OF = {
    "how bytes of saved tensors are counted": "class Ledger",
    "what begins or ends the mode in which hooks are suspended": "def after_hooked",
    "what counts as a cut in the way of a gradient": "class TensorTracer",
    "one more picture format": "ENCODERS:",
    "one more flag of `gradscope run`": "def run(",
    "torch renames a private attribute": '_find("_C.',
    "a finding shows the wrong line for a node": "def place_in",
    "the caret stands one column off": "def pointed",
    "`gradscope fix` proposes a wrong edit": "class Search",
    "what a rehearsal must not do": "sys.addaudithook",
    "a method is wrongly taken for an in-place operation": "_NOT_IN_PLACE = ",
    "a function of Python's or torch's is not followed ahead": "def model(",
    "a finding is printed twice": "if f.cause == finding.cause",
    "one more field of a call in the JSON report": "class BackwardCall",
}
"""What a newcomer wants to change, and what stands in the file that is named first for it."""


def test_each_change_has_the_right_file_to_open() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, below = text.partition("| what you want to change | where |\n|---|---|\n")
    rows = re.findall(r"^\| (.*) \| (.*) \|$", below.partition("\n\n")[0], re.M)
    where = {what: files_in(files)[0] for what, files in rows if "GS306" not in what}
    assert len(rows) <= 15
    assert where.keys() == HOME_OF.keys()
    wrong = {
        what for what, file in where.items() if HOME_OF[what] not in (PACKAGE / file).read_text()
    }
    assert not wrong


def test_files_in_the_picture_of_the_rooms_are_there() -> None:
    text = (ROOT / "docs/pictures/rooms.svg").read_text(encoding="utf-8")
    room, missing = PACKAGE, []
    for kind, words in re.findall(r'class="(room|file)"[^>]*>([^<]*)<', text):
        if kind == "room":
            room = PACKAGE / words
            missing += [] if room.exists() else [words]
            continue
        first, *others = words.split("  ")
        names = [first, *others] if room.name in {"program", "code", "fixing"} else [first]
        for name in names:
            path = room / (name if name.endswith("/") else f"{name}.py")
            missing += [] if path.exists() else [f"{room.name}/{name}"]
    assert not missing


def test_every_room_is_in_the_picture_and_the_table_of_floors() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    rooms |= {"cli.py", "hooks.py"}
    for page in ("docs/pictures/rooms.svg", "docs/how-it-works.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert {room for room in rooms if room not in text} == set()


def test_sessions_that_are_called_exist() -> None:
    sessions = set(
        re.findall(
            r"^@nox\.session.*\n(?:@.*\n)*def (\w+)", (ROOT / "noxfile.py").read_text("utf-8"), re.M
        )
    )
    called: dict[str, set[str]] = {}
    for name in (".ci/run", ".github/workflows/ci.yml", "CONTRIBUTING.md", "docs/release.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        called[name] = {
            word
            for words in re.findall(r"nox\b(?: --[\w-]+)* -s ((?:\w+ ?)+)", text)
            for word in words.split()
        }
    assert called[".ci/run"] == called[".github/workflows/ci.yml"] - {"long", "rest"}
    assert set().union(*called.values()) <= sessions
