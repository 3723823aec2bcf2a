"""Several Sapiens2 tasks over one encoder: to train them together, and to run them for the price of one.

    pixel_values ─▶ Sapiens2Model ─┬▶ head of task 1
                                   ├▶ head of task 2 …

Each task is an ordinary task model whose encoder is the shared one, so that it can be saved and opened alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from vitruvian.errors import InputError, near_matches
from vitruvian.models.sapiens2.configuration import Sapiens2Config, Sapiens2HeadConfig
from vitruvian.models.sapiens2.modeling import (
    Sapiens2ForAlbedoEstimation,
    Sapiens2ForImageMatting,
    Sapiens2ForNormalEstimation,
    Sapiens2ForPointmapEstimation,
    Sapiens2ForPoseEstimation,
    Sapiens2ForSemanticSegmentation,
    Sapiens2TaskModel,
)
from vitruvian.models.sapiens2.people import Sapiens2ForPeopleDetection
from vitruvian.models.sapiens2.trunk import Sapiens2Model
from vitruvian.outputs import BaseModelOutputWithPooling, ModelOutput

TASK_CLASSES: dict[str, type[Sapiens2TaskModel]] = {
    "pose": Sapiens2ForPoseEstimation,
    "seg": Sapiens2ForSemanticSegmentation,
    "normal": Sapiens2ForNormalEstimation,
    "pointmap": Sapiens2ForPointmapEstimation,
    "matting": Sapiens2ForImageMatting,
    "albedo": Sapiens2ForAlbedoEstimation,
    "people": Sapiens2ForPeopleDetection,
}


class Sapiens2MultiTask(nn.Module):
    """One encoder and a task model for each head.

    Args:
        encoder: The configuration of the encoder; its head, if it has one, is not used.
        heads: The head of each task: pose, seg, normal, pointmap, matting, albedo, people.
    """

    def __init__(self, encoder: Sapiens2Config, heads: Mapping[str, Sapiens2HeadConfig | dict[str, Any]]) -> None:
        super().__init__()
        for task in heads:
            if task not in TASK_CLASSES:
                known = ", ".join(TASK_CLASSES)
                raise InputError(f"heads: expected tasks of {known}, got {task!r}.{near_matches(task, TASK_CLASSES)}")
        self.config = encoder
        self.encoder = Sapiens2Model(encoder)
        self.tasks = nn.ModuleDict()
        for task, head in heads.items():
            model = TASK_CLASSES[task](task_config(encoder, task, head))
            model.model = self.encoder
            self.tasks[task] = model

    def forward(
        self, pixel_values: Tensor, *, tasks: Iterable[str] | None = None, labels: Mapping[str, Any] | None = None
    ) -> dict[str, ModelOutput]:
        """Run some tasks (by default those that have labels, or all) on pictures [B, 3, H, W].

        Args:
            pixel_values: Prepared pictures.
            tasks: Which tasks to run.
            labels: For a task, the arguments of its forward that make its loss: ``{"normal": {"labels": …}}``.

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
        """Return one task as the ordinary model that it is."""
        model: Any = self.tasks[task]
        found: Sapiens2TaskModel = model
        return found

    def weights(self) -> dict[str, Tensor]:
        """Return all weights, the shared encoder's once: ``encoder.…`` and ``tasks.NAME.…``."""
        return {name: value for name, value in self.state_dict().items() if not is_shared(name)}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load what `weights` returned."""
        again = {
            f"tasks.{task}.model.{name.removeprefix('encoder.')}": value
            for task in self.tasks
            for name, value in weights.items()
            if name.startswith("encoder.")
        }
        self.load_state_dict({**weights, **again})


def is_shared(name: str) -> bool:
    """Whether a weight's name is one of the other names of the shared encoder."""
    parts = name.split(".")
    return parts[0] == "tasks" and len(parts) > 2 and parts[2] == "model"


def task_config(encoder: Sapiens2Config, task: str, head: Sapiens2HeadConfig | dict[str, Any]) -> Sapiens2Config:
    """Return an encoder's configuration with the labels of a task and a head."""
    published = Sapiens2Config.variant("0.1b", task=task) if task != "people" else None
    fields: dict[str, Any] = {"head_config": head}
    if published is None:
        fields["num_labels"] = 5
    elif task in ("pose", "seg"):
        fields |= {"id2label": published.id2label, "label2id": published.label2id, "flip_pairs": published.flip_pairs}
    else:
        fields["num_labels"] = published.num_labels
    known = {field.name for field in dataclasses.fields(encoder)}
    values = {k: v for k, v in encoder.to_dict().items() if k in known and k not in ("id2label", "label2id")}
    return Sapiens2Config(**(values | fields))
