"""A folder of pictures, some of them broken, through the command line and through a plain loop over the same model.

    python benchmarks/folder.py [--count 200 --broken 5 --size 1080x1920 --threads 1 --rounds 1]

The model is a Sapiens2 with random weights, as deep as it takes for it to cost about as much as decoding and writing.
The loop opens a picture, runs the model and saves the result before it goes on to the next. Both run in processes of
their own, after one picture to warm up, with as many threads for torch (one, unless told otherwise); opening the model
is not counted.

Prints what a picture costs in milliseconds of the processor: decoding, writing, the model, preparing and finishing; for
the loop and for the command the seconds, pictures a second, seconds of the processor, and the highest memory in each
eighth of the time; then the command's exit code, results on disk, summary, and how many times as quick it was as the
loop (goal: 1.5, where nothing else runs on the machine). The exit code is 1 where results, exit code or names of broken
pictures are not as they must be, or memory grows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine
from PIL import Image

TASK, KIND = "normals", "png"
INPUT_HW = (256, 192)
EIGHTHS, GROWTH = 8, 1.1  # memory over time, and how much more its end may take than its beginning
GOAL = 1.5


def make_pictures(folder: Path, count: int, broken: int, size_hw: tuple[int, int]) -> list[Path]:
    """Write photographs of a sort: smooth shapes with grain, as large in JPEG as real ones."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    coarse = generator.uniform(0, 255, (9, 16, 3)).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((size_hw[1], size_hw[0]), Image.Resampling.BICUBIC), np.int16)
    paths = []
    for number in range(count):
        grain = generator.normal(0, 6, (*size_hw, 1)).astype(np.int16)
        paths.append(folder / f"{number:04d}.jpg")
        Image.fromarray(np.clip(np.roll(smooth, number * 7, 1) + grain, 0, 255).astype(np.uint8)).save(
            paths[-1], quality=90
        )
    for path in paths[3 :: max(1, count // max(1, broken))][:broken]:
        path.write_bytes(path.read_bytes()[:5000])
    return paths


def save_model(folder: Path, layers: int) -> None:
    """Write a checkpoint with random weights."""
    import torch

    from vitruvian import Sapiens2Config, Sapiens2ForNormalEstimation, Sapiens2ImageProcessor

    torch.manual_seed(0)
    head = {
        "upsample_out_channels": [32, 16, 16, 8],
        "upsample_kernel_sizes": [3] * 4,
        "use_pixel_shuffle": True,
        "conv_out_channels": [8],
        "conv_kernel_sizes": [3],
    }
    config = Sapiens2Config(
        hidden_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_attention_heads=2,
        intermediate_size=1024,
        image_size=list(INPUT_HW),
        num_labels=3,
        head_config=head,
    )
    Sapiens2ForNormalEstimation(config).save_pretrained(folder)
    size = {"height": INPUT_HW[0], "width": INPUT_HW[1]}
    Sapiens2ImageProcessor(size=size, do_pad=True).save_pretrained(folder)


def calibrate(folder: Path, path: Path, threads: int) -> tuple[int, dict[str, float]]:
    """Choose the number of layers: returns it, and the seconds a picture of each piece of the work."""
    import torch

    from vitruvian import pipeline
    from vitruvian.pipelines.engine.task import Unit
    from vitruvian.pipelines.sources import load_rgb

    torch.set_num_threads(threads)

    def model_seconds(layers: int) -> tuple[float, Any]:
        save_model(folder / f"layers{layers}", layers)
        pipe = pipeline(TASK, folder / f"layers{layers}", device="cpu")
        units = [Unit(torch.rand(3, *INPUT_HW))]
        with torch.inference_mode():
            return fastest(lambda: pipe.forward(units)), pipe

    small, pipe = model_seconds(2)
    large, _ = model_seconds(10)
    result = pipe(path)
    decoding = fastest(lambda: load_rgb(path))
    writing = fastest(lambda: result.save(folder / "x.png"))
    layers = max(1, round(2 + (decoding + writing - small) / max(1e-4, (large - small) / 8)))
    model, pipe = model_seconds(layers)
    picture = load_rgb(path)
    rest = fastest(lambda: pipe(picture)) - model
    return layers, {"decoding": decoding, "writing": writing, "model": model, "preparing and finishing": rest}


def fastest(call: Any, rounds: int = 5) -> float:
    """The least seconds of the processor of some calls, which other work on the machine blurs less."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


class Memory:
    """Samples the resident size of this process."""

    def __enter__(self) -> Memory:
        import psutil

        self.cpu = time.process_time()
        self.samples: list[float] = []
        self.done = threading.Event()
        process = psutil.Process()

        def sample() -> None:
            while not self.done.wait(0.05):
                self.samples.append(process.memory_info().rss / 1e6)

        self.thread = threading.Thread(target=sample)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()
        self.cpu = time.process_time() - self.cpu

    def facts(self) -> dict[str, Any]:
        """The highest memory in MB, that of each eighth of the time, and seconds of the processor."""
        ends = [round(index * len(self.samples) / EIGHTHS) for index in range(EIGHTHS + 1)]
        parts = [max(self.samples[start:end], default=0.0) for start, end in pairwise(ends)]
        return {"peak_mb": max(self.samples, default=0.0), "eighths_mb": parts, "cpu": self.cpu}


def memory_line(facts: dict[str, Any]) -> tuple[str, bool]:
    """Say how memory went over time, and whether it stayed flat once all was running."""
    early, late = max(facts["eighths_mb"][1:4]), max(facts["eighths_mb"][-2:])
    flat = late <= early * GROWTH
    over_time = " ".join(f"{size:.0f}" for size in facts["eighths_mb"])
    verdict = "flat" if flat else "GROWS"
    return f"memory: peak {facts['peak_mb']:.0f} MB; over time {over_time}: {late / early - 1:+.1%}, {verdict}", flat


def run_loop(pictures: Path, model: Path, out: Path) -> dict[str, Any]:
    """One picture after another, as one would write it."""
    from vitruvian import pipeline

    pipe = pipeline(TASK, model, device="cpu")
    out.mkdir(parents=True)
    paths = sorted(pictures.glob("*.jpg"))
    pipe(next(path for path in paths if path.stat().st_size > 5000))
    failed = 0
    with Memory() as memory:
        start = time.perf_counter()
        for path in paths:
            try:
                pipe(path).save(out / f"{path.stem}_{TASK}.{KIND}")
            except ValueError:
                failed += 1
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "failed": failed} | memory.facts()


def run_command(pictures: Path, model: Path, out: Path) -> dict[str, Any]:
    """The command line, in this process; opening the model is not counted, as in the loop."""
    import vitruvian.cli.jobs as jobs
    from vitruvian import pipeline
    from vitruvian.cli import run

    pipe = pipeline(TASK, model, device="cpu")
    pipe(next(path for path in sorted(pictures.glob("*.jpg")) if path.stat().st_size > 5000))
    jobs.pipeline = lambda *_, **__: pipe
    told = io.StringIO()
    with Memory() as memory, contextlib.redirect_stdout(told):
        start = time.perf_counter()
        words = [TASK, str(pictures), "--model", str(model), "--out", str(out), "--save", KIND, "--json", "--quiet"]
        code = run(words)
        seconds = time.perf_counter() - start
    summary = json.loads(told.getvalue().splitlines()[-1])["summary"]
    named = [text.partition(":")[0] for text in summary["failures"]]
    return {"seconds": seconds, "code": code, "summary": summary, "named": named} | memory.facts()


def in_process(kind: str, place: list[str], threads: int) -> dict[str, Any]:
    """Run the loop or the command in a process of its own, with as many threads for torch."""
    words = [sys.executable, __file__, "--one", kind, *place, "--threads", str(threads)]
    env = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(f"the {kind} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_round(root: Path, number: int, model: Path, options: argparse.Namespace) -> tuple[float, bool]:
    """Run both and print what happened; returns the ratio of their times and whether all was as it must be."""
    found: dict[str, dict[str, Any]] = {}
    good = True
    for kind in ("loop", "command"):
        place = [str(root / "pictures"), str(model), str(root / f"{kind}{number}")]
        one = found[kind] = in_process(kind, place, options.threads)
        line, flat = memory_line(one)
        good &= flat or kind == "loop"
        print(
            f"{kind:8s} {one['seconds']:7.1f} s, {options.count / one['seconds']:6.2f} pictures/s, "
            f"{one['cpu']:.1f} s of the processor, {options.threads} threads for torch\n{'':8s} {line}",
            flush=True,
        )
    command = found["command"]
    written = len(list((root / f"command{number}").glob(f"*.{KIND}")))
    told = {name: value for name, value in command["summary"].items() if name != "failures"}
    print(f"command: exit code {command['code']}, {written} results, {len(command['named'])} named as failed; {told}")
    expected = (int(options.broken > 0), options.count - options.broken, options.broken)
    good &= (command["code"], written, len(command["named"])) == expected
    return found["loop"]["seconds"] / command["seconds"], good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="pictures, the broken ones among them")
    parser.add_argument("--broken", type=int, default=5)
    parser.add_argument("--size", default="1080x1920", help="height x width")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in the loop and in the command")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        import torch

        torch.set_num_threads(options.threads)
        kind, pictures, model, out = options.one
        measured = {"loop": run_loop, "command": run_command}[kind](Path(pictures), Path(model), Path(out))
        print(json.dumps(measured))
        return 0
    height, width = (int(side) for side in options.size.split("x"))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        paths = make_pictures(root / "pictures", options.count, options.broken, (height, width))
        layers, costs = calibrate(root / "models", paths[0], options.threads)
        print(machine())
        told = ", ".join(f"{what} {seconds * 1e3:.0f} ms" for what, seconds in costs.items())
        around = costs["decoding"] + costs["writing"]
        print(f"a picture: {told}; {layers} layers, decoding + writing {around / costs['model']:.2f} × the model")
        rounds = [
            run_round(root, number, root / "models" / f"layers{layers}", options) for number in range(options.rounds)
        ]
    ratios = [ratio for ratio, _ in rounds]
    ratio = statistics.median(ratios)
    listed = f" (rounds: {', '.join(f'{one:.2f}' for one in ratios)})" if len(ratios) > 1 else ""
    verdict = "met" if ratio >= GOAL else "missed"
    print(f"the command is {ratio:.2f} × as quick as the loop{listed}; goal {GOAL}: {verdict}")
    return 0 if all(good for _, good in rounds) else 1


if __name__ == "__main__":
    raise SystemExit(main())
