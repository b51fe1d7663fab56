"""The public functions; with them, the data shows itself in the forms for people."""

import gradscope.render.printing  # noqa: F401 - it registers how data shows itself
