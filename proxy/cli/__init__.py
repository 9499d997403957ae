"""The command line (contract section 2): what went wrong is one clear line, never a traceback (C8).

Exit codes: 0 done; 1 it could not be done (a port in use, a store that is down); 2 the command or a file is
wrong; 130 interrupted. Heavy modules are imported inside the commands, so that help is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from proxy.cli import inspecting, ledger, running
from proxy.cli.output import Failure

app = typer.Typer(
    name="safepost",
    help="Outbound HTTP resilience proxy for payments: one submission, at most one effect, and the truth "
    "about what happened.",
    epilog="Start with: safepost demo",
    rich_markup_mode=None,
    add_completion=False,
)
running.add_to(app)
inspecting.add_to(app)
ledger.add_to(app)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(f"safepost {version_of('safepost')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Ends a broken pipe quietly, as `head` and `less` expect."""
    _open_standard_files()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _open_standard_files() -> None:
    """Where the process was started without standard input, output or error, open the null device in its place.

    Else the next file or socket takes the number: what is printed would go to the platform or into the ledger.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(lowest_free, mode))


def _run(arguments: Sequence[str] | None) -> int:
    command = typer.main.get_command(app)
    try:
        result = command.main(args=arguments, prog_name="safepost", standalone_mode=False)
    except TyperException as mistake:
        _say(f"safepost: {_one_line(str(mistake.format_message()))}")
        return int(mistake.exit_code)
    except Failure as failure:
        for line in failure.lines:
            _say(line)
        return failure.code
    except typer.Abort:
        return 130
    return result if isinstance(result, int) else 0


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _drop_output() -> None:
    """The reader has gone: what Python still holds for it must not raise again at exit."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - a device, not a path of ours
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
