r"""The original SAM 2 (facebookresearch/sam2) in videos: frames a second with several objects.

    python benchmarks/track_original.py --checkout path/to/sam2 --model tiny large --objects 1 4 16

Needs a checkout of the original, and hydra-core, iopath and torchvision. Its predictor has random weights, runs under
bfloat16 autocast as its examples do, and tracks objects that are clicked in the first frame of a folder of JPEG files,
which it loads before the measurement. With --compile also its compiled predictor (`vos_optimized`). The time of a frame
is the median after the memory is full. `benchmarks/track.py` measures ours on frames of the same size.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.random_inputs import smooth_image
from PIL import Image

CONFIGS = {"tiny": "t", "small": "s", "base-plus": "b+", "large": "l"}
MEMORY_FRAMES = 17  # until the memory of the model is full


def write_frames(folder: Path, size: int, count: int) -> None:
    """Write a video as a folder of JPEG files, the only form that the original reads without decord."""
    frame = smooth_image((size, size), np.random.default_rng(0))
    for number in range(count):
        Image.fromarray(np.roll(frame, 8 * number, 1)).save(folder / f"{number:05d}.jpg")


def measure(predictor: Any, folder: Path, objects: int) -> dict[str, float]:
    """Return the milliseconds of a frame (median, fastest, slowest) with so many objects."""
    state = predictor.init_state(str(folder))
    size = state["video_height"]
    clicks = np.random.default_rng(2).uniform(0, size, (objects, 1, 2)).astype(np.float32)
    for number, points in enumerate(clicks):
        predictor.add_new_points_or_box(state, 0, number, points=points, labels=np.ones(1, np.int32))
    taken, start = [], time.perf_counter()
    for _ in predictor.propagate_in_video(state):
        torch.cuda.synchronize()
        end = time.perf_counter()
        taken.append((end - start) * 1e3)
        start = end
    steady = taken[MEMORY_FRAMES:]
    return {"ms": statistics.median(steady), "min": min(steady), "max": max(steady)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, required=True, help="folder that has the package sam2")
    parser.add_argument("--model", nargs="+", default=["tiny", "large"], choices=list(CONFIGS))
    parser.add_argument("--objects", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--size", type=int, default=1024, help="height and width of the frames")
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--compile", action="store_true", help="also the compiled predictor")
    options = parser.parse_args()
    if options.frames <= MEMORY_FRAMES:
        parser.error(f"--frames: expected more than {MEMORY_FRAMES}, which fill the memory, got {options.frames}")
    sys.path.insert(0, str(options.checkout))
    from sam2.build_sam import build_sam2_video_predictor  # the original

    warnings.filterwarnings("ignore")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16 autocast, {options.size}²", flush=True)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        write_frames(folder, options.size, options.frames)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast("cuda", torch.bfloat16))
        for compiled in (False, True) if options.compile else (False,):
            for model in options.model:
                torch.manual_seed(0)
                config = f"configs/sam2.1/sam2.1_hiera_{CONFIGS[model]}.yaml"
                predictor = build_sam2_video_predictor(config, apply_postprocessing=False, vos_optimized=compiled)
                for objects in options.objects:
                    row = measure(predictor, folder, objects)
                    print(
                        f"original{' compiled' if compiled else ''}, {model}, {objects} objects: {row['ms']:.2f} ms a "
                        f"frame ({row['min']:.2f}-{row['max']:.2f}), {1e3 / row['ms']:.1f} frames a second",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
