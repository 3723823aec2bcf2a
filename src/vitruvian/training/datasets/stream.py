"""An endless stream of synthetic people for training.

    chunk k ─render, seed (s, k)─▶ Samples ─▶ ring on the device ─compose, seed (s, step)─▶ crops and scenes of a step

Chunks of people enter a ring buffer at a fixed rate per step, and each is used several times before it is overwritten,
in other crops, with other backgrounds and bystanders. The images of a step depend on the seed and the step alone, so
that a run can be resumed exactly. Rendering runs in the training process: separate processes were slower.
"""

from __future__ import annotations

import torch

from vitruvian.errors import InputError
from vitruvian.training.config import TrainConfig
from vitruvian.training.datasets.augmentation import Photometric, degrade, photometric
from vitruvian.training.datasets.compose import CropSampling, SceneOptions, compose_crops, compose_scenes, crop_scenes
from vitruvian.training.datasets.labels import LabeledImages
from vitruvian.training.seeds import RandomStream, derive_seed
from vitruvian.training.synthetic.asset_pack import AssetPack
from vitruvian.training.synthetic.render import RenderOptions
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.synthetic.samples import Samples, render_samples
from vitruvian.training.synthetic.textures import build_pyramid


class SyntheticStream:
    """An endless stream of synthetic people: `data.batch_size` crops and `data.stream.scenes` whole images per step.

    Portrait and landscape scenes alternate.

    Args:
        pack: What people are made from.
        config: The configuration of a run with a `data.stream`.
        device: Where images are rendered.
    """

    def __init__(self, pack: AssetPack, config: TrainConfig, *, device: torch.device | str = "cpu") -> None:
        self.device, self.seed = torch.device(device), config.seed
        self.config, self.crops = config.data.stream, config.data.batch_size
        height, width = self.config.size or config.model.image_size
        # Many images teach more than fewer with softer shadows.
        self.render = RenderOptions(size_hw=(height, width), chunk=self.config.chunk, surroundings=6, shadow_taps=6)
        self.crop = CropSampling(size_hw=(height, width), flip_probability=config.data.augment.flip)
        self.scenes = (SceneOptions(size_hw=(height, width)), SceneOptions(size_hw=(width, height)))
        self.crowd = not {"parts", "matte"}.isdisjoint(config.model.tasks)
        self.pack = pack.to(self.device)
        self.pyramid = build_pyramid(self.pack.textures)
        self.ring: Samples | None = None
        self.written = 0  # chunks

    def batch(self, step: int) -> dict[str, LabeledImages]:
        """Return the images of a step: "crop", "scene", and "crowd", which are crops of scenes."""
        ring, backgrounds = self._advance_ring(step), self.pack.scenery.backgrounds
        rng = Rng(torch.Generator().manual_seed(derive_seed(self.seed, RandomStream.COMPOSITION, step)), self.device)
        samples = ring.select(rng.permutation(len(ring))[: self.crops])
        crops = compose_crops(samples, backgrounds, rng=rng, options=self.crop)
        batch = {"crop": photometric(degrade(crops, rng, shrink=True), rng, Photometric())}
        if self.config.scenes:
            scenes = compose_scenes(ring, backgrounds, self.config.scenes, rng=rng, options=self.scenes[step % 2])
            batch["scene"] = photometric(degrade(scenes, rng, shrink=False), rng, Photometric())
            if self.crowd:
                batch["crowd"] = crop_scenes(batch["scene"], rng=rng, size_hw=self.crop.size_hw)
        return batch

    def chunks_before(self, step: int) -> int:
        """Return the number of chunks that were written into the ring before step `step`."""
        return self.config.ring // self.config.chunk + int(step * self.crops / self.config.reuse / self.config.chunk)

    def _advance_ring(self, step: int) -> Samples:
        """Bring the ring to its state before `step`."""
        wanted = self.chunks_before(step)
        chunk, capacity = self.config.chunk, self.config.ring // self.config.chunk
        first = wanted - capacity
        if self.ring is None or self.written > wanted or self.written < first:
            self.written = first
        for number in range(self.written, wanted):
            seed = derive_seed(self.seed, RandomStream.RENDERING, number)
            samples = render_samples(self.pack, chunk, seed=seed, options=self.render, pyramid=self.pyramid)
            if self.ring is None:
                self.ring = samples.new_empty(self.config.ring)
            self.ring.write(number % capacity * chunk, samples)
        self.written = wanted
        if self.ring is None:
            raise InputError(f"step: expected at least 0, got {step}.")
        return self.ring
