"""Panoptic and instance segmentation of one image from class logits [Q, K+1] and mask logits [Q, h, w].

    class logits ── softmax ──▶ labels and scores of the queries above the threshold
    mask logits  ── MaskGrid ─▶ their masks at full size, only where they can matter ──▶ maps, masks or RLE

Masks are resized once, bilinearly, from the model's grid to the target, then turned into probabilities and compared
with the threshold. There is no tensor of Q full-size planes: queries are resampled one at a time and in strips, inside
windows that contain every pixel they can win.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.rle import Rle, compress_counts, run_lengths
from vitruvian.images.types import SizeHW
from vitruvian.models.mask_classification.mask_grid import MaskGrid, Window

# Tolerance of bounds: rounding in float32 is far below it, and a class or window too many only costs time.
MARGIN = 1e-4


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """What a query must reach to become a segment. Each is a number from 0 to 1.

    Attributes:
        threshold: Score of a segment.
        mask_threshold: Probability of a pixel in a mask.
        overlap_mask_area_threshold: Share of its mask that a query must win against others.
    """

    threshold: float = 0.5
    mask_threshold: float = 0.5
    overlap_mask_area_threshold: float = 0.8

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value <= 1:
                raise InputError(f"{name}: expected a number from 0 to 1, got {value!r}.")

    def accepts_area(self, visible_area: int, area: int) -> bool:
        """Return whether a query wins enough pixels of its mask."""
        return visible_area > 0 and visible_area >= self.overlap_mask_area_threshold * area


@dataclasses.dataclass(frozen=True)
class SegmentInfo:
    """One object or region."""

    id: int
    label_id: int
    score: float
    was_fused: bool = False

    def info(self) -> dict[str, int | float]:
        """Return the entry of `segments_info`; scores carry six digits."""
        fields: dict[str, int | float] = {"id": self.id, "label_id": self.label_id, "was_fused": self.was_fused}
        return fields | {"score": round(self.score, 6)}


@dataclasses.dataclass(frozen=True)
class BitMask:
    """A mask of a large image, stored as packed bits of its window."""

    window: Window
    bits: npt.NDArray[np.uint8]
    area: int

    @classmethod
    def make(cls, window: Window, mask: npt.NDArray[np.bool_]) -> BitMask:
        """Pack the mask [bottom - top, right - left] of a window."""
        return cls(window, np.packbits(mask, axis=1), int(mask.sum()))

    def pixels(self) -> npt.NDArray[np.bool_]:
        """Return the mask inside its window."""
        _, _, left, right = self.window
        return np.unpackbits(self.bits, axis=1, count=right - left).view(np.bool_)

    def rle(self, size_hw: SizeHW) -> Rle:
        """Encode for an image of `size_hw`, reading the columns of the window only."""
        (height, width), (top, bottom, left, right) = size_hw, self.window
        columns = np.zeros((1, height, right - left), dtype=np.bool_)
        columns[0, top:bottom] = self.pixels()
        (counts,) = run_lengths(torch.from_numpy(columns))
        before, after = left * height, (width - right) * height
        counts[0] += before
        if len(counts) % 2 == 1:  # ends in background, which continues
            counts[-1] += after
        elif after:
            counts = np.append(counts, after)
        return {"size": [height, width], "counts": compress_counts(counts)}


# ------------------------------------------------------------------------------------------------------- maps


def panoptic_segments(
    class_logits: Tensor, grid: MaskGrid, thresholds: Thresholds, label_ids_to_fuse: Collection[int] = ()
) -> tuple[Tensor, list[SegmentInfo]]:
    """Assign each pixel to at most one segment: int32 [H, W] of ids from 1, 0 for none, and the segments.

    A pixel goes to the query with the highest class score × mask probability, if its mask probability reaches
    `mask_threshold`. A query that wins less than `overlap_mask_area_threshold` of its own mask is dropped.
    Queries of a label in `label_ids_to_fuse` share one segment, with the highest of their scores.
    """
    scores, labels = class_scores(class_logits, grid).max(-1)  # [Q], [Q]
    queries = ((labels < class_logits.shape[-1] - 1) & (scores > thresholds.threshold)).nonzero()[:, 0]  # [n]
    rows = list(zip(queries.tolist(), labels[queries].tolist(), scores[queries].tolist(), strict=True))
    return _segment_map(grid, rows, thresholds, empty_id=0, fuse=label_ids_to_fuse)


def instance_map(class_logits: Tensor, grid: MaskGrid, thresholds: Thresholds) -> tuple[Tensor, list[SegmentInfo]]:
    """Assign each pixel to at most one instance: int32 [H, W] of ids from 0, -1 for none, and the instances.

    The score of an instance is its class score × the mean probability of its mask. Pixels are assigned and overlaps
    resolved as in `panoptic_segments`; ids follow the scores, best first.
    """
    best: dict[int, tuple[int, int, float]] = {}  # by query; a second label of the same mask could never win
    for query, label, score, _ in _scored_masks(class_logits, grid, thresholds):
        best.setdefault(query, (query, label, score))
    return _segment_map(grid, list(best.values()), thresholds, empty_id=-1)


def _segment_map(
    grid: MaskGrid,
    rows: list[tuple[int, int, float]],
    thresholds: Thresholds,
    *,
    empty_id: int,
    fuse: Collection[int] = (),
) -> tuple[Tensor, list[SegmentInfo]]:
    """Let queries, rows of (query, label, score), compete for pixels; the first segment has the id `empty_id` + 1."""
    owner, areas = _assign_pixels(grid, rows, thresholds.mask_threshold)
    new_ids = [empty_id]
    segments: list[SegmentInfo] = []
    fused: dict[int, int] = {}  # label: index in segments
    for (_, label, score), area, visible_area in zip(rows, areas, _count_pixels(owner, len(rows)), strict=True):
        if not thresholds.accepts_area(visible_area, area):
            new_ids.append(empty_id)
        elif label in fused:
            first = segments[fused[label]]
            segments[fused[label]] = dataclasses.replace(first, score=max(first.score, score))
            new_ids.append(first.id)
        else:
            if label in fuse:
                fused[label] = len(segments)
            segments.append(SegmentInfo(empty_id + 1 + len(segments), label, score, label in fuse))
            new_ids.append(segments[-1].id)
    return _replace_ids(owner, new_ids), segments


def _assign_pixels(
    grid: MaskGrid, rows: list[tuple[int, int, float]], mask_threshold: float
) -> tuple[Tensor, list[int]]:
    """Let n queries compete for each pixel by score × mask probability.

    Returns int32 [H, W] with 1 + the index of the winner's row, or 0 where the winner's mask probability is below the
    threshold, and how many pixels of each query reach the threshold.
    """
    device = grid.logits.device
    owner = torch.zeros(grid.size_hw, dtype=torch.int32, device=device)  # [H, W]
    if not rows:
        return owner, []
    best = torch.zeros(grid.size_hw, device=device)  # [H, W]
    scores = torch.tensor([score for _, _, score in rows], device=device)  # [n]
    # A pixel is assigned only where some query reaches the threshold, with at least the lowest score times the
    # threshold. A query below that product cannot win there.
    needed = (mask_threshold * scores.min() / scores).clamp(max=1 - 1e-7)
    areas = []
    windows = grid.windows([query for query, _, _ in rows], torch.logit(needed) - MARGIN)
    for number, ((query, _, score), window) in enumerate(zip(rows, windows, strict=True), start=1):
        area = 0
        for strip in grid.strips(window):
            top, bottom, left, right = strip
            probability = grid.at(query, strip).sigmoid_()
            inside = probability >= mask_threshold
            area += int(inside.sum())
            probability *= score
            wins = probability > best[top:bottom, left:right]
            owner[top:bottom, left:right] = torch.where(wins, inside.int() * number, owner[top:bottom, left:right])
            best[top:bottom, left:right] = torch.maximum(best[top:bottom, left:right], probability)
        areas.append(area)
    return owner, areas


def _count_pixels(owner: Tensor, count: int) -> list[int]:
    """Return how many pixels of owner [H, W] belong to each of `count` owners, numbered from 1."""
    totals = torch.zeros(count + 1, dtype=torch.int64, device=owner.device)
    for rows in _row_blocks(owner):
        totals += torch.bincount(rows.flatten(), minlength=count + 1)
    return [int(total) for total in totals[1:]]


def _row_blocks(plane: Tensor) -> Iterator[Tensor]:
    """Split a plane [H, W] into blocks of whole rows, views of about a million pixels each."""
    step = max(1, (1 << 20) // plane.shape[1])
    for top in range(0, len(plane), step):
        yield plane[top : top + step]


def _replace_ids(owner: Tensor, new_ids: list[int]) -> Tensor:
    """Replace each number n in owner [H, W] by `new_ids[n]`; modifies owner in place."""
    table = torch.tensor(new_ids, dtype=torch.int32, device=owner.device)
    for rows in _row_blocks(owner):
        rows.copy_(table[rows.long()])
    return owner


# ------------------------------------------------------------------------------------------------------- masks


def instance_masks(
    class_logits: Tensor, grid: MaskGrid, thresholds: Thresholds
) -> tuple[list[BitMask], list[SegmentInfo]]:
    """Return the masks of instances, which may overlap, and the instances, best first.

    As `instance_map`, except that instances of different labels do not compete: an instance is dropped where better
    ones of the same label leave it less than `overlap_mask_area_threshold` of its mask.
    """
    scored = _scored_masks(class_logits, grid, thresholds)
    repeated = [label for label, count in Counter(label for _, label, _, _ in scored).items() if count > 1]
    covered_by_label = {label: np.zeros(grid.size_hw, dtype=np.bool_) for label in repeated}
    masks: list[BitMask] = []
    segments: list[SegmentInfo] = []
    for _, label, score, mask in scored:
        if label in covered_by_label:
            top, bottom, left, right = mask.window
            covered, pixels = covered_by_label[label][top:bottom, left:right], mask.pixels()
            if not thresholds.accepts_area(mask.area - int(np.count_nonzero(covered & pixels)), mask.area):
                continue
            covered |= pixels
        masks.append(mask)
        segments.append(SegmentInfo(len(segments), label, score))
    return masks, segments


def _scored_masks(
    class_logits: Tensor, grid: MaskGrid, thresholds: Thresholds
) -> list[tuple[int, int, float, BitMask]]:
    """Return (query, label, score, mask) of at most Q that reach the threshold and have pixels, best first.

    A query may have several labels. The score is class score × mean mask probability, so the mask of a query whose
    class score alone is too low is never resampled.
    """
    scores = class_scores(class_logits, grid)[:, :-1]  # [Q, K]
    best, pairs = scores.flatten().topk(min(len(scores), scores.numel()))  # [Q]
    reached = best >= thresholds.threshold
    best, pairs = best[reached], pairs[reached]
    queries, labels = (pairs // scores.shape[1]).tolist(), (pairs % scores.shape[1]).tolist()
    masks = {query: (mean, mask) for query, mean, mask in _resample_masks(grid, queries, thresholds.mask_threshold)}
    scored = [
        (query, label, score * masks[query][0], masks[query][1])
        for query, label, score in zip(queries, labels, best.tolist(), strict=True)
    ]
    scored = [row for row in scored if row[2] >= thresholds.threshold and row[3].area > 0]
    return sorted(scored, key=lambda row: -row[2])


def _resample_masks(
    grid: MaskGrid, queries: Collection[int], mask_threshold: float
) -> Iterator[tuple[int, float, BitMask]]:
    """Yield each distinct query with the mean probability inside its mask (0 where it is empty) and the mask."""
    distinct = list(dict.fromkeys(queries))
    # Bounded: in float32 the sigmoid of 17 is 1.
    logit = math.log(max(mask_threshold, 1e-30) / max(1 - mask_threshold, 1e-7))
    level = torch.full((len(distinct),), logit - MARGIN, device=grid.logits.device)
    for query, window in zip(distinct, grid.windows(distinct, level), strict=True):
        top, bottom, left, right = window
        pixels = np.zeros((bottom - top, right - left), dtype=np.bool_)
        total = 0.0
        for strip in grid.strips(window):
            probability = grid.at(query, strip).sigmoid_()
            inside = probability >= mask_threshold
            total += float((probability * inside).sum())
            pixels[strip[0] - top : strip[1] - top] = inside.cpu().numpy()
        mask = BitMask.make(window, pixels)
        yield query, total / max(mask.area, 1), mask


def stack_masks(masks: list[BitMask], size_hw: SizeHW, device: torch.device | None = None) -> Tensor:
    """Return masks as one bool tensor [N, H, W]."""
    planes = torch.zeros((len(masks), *size_hw), dtype=torch.bool, device=device)
    for plane, mask in zip(planes, masks, strict=True):
        top, bottom, left, right = mask.window
        plane[top:bottom, left:right] = torch.from_numpy(mask.pixels()).to(plane.device)
    return planes  # [N, H, W]


def class_scores(class_logits: Tensor, grid: MaskGrid) -> Tensor:
    """Return the probability of each class, the last being "no object", for each query: float32 [Q, K+1]."""
    if class_logits.ndim != 2 or class_logits.shape[1] < 2 or len(class_logits) != len(grid.logits):
        raise InputError(
            f"class logits: expected the shape [{len(grid.logits)} queries, classes + 1], "
            f"got {list(class_logits.shape)}."
        )
    return class_logits.float().softmax(-1)
