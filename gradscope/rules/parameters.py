"""How findings speak of parameters: few names for many of them, and how many there are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from gradscope.units import counted, gathered, listed

_MOST_NAMED = 3


def short_names(names: Sequence[str], others: Collection[str] = ()) -> tuple[str, ...]:
    """Return patterns that match all ``names`` and none of the ``others``: ``agent.critic.*`` for a
    module that is named in full, ``blocks.*.gamma`` for what modules of a list have in common.
    """
    found = dict.fromkeys(_module_or_name(name, others) for name in names)
    alike = gathered(found, _without_numbers)
    return tuple(_shorter(alike, others))


def counts(names: Sequence[str], others: Collection[str] = ()) -> dict[str, int]:
    """Return the patterns, each with how many of the names it matches."""
    short = short_names(names, others)
    return {each: sum(fnmatchcase(name, each) for name in names) for each in short}


def told(names: Sequence[str], others: Collection[str] = (), most: int = _MOST_NAMED) -> str:
    """Return the patterns in a sentence, in backticks; of none how many parameters there are."""
    short = [f"`{each}`" for each in short_names(names, others)]
    return listed(short, most) if short else counted(len(names), "parameter")


def share(part: int, whole: int) -> str:
    """Return ``2 of the 6 parameters``, ``any of the 6 parameters``, ``the only parameter``."""
    if part == whole == 1:
        return "the only parameter"
    return f"{'any' if part == whole else f'{part:,}'} of the {counted(whole, 'parameter')}"


def _module_or_name(name: str, others: Collection[str]) -> str:
    """Return the outermost module that a parameter is in and none of the others."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        module = ".".join(parts[:depth]) + "."
        if not any(other.startswith(module) for other in others):
            return f"{module}*"
    return name


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _shorter(alike: dict[str, list[str]], others: Collection[str]) -> Iterator[str]:
    """Yield the pattern of those that differ in numbers alone, where no other one has it."""
    taken = {_without_numbers(other) for other in others}
    for pattern, names in alike.items():
        stem = pattern.removesuffix("*")
        is_taken = any(each == pattern or each.startswith(stem) for each in taken)
        yield from names if len(names) == 1 or is_taken else (pattern,)
