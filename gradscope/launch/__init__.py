"""Runs the user's program as Python would."""
