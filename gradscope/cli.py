"""The command line: parses it, calls the command, prints what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from gradscope._version import __version__
from gradscope.commands import draw as draw_command
from gradscope.commands import explain as explain_command
from gradscope.commands import fix as fix_command
from gradscope.commands import report as report_command
from gradscope.commands import run as run_command
from gradscope.commands.fix import FixOptions
from gradscope.commands.run import FailOn, RunOptions
from gradscope.errors import GradscopeError
from gradscope.launch.target import Code, Module, Script, Target
from gradscope.render.machine import Format
from gradscope.render.pictures.options import Engine, Options, Theme

Job = Callable[[], int]
"""What a parsed command line asks for. It is done outside of the parser, which has its own ways with exceptions."""

# typer has brought its own copy of click for a while; the error of either is found so.
UsageError: type[Any] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="See which backward graphs a PyTorch program builds, what each backward call frees, and what will go wrong.",
)


class ProgramCommand(TyperCommand):
    """A command whose line ends in a program: all after the script, ``-m`` module or ``-c`` code is the program's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Have the options end where ``-m`` or ``-c`` stands, as Python's own do."""
        takes_value = {
            name
            for option in self.params
            if not getattr(option, "is_flag", True)
            for name in option.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            flag, rest = args[at][:2], args[at][2:]
            if flag in ("-m", "-c"):
                args = [*args[:at], flag, "--", *([rest] if rest else []), *args[at + 1 :]]
                break
            at += 2 if args[at] in takes_value else 1
        return super().parse_args(ctx, args)


@app.callback(invoke_without_command=True)
def gradscope(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Print the version, or the help if no command is given."""
    if version:
        typer.echo(f"gradscope {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


@app.command(
    cls=ProgramCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [-m | -c]",
)
def run(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script, or what -m or -c takes.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The program's own.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="PROGRAM is a module, as for python -m.")
    ] = False,
    code: Annotated[bool, typer.Option("-c", help="PROGRAM is code, as for python -c.")] = False,
    format: Annotated[Format, typer.Option(help="How the report is written.")] = Format.TEXT,  # noqa: A002
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report here, not to stderr.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the recording here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an interactive report here.")
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the finding's graph, or the last: .svg .png .pdf .dot"
        ),
    ] = None,
    stop_after: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End the program after N backward calls.")
    ] = None,
    guard: Annotated[bool, typer.Option("--guard", help="Raise before the engine would.")] = False,
    no_hooks: Annotated[
        bool, typer.Option("--no-hooks", help="Install no saved-tensor hooks: see less.")
    ] = False,
    fail_on: Annotated[
        FailOn, typer.Option(help="The least finding that makes the exit status 1.")
    ] = FailOn.ERROR,
) -> Job:
    """
    Run a program as Python would, and report on its backward graphs.

    Everything after PROGRAM belongs to the program. The exit status is the program's if that is not 0;
    else 1 if there is a finding at or above --fail-on, else 0. It is 2 if gradscope was used wrongly.
    """
    kind: Callable[[str, tuple[str, ...]], Target] = Module if module else Code if code else Script
    options = RunOptions(format, output, save, html, draw, stop_after, guard, not no_hooks, fail_on)
    return partial(run_command.run, kind(program, tuple(args or ())), options)


@app.command()
def report(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Recordings that `run --save` wrote.")
    ],
    format: Annotated[Format, typer.Option(help="How the report is written.")] = Format.TEXT,  # noqa: A002
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report here, not to stdout.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an interactive report here instead.")
    ] = None,
) -> Job:
    """Print the report of a saved recording, or write it as an interactive page."""
    return partial(report_command.report, files, format, output, html)


@app.command()
def draw(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A recording that `run --save` wrote.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Draw to this .svg, .png, .pdf or .dot, not as a tree.",
        ),
    ] = None,
    call: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The graph that backward call N met.")
    ] = None,
    focus: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="Show most of: shared, finding, or the name of a node, module, leaf, root.",
        ),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Fold the calls of modules at this depth of their path."
        ),
    ] = None,
    expand: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Open a fold, by what it says behind `open:`; repeatable."
        ),
    ] = None,
    no_fold: Annotated[bool, typer.Option("--no-fold", help="Draw every node.")] = False,
    sites: Annotated[bool, typer.Option("--sites", help="Add the source lines.")] = False,
    engine: Annotated[Engine, typer.Option(help="What lays the picture out.")] = Engine.AUTO,
    theme: Annotated[Theme, typer.Option(help="The colours.")] = Theme.LIGHT,
) -> Job:
    """Draw a graph of a saved recording: to a file, or as a tree."""
    options = Options(focus, depth, tuple(expand or ()), not no_fold, sites, engine, theme)
    return partial(draw_command.draw, file, output, call, options)


@app.command()
def fix(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A recording that `run --save` wrote.")
    ],
    finding: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH", help="Only this fix: its number in the list, or a finding's code."
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Run the program as it is and with the fix, and compare."),
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Change the files, if --verify has nothing against it.")
    ] = False,
    stop_after: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="End each run after N backward calls (100, or as the findings need).",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="End each run after S seconds.")
    ] = 600,
) -> Job:
    """
    Show what to do about the findings of a saved recording: in words, and as a diff where an edit does it.

    The exit status is 1 if --verify or --write was asked for and the fix did not hold.
    """
    return partial(fix_command.fix, file, FixOptions(finding, verify, write, stop_after, timeout))


@app.command()
def explain(
    code: Annotated[
        str, typer.Argument(metavar="CODE", help="A finding's code, as GS101, or name.")
    ],
) -> Job:
    """Explain a finding: what it says, why it is bad, and what cures it."""
    return partial(explain_command.explain, code)


@app.command()
def rules() -> Job:
    """List all findings."""
    return explain_command.rules


def main() -> None:
    """What ``gradscope`` and ``python -m gradscope`` call."""
    try:
        job = get_command(app).main(prog_name="gradscope", standalone_mode=False)
        status = job() if callable(job) else 0
    except UsageError as error:
        path = error.ctx.command_path if error.ctx else "gradscope"
        status = _used_wrongly(f"{error.format_message().rstrip('.')}; see `{path} --help`")
    except GradscopeError as error:
        status = _used_wrongly(str(error))
    if status:
        raise SystemExit(status)


def _used_wrongly(what: str) -> int:
    typer.echo(f"gradscope: {what}", err=True)
    return 2
