"""The set loss of MaskFormer and Mask2Former: match queries with objects, then compare their classes and masks.

    labels ─▶ targets                  ─┐
    class logits [B, Q, K + 1]        ─┼▶ costs ─▶ assign ─▶ class loss over all queries, mask losses over the pairs
    mask logits [B, Q, h, w]          ─┘

`PixelComparison` (MaskFormer) compares every pixel, `PointComparison` (Mask2Former) random points, most where the
prediction is uncertain. Both bound their memory: labels stay bool (or RLE, decoded once), predictions are upsampled a
few at a time or not at all, and the backward pass computes intermediate values again.

In distributed training the loss of each process is divided by counts averaged over the processes, so that the mean of
their losses is the loss of the whole batch. The reference averages the number of masks twice (`reduce` is a mean
already, then it divides by the number of processes again), which makes mask losses too large by that number, and does
not average the sum of the class weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.errors import InputError
from vitruvian.images.rle import decode_rle
from vitruvian.losses.focal_dice import (
    FOCAL_ALPHA,
    class_cost,
    cross_entropy_cost,
    dice_cost,
    focal_cost,
    mask_dice_loss,
)
from vitruvian.losses.point_sampling import (
    sample_labels,
    sample_labels_at,
    sample_logits,
    sample_logits_at,
    uncertain_points,
)
from vitruvian.losses.terms import LossTerms, sum_over_processes, zero_like
from vitruvian.ops.assignment import assign
from vitruvian.ops.dispatch import no_compile
from vitruvian.ops.interpolate import bilinear

_MAX_PIXELS = 1 << 22  # of a step of the dense loss, to bound temporary memory

MaskLabels = Tensor | Sequence[Mapping[str, object]]
Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Target:
    """The objects of one image: masks [T, H, W] (bool, uint8 or floating point) and their classes [T]."""

    masks: Tensor
    classes: Tensor


@dataclass(frozen=True)
class MaskLossWeights:
    """Weights of the class loss, of the focal or cross-entropy loss of masks, and of their dice loss."""

    loss_cross_entropy: float = 1.0
    loss_mask: float = 1.0
    loss_dice: float = 1.0


class MaskSetLoss(nn.Module):
    """Match queries with objects and compare them.

    Args:
        num_labels: Number of classes K; class K means "no object".
        no_object_weight: Weight of "no object" in the class loss.
        weights: Weights of the three losses.
        class_cost_weight: Weight of the class in the matching; masks and dice count there as in the loss.
        comparison: How masks are compared.

    The buffer `empty_weight` is only there for files: weights come from the configuration.
    """

    empty_weight: Tensor

    def __init__(
        self,
        *,
        num_labels: int,
        no_object_weight: float,
        weights: MaskLossWeights,
        class_cost_weight: float,
        comparison: PixelComparison | PointComparison,
    ) -> None:
        super().__init__()
        self.num_labels, self.no_object_weight = num_labels, no_object_weight
        self.weights, self.class_cost_weight, self.comparison = weights, class_cost_weight, comparison
        self.register_buffer("empty_weight", torch.ones(num_labels + 1))

    @torch.no_grad()
    def init_parameters(self) -> None:
        """Set the weights of the classes."""
        self.empty_weight.fill_(1.0)
        self.empty_weight[-1] = self.no_object_weight

    @no_compile
    def forward(
        self,
        masks_queries_logits: Tensor,
        class_queries_logits: Tensor,
        mask_labels: Sequence[MaskLabels],
        class_labels: Sequence[Tensor],
        auxiliary_predictions: Sequence[Mapping[str, Tensor]] = (),
    ) -> LossTerms:
        """Return the loss and its terms; those of auxiliary prediction i have the suffix ``_i``.

        Args:
            masks_queries_logits: Scores of the pixels [B, Q, h, w].
            class_queries_logits: Scores of the classes [B, Q, K + 1].
            mask_labels: For each image its masks [T, H, W] of any type, or a list of COCO RLEs.
            class_labels: For each image the classes of its masks [T].
            auxiliary_predictions: Further predictions, as dicts of the first two.
        """
        targets = _read_targets(mask_labels, class_labels, like=masks_queries_logits, num_labels=self.num_labels)
        frame_hw = (max(t.masks.shape[1] for t in targets), max(t.masks.shape[2] for t in targets))
        num_masks, num_classes = self.counts(targets, masks_queries_logits)
        final = {"masks_queries_logits": masks_queries_logits, "class_queries_logits": class_queries_logits}
        terms: dict[str, Tensor] = {}
        total = zero_like(masks_queries_logits)
        for number, prediction in enumerate([final, *auxiliary_predictions]):
            masks, classes = prediction["masks_queries_logits"], prediction["class_queries_logits"]
            pairs = self.match(masks, classes, targets, frame_hw)
            mask_loss, dice_loss = self.comparison.losses(masks, targets, pairs, frame_hw)
            losses = {
                "loss_mask": mask_loss / num_masks,
                "loss_dice": dice_loss / num_masks,
                "loss_cross_entropy": self.class_loss(classes, targets, pairs) / num_classes,
            }
            for name, value in losses.items():
                terms[f"{name}_{number - 1}" if number else name] = value
                total = total + getattr(self.weights, name) * value
        return LossTerms(total=total, terms=terms)

    @torch.no_grad()
    def match(self, masks: Tensor, classes: Tensor, targets: Sequence[Target], frame_hw: tuple[int, int]) -> Pairs:
        """Pair queries with objects: [B, Q, h, w], [B, Q, K + 1] -> for each image the queries and their objects."""
        pairs = []
        for logits, scores, target in zip(masks, classes, targets, strict=True):
            mask_cost, overlap_cost = self.comparison.cost(logits, target, frame_hw)
            cost = self.weights.loss_mask * mask_cost + self.weights.loss_dice * overlap_cost
            cost = cost + self.class_cost_weight * class_cost(scores, target.classes)  # [Q, T]
            queries, objects = assign(cost.float().cpu().numpy())
            pairs.append((torch.from_numpy(queries).to(cost.device), torch.from_numpy(objects).to(cost.device)))
        return pairs

    def class_loss(self, logits: Tensor, targets: Sequence[Target], pairs: Pairs) -> Tensor:
        """Sum of the weighted cross-entropies of all queries; the target of unmatched ones is "no object"."""
        expected = torch.full(logits.shape[:2], self.num_labels, device=logits.device)  # [B, Q]
        for row, target, (queries, objects) in zip(expected, targets, pairs, strict=True):
            row[queries] = target.classes[objects]
        weight = torch.ones(self.num_labels + 1, device=logits.device)
        weight[-1] = self.no_object_weight
        return F.cross_entropy(logits.flatten(0, 1).float(), expected.flatten(), weight=weight, reduction="sum")

    @torch.no_grad()
    def counts(self, targets: Sequence[Target], logits: Tensor) -> tuple[Tensor, Tensor]:
        """Number of masks (at least 1) and sum of class weights to divide by, as averages over all processes."""
        queries = logits.shape[1]
        objects = [len(target.classes) for target in targets]
        matched = sum(min(count, queries) for count in objects)
        empty = len(targets) * queries - matched
        sums = [float(sum(objects)), matched + empty * self.no_object_weight, 1.0]
        masks, weights, processes = sum_over_processes(torch.tensor(sums, device=logits.device)).unbind()
        return (masks / processes).clamp(min=1), (weights / processes).clamp(min=torch.finfo(torch.float32).tiny)


def _read_targets(
    mask_labels: Sequence[MaskLabels], class_labels: Sequence[Tensor], *, like: Tensor, num_labels: int
) -> list[Target]:
    """Check the labels of a batch and move them to the device of `like` [B, …]; RLEs are decoded to bool."""
    if len(mask_labels) != like.shape[0] or len(class_labels) != like.shape[0]:
        raise InputError(
            f"mask_labels and class_labels: expected one entry for each of {like.shape[0]} images, "
            f"got {len(mask_labels)} and {len(class_labels)}."
        )
    targets = []
    for number, (masks, classes) in enumerate(zip(mask_labels, class_labels, strict=True)):
        stack = masks if isinstance(masks, Tensor) else _decode_rles(masks)
        if stack.ndim != 3 or min(stack.shape[1:]) < 1:
            raise InputError(
                f"mask_labels[{number}]: expected shape [T, H, W] or a list of RLEs, got {list(stack.shape)}."
            )
        labels = torch.as_tensor(classes).flatten()
        if len(labels) != len(stack):
            raise InputError(
                f"class_labels[{number}]: expected one class for each of {len(stack)} masks, got {len(labels)}."
            )
        if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_labels):
            raise InputError(
                f"class_labels[{number}]: expected classes from 0 to {num_labels - 1}, got {labels.tolist()}. "
                "Build the model with a larger num_labels, or leave out masks that should be ignored."
            )
        stack = stack.to(like.device)
        if stack.dtype != torch.bool and stack.numel() and stack.max() > 1:
            stack = stack.masked_fill(stack > 1, 0)  # processors fill the padding of a batch with their ignore index
        targets.append(Target(stack.contiguous(), labels.to(like.device, torch.int64)))
    return targets


def _decode_rles(rles: Sequence[Mapping[str, object]]) -> Tensor:
    """Decode COCO RLEs of one image to bool masks [T, H, W]."""
    if not len(rles):
        return torch.zeros(0, 1, 1, dtype=torch.bool)
    masks = [decode_rle(rle) if isinstance(rle, Mapping) else torch.as_tensor(rle) for rle in rles]
    sizes = {tuple(mask.shape) for mask in masks}
    if len(sizes) > 1:
        raise InputError(f"mask_labels: expected the masks of an image to have one size, got {sorted(sizes)}.")
    return torch.stack(masks)  # [T, H, W]


# ------------------------------------------------------------------------------------------ comparison of masks


@dataclass(frozen=True)
class PixelComparison:
    """Compare every pixel: focal loss and dice at the size of the labels, matched at the size of the predictions."""

    def cost(self, logits: Tensor, target: Target, frame_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Compare all queries with all objects: [Q, h, w] -> two costs [Q, T]."""
        expected = _downsample(target.masks, frame_hw, logits.shape[-2:]).flatten(1).float()  # [T, h·w]
        flat = logits.flatten(1).float()  # [Q, h·w]
        return focal_cost(flat, expected), dice_cost(flat, expected)

    def losses(
        self, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
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

    def cost(self, logits: Tensor, target: Target, frame_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Compare all queries with all objects at the same random points: [Q, h, w] -> two costs [Q, T]."""
        points = torch.rand(1, self.count, 2, device=logits.device)[0]  # [P, 2]
        expected = sample_labels_at(target.masks, points, frame_hw)  # [T, P]
        predicted = sample_logits_at(logits, points)  # [Q, P]
        return cross_entropy_cost(predicted, expected), dice_cost(predicted, expected)

    def losses(
        self, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
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
        ctx: Any, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
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


def _mask_chunks(
    targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
) -> Iterator[tuple[int, Tensor, Tensor]]:
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


def _downsample(masks: Tensor, frame_hw: tuple[int, int], size_hw: Sequence[int]) -> Tensor:
    """Downsample masks to a grid over the frame by nearest neighbors: [T, H, W] -> [T, h, w], 0 outside masks."""
    rows, columns = (
        F.interpolate(torch.arange(frame, device=masks.device).float()[None, None], size=size)[0, 0].long()
        for frame, size in zip(frame_hw, size_hw, strict=True)
    )  # [h], [w]
    inside = (rows < masks.shape[1])[:, None] & (columns < masks.shape[2])  # [h, w]
    cells = masks[:, rows.clamp(max=masks.shape[1] - 1)][:, :, columns.clamp(max=masks.shape[2] - 1)]  # [T, h, w]
    return cells * inside
