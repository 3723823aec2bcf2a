"""Which query stands for which object: costs of every pair, and the assignment of least total cost.

logits [Q, …] and targets [T, …] ─▶ class_cost, dice_cost, cross_entropy_cost or focal_cost [Q, T] ─▶ assign ─▶ pairs

A cost compares every query with every target at P pixels or points. All are written so that one product of a [Q, P]
and a [P, T] matrix is enough: no [Q, T, P] tensor, and no second product for the background.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import MissingExtraError

FOCAL_ALPHA, FOCAL_GAMMA = 0.25, 2.0


def class_cost(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the probability that each query gives to each target's class: [Q, K + 1], [T] -> [Q, T]."""
    return -logits.float().softmax(-1)[:, labels]  # [Q, T]


def dice_cost(logits: Tensor, targets: Tensor) -> Tensor:
    """One minus the smoothed overlap of each pair: [Q, P], [T, P] -> [Q, T]."""
    chance = logits.sigmoid()
    both = chance.sum(-1)[:, None] + targets.sum(-1)  # [Q, T]
    return 1 - (2 * chance @ targets.t() + 1) / (both + 1)


def cross_entropy_cost(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy of each pair: [Q, P], [T, P] -> [Q, T]."""
    # softplus(x) is the loss against 0, and against 1 it is less by x.
    return (F.softplus(logits).sum(-1, keepdim=True) - logits @ targets.t()) / logits.shape[1]


def focal_cost(logits: Tensor, targets: Tensor, *, alpha: float = FOCAL_ALPHA, gamma: float = FOCAL_GAMMA) -> Tensor:
    """Mean focal loss of each pair: [Q, P], [T, P] -> [Q, T]."""
    chance = logits.sigmoid()
    miss = alpha * (1 - chance) ** gamma * F.softplus(-logits)  # against 1
    alarm = (1 - alpha) * chance**gamma * F.softplus(logits)  # against 0
    return (alarm.sum(-1, keepdim=True) + (miss - alarm) @ targets.t()) / logits.shape[1]


def assign(costs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Pair queries with targets at least total cost, in each image on its own.

    Args:
        costs: For each image a matrix [Q, T]. NaN and infinite costs count as the worst, so that what they belong to
            is paired only when nothing else is left.

    Returns:
        For each image the paired queries, in order, and their targets: two tensors of length min(Q, T), on the device
        of the costs.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise MissingExtraError("scipy", "train", "the matching loss") from error

    pairs = []
    for cost in costs:
        worst = torch.finfo(torch.float32).max
        table = torch.nan_to_num(cost.float(), nan=worst, posinf=worst, neginf=worst).cpu().numpy()
        queries, targets = linear_sum_assignment(table)
        pairs.append((torch.as_tensor(queries).to(cost.device), torch.as_tensor(targets).to(cost.device)))
    return pairs
