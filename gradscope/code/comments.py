"""Finds the comments by which a line suppresses findings: `# gradscope: ignore[GS303]`."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_COMMENT = re.compile(r"#\s*gradscope:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?")


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment at a line, with the codes or names that it suppresses; without one, with all."""

    line: int
    codes: tuple[str, ...]
    text: str


def suppressing(lines: Sequence[str]) -> Iterator[Comment]:
    """Yield the suppressing comments of a source, given as lines with their ends."""
    if not any("gradscope:" in line for line in lines):
        return
    try:
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found:
                codes = re.split(r"[,\s]+", found["codes"] or "")
                yield Comment(token.start[0], tuple(filter(None, codes)), found[0])
    except (tokenize.TokenError, SyntaxError, StopIteration):
        return  # no Python from here on
