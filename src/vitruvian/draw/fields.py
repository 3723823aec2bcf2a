"""Normals and depth in the usual colours."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.canvas import NEUTRAL, Picture, checked_field, checked_map, checked_mask, size_of
from vitruvian.draw.palettes import ColourMap, colour_map
from vitruvian.errors import InputError

AXES: Final[dict[str, tuple[float, float, float]]] = {"opencv": (1.0, -1.0, -1.0), "opengl": (1.0, 1.0, 1.0)}
_BAND = 2**16  # pixels worked on together: fits the cache
_SAMPLE = 2**19  # pixels that near and far are estimated from


def colour_normals(normals: Any, mask: Any = None, *, convention: Literal["opencv", "opengl"] = "opencv") -> Picture:
    """Show directions as colours: red to the right, green up, blue to the viewer; neutral grey where there is none.

    A surface that faces the camera is (128, 128, 255).

    Args:
        normals: [H, W, 3] floating point, of any length; zero or not finite where there is no surface.
        mask: [H, W], True where to show normals; None: everywhere.
        convention: The axes that the normals are in: "opencv" x right, y down, z into the picture (towards the camera
            z is -1); "opengl" x right, y up, z to the viewer.
    """
    field = checked_field(normals, name="normals")
    if convention not in AXES:
        raise InputError(f"convention: expected opencv or opengl, got {convention!r}. Choose one of these.")
    size_hw = size_of(field)
    allowed = None if mask is None else checked_mask(mask, size_hw=size_hw).reshape(-1)
    flat = field.reshape(-1, 3)  # [H*W, 3]
    out = np.empty(flat.shape, dtype=np.uint8)
    signs = np.array(AXES[convention], dtype=np.float32)
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
    depth: Any,
    mask: Any = None,
    *,
    near: float | None = None,
    far: float | None = None,
    colours: ColourMap = "turbo",
    inverse: bool = True,
) -> Picture:
    """Show depth as colours: near is the high end of the colour map, far the low end; neutral grey where unknown.

    Args:
        depth: [H, W] floating point, distance along the camera's axis; not finite or not over 0 where unknown.
        mask: [H, W], True where to show depth; None: everywhere.
        near: Depth of the high end; None: the nearest that is shown, without the nearest percent.
        far: Depth of the low end; None: the farthest that is shown, without the farthest percent.
        colours: "turbo", "inferno" or "grey".
        inverse: Spread colours evenly over 1 / depth, which gives near things more of them; False: over depth.
    """
    values = checked_map(depth, name="depth")
    if values.dtype.kind not in "fui":
        raise InputError(f"depth: expected numbers, got {values.dtype}. Pass one distance a pixel.")
    table = np.concatenate([colour_map(colours), np.array([NEUTRAL], dtype=np.uint8)])
    levels = len(table) - 1
    known = np.isfinite(values) & (values > 0)
    if mask is not None:
        known &= checked_mask(mask, size_hw=size_of(values))
    limits = _limits(values, known, near, far)
    if limits is None:
        return np.full((*values.shape, 3), NEUTRAL, dtype=np.uint8)
    low, high = (1 / limit for limit in limits[::-1]) if inverse else (-limits[1], -limits[0])
    scaled = values.astype(np.float32)
    with np.errstate(all="ignore"):
        scaled = np.reciprocal(scaled) if inverse else np.negative(scaled)
        scaled -= np.float32(low)
        scaled *= np.float32((levels - 1) / max(high - low, 1e-12))
    scaled[~known] = 0
    index = np.clip(scaled, 0, levels - 1).astype(np.int16)
    index[~known] = levels
    return np.take(table, index, axis=0)


def _limits(
    values: NDArray[Any], known: NDArray[np.bool_], near: float | None, far: float | None
) -> tuple[float, float] | None:
    """Near and far, given or found; None where nothing is known."""
    found = values[known]
    if not len(found):
        return None
    sample = found[:: max(1, len(found) // _SAMPLE)]
    low, high = (float(value) for value in np.percentile(sample, (1, 99)))
    first, last = low if near is None else float(near), high if far is None else float(far)
    for name, value in (("near", near), ("far", far)):
        if value is not None and not 0 < float(value) < float("inf"):
            raise InputError(f"{name}: expected a distance over 0, got {value}. Leave it out to find it.")
    if near is not None and far is not None and near >= far:
        raise InputError(f"near, far: expected near before far, got {near} and {far}. Swap them.")
    return (first, last) if first < last else (first, first * 1.0001)
