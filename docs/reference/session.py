"""Makes the HTML report of the tutorial's program, which a page of the site shows."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zlib
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
    own = [f"{place}{os.sep}".encode() for place in (folder, sysconfig.get_path("purelib"))]

    def shortened(block: re.Match[str]) -> str:
        """Leave the folders of this machine out of what is packed in a page."""
        data = zlib.decompress(base64.b64decode(block[2]))
        for place in own:
            data = data.replace(place, b"")
        return block[1] + base64.b64encode(zlib.compress(data, 9)).decode("ascii")

    return re.sub(r'(<script type="text/plain" id="[^"]*">)([^<]*)', shortened, text)
