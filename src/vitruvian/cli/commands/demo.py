"""`vitruvian demo`: every task about people, on one contact sheet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vitruvian.cli.option_groups import MODEL, Debug, DeviceOption, DtypeOption, Quiet, VerbosityGroup
from vitruvian.errors import InputError

EXAMPLE = "vitruvian demo photo.jpg --model pose=facebook/sapiens2-pose-0.4b --model parts=facebook/sapiens2-seg-0.4b"


def demo(
    images: Annotated[
        list[str] | None, typer.Argument(metavar="SOURCE", help="Images; by default two that come with the package.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="builtin, a checkpoint, a training run folder or a multi-task checkpoint, or TASK=CHECKPOINT, "
            "repeated for each. By default builtin.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    detect: Annotated[
        str | None,
        typer.Option(
            help="Person detector. By default the model if it detects people, else builtin.", rich_help_panel=MODEL
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the sheet and all files.")] = Path("out/demo"),
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Detect people in images, run the people tasks on them, and draw all results on one sheet, OUT/sheet.png."""
    from vitruvian.cli.console_report import ConsoleReport, format_seconds, printable
    from vitruvian.cli.demo_sheet import run_demo

    report = ConsoleReport(VerbosityGroup(quiet=quiet, debug=debug))
    with report.busy("processing images"):
        done = run_demo(
            images or None,
            out,
            model=_parse_models(model),
            detect=detect,
            device=device,
            dtype=dtype,
            progress=report.say,
        )
    report.say(f"{len(done.files)} files in {done.sheet.parent}, in {format_seconds(done.seconds)}. The contact sheet:")
    typer.echo(printable(str(done.sheet)))
    for name, error in done.failures.items():
        report.failed(name, error)
        report.warn(report.failures[-1])
    raise typer.Exit(1 if done.failures else 0)


def _parse_models(texts: Sequence[str] | None) -> str | dict[str, str] | None:
    """Read --model: one for all tasks, or which checkpoint each task uses."""
    pairs = [text.partition("=") for text in texts or ()]
    if not pairs:
        return None
    if len(pairs) == 1 and (not pairs[0][1] or Path("".join(pairs[0])).expanduser().exists()):
        return "".join(pairs[0])
    for task, _, checkpoint in pairs:
        if not checkpoint:
            raise InputError(f"--model: give one model for all tasks, or TASK=CHECKPOINT for each, got {task!r}.")
    return {task: checkpoint for task, _, checkpoint in pairs}
