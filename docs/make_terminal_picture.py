"""Make ``docs/pictures/terminal.svg``: the report of a real run, exported by rich."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from gradscope.record.file import load
from gradscope.render.text.report import print_report

HERE = Path(__file__).parent
SCRIPT = "examples/multi_task_hazard.py"


def main() -> None:
    """Run the example, and draw its report as a terminal shows it."""
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "run.gscope"
        command = [
            sys.executable,
            "-m",
            "gradscope",
            "run",
            "--output",
            f"{folder}/report",
            "--save",
            str(saved),
            SCRIPT,
        ]
        subprocess.run(command, cwd=HERE.parent, capture_output=True, check=False)
        with open(f"{folder}/screen", "w") as screen:
            console = Console(record=True, width=100, file=screen, force_terminal=True)
            print_report(load(saved), console)
    picture = console.export_svg(title=f"$ gradscope run {SCRIPT}")
    (HERE / "pictures" / "terminal.svg").write_text(picture)


if __name__ == "__main__":
    main()
