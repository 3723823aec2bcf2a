"""The command line: `vitruvian COMMAND …`. Errors are one line; `--debug` shows where they came from."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Annotated, Any

import typer

from vitruvian.cli.commands.image_tasks import TASK_COMMANDS
from vitruvian.cli.console_report import (
    DONE,
    INTERRUPTED,
    INVALID_COMMAND,
    error_text,
    print_warning,
    printable,
    traceback_text,
)
from vitruvian.cli.option_groups import options_by_argument
from vitruvian.cli.task_command import task_function
from vitruvian.cpu_threads import configure_openmp
from vitruvian.errors import InputError, VitruvianError
from vitruvian.tasks import TASKS, find_task
from vitruvian.version import __version__

# panel of the help -> modules of `commands`
PEOPLE, ANYTHING, TOOLS, TRAINING = "People", "Anything", "Tools", "Training"
COMMANDS = {
    PEOPLE: tuple(name for name in TASK_COMMANDS if TASKS[name].group == "people"),
    ANYTHING: tuple(name for name in TASK_COMMANDS if TASKS[name].group == "anything"),
    TOOLS: ("demo", "serve", "doctor", "bench", "export", "labels"),
    TRAINING: ("synthesize", "train", "evaluate"),
}
MODELS = "models"  # has commands of its own
_STOP_SECONDS = 10.0  # time to end after an interrupt
EXIT_CODES = "Exit codes: 0 success; 1 some sources failed; 2 invalid command or model; 130 interrupted."


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vitruvian {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print tracebacks of errors.")] = False,
) -> None:
    """Options of every command."""


@functools.cache
def program(command: str | None = None) -> Any:
    """Return the command line as click has it.

    Args:
        command: The only command to build, which takes less time than all of them.
    """
    app = typer.Typer(
        name="vitruvian",
        help="Computer vision for people and everything around them, with Sapiens2, SAM 2, MaskFormer and Mask2Former.",
        epilog=f"Example: vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b\n\n{EXIT_CODES}",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_options)
    for panel, names in COMMANDS.items():
        for name in names:
            if command in (None, name):
                if name in TASK_COMMANDS:
                    function, example = task_function(TASK_COMMANDS[name]), TASK_COMMANDS[name].example
                else:
                    module = importlib.import_module(f"vitruvian.cli.commands.{name}")
                    function, example = getattr(module, name), module.EXAMPLE
                app.command(name, epilog=f"Example: {example}", rich_help_panel=panel)(function)
    if command in (None, MODELS):
        module = importlib.import_module(f"vitruvian.cli.commands.{MODELS}")
        app.add_typer(module.app, name=MODELS, rich_help_panel=TOOLS)
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line."""
    configure_openmp()
    if os.environ.get("VITRUVIAN_STOP_WITH_STDIN"):  # set by the server for its jobs, which end with it
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may hold anything
    sys.exit(run(sys.argv[1:]))


def _stop_with_stdin() -> None:
    """Interrupt the command when standard input ends, as Ctrl-C does; end the process if that takes long."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; errors are one line on standard error."""
    names: dict[str, str] = {}
    warnings.showwarning = _hide_warning if _is_quiet(arguments) else functools.partial(_show_warning, names)
    arguments = _with_task_name(arguments)
    commands = (MODELS, *(name for panel in COMMANDS.values() for name in panel))
    interrupts: list[int] = []
    try:
        with _note_interrupts(interrupts):
            command = program(arguments[0] if arguments and arguments[0] in commands else None)
            names |= _names_in_messages(command, arguments)
            code = command(args=arguments or ["--help"], prog_name="vitruvian", standalone_mode=False)
            return code if isinstance(code, int) else DONE
    except VitruvianError as error:
        return _print_error(error, arguments, error_text(error, names))
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader has closed standard output: discard the rest
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:  # noqa: BLE001 - printed in one line; --debug shows it all
        if hasattr(error, "format_message"):  # a usage error of click
            context = getattr(error, "ctx", None)
            path = "vitruvian" if context is None else context.command_path
            return _print_error(error, arguments, f"{_sentence(error.format_message())} See {path} --help.")
        if interrupts:
            return INTERRUPTED
        text = f"{type(error).__name__}: {error}".rstrip(": .")
        return _print_error(error, arguments, f"unexpected {text}. This is a bug: report it with what --debug prints.")


def _sentence(text: str) -> str:
    """Return text with a full stop at its end, unless it ends a sentence already."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


@contextlib.contextmanager
def _note_interrupts(interrupts: list[int]) -> Iterator[None]:
    """Record Ctrl-C: torch replaces a KeyboardInterrupt by another error while it reads a tensor from a file."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    with contextlib.suppress(ValueError):  # only the main thread sets handlers
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _with_task_name(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the name of a task's command in place of its alias, such as depth for pointmap."""
    words = list(arguments)
    for index, word in enumerate(words):
        if not word.startswith("-"):
            with contextlib.suppress(InputError):
                name = find_task(word).name
                words[index] = name if name in TASK_COMMANDS else word
            break
    return words


def _names_in_messages(command: Any, arguments: Sequence[str]) -> dict[str, str]:
    """Return the options of the command that arguments name, by the arguments of the library that they stand for."""
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    tables = [TASKS[command.name].options_class()] if command.name in TASK_COMMANDS else []
    options = (parameter.name for parameter in command.params if parameter.param_type_name == "option")
    return options_by_argument(options, *tables, without=arguments)


def _print_error(error: Exception, arguments: Sequence[str], text: str) -> int:
    """Print an error in one line, and the traceback with --debug; return the exit code."""
    if "--debug" in arguments:
        typer.echo(traceback_text(error), err=True)
    typer.echo(f"Error: {printable(' '.join(text.split()))}", err=True)
    return INVALID_COMMAND


def _is_quiet(arguments: Sequence[str]) -> bool:
    """Return whether --quiet is among the arguments, or -q, also behind other short options."""
    return any(word == "--quiet" or re.fullmatch("-[a-z]*q[a-z]*", word) for word in arguments)


def _hide_warning(*_: object, **__: object) -> None:
    """Print nothing, for --quiet."""


def _show_warning(
    names: Mapping[str, str], message: Warning | str, category: type[Warning], *_: object, **__: object
) -> None:
    """Print this package's warnings on one line and hide other packages' warnings."""
    if category.__module__.startswith("vitruvian"):
        print_warning(error_text(VitruvianError(str(message)), names))
