"""Defines the public functions, and registers how data prints itself for people."""

import gradscope.render.printing  # noqa: F401 - it registers how data shows itself
