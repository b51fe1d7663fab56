"""How findings speak of parameters: few names for many of them, and how many there are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gradscope.model import TrainingCell, TrainingRow
from gradscope.units import counted, gathered, listed

_MOST_NAMED = 3


def patterns(names: Iterable[str], others: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the ``names`` by patterns that match them and none of the ``others``:
    ``agent.critic.*`` for a module that is named in full, ``blocks.*.gamma`` for what modules of a
    list have in common.
    """
    inside = {other[: i + 1] for other in others for i, sign in enumerate(other) if sign == "."}
    found = gathered(dict.fromkeys(names), lambda name: _module_or_name(name, inside))
    taken = {_without_numbers(other) for other in others}
    short: dict[str, list[str]] = {}
    for pattern, alike in gathered(found, _without_numbers).items():
        stem = pattern.removesuffix("*")
        is_taken = any(each == pattern or each.startswith(stem) for each in taken)
        for each in alike:
            own = each if len(alike) == 1 or is_taken else pattern
            short.setdefault(own, []).extend(found[each])
    return short


def short_names(names: Iterable[str], others: Collection[str] = ()) -> tuple[str, ...]:
    """Return the patterns alone."""
    return tuple(patterns(names, others))


def counts(names: Iterable[str], others: Collection[str] = ()) -> dict[str, int]:
    """Return the patterns, each with how many of the names it matches."""
    return {each: len(own) for each, own in patterns(names, others).items()}


def table_rows(
    cells: Mapping[str, tuple[int, Sequence[TrainingCell]]],
) -> tuple[TrainingRow, ...]:
    """Return the rows of a table of parameters, each of which has its size and its cells: those
    with the same ones together.
    """
    found = {}
    for same in gathered(cells, lambda name: (*cells[name][1],)).values():
        for pattern, own in patterns(same, cells.keys() - {*same}).items():
            about = tuple(own), tuple(cells[name][0] for name in own), tuple(cells[own[0]][1])
            found[own[0]] = TrainingRow(pattern.removesuffix(".*"), *about)
    return tuple(found[name] for name in cells if name in found)


def told(names: Sequence[str], others: Collection[str] = (), most: int = _MOST_NAMED) -> str:
    """Return the patterns in a sentence, in backticks; of none how many parameters there are."""
    short = [f"`{each}`" for each in short_names(names, others)]
    return listed(short, most) if short else counted(len(names), "parameter")


def share(part: int, whole: int) -> str:
    """Return ``2 of the 6 parameters``, ``any of the 6 parameters``, ``the only parameter``."""
    if part == whole == 1:
        return "the only parameter"
    return f"{'any' if part == whole else f'{part:,}'} of the {counted(whole, 'parameter')}"


def _module_or_name(name: str, inside: Collection[str]) -> str:
    """Return the outermost module that a parameter is in and none of the others."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        module = ".".join(parts[:depth]) + "."
        if module not in inside:
            return f"{module}*"
    return name


def _without_numbers(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
