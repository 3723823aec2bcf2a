"""Sapiens2 on the CPU next to transformers, in one run with the same weights: float32 after optimize(), and int8.

    python benchmarks/cpu_forward.py [--tasks pose normal] [--layers 4] [--rounds 3] [--threads 1] [--no-int8]

Prints a line for each task and data type: seconds of the processor (all threads), ours and theirs in turns, our share
of the reference's time, the largest difference of the results over their largest value, and how far the resident memory
rose in a call. Weights and pictures are random. With fewer `--layers` than the model's 24 it is done sooner, and the
last line of a task estimates all of them from the times of two depths. int8 needs the extra ``export``; its cost is
that of random weights, which spread over all values as trained ones do not.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from measure import alternate, machine, watch
from torch import Tensor

import vitruvian

CLASSES = {
    "pose": ("Sapiens2ForPoseEstimation", "heatmaps"),
    "seg": ("Sapiens2ForSemanticSegmentation", "logits"),
    "normal": ("Sapiens2ForNormalEstimation", "normals"),
    "pointmap": ("Sapiens2ForPointmapEstimation", "pointmaps"),
}
LAYERS = 24


def build(task: str, layers: int, folder: str) -> tuple[Any, Any]:
    """Our model of 0.4 billion parameters with random weights, and the reference's with the same, from our files."""
    kv_heads = vitruvian.Sapiens2Config.variant("0.4b").num_key_value_heads_per_layer
    kept = [kv_heads[index * LAYERS // layers] for index in range(layers)]  # both kinds of layers, as many of each
    config = vitruvian.Sapiens2Config.variant(
        "0.4b", task=task, num_hidden_layers=layers, num_key_value_heads_per_layer=kept
    )
    torch.manual_seed(0)
    ours = getattr(vitruvian, CLASSES[task][0])(config)
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.02)
    ours.save_pretrained(folder)
    theirs = getattr(transformers, CLASSES[task][0]).from_pretrained(folder)
    return ours.eval(), theirs.eval()


def line(name: str, ours: Any, theirs: Any, pixels: Tensor, field: str, rounds: int) -> tuple[float, float]:
    """Time both, print a line, and return the medians of seconds."""
    found, wanted = ours(pixels)[field], theirs(pixels)[field]
    far = float((found - wanted).abs().max() / wanted.abs().max())
    del found, wanted
    times = alternate(lambda: ours(pixels), lambda: theirs(pixels), rounds=rounds, clock=time.process_time)
    grown = [watch(lambda model=model: model(pixels))[1] for model in (ours, theirs)]
    medians = statistics.median(times[0]), statistics.median(times[1])
    spread = [f"{min(part):.2f}–{max(part):.2f}" for part in times]
    print(
        f"{name:28s} ours {medians[0]:6.2f} s ({spread[0]})  reference {medians[1]:6.2f} s ({spread[1]})  "
        f"ratio {medians[0] / medians[1]:.3f}  difference {far:.1e}  memory +{grown[0]:.2f} / +{grown[1]:.2f} GB",
        flush=True,
    )
    return medians


def int8_model(model: Any, folder: Path, pixels: Tensor, threads: int) -> Any:
    """Export a model, calibrate it on pictures and open it."""
    from vitruvian.export import OpenVinoModel, export_onnx, quantize_int8

    start = time.perf_counter()
    export_onnx(model, folder / "onnx", inputs={"pixel_values": pixels}, check=False)
    exported = time.perf_counter() - start
    quantize_int8(folder / "onnx", folder / "int8", [{"pixel_values": pixels}])
    print(f"{'':28s} (export {exported:.0f} s, calibration {time.perf_counter() - start - exported:.0f} s)", flush=True)
    return OpenVinoModel(folder / "int8", threads=threads)


def run_task(task: str, layers: int, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Measure one task at one depth: medians of both, for float32 and int8."""
    field = CLASSES[task][1]
    found = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        ours, theirs = build(task, layers, folder)
        pixels = torch.randn(1, 3, *options.size)
        if not options.no_int8:  # before the packed weights take their memory
            quick = int8_model(ours, Path(folder), pixels, options.threads)
        ours.optimize()
        found["float32"] = line(f"{task}, {layers} layers, float32", ours, theirs, pixels, field, options.rounds)
        del ours
        if not options.no_int8:
            found["int8"] = line(f"{task}, {layers} layers, int8", quick, theirs, pixels, field, options.rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["pose", "normal"], choices=CLASSES)
    parser.add_argument("--layers", type=int, default=LAYERS, help="number of layers, of which 24 are the whole")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", nargs=2, type=int, default=[1024, 768], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--no-int8", action="store_true", help="leave int8 out")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    print(machine())
    for task in options.tasks:
        found = run_task(task, options.layers, options)
        if options.layers >= LAYERS or options.layers < 3:
            continue
        less = options.layers // 3
        shallow = run_task(task, less, options)
        for kind, deep in found.items():
            steps = (LAYERS - options.layers) / (options.layers - less)
            ours, theirs = (b + (b - a) * steps for a, b in zip(shallow[kind], deep, strict=True))
            print(f"{task}, {kind}: {LAYERS} layers about {ours:.1f} s and {theirs:.1f} s, ratio {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
