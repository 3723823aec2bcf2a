"""Pipelines: `pipeline(task, model)` loads a checkpoint and takes images of any kind."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

from vitruvian.errors import VitruvianWarning
from vitruvian.hub import BUILTIN
from vitruvian.tasks import find_task

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from vitruvian.model import Model
    from vitruvian.pipelines.engine.runner import Results
    from vitruvian.pipelines.sources import Failure

__all__ = ["Failure", "Results", "default_model", "pipeline", "pipeline_class"]


def __getattr__(name: str) -> object:
    if name in ("Failure", "Results"):  # they import torch
        from vitruvian.pipelines.engine import runner

        return getattr(runner, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pipeline_class(task: str) -> Any:
    """Return the class of a task's pipeline; its options are in `vitruvian.pipelines.options`."""
    return find_task(task).pipeline_class()


def pipeline(
    task: str,
    model: str | Path | Model | None = None,
    *,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    processor: object = None,
    **options: object,
) -> Any:
    """Load a checkpoint for a task. The result is called with images: ``pipeline("pose", name)("photo.jpg")``.

    Args:
        task: ``"pose"``, ``"parts"``, ``"normals"``, ``"pointmap"``, ``"matte"``, ``"albedo"``, ``"embed"``,
            ``"segment"``, ``"masks"``, ``"track"``, ``"semantic"``, ``"instances"``, ``"panoptic"``, or one of
            their aliases, see `vitruvian.tasks`.
        model: A checkpoint's name, folder or file, or a model. ``"builtin"`` is the small built-in model, the default
            of the tasks that it can do.
        device: ``"cuda"``, ``"mps"``, ``"cpu"``, the index of a CUDA device, …; by default the best one available.
        dtype: Data type of the weights; by default bfloat16 on GPUs that support it, and float32 elsewhere.
        processor: The model's processor, if it does not come with the checkpoint.
        options: Options of the task, as the pipeline's call takes them, and keywords for the Hub such as `revision`.
    """
    row = find_task(task)
    opened = row.pipeline_class()
    if model is None:
        model = default_model(row.name)
        if model is not None:
            _warn_about_builtin(row.name)
    return opened.open(model, processor=processor, device=device, dtype=dtype, **options)


def default_model(task: str) -> str | None:
    """Return the default checkpoint of a task: the built-in model, or None if it cannot do the task."""
    row = find_task(task)
    if row.group != "people":
        return None
    from vitruvian.models.sapiens2.multitask_checkpoint import local_heads

    # Features need the encoder alone.
    return BUILTIN if row.sapiens2_head is None or row.sapiens2_head in local_heads(BUILTIN) else None


@functools.cache
def _warn_about_builtin(task: str) -> None:
    """Warn, once for each task, that the small model is used by default."""
    published = find_task(task).checkpoints
    large = published[-1] if published else "a larger checkpoint"
    warnings.warn(
        f"model: not given for {task}, so the small built-in model is used. For better results, pass {large}. "
        'Pass "builtin" to turn this warning off.',
        VitruvianWarning,
        stacklevel=3,
    )
