"""An endless stream of synthetic people, and the choice between it and a folder.

    chunk k ─render, seed (s, k)─▶ Samples ─▶ ring on the device ─compose, seed (s, step)─▶ crops and scenes of a step

Chunks of people enter a ring buffer at a fixed rate per step, and each is used several times before it is overwritten,
in other crops, backgrounds and company. The images of a step depend on the seed and the step alone, so that a run can
be resumed exactly. Rendering runs in the training process: separate processes were slower.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vitruvian.errors import InputError
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets.folder import FolderBatches, PeopleFolder
from vitruvian.training.models import head_strides
from vitruvian.training.synthetic.compose import (
    CropOptions,
    Crops,
    SceneOptions,
    Scenes,
    compose_crops,
    compose_scenes,
)
from vitruvian.training.synthetic.pack import Pack, load_pack, training_part
from vitruvian.training.synthetic.procedural_pack import procedural_pack
from vitruvian.training.synthetic.render import RenderOptions
from vitruvian.training.synthetic.rng import Rng, derive_seed
from vitruvian.training.synthetic.samples import Samples, render_samples
from vitruvian.training.synthetic.textures import build_pyramid


@dataclass(frozen=True)
class StreamBatch:
    """The images of one step."""

    crops: Crops
    scenes: Scenes | None

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.crops.image) + (0 if self.scenes is None else len(self.scenes.image))


class SyntheticStream:
    """An endless stream of synthetic people: `data.batch_size` crops and `data.stream.scenes` whole images a step.

    Portrait and landscape scenes alternate.

    Args:
        pack: What people are drawn from.
        config: The configuration of a run with a `data.stream`.
        device: Where images are drawn.
    """

    def __init__(self, pack: Pack, config: TrainConfig, *, device: torch.device | str = "cpu") -> None:
        self.device, self.seed = torch.device(device), config.seed
        self.part, self.crops = config.data.stream, config.data.batch_size
        height, width = self.part.size or config.model.image_size
        # Many images teach more than fewer with softer shadows.
        self.render = RenderOptions(size_hw=(height, width), chunk=self.part.chunk, surroundings=6, shadow_taps=6)
        self.crop = CropOptions(size_hw=(height, width), flip=config.data.augment.flip)
        self.scenes = (SceneOptions(size_hw=(height, width)), SceneOptions(size_hw=(width, height)))
        self.pack = pack.to(self.device)
        self.pyramid = build_pyramid(self.pack.textures)
        self.ring: Samples | None = None
        self.written = 0  # chunks

    def batch(self, step: int) -> StreamBatch:
        """Return the images of step `step`; steps are cheapest in order."""
        ring, backgrounds = self._advance_ring(step), self.pack.scenery.backgrounds
        rng = Rng(torch.Generator().manual_seed(derive_seed(self.seed, 2, step)), self.device)
        crops = compose_crops(
            ring.select(rng.permutation(len(ring))[: self.crops]), backgrounds, rng=rng, options=self.crop
        )
        scenes = None
        if self.part.scenes:
            scenes = compose_scenes(ring, backgrounds, self.part.scenes, rng=rng, options=self.scenes[step % 2])
        return StreamBatch(crops, scenes)

    def chunks_before(self, step: int) -> int:
        """Return the number of chunks that were written into the ring before step `step`."""
        return self.part.ring // self.part.chunk + int(step * self.crops / self.part.reuse / self.part.chunk)

    def _advance_ring(self, step: int) -> Samples:
        """Bring the ring to its state before `step`."""
        wanted = self.chunks_before(step)
        chunk, capacity = self.part.chunk, self.part.ring // self.part.chunk
        first = wanted - capacity
        if self.ring is None or self.written > wanted or self.written < first:
            self.written = first
        for number in range(self.written, wanted):
            samples = render_samples(
                self.pack,
                chunk,
                seed=derive_seed(self.seed, 1, number),
                device=self.device,
                options=self.render,
                pyramid=self.pyramid,
            )
            if self.ring is None:
                self.ring = samples.new_empty(self.part.ring)
            self.ring.write(number % capacity * chunk, samples)
        self.written = wanted
        if self.ring is None:
            raise InputError(f"step: expected at least 0, got {step}.")
        return self.ring


def open_batches(
    config: TrainConfig,
    model: nn.Module,
    *,
    device: torch.device,
    processes: int,
    stack: contextlib.ExitStack,
) -> FolderBatches | SyntheticStream:
    """Open the batches of a configuration; `stack` closes them."""
    data = config.data
    if data.stream.pack is not None:
        procedural = data.stream.pack == "procedural"
        pack = procedural_pack(config.seed) if procedural else load_pack(Path(data.stream.pack).expanduser())
        return SyntheticStream(training_part(pack), config, device=device)
    if data.folder is None:
        raise InputError(
            "data.folder: expected a dataset to train on, got none. Write one with: vitruvian synthesize --count 1000 "
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
