"""Stands between gradscope and torch's engine: compares what is called certain with what is raised.

An error that a program meets by reading a freed field of a node is none of the engine's, and no call
comes before it.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from gradscope.api.scope import Session
from gradscope.collect.notes import Notes
from gradscope.model import Certainty, Finding
from tests.oracles.conformance.records import Raised

KINDS = {
    "Trying to backward through the graph a second time": "GS101",
    "has been modified by an inplace operation": "GS201",
    "that has been detached in-place": "GS201",
    "requires the graph to be retained": "GS104",
    "This backward function was compiled with non-empty donated buffers": "GS104",
}
"""torch's words for the errors that a graph's life ends in."""

_SEEN = "_seen_by_the_conformance_run"


class _Pending(threading.local):
    def __init__(self) -> None:
        self.certain: list[Finding] = []


class Engine:
    """Notes for each backward call what gradscope announced of it and what the engine then raised."""

    def __init__(self) -> None:
        self.raised: list[Raised] = []
        self.wrong: list[str] = []
        self.failures: list[str] = []
        self._pending = _Pending()

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Listen for the extent of the block; a watch must begin and end inside of it."""
        report, failed, engine = Session.report, Notes.failed, self

        def reported(session: Session, finding: Finding) -> None:
            if finding.certainty is Certainty.CERTAIN and not finding.missed:
                engine._pending.certain.append(finding)
            report(session, finding)

        def noted(notes: Notes, what: str, failure: BaseException) -> None:
            if not isinstance(failure, RecursionError):
                engine.failures.append(f"{what}\n{''.join(traceback.format_exception(failure))}")
            failed(notes, what, failure)

        with ExitStack() as stack:
            enter = stack.enter_context
            enter(mock.patch.object(Session, "report", reported))
            enter(mock.patch.object(Notes, "failed", noted))
            for module in (torch.autograd.graph, torch.autograd):
                original = module._engine_run_backward
                run = functools.wraps(original)(functools.partial(self._run, original))
                enter(mock.patch.object(module, "_engine_run_backward", run))
            yield

    def _run(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        certain, self._pending.certain = self._pending.certain, []
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            self._note(error, {finding.code for finding in certain})
            raise
        self.wrong += [f"{finding.code}: {finding.message}" for finding in certain]
        return result

    def _note(self, error: BaseException, called: set[str]) -> None:
        """Note an error where it first leaves the engine; outer calls meet it again."""
        if not isinstance(error, RuntimeError) or hasattr(error, _SEEN):
            return
        text = str(error)
        code = next((code for words, code in KINDS.items() if words in text), None)
        if code is not None:
            setattr(error, _SEEN, True)
            self.raised.append(Raised(code, text.strip().splitlines()[0][:300], code in called))
