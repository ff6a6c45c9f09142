"""The command line: parses, calls the library, prints. Data on stdout, talk on stderr."""

from __future__ import annotations

import contextlib
import io
import re
import select
import sys
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from dpsweep.cli.base import say
from dpsweep.cli.cluster_verbs import cluster
from dpsweep.cli.verbs.account import account
from dpsweep.cli.verbs.advise import advise
from dpsweep.cli.verbs.audit import audit
from dpsweep.cli.verbs.budget import budget
from dpsweep.cli.verbs.describe import describe, methods
from dpsweep.cli.verbs.init import init
from dpsweep.cli.verbs.machine import doctor, ui
from dpsweep.cli.verbs.plan import plan
from dpsweep.cli.verbs.reproduce import reproduce
from dpsweep.cli.verbs.results.best import best, show
from dpsweep.cli.verbs.results.export import export
from dpsweep.cli.verbs.results.layers import layers
from dpsweep.cli.verbs.results.models import predict, register
from dpsweep.cli.verbs.results.report import report
from dpsweep.cli.verbs.results.studies import compare, list_studies
from dpsweep.cli.verbs.results.trials import decisions, logs, pareto, status
from dpsweep.cli.verbs.run import run, validate
from dpsweep.cli.verbs.simulate import simulate
from dpsweep.cluster.private_directory import remove_left_behind
from dpsweep.foundation.errors import (
    OF_STORAGE,
    SpecError,
    SweepError,
)
from dpsweep.foundation.process.interrupts import raise_lost
from dpsweep.foundation.process.leaving import leave
from dpsweep.foundation.version import __version__

UsageError: Any = typer.BadParameter.__bases__[0]  # of the click that this typer has


class _UnreadError(Exception):
    """Something was written to a pipe or a socket that nobody reads any more."""

    def __init__(self, cause: BrokenPipeError) -> None:
        super().__init__(cause)
        self.cause = cause


@contextlib.contextmanager
def _ends_told() -> Iterator[None]:
    """Say that Ctrl-C ends a command, and let ``main`` hear of such a pipe.

    Of both typer would say nothing.
    """
    try:
        yield
    except BrokenPipeError as error:
        raise _UnreadError(error) from None
    except KeyboardInterrupt:
        say("interrupted; nothing is lost: run the same command again to continue")
        raise typer.Exit(130) from None


class _Commands(TyperGroup):
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the command line; help is printed meanwhile."""
        with _ends_told():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Invoke a command."""
        with _ends_told():
            raise_lost()
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"dpsweep {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Hyperparameter sweeps for differentially private training, with an honest ledger."""
    remove_left_behind()


app.add_typer(account, name="account")
app.add_typer(cluster, name="cluster")
app.command()(init)
app.command()(plan)
app.command()(simulate)
app.command()(advise)
app.command()(report)
app.command()(layers)
app.command()(audit)
app.command()(ui)
app.command()(doctor)
app.command()(methods)
app.command()(describe)
app.command()(validate)
app.command()(run)
app.command()(status)
app.command()(logs)
app.command()(best)
app.command()(show)
app.command()(pareto)
app.command()(decisions)
app.command()(reproduce)
app.command()(register)
app.command()(predict)
app.command()(export)
app.command("list")(list_studies)
app.command()(compare)
app.command()(budget)


def _lines(error: SweepError) -> list[str]:
    """Return one line per mistake of a spec; other errors keep their own lines."""
    return [str(m) for m in error.mistakes] if isinstance(error, SpecError) else [str(error)]


_IN_OUR_WORDS = {
    r"Input should be a valid number.*": "must be a number",
    r"Input should be a valid integer.*": "must be a whole number",
    r"Value error, ": "",
}


def _refuse_usage(error: Any) -> NoReturn:
    """Say what is wrong with the words of a command, as with a spec; without any, show help."""
    command = error.ctx.command_path if error.ctx is not None else "dpsweep"
    message = error.format_message()
    if "\n" in message:
        error.show()
    else:
        for pattern, ours in _IN_OUR_WORDS.items():
            message = re.sub(pattern, ours, message)
        say(f"error: {message}\n  fix: {command} --help")
    sys.exit(error.exit_code)


def main() -> None:
    """Run the command line; errors are one readable paragraph and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # as Python does for stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except UsageError as error:
        _refuse_usage(error)
    except SweepError as error:
        say("\n".join(f"error: {line}" for line in _lines(error)))
        if isinstance(error, SpecError) and error.is_first_look:
            say("data, space and plans are checked further once this is mended")
        sys.exit(error.exit_code)
    except _UnreadError as error:
        if _is_unread(sys.stderr) or not _is_unread(sys.stdout):
            raise error.cause from None  # of whom else, the traceback says
        sys.exit(0)  # ``dpsweep .. | head`` has seen enough
    except OSError as error:
        if isinstance(error, PermissionError) and error.filename is not None:
            say(f"error: cannot read or write {error.filename}: {error.strerror}")
            say("  fix: run it as the user whose file it is, or let this user have it")
            sys.exit(1)
        if error.errno not in OF_STORAGE:
            raise
        say(f"error: cannot write {error.filename or 'a file'}: {error.strerror}")
        say("  fix: make room, and run the same command again; what was charged before is safe")
        sys.exit(1)


def _is_unread(stream: Any) -> bool:
    """Say whether a stream of this process is a pipe whose reader has gone."""
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)
    except (OSError, ValueError, AttributeError):  # it is closed, or no stream of the system's
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


def command() -> NoReturn:
    """Be the process ``dpsweep``: ``main``, and a quick end."""
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            leave(end.code or 0)
        say(str(end.code))  # a library's last words, which Python would print
        leave(1)
    leave(0)
