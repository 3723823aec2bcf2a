"""How masks are compared with objects: at every pixel (MaskFormer) or at random points (Mask2Former).

Each comparison has costs for matching, of all queries with all objects, and the losses of matched pairs. Both bound
their memory: predictions are upsampled a few at a time or not at all, and the backward pass computes intermediate
values again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.images.types import SizeHW
from vitruvian.losses.focal_dice import FOCAL_ALPHA, cross_entropy_cost, dice_cost, focal_cost, mask_dice_loss
from vitruvian.losses.point_sampling import (
    sample_labels,
    sample_labels_at,
    sample_logits,
    sample_logits_at,
    uncertain_points,
)
from vitruvian.losses.terms import zero_like
from vitruvian.ops.interpolate import bilinear

_MAX_PIXELS = 1 << 22  # of a step of the dense loss, to bound temporary memory

Pairs = list[tuple[Tensor, Tensor]]  # of each image: matched queries and their objects


@dataclass(frozen=True)
class Target:
    """The objects of one image: masks [T, H, W] (bool, uint8 or floating point) and their classes [T]."""

    masks: Tensor
    classes: Tensor


@dataclass(frozen=True)
class PixelComparison:
    """Compare every pixel: focal loss and dice at the size of the labels, matched at the size of the predictions."""

    def cost(self, logits: Tensor, target: Target, frame_hw: SizeHW) -> tuple[Tensor, Tensor]:
        """Compare all queries with all objects: [Q, h, w] -> two costs [Q, T]."""
        expected = _downsample(target.masks, frame_hw, logits.shape[-2:]).flatten(1).float()  # [T, h·w]
        flat = logits.flatten(1).float()  # [Q, h·w]
        return focal_cost(flat, expected), dice_cost(flat, expected)

    def losses(
        self, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """Sum the losses of matched queries."""
        focal, dice = _PixelLosses.apply(logits, targets, pairs, frame_hw)  # type: ignore[no-untyped-call]
        return focal, dice


@dataclass(frozen=True)
class PointComparison:
    """Compare random points: cross-entropy and dice.

    Attributes:
        count: Number of points a mask.
        oversample_ratio: Candidates drawn for each point.
        importance_sample_ratio: Share of the points that are chosen for their uncertainty.
    """

    count: int = 12544
    oversample_ratio: float = 3.0
    importance_sample_ratio: float = 0.75

    def cost(self, logits: Tensor, target: Target, frame_hw: SizeHW) -> tuple[Tensor, Tensor]:
        """Compare all queries with all objects at the same random points: [Q, h, w] -> two costs [Q, T]."""
        points = torch.rand(1, self.count, 2, device=logits.device)[0]  # [P, 2]
        expected = sample_labels_at(target.masks, points, frame_hw)  # [T, P]
        predicted = sample_logits_at(logits, points)  # [Q, P]
        return cross_entropy_cost(predicted, expected), dice_cost(predicted, expected)

    def losses(
        self, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """Sum the losses of matched queries at points drawn for each of them."""
        counts = [len(queries) for queries, _ in pairs]
        images = torch.arange(len(pairs), device=logits.device).repeat_interleave(
            torch.tensor(counts, device=logits.device)
        )
        queries = torch.cat([chosen for chosen, _ in pairs])
        points = uncertain_points(
            logits.detach()[images, queries],
            count=self.count,
            oversample_ratio=self.oversample_ratio,
            importance_sample_ratio=self.importance_sample_ratio,
        )  # [M, P, 2]
        if not len(points):
            return zero_like(logits), zero_like(logits)
        expected = torch.cat(
            [
                sample_labels(target.masks, objects, part, frame_hw)
                for target, (_, objects), part in zip(targets, pairs, torch.split(points, counts), strict=True)
                if len(objects)
            ]
        )  # [M, P]
        both = checkpoint(
            _compare_points, logits, images, queries, points, expected, use_reentrant=False, preserve_rng_state=False
        )
        return both[0], both[1]


class _PixelLosses(torch.autograd.Function):
    """Sums of the focal and dice losses of matched maps, upsampled to the frame a few at a time.

    The same as `sigmoid_focal_loss` and `mask_dice_loss` of all of them. The gradient is explicit, and the backward
    pass upsamples the maps again: an autograd graph of chunks stores hundreds of small tensors between large ones,
    which fragments the heap.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """Compare logits [B, Q, h, w] with their objects."""
        ctx.save_for_backward(logits)
        ctx.labels = (targets, pairs, frame_hw)
        sums = torch.zeros(2, device=logits.device)
        for image, queries, expected in _mask_chunks(targets, pairs, frame_hw):
            flat = bilinear(logits[image, queries].float(), frame_hw).flatten(1)  # [m, H·W]
            probability, loss, error = _pixel_parts(flat, expected)
            loss = loss.mul_(error).mul_(error)
            both, whole = _overlaps(probability, expected)
            foreground = torch.linalg.vecdot(loss, expected)  # [m]
            weighted = (1 - FOCAL_ALPHA) * loss.sum(-1) + (2 * FOCAL_ALPHA - 1) * foreground
            sums += torch.stack((weighted.sum() / flat.shape[1], (1 - both / whole).sum()))
        return sums[0].clone(), sums[1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_focal: Tensor, grad_dice: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the logits."""
        (logits,) = ctx.saved_tensors
        targets, pairs, frame_hw = ctx.labels
        total = torch.zeros_like(logits)
        for image, queries, expected in _mask_chunks(targets, pairs, frame_hw):
            with torch.enable_grad():
                small = logits[image, queries].float().requires_grad_()
                large = bilinear(small, frame_hw)  # [m, H, W]
            flat = large.detach().flatten(1)
            probability, loss, error = _pixel_parts(flat, expected)
            both, whole = _overlaps(probability, expected)
            sigmoid_slope = probability - probability.square()
            # Slope of loss · error², by the product rule.
            slope = loss.mul_(error).mul_(sigmoid_slope).mul_(2 - 4 * expected)
            slope.addcmul_(probability - expected, error.square_())
            slope.mul_((1 - FOCAL_ALPHA + (2 * FOCAL_ALPHA - 1) * expected).mul_(grad_focal / flat.shape[1]))
            overlap_slope = (both / whole**2)[:, None] - (2 / whole)[:, None] * expected
            slope.addcmul_(overlap_slope.mul_(grad_dice), sigmoid_slope)
            (grad,) = torch.autograd.grad(large, small, slope.view_as(large))
            total[image, queries] = grad.to(total.dtype)
        return total, None, None, None


def _pixel_parts(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probability, cross-entropy, and one minus the probability of the true class of each pixel: [m, P] each."""
    probability = logits.sigmoid()
    loss = F.softplus(logits).addcmul_(logits, targets, value=-1)
    return probability, loss, torch.addcmul(probability, probability, targets, value=-2).add_(targets)


def _overlaps(probability: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of the smoothed overlap of each mask: [m, P] -> [m], [m]."""
    return 2 * torch.linalg.vecdot(probability, targets) + 1, probability.sum(-1) + targets.sum(-1) + 1


def _mask_chunks(targets: Sequence[Target], pairs: Pairs, frame_hw: SizeHW) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the image, a few matched queries [m] and their masks as floats over the whole frame [m, H·W]."""
    step = max(1, _MAX_PIXELS // (frame_hw[0] * frame_hw[1]))
    for image, (target, (queries, objects)) in enumerate(zip(targets, pairs, strict=True)):
        right, bottom = frame_hw[1] - target.masks.shape[2], frame_hw[0] - target.masks.shape[1]
        for start in range(0, len(queries), step):
            expected = target.masks[objects[start : start + step]].float()  # [m, H, W]
            yield image, queries[start : start + step], F.pad(expected, (0, right, 0, bottom)).flatten(1)


def _compare_points(logits: Tensor, images: Tensor, queries: Tensor, points: Tensor, expected: Tensor) -> Tensor:
    """Sums of the cross-entropy and dice losses of logits[images, queries] at points [M, P, 2]: [2]."""
    predicted = sample_logits(logits[images, queries], points)  # [M, P]
    cross_entropy = F.binary_cross_entropy_with_logits(predicted, expected, reduction="none").mean(1)
    return torch.stack((cross_entropy.sum(), mask_dice_loss(predicted, expected).sum()))


def _downsample(masks: Tensor, frame_hw: SizeHW, size_hw: Sequence[int]) -> Tensor:
    """Downsample masks to a grid over the frame by nearest neighbors: [T, H, W] -> [T, h, w], 0 outside masks."""
    rows, columns = (
        F.interpolate(torch.arange(frame, device=masks.device).float()[None, None], size=size)[0, 0].long()
        for frame, size in zip(frame_hw, size_hw, strict=True)
    )  # [h], [w]
    inside = (rows < masks.shape[1])[:, None] & (columns < masks.shape[2])  # [h, w]
    cells = masks[:, rows.clamp(max=masks.shape[1] - 1)][:, :, columns.clamp(max=masks.shape[2] - 1)]  # [T, h, w]
    return cells * inside
