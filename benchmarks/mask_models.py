"""Swin, MaskFormer and Mask2Former models on the CPU next to transformers, with the same weights.

    python benchmarks/mask_models.py [--models swin mask2former] [--sizes 512x512 480x640] [--rounds 3] [--threads 1]

Prints a row for each model and size: CPU time (all threads) of both, measured alternately, and the largest relative
difference of the results. Weights are random. Backbones are Swin-Tiny; `swin-base` is Swin-Base with windows of 12. The
last row is a batch of two images, one of them a quarter padding, which ours skips.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from typing import Any

import torch
import transformers
from measure import alternate, print_row
from torch import Tensor

import vitruvian
from vitruvian.benchmarking.timing import describe_machine, relative_difference

STAGES = ["stage1", "stage2", "stage3", "stage4"]
BASE = {"image_size": 384, "embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32], "window_size": 12}
FIELDS = ("masks_queries_logits", "class_queries_logits", "feature_maps")
MODELS = {
    "swin": ("SwinBackbone", "SwinConfig", {}),
    "swin-base": ("SwinBackbone", "SwinConfig", BASE),
    "maskformer": ("MaskFormerForInstanceSegmentation", "MaskFormerConfig", {}),
    "mask2former": ("Mask2FormerForUniversalSegmentation", "Mask2FormerConfig", {}),
}


def build(name: str) -> tuple[Any, Any]:
    """Return our model with random weights, and the reference's loaded from our files."""
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


def cpu_seconds(ours: Any, theirs: Any, inputs: dict[str, Tensor], rounds: int) -> tuple[list[float], list[float]]:
    """Return the CPU seconds of both models in each round."""
    return alternate(lambda: ours(**inputs), lambda: theirs(**inputs), rounds=rounds, clock=time.process_time)


def compared_fields(output: Any) -> list[Any]:
    """Return the fields of an output that are compared."""
    return [getattr(output, name) for name in FIELDS if hasattr(output, name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--sizes", nargs="+", default=["512x512", "480x660"], help="height x width of the image")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    print(describe_machine(torch.device("cpu")))
    for name in options.models:
        ours, theirs = build(name)
        with torch.inference_mode():
            for size in options.sizes:
                height, width = map(int, size.split("x"))
                pixels = torch.randn(1, 3, height, width)
                far, _ = relative_difference(*(compared_fields(model(pixels)) for model in (ours, theirs)))
                times = cpu_seconds(ours, theirs, {"pixel_values": pixels}, options.rounds)
                print_row(f"{name} {size}", *times, note=f"difference {far:.1e}")
    if "mask2former" in options.models:
        height, width = map(int, options.sizes[0].split("x"))
        pixels, mask = torch.randn(2, 3, height, width), torch.ones(2, height, width)
        mask[1, height * 3 // 4 :] = 0
        with torch.inference_mode():
            times = cpu_seconds(ours, theirs, {"pixel_values": pixels, "pixel_mask": mask}, options.rounds)
        print_row(f"mask2former {options.sizes[0]}, 2 sizes", *times, note="the reference computes the padding too")


if __name__ == "__main__":
    main()
