"""The public functions, one name a file; with them, the data prints in the forms for people."""

from __future__ import annotations

from typing import Any

import gradscope.render.notebook
import gradscope.render.text.forms  # noqa: F401 - both register forms for people
from gradscope.model import Graph
from gradscope.model.printed import dot_of


@dot_of.register
def _dot(graph: Graph, **options: Any) -> str:
    # Drawing is loaded only when something is drawn.
    from gradscope.render.pictures.draw import to_dot  # noqa: PLC0415
    from gradscope.render.pictures.options import Options  # noqa: PLC0415

    return to_dot([graph], Options(**options))
