"""Fixes: written down as edits, applied to a source, tried out in a run, written to the files."""
