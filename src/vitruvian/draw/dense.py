"""Dense predictions as images: normals, depth, patch features and mattes."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitruvian.draw.canvas import NEUTRAL, RgbImage, checked_field, checked_image, checked_map, checked_mask, size_of
from vitruvian.draw.palettes import turbo_map
from vitruvian.errors import InputError

_AXES: Final[dict[str, tuple[float, float, float]]] = {"opencv": (1.0, -1.0, -1.0), "opengl": (1.0, 1.0, 1.0)}
_BAND = 2**16  # pixels of one step: fits into the cache
_SAMPLE = 2**19  # pixels that near and far are estimated from


def colour_normals(
    normals: ArrayLike, mask: ArrayLike | None = None, *, convention: Literal["opencv", "opengl"] = "opencv"
) -> RgbImage:
    """Show normals in the usual colours: red to the right, green up, blue to the viewer; grey where unknown.

    A surface that faces the camera is (128, 128, 255).

    Args:
        normals: [H, W, 3] floating point, of any length; zero or not finite where there is no surface.
        mask: [H, W], True where to show normals; by default everywhere.
        convention: The axes that the normals are in: "opencv" x right, y down, z into the image (towards the camera
            z is -1); "opengl" x right, y up, z to the viewer.
    """
    field = checked_field(normals, name="normals")
    if convention not in _AXES:
        raise InputError(f"convention: expected opencv or opengl, got {convention!r}. Choose one of these.")
    size_hw = size_of(field)
    allowed = None if mask is None else checked_mask(mask, size_hw=size_hw).reshape(-1)
    flat = field.reshape(-1, 3)  # [H*W, 3]
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
    return out.reshape(field.shape)


def colour_depth(
    depth: ArrayLike, mask: ArrayLike | None = None, *, near: float | None = None, far: float | None = None
) -> RgbImage:
    """Show inverse depth in the colour map Turbo: near is red, far is blue; grey where unknown.

    Args:
        depth: [H, W] floating point, distance along the camera's axis; not finite or not over 0 where unknown.
        mask: [H, W], True where to show depth; by default everywhere.
        near: Depth of the near end; by default the first percentile.
        far: Depth of the far end; by default the 99th percentile.
    """
    given = checked_map(depth, name="depth")
    if given.dtype.kind not in "fui":
        raise InputError(f"depth: expected numbers, got {given.dtype}. Pass one distance for each pixel.")
    values = given.astype(np.float32)
    table = np.concatenate([turbo_map(), np.array([NEUTRAL], dtype=np.uint8)])
    levels = len(table) - 1
    known = np.isfinite(values) & (values > 0)
    if mask is not None:
        known &= checked_mask(mask, size_hw=size_of(values))
    limits = _limits(values, known, near, far)
    if limits is None:
        return np.full((*values.shape, 3), NEUTRAL, dtype=np.uint8)
    low, high = 1 / limits[1], 1 / limits[0]
    with np.errstate(all="ignore"):
        scaled = np.reciprocal(values)
        scaled -= np.float32(low)
        scaled *= np.float32((levels - 1) / max(high - low, 1e-12))
    scaled[~known] = 0
    index = np.clip(scaled, 0, levels - 1).astype(np.int16)
    index[~known] = levels
    return np.take(table, index, axis=0)


def _limits(
    values: NDArray[np.float32], known: NDArray[np.bool_], near: float | None, far: float | None
) -> tuple[float, float] | None:
    """Return near and far, by default from percentiles; None where no depth is known."""
    depths = values[known]
    if not len(depths):
        return None
    sample = depths[:: max(1, len(depths) // _SAMPLE)]
    low, high = (float(value) for value in np.percentile(sample, (1, 99)))
    first, last = low if near is None else float(near), high if far is None else float(far)
    for name, value in (("near", near), ("far", far)):
        if value is not None and not 0 < float(value) < float("inf"):
            raise InputError(f"{name}: expected a distance over 0, got {value}. Leave it out for the default.")
    if near is not None and far is not None and near >= far:
        raise InputError(f"near, far: expected near before far, got {near} and {far}. Swap them.")
    return (first, last) if first < last else (first, first * 1.0001)


_ITERATIONS = 24
_OVERSAMPLING = 8  # further directions of the subspace iteration, for faster convergence


def principal_colours(patches: ArrayLike, size_hw: tuple[int, int] | None = None) -> RgbImage:
    """Colour patches by their first three principal components: similar patches have similar colours.

    Args:
        patches: [h, w, C] floating point.
        size_hw: Size of the result; by default one pixel for each patch.

    Returns:
        uint8 [H, W, 3]: the components are red, green and blue, each scaled to its middle 98 percent. Without any
        variance, and where patches are not finite, it is grey.
    """
    features = np.asarray(patches, dtype=np.float32)
    if features.ndim != 3 or 0 in features.shape:
        raise InputError(f"patches: expected the shape [h, w, C], got {list(features.shape)}. Leave out the CLS token.")
    if size_hw is not None and min(size_hw) < 1:
        raise InputError(f"size_hw: expected a height and a width over 0, got {size_hw}.")
    grid_hw = features.shape[0], features.shape[1]
    inside = np.isfinite(features).all(-1)  # [h, w]
    colours = np.full((*grid_hw, 3), NEUTRAL, dtype=np.uint8)
    if inside.any():
        colours[inside] = _to_uint8(_principal_components(features[inside]))
    if size_hw is None or size_hw == grid_hw:
        return colours
    image = Image.fromarray(colours).resize((size_hw[1], size_hw[0]), Image.Resampling.BICUBIC)
    return np.array(image)


def _principal_components(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the first three principal components of rows [N, C]: [N, 3], zero where there are fewer."""
    centred = rows - rows.mean(0)
    count = min(3 + _OVERSAMPLING, *centred.shape)
    # Subspace iteration: far cheaper than a full decomposition.
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((centred.shape[1], count)).astype(np.float32))[0]
    for _ in range(_ITERATIONS):
        basis = np.linalg.qr(centred.T @ (centred @ basis))[0]  # [C, count]
    small = centred @ basis  # [N, count]
    turn = np.linalg.svd(small, full_matrices=False)[2][:3]  # [3, count]
    main = turn @ basis.T  # [3, C]
    strongest = np.abs(main).argmax(1)
    main *= np.where(main[np.arange(len(main)), strongest] < 0, -1, 1)[:, None]  # the sign is arbitrary: fix it
    components = np.zeros((len(rows), 3), dtype=np.float32)
    components[:, : len(main)] = centred @ main.T
    return components


def _to_uint8(values: NDArray[np.float32]) -> RgbImage:
    """Scale each column of [N, 3] to 0..255."""
    low, high = np.percentile(values, (1, 99), axis=0)
    flat = high - low <= 1e-6 * max(1e-12, float(np.abs(values).max()))
    scaled = (values - low) / np.where(flat, 1, high - low)
    scaled[:, flat] = 0.5
    colours: RgbImage = np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)
    return colours


_LIGHT, _DARK = 250, 208


def checkerboard(size_hw: tuple[int, int]) -> RgbImage:
    """Return a light checkerboard uint8 [H, W, 3]."""
    height, width = size_hw
    side = max(4, round(max(size_hw) / 60))
    odd = (np.arange(height)[:, None] // side + np.arange(width)[None, :] // side) % 2  # [H, W]
    grey = np.where(odd == 1, _DARK, _LIGHT).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)  # [H, W, 3]


def lay_over(foreground: ArrayLike, alpha: ArrayLike, ground: RgbImage) -> RgbImage:
    """Composite a premultiplied foreground over a background: ``foreground + (1 − alpha) · ground``.

    Args:
        foreground: [H, W, 3] floating point 0..1, colour times alpha.
        alpha: [H, W] 0..1.
        ground: uint8 [H, W, 3].
    """
    front = checked_field(foreground, name="foreground")
    opacity = checked_map(alpha, name="alpha", size_hw=size_of(front))
    back = checked_image(ground, name="ground")
    if size_of(back) != size_of(front):
        raise InputError(
            f"ground: expected the foreground's size, {list(size_of(front))}, got {list(size_of(back))}. Resize it."
        )
    out = np.empty(front.shape, dtype=np.uint8)
    for start in range(0, len(front), 64):  # a few rows at a time fit into the cache
        rows = slice(start, start + 64)
        mixed = np.multiply(front[rows], 255, dtype=np.float32)
        mixed += (1 - opacity[rows].astype(np.float32))[..., None] * back[rows]
        mixed += 0.5
        if not np.isfinite(mixed.sum()):
            np.nan_to_num(mixed, copy=False)
        np.copyto(out[rows], np.clip(mixed, 0, 255, out=mixed), casting="unsafe")
    return out
