"""The command line: `vitruvian COMMAND …`. One small file a command; errors are one line, `--debug` shows the rest."""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from vitruvian.cli import (
    albedo,
    bench,
    demo,
    doctor,
    embed,
    evaluate,
    export,
    instances,
    masks,
    matte,
    models,
    normals,
    panoptic,
    parts,
    pointmap,
    pose,
    segment,
    semantic,
    synthesize,
    train,
)
from vitruvian.cli.report import INTERRUPTED
from vitruvian.cli.spread import spread
from vitruvian.cli.wording import NAMES, as_typed, option_names
from vitruvian.errors import VitruvianError
from vitruvian.version import __version__

PEOPLE, ANYTHING, HOUSE, TRAINING = "People", "Anything", "Around", "Training"
EXIT_CODES = "Exit codes: 0 all is well; 1 some sources failed; 2 the command or the model is wrong; 130 interrupted."

app = typer.Typer(
    name="vitruvian",
    help="Sees people and everything around them: Sapiens2, SAM 2, MaskFormer and Mask2Former.",
    epilog=f"Example: vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b\n\n{EXIT_CODES}",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


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


# Every command module has a function of its own name and an EXAMPLE that works.
COMMANDS: dict[str, tuple[Any, ...]] = {
    PEOPLE: (pose, parts, normals, pointmap, matte, albedo, embed),
    ANYTHING: (segment, masks, semantic, instances, panoptic),
    HOUSE: (demo, doctor, bench, export),
    TRAINING: (synthesize, train, evaluate),
}
for panel, modules in COMMANDS.items():
    for module in modules:
        name = module.__name__.rpartition(".")[2]
        command = spread(getattr(module, name))
        app.command(name, epilog=f"Example: {module.EXAMPLE}", rich_help_panel=panel)(command)
app.add_typer(models.app, name="models", rich_help_panel=HOUSE)


def main() -> None:
    """Run the command line."""
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # Threads may still be inside torch, which aborts when the interpreter goes away under it.
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)
    gc.freeze()  # what is left goes with the process: to look through all of torch for cycles first takes a while
    raise SystemExit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; whatever goes wrong is one line on standard error."""
    warnings.showwarning = show_warning
    names = NAMES.set(functools.cache(lambda: option_names(typer.main.get_command(app), arguments)))
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="vitruvian", standalone_mode=False)
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
            words = error.format_message().replace("Value error, ", "").rstrip(".")
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
