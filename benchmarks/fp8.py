"""Speed and error of fp8 for each task, with trained and with random weights.

    python benchmarks/fp8.py                                     # the built-in model, then 0.4b with random weights
    python benchmarks/fp8.py --model 0.4b 1b --tasks pose        # random weights: times only
    python benchmarks/fp8.py --model facebook/sapiens2-pose-0.4b --tasks pose --pictures photos
    python benchmarks/fp8.py --emulate --pictures people         # errors of the built-in model, on any machine

Needs an NVIDIA GPU of the Hopper generation or newer; --emulate rounds in the same way on a CPU and measures errors
only. Prints for each task the milliseconds of a batch in bfloat16 and with fp8, measured alternately, and the errors of
both against float32 in terms of the task. Errors are meaningless with random weights.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import vitruvian  # noqa: E402
from vitruvian.bench.timing import describe_machine, time_interleaved  # noqa: E402
from vitruvian.export.comparison import task_errors  # noqa: E402
from vitruvian.export.int8 import calibration_samples  # noqa: E402
from vitruvian.models.sapiens2.configuration import VARIANTS  # noqa: E402
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES  # noqa: E402

CLASSES = {task: cls.__name__ for task, cls in HEAD_CLASSES.items() if task != "people"}


def build(task: str, source: str, *, device: str = "cuda") -> Any:
    """Return a trained model, or a variant such as 0.4b with random weights, in float32."""
    cls = getattr(vitruvian, CLASSES[task])
    if source not in VARIANTS:
        return cls.from_pretrained(source, dtype=torch.float32, device=device).eval()
    torch.manual_seed(0)
    return cls.from_config(vitruvian.Sapiens2Config.variant(source, task=task), device=device).eval()


@torch.inference_mode()
def errors(model: Any, truth: Any, images: list[Tensor]) -> dict[str, float]:
    """Return the mean errors of a model against another on images [1, 3, H, W], in terms of the task."""
    found: dict[str, list[float]] = {}
    for pixels in images:
        for name, value in task_errors(model(pixels), truth(pixels.float())).items():
            found.setdefault(name, []).append(value)
    return {name: statistics.mean(values) for name, values in found.items()}


def emulated(model: Any) -> Any:
    """Quantize a model on the CPU, where products of quantized matrices are computed in float32."""
    for layer in model.model.model.layer:
        layer.join_weights()
        layer.quantize()
    return model


def emulate_task(task: str, source: str, options: argparse.Namespace) -> None:
    """Print the errors of a task without a GPU."""
    truth = build(task, source, device="cpu")
    found = errors(emulated(copy.deepcopy(truth)), truth, prepared(truth, options))
    print(f"{task}, {source}, emulated on a CPU", flush=True)
    for name, value in found.items():
        print(f"  {name}: {value:.4g}", flush=True)


def prepared(model: Any, options: argparse.Namespace) -> list[Tensor]:
    """Return images [1, 3, H, W] of the folder, at the model's size."""
    size_hw = model.config.image_hw
    processor = vitruvian.Sapiens2ImageProcessor(size={"height": size_hw[0], "width": size_hw[1]})
    found = calibration_samples(model, processor, options.pictures, size_hw=size_hw, max_samples=options.most)
    return [sample["pixel_values"] for sample in found]


def run_task(task: str, source: str, options: argparse.Namespace) -> None:
    """Print the times and errors of a task."""
    truth = build(task, source)
    size_hw = truth.config.image_hw
    images = [pixels.to("cuda", torch.bfloat16) for pixels in prepared(truth, options)]
    plain = copy.deepcopy(truth).to(torch.bfloat16).optimize()
    eight = copy.deepcopy(truth).to(torch.bfloat16).optimize(fp8=True)
    batch = images[0].expand(options.batch, -1, -1, -1).contiguous()
    with torch.inference_mode():
        times = time_interleaved(
            {"bfloat16": lambda: plain(batch), "fp8": lambda: eight(batch)},
            device=batch.device,
            seconds=options.seconds,
        )
    weights = "random weights" if source in VARIANTS else "trained weights"
    print(f"{task}, {source}, {weights}, {size_hw[0]}×{size_hw[1]}, batch {options.batch}", flush=True)
    ratio = times["fp8"].median / times["bfloat16"].median
    print(f"  bfloat16 {times['bfloat16']} ms, fp8 {times['fp8']} ms: {ratio:.3f} ×")
    rounded, coarse = errors(plain, truth, images), errors(eight, truth, images)
    for name, value in coarse.items():
        print(f"  {name}: fp8 {value:.4g}, bfloat16 {rounded[name]:.4g} ({len(images)} images)", flush=True)


def main() -> None:
    """Run the tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", nargs="+", default=["builtin", "0.4b"], help="checkpoints, and variants, which get random weights"
    )
    parser.add_argument("--tasks", nargs="+", default=list(CLASSES), choices=CLASSES)
    parser.add_argument("--pictures", type=Path, default=HERE.parent / "examples", help="folder of images of people")
    parser.add_argument("--most", type=int, default=16, help="number of images to compare")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="measuring time of each, about")
    parser.add_argument("--emulate", action="store_true", help="errors only, on a CPU")
    options = parser.parse_args()
    if options.emulate:
        for task in options.tasks:
            emulate_task(task, options.model[0], options)
        return
    if not torch.cuda.is_available():
        raise SystemExit("fp8 needs an NVIDIA GPU of the Hopper generation or newer, and there is no CUDA device here.")
    print(describe_machine(torch.device("cuda")))
    for source in options.model:
        for task in options.tasks:
            run_task(task, source, options)


if __name__ == "__main__":
    main()
