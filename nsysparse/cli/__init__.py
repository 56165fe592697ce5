"""The command line: one module a command, loaded when the command is named.

This package is the only place that prints or exits.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import io
import os
import signal
import sys
from typing import Any, NoReturn

import click

from nsysparse import units
from nsysparse._version import __version__
from nsysparse.errors import NsysparseError
from nsysparse.memory import share_freed

# Command -> (module below this package, one line for the overview). Named here so that --help imports none of them.
COMMANDS = {
    "analyze": ("analyze", "Analyze a recording; write an HTML report and a JSON file."),
    "census": ("census", "Count a live program's GPU work with a recorder that can stay in production."),
    "validate": ("validate", "Compare a recording with a census of the same load."),
    "info": ("info", "Say what a recording holds, what it lacks, and whether it can be trusted."),
    "rules": ("rules", "List the rules that find stalls, or print the page of one."),
    "query": ("query", "Run one of the shipped SQL queries, or your own, on any export version."),
    "flamegraph": ("flamegraph", "Draw who sent the work, or what changed between two recordings."),
    "export": ("export", "Write a recording as Parquet, Arrow, CSV, SQLite or a Perfetto trace."),
    "scrub": ("scrub", "Copy a recording without what it says about the machine and its people."),
    "stats": ("stats", "Print the tables of nsys stats and nsys analyze: same names, same figures."),
    "cache": ("cache", "List or clear what --cache has kept."),
}

# Objects made before Python looks for unused cycles: by default it looks 200 times while libraries are loaded, and
# hardly finds any.
OBJECTS = 200_000
CLOSED_PIPE = 141  # as a shell says it of what SIGPIPE ended


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands in the order of the overview."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"nsysparse.cli.{COMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; where nobody reads what it prints any more, end as the system ends others then."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as end:  # click and rich would exit with 1: that something was found
            if not isinstance(end, BrokenPipeError) and not isinstance(end.__context__, BrokenPipeError):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(CLOSED_PIPE) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview from the table, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nsysparse", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Say where a GPU's time went and who sent it there, from an Nsight Systems export.

    Start with:  nsysparse analyze trace.sqlite
    """
    ctx.obj = {"debug": debug}


def fail(error: NsysparseError) -> NoReturn:
    """Print an error as its two lines and exit."""
    click.echo(f"Error: {_line(error.message)}", err=True)
    if error.hint:
        click.echo(f"Hint: {_line(error.hint)}", err=True)
    sys.exit(error.exit_code)


def _line(text: str) -> str:
    """One line that cannot steer the terminal: messages hold paths, and names from traces."""
    return units.visible(" ".join(text.split()))


def _refuse(error: click.ClickException) -> NoReturn:
    """Print what is wrong with the use of the command line in our own form; the help where nothing was asked."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "nsysparse"
    fail(NsysparseError(error.format_message(), f"see {command} --help"))


def _prepare_output() -> None:
    """A name that the terminal cannot show is no reason to stop."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _terminated(number: int, frame: object) -> None:
    """What a signal ends must remove its temporary files all the same."""
    sys.exit(128 + number)


def main() -> NoReturn:
    """Run the command line and turn every known failure into two lines and an exit status."""
    debug = "--debug" in sys.argv[1:]
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start a thread a core, and none has work here
    gc.set_threshold(OBJECTS)
    share_freed()
    _prepare_output()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        status = cli.main(standalone_mode=False, prog_name="nsysparse")
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Abort:
        click.echo("Interrupted: nothing was written.", err=True)
        sys.exit(130)
    except click.ClickException as error:
        _refuse(error)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except NsysparseError as error:
        if debug:
            raise
        fail(error)
    except MemoryError:
        fail(NsysparseError("out of memory", "give --memory-limit less than this machine has, or use a larger one"))
    except Exception as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            fail(NsysparseError("no space is left where output goes", "free some, or write elsewhere"))
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        fail(NsysparseError(f"internal error: {text}", "run again with --debug in front and report what it prints"))


def run() -> NoReturn:
    """Entry point of the program: :func:`main`, and then an end at once.

    Python would take apart piece by piece what a large recording left in memory, which the system takes back at once,
    and wait for threads whose work nobody asks for any more.
    """
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):  # files are closed, temporary ones are gone
            with contextlib.suppress(OSError, ValueError):  # what cannot be flushed is Python's to report
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code)
        raise
