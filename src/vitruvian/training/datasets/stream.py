"""An endless stream of synthetic people for training.

    chunk k ─render, seed (s, k)─▶ Samples ─▶ ring on the device ─compose, seed (s, step)─▶ crops and scenes of a step

Chunks of people enter a ring one after the other, at a fixed rate per step, and each is used several times before it
is overwritten, in another crop, before another background, in other company. What step i sees depends only on the seed
and i, so a run that is resumed goes on exactly as if it had not stopped.

Rendering takes its share of the device's time and happens in place: processes beside the training were slower.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from vitruvian.errors import ConfigError, InputError
from vitruvian.training.synthetic.compose import CropOptions, Crops, SceneOptions, Scenes, compose_crops, compose_scenes
from vitruvian.training.synthetic.pack import Pack
from vitruvian.training.synthetic.render import RenderOptions
from vitruvian.training.synthetic.rng import Rng, derive_seed
from vitruvian.training.synthetic.samples import Samples, render_samples
from vitruvian.training.synthetic.textures import build_pyramid


@dataclass(frozen=True)
class StreamOptions:
    """How the stream flows.

    Args:
        crops: Pictures of one person in a step.
        scenes: Whole pictures in a step.
        ring: People kept on the device.
        chunk: People rendered together.
        reuse: How often a person is cropped, on average, before it is replaced.
        seed: Start of all rng.
        render: How people are drawn.
        crop: How they are cropped.
        scene: How whole pictures are put together; upright and lying ones alternate.
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
        """How many chunks have entered the ring when step `step` begins."""
        return self.ring // self.chunk + int(step * self.crops / self.reuse / self.chunk)


@dataclass(frozen=True)
class StreamBatch:
    """What one step sees."""

    crops: Crops
    scenes: Scenes | None

    def __len__(self) -> int:
        """Number of pictures."""
        return len(self.crops.image) + (0 if self.scenes is None else len(self.scenes.image))


class SyntheticStream:
    """People without end.

    Args:
        pack: What people are made of.
        options: How the stream flows.
        device: Where pictures are made.
    """

    def __init__(self, pack: Pack, options: StreamOptions | None = None, *, device: torch.device | str = "cpu") -> None:
        self.options, self.device = options or StreamOptions(), torch.device(device)
        self.pack = pack.to(self.device)
        self.pyramid = build_pyramid(self.pack.textures)
        self.ring: Samples | None = None
        self.entered = 0  # chunks that have entered the ring

    def batch(self, step: int) -> StreamBatch:
        """Return what step `step` sees; steps are cheapest in order."""
        ring = self._turn_to(step)
        options = self.options
        generator = torch.Generator().manual_seed(derive_seed(options.seed, 2, step))
        rng = Rng(generator, self.device)
        chosen = torch.randperm(options.ring, generator=generator)[: options.crops].to(self.device, non_blocking=True)
        crops = compose_crops(ring.pick(chosen), self.pack.scenery.backgrounds, rng=rng, options=options.crop)
        scenes = None
        if options.scenes:
            H, W = options.scene.size_hw
            turned = replace(options.scene, size_hw=(W, H))
            which = options.scene if step % 2 else turned
            scenes = compose_scenes(ring, self.pack.scenery.backgrounds, options.scenes, rng=rng, options=which)
        return StreamBatch(crops, scenes)

    def _turn_to(self, step: int) -> Samples:
        """Bring the ring to where it is when `step` begins."""
        wanted = self.options.chunks_before(step)
        capacity = self.options.ring // self.options.chunk
        first = wanted - capacity
        if self.ring is None or self.entered > wanted or self.entered < first:
            self.entered = first
        for number in range(self.entered, wanted):
            samples = self._chunk(number)
            if self.ring is None:
                self.ring = samples.new_empty(self.options.ring)
            self.ring.write(number % capacity * self.options.chunk, samples)
        self.entered = wanted
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
