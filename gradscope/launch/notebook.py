"""Extends IPython: ``%load_ext gradscope``, then ``%gradscope on`` or ``%%gradscope``."""

from __future__ import annotations

import inspect
import os
import shlex
from argparse import SUPPRESS
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gradscope.errors import GradscopeError
from gradscope.model import Findings

if TYPE_CHECKING:
    from gradscope.api.scope import Scope

_MAGIC = "%%gradscope"


class Switch:
    """A watch that can be turned on and off."""

    def __init__(self) -> None:
        self._watching = ExitStack()
        self.scope: Scope | None = None

    def on(self, options: Sequence[str]) -> None:
        """Begin a new watch."""
        from gradscope.api.watch import watch

        chosen = _chosen(options)
        self.off()
        try:
            self.scope = self._watching.enter_context(watch(**chosen))
        except (GradscopeError, ValueError) as error:
            raise _usage(str(error)) from None

    def off(self) -> Scope | None:
        """End the watch; return what it saw."""
        ended, self.scope = self.scope, None
        self._watching.close()
        return ended


class Extension:
    """What ``%load_ext gradscope`` adds to one shell: the magic, and a look before and after each
    cell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._all_cells, self._one_cell = Switch(), Switch()
        self._counts: list[int] = []
        shell.register_magic_function(self.magic, "line", "gradscope")
        # The first line becomes a comment, and the cell runs as any other: its lines keep their
        # numbers, and what it raises is shown once.
        shell.input_transformers_cleanup.insert(0, as_comment)
        shell.events.register("pre_run_cell", self._before_cell)
        shell.events.register("post_run_cell", self._after_cell)

    def unload(self) -> None:
        """End the watch, and take out what was added."""
        self._all_cells.off()
        self._shell.magics_manager.magics["line"].pop("gradscope", None)
        self._shell.input_transformers_cleanup.remove(as_comment)
        self._shell.events.unregister("pre_run_cell", self._before_cell)
        self._shell.events.unregister("post_run_cell", self._after_cell)

    def magic(self, line: str) -> Scope | None:
        """
        %gradscope on [OPTIONS]   watch all cells from here on
        %gradscope off            end the watch, and show its report
        %gradscope                show what was seen so far
        %%gradscope [OPTIONS]     watch one cell, and show its report

        --guard             raise an error before the engine would
        --no-hooks          install no hooks; inspect graphs only at backward calls
        --ways              follow each tensor, so that gradscope.why(x) knows where a way is cut
        --save FILE         write the recording to a file
        --ignore CODES      do not count these findings: GS303,GS305
        --baseline FILE     count only findings that this file does not have
        --no-settings       count also what comments and [tool.gradscope] in pyproject.toml suppress

        What is found in a cell is shown under it.
        """
        match shlex.split(line):
            case []:
                if self._all_cells.scope is None:
                    print("no watch is active; start one with %gradscope on")  # noqa: T201 - as magics answer
                return self._all_cells.scope
            case ["on", *options]:
                self._all_cells.on(options)
                self._counts = []
                return None
            case ["off"]:
                return self._all_cells.off()
            case _:
                raise _usage(f"cannot read {line!r}")

    def _before_cell(self, info: Any) -> None:
        first, _, _ = info.raw_cell.partition("\n")
        if first.startswith(_MAGIC):
            self._one_cell.on(shlex.split(first.removeprefix(_MAGIC)))
        if self._all_cells.scope is not None:
            self._counts = [finding.count for finding in self._all_cells.scope.findings]

    def _after_cell(self, result: Any) -> None:
        from IPython.display import display

        if self._one_cell.scope is not None:
            display(self._one_cell.off())
        elif self._all_cells.scope is not None:
            known, found = self._counts, self._all_cells.scope.findings
            new = [f for i, f in enumerate(found) if known[i : i + 1] != [f.count]]
            if any(finding.suppression is None for finding in new):
                display(Findings(new))


def as_comment(lines: list[str]) -> list[str]:
    """Return the lines of a cell, ``%%gradscope`` commented out."""
    return ["# " + lines[0], *lines[1:]] if lines and lines[0].startswith(_MAGIC) else lines


def _chosen(options: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a watch; raise IPython's own error for an unknown option."""
    from IPython.core.error import UsageError
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser(argument_default=SUPPRESS)
    parser.add_argument("--guard", dest="raise_on", action="store_const", const="error")
    parser.add_argument("--no-hooks", dest="hooks", action="store_false")
    parser.add_argument("--ways", action="store_true")
    parser.add_argument("--no-settings", dest="settings", action="store_false")
    parser.add_argument("--ignore", action="append")
    for name in ("--save", "--baseline"):
        parser.add_argument(name, type=os.path.abspath)
    try:
        return vars(parser.parse_args(options))
    except UsageError as error:
        raise _usage(str(error)) from None


def _usage(what: str) -> Exception:
    from IPython.core.error import UsageError

    return UsageError(f"gradscope: {what}\n\n{inspect.getdoc(Extension.magic) or ''}\n")


_extensions: dict[int, Extension] = {}


def load(shell: Any) -> None:
    """Add gradscope to a shell of IPython, as ``%load_ext gradscope`` asks."""
    _extensions[id(shell)] = Extension(shell)


def unload(shell: Any) -> None:
    """Take gradscope out of a shell of IPython again."""
    extension = _extensions.pop(id(shell), None)
    if extension is not None:
        extension.unload()
