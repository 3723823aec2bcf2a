"""Crop boxes out of an image, resample them to one size and normalize them, as Sapiens2 was trained.

    crop window: the box × padding, its short side extended to the aspect ratio of the output
    output pixel u samples column u · window_w / (w − 1) + cx − window_w / 2; zeros outside the image
    two taps an axis (bilinear) where a crop is shrunk, four (bicubic) where it is enlarged

The torch version is separable: each axis is a weighted sum of a few rows or columns, which `embedding_bag` computes on
every device. The Triton version cuts all boxes of an 8-bit RGB image in one launch. Sample positions are computed on
the CPU, so no version synchronizes the device.
"""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.cuda.pinned_copy import pinned_copy
from vitruvian.errors import InputError
from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.pixel_normalization import ChannelValues, channel_constants, rescale_and_normalize
from vitruvian.ops.triton_import import tl, triton
from vitruvian.tensor_cache import constant

Float32Array = NDArray[np.float32]
ArrayT = TypeVar("ArrayT", Tensor, Float32Array)

_CUBIC = -0.75  # the coefficient of torch's bicubic filter


def crop_boxes(
    pixels: Tensor,
    boxes_xywh: Tensor | Float32Array,
    output_hw: tuple[int, int],
    *,
    padding: float = 1.25,
    scale: float | None = None,
    mean: ChannelValues | None = None,
    std: ChannelValues | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Crop boxes [N, 4] out of an image [C, H, W] and normalize them: -> [N, C, h, w].

    Args:
        pixels: The image: uint8 or floating point, on any device. No gradient flows back.
        boxes_xywh: Boxes, best on the CPU; they may lie partly or wholly outside of the image.
        output_hw: Size of the crops.
        padding: What the sides of a box are multiplied by.
        scale, mean, std: As for `rescale_and_normalize`; by default the crops have the values of the image.
        dtype: Data type of the result.
    """
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise InputError(f"pixels: expected one image [C, H, W], got {list(pixels.shape)}. Crop one at a time.")
    boxes = boxes_xywh.detach().float().cpu().numpy() if isinstance(boxes_xywh, Tensor) else boxes_xywh
    positions = sample_positions(boxes, output_hw, padding=padding)  # [N, 1 + w + h]
    is_rgb8 = pixels.dtype == torch.uint8 and pixels.shape[0] == 3
    if is_rgb8 and use_triton("crop", pixels, dtypes=(torch.uint8,)):
        constants = channel_constants(3, scale, mean, std)  # [2, 3]
        return _crop_triton(pixels, pinned_copy(positions, pixels.device), output_hw, constants, dtype)
    crops = _crop_torch(pixels.detach(), torch.from_numpy(positions), output_hw)  # [N, C, h, w]
    if any(value is not None for value in (scale, mean, std)):
        crops = rescale_and_normalize(crops, scale=scale, mean=mean, std=std, out=crops)
    return crops.to(dtype)


# -------------------------------------------------------------------------------------------------------- geometry


def crop_windows(boxes_xywh: Tensor, output_hw: tuple[int, int], padding: float = 1.25) -> tuple[Tensor, Tensor]:
    """Return the crop windows of boxes [N, 4]: centers [N, 2] (x, y) and sizes [N, 2] (width, height) in pixels."""
    center_xy, size_wh = crop_windows_numpy(boxes_xywh.detach().float().cpu().numpy(), output_hw, padding=padding)
    return torch.from_numpy(center_xy).to(boxes_xywh.device), torch.from_numpy(size_wh).to(boxes_xywh.device)


def crop_windows_numpy(
    boxes_xywh: Float32Array, output_hw: tuple[int, int], *, padding: float = 1.25
) -> tuple[Float32Array, Float32Array]:
    """Return what `crop_windows` returns, as NumPy arrays and without any call of torch.

    A call of torch holds the GIL for microseconds even for four numbers, which threads that feed a GPU compete for.
    """
    boxes = np.asarray(boxes_xywh, np.float32)
    _check_boxes(boxes)
    height, width = output_hw
    if height < 1 or width < 1:
        raise InputError(f"output_hw: expected positive height and width, got {output_hw}. Pass the model's size.")
    if not padding > 0:
        raise InputError(f"padding: expected a positive factor, got {padding}. Use 1 for no padding.")
    center_xy: Float32Array = boxes[:, :2] + np.float32(0.5) * boxes[:, 2:]  # [N, 2]
    box_width, box_height = (boxes[:, 2:] * np.float32(padding)).T  # [N], [N]
    aspect = np.float32(width / height)
    sides = np.maximum(box_width, box_height * aspect), np.maximum(box_height, box_width / aspect)
    return center_xy, np.stack(sides, axis=1)  # [N, 2]


def crop_to_image_xy(xy: ArrayT, windows: tuple[ArrayT, ArrayT], grid_hw: tuple[int, int]) -> ArrayT:
    """Transform points [N, J, 2] from pixels of a grid over each crop, such as its heatmaps, to pixels of the image.

    Args:
        xy: The points: tensors, or NumPy arrays, which no call of torch touches.
        windows: What `crop_windows` or `crop_windows_numpy` returns for the N boxes.
        grid_hw: Size of the grid. Its first and last pixels are on the edges of the crop window.
    """
    center_xy, size_wh = windows
    return (xy / _last_xy(xy, grid_hw) - 0.5) * size_wh[:, None] + center_xy[:, None]


def image_to_crop_xy(xy: ArrayT, windows: tuple[ArrayT, ArrayT], grid_hw: tuple[int, int]) -> ArrayT:
    """Invert `crop_to_image_xy`."""
    center_xy, size_wh = windows
    return ((xy - center_xy[:, None]) / size_wh[:, None] + 0.5) * _last_xy(xy, grid_hw)


def _last_xy(like: ArrayT, grid_hw: tuple[int, int]) -> ArrayT:
    """Return x and y of the last pixel of a grid [2]."""
    last = (grid_hw[1] - 1, grid_hw[0] - 1)
    return constant(last, like.device) if isinstance(like, Tensor) else np.array(last, np.float32)


def sample_positions(boxes_xywh: Float32Array, output_hw: tuple[int, int], *, padding: float = 1.25) -> Float32Array:
    """Return the sample positions of crops of boxes [N, 4]: [N, 1 + w + h].

    A row is 1 where the crop is enlarged and 0 where not, then x of each output column, then y of each output row.
    """
    center_xy, size_wh = crop_windows_numpy(boxes_xywh, output_hw, padding=padding)
    height, width = output_hw
    table: Float32Array = np.empty((len(size_wh), 1 + width + height), np.float32)
    zoom = np.float32(1) / size_wh * np.array([width - 1, height - 1], np.float32)  # [N, 2]
    table[:, 0] = zoom.min(axis=1) >= 1
    for axis, (start, count) in enumerate(((1, width), (1 + width, height))):
        table[:, start : start + count] = center_xy[:, axis, None] + _relative_positions(count) * size_wh[:, axis, None]
    return table


@functools.lru_cache(maxsize=16)
def _relative_positions(count: int) -> Float32Array:
    """Relative positions of `count` samples in a window, from −½ to ½: [n]."""
    if count == 1:
        return np.zeros(1, np.float32)
    return np.arange(count, dtype=np.float32) / np.float32(count - 1) - np.float32(0.5)


def _check_boxes(boxes: Float32Array) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise InputError(f"boxes_xywh: expected shape [N, 4], got {list(boxes.shape)}. Pass x, y, width, height.")
    wrong = ~(np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] > 0).all(axis=1))  # [N]
    if wrong.any():
        first = int(wrong.argmax())
        raise InputError(
            f"boxes_xywh: expected finite boxes with positive width and height, got {boxes[first].tolist()} "
            f"at index {first}. Drop it, or check that boxes are x, y, width, height."
        )


# ----------------------------------------------------------------------------------------------------------- torch


class _Taps(NamedTuple):
    """What the outputs of one axis of one crop read, on the CPU."""

    lines: slice | Tensor  # the source rows or columns that are read
    indices: Tensor  # [n, taps] into `lines`
    weights: Tensor  # [n, taps], zero for taps outside of the image


def _crop_torch(pixels: Tensor, positions: Tensor, output_hw: tuple[int, int]) -> Tensor:
    """Crop [C, H, W] at sample positions [N, 1 + w + h]: -> float32 [N, C, h, w], columns first, then rows."""
    height, width = output_hw
    channels = len(pixels)
    enlarged = positions[:, 0] > 0  # [N]
    columns = _taps(positions[:, 1 : 1 + width], enlarged, source=pixels.shape[2])
    rows = _taps(positions[:, 1 + width :], enlarged, source=pixels.shape[1])
    crops = torch.empty((len(positions), channels, height, width), dtype=torch.float32, device=pixels.device)
    # A few large operations for each crop: many small ones are slower where processes share the cores.
    for crop, row, column in zip(crops, rows, columns, strict=True):
        source = pixels[:, _to_device(row.lines, pixels)][:, :, _to_device(column.lines, pixels)]  # [C, H', W']
        source = source.permute(2, 0, 1)  # [W', C, H']
        wide = _weighted_sum(source.flatten(1), column.indices, column.weights)  # [w, C·H']
        offsets = source.shape[2] * torch.arange(channels)[:, None, None]  # [C, 1, 1]
        indices = (row.indices + offsets).flatten(0, 1)  # [C·h, taps]
        crop.copy_(_weighted_sum(wide.T, indices, row.weights.repeat(channels, 1)).view_as(crop))  # [C, h, w]
    return crops


def _taps(positions: Tensor, enlarged: Tensor, *, source: int) -> list[_Taps]:
    """Return the taps of one axis for positions [N, n] in `source` rows or columns; `enlarged` [N] has four."""
    floors = positions.floor()
    fractions = positions - floors
    weights = torch.where(enlarged[:, None, None], _cubic_weights(fractions), _linear_weights(fractions))  # [N, n, 4]
    lines = floors[..., None] + torch.arange(-1.0, 3.0)  # [N, n, 4]
    weights = weights * ((lines >= 0) & (lines <= source - 1))
    indices = lines.clamp(0, source - 1).long()
    return [
        _needed_lines(index, weight) if cubic else _needed_lines(index[:, 1:3], weight[:, 1:3])
        for index, weight, cubic in zip(indices, weights, enlarged.tolist(), strict=True)
    ]


def _needed_lines(indices: Tensor, weights: Tensor) -> _Taps:
    """Read the whole span of indices [n, taps] where most of it is used, and single lines where a crop shrinks far."""
    first, last = int(indices[0, 0]), int(indices[-1, -1])
    if last - first < indices.numel():
        return _Taps(slice(first, last + 1), indices - first, weights)
    lines, inverse = torch.unique(indices, return_inverse=True)
    return _Taps(lines, inverse, weights)


def _linear_weights(fraction: Tensor) -> Tensor:
    zero = torch.zeros_like(fraction)
    return torch.stack([zero, 1 - fraction, fraction, zero], dim=-1)  # [N, n, 4]


def _cubic_weights(fraction: Tensor) -> Tensor:
    """Return the weights of the taps at distances 1 + t, t, 1 − t and 2 − t: [N, n] -> [N, n, 4]."""

    def near(t: Tensor) -> Tensor:
        return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1

    def far(t: Tensor) -> Tensor:
        return ((t - 5) * t + 8) * t * _CUBIC - 4 * _CUBIC

    return torch.stack([far(1 + fraction), near(fraction), near(1 - fraction), far(2 - fraction)], dim=-1)  # [N, n, 4]


def _weighted_sum(lines: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Sum lines [R, M] of any dtype by CPU indices and weights [n, taps]: -> float32 [n, M]."""
    device = lines.device
    table = torch.empty(lines.shape, dtype=torch.float32, device=device).copy_(lines)  # transposes and converts
    indices, weights = pinned_copy(indices, device), pinned_copy(weights, device)
    return F.embedding_bag(indices, table, mode="sum", per_sample_weights=weights)  # [n, M]


def _to_device(lines: slice | Tensor, pixels: Tensor) -> slice | Tensor:
    return lines if isinstance(lines, slice) else pinned_copy(lines, pixels.device)


# ---------------------------------------------------------------------------------------------------------- Triton

_BLOCK_ROWS, _BLOCK_COLUMNS, _NUM_WARPS = 2, 128, 4
_COMPILE_LOCK = threading.Lock()  # without it each of several threads would compile the kernel


def _crop_triton(
    pixels: Tensor, positions: Tensor, output_hw: tuple[int, int], constants: Tensor, dtype: torch.dtype
) -> Tensor:
    """Crop uint8 [3, H, W] of any strides at positions [N, 1 + w + h], times factors plus offsets [2, 3]."""
    height, width = output_hw
    out = torch.empty((len(positions), 3, height, width), dtype=dtype, device=pixels.device)  # [N, 3, h, w]
    if not len(positions):
        return out
    grid = (triton.cdiv(width, _BLOCK_COLUMNS), triton.cdiv(height, _BLOCK_ROWS), len(positions))
    with _COMPILE_LOCK:
        _crop_kernel[grid](
            pixels, positions, out, pixels.shape[1], pixels.shape[2], *pixels.stride(), height, width,
            *constants.flatten().tolist(),
            block_rows=_BLOCK_ROWS, block_columns=_BLOCK_COLUMNS, num_warps=_NUM_WARPS,
        )  # fmt: skip
    return out


@triton_jit
def _cubic_near(t):  # type: ignore[no-untyped-def]
    return ((-0.75 + 2) * t - (-0.75 + 3)) * t * t + 1


@triton_jit
def _cubic_far(t):  # type: ignore[no-untyped-def]
    return ((t - 5) * t + 8) * t * -0.75 + 4 * 0.75


@triton_jit
def _tap(position, number: tl.constexpr, cubic, size):  # type: ignore[no-untyped-def]
    # The row or column that tap `number` of four reads, and its weight: zero outside of the image.
    floor = tl.floor(position)
    t = position - floor
    if number == 0:
        weight = tl.where(cubic, _cubic_far(1 + t), 0.0)
    elif number == 1:
        weight = tl.where(cubic, _cubic_near(t), 1 - t)
    elif number == 2:
        weight = tl.where(cubic, _cubic_near(1 - t), t)
    else:
        weight = tl.where(cubic, _cubic_far(2 - t), 0.0)
    line = floor + (number - 1)
    weight = tl.where((line >= 0) & (line <= size - 1), weight, 0.0)
    # Clamped as a float: positions may exceed the range of integers.
    return tl.minimum(tl.maximum(line, 0.0), size - 1).to(tl.int32), weight


# Images come in all sizes: no specialization for sizes that 16 divides.
@triton_jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["image_height", "image_width", "channel_stride", "row_stride", "column_stride"]
)
def _crop_kernel(  # type: ignore[no-untyped-def]
    pixels_ptr, positions_ptr, out_ptr, image_height, image_width, channel_stride, row_stride, column_stride,
    height, width, f0, f1, f2, s0, s1, s2,
    block_rows: tl.constexpr, block_columns: tl.constexpr,
):  # fmt: skip
    crop = tl.program_id(2).to(tl.int64)
    u = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    v = tl.program_id(1) * block_rows + tl.arange(0, block_rows)
    row = positions_ptr + crop * (1 + width + height)
    cubic = tl.load(row) > 0
    x = tl.load(row + 1 + u, mask=u < width, other=0.0)
    y = tl.load(row + 1 + width + v, mask=v < height, other=0.0)
    sum0 = tl.zeros([block_rows, block_columns], tl.float32)
    sum1 = tl.zeros([block_rows, block_columns], tl.float32)
    sum2 = tl.zeros([block_rows, block_columns], tl.float32)
    for i in tl.static_range(4):
        line, line_weight = _tap(y, i, cubic, image_height)
        part0 = tl.zeros([block_rows, block_columns], tl.float32)
        part1 = tl.zeros([block_rows, block_columns], tl.float32)
        part2 = tl.zeros([block_rows, block_columns], tl.float32)
        for j in tl.static_range(4):
            column, column_weight = _tap(x, j, cubic, image_width)
            at = pixels_ptr + line[:, None] * row_stride + column[None, :] * column_stride
            used = (line_weight != 0)[:, None] & (column_weight != 0)[None, :]
            part0 += tl.load(at, mask=used, other=0).to(tl.float32) * column_weight[None, :]
            part1 += tl.load(at + channel_stride, mask=used, other=0).to(tl.float32) * column_weight[None, :]
            part2 += tl.load(at + 2 * channel_stride, mask=used, other=0).to(tl.float32) * column_weight[None, :]
        sum0 += part0 * line_weight[:, None]
        sum1 += part1 * line_weight[:, None]
        sum2 += part2 * line_weight[:, None]
    plane = height * width
    to = out_ptr + crop * 3 * plane + v[:, None] * width + u[None, :]
    inside = (v < height)[:, None] & (u < width)[None, :]
    dtype = out_ptr.dtype.element_ty
    tl.store(to, (sum0 * f0 + s0).to(dtype), mask=inside)
    tl.store(to + plane, (sum1 * f1 + s1).to(dtype), mask=inside)
    tl.store(to + 2 * plane, (sum2 * f2 + s2).to(dtype), mask=inside)
