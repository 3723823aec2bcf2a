"""`vitruvian demo`: everything at once, on one sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitruvian.cli.options import MODEL, devices, dtypes
from vitruvian.errors import InputError, near_matches

if TYPE_CHECKING:
    from vitruvian.pipelines.people import PeopleFinder

EXAMPLE = "vitruvian demo photo.jpg --model pose=facebook/sapiens2-pose-0.4b --model parts=facebook/sapiens2-seg-0.4b"
BUILTIN = "builtin"
# task -> the folder that `vitruvian train` gives it
TASKS = {
    "pose": "pose",
    "parts": "seg",
    "normals": "normal",
    "pointmap": "pointmap",
    "matte": "matting",
    "albedo": "albedo",
}
SHEET_HEIGHT = 512


def demo(
    pictures: Annotated[
        list[Path] | None, typer.Argument(help="Pictures; by default one that comes along.", show_default=False)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="builtin, the folder of a training run or a packed model, or TASK=CHECKPOINT, repeated for each.",
            show_default=BUILTIN,
            rich_help_panel=MODEL,
        ),
    ] = None,
    finder: Annotated[
        str | None,
        typer.Option(help="Who finds people. By default builtin's own.", show_default=False, rich_help_panel=MODEL),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the sheet and the drawings.")] = Path("demo"),
    device: Annotated[
        str | None,
        typer.Option(
            help="cuda, mps or cpu. By default the best one here.",
            show_default=False,
            rich_help_panel=MODEL,
            autocompletion=devices,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16.", show_default=False, rich_help_panel=MODEL, autocompletion=dtypes
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where errors came from.")] = False,
) -> None:
    """Find the people in pictures, run every task on them, and draw it all on one sheet, OUT/sheet.png."""
    from vitruvian.cli.checkpoints import own_finder
    from vitruvian.cli.options import Messages
    from vitruvian.cli.report import Report
    from vitruvian.files import write_picture
    from vitruvian.pipelines import pipeline
    from vitruvian.pipelines.people import open_finder

    chosen = read_models(model or [BUILTIN])
    spec = finder or own_finder(next(iter(chosen.values())))
    shown = list(pictures or [shipped_picture()])
    rows: list[list[Any]] = []
    titles = ["picture", *chosen]
    with Report(Messages(quiet=quiet, debug=debug)) as report:
        with report.busy("opening the finder of people"):
            people = None if spec is None else open_finder(spec, device=device)
        opened = {}
        for task, checkpoint in chosen.items():
            with report.busy(f"opening {task}"):
                opened[task] = pipeline(task, checkpoint, device=device, dtype=dtype)
        with report.bar("drawing", len(shown) * len(titles)) as bar:
            for number, path in enumerate(shown):
                try:
                    row = draw_row(path, opened, people, lambda done, n=number: bar.at(n * len(titles) + done))
                except Exception as error:  # noqa: BLE001 - one picture must not stop the others
                    report.failed(str(path), error)
                    continue
                files = []
                for title, picture in zip(titles, row, strict=True):
                    files.append(out / f"{path.stem}_{title}.png")
                    write_picture(files[-1], picture)
                rows.append(row)
                report.done(str(path), files)
        if rows:
            sheet_path = out / "sheet.png"
            write_picture(sheet_path, sheet_of(rows, titles))
            typer.echo(str(sheet_path))
        raise typer.Exit(report.finish())


def read_models(given: list[str]) -> dict[str, str]:
    """Read --model: which checkpoint each task uses."""
    pairs = [text.partition("=") for text in given]
    if all(not mark for _, mark, _ in pairs):
        if len(given) > 1:
            raise InputError(
                "--model: expected one for all tasks, or TASK=CHECKPOINT for each, got several. Name tasks."
            )
        return models_in(given[0])
    for task, mark, checkpoint in pairs:
        if not mark or not checkpoint or task not in TASKS:
            raise InputError(
                f"--model: expected TASK=CHECKPOINT with one of {', '.join(TASKS)}, got {task + mark + checkpoint!r}."
                f"{near_matches(task, TASKS)}"
            )
    return {task: checkpoint for task, _, checkpoint in pairs}


def models_in(name: str) -> dict[str, str]:
    """Return the checkpoints of a folder with one for each task, or the same name for all tasks that it has."""
    from vitruvian.models.sapiens2.packed import packed_tasks

    if name == BUILTIN or packed_tasks(name):
        return {task: name for task, inner in TASKS.items() if inner in (packed_tasks(name) or TASKS.values())}
    folder = Path(name).expanduser()
    folder = folder / "model" if (folder / "model").is_dir() else folder
    found = {task: str(folder / inner) for task, inner in TASKS.items() if (folder / inner / "config.json").is_file()}
    if found:
        return found
    if folder.is_dir():
        raise InputError(
            f"{name}: expected folders {', '.join(TASKS.values())} as `vitruvian train` writes them, found none. For "
            "one checkpoint, use --model TASK=CHECKPOINT."
        )
    return dict.fromkeys(TASKS, name)


def draw_row(path: Path, opened: dict[str, Any], finder: PeopleFinder | None, progress: Any) -> list[Any]:
    """Draw the picture with the people found, then every task: uint8 [H, W, 3] each."""
    import numpy as np

    from vitruvian.draw import draw_boxes
    from vitruvian.pipelines.people import find_people
    from vitruvian.pipelines.sources import as_picture

    picture = as_picture(path)
    found = None if finder is None else find_people(finder, picture, source=str(path), nobody="whole")
    boxes = {} if found is None else {"boxes": found.boxes_xyxy}
    row = [picture if found is None else draw_boxes(picture, found.boxes_xyxy, scores=found.scores.tolist())]
    progress(1)
    for number, (task, pipe) in enumerate(opened.items()):
        result = pipe(picture, **boxes)
        more = {"legend": False} if task == "parts" else {}
        row.append(np.asarray(result.plot(**more).convert("RGB")))
        progress(number + 2)
    return row


def sheet_of(rows: list[list[Any]], titles: list[str]) -> Any:
    """Put all rows on one sheet."""
    from vitruvian.draw import sheet

    return sheet(rows, titles=titles, height=SHEET_HEIGHT)


def shipped_picture() -> Path:
    """The picture that comes along: an astronaut, by NASA, in the public domain."""
    return Path(__file__).parent / "demo_pictures" / "astronaut.jpg"
