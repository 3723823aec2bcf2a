"""The command line: `vitruvian COMMAND …`. One small file a command; errors are one line, `--debug` shows the rest."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vitruvian.cli.models import app as models
from vitruvian.errors import VitruvianError
from vitruvian.version import __version__

app = typer.Typer(
    name="vitruvian",
    help="Sees people and everything around them: Sapiens2, SAM 2, MaskFormer and Mask2Former.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(models, name="models")


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"vitruvian {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line; an error of ours is one line on standard error and exit code 2."""
    try:
        app()
    except VitruvianError as error:
        if "--debug" in sys.argv:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise SystemExit(2) from None
