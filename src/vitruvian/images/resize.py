"""Resize and pad pixel tensors [..., C, H, W], with the numbers of torchvision's v2 functional ops."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.errors import InputError, check_choice
from vitruvian.images.types import SizeHW

ResizeMode = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]

_MODES: tuple[ResizeMode, ...] = ("nearest", "nearest-exact", "bilinear", "bicubic")
_RESAMPLE_MODES: dict[int, ResizeMode] = {0: "nearest-exact", 2: "bilinear", 3: "bicubic"}
_RESAMPLE_UNSUPPORTED = {1: "LANCZOS", 4: "BOX", 5: "HAMMING"}


def resize(pixels: Tensor, size_hw: SizeHW, *, mode: ResizeMode = "bilinear", antialias: bool = True) -> Tensor:
    """Resample [..., C, H, W] to [..., C, h, w], keeping dtype and device.

    uint8 on the CPU uses torch's native 8-bit kernels (3× faster in channels-last memory format, as of
    `image_to_tensor`); elsewhere it is computed in float32, rounded half to even and clamped. The nearest modes copy
    values and take any dtype, also labels, and ignore `antialias`. "nearest-exact" samples at pixel centers, as PIL
    does; "nearest" is the older rule of torch. An image of this size is returned unchanged.
    """
    check_choice("mode", mode, _MODES)
    _check_planes(pixels)
    height, width = _check_size(size_hw, "size_hw")
    if tuple(pixels.shape[-2:]) == (height, width):
        return pixels
    if mode in ("nearest", "nearest-exact"):
        rows = _nearest_sources(pixels.shape[-2], height, mode=mode, device=pixels.device)
        columns = _nearest_sources(pixels.shape[-1], width, mode=mode, device=pixels.device)
        return pixels.index_select(-2, rows).index_select(-1, columns)  # [..., C, h, w]
    if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
        raise InputError(
            f'pixels: expected uint8 or floating point for mode "{mode}", got {pixels.dtype}. '
            'Resize labels and masks with "nearest-exact", or convert the image to float first.'
        )
    images = _as_batch(pixels)  # [N, C, H, W]
    # torch's 8-bit kernels are wrong for images one pixel wide (torch 2.13).
    eight_bit = images.dtype == torch.uint8 and images.is_cpu and width > 1
    native = eight_bit or images.dtype in (torch.float32, torch.float64)
    if not native:
        images = images.to(torch.float32)
    images = F.interpolate(images, (height, width), mode=mode, antialias=antialias, align_corners=False)  # [N, C, h, w]
    if not native:
        images = images.round_().clamp_(0, 255) if pixels.dtype == torch.uint8 else images
        images = images.to(pixels.dtype)
    return images.reshape(*pixels.shape[:-2], height, width)  # [..., C, h, w]


def resample_mode(resample: int) -> ResizeMode:
    """Convert a PIL resampling number, as in processor configs, to a mode of `resize`.

    0 becomes "nearest-exact": PIL's nearest samples at pixel centers, torch's plain "nearest" does not.
    """
    if resample in _RESAMPLE_MODES:
        return _RESAMPLE_MODES[int(resample)]
    name = _RESAMPLE_UNSUPPORTED.get(resample)
    raise InputError(
        "resample: expected 0 (nearest), 2 (bilinear) or 3 (bicubic), "
        f"got {resample!r}{f' ({name}), which torch cannot do' if name else ''}. "
        f"{'Use 3 (bicubic), the closest filter.' if name else 'Use one of these.'}"
    )


def fit_inside_hw(source_hw: SizeHW, limit_hw: SizeHW) -> SizeHW:
    """Return the largest size with the aspect ratio of `source_hw` inside `limit_hw`, rounded down."""
    height, width = _check_size(source_hw, "source_hw")
    limit_height, limit_width = _check_size(limit_hw, "limit_hw")
    scale = min(limit_height / height, limit_width / width)
    return max(1, int(height * scale)), max(1, int(width * scale))


def shortest_edge_hw(source_hw: SizeHW, shortest: int, longest: int | None = None) -> SizeHW:
    """Return the size whose short side is `shortest`, or less where the long side would pass `longest`.

    A source with this short side is not changed.
    """
    height, width = _check_size(source_hw, "source_hw")
    short, long = min(height, width), max(height, width)
    wanted: float = _check_positive(shortest, "shortest")
    if longest is not None and long / short * wanted > _check_positive(longest, "longest"):
        wanted = longest * float(short) / long
    edge = round(wanted)
    if edge == short:
        return height, width
    # The long side follows the unrounded short side, and is rounded down.
    other = max(1, int(wanted * long / short))
    edge = max(1, edge)
    return (edge, other) if height <= width else (other, edge)


def round_up_hw(size_hw: SizeHW, divisor: int) -> SizeHW:
    """Round a size up to multiples of `divisor`."""
    height, width = _check_size(size_hw, "size_hw")
    step = _check_positive(divisor, "divisor")
    return -(-height // step) * step, -(-width // step) * step


def center_on_canvas(pixels: Tensor, size_hw: SizeHW) -> Tensor:
    """Center [..., C, H, W] on a canvas [..., C, h, w]: pad smaller images with zeros, crop larger ones.

    For odd differences the extra row or column is padded or cropped at the bottom or right.
    """
    _check_planes(pixels)
    height, width = _check_size(size_hw, "size_hw")
    source_height, source_width = pixels.shape[-2:]
    top, left = max(0, source_height - height) // 2, max(0, source_width - width) // 2
    inside = pixels[..., top : top + height, left : left + width]
    if tuple(inside.shape[-2:]) == (height, width):
        return inside
    above, before = (height - inside.shape[-2]) // 2, (width - inside.shape[-1]) // 2
    canvas = pixels.new_zeros(*pixels.shape[:-2], height, width)  # [..., C, h, w]
    canvas[..., above : above + inside.shape[-2], before : before + inside.shape[-1]] = inside
    return canvas


def pad_bottom_right(pixels: Tensor, size_hw: SizeHW, value: float = 0) -> Tensor:
    """Pad [..., C, H, W] to [..., C, h, w] with `value` at the bottom and right."""
    _check_planes(pixels)
    height, width = _check_size(size_hw, "size_hw")
    source_height, source_width = pixels.shape[-2:]
    if height < source_height or width < source_width:
        raise InputError(
            f"size_hw: expected at least the image's {source_height}×{source_width}, got {height}×{width}. "
            "Resize the image first, or pad to a larger size."
        )
    if (height, width) == (source_height, source_width):
        return pixels
    canvas = pixels.new_full((*pixels.shape[:-2], height, width), value)  # [..., C, h, w]
    canvas[..., :source_height, :source_width] = pixels
    return canvas


def _as_batch(pixels: Tensor) -> Tensor:
    """View [..., C, H, W] as [N, C, H, W], in channels-last memory format where the memory has it."""
    channels, height, width = pixels.shape[-3:]
    last = pixels.movedim(-3, -1)  # [..., H, W, C]
    if channels > 1 and last.is_contiguous():
        # Unsqueezing a single image would leave a batch stride that hides its channels-last format.
        return last.reshape(-1, height, width, channels).permute(0, 3, 1, 2)  # [N, C, H, W]
    return pixels.reshape(-1, channels, height, width)  # [N, C, H, W]


def _nearest_sources(source: int, target: int, *, mode: str, device: torch.device) -> Tensor:
    """Return the source index that torch picks for each of `target` outputs: [target]."""
    indices = torch.arange(source, dtype=torch.float32, device=device).view(1, 1, source)
    return F.interpolate(indices, target, mode=mode).view(target).long()  # [target]


def _check_planes(pixels: Tensor) -> None:
    if pixels.ndim < 3 or 0 in pixels.shape[-3:]:
        raise InputError(
            f"pixels: expected shape [..., C, H, W] with at least one pixel, got {list(pixels.shape)}. "
            "Add a channel axis with unsqueeze(-3) where there is none."
        )


def _check_size(size_hw: SizeHW, name: str) -> SizeHW:
    if len(size_hw) != 2:
        raise InputError(f"{name}: expected (height, width), got {size_hw!r}. Pass two integers.")
    return _check_positive(size_hw[0], name), _check_positive(size_hw[1], name)


def _check_positive(value: int, name: str) -> int:
    number = int(value)
    if number != value or number < 1:
        raise InputError(f"{name}: expected positive integers, got {value!r}. Pass whole pixels.")
    return number
