"""What a configuration trains and evaluates on: a folder of pictures, or people who are drawn meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitruvian.data.synthetic.capsules import procedural_pack
from vitruvian.data.synthetic.compose import CropOptions
from vitruvian.data.synthetic.pack import load_pack
from vitruvian.data.synthetic.render import RenderOptions
from vitruvian.data.synthetic.scenes import SceneOptions
from vitruvian.data.synthetic.split import training_part
from vitruvian.errors import ConfigError, InputError
from vitruvian.losses.heatmap import HeatmapLossWeights
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.training.build import TaskObjective, head_strides
from vitruvian.training.config import ModelPart, TrainConfig
from vitruvian.training.evaluate import evaluate_folder, headlines
from vitruvian.training.folder import FolderBatches, PeopleFolder
from vitruvian.training.objective import TASK_WEIGHTS, MultiTaskObjective, start_calmly
from vitruvian.training.synthetic import StreamOptions, SyntheticStream

Evaluate = Callable[[nn.Module, int], Mapping[str, float]]
PROCEDURAL = "procedural"


def make_objective(config: TrainConfig, model: Sapiens2MultiTask) -> nn.Module:
    """Join a model with the loss that fits where batches come from."""
    weights = task_weights(config.model)
    if config.data.stream.pack is None:
        return TaskObjective(model, weights)
    dense = {stride for task, stride in head_strides(model).items() if task not in ("pose", "people")}
    if len(dense) > 1 or dense - {1, 2}:
        raise ConfigError(f"model.heads: a stream needs dense heads of full or half size alike, got 1/{sorted(dense)}.")
    if config.model.pretrained is None:
        start_calmly(model)
    sigma = config.data.heatmap_sigma
    return MultiTaskObjective(
        model,
        weights=weights,
        sigma=2.0 if sigma is None else sigma,
        halves=dense == {2},
        at_once=config.data.stream.at_once,
    )


def task_weights(part: ModelPart) -> dict[str, float]:
    """What the losses of tasks are multiplied by: what was asked for, or what brings several to one scale."""
    if len(part.tasks) == 1:
        return dict.fromkeys(part.tasks, 1.0) | part.loss_weights
    usual = {task: TASK_WEIGHTS[task] for task in part.tasks}
    if part.loss_recipe and "pose" in usual:  # the recipe multiplies the error of heatmaps itself
        usual["pose"] /= HeatmapLossWeights().mse
    return usual | part.loss_weights


def open_batches(
    config: TrainConfig,
    model: nn.Module,
    *,
    device: torch.device,
    processes: int,
    stack: contextlib.ExitStack,
) -> Any:
    """Open what a configuration trains on; `stack` closes it again."""
    if config.data.stream.pack is not None:
        return open_stream(config, device=device)
    data = config.data
    if data.folder is None:
        raise InputError(
            "data.folder: expected a set to train on, got none. Write one with: vitruvian synthesize --count 1000 "
            "--out FOLDER; or name a pack in data.stream.pack."
        )
    height, width = config.model.image_size
    people = PeopleFolder(data.folder, size_hw=(height, width), tasks=config.model.tasks, view=data.view)
    batches = FolderBatches(
        people,
        tasks=config.model.tasks,
        batch_size=data.batch_size,
        seed=config.seed,
        augment=data.augment,
        device=device,
        workers=data.workers,
        stride=processes,
        strides=head_strides(model),
        heatmap_sigma=data.heatmap_sigma,
    )
    return stack.enter_context(contextlib.closing(batches))


def open_stream(config: TrainConfig, *, device: torch.device) -> SyntheticStream:
    """Open the stream of people that a configuration names."""
    part = config.data.stream
    height, width = part.size or config.model.image_size
    options = StreamOptions(
        crops=config.data.batch_size,
        scenes=part.scenes,
        ring=part.ring,
        chunk=part.chunk,
        reuse=part.reuse,
        seed=config.seed,
        # Many pictures teach more than fewer with the softest shadows.
        render=RenderOptions(size_hw=(height, width), chunk=part.chunk, surroundings=6, shadow_taps=6),
        crop=CropOptions(size_hw=(height, width), flip=config.data.augment.flip),
        scene=SceneOptions(size_hw=(width, height)),
    )
    made_up = part.pack == PROCEDURAL
    pack = procedural_pack(config.seed) if made_up else load_pack(Path(part.pack or "").expanduser())
    return SyntheticStream(training_part(pack), options, device=device)


def folder_evaluation(config: TrainConfig, device: torch.device) -> Evaluate:
    """Return a function that evaluates the tasks of a configuration on its validation set."""
    height, width = config.model.image_size
    tasks = config.model.tasks
    people = PeopleFolder(config.data.validation or "", size_hw=(height, width), tasks=tasks, view=config.data.view)

    def evaluate(model: nn.Module, step: int) -> Mapping[str, float]:
        report = evaluate_folder(
            lambda pixels: model(pixels, tasks=tasks),
            people,
            tasks=tasks,
            batch_size=config.evaluation.batch_size,
            pictures=config.evaluation.pictures,
            device=device,
            precision=config.precision,
            title=f"after {step} steps",
        )
        return headlines(report)

    return evaluate
