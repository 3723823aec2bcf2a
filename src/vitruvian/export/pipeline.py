"""Exported models in pipelines: from any source to results, as with the models they came from."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from vitruvian.auto import AutoProcessor
from vitruvian.errors import InputError
from vitruvian.export.folder import OPENVINO_FILE
from vitruvian.export.running import ExportedModel, OnnxModel, OpenVinoModel
from vitruvian.pipelines import pipeline_class
from vitruvian.tasks import find_task

STEPWISE = ("segment", "masks")  # they call an encoder once and a decoder often; an export is one call


def exported_pipeline(
    task: str,
    model: str | Path | ExportedModel,
    *,
    processor: Any = None,
    threads: int | None = None,
    **options: Any,
) -> Any:
    """Open an exported model for a task; what `vitruvian.pipeline` is for models.

    Args:
        task: ``"pose"``, ``"parts"`` or another task of `vitruvian.pipeline`, but for those of SAM 2.
        model: A folder that `export_onnx`, `quantize_int8` or ``vitruvian export`` wrote, or an exported model. Folders
            run in OpenVINO where it is installed, else in ONNX Runtime.
        processor: The model's processor, where the folder has none: ``processor.save_pretrained(folder)`` writes it.
        threads: Number of threads; by default one for each core.
        options: Options of the task, as the pipeline's call takes them.
    """
    found = pipeline_class(task)
    if find_task(task).name in STEPWISE:
        raise InputError(f"task: expected one that is a single call of a model, got {task!r}. Use vitruvian.pipeline.")
    found.check_options(options)
    opened = model if isinstance(model, ExportedModel) else open_exported(model, threads=threads)
    if not issubclass(opened.model_class, found.accepts):
        able = ", ".join(one.__name__ for one in found.accepts)
        raise InputError(f"model: expected an export of {able} for {task}, got one of {opened.signature.model}.")
    if processor is None:
        processor = AutoProcessor.from_pretrained(opened.config.name_or_path)
    return found(opened, processor, **options)


def open_exported(folder: str | Path, *, threads: int | None = None) -> ExportedModel:
    """Open a folder in the quicker of the engines that are installed and can run it."""
    needed = (Path(folder).expanduser() / OPENVINO_FILE).is_file()
    if needed or importlib.util.find_spec("openvino") is not None:
        return OpenVinoModel(folder, threads=threads)
    return OnnxModel(folder, threads=threads)
