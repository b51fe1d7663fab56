"""Run the notebook of the recipes in a real kernel, and write what its cells show.

Run it from anywhere: ``python docs/make_notebook.py``. It needs ipykernel and nbclient, from the
extra ``test``. ``--check`` writes nothing, but prints how the notebook would change and exits with
1 if it would.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from changes import report_changes
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent / "recipes" / "notebook.ipynb"


def executed(text: str) -> str:
    """Return a notebook as it is after all its cells have run."""
    notebook = nbformat.reads(text, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    notebook.metadata = {"language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)  # when it ran
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                output.traceback = output.traceback[-1:]  # the others name files of this machine
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def main() -> int:
    """Write the notebook, or say what would change."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    made = executed(text)
    if "--check" in sys.argv[1:]:
        return report_changes({NOTEBOOK: made})
    NOTEBOOK.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
