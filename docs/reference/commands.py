"""Makes one page for each command, from the command line's own help."""

from __future__ import annotations

import inspect
from typing import Any

from mentions import shown_in
from typer.main import get_command

from gradscope.cli import app


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    group: Any = get_command(app)
    rows = "\n".join(
        f"| [`gradscope {name}`]({name}.md) | {_first_sentence(command)} |"
        for name, command in group.commands.items()
    )
    context = group.make_context("gradscope", [], resilient_parsing=True)
    options = _table("option", group, context)
    made = {"commands/index.md": f"# Commands\n\n| command | |\n|---|---|\n{rows}\n\n{options}\n"}
    for name, command in group.commands.items():
        made[f"commands/{name}.md"] = page(name, command)
    return made


def page(name: str, command: Any) -> str:
    """Return the page of one command."""
    context = command.make_context(f"gradscope {name}", [], resilient_parsing=True)
    usage = " ".join([f"gradscope {name}", *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "")
    parts = [f"# gradscope {name}", f"```text\n{usage}\n```", text]
    parts += [_table(kind, command, context) for kind in ("argument", "option")]
    parts.append(shown_in(rf"(?m)^(?:\$ )?gradscope {name}\b"))
    return "\n\n".join(filter(None, parts)) + "\n"


def _first_sentence(command: Any) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _table(kind: str, command: Any, context: Any) -> str:
    """Return the arguments or the options of a command as a table."""
    params = [each for each in command.get_params(context) if each.param_type_name == kind]
    records = [record for each in params if (record := each.get_help_record(context))]
    if not records:
        return ""
    lines = [f"| `{name}` | {' '.join(meaning.split())} |" for name, meaning in records]
    return "\n".join([f"## {kind.title()}s\n", f"| {kind} | meaning |", "|---|---|", *lines])
