"""Finds the comments by which a line suppresses findings: `# gradscope: ignore[GS303]`."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

_COMMENT = re.compile(r"#\s*gradscope:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?")
_LIKE_ONE = re.compile(
    r"#\s*(?P<tool>[Gg]\w+)\s*[:;,=]?\s*(?P<word>[A-Za-z][\w-]*)(?P<codes>\[[^\]]*\])?"
)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment at a line, with the codes or names that it suppresses; without one, with all.

    Of a misspelt one, which suppresses nothing, ``meant`` is what it should read.
    """

    line: int
    codes: tuple[str, ...]
    text: str
    meant: str = ""


def suppressing(lines: Sequence[str]) -> Iterator[Comment]:
    """Yield the suppressing comments of a source, given as lines with their ends."""
    return (comment for comment in comments(lines) if not comment.meant)


def comments(lines: Sequence[str]) -> Iterator[Comment]:
    """Yield the suppressing comments of a source, and those that were meant to be."""
    if not any(map(_LIKE_ONE.search, lines)):
        return
    try:
        for token in tokenize.generate_tokens(iter([*lines, ""]).__next__):
            found = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if found:
                codes = re.split(r"[,\s]+", found["codes"] or "")
                yield Comment(token.start[0], tuple(filter(None, codes)), found[0])
            elif token.type == tokenize.COMMENT and (like := _misspelt(token.string)):
                meant = f"# gradscope: ignore{like['codes'] or ''}"
                yield Comment(token.start[0], (), like[0], meant)
    except (tokenize.TokenError, SyntaxError, StopIteration):
        return  # no Python from here on


def _misspelt(comment: str) -> re.Match[str] | None:
    """Return the part of a comment that was meant to suppress: `# gradscope: ingore[GS303]`."""
    found = _LIKE_ONE.search(comment)
    if found is None or not _is_like(found["tool"], "gradscope"):
        return None
    return found if found["codes"] or _is_like(found["word"], "ignore") else None


def _is_like(word: str, known: str) -> bool:
    return SequenceMatcher(None, word.lower(), known).ratio() > 0.7
