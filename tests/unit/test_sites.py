"""Whose code a file is, which frame is the user's, and where an instruction stands."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch

import gradscope
from gradscope.program import sites

TORCH = Path(torch.__file__).parent
OWN = Path(gradscope.__file__).parent
INSTALLED = Path(sysconfig.get_path("purelib"))
STANDARD = Path(sysconfig.get_path("stdlib"))
NEIGHBOUR = str(OWN) + "_tutorial.py"
"""A file whose path begins as the package's does: a library's, where the package is installed."""


@pytest.mark.parametrize(
    ("filename", "owner"),
    [
        ("train.py", sites.USER),
        ("<stdin>", sites.USER),
        ("<string>", sites.USER),
        ("<ipython-input-1-abc>", sites.USER),
        ("<frozen runpy>", sites.HIDDEN),
        ("<eval_with_key>.3", sites.HIDDEN),
        (str(TORCH / "nn" / "functional.py"), sites.HIDDEN),
        (str(OWN / "api" / "watch.py"), sites.HIDDEN),
        (str(STANDARD / "contextlib.py"), sites.HIDDEN),
        (str(INSTALLED / "some_library" / "model.py"), sites.LIBRARY),
        (NEIGHBOUR, sites.LIBRARY if NEIGHBOUR.startswith(str(INSTALLED)) else sites.USER),
        ("/opt/env/bin/gradscope", sites.HIDDEN),
        ("/opt/env/bin/train", sites.USER),
    ],
)
def test_whose_code_a_file_is(filename: str, owner: int) -> None:
    assert sites.classify(filename) == owner


def code_of(source: str, filename: str) -> CodeType:
    return compile(source, filename, "exec")


def test_the_lines_of_a_library_lie_within_that_of_the_user() -> None:
    text = "def inner(x):\n    return x.exp()\n\ndef forward(x):\n    return inner(x).sin()\n"
    library: dict[str, Any] = {}
    file = str(INSTALLED / "some_library" / "model.py")
    exec(code_of(text, file), library)
    with gradscope.watch() as scope:
        loss = library["forward"](torch.ones(3, requires_grad=True))
        loss.tanh().sum().backward()
    (graph,) = scope.recording().graphs.values()
    saved = {node.name: one for node in graph.nodes for one in node.saved}
    assert {name: [line.line for line in one.within] for name, one in saved.items()} == {
        "ExpBackward0": [5, 2],
        "SinBackward0": [5],
        "TanhBackward0": [],
    }
    assert {line.file for one in saved.values() for line in one.within} == {file}
    assert {one.site.file for one in saved.values() if one.site} == {__file__}


def test_the_users_frame_is_found_past_those_of_torch() -> None:
    seen: dict[str, Any] = {}

    def look(module: object, arguments: object, output: object) -> None:
        seen["frames"] = sites.user_frames(sys._getframe(1))
        seen["frame"] = sites.user_frame(sys._getframe(1))

    layer = torch.nn.Linear(1, 1)
    layer.register_forward_hook(look)
    layer(torch.ones(1, 1))
    here = sys._getframe()
    assert seen["frame"] is here
    assert seen["frames"][0] is here


def test_a_librarys_frame_stands_in_where_the_user_has_none() -> None:
    library = str(INSTALLED / "some_library" / "model.py")
    found: list[object] = []

    def look() -> None:
        frame = sys._getframe(1)
        found.append(sites.place_of(frame))

    exec(code_of("look()", library), {"look": look})
    # This test itself is the user's code, and calls the library.
    place = found[0]
    assert isinstance(place, sites.Place)
    assert place.site.file == __file__


def test_one_place_has_one_object_and_knows_line_and_columns() -> None:
    here = sys._getframe().f_lineno + 1
    places = [sites.place_in(sys._getframe()) for _ in range(3)]
    assert places[0] is places[1] is places[2]
    site = places[0].site
    assert (site.file, site.line) == (__file__, here)
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[site.line - 1]
    assert line[site.column - 1 : site.end_column - 1] == "sites.place_in(sys._getframe())"


def test_a_code_object_that_took_anothers_id_is_not_mistaken_for_it() -> None:
    for number in range(50):
        library = number % 2
        code = code_of("x = 1", str(INSTALLED / "m.py") if library else "train.py")
        assert sites.owner_of(code) == (sites.LIBRARY if library else sites.USER)
        del code


def test_no_place_has_no_site() -> None:
    assert sites.site_of(None) is None
    assert sites.place_of(None) is None
