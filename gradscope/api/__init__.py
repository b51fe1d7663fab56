"""The public functions; with them, the data shows itself in the forms for people."""

import gradscope.render.forms  # noqa: F401 - it registers how data shows itself
