"""Swin, MaskFormer and Mask2Former whole, on the CPU next to transformers, in one run with the same weights.

    python benchmarks/mask_models.py [--models swin mask2former] [--sizes 512x512 480x640] [--rounds 3] [--threads 1]

Prints a row for each model and size: seconds of the processor (all threads), ours and theirs in turns, and how far the
results differ, in parts of their largest value. Weights are random, the backbones Swin-Tiny, and Swin-Base with windows
of 12 for `swin-base`. The last row computes a batch of two pictures of which one is a quarter padding: ours leaves it
out.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from typing import Any

import torch
import transformers
from measure import alternate, machine, row
from torch import Tensor

import vitruvian

STAGES = ["stage1", "stage2", "stage3", "stage4"]
BASE = {
    "image_size": 384,
    "embed_dim": 128,
    "depths": [2, 2, 18, 2],
    "num_heads": [4, 8, 16, 32],
    "window_size": 12,
}
FIELDS = ("masks_queries_logits", "class_queries_logits", "feature_maps")
MODELS = {
    "swin": ("SwinBackbone", "SwinConfig", {}),
    "swin-base": ("SwinBackbone", "SwinConfig", BASE),
    "maskformer": ("MaskFormerForInstanceSegmentation", "MaskFormerConfig", {}),
    "mask2former": ("Mask2FormerForUniversalSegmentation", "Mask2FormerConfig", {}),
}


def build(name: str) -> tuple[Any, Any]:
    """Our model with random weights, and the reference's with the same ones, from our files."""
    model, config, fields = MODELS[name]
    swin = vitruvian.SwinConfig(out_features=STAGES, **fields)
    torch.manual_seed(0)
    ours = getattr(vitruvian, model)(
        swin if config == "SwinConfig" else getattr(vitruvian, config)(backbone_config=swin)
    )
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        theirs = getattr(transformers, model).from_pretrained(folder)
    return ours.eval(), theirs.eval()


def in_turns(ours: Any, theirs: Any, given: dict[str, Tensor], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the processor of each round of both models."""
    return alternate(lambda: ours(**given), lambda: theirs(**given), rounds=rounds, clock=time.process_time)


def difference(ours: Any, theirs: Any) -> float:
    """Largest difference of the results, in parts of the largest value."""
    worst = 0.0
    for name in FIELDS:
        pair = [getattr(output, name, None) for output in (ours, theirs)]
        if pair[0] is None:
            continue
        maps = [[value] if isinstance(value, Tensor) else value for value in pair]
        worst = max(worst, *(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*maps, strict=True)))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--sizes", nargs="+", default=["512x512", "480x660"], help="height x width of the picture")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    print(machine())
    for name in options.models:
        ours, theirs = build(name)
        with torch.inference_mode():
            for size in options.sizes:
                height, width = map(int, size.split("x"))
                pixels = torch.randn(1, 3, height, width)
                far = difference(ours(pixels), theirs(pixels))
                times = in_turns(ours, theirs, {"pixel_values": pixels}, options.rounds)
                row(f"{name} {size}", *times, note=f"difference {far:.1e}")
    if "mask2former" in options.models:
        height, width = map(int, options.sizes[0].split("x"))
        pixels, mask = torch.randn(2, 3, height, width), torch.ones(2, height, width)
        mask[1, height * 3 // 4 :] = 0
        with torch.inference_mode():
            times = in_turns(ours, theirs, {"pixel_values": pixels, "pixel_mask": mask}, options.rounds)
        row(f"mask2former {options.sizes[0]}, 2 sizes", *times, note="the reference computes the padding too")


if __name__ == "__main__":
    main()
