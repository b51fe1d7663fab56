"""Overrides source files in memory for this process; the files on disk are not touched."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import TracebackType
from typing import Any

from gradscope.fixing.patch import decoded


def overlay(sources: Mapping[str, bytes]) -> None:
    """Load these files, by their absolute paths, with this content for the rest of the process.

    All Python source, the script's too, comes through one loader; tracebacks and ``inspect`` ask
    ``linecache``, and so does the hook for uncaught exceptions, as printing them would read the
    files. Compiled copies are neither read nor written.
    """
    loader: Any = SourceFileLoader
    read_file, stat_file = loader.get_data, loader.path_stats

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        content = sources.get(os.path.abspath(path))
        if content is None:
            return read_file(self, path)  # type: ignore[no-any-return]
        lines = [line.rstrip("\r\n") + "\n" for line in decoded(path, content).lines]
        no_date = None  # which keeps linecache from looking at the file
        linecache.cache[path] = (len(content), no_date, lines, path)
        return content

    def path_stats(self: SourceFileLoader, path: str) -> Any:
        if os.path.abspath(path) in sources:
            raise OSError(f"{path} is not taken from its file")
        return stat_file(self, path)

    def print_exception(
        kind: type[BaseException], error: BaseException, entry: TracebackType | None
    ) -> None:
        traceback.print_exception(kind, error, entry)

    loader.get_data, loader.path_stats = get_data, path_stats
    if sources:
        sys.excepthook = print_exception
