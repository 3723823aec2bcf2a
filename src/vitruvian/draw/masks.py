"""Masks of objects, and panoptic maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.boxes import captions
from vitruvian.draw.canvas import (
    Colour,
    Picture,
    checked_colours,
    checked_mask,
    checked_opacity,
    checked_picture,
    fine_width,
    size_of,
    tint,
)
from vitruvian.draw.labels import checked_labels, draw_labels, renumbered
from vitruvian.draw.outlines import inner_point, lay_outline
from vitruvian.draw.palettes import class_colours, colours_of
from vitruvian.draw.text import Tag, draw_tags, tag_hw, text_size
from vitruvian.errors import InputError


@dataclass(frozen=True)
class _Piece:
    """A mask cut down to where it is."""

    order: int
    top: int
    left: int
    inside: NDArray[np.bool_]  # [h, w]
    area: int


def draw_masks(
    picture: Picture,
    masks: Iterable[Any],
    *,
    labels: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    colours: Any = None,
    opacity: float = 0.5,
    outline: bool = True,
) -> Picture:
    """Draw objects over a picture, each in its own colour, large ones below small ones.

    Args:
        picture: uint8 [H, W, 3].
        masks: N masks [H, W], as an array [N, H, W] or one after another; empty ones are left out.
        labels: [N] names, written inside the masks.
        scores: [N], written with two digits.
        ids: [N] identities, written as ``#3``.
        colours: [N, 3]; None: distinct ones, by identity where there is one.
        opacity: Of the colours over the picture.
        outline: Draw the borders.
    """
    picture, opacity = checked_picture(picture), checked_opacity(opacity)
    size_hw = size_of(picture)
    pieces, count = _cut_out(masks, size_hw)
    texts = captions(count, labels=labels, scores=scores, ids=ids)
    if colours is None:
        colours = colours_of(ids) if ids is not None else class_colours(count)
    tones = checked_colours(colours, count=count) if count else class_colours(0)
    canvas, width = np.array(picture, order="C"), fine_width(size_hw)
    pieces.sort(key=lambda piece: -piece.area)
    for piece in pieces:
        _paint(canvas, piece, tones[piece.order], opacity=opacity, width=width if outline else 0)
    size = text_size(size_hw, count=len(pieces))
    tags = [_tag(piece, texts[piece.order], tones[piece.order], size) for piece in pieces if texts[piece.order]]
    draw_tags(canvas, tags, size=size)
    return canvas


def _cut_out(masks: Iterable[Any], size_hw: tuple[int, int]) -> tuple[list[_Piece], int]:
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


def _paint(canvas: Picture, piece: _Piece, tone: Any, *, opacity: float, width: float) -> None:
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
        lay_outline(window, inside, colour=_light(tone), width=width, opacity=0.92)
    canvas[top:bottom, left:right] = window


def _light(tone: Any) -> Colour:
    """A lighter version of a colour, for lines that stand out from their fill."""
    red, green, blue = (round(255 - (255 - int(value)) * 0.55) for value in tone)
    return red, green, blue


def _tag(piece: _Piece, text: str, tone: Any, size: int) -> Tag:
    x, y = inner_point(piece.inside)
    high, _ = tag_hw(text, size)
    small = piece.inside.shape[0] < 2.5 * high  # a tag inside would hide it: put it above, or else below
    beyond = (-high / 2 - 1, piece.inside.shape[0] + high / 2 + 1)
    heights = [piece.top + offset for offset in (beyond if small else (y,))]
    return _tag_at(piece.left + x, heights, text, tone, size)


def _tag_at(x: float, heights: Sequence[float], text: str, tone: Any, size: int) -> Tag:
    """A tag centred on one of some points above one another, or a little beside it."""
    high, wide = tag_hw(text, size)
    places = tuple((x + shift * wide, y - high / 2) for y in heights for shift in (-0.5, -1.0, 0.0))
    return Tag(text=text, colour=(int(tone[0]), int(tone[1]), int(tone[2])), places=places)


def draw_panoptic(
    picture: Picture | None,
    segmentation: Any,
    *,
    labels: Mapping[int, str] | None = None,
    classes: Mapping[int, int] | None = None,
    opacity: float = 0.6,
    outline: bool = True,
    background: int | None = 0,
) -> Picture:
    """Draw a panoptic map: every segment in a colour, white lines between them, names where they fit.

    Args:
        picture: uint8 [H, W, 3], or None for the segments alone.
        segmentation: [H, W] whole numbers, the segment of each pixel.
        labels: What to write on a segment, by its number.
        classes: Class of a segment, by its number: segments of one class then have shades of one colour. Without it
            each segment has a colour of its own.
        opacity: Of the colours over the picture.
        outline: Draw the borders.
        background: The number that means "no segment"; None: all are segments.
    """
    size_hw = None if picture is None else size_of(checked_picture(picture))
    values = checked_labels(segmentation, size_hw=size_hw, name="segmentation")
    numbers, areas, dense = renumbered(values)
    if classes is not None and (missing := [n for n in numbers if n != background and n not in classes]):
        raise InputError(
            f"classes: expected a class for each segment, got none for {missing[:8]}. Add them, or pass None."
        )
    tones = _segment_colours(numbers, classes, background)
    ground = numbers.index(background) if background in numbers else None
    canvas = draw_labels(picture, dense, tones, opacity=opacity, legend=False, outline=outline, background=ground)
    if labels:
        order = [int(i) for i in np.argsort(-areas, kind="stable") if numbers[i] in labels and i != ground]
        size = text_size(values.shape, count=len(order))
        draw_tags(canvas, _segment_tags(dense, order, [labels[numbers[i]] for i in order], tones, size), size=size)
    return canvas


def _segment_colours(numbers: Sequence[int], classes: Mapping[int, int] | None, background: int | None) -> Picture:
    """A colour for each segment, [N, 3]: by class in changing shades, or one after another."""
    segments = [number for number in numbers if number != background]
    if classes is None:
        rank = {number: i for i, number in enumerate(segments)}
        bases, shades = rank, dict.fromkeys(segments, 0)
    else:
        if any(classes[number] < 0 for number in segments):
            raise InputError("classes: expected classes from 0 on, got a negative one. Number them from 0.")
        bases, shades, seen = {}, {}, dict[int, int]()
        for number in segments:
            bases[number] = int(classes[number])
            shades[number] = seen.get(bases[number], 0)
            seen[bases[number]] = shades[number] + 1
    palette = class_colours(max(bases.values(), default=0) + 1)
    tones = np.zeros((len(numbers), 3), dtype=np.uint8)
    for i, number in enumerate(numbers):
        if number != background:
            tones[i] = _shade(palette[bases[number]], shades[number])
    return tones


def _shade(tone: Picture, step: int) -> Picture:
    """The colour itself for step 0, then lighter and darker in turn."""
    share = (0.0, 0.38, -0.3, 0.6, -0.48)[step % 5]
    goal = 255.0 if share > 0 else 0.0
    return np.rint(tone + (goal - tone.astype(np.float64)) * abs(share)).astype(np.uint8)


def _segment_tags(
    dense: NDArray[Any], order: Sequence[int], texts: Sequence[str], tones: Picture, size: int
) -> list[Tag]:
    """Tags for segments; those too small to hold a letter get none."""
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
