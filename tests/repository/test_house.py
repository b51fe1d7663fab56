"""The house stays in order: few entries, small circles, short files, a contract without gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repository import house
from tests.repository.house import House


def test_the_package_stays_within_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main() == 0, capsys.readouterr().out


def built(root: Path, files: dict[str, str]) -> House:
    for name, text in files.items():
        path = root / "gradscope" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return House(root)


SOME = """\
'''Docstring.

Of two paragraphs.
'''

import os  # a comment behind code

# A comment.

class A:
    "A docstring."

    x = 1
    "No docstring: it counts."

    def f(self):
        '''One more.'''
        return (
            os.sep,

            "a"
            "b",
        )
"""


def test_code_is_counted_without_blanks_comments_and_docstrings(tmp_path: Path) -> None:
    assert (
        built(tmp_path, {"__init__.py": "", "a.py": SOME, "b.py": "x = 1\n"}).lines_of_code() == 11
    )


def test_circles_are_found_wherever_the_import_stands(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "a.py": "import typing\nif typing.TYPE_CHECKING:\n    from gradscope.room import b\n",
        "room/__init__.py": "",
        "room/b.py": "def f():\n    from .c import g\n",
        "room/c.py": "from ..a import f\n",
        "room/d.py": "from gradscope import a\n",
    }
    circle = {"gradscope.a", "gradscope.room.b", "gradscope.room.c"}
    assert built(tmp_path, files).circles() == [circle]


def test_docstrings_of_two_sentences_and_missing_ones_are_found(tmp_path: Path) -> None:
    files = {
        "one.py": '"""One sentence,\nover two lines.\n\nMore. Much more.\n"""\n',
        "two.py": '"""One sentence. Another."""\n',
        "none.py": "x = 1\n",
    }
    wrong = built(tmp_path, files).without_opening_sentence()
    assert wrong == ["gradscope.none", "gradscope.two"]


def test_public_classes_of_one_name_are_found(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "a.py": "class Trial:\n    class Inner: ...\nclass _Own: ...\n",
        "b.py": "class Trial: ...\nclass Inner: ...\nclass _Own: ...\n",
    }
    assert built(tmp_path, files).shared_class_names() == ["Trial"]


def test_a_name_that_a_module_binds_twice_is_found(tmp_path: Path) -> None:
    text = "_MOST, _ITEMS = 2, 1\nx: int = 1\n\ndef f(): x = 2\n\n_MOST = 10\nx += 1\na[0] = a[1] = 3\n"
    assert built(tmp_path, {"__init__.py": "", "a.py": text}).names_bound_twice() == [
        "gradscope.a._MOST"
    ]


def test_a_number_that_no_comment_explains_is_found(tmp_path: Path) -> None:
    text = (
        "_MOST = 12\n\n# As measured.\n_FEW, _MANY = 2, 10\n_HALF = 1 / 2\n\n_LEAST = 3  # lines\n\n"
        '_EACH = 4\n"""Said after it."""\n\n_NAME = "x"\n_SUM = 2 * 8\n_OF = len("x")\n'
    )
    assert built(tmp_path, {"__init__.py": "", "a.py": text}).numbers_without_reason() == [
        "gradscope.a:1",
        "gradscope.a:13",
    ]
