"""`vitruvian synthesize`: write a set of synthetic people with everything that is true of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "vitruvian synthesize --out set --count 2 --size 64x48 --supersample 1"


def synthesize(
    out: Annotated[Path, typer.Option(help="Folder to write. One that holds the beginning of the set is carried on.")],
    count: Annotated[int, typer.Option(help="Number of pictures.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same set.", min=0)] = 0,
    pack: Annotated[Path | None, typer.Option(help="Pack of people (.npz). Without it, people of tubes.")] = None,
    size: Annotated[str, typer.Option(help="Height and width of the pictures.")] = "384x288",
    people: Annotated[float, typer.Option(help="People a picture, on average.")] = 1.3,
    image_format: Annotated[str, typer.Option("--format", help="jpg or png.")] = "jpg",
    supersample: Annotated[int, typer.Option(help="Samples a pixel side.", min=1)] = 2,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. By default cuda where there is one.")] = None,
) -> None:
    """Write pictures of synthetic people with masks, parts, normals, depth, albedo, mattes and COCO annotations."""
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from vitruvian.devices import checked_device
    from vitruvian.errors import InputError
    from vitruvian.training.synthetic.dataset import SHEET_FILE, DatasetOptions, write_dataset
    from vitruvian.training.synthetic.pack import load_pack
    from vitruvian.training.synthetic.procedural import procedural_pack
    from vitruvian.training.synthetic.render import RenderOptions

    found = re.fullmatch(r"(\d+)[x×](\d+)", size)
    if not found:
        raise InputError(f"--size: expected height x width such as 384x288, got {size!r}.")
    if image_format not in ("jpg", "png"):
        raise InputError(f"--format: expected jpg or png, got {image_format!r}.")
    place = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    console = Console(stderr=True, soft_wrap=True)
    if pack is None:
        console.print("no --pack: people are made of tubes. The documentation says how to build a pack of real bodies.")
    options = DatasetOptions(
        render=RenderOptions(size_hw=(int(found[1]), int(found[2])), supersample=supersample),
        people=people,
        image_format="jpg" if image_format == "jpg" else "png",
    )
    made = procedural_pack(0) if pack is None else load_pack(pack)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("pictures", total=count)
        path = write_dataset(
            out,
            count,
            seed=seed,
            pack=made.to(place),
            options=options,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(str(path))
    typer.echo(str(path.with_name(SHEET_FILE)))
