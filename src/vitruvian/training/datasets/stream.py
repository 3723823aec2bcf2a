"""An endless stream of synthetic people, and the choice between it and a folder.

    chunk k ─render, seed (s, k)─▶ Samples ─▶ ring on the device ─compose, seed (s, step)─▶ crops and scenes of a step

Chunks of people enter a ring buffer at a fixed rate per step, and each is used several times before it is overwritten,
in other crops, backgrounds and company. The images of a step depend on the seed and the step alone, so that a run can
be resumed exactly. Rendering runs in the training process: separate processes were slower.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from vitruvian.errors import ConfigError, InputError
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
from vitruvian.training.synthetic.procedural import procedural_pack
from vitruvian.training.synthetic.render import RenderOptions
from vitruvian.training.synthetic.rng import Rng, derive_seed
from vitruvian.training.synthetic.samples import Samples, render_samples
from vitruvian.training.synthetic.textures import build_pyramid


@dataclass(frozen=True)
class StreamOptions:
    """Options of a `SyntheticStream`.

    Args:
        crops: Crops of one person in a step.
        scenes: Whole images in a step.
        ring: People in the ring buffer on the device.
        chunk: People rendered together.
        reuse: How often a person is cropped, on average, before it is replaced.
        seed: Seed of everything.
        render: How people are drawn.
        crop: How they are cropped.
        scene: How whole images are composed; portrait and landscape alternate.
    """

    crops: int = 96
    scenes: int = 32
    ring: int = 12288
    chunk: int = 64
    reuse: float = 6.0
    seed: int = 0
    render: RenderOptions = field(default_factory=RenderOptions)
    crop: CropOptions = field(default_factory=CropOptions)
    scene: SceneOptions = field(default_factory=SceneOptions)

    def __post_init__(self) -> None:
        if self.ring % self.chunk or self.ring < max(self.chunk, self.crops):
            raise ConfigError(
                f"StreamOptions.ring: expected a multiple of chunk={self.chunk} of at least {self.crops}, "
                f"got {self.ring}."
            )
        if self.reuse <= 0 or self.crops < 1 or self.scenes < 0:
            raise ConfigError("StreamOptions: expected reuse above 0, crops of at least 1 and scenes of at least 0.")

    def chunks_before(self, step: int) -> int:
        """Return the number of chunks that were written into the ring before step `step`."""
        return self.ring // self.chunk + int(step * self.crops / self.reuse / self.chunk)


@dataclass(frozen=True)
class StreamBatch:
    """The images of one step."""

    crops: Crops
    scenes: Scenes | None

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.crops.image) + (0 if self.scenes is None else len(self.scenes.image))


class SyntheticStream:
    """An endless stream of synthetic people.

    Args:
        pack: What people are drawn from.
        options: Its options.
        device: Where images are drawn.
    """

    def __init__(self, pack: Pack, options: StreamOptions | None = None, *, device: torch.device | str = "cpu") -> None:
        self.options, self.device = options or StreamOptions(), torch.device(device)
        self.pack = pack.to(self.device)
        self.pyramid = build_pyramid(self.pack.textures)
        self.ring: Samples | None = None
        self.written = 0  # chunks

    def batch(self, step: int) -> StreamBatch:
        """Return the images of step `step`; steps are cheapest in order."""
        ring = self._advance_ring(step)
        options = self.options
        generator = torch.Generator().manual_seed(derive_seed(options.seed, 2, step))
        rng = Rng(generator, self.device)
        chosen = torch.randperm(options.ring, generator=generator)[: options.crops].to(self.device, non_blocking=True)
        crops = compose_crops(ring.select(chosen), self.pack.scenery.backgrounds, rng=rng, options=options.crop)
        scenes = None
        if options.scenes:
            H, W = options.scene.size_hw
            which = options.scene if step % 2 else replace(options.scene, size_hw=(W, H))
            scenes = compose_scenes(ring, self.pack.scenery.backgrounds, options.scenes, rng=rng, options=which)
        return StreamBatch(crops, scenes)

    def _advance_ring(self, step: int) -> Samples:
        """Bring the ring to its state before `step`."""
        wanted = self.options.chunks_before(step)
        capacity = self.options.ring // self.options.chunk
        first = wanted - capacity
        if self.ring is None or self.written > wanted or self.written < first:
            self.written = first
        for number in range(self.written, wanted):
            samples = self._chunk(number)
            if self.ring is None:
                self.ring = samples.new_empty(self.options.ring)
            self.ring.write(number % capacity * self.options.chunk, samples)
        self.written = wanted
        if self.ring is None:
            raise InputError(f"step: expected at least 0, got {step}.")
        return self.ring

    def _chunk(self, number: int) -> Samples:
        options = self.options
        return render_samples(
            self.pack,
            options.chunk,
            seed=derive_seed(options.seed, 1, number),
            device=self.device,
            options=options.render,
            pyramid=self.pyramid,
        )


def open_batches(
    config: TrainConfig,
    model: nn.Module,
    *,
    device: torch.device,
    processes: int,
    stack: contextlib.ExitStack,
) -> FolderBatches | SyntheticStream:
    """Open the batches of a configuration; `stack` closes them."""
    if config.data.stream.pack is not None:
        return _open_stream(config, device=device)
    data = config.data
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


def _open_stream(config: TrainConfig, *, device: torch.device) -> SyntheticStream:
    """Open the stream of a configuration."""
    part = config.data.stream
    height, width = part.size or config.model.image_size
    options = StreamOptions(
        crops=config.data.batch_size,
        scenes=part.scenes,
        ring=part.ring,
        chunk=part.chunk,
        reuse=part.reuse,
        seed=config.seed,
        # Many images teach more than fewer with softer shadows.
        render=RenderOptions(size_hw=(height, width), chunk=part.chunk, surroundings=6, shadow_taps=6),
        crop=CropOptions(size_hw=(height, width), flip=config.data.augment.flip),
        scene=SceneOptions(size_hw=(width, height)),
    )
    procedural = part.pack == "procedural"
    pack = procedural_pack(config.seed) if procedural else load_pack(Path(part.pack or "").expanduser())
    return SyntheticStream(training_part(pack), options, device=device)
