"""Heatmaps ⇄ keypoints: DARK/UDP decoding, and the Gaussian targets that train it.

Decoding finds each map's maximum, blurs the map, and takes one Newton step on its logarithm. The blurred map is needed
in seven places only, so it is computed there alone: the cost is one read of the maps. On a GPU a kernel does it all.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.kernels import peaks
from vitruvian.ops.cache import constant

LOG_FLOOR, LOG_CEILING = 1e-3, 50.0
GROUP, GPU_GROUP = 64, 1024  # maps that are blurred whole at a time: what a cache holds, and what keeps a GPU busy
# The places of central differences around a peak, as (dx, dy).
STENCIL = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1))


def decode_heatmaps(heatmaps: Tensor, *, kernel_size: int = 11) -> tuple[Tensor, Tensor]:
    """Return keypoints [B, J, 2] (x, y in heatmap pixels) and their scores [B, J] from heatmaps [B, J, H, W].

    A map with no value above 0 gives the location (-1, -1) before refinement, as the reference does.
    """
    if kernel_size < 3 or kernel_size % 2 == 0:
        raise InputError(f"kernel_size: expected an odd number of at least 3, got {kernel_size}.")
    if peaks.finds_peaks(heatmaps, kernel_size=kernel_size):
        points = peaks.find_peaks(heatmaps, kernel_size=kernel_size)  # [B, J, 3]
        return points[..., :2], points[..., 2]
    B, J, H, W = heatmaps.shape
    flat = heatmaps.float().reshape(B * J, H, W)
    peak_value, column, row = find_peaks(flat)  # [B·J] each
    # The reference's refinement reads around (-1, -1) for empty maps: outside, values are those of the nearest pixel.
    found = peak_value > 0
    x, y = torch.where(found, column, -1), torch.where(found, row, -1)  # [B·J] each
    kernel = gaussian_kernel(kernel_size, heatmaps.device)
    around = blur_at(flat, stencil_points(x, y, (H, W)), kernel)  # [B·J, 7]
    scale = peak_scale(flat, peak_value, around, kernel)  # [B·J]
    offset = newton_step((around * scale[:, None]).clamp(LOG_FLOOR, LOG_CEILING).log())  # [B·J, 2]
    xy = torch.stack((x, y), dim=-1).float() - offset
    return xy.view(B, J, 2), peak_value.view(B, J)


def find_peaks(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest value of each map [M, H, W], its column and its row: [M] each.

    The maximum of each line comes first: torch finds values several times quicker than places.
    """
    value, row = maps.amax(dim=2).max(dim=1)  # [M]
    line = maps[torch.arange(len(maps), device=maps.device), row]  # [M, W]
    return value, line.argmax(dim=1), row


def gaussian_kernel(size: int, device: torch.device) -> Tensor:
    """A 1-D Gaussian [size] of sum 1, its width following from its size as in OpenCV."""
    sigma = 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    reach = torch.arange(size, device=device, dtype=torch.float32) - (size - 1) / 2
    weights = torch.exp(-0.5 * (reach / sigma).square())
    return weights / weights.sum()


def stencil_points(x: Tensor, y: Tensor, size_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Columns and rows [M, 7] of the stencil around points [M], held inside the map."""
    steps = torch.tensor(STENCIL, device=x.device)  # [7, 2]
    columns = (x[:, None] + steps[:, 0]).clamp(0, size_hw[1] - 1)
    rows = (y[:, None] + steps[:, 1]).clamp(0, size_hw[0] - 1)
    return columns, rows


def blur_at(maps: Tensor, points: tuple[Tensor, Tensor], kernel: Tensor) -> Tensor:
    """Blur maps [M, H, W] (zeros outside) at a few points each, given as columns and rows [M, P]: [M, P]."""
    H, W = maps.shape[-2:]
    columns, rows = points
    half = len(kernel) // 2
    reach = torch.arange(-half - 2, half + 3, device=maps.device)  # holds every stencil point's window
    across, down = columns[:, :1] + reach, rows[:, :1] + reach  # [M, S]
    inside = ((across >= 0) & (across < W))[:, None, :] & ((down >= 0) & (down < H))[:, :, None]  # [M, S, S]
    index = down.clamp(0, H - 1)[:, :, None] * W + across.clamp(0, W - 1)[:, None, :]  # [M, S, S]
    window = maps.flatten(1).gather(1, index.flatten(1)).view(index.shape) * inside  # [M, S, S]
    weights_x = tap_weights(columns - columns[:, :1], kernel, len(reach))  # [M, P, S]
    weights_y = tap_weights(rows - rows[:, :1], kernel, len(reach))  # [M, P, S]
    return (torch.bmm(weights_y, window) * weights_x).sum(-1)  # [M, P]


def tap_weights(shift: Tensor, kernel: Tensor, span: int) -> Tensor:
    """Place a kernel, moved by `shift` [M, P] from the middle, on an axis of `span` samples: [M, P, span]."""
    distance = torch.arange(span, device=shift.device) - span // 2 - shift[..., None] + len(kernel) // 2
    weights = kernel[distance.clamp(0, len(kernel) - 1)]
    return weights * ((distance >= 0) & (distance < len(kernel)))


def peak_scale(maps: Tensor, peak_value: Tensor, around: Tensor, kernel: Tensor) -> Tensor:
    """Return the factor [M] that gives each blurred map [H, W] the maximum it had before.

    The logarithm turns the factor into a constant that differences do not see, unless a value meets the clamp. The
    factor is at least 1 and at most peak / blurred value at the peak, which settles most maps without blurring them.
    """
    highest = peak_value / around[:, 0].clamp(min=1e-12)
    settled = (around.amin(1) > LOG_FLOOR) & (around.amax(1) * highest.clamp(min=1.0) < LOG_CEILING)
    # Where even the largest possible factor leaves every value under the floor, all clamp to it: no step either way.
    unsettled = (~settled).nonzero().flatten()
    scale = torch.ones_like(peak_value)
    group = GPU_GROUP if maps.is_cuda else GROUP
    for start in range(0, len(unsettled), group):
        part = unsettled[start : start + group]
        blurred_peak = blur(maps[part], kernel).flatten(1).amax(1)
        scale[part] = torch.where(blurred_peak > 0, peak_value[part] / blurred_peak.clamp(min=1e-30), 1.0)
    return scale


def blur(maps: Tensor, kernel: Tensor) -> Tensor:
    """Blur maps [M, H, W] with a separable kernel, zeros outside: [M, H, W]."""
    half, M = len(kernel) // 2, len(maps)
    # Maps as channels of one picture: torch's depthwise convolutions are several times quicker than M single pictures.
    rows = F.conv2d(maps[None], kernel.expand(M, 1, 1, -1), padding=(0, half), groups=M)  # [1, M, H, W]
    return F.conv2d(rows, kernel[:, None].expand(M, 1, -1, 1), padding=(half, 0), groups=M)[0]  # [M, H, W]


def newton_step(values: Tensor) -> Tensor:
    """Return the step (dx, dy) [M, 2] to the extremum of a surface known on the stencil [M, 7]."""
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


def draw_heatmaps(
    points_xy: Tensor, visible: Tensor, *, size_hw: tuple[int, int], sigma: float
) -> tuple[Tensor, Tensor]:
    """Draw UDP targets: a Gaussian of height 1 around each point, cut off at three sigma.

    Args:
        points_xy: Points in heatmap pixels [N, J, 2].
        visible: Which of them to draw [N, J].
        size_hw: Height and width of the heatmaps.
        sigma: Width of the Gaussian in heatmap pixels.

    Returns:
        Heatmaps [N, J, H, W] and weights [N, J]: 0 where a point is not visible or too far outside.
    """
    height, width = size_hw
    radius = int(sigma * 3)
    middle = (points_xy + 0.5).long()  # [N, J, 2]
    limit = constant((width, height), points_xy.device)
    outside = ((middle - radius >= limit) | (middle + radius + 1 < 0)).any(-1)  # [N, J]
    weights = visible.bool() & ~outside  # [N, J]
    profiles = []
    for axis, side in ((0, width), (1, height)):
        places = torch.arange(side, device=points_xy.device)
        distance = places - points_xy[..., axis, None]  # [N, J, side]
        near = (places - middle[..., axis, None]).abs() <= radius
        profiles.append(torch.exp(-distance.square() / (2 * sigma**2)) * near)
    across, down = profiles
    return torch.einsum("njy,njx->njyx", down * weights[..., None], across), weights.float()
