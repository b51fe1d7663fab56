"""Parses the command line, calls one command, and prints what is wrong with the line."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from gradscope.commands import help as help_command
from gradscope.commands import report as report_command
from gradscope.commands.outputs import attempted, tell
from gradscope.launch.interpreter import RECORDED, Command, program_of
from gradscope.record import __version__
from gradscope.render.pictures import Options
from gradscope.rules.settings import DEFAULTS, FailOn, Format, Settings, settings_at

Job = Callable[[], int]
"""What a command line asks for, done outside of the parser and its handling of exceptions."""

# typer may bring its own copy of click: this finds the error of either.
UsageError: type[Any] = typer.BadParameter.__bases__[0]


class Commands(TyperGroup):
    """The commands; a program in place of one gets the command that it needs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that a line names."""
        name = args[0]
        if self.get_command(ctx, name) is None and (os.path.isfile(name) or name.endswith(".py")):
            verb = "report" if name.endswith(RECORDED) else "run"
            ctx.fail(f"No such command {name!r}; use `gradscope {verb} {shlex.join(args)}`")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="See which backward graphs a PyTorch program builds, what each backward call frees,"
    " and what will go wrong.",
)


class ProgramCommand(TyperCommand):
    """A command whose line ends in a program and the program's own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """End the options at ``-m`` or ``-c``, as Python's own command line does."""
        valued = (option for option in self.params if not getattr(option, "is_flag", True))
        takes_value = {name for option in valued for name in option.opts}
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
    version: Annotated[bool, _option("Print the versions and exit.", "--version")] = False,
) -> None:
    """Print the versions, or the help without a command."""
    if version:
        typer.echo(f"gradscope {__version__}, {_torch()}, Python {platform.python_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _torch() -> str:
    """Return torch's version, without the wait for its import."""
    from importlib import metadata  # which takes as long as half of the other imports

    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        return "no torch"


def _settings(given: Mapping[str, Any], **more: Any) -> Settings:
    """Return the project's settings, with the options of a command that are called as they are."""
    named = {each.name: given[each.name] for each in fields(Settings) if each.name in given}
    return settings_at().overridden(given.get("ignore"), **named | more)


def _option(help: str, *names: str, **more: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, **more)


def _argument(help: str, metavar: str = "FILE", **more: Any) -> Any:  # noqa: A002
    return typer.Argument(help=help, metavar=metavar, **more)


_BUDGET = "Keep the overhead below this share of the run time by inspecting fewer calls."
_IGNORE = "Suppress findings with these comma-separated codes, such as GS303,GS305; repeatable."
_QUIET = "The same as --format brief, and the default where CI=true: a line for each finding."
_NO_REHEARSAL = "Do not rerun the program to search for fixes."
_NO_HOOKS = "Install no hooks; inspect graphs only at backward calls."
_VERBOSE = "Also list the backward calls, and all totals."
_YES = "Let a rehearsal write files and connect, as the program does."
_DRAW = "Draw the graph of the worst finding, or the last: .svg .png .dot"
_FAIL_ON = "Lowest severity that makes the exit status 1 (default: error)."
_MEMORY = "Show what the largest graph saved: by module, line and operation."
_TRAINS = "Show who trains what: modules by the losses that reach them."
_file = partial(_option, metavar="FILE")
_count = partial(_option, metavar="N", min=1)


FormatOption = Annotated[Format, _option("Format of the report.")]
IgnoreOption = Annotated[list[str] | None, _option(_IGNORE, metavar="CODE")]
BaselineOption = Annotated[Path | None, _file("Count only findings that this file does not have.")]
WriteBaselineOption = Annotated[
    Path | None, _file("Write every finding that counts to this baseline; none fails the run.")
]
NoRehearsalOption = Annotated[
    bool, _option(_NO_REHEARSAL, "--no-rehearsal", envvar="GRADSCOPE_NO_REHEARSAL")
]
OutputOption = Annotated[Path | None, _file("Write the report to FILE instead of printing it.")]
YesOption = Annotated[bool, _option(_YES, "--yes")]
VerboseOption = Annotated[bool, _option(_VERBOSE, "--verbose", "-v")]
RecordingArgument = Annotated[Path, _argument("A recording that `run --save` wrote.")]


@app.command(
    cls=ProgramCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS] [-m | -c]",
)
def run(
    program: Annotated[
        str, _argument("A script, a launcher, - for stdin, or the argument of -m or -c.", "PROGRAM")
    ],
    args: Annotated[list[str] | None, _argument("Its own arguments.", "ARGS")] = None,
    module: Annotated[bool, _option("PROGRAM is a module, as for python -m.", "-m")] = False,
    code: Annotated[bool, _option("PROGRAM is code, as for python -c.", "-c")] = False,
    format: Annotated[Format | None, _option("Format of the report (default: text).")] = None,  # noqa: A002
    quiet: Annotated[bool, _option(_QUIET, "--quiet", "-q")] = False,
    verbose: VerboseOption = False,
    output: OutputOption = None,
    save: Annotated[Path | None, _file("Save the recording in this file.")] = None,
    html: Annotated[Path | None, _file("Write an interactive report to this file.")] = None,
    draw: Annotated[Path | None, _file(_DRAW)] = None,
    metrics: Annotated[Path | None, _file("Write Prometheus metrics here once a second.")] = None,
    stop_after: Annotated[int | None, _count("End the program after N backward calls.")] = None,
    guard: Annotated[bool, _option("Raise an error before the engine would.", "--guard")] = False,
    no_hooks: Annotated[bool, _option(_NO_HOOKS, "--no-hooks")] = False,
    budget: Annotated[
        float | None,
        _option(_BUDGET, metavar="PERCENT", envvar="GRADSCOPE_BUDGET", min=0.01, max=100),
    ] = None,
    no_rehearsal: NoRehearsalOption = False,
    fail_on: Annotated[FailOn | None, _option(_FAIL_ON)] = None,
    ignore: IgnoreOption = None,
    baseline: BaselineOption = None,
    write_baseline: WriteBaselineOption = None,
) -> Job:
    """
    Run a program as Python would, and report on its backward graphs.

    Everything after PROGRAM belongs to the program. The exit status is the program's if that is not
    0; else 1 if there is a finding at or above --fail-on, else 0. It is 2 on a usage error or if
    the report cannot be written. gradscope also reports on a program that is killed.
    """
    from gradscope.commands import run as command

    how = ["-m"] if module else ["-c"] if code else []
    words = [*how, program, *(args or ())]
    target = words if how or program == "-" else program_of(program, words[1:])
    if isinstance(target, Command):
        return partial(_run_again, target, len(args or ()))
    is_quiet = quiet or os.environ.get("CI", "").lower() == "true"
    form = format or (Format.BRIEF if is_quiet else Format.TEXT)
    more = {"hooks": not no_hooks, "rehearse": not no_rehearsal}
    settings = _settings(locals(), format=form, **more)
    return partial(command.run, target, settings)


def _run_again(again: Command, args: int) -> NoReturn:
    """Run this command line by the Python that it names: ``run --guard python -u train.py``."""
    own = sys.argv[1 : len(sys.argv) - args - 1]
    own = own[:-1] if own[-1] == "--" else own
    os.execv(again.python[0], [*again.python, "-m", "gradscope", *own, *again.program])


@app.command()
def report(
    files: Annotated[
        list[Path], _argument("Recordings that `run --save` wrote, or their folder.", "FILE...")
    ],
    format: FormatOption = Format.TEXT,  # noqa: A002
    output: OutputOption = None,
    html: Annotated[Path | None, _file("Write an interactive report to this file instead.")] = None,
    memory: Annotated[bool, _option(_MEMORY, "--memory")] = False,
    trains: Annotated[bool, _option(_TRAINS, "--trains")] = False,
    verbose: VerboseOption = False,
    ignore: IgnoreOption = None,
    baseline: BaselineOption = None,
    write_baseline: WriteBaselineOption = None,
) -> Job:
    """Report on a saved recording, as text or an interactive page."""
    settings = _settings(locals())
    return partial(report_command.report, files, settings, memory, trains)


@app.command()
def top(
    file: Annotated[Path, _argument("A recording, or the ID of a process.")],
    every: Annotated[float, _option("Refresh every S seconds.", metavar="S", min=0.2)] = 2.0,
    ignore: IgnoreOption = None,
    baseline: BaselineOption = None,
) -> Job:
    """
    Show a running program's backward calls, memory and findings.

    In a terminal, press q to quit. Otherwise, it prints one line per refresh until the run ends.
    """
    from gradscope.commands import top as command

    return partial(command.top, file, every, _settings(locals()))


@app.command()
def draw(
    file: RecordingArgument,
    output: Annotated[Path, _file("Draw to this .svg, .png or .dot file.", "--output", "-o")],
    call: Annotated[int | None, _count("Draw the graph of backward call N.")] = None,
    focus: Annotated[
        str | None,
        _option(
            "Unfold around WHAT: shared, finding, the name of a node, module, leaf or root, or the"
            " text that a folded box shows after `open:`.",
            metavar="WHAT",
        ),
    ] = None,
    depth: Annotated[int | None, _count("Fold module calls at this depth of their path.")] = None,
    no_fold: Annotated[bool, _option("Draw every node.", "--no-fold")] = False,
    sites: Annotated[bool, _option("Show the source lines.", "--sites")] = False,
) -> Job:
    """Draw a graph of a saved recording."""
    options = Options(focus, depth, not no_fold, sites)
    return partial(report_command.draw, file, output, call, options, settings_at())


@app.command()
def fix(
    file: Annotated[Path, _argument("A recording that `run --save` wrote, or a script.")],
    args: Annotated[list[str] | None, _argument("The script's own arguments.", "ARGS")] = None,
    finding: Annotated[
        str | None,
        _option("Only this finding: its number in the list, or its code.", metavar="WHICH"),
    ] = None,
    verify: Annotated[
        bool, _option("Run the program without and with each fix, and compare.", "--verify")
    ] = False,
    pick: Annotated[
        list[int] | None, _count("Take fix N of a finding, not the recommended one; repeatable.")
    ] = None,
    write: Annotated[
        bool, _option("Apply the recommended or picked fix to the files if it holds.", "--write")
    ] = False,
    no_rehearsal: NoRehearsalOption = False,
    yes: YesOption = False,
    stop_after: Annotated[
        int | None,
        _count("Stop each run after N backward calls (default: 100, or more if needed)."),
    ] = None,
    timeout: Annotated[float, _count("End after S seconds in all.", metavar="S")] = 600,
    format: FormatOption = Format.TEXT,  # noqa: A002
    ignore: IgnoreOption = None,
    baseline: BaselineOption = None,
) -> Job:
    """
    Show the fixes for a recording or a script, as a diff.

    gradscope reruns the program to search for fixes, and stops that rerun before it would change a
    file (see --yes). With --verify or --write, the exit status is 1 if the fix did not hold.
    """
    from gradscope.commands import fix as command

    more = {"rehearse": not no_rehearsal, "sandboxed": not yes, "picks": tuple(pick or ())}
    settings = _settings(locals(), **more)
    return partial(command.fix, file, tuple(args or ()), settings)


@app.command()
def why(
    script: Annotated[Path, _argument("A script.", "SCRIPT")],
    name: Annotated[
        str | None, _argument("A parameter, a module, or how their names begin.", "NAME")
    ] = None,
    args: Annotated[list[str] | None, _argument("The script's own arguments.", "ARGS")] = None,
    line: Annotated[
        int | None, _count("Ask for what the backward call at line N starts from; without NAME.")
    ] = None,
    timeout: Annotated[float, _count("End after S seconds.", metavar="S")] = 120,
    yes: YesOption = False,
    picture: Annotated[
        Path | None, _file("Draw the picture to this .svg, .png or .dot file.", "--picture")
    ] = None,
    format: FormatOption = Format.TEXT,  # noqa: A002
) -> Job:
    """
    Say whether a gradient reaches a parameter, or where it is cut.

    The answer lists the lines on its path. gradscope reruns the script up to the second step of
    each optimizer, and stops that rerun before it would change a file. The exit status is 0 if a
    gradient arrives or requires_grad is off, 1 if none arrives, and 2 if that cannot be said.
    """
    from gradscope.commands import why as command

    settings = DEFAULTS.overridden(timeout=timeout, sandboxed=not yes, format=format, draw=picture)
    return partial(command.why, script, name, tuple(args or ()), line, settings)


@app.command()
def explain(code: Annotated[str, _argument("A finding's code (GS101) or name.", "CODE")]) -> Job:
    """Explain what a finding means, why it is bad, and how to fix it."""
    return partial(help_command.explain, code)


@app.command()
def rules() -> Job:
    """List all findings."""
    return help_command.rules


@app.command()
def doctor() -> Job:
    """
    Say what works in this environment, and what to do if not.

    The exit status is 1 if no program can be watched here.
    """
    return help_command.doctor


def main() -> None:
    """Parse the command line, and do what it asks for."""
    if status := attempted(_parsed):
        raise SystemExit(status)


def _parsed() -> int:
    try:
        job = get_command(app).main(prog_name="gradscope", standalone_mode=False)
    except UsageError as error:
        path = error.ctx.command_path if error.ctx else "gradscope"
        is_option = path.endswith((" fix", " why")) and hasattr(error, "option_name")
        put = "; put -- before the script's own arguments" if is_option else ""
        tell(f"{error.format_message().rstrip('.')}{put}; see `{path} --help`")
        return 2
    return job() if callable(job) else 0
