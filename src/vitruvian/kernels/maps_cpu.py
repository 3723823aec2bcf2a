"""A chain of convolutions, each followed by instance norm and SiLU, on the CPU: maps [h, w, C] in few passes.

The statistics of a map are gathered while it is written; its norm and SiLU happen while the next stage reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels import linear_cpu
from vitruvian.kernels.lanes_cpu import cut, run_parts
from vitruvian.kernels.linear_cpu import PackedLinear
from vitruvian.kernels.winograd import Winograd

WIDE = 1024  # channels of a map that is cut into as many pixels as linear layers take rows
FEWEST_CHANNELS = 256  # below, the sums around Winograd's products cost more than these save


@dataclass(frozen=True)
class Stage:
    """A convolution before its norm. `shuffles`: its channels C'·4 become C' on a grid of twice the size."""

    weight: Tensor  # [C', C, k, k], transposed: [C, C', k, k]
    bias: Tensor | None = None
    padding: int = 0
    stride: int = 1
    transposed: bool = False
    shuffles: bool = False

    @property
    def pointwise(self) -> bool:
        """Whether each pixel of the result needs one pixel."""
        one = tuple(self.weight.shape[2:]) == (1, 1) and self.stride == 1 and self.padding == 0
        return one and not (self.transposed or self.shuffles)

    @property
    def suits_winograd(self) -> bool:
        """Whether Winograd's filters are made for it and pay."""
        kernel, form = tuple(self.weight.shape[2:]), (self.stride, self.padding)
        fits = (kernel, form) == (((4, 4), (2, 1)) if self.transposed else ((3, 3), (1, 1)))
        return fits and min(self.weight.shape[:2]) >= FEWEST_CHANNELS


@dataclass(frozen=True)
class Moments:
    """Number of pixels, mean and summed squared distance from it of the channels of a part of a map."""

    count: int
    mean: Tensor  # [C]
    squares: Tensor  # [C]

    @classmethod
    def of(cls, part: Tensor) -> Moments:
        """Look at [h', w', C]."""
        mean = part.mean(dim=(0, 1))
        return cls(part.shape[0] * part.shape[1], mean, (part - mean).square_().sum(dim=(0, 1)))


def norm_of(parts: list[Moments], eps: float) -> tuple[Tensor, Tensor]:
    """Return the factor and the summand [C] that normalise a map made of parts."""
    total = sum(part.count for part in parts)
    mean = torch.stack([part.mean * (part.count / total) for part in parts]).sum(0)
    spread = torch.stack([part.squares + (part.mean - mean).square() * part.count for part in parts]).sum(0)
    factor = torch.rsqrt(spread / total + eps)
    return factor, -mean * factor


@dataclass(frozen=True)
class RawMap:
    """A map [h, w, C] whose norm and SiLU are still to come, if it has them."""

    values: Tensor
    norm: tuple[Tensor, Tensor] | None = None

    def read(self, rows: slice) -> Tensor:
        """Return rows of the finished map."""
        part = self.values[rows]
        if self.norm is None:
            return part
        factor, summand = self.norm
        return F.silu(torch.addcmul(summand, part, factor), inplace=True)

    def write(self, target: Tensor) -> None:
        """Write the finished map [h, w, C]."""

        def write(rows: slice) -> None:
            target[rows] = self.read(rows)

        run_parts(write, row_chunks(self.values))


def row_chunks(values: Tensor) -> list[slice]:
    """Cut a map [h, w, C] into rows that fit the cache: the fewer channels, the more pixels."""
    _, width, channels = values.shape
    pixels = linear_cpu.ROWS * max(1, WIDE // channels)
    return cut(len(values), max(1, pixels // width))


class MapChain:
    """Stages and, at the end, a 1×1 convolution with bias to planes [K, H, W]."""

    def __init__(self, stages: list[Stage], weight: Tensor, bias: Tensor | None, *, eps: float = 1e-5) -> None:
        self.stages, self.eps = stages, eps
        self.weight = weight.detach().flatten(1)  # [K, C]
        self.bias = weight.new_zeros(len(weight), 1) if bias is None else bias.detach()[:, None]  # [K, 1]
        self.ready = [prepare(stage) for stage in stages]

    def __call__(self, values: Tensor) -> Tensor:
        """Map [h, w, C] to planes [K, H, W], in float32 whatever autocast says."""
        with torch.autocast("cpu", enabled=False):
            return self.predict(self.run_stages(RawMap(values.float())))

    def run_stages(self, raw: RawMap) -> RawMap:
        """Run all convolutions but the last: [h, w, C] to [H, W, C']."""
        for stage, ready in zip(self.stages, self.ready, strict=True):
            if isinstance(ready, PackedLinear):
                out, seen = run_pointwise(ready, raw)
            elif isinstance(ready, Winograd):
                out, seen = run_winograd(ready, raw)
            else:
                out, seen = run_direct(stage, ready, raw)
            raw = RawMap(out, norm_of(seen, self.eps))
        return raw

    def predict(self, raw: RawMap) -> Tensor:
        """Run the last convolution: [H, W, C] to planes [K, H, W]."""
        height, width = raw.values.shape[:2]
        planes = self.weight.new_empty(len(self.weight), height, width)

        def run(rows: slice) -> None:
            pixels = raw.read(rows).flatten(0, 1)  # [P, C]
            planes[:, rows] = torch.addmm(self.bias, self.weight, pixels.t()).view(len(planes), -1, width)

        run_parts(run, row_chunks(raw.values))
        return planes


@torch.no_grad()
def prepare(stage: Stage) -> PackedLinear | Winograd | Tensor:
    """Lay a stage's weight out for the way it is run. A bias without a shuffle is left out: the norm takes it away."""
    if stage.pointwise:
        return PackedLinear(stage.weight.flatten(1))
    if stage.suits_winograd:
        bias = stage.bias if stage.shuffles else None
        return Winograd(stage.weight, bias, transposed=stage.transposed, shuffles=stage.shuffles)
    return stage.weight.detach().contiguous(memory_format=torch.channels_last)


def run_pointwise(linear: PackedLinear, raw: RawMap) -> tuple[Tensor, list[Moments]]:
    """Run a 1×1 convolution: [h, w, C] to [h, w, C']."""
    out = torch.empty(*raw.values.shape[:2], linear.width)

    def run(rows: slice) -> Moments:
        part = linear(raw.read(rows))
        out[rows] = part
        return Moments.of(part)

    return out, run_parts(run, row_chunks(raw.values))


def run_winograd(conv: Winograd, raw: RawMap) -> tuple[Tensor, list[Moments]]:
    """Run a convolution as fewer products: [h, w, C] to [s·h, s·w, C']."""
    height, width, channels = raw.values.shape
    whole, inside = conv.padded((height, width), channels)
    raw.write(inside)
    return conv(whole, (height, width), Moments.of)


def run_direct(stage: Stage, weight: Tensor, raw: RawMap) -> tuple[Tensor, list[Moments]]:
    """Run a convolution of any form: [h, w, C] to [s·h, s·w, C']."""
    if raw.norm is None:
        values = raw.values
    else:
        values = torch.empty_like(raw.values, memory_format=torch.contiguous_format)
        raw.write(values)
    x = values.permute(2, 0, 1)[None]  # [1, C, h, w], channels last
    function = F.conv_transpose2d if stage.transposed else F.conv2d
    bias = stage.bias.detach() if stage.shuffles and stage.bias is not None else None
    out = function(x, weight, bias, stride=stage.stride, padding=stage.padding)[0].permute(1, 2, 0)  # [h, w, C'·s²]
    if stage.shuffles:
        height, width = out.shape[:2]
        split = out.reshape(height, width, -1, 2, 2).permute(0, 3, 1, 4, 2)  # [h, 2, w, 2, C']
        out = split.reshape(2 * height, 2 * width, -1)
    return out, run_parts(lambda rows: Moments.of(out[rows]), row_chunks(out))
