"""Names what a variable leads to, as a user would type it: ``self.memory[3]``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

Kind = Literal[
    "variable",  # of a frame, module or class: where every path starts
    "attribute",
    "item",  # of a dict or sequence; the key is the key or index
    "entry",  # of a set, or of a dict whose key cannot be written down; the key is its type's name
    "key",  # itself a key of a dict
    "cell",  # a variable of an enclosing function, kept by a closure
    "default",  # of a parameter
    "cache",  # a result in a functools.lru_cache
    "hook",  # of a module or tensor; the key is the attribute that keeps the hooks
    "frame",  # of a generator or a traceback; the key is a `FrameOf`
    "inside",  # of an iterator or another wrapper that a path does not name
    "class",
    "globals",
]
"""How an object is held."""

_LONGEST_KEY = 40  # characters of a key in a name such as `cache["…"]`, so that it fits in a line


class Step(NamedTuple):
    """One step of a path: how the next object is held, and under which name, key or index."""

    kind: Kind
    key: Any


class FrameOf(NamedTuple):
    """The frame of a function; ``raised`` is the place at which an exception left it, if so."""

    name: str
    file: str
    line: int
    raised: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a path starts: a frame's locals, a module's globals, a class, or what nothing names.

    ``owner`` is ``local``, ``cell``, ``global``, ``class``, ``ctx`` or ``unnamed``; ``prefix`` is
    what a user has to write before the variable, as in ``helpers.``; ``line`` is where the function
    or class begins.
    """

    owner: str
    function: str
    file: str
    line: int
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Path:
    """The name by which a user reaches an object.

    ``text`` is the name as a whole, ``root`` its variable, ``steps`` lead on from there, and
    ``beyond`` are the steps from this object to the tensor that it was found by.
    """

    text: str
    root: str
    origin: Origin
    steps: tuple[Step, ...] = ()
    beyond: tuple[Step, ...] = ()

    @staticmethod
    def of(origin: Origin, root: str, steps: Iterable[Step], beyond: Iterable[Step] = ()) -> Path:
        """Return the path from a variable by these steps."""
        steps = tuple(steps)
        return Path(_text(origin.prefix + root, steps), root, origin, steps, tuple(beyond))

    @property
    def attribute(self) -> str | None:
        """The attribute that holds the object, or a container or hook that it is in, if the name
        has one.
        """
        last = next((s for s in reversed(self.steps) if s.kind not in ("item", "hook")), None)
        return str(last.key) if last is not None and last.kind == "attribute" else None

    @property
    def beyond_attribute(self) -> str | None:
        """The attribute of this object, or of an entry, that holds the tensor, if one does."""
        return Path.of(self.origin, self.root, self.beyond).attribute

    @property
    def through_traceback(self) -> bool:
        """True when the way to the tensor leads through a frame that an exception has left."""
        return any(s.kind == "frame" and s.key.raised for s in (*self.steps, *self.beyond))

    @property
    def is_local(self) -> bool:
        """Whether it is within a variable that only one function has."""
        return self.origin.owner == "local" and self.attribute is None

    @property
    def innermost(self) -> Path:
        """The name that the object has within the generator or closure that the way leads through
        last.
        """
        for at, (kind, key) in reversed([*enumerate(self.steps)]):
            rest = self.steps[at + 1 :]
            if kind == "cell":
                return Path.of(replace(self.origin, owner="cell"), key, rest, self.beyond)
            if kind == "frame" and not key.raised and rest:
                origin = Origin("local", key.name, key.file, key.line)
                return Path.of(origin, rest[0].key, rest[1:], self.beyond)
        return self

    def up_to(self, length: int) -> Path:
        """Return the name of what the first steps lead to."""
        return Path.of(self.origin, self.root, self.steps[:length], self.steps[length:])


def _text(text: str, steps: Iterable[Step]) -> str:
    hook = False
    for kind, key in steps:
        match kind:
            case "attribute" | "hook":
                text += f".{key}"
            case "item":
                text += f"[{_shortened(repr(key))}]"
            case "entry":
                text += f"[<{key}>]" if key else "[…]"
            case "key":
                text += " -> its key"
            case "cell":
                text = f"{text} -> closure {key}" if hook else f"<closure of {text}>.{key}"
            case "default":
                text = f"<default of {text}>.{key}"
            case "cache":
                text = f"<lru_cache of {text}>"
            case "frame":
                text += f" -> frame of {key.name}" + (f" ({key.raised})" if key.raised else "")
            case "variable":
                text += f": {key}"
        hook = kind == "hook"
    return text


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_KEY else text[: _LONGEST_KEY - 1] + "…"
