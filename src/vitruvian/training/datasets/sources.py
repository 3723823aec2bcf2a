"""What a configuration trains and evaluates on: a folder of pictures, or people who are drawn meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitruvian.errors import InputError
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets.folder import FolderBatches, PeopleFolder
from vitruvian.training.datasets.stream import StreamOptions, SyntheticStream
from vitruvian.training.models import head_strides
from vitruvian.training.synthetic.compose import CropOptions, SceneOptions
from vitruvian.training.synthetic.pack import load_pack, training_part
from vitruvian.training.synthetic.procedural import procedural_pack
from vitruvian.training.synthetic.render import RenderOptions

PROCEDURAL = "procedural"


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
