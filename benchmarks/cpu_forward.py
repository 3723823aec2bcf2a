"""Sapiens2 on the CPU next to transformers, in one process with the same weights: float32 after optimize(), and int8.

    python benchmarks/cpu_forward.py --tasks pose --threads 2        # all of 0.4b: under ten minutes on two idle cores
    python benchmarks/cpu_forward.py --layers 6 --threads 1          # faster, for a busy machine
    python benchmarks/cpu_forward.py --model FOLDER --pictures photos --calibrate 12 --shown 8

Ours, int8 and the reference run alternately. Prints for each task and data type the wall time and the CPU time (all
threads), our share of the reference's, and the largest relative difference of the results; for int8 also its error in
terms of the task, on images that it was not calibrated on. On a busy machine compare CPU times, with one thread.

Weights are those of --model (a checkpoint, packed or not), or random ones of the size 0.4b. The error of int8 is
meaningless with random weights. With fewer --layers than the 24 of 0.4b the last lines extrapolate to all of them from
two depths; use a multiple of 6, since a third of the layers has fewer key/value heads, which costs the reference most.
int8 needs the extra ``export``; by default it is calibrated on the mirrored image.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from common.measure import Times, time_alternately, time_and_peak
from torch import Tensor

import vitruvian
from vitruvian.bench.timing import describe_machine
from vitruvian.export.comparison import compare_outputs, task_errors
from vitruvian.export.int8 import calibration_samples
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CLASSES = {task: cls.__name__ for task, cls in HEAD_CLASSES.items() if task != "people"}
LAYERS = 24  # of 0.4b
GOALS = {"float32": 0.85, "int8": 0.45}  # shares of the reference's time, for poses with all of 0.4b
REFERENCE = "reference"

# ------------------------------------------------------------------------------------------------------------ models


def random_model(task: str, layers: int) -> Any:
    """Return 0.4b, or some of its layers, with random weights."""
    kv_heads = vitruvian.Sapiens2Config.variant("0.4b").num_key_value_heads_per_layer
    chosen = [kv_heads[index * LAYERS // layers] for index in range(layers)]  # both kinds of layers, in proportion
    config = vitruvian.Sapiens2Config.variant(
        "0.4b", task=task, num_hidden_layers=layers, num_key_value_heads_per_layer=chosen
    )
    torch.manual_seed(0)
    model = getattr(vitruvian, CLASSES[task])(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


def build(task: str, layers: int, folder: str, source: str | None = None) -> tuple[Any, Any]:
    """Return our model and the reference's with the same weights; where it has none, ours without `optimize()`."""
    if source is None:
        ours = random_model(task, layers)
    else:
        ours = getattr(vitruvian, CLASSES[task]).from_pretrained(source, dtype=torch.float32)
    ours.save_pretrained(folder)
    try:
        theirs = getattr(transformers, CLASSES[task]).from_pretrained(folder)
    except Exception as error:  # it supports some heads only
        print(f"{task}: the reference cannot load it ({error!r}); ours without optimize() replaces it")
        theirs = copy.deepcopy(ours)
    return ours.eval(), theirs.eval()


def samples_for(model: Any, options: argparse.Namespace) -> tuple[list[Tensor], list[Tensor]]:
    """Return images [1, 3, H, W] to run, and others for calibration."""
    height, width = options.size or model.config.image_hw
    processor = vitruvian.Sapiens2ImageProcessor(size={"height": height, "width": width})
    most = options.shown + options.calibrate
    found = calibration_samples(model, processor, options.pictures, size_hw=(height, width), max_samples=most)
    pixels = [sample["pixel_values"] for sample in found]
    shown, others = pixels[: options.shown], pixels[options.shown :]
    return shown, others or [one.flip(-1) for one in shown]


def int8_model(model: Any, folder: Path, images: list[Tensor], threads: int) -> Any:
    """Export a model, calibrate it on images and load it."""
    from vitruvian.export import OpenVinoModel, export_onnx, quantize_int8

    start = time.perf_counter()
    export_onnx(model, folder / "onnx", inputs={"pixel_values": images[0]}, check=False)
    exported = time.perf_counter()
    quantize_int8(folder / "onnx", folder / "int8", [{"pixel_values": one} for one in images])
    seconds = exported - start, time.perf_counter() - exported
    print(f"  exported in {seconds[0]:.0f} s, calibrated on {len(images)} in {seconds[1]:.0f} s", flush=True)
    return OpenVinoModel(folder / "int8", threads=threads)


# --------------------------------------------------------------------------------------------------------- measuring


def text(rounds: list[tuple[float, float]]) -> str:
    """Return the medians, and the range of the wall time."""
    clock, processor = zip(*rounds, strict=True)
    limits = f"{min(clock):.2f}–{max(clock):.2f}"
    return f"{statistics.median(clock):6.2f} s ({limits}; CPU {statistics.median(processor):.2f})"


def share(ours: list[tuple[float, float]], theirs: list[tuple[float, float]], clock: int) -> float:
    """Return our share of their wall (0) or CPU (1) time."""
    return statistics.median(one[clock] for one in ours) / statistics.median(one[clock] for one in theirs)


def run_task(task: str, layers: int, options: argparse.Namespace) -> Times:
    """Measure one task at one depth, and print it."""
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        ours, theirs = build(task, layers, folder, options.model)
        shown, others = samples_for(ours, options)
        print(f"{task}, {ours.config.num_hidden_layers} layers, {'×'.join(map(str, shown[0].shape[-2:]))}", flush=True)
        models = {"float32": ours, "int8": None, REFERENCE: theirs}
        if not options.no_int8:  # before packed weights use memory
            models["int8"] = int8_model(ours, Path(folder), others, options.threads)
        ours.optimize()
        models = {name: model for name, model in models.items() if model is not None}
        outputs = {name: [model(one) for one in shown] for name, model in models.items()}  # and warmup
        times = time_alternately(
            {name: lambda model=model: model(shown[0]) for name, model in models.items()}, options.rounds
        )
        print(f"  {REFERENCE:9s} {text(times[REFERENCE])}")
        for name in models:
            if name != REFERENCE:
                print_model(name, outputs[name], outputs[REFERENCE], times, goal=goal_of(name, task, layers, options))
        for name, model in models.items() if options.memory else ():
            peak = time_and_peak(lambda model=model: model(shown[0]))["gb"]
            print(f"  {name:9s} peak memory of a call {peak:.2f} GB")
    return times


def goal_of(name: str, task: str, layers: int, options: argparse.Namespace) -> float | None:
    """Return the goal of a row, if any."""
    whole = task == "pose" and layers == LAYERS and options.model is None and options.size is None
    return GOALS[name] if whole else None


def print_model(name: str, found: list[Any], wanted: list[Any], times: Times, *, goal: float | None) -> None:
    """Print times, shares and differences of one model."""
    far = max(
        max(compare_outputs(ours, plain(theirs, ours)).values()) for ours, theirs in zip(found, wanted, strict=True)
    )
    shares = share(times[name], times[REFERENCE], 0), share(times[name], times[REFERENCE], 1)
    verdict = "" if goal is None else f"  goal {goal}: {'met' if shares[0] <= goal else 'missed'}"
    print(
        f"  {name:9s} {text(times[name])}  ratio {shares[0]:.3f} (CPU {shares[1]:.3f})  "
        f"largest difference {far:.1e}{verdict}",
        flush=True,
    )
    if name == "int8":
        costs = [task_errors(ours, plain(theirs, ours)) for ours, theirs in zip(found, wanted, strict=True)]
        for what in costs[0]:
            values = [cost[what] for cost in costs if what in cost]
            print(f"            {what}: {statistics.mean(values):.4g} ({len(values)} images)", flush=True)


def plain(theirs: Any, ours: Any) -> Any:
    """Return the reference's output in our class."""
    return type(ours)(**{name: theirs[name] for name in ours if name in theirs})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["pose", "normal"], choices=CLASSES)
    parser.add_argument("--model", help="a checkpoint, packed or not; by default 0.4b with random weights")
    parser.add_argument("--layers", type=int, default=LAYERS, help="layers of the random model; 24 are all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", nargs=2, type=int, metavar=("HEIGHT", "WIDTH"), help="by default that of the model")
    parser.add_argument("--no-int8", action="store_true", help="leave int8 out")
    parser.add_argument("--pictures", type=Path, default=EXAMPLES, help="folder of photographs")
    parser.add_argument("--shown", type=int, default=1, help="number of images on which the error of int8 is measured")
    parser.add_argument("--calibrate", type=int, default=8, help="number of images for the calibration of int8")
    parser.add_argument("--memory", action="store_true", help="also measure the peak memory of a call")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    print(describe_machine(torch.device("cpu")))
    for task in options.tasks:
        times = run_task(task, options.layers, options)
        if options.model is not None or options.layers >= LAYERS or options.layers < 2:
            continue
        half = options.layers // 2
        print_estimate(times, options.layers, run_task(task, half, options), half)


def print_estimate(deep: Times, layers: int, shallow: Times, fewer: int) -> None:
    """Print the CPU time of all layers, extrapolated from two depths."""
    steps = (LAYERS - layers) / (layers - fewer)
    ends = {}
    for name in deep:
        few, many = (statistics.median(one[1] for one in times[name]) for times in (shallow, deep))
        ends[name] = many + (many - few) * steps
    for name, seconds in ends.items():
        print(f"all {LAYERS} layers, {name:9s} about {seconds:5.1f} CPU seconds, {seconds / ends[REFERENCE]:.3f}")


if __name__ == "__main__":
    main()
