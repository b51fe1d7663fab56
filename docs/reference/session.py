"""Makes the HTML report of the tutorial's program, which a page of the site shows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPORT = "session-report.html"

FRAME = f"""
<a href="{REPORT}">Open it in the whole window</a>

<iframe src="{REPORT}" title="The report of the run" loading="lazy"
    style="width: 100%; height: 44rem; border: 1px solid var(--md-default-fg-color--lightest)">
</iframe>
"""
"""What stands below the text of the page."""


def report() -> str:
    """Run the program, and return the page that gradscope makes of it."""
    docs = Path(__file__).parents[1]
    sys.path.append(str(docs))
    from make_terminal_picture import program

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(program(), encoding="utf-8")
        options = ("--no-rehearsal", "--output", os.devnull, "--html", "report.html")
        command = [sys.executable, "-m", "gradscope", "run", *options, "train.py"]
        env = os.environ | {"PYTHONPATH": str(docs.parent), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
        text = Path(folder, "report.html").read_text(encoding="utf-8")
        return text.replace(f"{folder}{os.sep}", "")
