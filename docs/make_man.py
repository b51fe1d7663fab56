"""Writes ``docs/man/gradscope.1``, the manual page, from the command line's own help.

``python docs/make_man.py`` writes it; with ``--check``, say how it would change.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from changes import report_changes
from typer.main import get_command

from gradscope.cli import app

PAGE = Path(__file__).parent / "man" / "gradscope.1"


def page() -> str:
    """Return the manual page in the format of ``man``."""
    group: Any = get_command(app)
    lines = [
        '.TH GRADSCOPE 1 "" "gradscope" "User Commands"',
        ".SH NAME",
        r"gradscope \- inspects and debugs the backward graphs of PyTorch programs",
        ".SH SYNOPSIS",
        r".B gradscope",
        r".I COMMAND",
        r"[\fIOPTIONS\fR]",
        ".SH DESCRIPTION",
        *_prose(group.help),
    ]
    context = group.make_context("gradscope", [], resilient_parsing=True)
    lines += [".SH OPTIONS", *_params(group, context), ".SH COMMANDS"]
    for name, command in group.commands.items():
        context = command.make_context(f"gradscope {name}", [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += [f'.SS "gradscope {_plain(name)} {_plain(usage)}"', *_prose(command.help)]
        lines += _params(command, context)
    lines += [".SH SEE ALSO", r"\fBgradscope explain\fR \fICODE\fR prints the page of a finding."]
    return "\n".join(lines) + "\n"


def _prose(text: str | None) -> list[str]:
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return [line for each in paragraphs for line in (".PP", _plain(" ".join(each.split())))]


def _params(command: Any, context: Any) -> list[str]:
    records = (param.get_help_record(context) for param in command.get_params(context))
    return [
        line
        for name, meaning in filter(None, records)
        for line in (".TP", rf"\fB{_plain(name)}\fR", _plain(" ".join(meaning.split())))
    ]


def _plain(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return report_changes({PAGE: page()})
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
