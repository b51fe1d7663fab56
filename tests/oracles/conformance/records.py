"""What is known of one test in one way of running it: plain data that goes through pipes as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Way:
    """One way to run the tests: with hooks or without, in a watch for each or in one for all."""

    name: str
    watched: bool = True
    hooks: bool = True
    one_watch: bool = False


PLAIN = Way("plain", watched=False)
AGAIN = Way("plain again", watched=False)
WATCHED = (
    Way("hooks"),
    Way("no-hooks", hooks=False),
    Way("hooks-all", one_watch=True),
    Way("no-hooks-all", hooks=False, one_watch=True),
)
WAYS = {way.name: way for way in (PLAIN, AGAIN, *WATCHED)}


@dataclass
class Raised:
    """An error of the engine about a graph's life: its code, its text, and whether it was called."""

    code: str
    text: str
    announced: bool


@dataclass
class Ran:
    """How one test went. ``wrong`` are announcements after which the engine did not raise."""

    name: str
    outcome: str
    detail: str = ""
    cpu: float = 0.0
    raised: list[Raised] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """Return it as data that JSON can write."""
        return asdict(self)

    @classmethod
    def of(cls, read: dict[str, Any]) -> Ran:
        """Read what ``as_data`` has returned."""
        return cls(**{**read, "raised": [Raised(**each) for each in read["raised"]]})


@dataclass
class FileRun:
    """The tests of one file in all ways; ``problem`` says why it could not be loaded."""

    file: str
    problem: str = ""
    ran: dict[str, dict[str, Ran]] = field(default_factory=dict)
    """By the name of the way, then by the name of the test."""
