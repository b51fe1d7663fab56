"""Writes fixes as edits, applies them to sources, verifies them in runs, and saves them."""
