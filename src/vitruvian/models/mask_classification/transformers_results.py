"""Post-processing with the numbers of transformers, for `legacy=True`.

It has known faults: masks pass through a fixed grid (`grid_hw`, 384×384 for Mask2Former), padding stays in, instance
masks are cut at probability 0.5 on the grid whatever the threshold, areas are counted in probabilities multiplied by
the score, ids can collide when labels are fused, and every query is resized. Everything else in the library uses
`segments` and `semantic`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.images.types import SizeHW
from vitruvian.models.mask_classification.outputs import SegmentationResult
from vitruvian.models.mask_classification.segments import SegmentInfo, Thresholds
from vitruvian.ops.interpolate import bilinear

InstanceKind = Literal["map", "rle", "masks"]


def transformers_semantic(
    class_logits: Tensor, mask_logits: Tensor, *, grid_hw: SizeHW | None, target_hw: SizeHW | None
) -> SegmentationResult:
    """Return the class of each pixel [H, W] and the scores [K, H, W], resized after the sum over queries."""
    masks = _resize(mask_logits, grid_hw)  # [Q, h, w]
    scores = torch.einsum("qk,qhw->khw", class_logits.softmax(-1)[:, :-1], masks.sigmoid())
    scores = _resize(scores, target_hw)  # [K, H, W]
    return SegmentationResult(segmentation=scores.argmax(0), segmentation_scores=scores)


def transformers_instances(
    class_logits: Tensor,
    mask_logits: Tensor,
    kind: InstanceKind,
    *,
    grid_hw: SizeHW | None,
    target_hw: SizeHW | None,
    threshold: float,
) -> SegmentationResult:
    """Return a float32 map [H, W] of ids from 0 (-1: none, later ones on top), its runs, or float32 masks [N, H, W]."""
    masks = _resize(mask_logits, grid_hw)  # [Q, h, w]
    probabilities = class_logits.softmax(-1)[:, :-1]  # [Q, K]
    best, pairs = probabilities.flatten().topk(len(probabilities), sorted=False)  # [Q]
    masks, labels = masks[pairs // probabilities.shape[1]], (pairs % probabilities.shape[1]).tolist()
    inside = (masks > 0).float()  # [Q, h, w]
    mean = (masks.sigmoid() * inside).flatten(1).sum(1) / (inside.flatten(1).sum(1) + 1e-6)  # [Q]
    if target_hw is not None:
        inside = F.interpolate(inside[None], size=target_hw, mode="nearest")[0]  # [Q, H, W]
    ids = torch.full(inside.shape[1:], -1.0)  # [H, W]
    instances: list[Tensor] = []
    infos: list[dict[str, int | float]] = []
    for mask, label, score in zip(inside, labels, (best * mean).tolist(), strict=True):
        if score >= threshold and bool(mask.any()):
            ids[(mask == 1).to(ids.device)] = len(instances)
            infos.append(SegmentInfo(len(instances), label, score).info())
            instances.append(mask)
    segmentation: object = ids
    if kind == "rle":
        segmentation = _run_lengths(ids)
    elif kind == "masks" and instances:
        segmentation = torch.stack(instances)  # [N, H, W]
    return SegmentationResult(segmentation=segmentation, segments_info=infos)


def transformers_panoptic(
    class_logits: Tensor,
    mask_logits: Tensor,
    *,
    grid_hw: SizeHW | None,
    target_hw: SizeHW | None,
    thresholds: Thresholds,
    label_ids_to_fuse: Collection[int],
) -> SegmentationResult:
    """Return an int32 map [H, W] of ids from 1, or a float map of -1 without any query, and an entry a query."""
    masks = _resize(mask_logits, grid_hw).sigmoid()  # [Q, h, w]
    scores, labels = class_logits.softmax(-1).max(-1)  # [Q]
    chosen = (labels != class_logits.shape[-1] - 1) & (scores > thresholds.threshold)
    masks, scores, labels = masks[chosen], scores[chosen], labels[chosen]
    if len(scores) == 0:
        empty = torch.full(target_hw or tuple(masks.shape[1:]), -1.0)
        return SegmentationResult(segmentation=empty, segments_info=[])
    masks = _resize(masks, target_hw) * scores[:, None, None]  # [n, H, W]
    owner = masks.argmax(0)  # [H, W]
    ids = torch.zeros(owner.shape, dtype=torch.int32, device=owner.device)
    infos: list[dict[str, int | float]] = []
    shared: dict[int, int] = {}
    current = 0
    for number, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
        won, area = owner == number, (masks[number] >= thresholds.mask_threshold).sum()
        if won.sum() == 0 or area == 0 or not bool(won.sum() / area > thresholds.overlap_mask_area_threshold):
            continue
        fused = label in label_ids_to_fuse
        # Returning to a shared id also resets the counter, so that the next id may be in use already.
        current = shared.get(label, current + 1)
        ids[won] = current
        infos.append(SegmentInfo(current, label, score, fused).info())
        if fused:
            shared[label] = current
    return SegmentationResult(segmentation=ids, segments_info=infos)


def _run_lengths(ids: Tensor) -> list[list[int]]:
    """Return the runs of each value in a map [H, W]."""
    return [binary_mask_to_rle(ids == value) for value in torch.unique(ids)]


def binary_mask_to_rle(mask: Tensor | NDArray[Any]) -> list[int]:
    """Return alternating start (from 1) and length of the runs of a mask [H, W], row by row."""
    inside = F.pad(torch.as_tensor(mask).flatten().to(torch.int8), (1, 1))
    edges = inside.diff().nonzero()[:, 0] + 1
    starts, ends = edges[::2], edges[1::2]
    return torch.stack([starts, ends - starts], dim=1).flatten().tolist()


def _resize(planes: Tensor, size_hw: SizeHW | None) -> Tensor:
    """Resize planes [N, h, w] bilinearly; without a size, return them."""
    return planes if size_hw is None else bilinear(planes, size_hw)
