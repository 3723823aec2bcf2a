"""Keypoints from heatmaps: DARK/UDP decoding.

Find the maximum of each map, blur the map with a Gaussian, and take one Newton step on its logarithm. The blurred map
is needed at seven points only and is computed just there, so that the cost is one read of the maps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.ops.dispatch import HAS_TRITON, triton_jit, use_triton
from vitruvian.ops.triton_import import tl, triton
from vitruvian.tensor_cache import constant

_LOG_MIN, _LOG_MAX = 1e-3, 50.0
_CPU_GROUP, _GPU_GROUP = 64, 1024  # maps that are blurred as a whole at a time
_STENCIL = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))  # (dx, dy) of central differences
_MAX_TAPS = 11  # of the Gaussian, for the Triton version
_MAX_WIDTH = 1024  # of a map, for the Triton version


def decode_heatmaps(heatmaps: Tensor, *, kernel_size: int = 11) -> tuple[Tensor, Tensor]:
    """Return keypoints [B, J, 2] (x, y in heatmap pixels) and their scores [B, J] from heatmaps [B, J, H, W].

    A map without a value above 0 has its peak at (-1, -1) before refinement, as in the reference.

    Args:
        heatmaps: One map for each keypoint.
        kernel_size: Size of the Gaussian.
    """
    if kernel_size < 3 or kernel_size % 2 == 0:
        raise InputError(f"kernel_size: expected an odd number of at least 3, got {kernel_size}.")
    if decodes_without_sync(heatmaps, kernel_size=kernel_size):
        points = _decode_triton(heatmaps.contiguous(), kernel_size)  # [B, J, 3]
        return points[..., :2], points[..., 2]
    B, J, H, W = heatmaps.shape
    maps = heatmaps.float().reshape(B * J, H, W)
    peak, column, row = _find_peaks(maps)  # [B·J] each
    # For empty maps the reference refines around (-1, -1); outside of a map, values are those of the nearest pixel.
    x, y = torch.where(peak > 0, column, -1), torch.where(peak > 0, row, -1)  # [B·J] each
    kernel = _gaussian(kernel_size, heatmaps.device)
    around = _blur_at(maps, _stencil_points(x, y, (H, W)), kernel)  # [B·J, 7]
    scale = _peak_scale(maps, peak, around, kernel)  # [B·J]
    offset = _newton_step((around * scale[:, None]).clamp(_LOG_MIN, _LOG_MAX).log())  # [B·J, 2]
    xy = torch.stack((x, y), dim=-1).float() - offset
    return xy.view(B, J, 2), peak.view(B, J)


def decodes_without_sync(like: Tensor, *, kernel_size: int) -> bool:
    """Return whether `decode_heatmaps` runs as one kernel and does not synchronize the device.

    Args:
        like: A tensor with the device, the data type and at least the width of the heatmaps [..., W].
        kernel_size: Size of the Gaussian.
    """
    if like.requires_grad or kernel_size > _MAX_TAPS or not 1 <= like.shape[-1] <= _MAX_WIDTH:
        return False
    return use_triton("heatmap_peaks", like, dtypes=(torch.bfloat16, torch.float16, torch.float32))


def _find_peaks(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest value of each map [M, H, W], its column and its row: [M] each."""
    value, row = maps.amax(dim=2).max(dim=1)  # [M]; amax of each row first is several times faster than argmax
    line = maps[torch.arange(len(maps), device=maps.device), row]  # [M, W]
    return value, line.argmax(dim=1), row


def _gaussian_taps(size: int) -> list[float]:
    """Return a Gaussian of sum 1 at the distances 0, 1, …, its width following from its size as in OpenCV."""
    sigma = 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    half = [math.exp(-0.5 * (distance / sigma) ** 2) for distance in range(size // 2 + 1)]
    total = half[0] + 2 * sum(half[1:])
    return [value / total for value in half]


def _gaussian(size: int, device: torch.device) -> Tensor:
    """Return a 1-D Gaussian [size] of sum 1."""
    half = _gaussian_taps(size)
    return constant((*half[:0:-1], *half), device)


def _stencil_points(x: Tensor, y: Tensor, size_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return columns and rows [M, 7] of the stencil around points [M], clamped to the map."""
    steps = constant(_STENCIL, x.device)  # [7, 2]
    columns = (x[:, None] + steps[:, 0]).clamp(0, size_hw[1] - 1)
    rows = (y[:, None] + steps[:, 1]).clamp(0, size_hw[0] - 1)
    return columns, rows


def _blur_at(maps: Tensor, points: tuple[Tensor, Tensor], kernel: Tensor) -> Tensor:
    """Blur maps [M, H, W], zeros outside, at columns and rows [M, P]: [M, P]."""
    H, W = maps.shape[-2:]
    columns, rows = points
    half = len(kernel) // 2
    reach = torch.arange(-half - 2, half + 3, device=maps.device)  # covers the window of every stencil point
    across, down = columns[:, :1] + reach, rows[:, :1] + reach  # [M, S]
    inside = ((across >= 0) & (across < W))[:, None, :] & ((down >= 0) & (down < H))[:, :, None]  # [M, S, S]
    index = down.clamp(0, H - 1)[:, :, None] * W + across.clamp(0, W - 1)[:, None, :]  # [M, S, S]
    window = maps.flatten(1).gather(1, index.flatten(1)).view(index.shape) * inside  # [M, S, S]
    weights_x = _tap_weights(columns - columns[:, :1], kernel, len(reach))  # [M, P, S]
    weights_y = _tap_weights(rows - rows[:, :1], kernel, len(reach))  # [M, P, S]
    return (torch.bmm(weights_y, window) * weights_x).sum(-1)  # [M, P]


def _tap_weights(shift: Tensor, kernel: Tensor, span: int) -> Tensor:
    """Return a kernel, shifted by [M, P] from the center of an axis of `span` samples: [M, P, span]."""
    distance = torch.arange(span, device=shift.device) - span // 2 - shift[..., None] + len(kernel) // 2
    weights = kernel[distance.clamp(0, len(kernel) - 1)]
    return weights * ((distance >= 0) & (distance < len(kernel)))


def _peak_scale(maps: Tensor, peak_value: Tensor, around: Tensor, kernel: Tensor) -> Tensor:
    """Return the factor [M] that restores the maximum of each blurred map [H, W].

    The logarithm turns the factor into a constant, which differences do not depend on unless a value is clamped. The
    factor is at least 1 and at most the peak over the blurred value there: most maps need not be blurred as a whole.
    """
    highest = peak_value / around[:, 0].clamp(min=1e-12)
    settled = (around.amin(1) > _LOG_MIN) & (around.amax(1) * highest.clamp(min=1.0) < _LOG_MAX)
    unsettled = (~settled).nonzero().flatten()
    scale = torch.ones_like(peak_value)
    group = _GPU_GROUP if maps.is_cuda else _CPU_GROUP
    for start in range(0, len(unsettled), group):
        part = unsettled[start : start + group]
        blurred_peak = _blur(maps[part], kernel).flatten(1).amax(1)
        scale[part] = torch.where(blurred_peak > 0, peak_value[part] / blurred_peak.clamp(min=1e-30), 1.0)
    return scale


def _blur(maps: Tensor, kernel: Tensor) -> Tensor:
    """Blur maps [M, H, W] with a separable kernel, zeros outside."""
    half, M = len(kernel) // 2, len(maps)
    # Maps are channels of one image: depthwise convolutions are several times faster than a batch of M images.
    rows = F.conv2d(maps[None], kernel.expand(M, 1, 1, -1), padding=(0, half), groups=M)  # [1, M, H, W]
    return F.conv2d(rows, kernel[:, None].expand(M, 1, -1, 1), padding=(half, 0), groups=M)[0]  # [M, H, W]


def _newton_step(values: Tensor) -> Tensor:
    """Return the Newton step (dx, dy) [M, 2] to the extremum of a surface sampled on the stencil [M, 7]."""
    center, right, left, below, above, far, near = values.unbind(-1)
    eps = torch.finfo(values.dtype).eps
    slope_x, slope_y = (right - left) / 2, (below - above) / 2
    curve_x = right - 2 * center + left + eps
    curve_y = below - 2 * center + above + eps
    twist = (far - right - below + center + center - left - above + near) / 2
    determinant = curve_x * curve_y - twist * twist
    step_x = (curve_y * slope_x - twist * slope_y) / determinant
    step_y = (curve_x * slope_y - twist * slope_x) / determinant
    return torch.stack((step_x, step_y), dim=-1)


# ---------------------------------------------------------------------------------------------------------- Triton

if HAS_TRITON:
    _MIN, _MAX = tl.constexpr(_LOG_MIN), tl.constexpr(_LOG_MAX)


def _decode_triton(heatmaps: Tensor, kernel_size: int) -> Tensor:
    """Return x and y in heatmap pixels, and the score, of each of contiguous maps [B, J, H, W]: float32 [B, J, 3].

    A program whose map has to be blurred as a whole walks down its rows; each row, blurred horizontally, is added to
    the ten partial sums of the rows that are not complete yet.
    """
    B, J, H, W = heatmaps.shape
    out = torch.empty((B, J, 3), dtype=torch.float32, device=heatmaps.device)
    if not out.numel():
        return out
    columns = triton.next_power_of_2(W)
    taps = _gaussian_taps(kernel_size)
    taps += [0.0] * (_MAX_TAPS // 2 + 1 - len(taps))
    _decode_kernel[(B * J,)](
        heatmaps, out, H, W, *taps, chunk=2048, columns=columns, num_warps=8 if columns > 512 else 4
    )  # fmt: skip
    return out


@triton_jit
def _gaussian_at(distance, g0, g1, g2, g3, g4, g5):  # type: ignore[no-untyped-def]
    near = tl.where(distance == 0, g0, tl.where(distance == 1, g1, tl.where(distance == 2, g2, 0.0)))
    return tl.where(distance == 3, g3, tl.where(distance == 4, g4, tl.where(distance == 5, g5, near)))


@triton_jit
def _blurred(start, x, y, height, width, g0, g1, g2, g3, g4, g5):  # type: ignore[no-untyped-def]
    # The blurred map at a point, clamped to the map; zeros outside.
    step = tl.arange(0, 16) - 5
    across = tl.minimum(tl.maximum(x, 0), width - 1) + step
    down = tl.minimum(tl.maximum(y, 0), height - 1) + step
    weight = _gaussian_at(tl.abs(step), g0, g1, g2, g3, g4, g5)
    inside = ((down >= 0) & (down < height))[:, None] & ((across >= 0) & (across < width))[None, :]
    tile = tl.load(start + down[:, None] * width + across[None, :], mask=inside, other=0.0).to(tl.float32)
    return tl.sum(tl.sum(tile * weight[None, :], 1) * weight, 0)


@triton_jit
def _pair(line, c, distance: tl.constexpr, pixels):  # type: ignore[no-untyped-def]
    # The sum of the two pixels of a row at a distance; zeros outside.
    left = tl.load(line + c - distance, mask=(c >= distance) & (c - distance < pixels), other=0.0).to(tl.float32)
    right = tl.load(line + c + distance, mask=c + distance < pixels, other=0.0).to(tl.float32)
    return left + right


@triton_jit
def _clamped_log(value, scale):  # type: ignore[no-untyped-def]
    return tl.log(tl.minimum(tl.maximum(value * scale, _MIN), _MAX))


@triton_jit(do_not_specialize=["height", "width"])  # type: ignore[untyped-decorator]
def _decode_kernel(  # type: ignore[no-untyped-def]
    maps_ptr, out_ptr, height, width, g0, g1, g2, g3, g4, g5, chunk: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    pixels = height * width
    start = maps_ptr + number * pixels
    neg_inf = float("-inf")

    offset = tl.arange(0, chunk)
    best = tl.full([chunk], neg_inf, tl.float32)
    position = tl.zeros([chunk], tl.int32)
    for first in tl.range(0, pixels, chunk):
        at = first + offset
        value = tl.load(start + at, mask=at < pixels, other=neg_inf).to(tl.float32)
        position = tl.where(value > best, at, position)
        best = tl.maximum(best, value)
    peak = tl.max(best, 0)
    index = tl.min(tl.where(best == peak, position, pixels), 0)  # the first of several
    # A map without a value above 0 has its peak at (-1, -1), as in the reference.
    x = tl.where(peak > 0, index % width, -1)
    y = tl.where(peak > 0, index // width, -1)

    center = _blurred(start, x, y, height, width, g0, g1, g2, g3, g4, g5)
    right = _blurred(start, x + 1, y, height, width, g0, g1, g2, g3, g4, g5)
    left = _blurred(start, x - 1, y, height, width, g0, g1, g2, g3, g4, g5)
    below = _blurred(start, x, y + 1, height, width, g0, g1, g2, g3, g4, g5)
    above = _blurred(start, x, y - 1, height, width, g0, g1, g2, g3, g4, g5)
    far = _blurred(start, x + 1, y + 1, height, width, g0, g1, g2, g3, g4, g5)
    near = _blurred(start, x - 1, y - 1, height, width, g0, g1, g2, g3, g4, g5)

    # The factor that restores the maximum matters only where a value may be clamped.
    low = tl.minimum(tl.minimum(tl.minimum(right, left), tl.minimum(below, above)), tl.minimum(far, near))
    high = tl.maximum(tl.maximum(tl.maximum(right, left), tl.maximum(below, above)), tl.maximum(far, near))
    low, high = tl.minimum(low, center), tl.maximum(high, center)
    max_ratio = tl.maximum(peak / tl.maximum(center, 1e-12), 1.0)
    scale = tl.full([], 1.0, tl.float32)
    if (low <= _MIN) | (high * max_ratio >= _MAX):
        c = tl.arange(0, columns)
        a0 = tl.zeros([columns], tl.float32)  # partial sum of the row that this one completes
        a1 = tl.zeros([columns], tl.float32)
        a2 = tl.zeros([columns], tl.float32)
        a3 = tl.zeros([columns], tl.float32)
        a4 = tl.zeros([columns], tl.float32)
        a5 = tl.zeros([columns], tl.float32)
        a6 = tl.zeros([columns], tl.float32)
        a7 = tl.zeros([columns], tl.float32)
        a8 = tl.zeros([columns], tl.float32)
        a9 = tl.zeros([columns], tl.float32)
        top = tl.full([columns], neg_inf, tl.float32)
        for row in tl.range(0, height + 5):
            line = start + row * width
            valid = tl.where(row < height, width, 0)  # the last rows are below the map
            h = tl.load(line + c, mask=c < valid, other=0.0).to(tl.float32) * g0
            h += _pair(line, c, 1, valid) * g1
            h += _pair(line, c, 2, valid) * g2
            h += _pair(line, c, 3, valid) * g3
            h += _pair(line, c, 4, valid) * g4
            h += _pair(line, c, 5, valid) * g5
            done = a0 + h * g5
            a0 = a1 + h * g4
            a1 = a2 + h * g3
            a2 = a3 + h * g2
            a3 = a4 + h * g1
            a4 = a5 + h * g0
            a5 = a6 + h * g1
            a6 = a7 + h * g2
            a7 = a8 + h * g3
            a8 = a9 + h * g4
            a9 = h * g5
            top = tl.where(row >= 5, tl.maximum(top, done), top)
        highest = tl.max(tl.where(c < width, top, neg_inf), 0)
        scale = tl.where(highest > 0, peak / tl.maximum(highest, 1e-30), 1.0)

    center, right, left = _clamped_log(center, scale), _clamped_log(right, scale), _clamped_log(left, scale)
    below, above = _clamped_log(below, scale), _clamped_log(above, scale)
    far, near = _clamped_log(far, scale), _clamped_log(near, scale)
    eps = 1.1920928955078125e-07
    slope_x, slope_y = (right - left) / 2, (below - above) / 2
    curve_x = right - 2 * center + left + eps
    curve_y = below - 2 * center + above + eps
    twist = (far - right - below + center + center - left - above + near) / 2
    determinant = curve_x * curve_y - twist * twist
    target = out_ptr + number * 3
    tl.store(target, x - (curve_y * slope_x - twist * slope_y) / determinant)
    tl.store(target + 1, y - (curve_x * slope_y - twist * slope_x) / determinant)
    tl.store(target + 2, peak)
