"""The set loss of MaskFormer and Mask2Former: match queries with objects, then compare their classes and masks.

    labels ─▶ read_targets ─▶ targets ─┐
    class logits [B, Q, K + 1]        ─┼▶ costs ─▶ assign ─▶ class loss over all queries, mask losses over the pairs
    mask logits [B, Q, h, w]          ─┘

`DenseMasks` (MaskFormer) compares every pixel, `PointMasks` (Mask2Former) random points, most where the prediction is
unsure. Both are frugal: labels stay bool (or RLE, decoded once), predictions are enlarged a few at a time or not at
all, and what the backward pass needs is computed again rather than kept.

With several processes the loss of each is divided by the average over the processes, so that the mean of their losses,
which data-parallel training follows, is the loss of the whole batch. The reference averages the number of masks twice
(`reduce` is a mean already, then it divides by the number of processes again), which makes mask losses too large by the
number of processes, and does not share the sum of the class weights at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.errors import InputError
from vitruvian.images.rle import decode_rle
from vitruvian.layers.no_compile import no_compile
from vitruvian.losses.matching import (
    FOCAL_ALPHA,
    FOCAL_GAMMA,
    assign,
    class_cost,
    cross_entropy_cost,
    dice_cost,
    focal_cost,
)
from vitruvian.losses.points import (
    read_labels,
    read_labels_together,
    read_logits,
    read_logits_together,
    uncertain_points,
)
from vitruvian.losses.terms import LossTerms, LossWeights, zero_like

PIXELS_AT_ONCE = 1 << 22  # bounds the temporary memory of the dense loss

MaskLabels = Tensor | Sequence[Mapping[str, Any]]
Pairs = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Target:
    """The objects of one image: masks [T, H, W] (bool, uint8 or floating point) and their classes [T]."""

    masks: Tensor
    classes: Tensor


@dataclass(frozen=True)
class MaskLossWeights(LossWeights):
    """Weights of the class loss, of the focal or cross-entropy loss of masks, and of their dice loss."""

    loss_cross_entropy: float = 1.0
    loss_mask: float = 1.0
    loss_dice: float = 1.0


class MaskMeasure(Protocol):
    """How masks are compared."""

    def cost(self, logits: Tensor, target: Target, frame_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Compare all queries [Q, h, w] with all objects of an image: mask and dice costs [Q, T]."""

    def losses(
        self, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Compare matched queries of [B, Q, h, w] with their objects: sums of the mask and dice losses."""


class MaskSetLoss(nn.Module):
    """Match queries with objects and compare them.

    Args:
        num_labels: Number of classes K; class K means "no object".
        no_object_weight: Weight of "no object" in the class loss.
        weights: Weights of the three losses.
        class_cost_weight: Weight of the class in the matching; masks and dice count there as in the loss.
        measure: How masks are compared.

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
        measure: MaskMeasure,
    ) -> None:
        super().__init__()
        self.num_labels, self.no_object_weight = num_labels, no_object_weight
        self.weights, self.class_cost_weight, self.measure = weights, class_cost_weight, measure
        self.register_buffer("empty_weight", torch.ones(num_labels + 1))

    @torch.no_grad()
    def init_weights(self, *, gain: float = 1.0) -> None:
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
        """Return the loss and its terms; those of auxiliary prediction i have the ending ``_i``.

        Args:
            masks_queries_logits: Scores of the pixels [B, Q, h, w].
            class_queries_logits: Scores of the classes [B, Q, K + 1].
            mask_labels: For each image its masks [T, H, W] of any type, or a list of COCO RLEs.
            class_labels: For each image the classes of its masks [T].
            auxiliary_predictions: Further predictions, as dicts of the first two.
        """
        targets = read_targets(mask_labels, class_labels, like=masks_queries_logits, num_labels=self.num_labels)
        frame_hw = (max(t.masks.shape[1] for t in targets), max(t.masks.shape[2] for t in targets))
        num_masks, num_classes = self.counts(targets, masks_queries_logits)
        final = {"masks_queries_logits": masks_queries_logits, "class_queries_logits": class_queries_logits}
        terms: dict[str, Tensor] = {}
        total = zero_like(masks_queries_logits)
        for number, prediction in enumerate([final, *auxiliary_predictions]):
            masks, classes = prediction["masks_queries_logits"], prediction["class_queries_logits"]
            pairs = self.match(masks, classes, targets, frame_hw)
            mask_loss, dice_loss = self.measure.losses(masks, targets, pairs, frame_hw)
            found = {
                "loss_mask": mask_loss / num_masks,
                "loss_dice": dice_loss / num_masks,
                "loss_cross_entropy": self.class_loss(classes, targets, pairs) / num_classes,
            }
            for name, value in found.items():
                terms[f"{name}_{number - 1}" if number else name] = value
                total = total + getattr(self.weights, name) * value
        return LossTerms(total=total, terms=terms)

    @torch.no_grad()
    def match(self, masks: Tensor, classes: Tensor, targets: Sequence[Target], frame_hw: tuple[int, int]) -> Pairs:
        """Pair queries with objects: [B, Q, h, w], [B, Q, K + 1] -> for each image the queries and their objects."""
        costs = []
        for logits, scores, target in zip(masks, classes, targets, strict=True):
            mask_cost, overlap_cost = self.measure.cost(logits, target, frame_hw)
            cost = self.weights.loss_mask * mask_cost + self.weights.loss_dice * overlap_cost
            costs.append(cost + self.class_cost_weight * class_cost(scores, target.classes))
        return assign(costs)

    def class_loss(self, logits: Tensor, targets: Sequence[Target], pairs: Pairs) -> Tensor:
        """Sum of the weighted cross-entropies of all queries; those without an object should say "no object"."""
        wanted = torch.full(logits.shape[:2], self.num_labels, device=logits.device)  # [B, Q]
        for row, target, (queries, objects) in zip(wanted, targets, pairs, strict=True):
            row[queries] = target.classes[objects]
        weight = torch.ones(self.num_labels + 1, device=logits.device)
        weight[-1] = self.no_object_weight
        return F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), weight=weight, reduction="sum")

    @torch.no_grad()
    def counts(self, targets: Sequence[Target], logits: Tensor) -> tuple[Tensor, Tensor]:
        """Number of masks (at least 1) and sum of class weights to divide by, as averages over all processes."""
        queries = logits.shape[1]
        objects = [len(target.classes) for target in targets]
        matched = sum(min(count, queries) for count in objects)
        empty = len(targets) * queries - matched
        sums = [float(sum(objects)), matched + empty * self.no_object_weight]
        masks, weights = average_over_processes(torch.tensor(sums, device=logits.device)).unbind()
        return masks.clamp(min=1), weights.clamp(min=torch.finfo(torch.float32).tiny)


def average_over_processes(values: Tensor) -> Tensor:
    """Average a tensor over the processes of a distributed run; outside of one, return it as it is."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return values
    summed = values.clone()
    distributed.all_reduce(summed)
    return summed / distributed.get_world_size()


def read_targets(
    mask_labels: Sequence[MaskLabels], class_labels: Sequence[Tensor], *, like: Tensor, num_labels: int
) -> list[Target]:
    """Check the labels of a batch and bring them to the device of `like` [B, …]; RLEs are decoded to bool."""
    if len(mask_labels) != like.shape[0] or len(class_labels) != like.shape[0]:
        raise InputError(
            f"mask_labels and class_labels: expected one entry for each of {like.shape[0]} images, "
            f"got {len(mask_labels)} and {len(class_labels)}."
        )
    targets = []
    for number, (masks, classes) in enumerate(zip(mask_labels, class_labels, strict=True)):
        stack = masks if isinstance(masks, Tensor) else decode(masks)
        if stack.ndim != 3 or min(stack.shape[1:]) < 1:
            raise InputError(
                f"mask_labels[{number}]: expected shape [T, H, W] or a list of RLEs, got {list(stack.shape)}."
            )
        kinds = torch.as_tensor(classes).flatten()
        if len(kinds) != len(stack):
            raise InputError(
                f"class_labels[{number}]: expected one class for each of {len(stack)} masks, got {len(kinds)}."
            )
        if len(kinds) and (int(kinds.min()) < 0 or int(kinds.max()) >= num_labels):
            raise InputError(
                f"class_labels[{number}]: expected classes from 0 to {num_labels - 1}, got {kinds.tolist()}. "
                "Build the model with a larger num_labels, or leave out masks that should be ignored."
            )
        stack = without_padding(stack.to(like.device))
        targets.append(Target(stack.contiguous(), kinds.to(like.device, torch.int64)))
    return targets


def without_padding(masks: Tensor) -> Tensor:
    """Clear what is neither 0 nor 1: processors fill the padding of a batch with their ignore index."""
    if masks.dtype == torch.bool or not masks.numel() or masks.max() <= 1:
        return masks
    return masks.masked_fill(masks > 1, 0)


def decode(rles: Sequence[Mapping[str, Any]]) -> Tensor:
    """Decode COCO RLEs of one image to bool masks [T, H, W]."""
    if not len(rles):
        return torch.zeros(0, 1, 1, dtype=torch.bool)
    masks = [decode_rle(rle) if isinstance(rle, Mapping) else torch.as_tensor(rle) for rle in rles]
    sizes = {tuple(mask.shape) for mask in masks}
    if len(sizes) > 1:
        raise InputError(f"mask_labels: expected the masks of an image to have one size, got {sorted(sizes)}.")
    return torch.stack(masks)  # [T, H, W]


# ------------------------------------------------------------------------------------------ two ways to compare masks


@dataclass(frozen=True)
class DenseMasks:
    """Compare every pixel: focal loss and dice at the size of the labels, matched at the size of the predictions."""

    def cost(self, logits: Tensor, target: Target, frame_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Compare all queries with all objects: [Q, h, w] -> two costs [Q, T]."""
        wanted = shrink(target.masks, frame_hw, logits.shape[-2:]).flatten(1).float()  # [T, h·w]
        flat = logits.flatten(1).float()  # [Q, h·w]
        return focal_cost(flat, wanted), dice_cost(flat, wanted)

    def losses(
        self, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Sum the losses of matched queries."""
        focal, dice = PixelLosses.apply(logits, targets, pairs, frame_hw)  # type: ignore[no-untyped-call]
        return focal, dice


@dataclass(frozen=True)
class PointMasks:
    """Compare random points: cross-entropy and dice.

    Attributes:
        count: Number of points a mask.
        oversample_ratio: Candidates drawn for each point.
        importance_sample_ratio: Share of the points that are chosen for being unsure.
    """

    count: int = 12544
    oversample_ratio: float = 3.0
    importance_sample_ratio: float = 0.75

    def cost(self, logits: Tensor, target: Target, frame_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Compare all queries with all objects at the same random points: [Q, h, w] -> two costs [Q, T]."""
        points = torch.rand(1, self.count, 2, device=logits.device)[0]  # [P, 2]
        wanted = read_labels_together(target.masks, points, frame_hw)  # [T, P]
        found = read_logits_together(logits, points)  # [Q, P]
        return cross_entropy_cost(found, wanted), dice_cost(found, wanted)

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
        wanted = torch.cat(
            [
                read_labels(target.masks, objects, part, frame_hw)
                for target, (_, objects), part in zip(targets, pairs, torch.split(points, counts), strict=True)
                if len(objects)
            ]
        )  # [M, P]
        cross_entropy, dice = rerun(compare_points, logits, images, queries, points, wanted).unbind()
        return cross_entropy, dice


def rerun(function: Any, *args: Any) -> Tensor:
    """Call a function without keeping what its gradient needs: it runs again in the backward pass."""
    if not torch.is_grad_enabled():
        found: Tensor = function(*args)
        return found
    again: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return again


class PixelLosses(torch.autograd.Function):
    """Sums of the focal and dice losses of matched maps, enlarged to the frame a few at a time.

    The same as `sigmoid_focal_loss` and `mask_dice_loss` of all of them at once. The gradient is written out, and
    computed in the backward pass, which enlarges the maps again: a graph of chunks would keep hundreds of small things
    between large ones and so break the heap into pieces that are never reused.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Compare logits [B, Q, h, w] with their objects."""
        ctx.save_for_backward(logits)
        ctx.labels = (targets, pairs, frame_hw)
        sums = torch.zeros(2, device=logits.device)
        for image, queries, wanted in mask_chunks(targets, pairs, frame_hw):
            flat = enlarge(logits[image, queries].float(), frame_hw).flatten(1)  # [m, H·W]
            chance, loss, missed = pixel_parts(flat, wanted)
            loss = loss.mul_(missed).mul_(missed)
            both, whole = overlaps(chance, wanted)
            foreground = torch.linalg.vecdot(loss, wanted)  # [m]
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
        for image, queries, wanted in mask_chunks(targets, pairs, frame_hw):
            with torch.enable_grad():
                small = logits[image, queries].float().requires_grad_()
                large = enlarge(small, frame_hw)  # [m, H, W]
            flat = large.detach().flatten(1)
            chance, loss, missed = pixel_parts(flat, wanted)
            both, whole = overlaps(chance, wanted)
            bend = chance - chance.square()  # slope of the sigmoid
            # Slope of loss · missed², by the product rule.
            slope = loss.mul_(missed).mul_(bend).mul_(2 - 4 * wanted).addcmul_(chance - wanted, missed.square_())
            slope.mul_((1 - FOCAL_ALPHA + (2 * FOCAL_ALPHA - 1) * wanted).mul_(grad_focal / flat.shape[1]))
            overlap_slope = (both / whole**2)[:, None] - (2 / whole)[:, None] * wanted
            slope.addcmul_(overlap_slope.mul_(grad_dice), bend)
            (found,) = torch.autograd.grad(large, small, slope.view_as(large))
            total[image, queries] = found.to(total.dtype)
        return total, None, None, None


def pixel_parts(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probability, cross-entropy, and one minus the probability of what is true, of each pixel: [m, P] each."""
    chance = logits.sigmoid()
    loss = F.softplus(logits).addcmul_(logits, targets, value=-1)
    return chance, loss, torch.addcmul(chance, chance, targets, value=-2).add_(targets)


def overlaps(chance: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of the smoothed overlap of each mask: [m, P] -> [m], [m]."""
    return 2 * torch.linalg.vecdot(chance, targets) + 1, chance.sum(-1) + targets.sum(-1) + 1


def mask_chunks(
    targets: Sequence[Target], pairs: Pairs, frame_hw: tuple[int, int]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the image, a few matched queries [m] and their masks as numbers over the whole frame [m, H·W]."""
    at_once = max(1, PIXELS_AT_ONCE // (frame_hw[0] * frame_hw[1]))
    for image, (target, (queries, objects)) in enumerate(zip(targets, pairs, strict=True)):
        right, bottom = frame_hw[1] - target.masks.shape[2], frame_hw[0] - target.masks.shape[1]
        for start in range(0, len(queries), at_once):
            wanted = target.masks[objects[start : start + at_once]].float()  # [m, H, W]
            yield image, queries[start : start + at_once], F.pad(wanted, (0, right, 0, bottom)).flatten(1)


def enlarge(maps: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Resize maps [m, h, w] to [m, H, W], bilinearly."""
    return F.interpolate(maps[:, None], size=size_hw, mode="bilinear", align_corners=False)[:, 0]


def compare_points(logits: Tensor, images: Tensor, queries: Tensor, points: Tensor, wanted: Tensor) -> Tensor:
    """Sums of the cross-entropy and dice losses of logits[images, queries] at points [M, P, 2]: [2]."""
    found = read_logits(logits[images, queries], points)  # [M, P]
    cross_entropy = F.binary_cross_entropy_with_logits(found, wanted, reduction="none").mean(1)
    return torch.stack((cross_entropy.sum(), mask_dice_loss(found, wanted).sum()))


def shrink(masks: Tensor, frame_hw: tuple[int, int], size_hw: Sequence[int]) -> Tensor:
    """Take the nearest pixel of each cell of a smaller grid over the frame: [T, H, W] -> [T, h, w], 0 outside masks."""
    lines, columns = (nearest(frame, size, masks.device) for frame, size in zip(frame_hw, size_hw, strict=True))
    inside = (lines < masks.shape[1])[:, None] & (columns < masks.shape[2])  # [h, w]
    found = masks[:, lines.clamp(max=masks.shape[1] - 1)][:, :, columns.clamp(max=masks.shape[2] - 1)]  # [T, h, w]
    return found * inside


def nearest(frame: int, size: int, device: torch.device) -> Tensor:
    """Which of `frame` pixels is taken for each of `size` cells, as `F.interpolate` does it: [size]."""
    scale = torch.tensor(frame / size, dtype=torch.float32, device=device)
    places = (torch.arange(size, dtype=torch.float32, device=device) * scale).floor().long()
    return places.clamp(max=frame - 1)


def sigmoid_focal_loss(
    logits: Tensor, targets: Tensor, *, alpha: float = FOCAL_ALPHA, gamma: float = FOCAL_GAMMA
) -> Tensor:
    """Mean focal loss of each mask: [M, P] -> [M]; `alpha` weighs the foreground against the rest, unless below 0."""
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    chance = logits.sigmoid()
    missed = chance + targets - 2 * chance * targets  # one minus the probability of what is true
    loss = loss * missed**gamma
    if alpha >= 0:
        loss = loss * (1 - alpha + (2 * alpha - 1) * targets)
    return loss.mean(1)


def mask_dice_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """One minus the smoothed overlap of each mask: [M, P] -> [M]."""
    chance = logits.sigmoid()
    return 1 - (2 * (chance * targets).sum(-1) + 1) / (chance.sum(-1) + targets.sum(-1) + 1)
