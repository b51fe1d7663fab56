"""The public functions, one name a file; with them, the data prints in the forms for people."""

import gradscope.render.forms  # noqa: F401 - it registers how data shows itself
