"""The command line: `vitruvian COMMAND …`. One small file a command; errors are one line, `--debug` shows the rest."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from vitruvian.cli.spread import spread
from vitruvian.cli.start import leave, start
from vitruvian.cli.tables import import_torch
from vitruvian.cli.wording import NAMES, as_typed, option_names
from vitruvian.errors import VitruvianError
from vitruvian.version import __version__

# panel of the help -> commands: modules of this package with a function of their own name and an EXAMPLE that works
PEOPLE, ANYTHING, HOUSE, TRAINING = "People", "Anything", "Around", "Training"
COMMANDS = {
    PEOPLE: ("pose", "parts", "normals", "pointmap", "matte", "albedo", "embed"),
    ANYTHING: ("segment", "masks", "semantic", "instances", "panoptic"),
    HOUSE: ("demo", "doctor", "bench", "export"),
    TRAINING: ("synthesize", "train", "evaluate"),
}
MODELS = "models"  # has commands of its own
EXIT_CODES = "Exit codes: 0 all is well; 1 some sources failed; 2 the command or the model is wrong; 130 interrupted."


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        typer.echo(f"vitruvian {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Options of every command."""


@functools.cache
def program(command: str | None = None) -> Any:
    """Return the command line as click knows it.

    Args:
        command: The only command to have. All of them take longer to read than one takes to begin.
    """
    app = typer.Typer(
        name="vitruvian",
        help="Sees people and everything around them: Sapiens2, SAM 2, MaskFormer and Mask2Former.",
        epilog=f"Example: vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b\n\n{EXIT_CODES}",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(options)
    for panel, names in COMMANDS.items():
        for name in names:
            if command in (None, name):
                module = importlib.import_module(f"{__name__}.{name}")
                add = app.command(name, epilog=f"Example: {module.EXAMPLE}", rich_help_panel=panel)
                add(spread(getattr(module, name), first=import_torch))
    if command in (None, MODELS):
        app.add_typer(importlib.import_module(f"{__name__}.{MODELS}").app, name=MODELS, rich_help_panel=HOUSE)
    return typer.main.get_command(app)


def program_for(arguments: Sequence[str]) -> Any:
    """Return as much of the command line as some arguments need."""
    names = (MODELS, *(name for names in COMMANDS.values() for name in names))
    return program(arguments[0] if arguments and arguments[0] in names else None)


def main() -> None:
    """Run the command line."""
    start()
    leave(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; whatever goes wrong is one line on standard error."""
    warnings.showwarning = show_warning
    names = NAMES.set(functools.cache(lambda: option_names(program_for(arguments), arguments)))
    try:
        code = program_for(arguments)(args=list(arguments) or ["--help"], prog_name="vitruvian", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except VitruvianError as error:
        return tell(error, arguments, as_typed(error))
    except BrokenPipeError:
        sys.stdout = None  # whoever read it has enough; nothing is left to flush
        return 0
    except Exception as error:  # noqa: BLE001 - told in one line; --debug shows it all
        if hasattr(error, "format_message"):  # what typer finds wrong with a command
            context = getattr(error, "ctx", None)
            path = "vitruvian" if context is None else context.command_path
            words = error.format_message().rstrip(".")
            return tell(error, arguments, f"{words}. See {path} --help.")
        words = f"{type(error).__name__}: {error}".rstrip(": .")
        return tell(error, arguments, f"unexpected {words}. This is a mistake of ours: add --debug and report it.")
    finally:
        NAMES.reset(names)


def tell(error: Exception, arguments: Sequence[str], text: str) -> int:
    """Print an error in one line, or with --debug all of it; return the exit code."""
    if "--debug" in arguments:
        import traceback

        traceback.print_exception(error)
    typer.echo(f"Error: {' '.join(text.split())}", err=True)
    return 2


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning in one line; those of other packages are theirs to see."""
    if category.__module__.startswith("vitruvian"):
        typer.echo(f"Warning: {as_typed(str(message))}", err=True)
