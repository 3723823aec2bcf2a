"""The job in one line: `pipeline(task, model)` opens a checkpoint and takes pictures as they are."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from vitruvian.errors import InputError, near_matches

# task -> "module:class"; every class has `open(model, …)` and takes pictures when called.
PIPELINES: dict[str, str] = {
    "mask-generation": "vitruvian.pipelines.mask_generation:MaskGenerationPipeline",
}


def pipeline(
    task: str,
    model: str | Path | Any = None,
    *,
    processor: Any = None,
    device: str | int | Any = None,
    dtype: Any = None,
    **options: Any,
) -> Any:
    """Open a checkpoint for a task.

    Args:
        task: What to do: ``"mask-generation"``.
        model: A checkpoint's name, folder or file, or a model.
        processor: The model's processor, where it does not come with the checkpoint.
        device: ``"cuda"``, ``"cpu"``, a number of a CUDA device, …; by default the best one here.
        dtype: Data type of the weights; by default the checkpoint's.
        options: Options of the task, as the pipeline's call takes them.
    """
    if task not in PIPELINES:
        known = ", ".join(PIPELINES)
        raise InputError(f"task: expected one of {known}, got {task!r}.{near_matches(task, PIPELINES)}")
    module, _, name = PIPELINES[task].partition(":")
    found = getattr(importlib.import_module(module), name)
    return found.open(model, processor=processor, device=device, dtype=dtype, **options)
