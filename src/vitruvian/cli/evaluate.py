"""`vitruvian evaluate`: judge a checkpoint on a set of synthetic people with the metrics of the field."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "vitruvian evaluate my-run set"


def evaluate(
    model: Annotated[str, typer.Argument(help="Folder of a run, of its model, or a Sapiens2 checkpoint of a task.")],
    folder: Annotated[Path, typer.Argument(help="A set that `vitruvian synthesize` wrote.")],
    task: Annotated[list[str] | None, typer.Option(help="Judge this task alone. Repeat for more.")] = None,
    view: Annotated[str, typer.Option(help="person cuts each person out; picture takes whole pictures.")] = "person",
    pictures: Annotated[int | None, typer.Option(help="Look at the first so many views.", min=1)] = None,
    batch_size: Annotated[int, typer.Option(help="Views at once.", min=1)] = 16,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. By default cuda where there is one.")] = None,
    precision: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    details: Annotated[bool, typer.Option("--details", help="Show every class and keypoint.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all scores into this file too.")] = None,
) -> None:
    """Print PCK and OKS-AP, IoU, angles, depth and point errors, matting errors, albedo errors and box precision."""
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from vitruvian.devices import checked_device
    from vitruvian.errors import InputError, near_matches
    from vitruvian.training.datasets.folder import PeopleFolder
    from vitruvian.training.evaluate import evaluate_folder
    from vitruvian.training.models import open_models

    if view not in ("person", "picture"):
        raise InputError(f"--view: expected person or picture, got {view!r}.")
    if precision not in ("float32", "bfloat16"):
        raise InputError(f"--precision: expected float32 or bfloat16, got {precision!r}.")
    place = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    models = open_models(model)
    for name in task or ():
        if name not in models:
            raise InputError(f"--task: {model} has {', '.join(models)}, got {name!r}.{near_matches(name, models)}")
    chosen = {name: one.to(place) for name, one in models.items() if not task or name in task}
    sizes = {one.config.image_hw for one in chosen.values()}
    if len(sizes) > 1:
        raise InputError(f"{model}: expected tasks for pictures of one size, got {sorted(sizes)}. Judge one --task.")
    people = PeopleFolder(
        folder, size_hw=sizes.pop(), tasks=list(chosen), view="person" if view == "person" else "picture"
    )
    console = Console()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("views", total=None)
        report = evaluate_folder(
            lambda pixels: {name: one(pixels) for name, one in chosen.items()},
            people,
            tasks=list(chosen),
            batch_size=batch_size,
            pictures=pictures,
            device=place,
            precision=precision,
            title=f"{model} on {folder}",
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    console.print(report.table(details=details))
    if json_file is not None:
        report.save(json_file)
