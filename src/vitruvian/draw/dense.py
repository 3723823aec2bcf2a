"""Dense predictions as images: normals, depth, patch features and mattes."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw.canvas import NEUTRAL, WHITE, image_hw
from vitruvian.draw.palettes import turbo_map
from vitruvian.draw.text import draw_text, line_height, text_size, text_width
from vitruvian.errors import InputError
from vitruvian.images.types import Float32Array, RgbImage, SizeHW

_AXES: Final[dict[str, tuple[float, float, float]]] = {"opencv": (1.0, -1.0, -1.0), "opengl": (1.0, 1.0, 1.0)}
_BAND = 2**16  # pixels of one step: fits into the cache
_SAMPLE = 2**19  # pixels that near and far are estimated from


def color_normals(
    normals: Float32Array, mask: NDArray[np.bool_] | None = None, *, convention: Literal["opencv", "opengl"] = "opencv"
) -> RgbImage:
    """Show normals in the usual colors: red to the right, green up, blue to the viewer; gray where unknown.

    A surface that faces the camera is (128, 128, 255).

    Args:
        normals: [H, W, 3], of any length; zero or not finite where there is no surface.
        mask: [H, W], True where to show normals; by default everywhere.
        convention: The axes that the normals are in: "opencv" x right, y down, z into the image (toward the camera
            z is -1); "opengl" x right, y up, z to the viewer.
    """
    allowed = None if mask is None else mask.reshape(-1)  # [H*W]
    flat = normals.reshape(-1, 3)  # [H*W, 3]
    out = np.empty(flat.shape, dtype=np.uint8)
    signs = np.array(_AXES[convention], dtype=np.float32)
    for start in range(0, len(flat), _BAND):
        part = flat[start : start + _BAND].astype(np.float32)
        length = np.sqrt(np.einsum("nc,nc->n", part, part))
        known = np.isfinite(length) & (length > 1e-6)
        if allowed is not None:
            known &= allowed[start : start + _BAND]
        if not np.isfinite(length).all():
            part[~known] = 0
        scale = np.divide(127.5, length, out=np.zeros_like(length), where=known)
        part *= scale[:, None] * signs
        part += 128.0
        np.copyto(out[start : start + _BAND], np.minimum(part, 255, out=part), casting="unsafe")
    return out.reshape(normals.shape)


def color_depth(
    depth: Float32Array, mask: NDArray[np.bool_] | None = None, *, near: float | None = None, far: float | None = None
) -> RgbImage:
    """Show inverse depth in the color map Turbo: near is red, far is blue; gray where unknown.

    Args:
        depth: [H, W], distance along the camera's axis; not finite or not over 0 where unknown.
        mask: [H, W], True where to show depth; by default everywhere.
        near: Depth of the near end; by default the first percentile.
        far: Depth of the far end; by default the 99th percentile.
    """
    table = np.concatenate([turbo_map(), np.array([NEUTRAL], dtype=np.uint8)])
    levels = len(table) - 1
    known = np.isfinite(depth) & (depth > 0)
    if mask is not None:
        known &= mask
    first, last = _depth_range(depth[known], near, far)
    low, high = 1 / last, 1 / first
    with np.errstate(all="ignore"):
        scaled = np.reciprocal(depth)
        scaled -= np.float32(low)
        scaled *= np.float32((levels - 1) / max(high - low, 1e-12))
    scaled[~known] = 0
    index = np.clip(scaled, 0, levels - 1).astype(np.int16)
    index[~known] = levels
    return np.take(table, index, axis=0)


def add_depth_bar(
    image: RgbImage, depths: Float32Array, *, near: float | None = None, far: float | None = None, unit: str = ""
) -> RgbImage:
    """Draw the color bar of `color_depth` with its ends into the lower left corner of an image.

    Args:
        image: What `color_depth` returns, uint8 [H, W, 3].
        depths: The depths that it shows [N].
        near: As for `color_depth`.
        far: As for `color_depth`.
        unit: Of the depths, written behind the numbers.
    """
    height, width = image_hw(image)
    first, last = _depth_range(depths, near, far)
    size = text_size((height, width))
    texts = [f"{depth:.3g}{unit}" for depth in (first, last)]
    bar_h, bar_w, gap = max(3, size // 2), max(24, width // 4), max(2, size // 3)
    line = line_height(size)
    canvas = Image.fromarray(image)
    left, top = gap, height - gap - bar_h
    if top - line - gap < 0 or bar_w + 2 * gap > width or sum(text_width(text, size) for text in texts) > bar_w:
        return np.array(canvas)  # too small to write on
    backdrop = canvas.crop((0, top - line - gap, bar_w + 2 * gap, height)).point(lambda value: value // 3)
    canvas.paste(backdrop, (0, top - line - gap))
    colors = turbo_map(bar_w)[::-1]  # near is red, and at the left
    canvas.paste(Image.fromarray(np.repeat(colors[None], bar_h, axis=0)), (left, top))
    draw_text(canvas, texts[0], left_top=(left, top - line - gap // 2), size=size, color=WHITE)
    right = left + bar_w - text_width(texts[1], size)
    draw_text(canvas, texts[1], left_top=(right, top - line - gap // 2), size=size, color=WHITE)
    return np.array(canvas)


def _depth_range(depths: Float32Array, near: float | None, far: float | None) -> tuple[float, float]:
    """Return near and far, by default percentiles of the depths [N]."""
    for name, value in (("near", near), ("far", far)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name}: expected a distance over 0, got {value}. Leave it out for the default.")
    if near is not None and far is not None and near >= far:
        raise InputError(f"near, far: expected near below far, got {near} and {far}. Swap them.")
    sample = depths[:: max(1, len(depths) // _SAMPLE)] if len(depths) else np.ones(1)
    low, high = np.percentile(sample, (1, 99)).tolist()
    first, last = low if near is None else near, high if far is None else far
    return (first, last) if first < last else (first, first * 1.0001)


_ITERATIONS = 24
_OVERSAMPLING = 8  # further directions of the subspace iteration, for faster convergence


def principal_colors(patches: Float32Array, size_hw: SizeHW) -> RgbImage:
    """Color patches by their first three principal components: similar patches have similar colors.

    Args:
        patches: [h, w, C].
        size_hw: Size of the result.

    Returns:
        uint8 [H, W, 3]: the components are red, green and blue, each scaled to its middle 98 percent. Without any
        variance, and where patches are not finite, it is gray.
    """
    inside = np.isfinite(patches).all(-1)  # [h, w]
    colors = np.full((*inside.shape, 3), NEUTRAL, dtype=np.uint8)
    if inside.any():
        colors[inside] = _to_uint8(_principal_components(patches[inside]))
    return np.array(Image.fromarray(colors).resize(size_hw[::-1], Image.Resampling.BICUBIC))


def _principal_components(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first three principal components of rows [N, C]: [N, 3], zero where there are fewer."""
    centered = rows - rows.mean(0)
    count = min(3 + _OVERSAMPLING, *centered.shape)
    # Subspace iteration: far cheaper than a full decomposition.
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((centered.shape[1], count)).astype(np.float32))[0]
    for _ in range(_ITERATIONS):
        basis = np.linalg.qr(centered.T @ (centered @ basis))[0]  # [C, count]
    small = centered @ basis  # [N, count]
    turn = np.linalg.svd(small, full_matrices=False)[2][:3]  # [3, count]
    main = turn @ basis.T  # [3, C]
    strongest = np.abs(main).argmax(1)
    main *= np.where(main[np.arange(len(main)), strongest] < 0, -1, 1)[:, None]  # the sign is arbitrary: fix it
    components = np.zeros((len(rows), 3), dtype=np.float32)
    components[:, : len(main)] = centered @ main.T
    return components


def _to_uint8(values: NDArray[np.float32]) -> RgbImage:
    """Scale each column of [N, 3] to 0..255."""
    low, high = np.percentile(values, (1, 99), axis=0)
    flat = high - low <= 1e-6 * max(1e-12, float(np.abs(values).max()))
    scaled = (values - low) / np.where(flat, 1, high - low)
    scaled[:, flat] = 0.5
    colors: RgbImage = np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)
    return colors


def checkerboard(size_hw: SizeHW) -> RgbImage:
    """Return a light checkerboard uint8 [H, W, 3]."""
    height, width = size_hw
    side = max(4, round(max(size_hw) / 60))
    odd = (np.arange(height)[:, None] // side + np.arange(width)[None, :] // side) % 2  # [H, W]
    gray = np.where(odd == 1, 208, 250).astype(np.uint8)
    return np.repeat(gray[..., None], 3, axis=2)  # [H, W, 3]


def composite(foreground: Float32Array, alpha: Float32Array, background: RgbImage) -> RgbImage:
    """Composite a premultiplied foreground over a background: ``foreground + (1 − alpha) · background``.

    Args:
        foreground: [H, W, 3] from 0 to 1, color times alpha.
        alpha: [H, W] from 0 to 1.
        background: uint8 [H, W, 3].
    """
    out = np.empty(foreground.shape, dtype=np.uint8)
    for start in range(0, len(out), 64):  # a few rows at a time fit into the cache
        rows = slice(start, start + 64)
        mixed = np.multiply(foreground[rows], 255, dtype=np.float32)
        mixed += (1 - alpha[rows])[..., None] * background[rows]
        mixed += 0.5
        np.copyto(out[rows], np.clip(mixed, 0, 255, out=mixed), casting="unsafe")
    return out
