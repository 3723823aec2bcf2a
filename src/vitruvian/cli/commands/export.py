"""`vitruvian export`: a model as ONNX, or as int8 for OpenVINO, in a folder that the library runs too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitruvian.cli.option_groups import read_size

EXAMPLE = "vitruvian export facebook/sapiens2-pose-0.4b pose-int8 --int8 --calibrate photos"


def export(
    model: Annotated[str, typer.Argument(help="A checkpoint: folder or name on the Hub.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    int8: Annotated[bool, typer.Option("--int8", help="Quantize to int8 for OpenVINO; needs --calibrate.")] = False,
    calibrate: Annotated[Path | None, typer.Option(help="Folder of 12 to 24 typical images for calibration.")] = None,
    images: Annotated[int, typer.Option("--images", help="Maximum number of images for calibration.", min=1)] = 16,
    task: Annotated[
        str | None, typer.Option(help="Task of a checkpoint with several tasks: pose, parts, normals, …")
    ] = None,
    size: Annotated[str | None, typer.Option(help="Height and width of images, such as 1024x768.")] = None,
    check: Annotated[bool, typer.Option(help="Compare the file with torch after writing.")] = True,
) -> None:
    """Export a model to ONNX, or with --int8 to int8 for OpenVINO, and print how far its outputs are from torch."""
    import tempfile

    from vitruvian.auto import AutoProcessor, read_model_config, saved_class
    from vitruvian.errors import InputError
    from vitruvian.export import OpenVinoModel, export_onnx, quantize_int8
    from vitruvian.export.int8 import HELD_OUT, calibration_samples, held_out, print_errors
    from vitruvian.hub import HubOptions
    from vitruvian.models.sam2.modeling import Sam2Model
    from vitruvian.models.sam2.video_modeling import Sam2VideoModel
    from vitruvian.tasks import find_task

    if int8 and calibrate is None:
        raise InputError("--int8: requires images for calibration. Add --calibrate FOLDER.")
    if calibrate is not None and not int8:
        raise InputError("--calibrate requires --int8.")
    opener = find_task(task).auto_class() if task else saved_class(read_model_config(model, HubOptions()), model)
    if opener is Sam2VideoModel:  # what is exported is the model for images
        opener = Sam2Model
    opened = opener.from_pretrained(model, strict=True)
    processor = AutoProcessor.from_pretrained(model)
    size_hw = None if size is None else read_size("--size", size, example="1024x768")
    if calibrate is None:
        typer.echo(str(export_onnx(opened, out, size_hw=size_hw, check=check)))
        processor.save_pretrained(out)
        return
    with tempfile.TemporaryDirectory() as folder:
        export_onnx(opened, folder, size_hw=size_hw, check=check)
        samples = calibration_samples(opened, processor, calibrate, size_hw=size_hw, max_samples=images + HELD_OUT)
        samples, others = held_out(samples)
        written = quantize_int8(folder, out, samples, max_samples=images)
    processor.save_pretrained(out)
    typer.echo(str(written))
    print_errors(opened, OpenVinoModel(out), others, show=typer.echo)
