"""Losses of pretraining: reconstruction of masked patches, and self-distillation from a teacher.

One step of the two objectives together::

    teacher_logits = teacher(view_a)                            # no gradient
    loss = masked_reconstruction_loss(decoder(student(view_b, mask)), view_b, mask, patch_size=16)
    loss = loss + self_distillation_loss(student_logits, teacher_logits, center=center.value)
    loss.backward(); optimizer.step()
    center.update(teacher_logits)
    ema_update(teacher, student, momentum=0.996)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitruvian.errors import InputError
from vitruvian.losses.terms import safe_divisor, sum_over_processes, weighted_mean

_PATCH_VARIANCE_FLOOR = 1e-6


def patchify(pixels: Tensor, *, patch_size: int) -> Tensor:
    """Cut images into patches, row by row: [B, C, H, W] -> [B, N, P], P = patch_size² · C ordered (y, x, channel)."""
    B, C, H, W = pixels.shape
    if H % patch_size or W % patch_size:
        raise InputError(
            f"pixels: expected sides that are multiples of patch_size {patch_size}, got {H}×{W}. Resize or crop first."
        )
    h, w = H // patch_size, W // patch_size
    grid = pixels.reshape(B, C, h, patch_size, w, patch_size)  # [B, C, h, p, w, p]
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(B, h * w, patch_size**2 * C)  # [B, N, P]


def masked_reconstruction_loss(
    pred_patches: Tensor, pixels: Tensor, mask: Tensor, patch_size: int, normalize: bool = True
) -> Tensor:
    """Return the mean squared error of the masked patches; 0 where no patch is masked.

    ``Σ m · mean_P (pred − patch)² / Σ m``. With `normalize`, each target patch is normalized to mean 0 and variance 1
    first (unbiased variance, floor 1e-6), so that all patches have equal weight.

    Args:
        pred_patches: [B, N, P], in the order of `patchify`.
        pixels: The images [B, C, H, W].
        mask: [B, N]; true (or 1) where the patch was masked.
        patch_size: Side of a patch in pixels.
        normalize: Whether targets are normalized patch by patch.
    """
    target = patchify(pixels.float(), patch_size=patch_size)  # [B, N, P]
    if pred_patches.shape != target.shape:
        raise InputError(
            f"pred_patches: expected shape {list(target.shape)} for these pixels, got {list(pred_patches.shape)}. "
            "Predict patch_size² · channels numbers for each patch."
        )
    if mask.shape != target.shape[:2]:
        raise InputError(
            f"mask: expected shape {list(target.shape[:2])}, one value a patch, got {list(mask.shape)}. "
            "Flatten the grid of patches row by row."
        )
    if normalize:
        variance, mean = torch.var_mean(target, dim=-1, keepdim=True)  # [B, N, 1]
        target = (target - mean) / (variance + _PATCH_VARIANCE_FLOOR).sqrt()
    error = (pred_patches.float() - target).square().mean(dim=-1)  # [B, N]
    return weighted_mean(error, mask.float())


def self_distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    center: Tensor | None = None,
    student_temp: float = 0.1,
    teacher_temp: float = 0.04,
    *,
    sinkhorn_iterations: int = 0,
) -> Tensor:
    """Return the cross-entropy of the student's distribution against the teacher's, averaged over all rows.

    ``−Σ_K t · log softmax(student / student_temp)``. The teacher's t has no gradient; to prevent collapse it is either
    centered, ``softmax((teacher − center) / teacher_temp)``, or balanced over the batch by `sinkhorn`.

    Args:
        student_logits: [..., K], for each image (or patch).
        teacher_logits: [..., K], of the same images.
        center: What to subtract from the teacher [K], see `TeacherCenter`; None subtracts nothing.
        student_temp: Temperature of the student.
        teacher_temp: Temperature of the teacher; lower is sharper.
        sinkhorn_iterations: Iterations of `sinkhorn` instead of centering; 0 for centering.
    """
    if student_logits.shape != teacher_logits.shape or student_logits.ndim < 2:
        raise InputError(
            f"self-distillation: expected student and teacher logits of one shape [..., K], got "
            f"{list(student_logits.shape)} and {list(teacher_logits.shape)}. Pair the views first."
        )
    if student_temp <= 0 or teacher_temp <= 0:
        raise InputError(
            f"temperatures: expected positive numbers, got {student_temp} and {teacher_temp}. Usual: 0.1 and 0.04."
        )
    if sinkhorn_iterations and center is not None:
        raise InputError(
            "self-distillation: expected a center or sinkhorn_iterations, got both. Each one alone prevents collapse."
        )
    with torch.no_grad():
        logits = teacher_logits.float().flatten(0, -2)  # [M, K]
        if sinkhorn_iterations:
            teacher = sinkhorn(logits, temperature=teacher_temp, iterations=sinkhorn_iterations)  # [M, K]
        else:
            centered = logits if center is None else logits - center.float()
            teacher = (centered / teacher_temp).softmax(dim=-1)  # [M, K]
    student = (student_logits.float().flatten(0, -2) / student_temp).log_softmax(dim=-1)  # [M, K]
    return -(teacher * student).sum() / max(student.shape[0], 1)


@torch.no_grad()
def sinkhorn(logits: Tensor, *, temperature: float, iterations: int = 3) -> Tensor:
    """Convert teacher logits to distributions that use all prototypes equally over the batch: [M, K] -> [M, K].

    Sinkhorn-Knopp: starting from ``softmax(logits / temperature)``, the columns (prototypes) and then the rows
    (samples) are divided by their sums alternately; rows are last, so each sums to 1. Columns are summed over all
    processes where torch.distributed runs.
    """
    share = (logits.float() / temperature).softmax(dim=1)  # [M, K]
    for _ in range(iterations):
        share = share / safe_divisor(sum_over_processes(share.sum(dim=0)))
        share = share / safe_divisor(share.sum(dim=1, keepdim=True))
    return share


class TeacherCenter(nn.Module):
    """The running mean of the teacher's logits, which `self_distillation_loss` subtracts.

    ``value ← momentum · value + (1 − momentum) · mean(teacher_logits)``, over all processes where torch.distributed
    runs. It prevents collapse to one prototype.
    """

    value: Tensor

    def __init__(self, classes: int, *, momentum: float = 0.9) -> None:
        super().__init__()
        _check_momentum(momentum)
        self.momentum = momentum
        self.register_buffer("value", torch.zeros(classes))

    @torch.no_grad()
    def update(self, teacher_logits: Tensor) -> None:
        """Move toward the mean of this batch's logits [..., K]; an empty batch changes nothing."""
        if teacher_logits.shape[-1] != self.value.shape[0]:
            raise InputError(
                f"teacher_logits: expected {self.value.shape[0]} classes, got {teacher_logits.shape[-1]}. "
                "Create the TeacherCenter with as many classes as the head."
            )
        rows = teacher_logits.float().flatten(0, -2)  # [M, K]
        total = sum_over_processes(rows.sum(dim=0))  # [K]
        count = sum_over_processes(torch.tensor(float(len(rows)), device=rows.device))  # []
        if count > 0:
            self.value.lerp_((total / count).to(self.value), 1 - self.momentum)


@torch.no_grad()
def ema_update(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move the teacher's parameters toward the student's, and copy its buffers.

    ``teacher ← momentum · teacher + (1 − momentum) · student``, in the teacher's precision.
    """
    _check_momentum(momentum)
    ours, theirs = dict(teacher.named_parameters()), dict(student.named_parameters())
    buffers, their_buffers = dict(teacher.named_buffers()), dict(student.named_buffers())
    unmatched = sorted((ours.keys() ^ theirs.keys()) | (buffers.keys() ^ their_buffers.keys()))
    if unmatched:
        raise InputError(
            f"ema_update: expected teacher and student with the same parameters, got only in one of them: "
            f"{', '.join(unmatched[:5])}. Create the teacher with copy.deepcopy(student)."
        )
    for name, parameter in ours.items():
        parameter.lerp_(theirs[name].to(parameter), 1 - momentum)
    for name, buffer in buffers.items():
        buffer.copy_(their_buffers[name])


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum <= 1:
        raise InputError(f"momentum: expected a number from 0 to 1, got {momentum}. Usual: 0.9 to 0.9999.")
