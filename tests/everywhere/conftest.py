"""Hands a test of a fault its tries, and writes at the end what came of them, as in tests/faults."""

from tests.faults.conftest import pytest_runtest_makereport, pytest_sessionfinish, tries

__all__ = ["pytest_runtest_makereport", "pytest_sessionfinish", "tries"]
