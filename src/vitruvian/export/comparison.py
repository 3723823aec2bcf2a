"""Errors of an exported model: differences of its outputs from the model's, in numbers and in terms of the task."""

from __future__ import annotations

import torch
from torch import Tensor

from vitruvian.export.runtime import flatten_outputs
from vitruvian.outputs import ModelOutput

_CLEAR_PEAK = 0.3  # peak of a keypoint that is in the image; a perfect one is 1


def compare_outputs(output: ModelOutput, reference: ModelOutput) -> dict[str, float]:
    """Return the largest difference of every output over the largest value of the reference; infinite where missing."""
    got = dict(flatten_outputs(output))
    distances = {}
    for name, want in flatten_outputs(reference):
        have = got.get(name)
        if have is None or have.shape != want.shape:
            distances[name] = float("inf")
        else:
            largest = want.double().abs().max().clamp(min=1e-12)
            distances[name] = float((have.double() - want.double()).abs().max() / largest)
    return distances


def task_errors(output: ModelOutput, reference: ModelOutput) -> dict[str, float]:
    """Return the errors of outputs in terms of the task, by names with units.

    Keypoints: distance of the peaks in pixels of the heatmap; also of those with a clear peak alone, since the peak of
    a keypoint that is not in the image is anywhere. Classes: share of pixels that change theirs. Normals:
    angle in degrees. Points: distance over depth. Mattes and albedo: mean absolute difference. Masks: share of their
    pixels that change sides. Other outputs: length of the difference over that of the reference.
    """
    got, errors = dict(flatten_outputs(output)), {}
    for name, want in flatten_outputs(reference):
        have = got[name].float()
        want = want.float()
        if name == "heatmaps":
            distance = (_peaks(have) - _peaks(want)).norm(dim=-1)  # [B, J]
            errors["keypoints moved, mean of heatmap pixels"] = float(distance.mean())
            errors["keypoints moved, 95 % below, heatmap pixels"] = float(distance.quantile(0.95))
            sure = want.amax(dim=(-2, -1)) > _CLEAR_PEAK  # [B, J]
            if sure.any():
                errors["sure keypoints moved, mean of heatmap pixels"] = float(distance[sure].mean())
        elif name == "logits" and want.ndim == 4:
            errors["pixels with another class, %"] = _percent(have.argmax(1) != want.argmax(1))
        elif name == "normals":
            cosine = torch.nn.functional.cosine_similarity(have, want, dim=1).clamp(-1, 1)
            errors["normals turned, mean degrees"] = float(cosine.acos().rad2deg().mean())
        elif name == "pointmaps":
            depth = want[:, 2:].abs().mean().clamp(min=1e-6)
            errors["points moved, mean over mean depth, %"] = 100 * float((have - want).norm(dim=1).mean() / depth)
        elif name in ("alphas", "foregrounds", "albedos"):
            errors[f"{name}, mean absolute difference"] = float((have - want).abs().mean())
        elif name in ("pred_masks", "masks_queries_logits"):
            errors["mask pixels on the other side, %"] = _percent((have > 0) != (want > 0))
        else:
            errors[f"{name}, relative distance"] = float((have - want).norm() / want.norm().clamp(min=1e-12))
    return errors


def _percent(changed: Tensor) -> float:
    """Return the share of True, in percent."""
    return 100 * float(changed.float().mean())


def _peaks(heatmaps: Tensor) -> Tensor:
    """Return the position (x, y) of the largest value of each heatmap: [B, J, h, w] -> [B, J, 2]."""
    width = heatmaps.shape[-1]
    index = heatmaps.flatten(2).argmax(-1)  # [B, J]
    return torch.stack((index % width, index // width), dim=-1).float()
