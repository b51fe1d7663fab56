"""Hand-written recordings for the tests of every view: ``from canned import canned_recording``."""

from .recordings import canned_recording, clean_recording, empty_recording, unfinished_recording

__all__ = ["canned_recording", "clean_recording", "empty_recording", "unfinished_recording"]
