"""Fixes as edits of the user's lines: written down, applied to a source, tried out in a run, written to the files."""
