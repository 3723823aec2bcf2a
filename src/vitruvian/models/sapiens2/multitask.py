"""Several Sapiens2 tasks over one encoder, to train or run them together.

Each task is an ordinary task model with the shared encoder, so that it can be saved and loaded by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitruvian.config import checked_dtype
from vitruvian.devices import checked_device
from vitruvian.errors import WeightsError, check_names
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.hub import HubOptions, pin_revision
from vitruvian.layers.init import no_init_weights
from vitruvian.model.loading import fill_model
from vitruvian.models.sapiens2.configuration import Sapiens2Config, Sapiens2HeadConfig, head_fields
from vitruvian.models.sapiens2.modeling import (
    Sapiens2ForAlbedoEstimation,
    Sapiens2ForImageMatting,
    Sapiens2ForNormalEstimation,
    Sapiens2ForPointmapEstimation,
    Sapiens2ForPoseEstimation,
    Sapiens2ForSemanticSegmentation,
    Sapiens2Model,
    Sapiens2TaskModel,
)
from vitruvian.models.sapiens2.multitask_checkpoint import read_multitask, write_multitask
from vitruvian.models.sapiens2.people_detection import Sapiens2ForPeopleDetection
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.outputs import BaseModelOutputWithPooling, ModelOutput
from vitruvian.weights import describe_mismatch, match_keys

# Name of a head in checkpoints -> its class.
HEAD_CLASSES: dict[str, type[Sapiens2TaskModel]] = {
    str(cls.checkpoint_head): cls
    for cls in (
        Sapiens2ForPoseEstimation,
        Sapiens2ForSemanticSegmentation,
        Sapiens2ForNormalEstimation,
        Sapiens2ForPointmapEstimation,
        Sapiens2ForImageMatting,
        Sapiens2ForAlbedoEstimation,
        Sapiens2ForPeopleDetection,
    )
}


class Sapiens2MultiTask(nn.Module):
    """One encoder and a task model for each head.

    Args:
        encoder: The configuration of the encoder; its head, if it has one, is not used.
        heads: The head of each task: pose, seg, normal, pointmap, matting, albedo, people; or the whole configuration
            of a task, with other labels.
    """

    def __init__(
        self, encoder: Sapiens2Config, heads: Mapping[str, Sapiens2HeadConfig | Sapiens2Config | JsonObject]
    ) -> None:
        super().__init__()
        check_names("heads", heads, HEAD_CLASSES)
        self.config = encoder
        self.encoder = Sapiens2Model(encoder)
        self.tasks = nn.ModuleDict()
        for task, head in heads.items():
            config = head if isinstance(head, Sapiens2Config) else _task_config(encoder, task, head)
            model = HEAD_CLASSES[task](config)
            model.model = self.encoder
            self.tasks[task] = model

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        tasks: Iterable[str] | None = None,
        dtype: torch.dtype | str = torch.float32,
        device: str | torch.device | int = "cpu",
        **hub_options: Any,
    ) -> Self:
        """Load a multi-task checkpoint, for example ``"builtin"``, in evaluation mode.

        Args:
            pretrained_model_name_or_path: ``"builtin"``, a folder of `save_multitask`, or a Hub name.
            tasks: Tasks to load; by default all.
            dtype: Data type of the weights.
            device: Device of the weights.
            hub_options: `revision`, `cache_dir` and the other options of the Hub; see `Model.from_pretrained`.
        """
        source = pretrained_model_name_or_path
        options = pin_revision(source, HubOptions(**hub_options))
        encoder, heads, files = read_multitask(source, options, heads=None if tasks is None else list(tasks))
        weight_dtype = checked_dtype(dtype)
        for config in (encoder, *heads.values()):
            config.name_or_path, config.dtype = str(source), weight_dtype
        with no_init_weights():
            model = cls(encoder, heads)
        wanted = {name: tuple(value.shape) for name, value in model.weights().items()}
        match = match_keys(wanted, files.shapes)
        if match.missing or match.unexpected or match.mismatched:
            raise WeightsError(
                f"{source}: its weights do not match its configuration.\n"
                f"  {describe_mismatch(match.missing, match.unexpected, match.mismatched)}\nSave the model again."
            )
        fill_model(model, files, match, weight_dtype, {"": checked_device(device)}, source=str(source))
        return model

    def forward(
        self, pixel_values: Tensor, *, tasks: Iterable[str] | None = None, labels: Mapping[str, Any] | None = None
    ) -> dict[str, ModelOutput]:
        """Run some tasks (by default those that have labels, or all) on images [B, 3, H, W].

        Args:
            pixel_values: Prepared images.
            tasks: Tasks to run.
            labels: For a task, the arguments of its forward that define its loss: ``{"normal": {"labels": …}}``.

        Returns:
            The output of each task, with `loss` where it has labels.
        """
        labels = labels or {}
        chosen = list(tasks) if tasks is not None else list(labels or self.tasks)
        encoded: BaseModelOutputWithPooling = self.encoder(pixel_values, return_dict=True)
        return {
            task: self.tasks[task](pixel_values, encoded=encoded, return_dict=True, **labels.get(task, {}))
            for task in chosen
        }

    def task_model(self, task: str) -> Sapiens2TaskModel:
        """Return the model of one task."""
        model = self.tasks[task]
        assert isinstance(model, Sapiens2TaskModel)
        return model

    def weights(self) -> dict[str, Tensor]:
        """Return all weights, the shared encoder's once: ``encoder.…`` and ``tasks.NAME.…``."""
        return {name: value for name, value in self.state_dict().items() if not _is_shared(name)}


def save_multitask(
    model: Sapiens2MultiTask, folder: str | Path, *, processor: Sapiens2ImageProcessor | None = None
) -> list[Path]:
    """Write a model of several tasks as a multi-task checkpoint, and return the files.

    Args:
        model: The tasks over one encoder.
        folder: Where to write; created if needed.
        processor: Its image processor; by default for the image size of the encoder.
    """
    if processor is None:
        height, width = model.config.image_hw
        processor = Sapiens2ImageProcessor(
            size={"height": height, "width": width}, keypoint_heatmap_sigma=6 * height / 1024
        )
    task_models = {task: model.task_model(task) for task in model.tasks}
    return write_multitask(Path(folder).expanduser(), model.encoder, task_models, processor)


def _is_shared(name: str) -> bool:
    """Return whether a name is that of the shared encoder inside a task."""
    parts = name.split(".")
    return parts[0] == "tasks" and len(parts) > 2 and parts[2] == "model"


def _task_config(encoder: Sapiens2Config, task: str, head: Sapiens2HeadConfig | JsonObject) -> Sapiens2Config:
    """Return the configuration of an encoder with the labels of a task and a head."""
    own = {field.name for field in dataclasses.fields(encoder)} - {"id2label", "label2id", "flip_pairs"}
    values = {name: value for name, value in encoder.to_dict().items() if name in own}
    return Sapiens2Config(**(values | head_fields(task, "0.1b") | {"head_config": head}))
