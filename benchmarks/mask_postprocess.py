"""Post-processing of 100 mask queries on the CPU: time and peak memory next to transformers, in one run.

    python benchmarks/mask_postprocess.py [--sizes 1080x1920 3000x4000] [--threads 1] [--limit-gb 12]

Each row runs in new processes, so that peaks do not mix. Memory is the peak resident memory above that before the call.
A process that exceeds the limit of address space is reported as out of memory.

Prints a table: for each size and task the seconds and memory of both, and their ratios.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

from common.measure import as_arguments, print_limited, run_in_new_process, time_and_peak

NUMBERS = ("threads", "limit_gb")
GRID, QUERIES, OBJECTS, LABELS = (200, 272), 100, 24, 133
TASKS = {
    "semantic": ("post_process_semantic_segmentation", {}),
    "panoptic": ("post_process_panoptic_segmentation", {"label_ids_to_fuse": set(range(80, LABELS))}),
    "instance map": ("post_process_instance_segmentation", {}),
    "instance RLE": ("post_process_instance_segmentation", {"return_coco_annotation": True}),
    "instance masks": ("post_process_instance_segmentation", {"return_binary_maps": True}),
    "100 instances, masks": ("post_process_instance_segmentation", {"return_binary_maps": True}),
}


def make_outputs(objects: int) -> SimpleNamespace:
    """Return logits like those of a trained model: few confident queries that cover the image, many without object."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(0)
    height, width = GRID
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    centers = torch.rand(QUERIES, 2) * torch.tensor([height, width])
    distance = ((y - centers[:, 0, None, None]) ** 2 + (x - centers[:, 1, None, None]) ** 2).sqrt()  # [Q, h, w]
    distance += F.interpolate(torch.randn(1, 1, 20, 27) * 8, size=GRID, mode="bicubic")[0]
    best = distance[:objects].topk(2, dim=0, largest=False).values  # [2, h, w]
    rival = torch.where(distance == best[0], best[1], best[0])
    masks = ((rival - distance) * 0.8).clamp(-12, 10) + torch.randn(QUERIES, *GRID) * 0.3
    masks[objects:] = (12 - distance[objects:] * 0.5).clamp(-8, 1)
    classes = torch.randn(QUERIES, LABELS + 1) * 0.5
    classes[range(QUERIES), torch.where(torch.arange(QUERIES) < objects, torch.randint(LABELS, (QUERIES,)), LABELS)] = 9
    return SimpleNamespace(class_queries_logits=classes[None], masks_queries_logits=masks[None])


def run_one(library: str, task: str, size: tuple[int, int], threads: int, limit_gb: float) -> None:
    """Measure one row and print it as JSON: time of the second of two calls, memory of the first."""
    import torch

    if library == "vitruvian":
        from vitruvian.models.mask2former.processing import Mask2FormerImageProcessor as Processor
    else:
        from transformers.models.mask2former.image_processing_pil_mask2former import (
            Mask2FormerImageProcessorPil as Processor,
        )
    torch.set_num_threads(threads)
    processor, outputs = Processor(), make_outputs(QUERIES if task.startswith("100") else OBJECTS)
    name, options = TASKS[task]
    method = getattr(processor, name)
    method(outputs, target_sizes=[(64, 64)], **options)

    def first_and_second() -> dict[str, float]:
        first, second = (time_and_peak(lambda: method(outputs, target_sizes=[size], **options)) for _ in range(2))
        return {"seconds": second["seconds"], "gb": first["gb"]}

    print_limited(first_and_second, limit_gb=limit_gb)


def cell(result: dict) -> str:
    return result["error"] if "error" in result else f"{result['seconds']:.2f} s, {result['gb']:.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1080x1920", "3000x4000"], help="height x width of the targets")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit-gb", type=float, default=12.0)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        library, task, size = options.one
        height, width = map(int, size.split("x"))
        run_one(library, task, (height, width), options.threads, options.limit_gb)
        return
    print(f"{QUERIES} queries, {LABELS} labels, grid {GRID[0]}×{GRID[1]}, {options.threads} threads")
    print(f"| target | task | vitruvian | transformers | time ratio | memory ratio |\n|{'---|' * 6}")
    for size in options.sizes:
        for task in TASKS:
            ours, theirs = (
                run_in_new_process(__file__, "--one", library, task, size, *as_arguments(options, NUMBERS))
                for library in ("vitruvian", "transformers")
            )
            ratios = [
                f"{theirs[key] / max(ours[key], 0.05 if key == 'gb' else 1e-3):.1f}×"
                if key in ours and key in theirs
                else "–"
                for key in ("seconds", "gb")
            ]
            print(f"| {size} | {task} | {cell(ours)} | {cell(theirs)} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
