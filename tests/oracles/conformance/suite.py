"""Loads a file of unittest tests from a folder, and lists what is in it."""

from __future__ import annotations

import importlib.util
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path


def load(folder: Path, file: str) -> dict[str, unittest.TestCase]:
    """Import a file as if it had been started, but for the tests; return these by their names."""
    path = folder / file
    sys.path[:0] = [str(path.parent), str(folder)]
    sys.argv = [str(path)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = unittest.defaultTestLoader.loadTestsFromModule(module)
    return {name_of(case): case for case in _cases(found)}


def name_of(case: unittest.TestCase) -> str:
    """Return the name of a test in its file: ``TestAutograd.test_hooks``."""
    return ".".join(case.id().split(".")[-2:])


def _cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _cases(each)
        else:
            yield each
