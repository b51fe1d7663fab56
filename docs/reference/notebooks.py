"""Makes a page of a notebook: its cells, and what a browser would show below each."""

from __future__ import annotations

import html
import json
from typing import Any


def page(notebook: str) -> str:
    """Return a notebook with its outputs as Markdown."""
    return "\n\n".join(_cell(cell) for cell in json.loads(notebook)["cells"]) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    outputs = "\n\n".join(map(_output, cell["outputs"]))
    return f"```ipython\n{source}\n```\n\n{outputs}"


def _output(output: dict[str, Any]) -> str:
    """Return an output in the richest form that it has."""
    data = output.get("data", {})
    for form, newline in (("text/html", "&#10;"), ("image/svg+xml", " ")):
        if form in data:  # Markdown would end the block at a blank line
            lines = "".join(data[form]).splitlines()
            return f'<div class="output">{newline.join(lines)}</div>'
    if output["output_type"] == "error":
        text = f"{output['ename']}: {output['evalue']}"
    else:
        text = "".join(data.get("text/plain", output.get("text", "")))
    lines = html.escape(text).splitlines()
    return f'<div class="output"><pre>{"&#10;".join(lines)}</pre></div>'
