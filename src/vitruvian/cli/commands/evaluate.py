"""`vitruvian evaluate`: evaluate a checkpoint on a dataset of synthetic people with the usual metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitruvian.cli.option_groups import CudaDevice, cuda_or_cpu

EXAMPLE = "vitruvian evaluate my-run set"


def evaluate(
    model: Annotated[str, typer.Argument(help="Training run folder, or a Sapiens2 checkpoint.")],
    folder: Annotated[Path, typer.Argument(help="A dataset that `vitruvian synthesize` wrote.")],
    task: Annotated[list[str] | None, typer.Option(help="Evaluate this task alone. Repeat for more.")] = None,
    view: Annotated[
        Literal["person", "image"],
        typer.Option(help="Crops of people, or whole images."),
    ] = "person",
    max_crops: Annotated[
        int | None, typer.Option("--max-crops", help="Evaluate only the first N crops.", min=1)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Crops in a batch.", min=1)] = 16,
    device: CudaDevice = None,
    precision: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Data type of the model.")] = "float32",
    details: Annotated[bool, typer.Option("--details", help="Show every class and keypoint.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all scores to this file.")] = None,
) -> None:
    """Evaluate a checkpoint: PCK, OKS-AP, IoU, errors of normals, depth, points, mattes and albedo, box AP."""
    from rich.console import Console
    from rich.progress import Progress

    from vitruvian.errors import InputError, near_matches
    from vitruvian.training.datasets.folder import PeopleFolder
    from vitruvian.training.evaluation.evaluate import evaluate_folder
    from vitruvian.training.task_models import open_models

    target = cuda_or_cpu(device)
    models = open_models(model)
    for name in task or ():
        if name not in models:
            raise InputError(f"--task: {model} has {', '.join(models)}, got {name!r}.{near_matches(name, models)}")
    chosen = {name: opened.to(target) for name, opened in models.items() if not task or name in task}
    sizes = {opened.config.image_hw for opened in chosen.values()}
    if len(sizes) > 1:
        raise InputError(f"{model}: expected tasks for images of one size, got {sorted(sizes)}. Choose one --task.")
    people = PeopleFolder(folder, size_hw=sizes.pop(), tasks=list(chosen), view=view)
    console = Console()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("crops", total=None)
        report = evaluate_folder(
            lambda pixels: {name: opened(pixels) for name, opened in chosen.items()},
            people,
            tasks=list(chosen),
            batch_size=batch_size,
            images=max_crops,
            device=target,
            precision=precision,
            title=f"{model} on {folder}",
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    console.print(report.table(details=details))
    if json_file is not None:
        report.save(json_file)
