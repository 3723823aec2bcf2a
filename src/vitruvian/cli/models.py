"""`vitruvian models …`: convert checkpoints of other layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Convert checkpoints.", no_args_is_help=True)


@app.command(epilog="Example: vitruvian models convert sapiens2_0.4b_pose.safetensors my-pose-model")
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint of the original release: .safetensors, .pt or .pth.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, in the layout of the Hub.")],
    family: Annotated[str, typer.Option(help="sapiens2 or sam2.")] = "sapiens2",
) -> None:
    """Turn an original checkpoint into a folder that `from_pretrained` opens."""
    from vitruvian.errors import InputError

    if family == "sam2":
        from vitruvian.models.sam2.convert import convert_checkpoint

        written = convert_checkpoint(source).save_pretrained(out)
    elif family == "sapiens2":
        from vitruvian.models.sapiens2.convert_file import save_converted

        written = save_converted(source, out)
    else:
        raise InputError(f"--family: expected sapiens2 or sam2, got {family!r}.")
    for path in written:
        typer.echo(str(path))


@app.callback()
def models() -> None:
    """Convert checkpoints."""
