"""A folder of images, some of them broken, through the command line and through a plain loop over the same model.

    python benchmarks/image_folder.py [--count 200 --broken 5 --size 1080x1920 --threads 1 --rounds 1]

The model is a Sapiens2 with random weights, as deep as it takes to cost about as much as decoding and writing. The loop
opens an image, runs the model and saves the result before it opens the next one. Both run in new processes after one
warmup image, with the same number of torch threads. Loading the model is not counted.

Prints the CPU milliseconds of an image: decoding, writing, the model, preprocessing and postprocessing; for the loop
and the command the seconds, images per second, CPU seconds, and memory over time; then the exit code, results on disk
and summary of the command, and its speedup over the loop (goal: 1.5, on an idle machine). The exit code is 1 if
results, exit code or names of broken images are wrong, or if memory grows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.measure import MemorySampler, describe_memory, run_in_new_process, time_alternately
from common.random_inputs import add_noise, save_checkpoint, small_sapiens2, smooth_image
from PIL import Image

from vitruvian.bench.timing import describe_machine

TASK, KIND = "normals", "png"
WHOLE = ("--detect", "whole")
INPUT_HW = (256, 192)
TRUNCATED = 5000  # bytes of a broken image
GOAL = 1.5


def write_images(folder: Path, count: int, broken: int, size_hw: tuple[int, int]) -> list[Path]:
    """Write JPEG files, some of them truncated."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    smooth = smooth_image(size_hw, generator)
    paths = [folder / f"{number:04d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        Image.fromarray(add_noise(np.roll(smooth, number * 7, 1), 6, generator)).save(path, quality=90)
    for path in paths[3 :: max(1, count // max(1, broken))][:broken]:
        path.write_bytes(path.read_bytes()[:TRUNCATED])
    return paths


def calibrate(folder: Path, path: Path) -> tuple[int, dict[str, float]]:
    """Choose the number of layers; return it, and the CPU seconds of each step of an image."""
    from vitruvian import pipeline
    from vitruvian.images.read import load_rgb
    from vitruvian.pipelines.engine.steps import ModelInput

    def model_seconds(layers: int) -> tuple[float, Any]:
        checkpoint = folder / f"layers{layers}"
        sizes = {"channels": (32, 16, 16, 8), "hidden_size": 256, "intermediate_size": 1024}
        save_checkpoint(small_sapiens2(TASK, INPUT_HW, layers=layers, **sizes), checkpoint)
        pipe = pipeline(TASK, checkpoint, device="cpu", detect="whole")
        units = [ModelInput(torch.rand(3, *INPUT_HW))]
        with torch.inference_mode():
            return fastest(lambda: pipe.forward(units)), pipe

    small, pipe = model_seconds(2)
    large, _ = model_seconds(10)
    result = pipe(path)
    decoding = fastest(lambda: load_rgb(path))
    writing = fastest(lambda: result.save(folder / "x.png"))
    layers = max(1, round(2 + (decoding + writing - small) / max(1e-4, (large - small) / 8)))
    model, pipe = model_seconds(layers)
    image = load_rgb(path)
    rest = fastest(lambda: pipe(image)) - model
    return layers, {"decoding": decoding, "writing": writing, "model": model, "pre- and postprocessing": rest}


def fastest(call: Callable[[], Any]) -> float:
    """Return the minimum CPU seconds of several calls."""
    return min(seconds for _, seconds in time_alternately({"": call}, 5)[""])


def warm_pipeline(images: Path, model: Path) -> Any:
    """Return a pipeline after one image."""
    from vitruvian import pipeline

    pipe = pipeline(TASK, model, device="cpu", detect="whole")
    pipe(next(path for path in sorted(images.glob("*.jpg")) if path.stat().st_size > TRUNCATED))
    return pipe


def run_loop(images: Path, model: Path, out: Path) -> dict[str, Any]:
    """Process one image after another."""
    pipe = warm_pipeline(images, model)
    out.mkdir(parents=True)
    with MemorySampler(0.05) as memory:
        for path in sorted(images.glob("*.jpg")):
            with contextlib.suppress(ValueError):
                pipe(path).save(out / f"{path.stem}_{TASK}.{KIND}")
    return memory.to_dict()


def run_command(images: Path, model: Path, out: Path) -> dict[str, Any]:
    """Run the command in this process, with a model that is loaded already, as in the loop."""
    import vitruvian.cli.run_task as run_task
    from vitruvian.cli import run

    pipe = warm_pipeline(images, model)
    run_task.pipeline = lambda *_, **__: pipe
    printed = io.StringIO()
    with MemorySampler(0.05) as memory, contextlib.redirect_stdout(printed):
        places = [str(images), "--model", str(model), "--out", str(out)]
        code = run([TASK, *places, "--save", KIND, "--json", "--quiet", *WHOLE])
    summary = json.loads(printed.getvalue().splitlines()[-1])["summary"]
    return {"code": code, "summary": summary} | memory.to_dict()


RUNS = {"loop": run_loop, "command": run_command}


def run_round(root: Path, number: int, model: Path, options: argparse.Namespace) -> tuple[float, bool]:
    """Run both and print the measurements; return the ratio of their times and whether everything is correct."""
    found: dict[str, dict[str, Any]] = {}
    correct = True
    for kind in RUNS:
        paths = [str(root / "images"), str(model), str(root / f"{kind}{number}")]
        threads = str(options.threads)
        environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        one = found[kind] = run_in_new_process(
            __file__, "--one", kind, *paths, "--threads", threads, environment=environment
        )
        if "error" in one:
            raise SystemExit(f"{kind}: {one['error']}")
        line, constant = describe_memory(one)
        correct &= constant or kind == "loop"
        print(
            f"{kind:8s} {one['seconds']:7.1f} s, {options.count / one['seconds']:6.2f} images/s, "
            f"{one['cpu_seconds']:.1f} CPU seconds, {threads} torch threads\n{'':8s} {line}",
            flush=True,
        )
    command = found["command"]
    written = len(list((root / f"command{number}").glob(f"*.{KIND}")))
    failures = command["summary"].pop("failures")
    print(
        f"command: exit code {command['code']}, {written} results, {len(failures)} failures; {command['summary']}",
        flush=True,
    )
    expected = (int(options.broken > 0), options.count - options.broken, options.broken)
    correct &= (command["code"], written, len(failures)) == expected
    return found["loop"]["seconds"] / command["seconds"], correct


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of images, broken ones included")
    parser.add_argument("--broken", type=int, default=5)
    parser.add_argument("--size", default="1080x1920", help="height x width")
    parser.add_argument("--threads", type=int, default=1, help="torch threads, in the loop and in the command")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        kind, *paths = options.one
        print(json.dumps(RUNS[kind](*map(Path, paths))))
        return 0
    height, width = (int(side) for side in options.size.split("x"))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        paths = write_images(root / "images", options.count, options.broken, (height, width))
        layers, costs = calibrate(root / "models", paths[0])
        print(describe_machine(torch.device("cpu")))
        listed = ", ".join(f"{step} {seconds * 1e3:.0f} ms" for step, seconds in costs.items())
        files = costs["decoding"] + costs["writing"]
        print(f"an image: {listed}; {layers} layers, decoding + writing {files / costs['model']:.2f} × the model")
        model = root / "models" / f"layers{layers}"
        rounds = [run_round(root, number, model, options) for number in range(options.rounds)]
    ratios = [ratio for ratio, _ in rounds]
    ratio = statistics.median(ratios)
    listed = f" (rounds: {', '.join(f'{one:.2f}' for one in ratios)})" if len(ratios) > 1 else ""
    print(
        f"the command is {ratio:.2f} × as fast as the loop{listed}; goal {GOAL}: {'met' if ratio >= GOAL else 'missed'}"
    )
    return 0 if all(correct for _, correct in rounds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
