"""The numbers of transformers' post-processing for MaskFormer and Mask2Former, for those who must reproduce them.

Known faults are part of it: masks pass through a fixed grid (`grid_hw`, 384×384 for Mask2Former), padding stays in,
instance masks are cut at probability 0.5 on the grid whatever the threshold, areas are taken from probabilities that
were already multiplied by the score, ids can collide when labels are fused, and every query is resized. Everything else
in the library uses `segments` and `semantic`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SizeHW = tuple[int, int]


def legacy_semantic(
    class_logits: Tensor, mask_logits: Tensor, *, grid_hw: SizeHW | None, target_hw: SizeHW | None
) -> tuple[Tensor, Tensor]:
    """Return the class of each pixel [H, W] and the scores [K, H, W], resized after the sum over queries."""
    masks = to_size(mask_logits, grid_hw)  # [Q, h, w]
    scores = torch.einsum("qk,qhw->khw", class_logits.softmax(-1)[:, :-1], masks.sigmoid())
    scores = to_size(scores, target_hw)  # [K, H, W]
    return scores.argmax(0), scores


def legacy_instances(
    class_logits: Tensor,
    mask_logits: Tensor,
    *,
    grid_hw: SizeHW | None,
    target_hw: SizeHW | None,
    threshold: float,
) -> tuple[Tensor, list[Tensor], list[dict[str, Any]]]:
    """Return a float32 map [H, W] of ids from 0 (-1: none, later ones on top), the float32 masks and their entries."""
    masks = to_size(mask_logits, grid_hw)  # [Q, h, w]
    chances = class_logits.softmax(-1)[:, :-1]  # [Q, K]
    best, pairs = chances.flatten().topk(len(chances), sorted=False)  # [Q]
    masks, labels = masks[pairs // chances.shape[1]], (pairs % chances.shape[1]).tolist()
    inside = (masks > 0).float()  # [Q, h, w]
    sureness = (masks.sigmoid() * inside).flatten(1).sum(1) / (inside.flatten(1).sum(1) + 1e-6)  # [Q]
    if target_hw is not None:
        inside = F.interpolate(inside[None], size=target_hw, mode="nearest")[0]  # [Q, H, W]
    ids = torch.full(inside.shape[1:], -1.0)  # [H, W]
    kept: list[Tensor] = []
    infos: list[dict[str, Any]] = []
    for mask, label, score in zip(inside, labels, (best * sureness).tolist(), strict=True):
        if score >= threshold and bool(mask.any()):
            ids[(mask == 1).to(ids.device)] = len(kept)
            infos.append({"id": len(kept), "label_id": label, "was_fused": False, "score": round(score, 6)})
            kept.append(mask)
    return ids, kept, infos


def legacy_panoptic(
    class_logits: Tensor,
    mask_logits: Tensor,
    *,
    grid_hw: SizeHW | None,
    target_hw: SizeHW | None,
    threshold: float,
    mask_threshold: float,
    overlap_mask_area_threshold: float,
    label_ids_to_fuse: Collection[int],
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Return an int32 map [H, W] of ids from 1 (a float map of -1 where no query is kept) and an entry a query."""
    chances = to_size(mask_logits, grid_hw).sigmoid()  # [Q, h, w]
    scores, labels = class_logits.softmax(-1).max(-1)  # [Q]
    kept = (labels != class_logits.shape[-1] - 1) & (scores > threshold)
    chances, scores, labels = chances[kept], scores[kept], labels[kept]
    if len(scores) == 0:
        return torch.full(target_hw or tuple(chances.shape[1:]), -1.0), []
    chances = to_size(chances, target_hw) * scores[:, None, None]  # [n, H, W]
    owner = chances.argmax(0)  # [H, W]
    ids = torch.zeros(owner.shape, dtype=torch.int32, device=owner.device)
    infos: list[dict[str, Any]] = []
    shared: dict[int, int] = {}
    current = 0
    for place, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True)):
        won, area = owner == place, (chances[place] >= mask_threshold).sum()
        if won.sum() == 0 or area == 0 or not bool(won.sum() / area > overlap_mask_area_threshold):
            continue
        fused = label in label_ids_to_fuse
        # Going back to a shared id also moves the counter back, so that the next id may be taken already.
        current = shared.get(label, current + 1)
        ids[won] = current
        infos.append({"id": current, "label_id": label, "was_fused": fused, "score": round(score, 6)})
        if fused:
            shared[label] = current
    return ids, infos


def legacy_runs(ids: Tensor) -> list[list[int]]:
    """Return, for each value in a map [H, W], its runs row by row: start (from 1) and length in turn, unlike COCO."""
    result = []
    for value in torch.unique(ids):
        inside = F.pad((ids == value).flatten().to(torch.int8), (1, 1))
        edges = inside.diff().nonzero()[:, 0] + 1
        starts, ends = edges[::2], edges[1::2]
        result.append(torch.stack([starts, ends - starts], dim=1).flatten().tolist())
    return result


def to_size(planes: Tensor, size_hw: SizeHW | None) -> Tensor:
    """Resize planes [N, h, w] bilinearly, or leave them."""
    if size_hw is None:
        return planes
    return F.interpolate(planes[None], size=size_hw, mode="bilinear", align_corners=False)[0]
