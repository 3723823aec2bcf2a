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
from torch import Tensor
from torch.nn import functional as F

from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.compose import CropOptions, Crops, compose_crops
from vitruvian.data.synthetic.degrade import developed
from vitruvian.data.synthetic.filters import blur_far
from vitruvian.data.synthetic.people import Pack
from vitruvian.data.synthetic.render import RenderOptions
from vitruvian.data.synthetic.samples import Samples, render_samples
from vitruvian.data.synthetic.scenes import SceneOptions, Scenes, compose_scenes
from vitruvian.data.synthetic.texture import build_pyramid
from vitruvian.errors import ConfigError, InputError
from vitruvian.training.checkpoint import mixed


@dataclass(frozen=True)
class StreamOptions:
    """How the stream flows.

    Args:
        crops: Pictures of one person in a step.
        scenes: Whole pictures in a step.
        ring: People kept on the device.
        chunk: People rendered together.
        reuse: How often a person is cropped, on average, before it is replaced.
        seed: Start of all chance.
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
        generator = torch.Generator().manual_seed(mixed(options.seed, 2, step))
        chance = Chance(generator, self.device)
        chosen = torch.randperm(options.ring, generator=generator)[: options.crops].to(self.device, non_blocking=True)
        crops = compose_crops(ring.pick(chosen), self.pack.backgrounds, chance=chance, options=options.crop)
        scenes = None
        if options.scenes:
            H, W = options.scene.size_hw
            turned = replace(options.scene, size_hw=(W, H))
            which = options.scene if step % 2 else turned
            scenes = compose_scenes(ring, self.pack.backgrounds, options.scenes, chance=chance, options=which)
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
                self.ring = samples.room(self.options.ring)
            self.ring.put(number % capacity * self.options.chunk, samples)
        self.entered = wanted
        if self.ring is None:
            raise InputError(f"step: expected at least 0, got {step}.")
        return self.ring

    def _chunk(self, number: int) -> Samples:
        options = self.options
        return render_samples(
            self.pack,
            options.chunk,
            seed=mixed(options.seed, 1, number),
            device=self.device,
            options=options.render,
            pyramid=self.pyramid,
        )


SHRINK = {1: 0.5, 2: 0.15, 3: 0.11, 4: 0.1, 6: 0.08, 8: 0.06}  # how often pictures are shrunk by what
SHARP = 0.6  # how often the file of a small person is sharpened
DIM, COLOURED = 0.1, 0.35  # how often there is little light, and how often that has a colour
UNFOCUSED = 0.07  # how often a picture is out of focus
RESTYLED = 0.1  # how often colours and textures are others


def from_afar(images: Tensor, chance: Chance) -> Tensor:
    """Some of the pictures [n, 3, H, W] as if cut from larger ones where people are small.

    They are shrunk, go through a camera and a file, and are enlarged again, as crops of small people are: few pixels
    are left of somebody, and those have hard edges, the blocks of a JPEG and the rings of the enlargement.
    """
    H, W = images.shape[-2:]
    shares = torch.tensor(list(SHRINK.values()), device=chance.generator.device)
    kind = torch.multinomial(shares, len(images), replacement=True, generator=chance.generator)
    for number, factor in enumerate(SHRINK):
        chosen = (kind == number).nonzero()[:, 0]  # on the CPU: nobody waits
        if factor == 1 or not len(chosen):
            continue
        index = chosen.to(images.device, non_blocking=True)
        size, some = (H // factor, W // factor), images[index]
        even = F.interpolate(some, size=size, mode="area")
        hard = F.interpolate(some, size=size, mode="bicubic", antialias=True)
        small = torch.lerp(even, hard, chance.uniform(0.0, 1.0, len(chosen))[:, None, None, None]).clamp(0, 1)
        small = developed(small, chance=chance, sharp=SHARP)
        large = F.interpolate(small, size=(H, W), mode="bicubic", align_corners=False).clamp(0, 1)
        images = images.index_copy(0, index, large)
    return images


def as_taken(images: Tensor, chance: Chance) -> Tensor:
    """Crops [n, 3, H, W] in 0..1 as cameras and files give them; what lies beyond the end of a picture stays black."""
    picture = (images > 0).any(dim=1, keepdim=True)
    return photometric(from_afar(images, chance), chance) * picture


def photometric(images: Tensor, chance: Chance) -> Tensor:
    """Change light, colour, sharpness and noise of pictures [n, 3, H, W] in 0..1, as cameras do."""
    n = len(images)
    shape = (n, 1, 1, 1)
    images = dim(restyled(images, chance) * chance.log_uniform(0.65, 1.5, n).view(shape), chance)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = mean + (images - mean) * chance.log_uniform(0.65, 1.45, n).view(shape)
    grey = images.mean(dim=1, keepdim=True)
    saturation = torch.where(chance.flip(0.08, n), 0.0, chance.log_uniform(0.5, 1.6, n)).view(shape)
    images = grey + (images - grey) * saturation
    images = images * chance.log_uniform(0.88, 1.14, n, 3)[:, :, None, None]
    images = images.clamp(0, 1) ** chance.log_uniform(0.75, 1.33, n).view(shape)
    soft = F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    softer = F.avg_pool2d(soft, 5, stride=1, padding=2, count_include_pad=False)
    blur = chance.uniform(0.0, 1.0, n).view(shape)
    images = torch.where(blur < 0.12, softer, torch.where(blur < 0.35, soft, images))
    images = out_of_focus(images, chance)
    noise = chance.uniform(0.0, 0.05, n) * chance.flip(0.4, n)
    return (images + noise.view(shape) * chance.normal_field(*images.shape)).clamp(0, 1)


def dim(images: Tensor, chance: Chance) -> Tensor:
    """Some of the pictures [n, 3, H, W] by night, on a stage or against the light: dark, and in one colour at times."""
    n = len(images)
    colour = torch.where(chance.flip(COLOURED, n, 1), chance.log_uniform(0.3, 1.0, n, 3), 1.0)
    gain = torch.where(chance.flip(DIM, n, 1), chance.log_uniform(0.08, 0.6, n, 1) * colour, 1.0)
    return images * gain[:, :, None, None]


def restyled(images: Tensor, chance: Chance) -> Tensor:
    """Some of the pictures [n, 3, H, W] through random filters, which leave shapes and take colours and textures.

    As in "Robust and Generalizable Visual Representation Learning via Random Convolutions" (Xu et al., 2021): what is
    drawn has textures of its own, and a model should not go by them. Brightness and contrast stay.
    """
    index = some_of(images, chance, often=RESTYLED)
    n = len(index)
    if not n:
        return images
    some = images[index]
    filters = chance.normal(0.0, 27**-0.5, n, 3, 3, 3, 3).flatten(0, 1)  # one of 3 x 3 for each two channels
    padded = F.pad(some.flatten(0, 1)[None], (1, 1, 1, 1), mode="replicate")
    found = F.conv2d(padded, filters, groups=n).view_as(some)
    deviation, mean = torch.std_mean(found, dim=(2, 3), keepdim=True)
    wanted, middle = torch.std_mean(some, dim=(2, 3), keepdim=True)
    found = (found - mean) / deviation.clamp_min(1e-4) * wanted + middle
    share = chance.uniform(0.1, 0.7, n)[:, None, None, None]
    return images.index_copy(0, index, torch.lerp(some, found, share).clamp(0, 1))


def out_of_focus(images: Tensor, chance: Chance) -> Tensor:
    """Some of the pictures [n, 3, H, W] as a lens shows what is far from where it was focused."""
    index = some_of(images, chance, often=UNFOCUSED)
    if not len(index):
        return images
    radius = chance.log_uniform(0.012, 0.05, len(index)) * max(images.shape[-2:])
    return images.index_copy(0, index, blur_far(images[index], radius))


def some_of(images: Tensor, chance: Chance, *, often: float) -> Tensor:
    """Numbers of some of the pictures, drawn on the CPU, so that nobody waits to know how many there are."""
    draw = torch.rand(len(images), generator=chance.generator, device=chance.generator.device)
    return (draw < often).nonzero()[:, 0].to(images.device, non_blocking=True)
