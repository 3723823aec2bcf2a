"""`vitruvian models …`: which checkpoints there are, what is in one, getting and converting them, their licenses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from vitruvian.cli.console_report import format_millions, print_json, printable
from vitruvian.cli.option_groups import Debug, Json, Quiet, read_size
from vitruvian.errors import CheckpointError, InputError

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
def models(context: typer.Context) -> None:
    """List, describe, download and convert checkpoints."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list", epilog="Example: vitruvian models list --task pose")
def list_models(
    task: Annotated[str | None, typer.Option(help="Only those for one command, such as pose.")] = None,
    cached: Annotated[bool, typer.Option("--cached", help="Only those on this machine.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List the built-in model and tested checkpoints of the Hub, and which of them are downloaded."""
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    from vitruvian.cli.checkpoints import cached_sizes, describe_checkpoint
    from vitruvian.cli.known_checkpoints import LICENSES, KnownCheckpoint, known_checkpoints
    from vitruvian.hub import BUILTIN
    from vitruvian.tasks import find_task

    task = None if task is None else find_task(task).name
    known, sizes = list(known_checkpoints()), cached_sizes()
    details = describe_checkpoint(BUILTIN)
    millions = round(details["parameters"] / 1e6)
    known.insert(0, KnownCheckpoint(BUILTIN, tuple(details["commands"]), "builtin", millions))
    sizes[BUILTIN] = details["size_bytes"]
    chosen = [
        checkpoint
        for checkpoint in known
        if (not cached or checkpoint.name in sizes) and (task is None or task in checkpoint.commands)
    ]
    if as_json:
        rows = [
            {
                "name": checkpoint.name,
                "commands": list(checkpoint.commands),
                "parameters_millions": checkpoint.millions,
                "license": LICENSES[checkpoint.family].short,
                "cached_bytes": sizes.get(checkpoint.name),
            }
            for checkpoint in chosen
        ]
        print_json({"checkpoints": rows})
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "for", "parameters", "here", "license"):
        table.add_column(title, justify="right" if title == "parameters" else "left", no_wrap=title != "license")
    for checkpoint in chosen:
        size = decimal(sizes[checkpoint.name]) if checkpoint.name in sizes else ""
        commands, parameters = ", ".join(checkpoint.commands), format_millions(checkpoint.millions)
        table.add_row(checkpoint.name, commands, parameters, size, LICENSES[checkpoint.family].short)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command(epilog="Example: vitruvian models info facebook/sapiens2-pose-0.4b")
def info(
    name: Annotated[str, typer.Argument(help="Folder, weight file or name on the Hub.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the Hub.")] = None,
    config: Annotated[bool, typer.Option("--config", help="Print the configuration too.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Describe a checkpoint: task, parameters, data type, size. For Hub checkpoints only config.json is downloaded."""
    from vitruvian.cli.checkpoints import describe_checkpoint

    details = describe_checkpoint(name, revision)
    if as_json:
        print_json(details)
        return
    details["parameters"] = format_millions(round(details["parameters"] / 1e6, 1))
    for title, value in details.items():
        if title not in ("config", "size_bytes") and value is not None:
            typer.echo(printable(f"{title:<11} {', '.join(value) if isinstance(value, list) else value}"))
    for key, value in details["config"].items() if config else ():
        text = json.dumps(value, ensure_ascii=False)
        typer.secho(printable(f"  {key}: {text if len(text) < 100 else text[:96] + ' …'}"), dim=True)


@app.command(epilog="Example: vitruvian models download facebook/sapiens2-pose-0.4b")
def download(
    names: Annotated[list[str], typer.Argument(help="Names on the Hub.", metavar="NAME…")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Download checkpoints into the Hub's cache, with progress; prints the folder of each."""
    from huggingface_hub import HfApi, snapshot_download, utils

    from vitruvian.hub import hub_errors, is_offline

    if quiet:
        utils.disable_progress_bars()  # type: ignore[attr-defined]
    for name in names:
        if name.count("/") != 1 or Path(name).exists():
            raise InputError(f"{name}: expected a name on the Hub such as facebook/sapiens2-pose-0.4b.")
        if is_offline():
            raise CheckpointError(f"{name}: offline mode is on (HF_HUB_OFFLINE). Unset it to download.")
        with hub_errors(name, "downloading", revision):
            files = HfApi(library_name="vitruvian").list_repo_files(name, revision=revision)
            patterns = ["*.json", "*.safetensors"]
            if not any(file.endswith(".safetensors") for file in files):  # many repositories have both formats
                patterns += ["*.bin", "*.pth"]
            folder = snapshot_download(name, revision=revision, allow_patterns=patterns, library_name="vitruvian")
        typer.echo(folder)


@app.command(epilog="Example: vitruvian models convert sapiens2_0.4b_pose.safetensors my-pose-model")
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint of the original release: .safetensors, .pt or .pth.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, in the layout of the Hub.")],
    family: Annotated[Literal["sapiens2", "sam2"], typer.Option(help="Model family of the checkpoint.")] = "sapiens2",
    image_size: Annotated[str, typer.Option(help="Input size of the model (height×width).")] = "1024x768",
    debug: Debug = False,
) -> None:
    """Convert an original checkpoint to a folder that `from_pretrained` opens."""
    image_hw = read_size("--image-size", image_size, example="1024x768")
    if family == "sam2":
        from vitruvian.models.sam2.convert import convert_checkpoint
        from vitruvian.models.sam2.video_modeling import Sam2VideoModel
        from vitruvian.models.sam2.video_processing import Sam2VideoProcessor

        written = convert_checkpoint(source, model_class=Sam2VideoModel).save_pretrained(out)
        written += Sam2VideoProcessor().save_pretrained(out)
    else:
        from vitruvian.models.sapiens2.convert import save_converted

        written = save_converted(source, out, image_hw=image_hw)
    typer.echo("\n".join(map(str, written)))


@app.command(epilog="Example: vitruvian models licenses")
def licenses(as_json: Json = False, debug: Debug = False) -> None:
    """Print the licenses of the published weights."""
    from vitruvian.cli.known_checkpoints import LICENSES

    if as_json:
        print_json({family: {"names": license.names, "text": license.text} for family, license in LICENSES.items()})
        return
    typer.echo("vitruvian's code is Apache-2.0. Weights have licenses of their own:\n")
    for license in LICENSES.values():
        typer.echo(f"{license.names}\n    {license.text}")
    typer.echo("\nNot legal advice. The model card is authoritative.")
