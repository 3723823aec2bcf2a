"""`vitruvian models …`: which checkpoints there are, what is in one, getting and converting them, their licences."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vitruvian.cli.shown import print_json, shown_bytes, shown_millions
from vitruvian.errors import InputError, near_matches

app = typer.Typer(help="List, describe, download and convert checkpoints.", rich_markup_mode="rich")
JSON = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
DEBUG = Annotated[bool, typer.Option("--debug", help="Show where errors came from.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List, describe, download and convert checkpoints."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog="Example: vitruvian models list --task pose")
def list_models(
    task: Annotated[
        str | None, typer.Option(help="Only those for one command, such as pose.", show_default=False)
    ] = None,
    cached: Annotated[bool, typer.Option("--cached", help="Only those on this machine.")] = False,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """List the model inside the package and checkpoints on the Hub that are known to work, and which are here."""
    from rich.console import Console
    from rich.table import Table

    from vitruvian.cli.catalogue import known_checkpoints
    from vitruvian.cli.checkpoints import cached_sizes
    from vitruvian.cli.kinds import TASKS

    if task is not None and task not in TASKS:
        raise InputError(f"--task: expected one of {', '.join(TASKS)}, got {task!r}.{near_matches(task, TASKS)}")
    here = cached_sizes()
    rows = inside_row() + [
        {
            "name": known.name,
            "commands": list(known.commands),
            "parameters_millions": known.millions,
            "licence": known.licence.short,
            "cached_bytes": here.get(known.name),
        }
        for known in known_checkpoints()
        if not cached or known.name in here
    ]
    rows = [row for row in rows if task is None or task in row["commands"]]
    if as_json:
        print_json({"checkpoints": rows})
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "for", "parameters", "here", "licence"):
        table.add_column(title, justify="right" if title == "parameters" else "left", no_wrap=title != "licence")
    for row in rows:
        size = row["cached_bytes"]
        table.add_row(
            row["name"],
            ", ".join(row["commands"]),
            shown_millions(row["parameters_millions"]),
            shown_bytes(size) if size else "",
            row["licence"],
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def inside_row() -> list[dict[str, Any]]:
    """The line of the model inside the package, where there is one."""
    from vitruvian.cli.checkpoints import facts_of
    from vitruvian.hub import BUILTIN, has_builtin

    if not has_builtin():
        return []
    facts = facts_of(BUILTIN, None)
    return [
        {
            "name": BUILTIN,
            "commands": facts["commands"],
            "parameters_millions": round(facts["parameters"] / 1e6),
            "licence": facts["licence"],
            "cached_bytes": facts["size_bytes"],
        }
    ]


@app.command(epilog="Example: vitruvian models info facebook/sapiens2-pose-0.4b")
def info(
    name: Annotated[str, typer.Argument(help="Folder, weight file or name on the Hub.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.", show_default=False)] = None,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Tell what a checkpoint is: task, parameters, data type, size. Of one on the Hub, only config.json is loaded."""
    from rich.console import Console
    from rich.table import Table

    from vitruvian.cli.checkpoints import facts_of

    facts = facts_of(name, revision)
    if as_json:
        print_json(facts)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for title, value in facts.items():
        if title not in ("config", "parameters", "size_bytes") and value is not None:
            table.add_row(title.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
    table.add_row("parameters", shown_millions(round(facts["parameters"] / 1e6, 1)))
    console = Console(highlight=False)
    console.print(table)
    for key, value in facts["config"].items():
        text = json.dumps(value, ensure_ascii=False)
        console.print(f"  {key}: {text if len(text) < 100 else text[:96] + ' …'}", markup=False, style="dim")


@app.command(epilog="Example: vitruvian models download facebook/sapiens2-pose-0.4b")
def download(
    names: Annotated[list[str], typer.Argument(help="Names on the Hub.", metavar="NAME…")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.", show_default=False)] = None,
    quiet: QUIET = False,
    debug: DEBUG = False,
) -> None:
    """Download checkpoints into the Hub's cache, with progress; prints the folder of each."""
    from vitruvian.cli.fetching import fetch

    for name in names:
        typer.echo(str(fetch(name, revision=revision, quiet=quiet)))


@app.command(epilog="Example: vitruvian models convert sapiens2_0.4b_pose.safetensors my-pose-model")
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint of the original release: .safetensors, .pt or .pth.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, in the layout of the Hub.")],
    family: Annotated[str, typer.Option(help="sapiens2 or sam2.")] = "sapiens2",
    image_size: Annotated[str, typer.Option(help="Height and width of pictures the model was made for.")] = "1024x768",
    debug: DEBUG = False,
) -> None:
    """Turn an original checkpoint into a folder that `from_pretrained` opens."""
    size = re.fullmatch(r"(\d+)[x×](\d+)", image_size)
    if not size:
        raise InputError(f"--image-size: expected height x width such as 1024x768, got {image_size!r}.")
    if family == "sam2":
        from vitruvian.models.sam2.convert import convert_checkpoint
        from vitruvian.models.sam2.processing import Sam2ImageProcessor, Sam2Processor

        written = convert_checkpoint(source).save_pretrained(out)
        written += Sam2Processor(image_processor=Sam2ImageProcessor()).save_pretrained(out)
    elif family == "sapiens2":
        from vitruvian.models.sapiens2.convert import save_converted

        written = save_converted(source, out, image_hw=(int(size[1]), int(size[2])))
    else:
        raise InputError(f"--family: expected sapiens2 or sam2, got {family!r}.")
    for path in written:
        typer.echo(str(path))


@app.command(epilog="Example: vitruvian models licenses")
def licenses(as_json: JSON = False, debug: DEBUG = False) -> None:
    """Tell in short what is known of the licences of weights."""
    from vitruvian.cli.catalogue import LICENCES

    if as_json:
        print_json({licence.family: {"names": licence.names, "text": licence.text} for licence in LICENCES})
        return
    typer.echo("vitruvian's code is Apache-2.0. Weights have licences of their own:\n")
    for licence in LICENCES:
        typer.echo(f"{licence.names}\n    {licence.text}")
    typer.echo("\nThis is a pointer, not legal advice: the checkpoint's own page decides.")
