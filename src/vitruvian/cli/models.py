"""`vitruvian models …`: convert checkpoints of other layouts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Convert checkpoints.", no_args_is_help=True)


@app.command(epilog="Example: vitruvian models convert sapiens2_0.4b_pose.safetensors my-pose-model")
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint of the original release: .safetensors, .pt or .pth.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, in the layout of the Hub.")],
    family: Annotated[str, typer.Option(help="sapiens2 or sam2.")] = "sapiens2",
    image_size: Annotated[str, typer.Option(help="Height and width of pictures the model was made for.")] = "1024x768",
) -> None:
    """Turn an original checkpoint into a folder that `from_pretrained` opens."""
    from vitruvian.errors import InputError

    size = re.fullmatch(r"(\d+)[x×](\d+)", image_size)
    if not size:
        raise InputError(f"--image-size: expected height x width such as 1024x768, got {image_size!r}.")
    if family == "sam2":
        from vitruvian.models.sam2.convert import convert_checkpoint
        from vitruvian.models.sam2.processing import Sam2ImageProcessor, Sam2Processor

        written = convert_checkpoint(source).save_pretrained(out)
        written += Sam2Processor(image_processor=Sam2ImageProcessor()).save_pretrained(out)
    elif family == "sapiens2":
        from vitruvian.models.sapiens2.convert_file import save_converted

        written = save_converted(source, out, image_hw=(int(size[1]), int(size[2])))
    else:
        raise InputError(f"--family: expected sapiens2 or sam2, got {family!r}.")
    for path in written:
        typer.echo(str(path))


@app.callback()
def models() -> None:
    """Convert checkpoints."""
