"""The job in one line: `pipeline(task, model)` opens a checkpoint and takes pictures as they are."""

from __future__ import annotations

import functools
import importlib
import warnings
from pathlib import Path
from typing import Any

from vitruvian.errors import VitruvianWarning
from vitruvian.hub import BUILTIN, has_builtin
from vitruvian.tasks import find_task

# task -> "module:class"; every class has `open(model, …)`, and `run(source, …)` for any source.
PIPELINES: dict[str, str] = {
    "pose": "vitruvian.pipelines.pose:PosePipeline",
    "parts": "vitruvian.pipelines.parts:PartsPipeline",
    "normals": "vitruvian.pipelines.normals:NormalsPipeline",
    "pointmap": "vitruvian.pipelines.pointmap:PointmapPipeline",
    "matte": "vitruvian.pipelines.matte:MattePipeline",
    "albedo": "vitruvian.pipelines.albedo:AlbedoPipeline",
    "segment": "vitruvian.pipelines.segment:SegmentPipeline",
    "mask-generation": "vitruvian.pipelines.mask_generation:MaskGenerationPipeline",
    "semantic": "vitruvian.pipelines.semantic:SemanticPipeline",
    "instance": "vitruvian.pipelines.instance:InstancePipeline",
    "panoptic": "vitruvian.pipelines.panoptic:PanopticPipeline",
    "embed": "vitruvian.pipelines.embed:EmbedPipeline",
}
# task -> what the model inside the package calls it; features need no more than its encoder.
INSIDE: dict[str, str | None] = {
    "pose": "pose",
    "parts": "seg",
    "normals": "normal",
    "pointmap": "pointmap",
    "matte": "matting",
    "albedo": "albedo",
    "embed": None,
}


def pipeline_class(task: str) -> Any:
    """Return the class of a task's pipeline; its `options_class` says which options there are."""
    if task not in PIPELINES:
        return find_task(task).pipeline_class()
    module, _, name = PIPELINES[task].partition(":")
    return getattr(importlib.import_module(module), name)


def pipeline(
    task: str,
    model: str | Path | Any = None,
    *,
    device: str | int | Any = None,
    dtype: Any = None,
    processor: Any = None,
    **options: Any,
) -> Any:
    """Open a checkpoint for a task. The result is called with pictures: ``pipeline("pose", name)("photo.jpg")``.

    Args:
        task: ``"pose"``, ``"parts"``, ``"normals"``, ``"pointmap"``, ``"matte"``, ``"albedo"``, ``"segment"``,
            ``"mask-generation"``, ``"semantic"``, ``"instance"``, ``"panoptic"`` or ``"embed"``.
        model: A checkpoint's name, folder or file, or a model; ``"builtin"`` is the small one inside the package, which
            is also the default for people and features where the installation has it.
        device: ``"cuda"``, ``"mps"``, ``"cpu"``, a number of a CUDA device, …; by default the best one here.
        dtype: Data type of the weights; by default bfloat16 on GPUs that compute in it, and float32 elsewhere.
        processor: The model's processor, where it does not come with the checkpoint.
        options: Options of the task, as the pipeline's call takes them, and keywords for the Hub such as `revision`.
    """
    found = pipeline_class(task)
    if model is None:
        model = default_model(task)
        if model is not None:
            tell_of_builtin(task, found.checkpoints[-1])
    return found.open(model, processor=processor, device=device, dtype=dtype, **options)


def default_model(task: str) -> str | None:
    """Return the model of a task where none is named: the one inside the package, None where there is none for it."""
    if task not in INSIDE or not has_builtin():
        return None
    from vitruvian.models.sapiens2.packed import packed_tasks

    wanted = INSIDE[task]
    return BUILTIN if wanted is None or wanted in packed_tasks(BUILTIN) else None


@functools.cache
def tell_of_builtin(task: str, better: str) -> None:
    """Say, once for each task, that the small model is at work, and which one would do better."""
    large = f"a large checkpoint such as {better}" if better.startswith("facebook/") else "a large checkpoint"
    warnings.warn(
        f'model: none was named for {task}, so the small one inside the package ("builtin") is at work: quick, but '
        f"rough. For quality, name {large}.",
        VitruvianWarning,
        stacklevel=3,
    )
