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
from vitruvian.models.mask_classification.mask_grid import MaskGrid, SizeHW, Window

# Tolerance of bounds: rounding in float32 is far below it, and a class or window too many only costs time.
MARGIN = 1e-4


@dataclasses.dataclass(frozen=True)
class Segment:
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
class SmallMask:
    """A mask of a large image, stored as packed bits of its window."""

    window: Window
    bits: npt.NDArray[np.uint8]
    area: int

    @classmethod
    def make(cls, window: Window, mask: npt.NDArray[np.bool_]) -> SmallMask:
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


# ------------------------------------------------------------------------------------------------------- panoptic


def panoptic_segments(
    class_logits: Tensor,
    grid: MaskGrid,
    *,
    threshold: float = 0.5,
    mask_threshold: float = 0.5,
    overlap_mask_area_threshold: float = 0.8,
    label_ids_to_fuse: Collection[int] = (),
) -> tuple[Tensor, list[Segment]]:
    """Assign each pixel to at most one segment: int32 [H, W] of ids from 1, 0 for none, and the segments.

    A pixel goes to the query with the highest class score × mask probability, if its mask probability reaches
    `mask_threshold`. A query that wins less than `overlap_mask_area_threshold` of its own mask is dropped.
    Queries of a label in `label_ids_to_fuse` share one segment, with the highest of their scores.
    """
    _check_fractions(threshold=threshold, mask_threshold=mask_threshold, overlap=overlap_mask_area_threshold)
    scores, labels = class_scores(class_logits, grid).max(-1)  # [Q], [Q]
    queries = ((labels < class_logits.shape[-1] - 1) & (scores > threshold)).nonzero()[:, 0]  # [n]
    scores, label_list = scores[queries], labels[queries].tolist()
    owner, areas = _assign_pixels(grid, queries, scores, mask_threshold)
    visible = _count_pixels(owner, len(label_list))

    new_ids = [0]
    segments: list[Segment] = []
    fused: dict[int, int] = {}  # label: index in segments
    for label, score, area, visible_area in zip(label_list, scores.tolist(), areas, visible, strict=True):
        if visible_area == 0 or visible_area < overlap_mask_area_threshold * area:
            new_ids.append(0)
        elif label in fused:
            first = segments[fused[label]]
            segments[fused[label]] = dataclasses.replace(first, score=max(first.score, score))
            new_ids.append(first.id)
        else:
            segments.append(Segment(len(segments) + 1, label, score, label in label_ids_to_fuse))
            new_ids.append(len(segments))
            if label in label_ids_to_fuse:
                fused[label] = len(segments) - 1
    return _replace_ids(owner, new_ids), segments


def _assign_pixels(grid: MaskGrid, queries: Tensor, scores: Tensor, mask_threshold: float) -> tuple[Tensor, list[int]]:
    """Let n queries compete for each pixel by score × mask probability.

    Returns int32 [H, W] with 1 + the position in `queries` of the winner, or 0 where the winner's mask probability is
    below the threshold, and how many pixels of each query reach the threshold.
    """
    owner = torch.zeros(grid.size_hw, dtype=torch.int32, device=grid.logits.device)  # [H, W]
    if len(queries) == 0:
        return owner, []
    best = torch.zeros(grid.size_hw, device=grid.logits.device)  # [H, W]
    # A pixel is assigned only where some query reaches the threshold, with at least the lowest score times the
    # threshold. A query below that product cannot win there.
    needed = (mask_threshold * scores.min() / scores).clamp(max=1 - 1e-7)
    areas = []
    windows = grid.windows(queries, torch.logit(needed) - MARGIN)
    for number, (query, score, window) in enumerate(
        zip(queries.tolist(), scores.tolist(), windows, strict=True), start=1
    ):
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


# ------------------------------------------------------------------------------------------------------- instances


def instance_map(
    class_logits: Tensor,
    grid: MaskGrid,
    *,
    threshold: float = 0.5,
    mask_threshold: float = 0.5,
    overlap_mask_area_threshold: float = 0.8,
) -> tuple[Tensor, list[Segment]]:
    """Assign each pixel to at most one instance: int32 [H, W] of ids from 0, -1 for none, and the instances.

    The score of an instance is its class score × the mean probability of its mask. Pixels are assigned and overlaps
    resolved as in `panoptic_segments`; ids follow the scores, best first.
    """
    _check_fractions(threshold=threshold, mask_threshold=mask_threshold, overlap=overlap_mask_area_threshold)
    best: dict[int, tuple[float, int]] = {}  # query: score, label; a second label of the same mask could never win
    for query, label, score, _ in _scored_masks(class_logits, grid, threshold, mask_threshold):
        best.setdefault(query, (score, label))
    ranked = list(best)
    device = grid.logits.device
    scores = torch.tensor([best[query][0] for query in ranked], device=device)
    owner, areas = _assign_pixels(grid, torch.tensor(ranked, dtype=torch.int64, device=device), scores, mask_threshold)

    new_ids = [-1]
    segments: list[Segment] = []
    for query, area, visible_area in zip(ranked, areas, _count_pixels(owner, len(ranked)), strict=True):
        if visible_area == 0 or visible_area < overlap_mask_area_threshold * area:
            new_ids.append(-1)
        else:
            new_ids.append(len(segments))
            segments.append(Segment(len(segments), best[query][1], best[query][0]))
    return _replace_ids(owner, new_ids), segments


def instance_masks(
    class_logits: Tensor,
    grid: MaskGrid,
    *,
    threshold: float = 0.5,
    mask_threshold: float = 0.5,
    overlap_mask_area_threshold: float = 0.8,
) -> tuple[list[SmallMask], list[Segment]]:
    """Return the masks of instances, which may overlap, and the instances, best first.

    As `instance_map`, except that instances of different labels do not compete: an instance is dropped where better
    ones of the same label leave it less than `overlap_mask_area_threshold` of its mask.
    """
    _check_fractions(threshold=threshold, mask_threshold=mask_threshold, overlap=overlap_mask_area_threshold)
    rated = _scored_masks(class_logits, grid, threshold, mask_threshold)
    repeated = [label for label, count in Counter(label for _, label, _, _ in rated).items() if count > 1]
    covered_by_label = {label: np.zeros(grid.size_hw, dtype=np.bool_) for label in repeated}
    masks: list[SmallMask] = []
    segments: list[Segment] = []
    for _, label, score, mask in rated:
        if label in covered_by_label:
            top, bottom, left, right = mask.window
            covered, pixels = covered_by_label[label][top:bottom, left:right], mask.pixels()
            visible_area = mask.area - int(np.count_nonzero(covered & pixels))
            if visible_area == 0 or visible_area < overlap_mask_area_threshold * mask.area:
                continue
            covered |= pixels
        masks.append(mask)
        segments.append(Segment(len(segments), label, score))
    return masks, segments


def _scored_masks(
    class_logits: Tensor, grid: MaskGrid, threshold: float, mask_threshold: float
) -> list[tuple[int, int, float, SmallMask]]:
    """Return (query, label, score, mask) of at most Q that reach `threshold` and have pixels, best first.

    A query may have several labels. The score is class score × mean mask probability, so the mask of a query whose
    class score alone is too low is never resampled.
    """
    scores = class_scores(class_logits, grid)[:, :-1]  # [Q, K]
    best, pairs = scores.flatten().topk(min(len(scores), scores.numel()))  # [Q]
    best, pairs = best[best >= threshold], pairs[best >= threshold]
    queries, labels = (pairs // scores.shape[1]).tolist(), (pairs % scores.shape[1]).tolist()
    masks = {query: (mean, mask) for query, mean, mask in _resample_masks(grid, queries, mask_threshold)}
    rated = [
        (query, label, score * masks[query][0], masks[query][1])
        for query, label, score in zip(queries, labels, best.tolist(), strict=True)
    ]
    rated = [row for row in rated if row[2] >= threshold and row[3].area > 0]
    return sorted(rated, key=lambda row: -row[2])


def _resample_masks(
    grid: MaskGrid, queries: Collection[int], mask_threshold: float
) -> Iterator[tuple[int, float, SmallMask]]:
    """Yield each distinct query with the mean probability inside its mask (0 where it is empty) and the mask."""
    distinct = list(dict.fromkeys(queries))
    index = torch.tensor(distinct, dtype=torch.int64, device=grid.logits.device)
    level = torch.full((len(distinct),), _logit_of(mask_threshold) - MARGIN, device=grid.logits.device)
    for query, window in zip(distinct, grid.windows(index, level), strict=True):
        top, bottom, left, right = window
        pixels = np.zeros((bottom - top, right - left), dtype=np.bool_)
        total = 0.0
        for strip in grid.strips(window):
            probability = grid.at(query, strip).sigmoid_()
            inside = probability >= mask_threshold
            total += float((probability * inside).sum())
            pixels[strip[0] - top : strip[1] - top] = inside.cpu().numpy()
        mask = SmallMask.make(window, pixels)
        yield query, total / max(mask.area, 1), mask


def stack_masks(masks: list[SmallMask], size_hw: SizeHW, device: torch.device | None = None) -> Tensor:
    """Return masks as one bool tensor [N, H, W]."""
    planes = torch.zeros((len(masks), *size_hw), dtype=torch.bool, device=device)
    for plane, mask in zip(planes, masks, strict=True):
        top, bottom, left, right = mask.window
        plane[top:bottom, left:right] = torch.from_numpy(mask.pixels()).to(plane.device)
    return planes  # [N, H, W]


# ------------------------------------------------------------------------------------------------------- shared


def class_scores(class_logits: Tensor, grid: MaskGrid) -> Tensor:
    """Return the probability of each class, the last being "no object", for each query: float32 [Q, K+1]."""
    if class_logits.ndim != 2 or class_logits.shape[1] < 2 or len(class_logits) != len(grid.logits):
        raise InputError(
            f"class logits: expected the shape [{len(grid.logits)} queries, classes + 1], "
            f"got {list(class_logits.shape)}."
        )
    return class_logits.float().softmax(-1)


def _logit_of(probability: float) -> float:
    """Return the logit of a probability, bounded: in float32 the sigmoid of 17 is 1."""
    return math.log(max(probability, 1e-30) / max(1 - probability, 1e-7))


def _check_fractions(**values: float) -> None:
    """Raise `InputError` unless each value lies between 0 and 1."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise InputError(f"{name}: expected a number from 0 to 1, got {value!r}.")
