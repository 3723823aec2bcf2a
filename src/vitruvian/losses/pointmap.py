"""Loss of pointmaps: seven terms.

Two spaces. *Metric* points are in meters in the frame of the camera that took the image (x right, y down, z forward).
*Canonical* points are what the model predicts: the same points as if the focal length were canonical (768 pixels at
1024×768). With ``scale = canonical focal length / actual focal length``::

    canonical = metric · scale        metric = canonical / scale

The scale multiplies all three coordinates, so directions, normals and projections are the same in both spaces.

| term | space | formula, averaged over valid pixels | unchanged by |
|---|---|---|---|
| l1 | canonical ÷ mean depth | Σ_xyz abs(p − q) | |
| multiscale | canonical ÷ mean depth | l1 of averages over 2×2, 4×4, 8×8 pixels; mean of the three | |
| silog | canonical depth | √(mean d² − ½ (mean d)²), d = log p_z − log q_z, per image | half-way: a common factor |
| intrinsics | canonical | abs(p_x − r_x p_z) + abs(p_y − r_y p_z), r the ray of the pixel | the target: needs only K |
| shift | canonical ÷ mean depth | l1 after moving each image's mean error to 0 | moving all points alike |
| normals | either | 1 − cos + ⅓ Σ_xyz abs of the surface normals' difference | scaling, moving |
| scale | – | abs(predicted scale − target scale), averaged over images | |

p are predicted, q are target points; *mean depth* is the mean z of an image's valid target points, in canonical space,
so that near and far people have equal weight. The original code
clamps l1, multiscale and shift at 4, which also stops their gradient; these do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.losses import terms

_POOLED_SIZES = (2, 4, 8)
_MIN_DEPTH = 1e-4
_MIN_CROSS = 1e-4
# The published weights.
POINTMAP_WEIGHTS = {
    "l1": 2.0,
    "multiscale": 1.0,
    "silog": 1.0,
    "intrinsics": 1.0,
    "shift": 1.0,
    "normals": 2.0,
    "scale": 4.0,
}


def pointmap_loss(
    pred: Tensor,
    target: Tensor,
    *,
    target_scales: Tensor,
    pred_scales: Tensor | None = None,
    intrinsics: Tensor | None = None,
    mask: Tensor | None = None,
    weights: Mapping[str, float] | None = None,
) -> terms.LossTerms:
    """Return the loss of the recipe for pointmaps; the table above defines its terms.

    Without `pred_scales` there is no term "scale", without `intrinsics` none called "intrinsics". Target points that
    are not finite or not in front of the camera are ignored.

    Args:
        pred: Predicted points [B, 3, H, W] in the canonical camera.
        target: Target points [B, 3, H, W], metric.
        target_scales: Canonical ÷ actual focal length of each image [B, 1] or [B]; see `canonical_scales`.
        pred_scales: Predicted scales [B, 1].
        intrinsics: Camera matrix of each image as the model sees it [B, 3, 3], in pixels; the center of the first pixel
            is (0, 0).
        mask: Weight of each pixel [B, 1, H, W] or [B, H, W].
        weights: Weights of terms other than `POINTMAP_WEIGHTS`.
    """
    pred, target, valid = terms.check_maps(pred, target, mask, channels=3, what="pointmaps")
    scales = _check_scales(target_scales, batch=pred.shape[0], what="target_scales")  # [B, 1]
    valid = valid * (target[:, 2:] > 0)  # [B, 1, H, W], in front of the camera
    target = terms.clear_invalid(target, valid) * scales[:, :, None, None]  # [B, 3, H, W]
    depth = terms.safe_divisor(terms.weighted_mean_per_image(target[:, 2:], valid))  # [B, 1, 1, 1]
    error = terms.clear_invalid((pred - target) / depth, valid)  # [B, 3, H, W]
    functions: dict[str, Callable[[], Tensor]] = {
        "l1": lambda: terms.weighted_mean(error.abs(), valid),
        "multiscale": lambda: _multiscale_error(error, valid),
        "silog": lambda: _silog_error(pred[:, 2:], target[:, 2:], valid),
        "shift": lambda: terms.weighted_mean((error - terms.weighted_mean_per_image(error, valid)).abs(), valid),
        "normals": lambda: _normal_error(pred, target, valid),
    }
    if intrinsics is not None:
        _check_intrinsics(intrinsics)
        if len(intrinsics) != len(pred):
            raise InputError(
                f"intrinsics: expected one camera for each of {len(pred)} images, got {len(intrinsics)}. "
                "Repeat a shared camera with .expand(B, 3, 3)."
            )
        rays_xy = pixel_rays(intrinsics, size_hw=(pred.shape[2], pred.shape[3]))  # [B, 2, H, W]
        functions["intrinsics"] = lambda: terms.weighted_mean((pred[:, :2] - rays_xy * pred[:, 2:]).abs(), valid)
    if pred_scales is not None:
        predicted = _check_scales(pred_scales, batch=pred.shape[0], what="pred_scales", positive=False)  # [B, 1]
        functions["scale"] = lambda: (predicted - scales).abs().mean()
    return terms.weighted_sum(functions, POINTMAP_WEIGHTS, weights, anchor=pred)


def canonical_scales(intrinsics: Tensor, *, canonical_focal: float = 768.0) -> Tensor:
    """Return canonical ÷ actual focal length (of x): [B, 3, 3] -> [B, 1]."""
    _check_intrinsics(intrinsics)
    return canonical_focal / intrinsics[:, 0, 0].float().unsqueeze(1)  # [B, 1]


def pixel_rays(intrinsics: Tensor, *, size_hw: SizeHW) -> Tensor:
    """Return x/z and y/z of the ray through each pixel's center: [B, 3, 3] -> [B, 2, H, W].

    ``y/z = (v − c_y) / f_y`` and ``x/z = (u − c_x − s · y/z) / f_x`` for column u, row v (from 0) and skew s.
    """
    H, W = size_hw
    K = intrinsics.float()[:, :, :, None, None]  # [B, 3, 3, 1, 1]
    u = torch.arange(W, device=K.device, dtype=torch.float32).expand(H, W)  # [H, W]
    v = torch.arange(H, device=K.device, dtype=torch.float32)[:, None].expand(H, W)  # [H, W]
    y = (v - K[:, 1, 2]) / K[:, 1, 1]  # [B, H, W]
    x = (u - K[:, 0, 2] - K[:, 0, 1] * y) / K[:, 0, 0]  # [B, H, W]
    return torch.stack((x, y), dim=1)  # [B, 2, H, W]


def _multiscale_error(error: Tensor, weights: Tensor) -> Tensor:
    """Return the mean L1 of `error` [B, C, H, W] averaged over blocks of 2, 4 and 8 pixels (weights [B, 1, H, W])."""
    means = []
    for size in _POOLED_SIZES:
        share = F.avg_pool2d(weights, size, ceil_mode=True)  # [B, 1, H/size, W/size]
        pooled = F.avg_pool2d(error * weights, size, ceil_mode=True) / terms.safe_divisor(
            share
        )  # [B, C, H/size, W/size]
        means.append(terms.weighted_mean(pooled.abs(), share))
    return torch.stack(means).mean()


def _silog_error(pred_depth: Tensor, target_depth: Tensor, weights: Tensor) -> Tensor:
    """Return the scale-invariant logarithmic error of depths [B, 1, H, W], averaged over images with valid pixels.

    ``√(mean d² − ½ (mean d)²)``, d the difference of logarithms; depths are clamped to at least 1e-4.
    """
    difference = _log_ratio(pred_depth, target_depth, weights)  # [B, 1, H, W]
    mean = terms.weighted_mean_per_image(difference, weights)  # [B, 1, 1, 1]
    variance = terms.weighted_mean_per_image((difference - mean).square(), weights)  # [B, 1, 1, 1]
    squared = variance + 0.5 * mean.square()  # [B, 1, 1, 1]
    positive = squared > 0
    # The gradient of the root is infinite at 0.
    per_image = torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)  # [B, 1, 1, 1]
    return terms.weighted_mean(per_image.flatten(), (weights.sum(dim=(1, 2, 3)) > 0).float())


def depth_steps(pred_depth: Tensor, target_depth: Tensor, weights: Tensor) -> Tensor:
    """Return the L1 error of the gradient of log depth: Σ_xy abs of the change of log p_z − log q_z.

    Unlike the error of normals, which saturates on rough surfaces, it grows linearly with noise of the prediction. A
    common factor of the depths does not matter.

    Args:
        pred_depth: Predicted depths [B, 1, H, W].
        target_depth: Target depths [B, 1, H, W]; 0 where unknown.
        weights: Weight of each pixel [B, 1, H, W]; a pair of neighbors has the product of both.
    """
    return terms.sum_gradient_error(_log_ratio(pred_depth, target_depth, weights), weights, power=1)


def _log_ratio(pred_depth: Tensor, target_depth: Tensor, weights: Tensor) -> Tensor:
    """Return log pred − log target [B, 1, H, W], 0 where the weights are 0."""
    log_pred, log_target = (x.float().clamp(min=_MIN_DEPTH).log() for x in (pred_depth, target_depth))
    return terms.clear_invalid(log_pred - log_target, weights)


def aligned_distance(pred: Tensor, target: Tensor, weights: Tensor, length: Tensor) -> Tensor:
    """Return the mean distance of points after the best common factor of the predicted ones.

    The factor is that of least squares for each image, as in the metric `PointError`; distances are relative to
    `length`, such as the height of the person. All images have equal weight.

    Args:
        pred: Predicted points [B, 3, H, W].
        target: Target points [B, 3, H, W].
        weights: Weight of each pixel [B, 1, H, W].
        length: [B], in the unit of the target.
    """
    pred, target = terms.clear_invalid(pred, weights), terms.clear_invalid(target, weights)
    both = (pred * target * weights).sum(dim=(1, 2, 3), keepdim=True)  # [B, 1, 1, 1]
    factor = both / terms.safe_divisor((pred.square() * weights).sum(dim=(1, 2, 3), keepdim=True))
    error = (factor * pred - target).square().sum(dim=1, keepdim=True)  # [B, 1, H, W]
    distance = (error + 1e-8).sqrt()  # keeps the gradient finite at 0
    shares = terms.weighted_mean_per_image(distance, weights).flatten() / terms.safe_divisor(length.float())  # [B]
    return terms.weighted_mean(shares, (weights > 0).flatten(1).any(dim=1).float())


def _normal_error(pred: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Compare the surface normals of two pointmaps [B, 3, H, W]: 1 − cos + ⅓ L1, a mean over [B, 1, H-1, W-1]."""
    depth = terms.weighted_mean_per_image(target[:, 2:], weights)  # [B, 1, 1, 1]
    size = max(pred.shape[-2:]) / terms.safe_divisor(depth)  # the distance of neighbors becomes about 1
    ours, _ = _normals(pred * size, weights)  # [B, 3, H-1, W-1]
    theirs, valid = _normals(target * size, weights)  # [B, 3, H-1, W-1], [B, 1, H-1, W-1]
    cosine = (ours * theirs).sum(dim=1, keepdim=True)  # [B, 1, H-1, W-1]
    return terms.weighted_mean(1 - cosine + (ours - theirs).abs().mean(dim=1, keepdim=True), valid)


def _normals(points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return surface normals [B, 3, H-1, W-1] of points [B, 3, H, W] about 1 apart, and their weights.

    The normal of a pixel is the direction of (right neighbor − pixel) × (lower neighbor − pixel), away from the
    camera. Its weight is the minimum of the three points, and 0 where they are collinear.
    """
    corner = points[..., :-1, :-1]  # [B, 3, H-1, W-1]
    cross = torch.linalg.cross(points[..., :-1, 1:] - corner, points[..., 1:, :-1] - corner, dim=1)
    length = torch.linalg.vector_norm(cross.detach(), dim=1, keepdim=True)  # [B, 1, H-1, W-1]
    least = torch.minimum(torch.minimum(weights[..., :-1, :-1], weights[..., :-1, 1:]), weights[..., 1:, :-1])
    return F.normalize(cross, dim=1, eps=_MIN_CROSS), least * (length > _MIN_CROSS)


def _check_scales(scales: Tensor, *, batch: int, what: str, positive: bool = True) -> Tensor:
    """Return scales [B] or [B, 1] as float32 [B, 1]."""
    if scales.shape not in ((batch, 1), (batch,)):
        raise InputError(
            f"{what}: expected shape [{batch}, 1], got {list(scales.shape)}. Pass the canonical focal length "
            "divided by the actual one for each image."
        )
    scales = scales.float().reshape(batch, 1)  # [B, 1]
    if positive and _can_check(scales) and not bool((scales.isfinite() & (scales > 0)).all()):
        raise InputError(
            f"{what}: expected positive numbers, got {scales.flatten().tolist()}. "
            "Compute them from the camera with canonical_scales(intrinsics)."
        )
    return scales


def _check_intrinsics(intrinsics: Tensor) -> None:
    if intrinsics.ndim != 3 or intrinsics.shape[1:] != (3, 3):
        raise InputError(
            f"intrinsics: expected shape [B, 3, 3], got {list(intrinsics.shape)}. Pass a camera matrix for each image."
        )
    focal = intrinsics.diagonal(dim1=1, dim2=2)[:, :2]  # [B, 2]
    if _can_check(focal) and not bool((focal > 0).all()):
        raise InputError(
            f"intrinsics: expected positive focal lengths in pixels, got {focal.tolist()}. "
            "Row 0 is (f_x, skew, c_x), row 1 is (0, f_y, c_y), row 2 is (0, 0, 1)."
        )


def _can_check(values: Tensor) -> bool:
    """Return whether values can be checked: not under torch.compile, nor on a GPU, where it would synchronize."""
    return not torch.compiler.is_compiling() and values.device.type == "cpu"
