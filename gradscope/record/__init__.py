"""Record: what was seen, as plain data in a file that survives a killed process."""

__version__ = "0.1.0"
"""The one place where the version is written."""
