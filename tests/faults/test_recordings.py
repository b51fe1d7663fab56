"""A recording that was cut, damaged, foreign, or made to do harm: one clear line or what it says, never more."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from io import StringIO
from operator import lt
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from canned import canned_recording
from recorded import rewrite
from rich.console import Console

from gradscope import cli
from gradscope.errors import GradscopeError
from gradscope.model import Recording
from gradscope.record.file import (
    FORMAT,
    FRAME,
    HEAD,
    LAYOUT,
    MAGIC,
    MARK,
    PAGE,
    Key,
    _frame,
    _records,
    create,
    load,
    read_log,
)
from gradscope.record.writer import RecordingWriter
from gradscope.render.html import to_html
from gradscope.render.machine import to_json
from gradscope.render.text.report import print_report
from tests.command import ran
from tests.faults.tries import Tries, fault

ONE_LINE = "`report`, `draw`, `fix` and `--html` say so in one line, with exit status 2"
SHOWN = "`report`, `draw`, `fix` and `--html` show all that is there, and say what is not"
OR_REFUSED = f"{SHOWN}, or say in one line that it has no header, with exit status 2"


def written(path: Path, recording: Recording) -> Path:
    writer = RecordingWriter(path, recording.header)
    rewrite(writer, recording)
    writer.finish(recording.outcome, recording.summary)
    writer.close()
    return path


def read(file: Path) -> dict[Key, bytes]:
    """The records of a file."""
    with file.open("rb") as opened:
        return read_log(opened.fileno()).payloads


def made(file: Path, records: Mapping[Key, bytes]) -> Path:
    """A file of these records."""
    store = create(file)
    store.write(records)
    store.finish()
    store.close()
    return file


def unpacked(key: Key, content: bytes) -> bytes:
    """A record's text."""
    return zlib.decompress(content) if key[0] in ("graphs", "sources") else content


def packed(key: Key, text: bytes) -> bytes:
    return zlib.compress(text) if key[0] in ("graphs", "sources") else text


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return written(tmp_path / "whole.gscope", canned_recording())


def gradscope(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["gradscope", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as left:
        assert isinstance(left.code, int)
        return left.code
    return 0


Show = Callable[[Path], str]


@pytest.fixture
def show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    """Shows a recording in all ways; returns what came of that, the same for all."""
    page = tmp_path / "page.html"
    ways: list[tuple[str | Path, ...]] = [
        ("report",),
        ("report", "--format", "json"),
        ("report", "--format", "sarif"),
        ("report", "--format", "github"),
        ("report", "--html", page),
        ("draw", "--output", tmp_path / "graph.svg"),
        ("fix",),
    ]

    def in_all_ways(recording: Path) -> str:
        try:
            load(recording)
        except Exception:
            tried = ways[::4]
        else:
            tried = ways
        found = set()
        for way in tried:
            status = gradscope(monkeypatch, *way, recording)
            out, err = capsys.readouterr()
            if status == 2:
                assert out == ""
                assert err.startswith("gradscope: ")
                assert err.count("\n") == 1
            else:
                assert (status, err) == (0, "")
            found.add(status)
        return "shown" if 0 in found else "refused in one line"

    return in_all_ways


def cut_lengths(size: int, tries: Tries) -> list[int]:
    """Every length, where there are tries enough."""
    if tries.times >= size:
        tries.times = size
        return list(range(size))
    return sorted(Random(0).sample(range(size), tries.times))


@fault(
    "The recording",
    "the file is cut, at every byte",
    f"{SHOWN}; without its header, in the first 7 KiB, they say so in one line, with exit status 2",
    few=25,
    many=1_000_000,
)
def test_cut_off(tries: Tries, whole: Path, tmp_path: Path, show: Show) -> None:
    content, cut = whole.read_bytes(), tmp_path / "cut.gscope"
    log = content[PAGE:]
    header = max(PAGE + at + len(text) for key, at, text in _records(log) if key[0] == "header")
    assert header < 7 << 10
    for end in cut_lengths(len(content), tries):
        cut.write_bytes(content[:end])
        if end % 97 == 0 or tries.times < 1000:
            came = show(cut)
        else:  # what the commands show is what this returns
            try:
                found = load(cut)
            except GradscopeError as refused:
                came = "refused in one line" if "\n" not in str(refused) else "?"
            else:
                came = "shown" if "is cut off: " in found.summary.notes[-1] else "?"
        assert came in ("shown", "refused in one line")
        assert (came == "shown") == (end >= header)
        tries.begun += 1
        tries.came(came)


@pytest.mark.full
@fault("The recording", "up to eight bits of the file are flipped", OR_REFUSED, few=15, many=300)
def test_flipped_bits(tries: Tries, whole: Path, tmp_path: Path, show: Show) -> None:
    content, flipped = whole.read_bytes(), tmp_path / "flipped.gscope"
    for draw in tries:
        changed = bytearray(content)
        for _ in range(1 + draw.randrange(8)):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        flipped.write_bytes(changed)
        tries.came(show(flipped))


VALUES: tuple[Any, ...] = (0, -1, 1, 10**9, 2**63, 10**400, 0.5, -1e300, "", "x", [], None, True)


def nonsense(value: Any, draw: Random) -> Any:
    """Another value of the same JSON type somewhere in a value."""
    if isinstance(value, list) and value and draw.randrange(4):
        at = draw.randrange(len(value))
        return [*value[:at], nonsense(value[at], draw), *value[at + 1 :]]
    alike = [other for other in VALUES if type(other) is type(value)]
    return draw.choice(alike or list(VALUES))


@pytest.mark.full
@fault(
    "The recording",
    "a value in it is of the right type and makes no sense",
    OR_REFUSED,
    few=15,
    many=400,
)
def test_nonsense(tries: Tries, whole: Path, tmp_path: Path, show: Show) -> None:
    changed = tmp_path / "nonsense.gscope"
    for draw in tries:
        changed.unlink(missing_ok=True)
        tables = ("calls", "graphs", "findings", "timeline", "header", "outcome", "summary")
        records = read(whole)
        key = draw.choice([key for key in records if key[0] == draw.choice(tables)] or [*records])
        plain = json.loads(unpacked(key, records[key]))
        for _ in range(1 + draw.randrange(3)):
            plain = nonsense(plain, draw)
        text = json.dumps(plain).encode()
        made(changed, records | {key: packed(key, text)})
        tries.came(show(changed))


@fault(
    "The recording",
    "another program's database, an empty one, one of an older version, a newer format",
    ONE_LINE,
    few=4,
    many=4,
)
def test_foreign(tries: Tries, whole: Path, tmp_path: Path, show: Show) -> None:
    database, newer = b"SQLite format 3\0".ljust(4_096, b"\0"), bytearray(whole.read_bytes())
    newer[8] ^= 1
    old = database[:68] + b"GSCP" + database[72:]
    for number, _ in enumerate(tries):
        file = tmp_path / f"{number}.gscope"
        file.write_bytes((database, b"", old, newer)[number])
        assert show(file) == "refused in one line"
        tries.came("refused in one line")


SECRET = "root:x:0:0: a line of a file that is none of the recording's"


class Harmful:
    """Makes files that take long or much memory to read, or are to show another file."""

    def __init__(self, whole: Mapping[Key, bytes], secret: Path) -> None:
        self.whole = whole
        there = [str(secret), 1, 1, 1, 20, "f", ""]
        endless = ["train.py", 1, 1, 1 << 60, 20, "f", ""]
        packing = zlib.compressobj()
        bomb = b"".join(packing.compress(bytes(1 << 20)) for _ in range(225))
        lists = zlib.compress(b"[" + b"[]," * 400_000 + b"0]")
        numbers = zlib.compress(b"[" + b"999," * 900_000 + b"0]")
        text = b'["%d","' + b"x" * (60 << 20) + b'"]'
        related = [["created", there, "m"]]
        frame = FRAME.pack(MARK, 1, 30_000_000, 4, 1)
        self.makers: dict[str, Callable[[], bytes]] = {
            "graphs that unpack to 900 MB": lambda: self.many(
                "graphs", 4, lambda _: bomb + bytes(100)
            ),
            "sources that unpack to 60 MB each": lambda: self.many(
                "sources", 4, lambda key: zlib.compress(text % key, 9)
            ),
            "lists nested five million deep": lambda: self.many(
                "graphs", 1, lambda _: zlib.compress(b"[" * 5_000_000)
            ),
            "empty lists": lambda: self.many("graphs", 20, lambda _: lists),
            "short texts": lambda: self.many("calls", 5, lambda _: b"[" + b'"ab",' * 300_000),
            "numbers": lambda: self.many("graphs", 8, lambda _: numbers),
            "50,000 findings": lambda: self.many(
                "findings", 50_000, lambda key: self.of("findings").replace(b'"GS', b'"%d' % key, 1)
            ),
            "60,000 calls": lambda: self.many(
                "calls", 60_000, lambda key: b"[%d," % key + self.of("calls").partition(b",")[2]
            ),
            "300,000 samples": lambda: self.many(
                "timeline", 300_000, lambda _: self.of("timeline")
            ),
            "a message of 4 MB": lambda: self.many(
                "findings",
                1,
                lambda _: self.changed("findings", "Finding", message="a " * (2 << 20)),
            ),
            "a thread's name of 7 MB": lambda: self.many(
                "calls", 1, lambda _: self.changed("calls", "BackwardCall", thread="t" * (7 << 20))
            ),
            "a chain of 40,000 nodes": lambda: self.graph(
                40_000, lambda n: [[i, i + 1, 0] for i in range(n - 1)]
            ),
            "a circle of 20,000 nodes": lambda: self.graph(
                20_000, lambda n: [[i, (i + 1) % n, 0] for i in range(n)]
            ),
            "a node with 20,000 inputs": lambda: self.graph(
                20_000, lambda n: [[0, i, 0] for i in range(n)]
            ),
            "a finding in a file that is not in it": lambda: self.many(
                "findings",
                1,
                lambda _: self.changed("findings", "Finding", site=there, related=related),
            ),
            "a finding on so many lines": lambda: self.many(
                "findings", 1, lambda _: self.changed("findings", "Finding", site=endless)
            ),
            "records that say they are 30 MB long": lambda: (
                self.many("calls", 0) + frame * 7_000_000
            ),
            "4,000,000 records": lambda: (
                self.many("calls", 0) + _frame(("timeline", 1), b"0") * 4_000_000
            ),
        }

    def of(self, table: str) -> bytes:
        """The first record of a table."""
        return next(value for key, value in self.whole.items() if key[0] == table)

    def many(self, table: str, number: int, make: Callable[[int], bytes] = bytes) -> bytes:
        """All records, so many of a table made again."""
        records = dict(self.whole) | {(table, key): make(key) for key in range(1, number + 1)}
        return b"".join(map(_frame, records, records.values()))

    def changed(self, table: str, kind: str, **values: Any) -> bytes:
        row = dict(zip(LAYOUT[kind], json.loads(self.of(table)), strict=True)) | values
        return json.dumps(list(row.values())).encode()

    def graph(self, number: int, edges: Callable[[int], list[list[int]]]) -> bytes:
        plain = json.loads(zlib.decompress(self.of("graphs")))
        graph = dict(zip(LAYOUT["Graph"], plain, strict=True))
        node = dict(zip(LAYOUT["Node"], graph["nodes"][0], strict=True)) | {"saved": []}
        graph["nodes"] = [[*(node | {"id": at}).values()] for at in range(number)]
        graph["edges"] = edges(number)
        packed = zlib.compress(json.dumps(list(graph.values())).encode(), 1)
        return self.many("graphs", 1, lambda _: packed)


LIMITS = (5.0, 300 << 10)
"""CPU seconds, and KiB of memory."""


@pytest.mark.full
@fault(
    "The recording",
    "it was made to do harm: to unpack to gigabytes, to nest, to have no end, to name files of others",
    "`report --html` shows what is sound in less than 5 s and 300 MB, and no line of a file that is not in it",
    few=4,
    many=18,
)
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit")
def test_harmful_files(tries: Tries, whole: Path, tmp_path: Path) -> None:
    secret, file, page = (tmp_path / name for name in ("secret.py", "harmful.gscope", "page.html"))
    secret.write_text(f"{SECRET}\n" * 20)
    head = bytearray(whole.read_bytes()[:PAGE])
    HEAD.pack_into(head, 0, MAGIC, FORMAT, 1, 1, 1, PAGE, 0, b"0.1.0")
    makers = Harmful(read(whole), secret).makers
    names = [*makers]
    for number, _ in enumerate(tries):
        what = names[number * (len(names) // tries.times)]
        file.write_bytes(bytes(head) + makers[what]())
        command = [sys.executable, "-c", MEASURED, "report", str(file), "--html", str(page)]
        shown = ran(*command)
        assert shown.returncode == 0, (what, shown.stdout[-500:])
        texts = shown.stdout + page.read_text(encoding="utf-8")
        assert (what, "Traceback" in shown.stdout, SECRET in texts) == (what, False, False)
        took = tuple(map(float, shown.stderr.split()[-2:]))
        assert all(map(lt, took, LIMITS)), (what, took)
        tries.came("shown")


MEASURED = """\
import resource, subprocess, sys
command = [sys.executable, "-m", "gradscope", *sys.argv[1:]]
status = subprocess.run(command, stderr=subprocess.STDOUT).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.exit(status)
"""
"""A small process between: what a process begins as is a copy of the one that starts it."""


def mutated(content: bytes, records: Mapping[Key, bytes], draw: Random) -> bytes:
    """A recording with something in it that no writer writes."""
    head, frames = bytearray(content[:PAGE]), [_frame(key, text) for key, text in records.items()]
    match draw.randrange(6):
        case 0:  # bytes anywhere
            changed = bytearray(content)
            for _ in range(1 + draw.randrange(20)):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            return bytes(changed)
        case 1:  # the page before the log
            for _ in range(1 + draw.randrange(8)):
                head[draw.randrange(8, 140)] = draw.choice((0, 1, 16, 127, 255))
        case 2:  # a part is missing, or there twice
            first, last = sorted(draw.sample(range(PAGE, len(content)), 2))
            return content[: draw.choice((first, last))] + content[last:]
        case 3:  # records under another's key
            keys = [*records]
            for at in draw.sample(range(len(frames)), 3):
                frames[at] = _frame(keys[at], records[draw.choice(keys)])
        case 4:  # texts that others understand
            for at, key in draw.sample([*enumerate(records)], 3):
                text = unpacked(key, records[key])
                words = [*re.finditer(rb'"[^"\\]*"', text)]
                for word in sorted(
                    draw.sample(words, min(9, len(words))), key=lambda w: -w.start()
                ):
                    attack = json.dumps(draw.choice(HOSTILE)).encode()
                    text = text[: word.start()] + attack + text[word.end() :]
                frames[at] = _frame(key, packed(key, text))
        case _:  # numbers that are another
            for at, key in draw.sample([*enumerate(records)], 4):
                others = (b"0", b"-1", b"9223372036854775807", b"null")
                text = re.sub(
                    rb"(?<=[\[,])\d+(?=[\],])",
                    lambda m: draw.choice((m[0], m[0], m[0], *others)),  # noqa: B023
                    unpacked(key, records[key]),
                )
                frames[at] = _frame(key, packed(key, text))
    HEAD.pack_into(head, 0, MAGIC, FORMAT, 1, 1, 1, PAGE, 0, b"0.1.0")
    return bytes(head) + b"".join(frames)


@pytest.mark.full
@fault(
    "The recording",
    "bytes, records, keys, numbers and texts in it are others than were written",
    OR_REFUSED,
    few=60,
    many=5_000,
)
def test_mutated(tries: Tries, whole: Path, tmp_path: Path, show: Show) -> None:
    content, records, file = whole.read_bytes(), read(whole), tmp_path / "mutated.gscope"
    for draw in tries:
        file.write_bytes(mutated(content, records, draw))
        if tries.begun % 20 == 1:
            tries.came(show(file))
            continue
        try:
            recording = load(file)
        except GradscopeError as refused:
            assert "\n" not in str(refused)
            tries.came("refused in one line")
            continue
        console = Console(file=StringIO(), width=80)
        print_report(recording, console, None, ())
        to_json(recording)
        tries.came("shown")


HOSTILE = (
    "<script>window.harmed = 1</script>",
    "</script><img src=x onerror=harmed()>",
    "'); DROP TABLE calls; --",
    '"]; evil [label="x',
    "\x1b]0;harmed\x07\x1b[31m",
    "::error::harmed",
    "[bold red]harmed[/]",
    "{{script}} %s {0} \\L",
    "line\nbreak\rtab\t\u2028\u202e",
    os.fsdecode(bytes(range(1, 256))),
    "".join(map(chr, range(0x80, 0xA0))) + "\x9d0;harmed\x9c\x9b2J\x00",
    "\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200d\u2060\ufeff\u00ad\ud800",
    "x](http://harmed) ##[error]harmed %1B%0A::stop-commands::x",
    'javascript:alert(1)//" onload=harmed() style="x',
    "\x1bP+q544e\x1b\\\x1b[6n\x1b]52;c;aGFybWVk\x07\x1b[?1049h\x08\x08\x7f",
)


def obeyed(text: str) -> set[str]:
    """The characters that a terminal would obey, or that hide or turn others; colours are ours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return {one for one in text if not one.isprintable() and unicodedata.category(one) != "Zs"} - {
        "\n"
    }


def with_strings(value: Any, put: Callable[[str], str]) -> Any:
    """A value of the model with every text in it replaced."""
    if is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: with_strings(getattr(value, field.name), put)
            for field in fields(value)
            if field.init
        }
        return replace(value, **changes)
    if isinstance(value, tuple):
        return tuple(with_strings(item, put) for item in value)
    if isinstance(value, dict):
        return {
            put(key) if isinstance(key, str) else key: with_strings(item, put)
            for key, item in value.items()
        }
    return put(value) if type(value) is str else value


class Elements(HTMLParser):
    """Counts the elements of a page, and the attributes that run code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.running: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.running += [name for name, _ in attrs if name.startswith("on")]


@pytest.mark.full
@fault(
    "What is shown",
    "HTML, SQL, terminal escapes, markup and commands in every text of a recording",
    "every text is shown as text: nothing runs, no element, colour, table or command comes of it",
    few=len(HOSTILE),
    many=len(HOSTILE),
)
def test_hostile_texts(
    tries: Tries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = Elements(to_html(canned_recording()))
    for number, _ in enumerate(tries):
        text = HOSTILE[number]
        count = 0

        def put(old: str) -> str:
            nonlocal count
            count += 1
            return f"{text}{count}" if old else old  # noqa: B023

        recording = with_strings(canned_recording(), put)
        file = written(tmp_path / f"{number}.gscope", recording)
        assert len(load(file).calls) > 1
        page = to_html(load(file))
        page.encode("utf-8")
        found = Elements(page)
        assert (sorted(set(found.tags)), found.running) == (sorted(set(plain.tags)), [])
        assert "<" not in text or text not in page
        svg, dot = (tmp_path / f"graph.{kind}" for kind in ("svg", "dot"))
        forms = {form: ("report", "--format", form) for form in ("json", "sarif", "github")}
        drawn = (("draw", "--output", picture) for picture in (svg, dot))
        memory = ("report", "--memory")
        shown: dict[tuple[str | Path, ...], str] = {}
        for way in (*(("report",), ("fix",), memory, *drawn, *forms.values()),):
            assert gradscope(monkeypatch, *way, file) == 0
            out, err = capsys.readouterr()
            assert err == ""
            assert not obeyed(out)
            shown[way] = out
        assert not obeyed(dot.read_text().replace("\t", ""))
        names = {element.tag.rpartition("}")[2] for element in ElementTree.parse(svg).iter()}
        assert names.isdisjoint({"script", "img", "foreignObject"})
        lines = shown[forms["github"]].removesuffix("\n").split("\n")
        assert len(lines) == len(recording.findings)
        assert all(line.startswith("::") for line in lines)
        for form in ("json", "sarif"):
            json.loads(shown[forms[form]])
        for value in (recording, *recording.findings, *recording.graphs.values()):
            assert not obeyed(str(value))
            cell = Elements(value._repr_mimebundle_().get("text/html", ""))
            assert not {"script", "img"}.intersection(cell.tags)
            assert not cell.running
        tries.came("shown as text")


@pytest.mark.full(but=4)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_arguments_and_environments(
    text: str,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = text.translate(dict.fromkeys(map(ord, "\0\ud800")))  # which no argument can hold
    cell = b"\xff" + text.encode("utf-8", "surrogateescape" if "\udc80" in text else "replace")
    damaged = made(tmp_path / "damaged.gscope", read(whole) | {("header", 0): cell})
    svg = tmp_path / "graph.svg"
    for way in (
        *(
            ("report", damaged),
            ("report", text),
            ("draw", "-o", svg, text),
            ("fix", text),
        ),
        *(("explain", text), ("run", text), (text,), (f"--{text}",)),
        *(("report", "--ignore", text, whole), ("report", "--baseline", text, whole)),
        *(("draw", "--focus", text, "-o", svg, whole), ("draw", "--output", f"{text}.xyz", whole)),
        *(("fix", "--finding", text, whole), ("report", "--html", f"no/such/{text}", whole)),
    ):
        assert gradscope(monkeypatch, *way) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("gradscope: ")
        assert err.count("\n") == 1
        assert not obeyed(err)


@fault(
    "What is shown",
    "HTML in the names of a real program's file and functions, and in what it raises",
    "the page has no element more, and the program's own text stays as it is",
    few=1,
    many=3,
)
def test_a_program_with_hostile_names(tries: Tries, tmp_path: Path) -> None:
    from tests.zygote import python

    script = tmp_path / "<img src=x onerror=alert(1)>'; DROP TABLE calls; --.py"
    script.write_text(
        "import torch\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "y = (x * x).sum()\ny.backward()\n"
        "try:\n    y.backward()\nexcept RuntimeError:\n"
        "    raise ValueError('</script><script>alert(2)</script>') from None\n"
    )
    for _ in tries:
        page, save = tmp_path / "page.html", tmp_path / "run.gscope"
        command = ("-m", "gradscope", "run", "--html", page, "--save", save, script)
        done = ran(python(), *command)
        assert done.returncode == 1
        assert "ValueError: </script><script>alert(2)</script>\n" in done.stderr
        found = Elements(page.read_text())
        assert found.tags.count("img") == 0
        assert found.running == []
        assert load(save).outcome.exception == "ValueError: </script><script>alert(2)</script>"
        tries.came("shown as text")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8", None])
def test_streams_without_unicode_or_none_at_all(
    encoding: str | None, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ("explain", "GS302")
    for way in (
        *(("report", whole), ("report", "--memory", whole), ("fix", whole)),
        *(page, ("rules",), ("doctor",), ("--help",), ("--version",)),
        *(("report", "--format", form, whole) for form in ("github", "json", "sarif")),
    ):
        raw = io.BytesIO()
        stream = None if encoding is None else io.TextIOWrapper(raw, encoding, write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        assert gradscope(monkeypatch, *way) == 0
        assert encoding is None or raw.getvalue().decode(encoding)
        assert way != page or b"\\u" not in raw.getvalue()
