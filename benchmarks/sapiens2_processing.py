"""Sapiens2 pre- and post-processing next to the reference's, on the CPU.

    make bench          (or: .venv-bench/bin/python benchmarks/sapiens2_processing.py)

Prints a line for each step: decoding the 308 heatmaps of 8 people, resizing 29 classes to 1080p, preprocessing a 1080p
image, and cropping 8 people. A line has the milliseconds of both, measured alternately, their ratio, and the difference
of the results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from common.measure import time_alternately
from common.reference import load_reference
from PIL import Image

import vitruvian
from vitruvian.bench.timing import Timing, describe_machine


def print_times(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], *, rounds: int = 5) -> tuple[Any, Any]:
    """Print the times of two functions; return their results."""
    results = ours(), theirs()  # and warmup
    times = time_alternately({"ours": ours, "reference": theirs}, rounds)
    wall = {kind: Timing.of([1e3 * seconds for seconds, _ in found]) for kind, found in times.items()}
    ratio = wall["reference"].median / wall["ours"].median
    print(f"{name:44s} ours {wall['ours']!s:30} reference {wall['reference']!s:30} ms {ratio:6.2f} × faster")
    return results


def heatmaps() -> torch.Tensor:
    """Return heatmaps [8, 308, 256, 192] like those of a trained model: Gaussians at random positions, and noise."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.empty(8, 308, 256, 192)
    rows, columns = torch.arange(256.0), torch.arange(192.0)
    for person in maps:
        xy = torch.rand(308, 2, generator=generator) * torch.tensor([186.0, 250.0]) + 3
        down = torch.exp(-((rows - xy[:, 1:]) ** 2) / 72)
        across = torch.exp(-((columns - xy[:, :1]) ** 2) / 72)
        height = 0.05 + 0.9 * torch.rand(308, 1, 1, generator=generator)
        torch.mul(down[:, :, None] * across[:, None], height, out=person)
    return maps.add_(torch.rand(maps.shape, generator=generator), alpha=2e-3)


def main() -> None:
    reference = load_reference()
    print(describe_machine(torch.device("cpu")))
    ours, theirs = vitruvian.Sapiens2ImageProcessor(), reference.Sapiens2ImageProcessor()
    boxes = [[[100.0 + 30 * i, 50.0, 300.0, 600.0] for i in range(8)]]

    for name, maps in {"heatmaps as trained": heatmaps(), "uniform noise": torch.rand(8, 308, 256, 192)}.items():
        output = SimpleNamespace(heatmaps=maps)
        a, b = print_times(
            f"decode 8 × 308 × 256×192, {name}",
            lambda: ours.post_process_pose_estimation(output, boxes=boxes)[0],  # noqa: B023
            lambda: theirs.post_process_pose_estimation(output, boxes=boxes)[0],  # noqa: B023
            rounds=3,
        )
        gap = torch.stack([(x["keypoints"] - y["keypoints"]).abs().amax(-1) for x, y in zip(a, b, strict=True)])
        print(f"    median difference {gap.median():.1g} px")
        del output, maps

    smooth = torch.nn.functional.interpolate(torch.randn(1, 29, 32, 24), size=(1024, 768), mode="bicubic")
    for name, logits in {"smooth": smooth, "noise": torch.randn(1, 29, 1024, 768)}.items():
        output = SimpleNamespace(logits=logits)
        a, b = print_times(
            f"29 classes to 1080p, {name}",
            lambda: ours.post_process_semantic_segmentation(output, [(1080, 1920)])[0],  # noqa: B023
            lambda: theirs.post_process_semantic_segmentation(output, [(1080, 1920)])[0],  # noqa: B023
        )
        print(f"    {(a != b).float().mean():.1%} of pixels differ")

    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (1080, 1920, 3), dtype=np.uint8))
    for name, options, rounds in (("preprocess a 1080p image", {}, 5), ("crop 8 people", {"boxes": boxes}, 3)):
        calls = (functools.partial(one, image, return_tensors="pt", **options) for one in (ours, theirs))
        print_times(name, *calls, rounds=rounds)


if __name__ == "__main__":
    main()
