"""`vitruvian labels`: a COCO dataset of results as labels of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitruvian.cli.option_groups import Debug
from vitruvian.errors import InputError

EXAMPLE = "vitruvian labels people.json --to cvat --out people.xml"


def labels(
    dataset: Annotated[Path, typer.Argument(help="A COCO dataset, as --coco of other commands writes it.")],
    to: Annotated[Literal["yolo", "label-studio", "cvat"], typer.Option(help="Format of the labels.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="File to write, .json for Label Studio and .xml for CVAT; a folder for YOLO."),
    ],
    image_root: Annotated[str, typer.Option(help="For Label Studio: URL in front of the names of images.")] = "",
    debug: Debug = False,
) -> None:
    """Convert a COCO dataset of poses, masks or boxes to labels for YOLO, Label Studio or CVAT for images 1.1."""
    from vitruvian.files.labels import write_cvat, write_label_studio, write_yolo
    from vitruvian.filesystem.json_files import read_json

    values = read_json(dataset)
    try:
        if to == "yolo":
            write_yolo(out, values)
        elif to == "cvat":
            write_cvat(out, values)
        else:
            write_label_studio(out, values, image_root=image_root)
    except InputError as error:
        raise InputError(error.detail, subject=str(dataset)) from error
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:  # a wrong field
        got = f"{type(error).__name__}: {error}"
        raise InputError(f"{dataset}: expected a COCO dataset with all of its fields, got {got}.") from error
    typer.echo(str(out))
