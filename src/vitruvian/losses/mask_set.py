"""The set loss of MaskFormer and Mask2Former: match queries with objects, then compare their classes and masks.

    labels ─▶ targets                  ─┐
    class logits [B, Q, K + 1]        ─┼▶ costs ─▶ assign ─▶ class loss over all queries, mask losses over the pairs
    mask logits [B, Q, h, w]          ─┘

`PixelComparison` (MaskFormer) compares every pixel, `PointComparison` (Mask2Former) random points, most where the
prediction is uncertain: see `mask_comparison`. Labels stay bool (or RLE, decoded once).

In distributed training the loss of each process is divided by counts averaged over the processes, so that the mean of
their losses is the loss of the whole batch. The reference averages the number of masks twice (`reduce` is a mean
already, then it divides by the number of processes again), which makes mask losses too large by that number, and does
not average the sum of the class weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.rle import decode_rle
from vitruvian.images.types import SizeHW
from vitruvian.losses.focal_dice import class_cost
from vitruvian.losses.mask_comparison import Pairs, PixelComparison, PointComparison, Target
from vitruvian.losses.terms import LossTerms, sum_over_processes, zero_like
from vitruvian.ops.assignment import assign
from vitruvian.ops.dispatch import no_compile

MaskLabels = Tensor | Sequence[Mapping[str, object]]


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
            mask_labels: For each image its masks [T, H, W] of any type, or a list of COCO RLEs. Larger values than 1
                are padding.
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
    def match(self, masks: Tensor, classes: Tensor, targets: Sequence[Target], frame_hw: SizeHW) -> Pairs:
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
            image = stack <= 1  # processors fill the padding of a batch with their ignore index
            frame = image.any(dim=2, keepdim=True) & image.any(dim=1, keepdim=True)
            if not (stack == 1).any() and not torch.equal(image, frame):
                raise InputError(
                    f"mask_labels[{number}]: expected masks of 0 and 1, got none of 1 and some of {stack.max():g}. "
                    "Pass masks > 0."
                )
            stack = stack.masked_fill(~image, 0)
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
