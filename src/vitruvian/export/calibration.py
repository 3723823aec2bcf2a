"""Pictures for calibration, and what int8 costs on them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.export.accuracy import task_cost
from vitruvian.export.onnx_file import example_inputs
from vitruvian.export.running import ExportedModel
from vitruvian.images import load_image
from vitruvian.model import Model

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".avif")
SHOWN = 4  # pictures that are kept out of the calibration, to measure the cost on


def calibration_samples(
    model: Model, processor: Any, folder: str | Path, *, size_hw: tuple[int, int] | None = None, most: int = 16
) -> list[dict[str, Tensor]]:
    """Prepare the pictures of a folder as inputs of an export; prompts are those of `example_inputs`.

    Args:
        model: The model.
        processor: Its processor.
        folder: Folder of pictures, searched to the bottom; where there are more, `most` of them evenly spread.
        size_hw: Size of the export, where it is not the model's own.
        most: Prepare no more than this.
    """
    place = Path(folder).expanduser()
    paths = sorted(path for path in place.rglob("*") if path.suffix.lower() in ENDINGS)
    if not paths:
        raise InputError(f"{folder}: expected a folder with pictures to calibrate with, found none.")
    chosen = [paths[index * len(paths) // min(most, len(paths))] for index in range(min(most, len(paths)))]
    example = example_inputs(model, size_hw=size_hw)
    wanted = tuple(example["pixel_values"].shape[-2:])
    samples = []
    for path in chosen:
        pixels = processor(images=load_image(path), return_tensors="pt")["pixel_values"]
        if tuple(pixels.shape[-2:]) != wanted:
            pixels = F.interpolate(pixels.float(), size=wanted, mode="bilinear", antialias=True)
        samples.append(example | {"pixel_values": pixels})
    return samples


def held_out(samples: Sequence[dict[str, Tensor]]) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Return the samples to calibrate with, and a few others to look at the cost on; where there are few, all twice."""
    if len(samples) < 2 * SHOWN:
        return list(samples), list(samples)
    chosen = {index * len(samples) // SHOWN for index in range(SHOWN)}
    return [one for i, one in enumerate(samples) if i not in chosen], [samples[i] for i in sorted(chosen)]


def print_costs(
    model: Model, exported: ExportedModel, samples: Iterable[Mapping[str, Any]], *, show: Callable[[str], Any]
) -> dict[str, float]:
    """Show how far an exported model is from the model on some inputs, in terms of its task; return the means."""
    found: dict[str, list[float]] = {}
    with torch.inference_mode():
        for one in samples:
            sample: dict[str, Any] = dict(one)
            for name, value in task_cost(exported(**sample), model(**sample, return_dict=True)).items():
                found.setdefault(name, []).append(value)
    means = {name: statistics.mean(values) for name, values in found.items()}
    for name, value in means.items():
        show(f"{name}: {value:.4g}")
    return means
