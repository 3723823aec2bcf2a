"""Segmentations over an image: label maps, masks of objects and panoptic maps, with outlines and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from vitruvian.draw.boxes import captions
from vitruvian.draw.canvas import BLACK, WHITE, check_opacity, image_hw, outline_width, tint
from vitruvian.draw.legend import add_legend
from vitruvian.draw.palettes import class_colors, identity_colors
from vitruvian.draw.text import Tag, draw_tags, tag_hw, text_size
from vitruvian.images.label_maps import count_labels
from vitruvian.images.types import RgbImage


def _borders(labels: NDArray[np.generic], *, both: bool = True) -> NDArray[np.bool_]:
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
    canvas: RgbImage, labels: NDArray[np.generic], *, color: Sequence[int], width: float, opacity: float
) -> None:
    """Draw smooth lines of about `width` pixels along the borders between labels [H, W] onto `canvas`, in place."""
    edge = _borders(labels, both=width >= 2)  # a thin line is one pixel wide
    bounds = _bounding_box(edge)
    if bounds is None:
        return
    left, top, right, bottom = bounds
    margin = int(np.ceil(2 * width)) + 1
    window = np.s_[max(top - margin, 0) : bottom + margin, max(left - margin, 0) : right + margin]
    sigma = max(0.5, width / 2.6)
    soft = Image.fromarray(edge[window].view(np.uint8) * np.uint8(255)).filter(ImageFilter.GaussianBlur(sigma))
    gain = max(1.0, 1.55 * sigma)  # makes the middle of the line solid
    weight = np.asarray(soft.point([round(min(255, value * gain) * opacity) for value in range(256)]))
    canvas[window] = tint(np.ascontiguousarray(canvas[window]), color, weight)


def _bounding_box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of a mask [H, W], with exclusive ends; None if it is empty."""
    return Image.fromarray(mask.view(np.uint8)).getbbox()


def _inner_point(mask: NDArray[np.bool_]) -> tuple[float, float]:
    """Return a point (x, y) deep inside a mask [H, W] with at least one pixel, for its label."""
    height, width = mask.shape
    step = max(1, -(-max(height, width) // 40))  # at most 40 cells along the longer side
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


def draw_labels(
    image: RgbImage | None,
    labels: NDArray[np.integer],
    colors: RgbImage,
    *,
    names: Mapping[int, str] | None = None,
    opacity: float = 0.55,
    legend: bool = True,
    outline: bool = True,
    background: int | None = 0,
) -> RgbImage:
    """Draw a label map over an image, with outlines and a legend of the classes that occur.

    Args:
        image: uint8 [H, W, 3], or None to draw the labels alone, opaque.
        labels: [H, W] from 0 to K − 1.
        colors: uint8 [K, 3], for instance `vitruvian.human.PART_COLORS`.
        names: Names of classes; without them there is no legend.
        opacity: Of the colors over the image.
        legend: Whether to add a panel at the right; without it the result has the size of the image.
        outline: Whether to draw the borders.
        background: The label that is neither colored nor in the legend; None for none.
    """
    check_opacity(opacity)
    present, dense = _renumbered(labels)
    visible = [label for label in present if label != background]
    palette = np.array([BLACK if label == background else colors[label] for label in present], np.uint8)  # [present, 3]
    strength = round(255 * (opacity if image is not None else 1))
    weights = np.array([0 if label == background else strength for label in present], np.uint8)  # [present]
    background_image = Image.new("RGB", labels.shape[::-1]) if image is None else Image.fromarray(image)
    layer, weight = Image.fromarray(palette.take(dense, axis=0)), Image.fromarray(weights.take(dense))
    canvas = np.array(Image.composite(layer, background_image, weight))
    if outline and visible:
        _draw_outline(canvas, dense, color=WHITE, width=outline_width(image_hw(labels)), opacity=0.8)
    if not legend or names is None:
        return canvas
    return add_legend(canvas, [names[label] for label in visible], colors[visible])


def _renumbered(labels: NDArray[np.integer]) -> tuple[dict[int, int], NDArray[np.integer]]:
    """Return the labels that occur in a map [H, W], with their areas, and the map renumbered to 0, 1, 2 … in order."""
    present = count_labels(labels)
    table: NDArray[np.integer] = np.zeros(max(present) + 1, np.uint8 if len(present) <= 256 else np.int32)
    table[list(present)] = np.arange(len(present))
    return present, table[labels]


@dataclass(frozen=True)
class _CroppedMask:
    """A mask, cropped to its bounding box, and its place in the order of masks."""

    index: int
    top: int
    left: int
    inside: NDArray[np.bool_]  # [h, w]
    area: int


def draw_masks(
    image: RgbImage,
    masks: Iterable[NDArray[np.bool_]],
    *,
    labels: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    opacity: float = 0.5,
    outline: bool = True,
) -> RgbImage:
    """Draw masks over an image in distinct colors, by identity if there are `ids`, large ones below small ones.

    Args:
        image: uint8 [H, W, 3].
        masks: N masks [H, W], as an array [N, H, W] or an iterable; empty ones are left out.
        labels: [N] names, written inside the masks.
        scores: [N], written with two digits.
        ids: [N] identities, written as ``#3``.
        opacity: Of the colors over the image.
        outline: Whether to draw the borders.
    """
    check_opacity(opacity)
    size_hw = image_hw(image)
    cropped, count = _crop_masks(masks)
    texts = captions(count, labels=labels, scores=scores, ids=ids)
    colors = class_colors(count) if ids is None else identity_colors(ids)
    canvas, width = np.array(image, order="C"), outline_width(size_hw)
    cropped.sort(key=lambda mask: -mask.area)
    for mask in cropped:
        _paint(canvas, mask, colors[mask.index], opacity=opacity, width=width if outline else 0)
    size = text_size(size_hw, count=len(cropped))
    tags = [_mask_tag(mask, texts[mask.index], colors[mask.index], size) for mask in cropped if texts[mask.index]]
    draw_tags(canvas, tags, size=size)
    return canvas


def _crop_masks(masks: Iterable[NDArray[np.bool_]]) -> tuple[list[_CroppedMask], int]:
    """Return the masks that are not empty, and the number of all."""
    cropped, index = [], -1
    for index, mask in enumerate(masks):
        bounds = _bounding_box(mask)
        if bounds is not None:
            left, top, right, bottom = bounds
            inside = mask[top:bottom, left:right].copy()
            cropped.append(_CroppedMask(index, top, left, inside, area=int(inside.sum())))
    return cropped, index + 1


def _paint(canvas: RgbImage, mask: _CroppedMask, color: RgbImage, *, opacity: float, width: float) -> None:
    """Fill and outline a mask on `canvas`, in place, in a window a little larger than the mask."""
    height, wide = image_hw(canvas)
    margin = int(np.ceil(2 * width)) + 1
    top, left = max(mask.top - margin, 0), max(mask.left - margin, 0)
    high, across = mask.inside.shape
    bottom, right = min(mask.top + high + margin, height), min(mask.left + across + margin, wide)
    inside = np.zeros((bottom - top, right - left), dtype=bool)
    inside[mask.top - top :, mask.left - left :][:high, :across] = mask.inside
    weight = inside.view(np.uint8) * np.uint8(round(255 * opacity))
    window = tint(canvas[top:bottom, left:right], color, weight)
    if width:
        lighter = np.rint(255 - (255.0 - color) * 0.55).astype(int).tolist()
        _draw_outline(window, inside, color=lighter, width=width, opacity=0.92)
    canvas[top:bottom, left:right] = window


def _mask_tag(mask: _CroppedMask, text: str, color: RgbImage, size: int) -> Tag:
    """Return the tag of a mask: deep inside it, or above or below a small one."""
    x, y = _inner_point(mask.inside)
    high, _ = tag_hw(text, size)
    small = mask.inside.shape[0] < 2.5 * high  # a tag inside would cover it: put it above or below
    beyond = (-high / 2 - 1, mask.inside.shape[0] + high / 2 + 1)
    heights = [mask.top + offset for offset in (beyond if small else (y,))]
    return _tag_at(mask.left + x, heights, text, color, size)


def _tag_at(x: float, heights: Sequence[float], text: str, color: RgbImage, size: int) -> Tag:
    """Return a tag centered on one of these heights, or beside it."""
    high, wide = tag_hw(text, size)
    positions = tuple((x + shift * wide, y - high / 2) for y in heights for shift in (-0.5, -1.0, 0.0))
    return Tag(text=text, color=(int(color[0]), int(color[1]), int(color[2])), positions=positions)


def draw_panoptic(
    image: RgbImage | None,
    segmentation: NDArray[np.integer],
    *,
    labels: Mapping[int, str],
    classes: Mapping[int, int],
    opacity: float = 0.6,
    outline: bool = True,
) -> RgbImage:
    """Draw a panoptic map over an image: segments in colors, with white outlines and names where they fit.

    Args:
        image: uint8 [H, W, 3], or None to draw the segments alone.
        segmentation: [H, W], the number of each pixel's segment; 0 is none.
        labels: Names to write on segments, by their numbers.
        classes: Classes by segment number: segments of one class have shades of one color.
        opacity: Of the colors over the image.
        outline: Whether to draw the borders.
    """
    present, dense = _renumbered(segmentation)
    colors = _segment_colors(present, classes)
    background = 0 if 0 in present else None  # renumbered, too, it is the lowest
    canvas = draw_labels(image, dense, colors, opacity=opacity, legend=False, outline=outline, background=background)
    numbers, areas = list(present), -np.array(list(present.values()))
    order = [int(i) for i in np.argsort(areas, kind="stable") if numbers[i] in labels]  # large ones first
    size = text_size(image_hw(segmentation), count=len(order))
    draw_tags(canvas, _segment_tags(dense, order, [labels[numbers[i]] for i in order], colors, size), size=size)
    return canvas


def _segment_colors(numbers: Iterable[int], classes: Mapping[int, int]) -> RgbImage:
    """Return a color for each segment, [N, 3]: a shade of the color of its class."""
    palette, segments_of_class = class_colors(max(classes.values(), default=0) + 1), Counter[int]()
    colors = []
    for number in numbers:
        label = classes.get(number, 0)
        colors.append(_shade(palette[label], segments_of_class[label]))
        segments_of_class[label] += number in classes  # 0, no segment, has no class
    return np.array(colors, np.uint8)


def _shade(color: RgbImage, step: int) -> RgbImage:
    """Return the color itself for step 0, then lighter and darker ones."""
    share = (0.0, 0.38, -0.3, 0.6, -0.48)[step % 5]
    goal = 255.0 if share > 0 else 0.0
    return np.rint(color + (goal - color.astype(np.float64)) * abs(share)).astype(np.uint8)


def _segment_tags(
    dense: NDArray[np.integer], order: Sequence[int], texts: Sequence[str], colors: RgbImage, size: int
) -> list[Tag]:
    """Return tags for the segments that are large enough for a letter."""
    step = max(1, min(dense.shape) // 256)
    small = np.ascontiguousarray(dense[::step, ::step])
    tags = []
    for i, text in zip(order, texts, strict=True):
        inside = small == i
        bounds = _bounding_box(inside)
        if bounds is not None and inside.sum() * step**2 >= size**2:
            left, top, right, bottom = bounds
            x, y = _inner_point(inside[top:bottom, left:right])
            tags.append(_tag_at((left + x) * step, [(top + y) * step], text, colors[i], size))
    return tags
