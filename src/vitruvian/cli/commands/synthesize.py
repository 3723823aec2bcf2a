"""`vitruvian synthesize`: write a dataset of synthetic people with ground truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitruvian.cli.option_groups import CudaDevice, cuda_or_cpu, read_size

EXAMPLE = "vitruvian synthesize --out set --count 2 --size 64x48 --supersample 1"


def synthesize(
    out: Annotated[Path, typer.Option(help="Output folder. An interrupted dataset is resumed.")],
    count: Annotated[int, typer.Option(help="Number of images.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same dataset.", min=0)] = 0,
    pack: Annotated[
        Path | None, typer.Option(help="Asset pack (.npz). Without it, bodies are simple capsules.")
    ] = None,
    size: Annotated[str, typer.Option(help="Height and width of the images.")] = "384x288",
    people: Annotated[float, typer.Option(help="Mean number of people in an image.")] = 1.3,
    image_format: Annotated[Literal["jpg", "png"], typer.Option("--format", help="Image format.")] = "jpg",
    supersample: Annotated[int, typer.Option(help="Samples along each side of a pixel.", min=1)] = 2,
    device: CudaDevice = None,
) -> None:
    """Write images of synthetic people with masks, parts, normals, depth, albedo, mattes and COCO annotations."""
    from rich.console import Console
    from rich.progress import Progress

    from vitruvian.training.synthetic.asset_pack import load_pack
    from vitruvian.training.synthetic.dataset import SHEET_FILE, DatasetOptions, write_dataset
    from vitruvian.training.synthetic.procedural_pack import procedural_pack
    from vitruvian.training.synthetic.render import RenderOptions

    size_hw = read_size("--size", size, example="384x288")
    target = cuda_or_cpu(device)
    console = Console(stderr=True, soft_wrap=True)
    if pack is None:
        console.print("no --pack: bodies are simple capsules. See the documentation: Synthetic people, Packs.")
    options = DatasetOptions(
        render=RenderOptions(size_hw=size_hw, supersample=supersample),
        people=people,
        image_format=image_format,
    )
    bodies = procedural_pack(0) if pack is None else load_pack(pack)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("images", total=count)
        path = write_dataset(
            out,
            count,
            seed=seed,
            pack=bodies.to(target),
            options=options,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    typer.echo(str(path))
    typer.echo(str(path.with_name(SHEET_FILE)))
