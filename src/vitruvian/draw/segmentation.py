"""Segmentations over an image: label maps, masks of objects and panoptic maps, with outlines and names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageFilter

from vitruvian.draw.boxes import captions
from vitruvian.draw.canvas import (
    BLACK,
    WHITE,
    Colour,
    RgbImage,
    blend,
    checked_colours,
    checked_image,
    checked_map,
    checked_mask,
    checked_opacity,
    fine_width,
    size_of,
    tint,
)
from vitruvian.draw.layout import add_legend
from vitruvian.draw.palettes import class_colours, colours_of
from vitruvian.draw.text import Tag, draw_tags, tag_hw, text_size
from vitruvian.errors import InputError


def borders(labels: NDArray[np.generic], *, both: bool = True) -> NDArray[np.bool_]:
    """Return the pixels on both sides of borders, or on the left and upper one: [H, W] -> bool [H, W]."""
    edge = np.zeros(labels.shape, dtype=bool)
    across, down = labels[:, 1:] != labels[:, :-1], labels[1:] != labels[:-1]
    edge[:, :-1] |= across
    edge[:-1] |= down
    if both:
        edge[:, 1:] |= across
        edge[1:] |= down
    return edge


def _draw_outline(
    canvas: RgbImage, labels: NDArray[np.generic], *, colour: Sequence[int], width: float, opacity: float
) -> None:
    """Draw smooth lines of about `width` pixels along the borders between labels [H, W] onto `canvas`, in place."""
    edge = borders(labels, both=width >= 2)  # a thin line is one pixel wide
    rows, columns = np.flatnonzero(edge.any(1)), np.flatnonzero(edge.any(0))
    if not len(rows):
        return
    margin = int(np.ceil(2 * width)) + 1
    window = (
        slice(max(int(rows[0]) - margin, 0), int(rows[-1]) + margin + 1),
        slice(max(int(columns[0]) - margin, 0), int(columns[-1]) + margin + 1),
    )
    weight = _softened(np.ascontiguousarray(edge[window]), width=width, opacity=opacity)
    canvas[window] = tint(np.ascontiguousarray(canvas[window]), colour, weight)


def _softened(edge: NDArray[np.bool_], *, width: float, opacity: float) -> RgbImage:
    """Blur marked pixels to a smooth line: weight uint8 [h, w], `opacity` in its middle."""
    sigma = max(0.5, width / 2.6)
    soft = Image.fromarray(edge.view(np.uint8) * np.uint8(255)).filter(ImageFilter.GaussianBlur(sigma))
    gain = max(1.0, 1.55 * sigma)  # makes the middle of the line solid if width >= 2 else 1.4
    return np.asarray(soft.point([round(min(255, value * gain) * opacity) for value in range(256)]))


def inner_point(mask: NDArray[np.bool_], *, grid: int = 40) -> tuple[float, float]:
    """Return a point (x, y) deep inside a mask [H, W] with at least one pixel, for its label."""
    height, width = mask.shape
    step = max(1, -(-max(height, width) // grid))
    high, wide = -(-height // step) * step, -(-width // step) * step
    padded = np.zeros((high, wide), dtype=bool)
    padded[:height, :width] = mask
    share = padded.reshape(high // step, step, wide // step, step).mean((1, 3))  # [h, w]
    inside = share >= min(0.5, float(share.max()))
    depth = _depth(inside)
    y, x = np.nonzero(depth == depth.max())
    nearest = np.argmin((y - y.mean()) ** 2 + (x - x.mean()) ** 2)  # the middle of a plateau
    return (float(x[nearest]) + 0.5) * step - 0.5, (float(y[nearest]) + 0.5) * step - 0.5


def _depth(inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of erosions of a mask [h, w] that each cell survives, plus one."""
    rest = np.pad(inside, 1)
    depth = rest.astype(np.int64)
    while rest.any():
        core = rest[1:-1, 1:-1] & rest[:-2, 1:-1] & rest[2:, 1:-1] & rest[1:-1, :-2] & rest[1:-1, 2:]
        rest = np.pad(core, 1)
        depth += rest
    return depth[1:-1, 1:-1]


_VOID = (255, -1)  # labels that other tools use for unlabelled pixels


def draw_labels(
    image: RgbImage | None,
    labels: ArrayLike,
    colours: ArrayLike,
    *,
    names: Sequence[str] | Mapping[int, str] | None = None,
    opacity: float = 0.55,
    legend: bool = True,
    outline: bool = True,
    background: int | None = 0,
) -> RgbImage:
    """Draw a label map over an image, with outlines and a legend of the classes that occur.

    Args:
        image: uint8 [H, W, 3], or None to draw the labels alone, opaque.
        labels: [H, W] whole numbers. 255 and -1, where there are fewer colours, mark unlabelled pixels.
        colours: [K, 3] from 0 to 255, for instance `vitruvian.human.PART_COLOURS`.
        names: Names of the K classes; without them there is no legend.
        opacity: Of the colours over the image.
        legend: Whether to add a panel at the right; without it the result has the size of the image.
        outline: Whether to draw the borders.
        background: The label that is neither coloured nor in the legend; None for none.
    """
    opacity = checked_opacity(opacity)
    values = _checked_labels(labels, size_hw=None if image is None else size_of(checked_image(image)))
    tones = checked_colours(colours, count=1)
    present, _, slots = _renumbered(values)
    wrong = [label for label in present if not 0 <= label < len(tones) and label not in _VOID]
    if wrong:
        raise InputError(
            f"labels: expected classes from 0 to {len(tones) - 1}, the number of colours, got {wrong[:8]}. "
            "Pass more colours, or mark unlabelled pixels with 255."
        )
    shown = [label for label in present if 0 <= label < len(tones) and label != background]
    palette = np.array([tones[label] if label in shown else BLACK for label in present], dtype=np.uint8)  # [slots, 3]
    strength = round(255 * (opacity if image is not None else 1))
    weights = np.array([strength if label in shown else 0 for label in present], dtype=np.uint8)  # [slots]
    ground = np.zeros((*values.shape, 3), dtype=np.uint8) if image is None else image
    canvas = blend(ground, palette.take(slots, axis=0), weights.take(slots))
    if outline and shown:
        _draw_outline(canvas, slots, colour=WHITE, width=fine_width(values.shape), opacity=0.8)
    if not legend or names is None:
        return canvas
    return add_legend(canvas, [str(names[label]) for label in shown], tones[shown])


def _checked_labels(labels: ArrayLike, *, size_hw: tuple[int, int] | None, name: str = "labels") -> NDArray[np.integer]:
    """Return a map of integers [H, W]."""
    values = checked_map(labels, name=name, size_hw=size_hw)
    if values.dtype.kind not in "uib":
        raise InputError(f"{name}: expected whole numbers, got {values.dtype}. Take the class of the largest score.")
    return values.astype(np.uint8) if values.dtype.kind == "b" else values  # type: ignore[return-value]


def _renumbered(values: NDArray[np.integer]) -> tuple[list[int], NDArray[np.int64], NDArray[np.integer]]:
    """Return the labels that occur in a map [H, W] in order, their areas, and the map with 0, 1, 2 … in their place."""
    if values.dtype == np.uint8:
        counts = np.array(Image.fromarray(values).histogram())
        low = 0
    else:
        low, high = int(values.min()), int(values.max())
        if high - low >= 2**24:  # a table of this length would be slower than sorting
            found, dense, areas = np.unique(values, return_inverse=True, return_counts=True)
            return found.tolist(), areas, dense.reshape(values.shape).astype(np.int64)
        values = values.astype(np.int64) - low
        counts = np.bincount(values.ravel())
    found = np.flatnonzero(counts)
    table = np.zeros(len(counts), dtype=np.uint8 if len(found) <= 256 else np.int32)
    table[found] = np.arange(len(found))
    dense = np.take(table, values)
    return [int(number) + low for number in found], counts[found], dense


@dataclass(frozen=True)
class _Piece:
    """A mask, cropped to its bounding box."""

    order: int
    top: int
    left: int
    inside: NDArray[np.bool_]  # [h, w]
    area: int


def draw_masks(
    image: RgbImage,
    masks: Iterable[ArrayLike],
    *,
    labels: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    colours: ArrayLike | None = None,
    opacity: float = 0.5,
    outline: bool = True,
) -> RgbImage:
    """Draw masks over an image, each in its own colour, large ones below small ones.

    Args:
        image: uint8 [H, W, 3].
        masks: N masks [H, W], as an array [N, H, W] or an iterable; empty ones are left out.
        labels: [N] names, written inside the masks.
        scores: [N], written with two digits.
        ids: [N] identities, written as ``#3``.
        colours: [N, 3]; by default distinct ones, by identity if there are `ids`.
        opacity: Of the colours over the image.
        outline: Whether to draw the borders.
    """
    image, opacity = checked_image(image), checked_opacity(opacity)
    size_hw = size_of(image)
    pieces, count = _crop_masks(masks, size_hw)
    texts = captions(count, labels=labels, scores=scores, ids=ids)
    if colours is None:
        colours = colours_of(ids) if ids is not None else class_colours(count)
    tones = checked_colours(colours, count=count) if count else class_colours(0)
    canvas, width = np.array(image, order="C"), fine_width(size_hw)
    pieces.sort(key=lambda piece: -piece.area)
    for piece in pieces:
        _paint(canvas, piece, tones[piece.order], opacity=opacity, width=width if outline else 0)
    size = text_size(size_hw, count=len(pieces))
    tags = [_tag(piece, texts[piece.order], tones[piece.order], size) for piece in pieces if texts[piece.order]]
    draw_tags(canvas, tags, size=size)
    return canvas


def _crop_masks(masks: Iterable[ArrayLike], size_hw: tuple[int, int]) -> tuple[list[_Piece], int]:
    pieces, count = [], 0
    for mask in masks:
        inside = checked_mask(mask, size_hw=size_hw, name=f"mask {count}")
        rows = np.flatnonzero(inside.any(1))
        if len(rows):
            top, bottom = int(rows[0]), int(rows[-1]) + 1
            columns = np.flatnonzero(inside[top:bottom].any(0))
            left, right = int(columns[0]), int(columns[-1]) + 1
            part = inside[top:bottom, left:right].copy()
            pieces.append(_Piece(order=count, top=top, left=left, inside=part, area=int(part.sum())))
        count += 1
    return pieces, count


def _paint(canvas: RgbImage, piece: _Piece, tone: RgbImage, *, opacity: float, width: float) -> None:
    """Fill and outline a mask on `canvas`, in place, in a window a little larger than the mask."""
    height, wide = size_of(canvas)
    margin = int(np.ceil(2 * width)) + 1
    top, left = max(piece.top - margin, 0), max(piece.left - margin, 0)
    high, across = piece.inside.shape
    bottom, right = min(piece.top + high + margin, height), min(piece.left + across + margin, wide)
    inside = np.zeros((bottom - top, right - left), dtype=bool)
    inside[piece.top - top :, piece.left - left :][:high, :across] = piece.inside
    weight = inside.view(np.uint8) * np.uint8(round(255 * opacity))
    window = tint(canvas[top:bottom, left:right], tone, weight)
    if width:
        _draw_outline(window, inside, colour=_light(tone), width=width, opacity=0.92)
    canvas[top:bottom, left:right] = window


def _light(tone: RgbImage) -> Colour:
    """Return a lighter colour, for the outline."""
    red, green, blue = (round(255 - (255 - int(value)) * 0.55) for value in tone)
    return red, green, blue


def _tag(piece: _Piece, text: str, tone: RgbImage, size: int) -> Tag:
    x, y = inner_point(piece.inside)
    high, _ = tag_hw(text, size)
    small = piece.inside.shape[0] < 2.5 * high  # a tag inside would cover it: put it above or below
    beyond = (-high / 2 - 1, piece.inside.shape[0] + high / 2 + 1)
    heights = [piece.top + offset for offset in (beyond if small else (y,))]
    return _tag_at(piece.left + x, heights, text, tone, size)


def _tag_at(x: float, heights: Sequence[float], text: str, tone: RgbImage, size: int) -> Tag:
    """Return a tag centred on one of these heights, or beside it."""
    high, wide = tag_hw(text, size)
    positions = tuple((x + shift * wide, y - high / 2) for y in heights for shift in (-0.5, -1.0, 0.0))
    return Tag(text=text, colour=(int(tone[0]), int(tone[1]), int(tone[2])), positions=positions)


def draw_panoptic(
    image: RgbImage | None,
    segmentation: ArrayLike,
    *,
    labels: Mapping[int, str] | None = None,
    classes: Mapping[int, int] | None = None,
    opacity: float = 0.6,
    outline: bool = True,
    background: int | None = 0,
) -> RgbImage:
    """Draw a panoptic map over an image: segments in colours, with white outlines and names where they fit.

    Args:
        image: uint8 [H, W, 3], or None to draw the segments alone.
        segmentation: [H, W] whole numbers, the segment of each pixel.
        labels: Names to write on segments, by their numbers.
        classes: Classes by segment number: segments of one class have shades of one colour. Without it each segment
            has its own colour.
        opacity: Of the colours over the image.
        outline: Whether to draw the borders.
        background: The number for "no segment"; None for none.
    """
    size_hw = None if image is None else size_of(checked_image(image))
    values = _checked_labels(segmentation, size_hw=size_hw, name="segmentation")
    numbers, areas, dense = _renumbered(values)
    if classes is not None and (missing := [n for n in numbers if n != background and n not in classes]):
        raise InputError(
            f"classes: expected a class for each segment, got none for {missing[:8]}. Add them, or pass None."
        )
    tones = _segment_colours(numbers, classes, background)
    ground = numbers.index(background) if background in numbers else None
    canvas = draw_labels(image, dense, tones, opacity=opacity, legend=False, outline=outline, background=ground)
    if labels:
        order = [int(i) for i in np.argsort(-areas, kind="stable") if numbers[i] in labels and i != ground]
        size = text_size(values.shape, count=len(order))
        draw_tags(canvas, _segment_tags(dense, order, [labels[numbers[i]] for i in order], tones, size), size=size)
    return canvas


def _segment_colours(numbers: Sequence[int], classes: Mapping[int, int] | None, background: int | None) -> RgbImage:
    """Return a colour for each segment, [N, 3]: a shade of its class, or its own."""
    segments = [number for number in numbers if number != background]
    if classes is None:
        rank = {number: i for i, number in enumerate(segments)}
        bases, shades = rank, dict.fromkeys(segments, 0)
    else:
        if any(classes[number] < 0 for number in segments):
            raise InputError("classes: expected classes from 0 on, got a negative one. Number them from 0.")
        bases, shades, counts = {}, {}, dict[int, int]()
        for number in segments:
            bases[number] = int(classes[number])
            shades[number] = counts.get(bases[number], 0)
            counts[bases[number]] = shades[number] + 1
    palette = class_colours(max(bases.values(), default=0) + 1)
    tones = np.zeros((len(numbers), 3), dtype=np.uint8)
    for i, number in enumerate(numbers):
        if number != background:
            tones[i] = _shade(palette[bases[number]], shades[number])
    return tones


def _shade(tone: RgbImage, step: int) -> RgbImage:
    """Return the colour itself for step 0, then lighter and darker ones."""
    share = (0.0, 0.38, -0.3, 0.6, -0.48)[step % 5]
    goal = 255.0 if share > 0 else 0.0
    return np.rint(tone + (goal - tone.astype(np.float64)) * abs(share)).astype(np.uint8)


def _segment_tags(
    dense: NDArray[np.integer], order: Sequence[int], texts: Sequence[str], tones: RgbImage, size: int
) -> list[Tag]:
    """Return tags for the segments that are large enough for a letter."""
    step = max(1, min(dense.shape) // 256)
    small = np.ascontiguousarray(dense[::step, ::step])
    tags = []
    for i, text in zip(order, texts, strict=True):
        inside = small == i
        if inside.sum() * step**2 < size**2:
            continue
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        top, left = int(rows[0]), int(columns[0])
        x, y = inner_point(inside[top : rows[-1] + 1, left : columns[-1] + 1])
        tags.append(_tag_at((left + x) * step, [(top + y) * step], text, tones[i], size))
    return tags
