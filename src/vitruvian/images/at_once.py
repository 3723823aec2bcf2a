"""Pictures that lie on a GPU: cut and normalised with the numbers of the CPU, and without the host waiting for it.

    boxes, taps and constants are worked out on the CPU ── sent ──▶ two weighted sums for all boxes of a picture

`crop_boxes` asks the device what it needs to know next, box by box; on a GPU each question empties its queue. Here
everything that must be known is known beforehand. It runs on any device. For people in 8-bit pictures there is a kernel
that takes far fewer calls, see `kernels/crop.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.crop import _Taps, _taps, crop_params
from vitruvian.images.normalize import ChannelValues, _per_channel

AT_ONCE = 1 << 26  # values between the two sums: more boxes than these hold are cut in turns
MOST_PINNED = 1 << 26  # bytes: torch keeps pinned memory for good, which is for pictures of the usual sizes


def sent(values: Tensor | NDArray[Any], device: torch.device) -> Tensor:
    """Return values of the CPU on a device; to a GPU they go through pinned memory, on the current stream.

    What is very large goes without, and this thread waits for it.
    """
    if device.type != "cuda":
        held = torch.from_numpy(np.array(values, order="C")) if isinstance(values, np.ndarray) else values
        return held.to(device)
    array = values.numpy() if isinstance(values, Tensor) else values
    if array.nbytes > MOST_PINNED:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
    # From a cache of torch's, which the memory goes back to once the copy is done.
    pinned = torch.empty(array.shape, dtype=_torch_dtype(array.dtype), pin_memory=True)
    np.copyto(pinned.numpy(), array)  # in this thread alone, and without Python's lock
    return pinned.to(device, non_blocking=True)  # torch keeps pinned memory until the copy is done


@functools.cache
def _torch_dtype(kind: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, kind)).dtype


def crop_at_once(pixels: Tensor, boxes_xywh: Tensor, output_hw: tuple[int, int], *, padding: float = 1.25) -> Tensor:
    """Cut windows around boxes out of a picture: what `crop_boxes` gives, for all boxes together.

    [C, H, W] on any device and boxes [N, 4] on the CPU -> float32 [N, C, h, w].
    """
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise InputError(f"pixels: expected one picture [C, H, W], got {list(pixels.shape)}. Crop one at a time.")
    height, width = output_hw
    channels, lines, across = pixels.shape
    center_xy, size_wh = crop_params(boxes_xywh.cpu(), output_hw, padding)
    enlarged = ((width - 1) / size_wh[:, 0]).minimum((height - 1) / size_wh[:, 1]) >= 1  # [N]
    columns = _taps(center_xy[:, 0], size_wh[:, 0], enlarged, count=width, source=across)
    rows = _taps(center_xy[:, 1], size_wh[:, 1], enlarged, count=height, source=lines)
    crops = torch.empty((len(enlarged), channels, height, width), dtype=torch.float32, device=pixels.device)
    step = max(1, AT_ONCE // (channels * lines * width))
    for start in range(0, len(crops), step):
        few = slice(start, start + step)
        crop_group(pixels, columns[few], rows[few], out=crops[few])
    return crops


def crop_group(pixels: Tensor, columns: Sequence[_Taps], rows: Sequence[_Taps], *, out: Tensor) -> None:
    """Cut some windows out of [C, H, W] into [N, C, h, w]: all columns in one sum, then all rows."""
    N, C, h, w = out.shape
    x, x_weights = joined(columns)  # [N, w, taps] each
    y, y_weights = joined(rows)  # [N, h, taps] each
    left, right, top, bottom = int(x.min()), int(x.max()) + 1, int(y.min()), int(y.max()) + 1
    part = pixels.detach()[:, top:bottom, left:right].permute(2, 0, 1)  # [W', C, R]
    table = torch.empty(part.shape, dtype=torch.float32, device=pixels.device).copy_(part)  # turned in one pass
    wide = bag(table.flatten(1), (x - left).flatten(0, 1), x_weights.flatten(0, 1))  # [N·w, C·R]
    table = wide.view(N, w, C, bottom - top).permute(0, 2, 3, 1).reshape(-1, w)  # [N·C·R, w]
    starts = (bottom - top) * torch.arange(N * C).view(N, C, 1, 1)  # [N, C, 1, 1]
    y = (y - top)[:, None] + starts  # [N, C, h, taps]
    y_weights = y_weights[:, None].expand(-1, C, -1, -1)  # [N, C, h, taps]
    out.copy_(bag(table, y.flatten(0, 2), y_weights.flatten(0, 2)).view(N, C, h, w))


def joined(taps: Sequence[_Taps]) -> tuple[Tensor, Tensor]:
    """Return lines of the picture and their weights, [N, n, taps] each; two taps become four where others have four."""
    most = max(one.indices.shape[1] for one in taps)
    lines, weights = [], []
    for one in taps:
        own = one.indices + one.lines.start if isinstance(one.lines, slice) else one.lines[one.indices]  # [n, taps]
        spare = most - own.shape[1]
        lines.append(torch.cat((own, own[:, :1].expand(-1, spare)), dim=1))
        weights.append(F.pad(one.weights, (0, spare)))
    return torch.stack(lines), torch.stack(weights)


def bag(table: Tensor, lines: Tensor, weights: Tensor) -> Tensor:
    """Sum lines of a table [R, M] as indices and weights [n, taps] of the CPU say: [n, M]."""
    device = table.device
    return F.embedding_bag(sent(lines, device), table, mode="sum", per_sample_weights=sent(weights, device))


def normalize_at_once(
    pixels: Tensor,
    *,
    scale: float | None,
    mean: ChannelValues | None,
    std: ChannelValues | None,
    in_place: bool = False,
) -> Tensor:
    """Return (pixels · scale − mean) / std as float32 [..., C, H, W]: what `rescale_and_normalize` gives.

    With `in_place` it is written over `pixels`, which must be float32.
    """
    divisor = _per_channel(1.0 if std is None else std, pixels.shape[-3], "std")  # [C] or [1]
    middle = _per_channel(0.0 if mean is None else mean, pixels.shape[-3], "mean")  # [C] or [1]
    if not bool((divisor > 0).all()):
        raise InputError(f"std: expected positive numbers, got {divisor.tolist()}. Use 1 for no scaling.")
    factor = torch.full_like(middle / divisor, 1.0 if scale is None else scale) / divisor  # [C] or [1]
    shift = -middle / divisor  # [C] or [1]
    constants = sent(torch.stack((factor, shift)).float(), pixels.device)[..., None, None]  # [2, C, 1, 1]
    result = pixels if in_place else torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device).copy_(pixels)
    return result.mul_(constants[0]).add_(constants[1])
