"""A folder of pictures, some of them broken, through the command line and through a plain loop over the same model.

    python benchmarks/folder.py [--count 200 --broken 5 --size 1080x1920 --threads 1]

The model is a Sapiens2 with random weights, as deep as it takes for it to cost about as much as reading and writing.
Both run in processes of their own with as many threads for the model; prints results, ratio and memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine
from PIL import Image

TASK, KIND = "normals", "png"
INPUT_HW = (256, 192)


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


def calibrate(folder: Path, path: Path, threads: int) -> tuple[int, float, float]:
    """Choose the number of layers: returns it, and the seconds a picture of reading and writing, and of the model."""
    import torch

    from vitruvian import pipeline
    from vitruvian.pipelines.runner import Unit
    from vitruvian.pipelines.sources import as_picture

    torch.set_num_threads(threads)

    def model_seconds(layers: int) -> tuple[float, Any]:
        save_model(folder / f"layers{layers}", layers)
        pipe = pipeline(TASK, folder / f"layers{layers}", device="cpu")
        units = [Unit(torch.rand(3, *INPUT_HW))]
        with torch.inference_mode():
            return fastest(lambda: pipe.forward(units, pipe.options)), pipe

    small, pipe = model_seconds(2)
    large, _ = model_seconds(10)
    result = pipe(path)
    around = fastest(lambda: (as_picture(path), result.save(folder / "x.png")))
    each = max(1e-4, (large - small) / 8)
    layers = max(1, round(2 + (around - small) / each))
    return layers, around, model_seconds(layers)[0]


def fastest(call: Any, rounds: int = 4) -> float:
    """The least seconds of some calls."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
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

    def facts(self) -> dict[str, float]:
        """The peak, and the peaks of the second and the last quarter of the time, in MB; seconds of the processor."""
        quarter = max(1, len(self.samples) // 4)
        second, last = self.samples[quarter : 2 * quarter] or [0.0], self.samples[-quarter:] or [0.0]
        found = {"peak_mb": max(self.samples, default=0.0), "second_mb": max(second), "last_mb": max(last)}
        return found | {"cpu": self.cpu}


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
    return {"seconds": seconds, "code": code, "done": summary["done"], "named": named} | memory.facts()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--broken", type=int, default=5)
    parser.add_argument("--size", default="1080x1920", help="height x width")
    parser.add_argument("--threads", type=int, default=1, help="of the model")
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
        layers, around, model = calibrate(root / "models", paths[0], options.threads)
        print(machine())
        print(f"a picture: {around * 1e3:.0f} ms to read and write, {model * 1e3:.0f} ms in a model of {layers} layers")
        ratios = []
        good = True
        for number in range(options.rounds):
            found = {}
            for kind in ("loop", "command"):
                place = [
                    str(root / "pictures"),
                    str(root / "models" / f"layers{layers}"),
                    str(root / f"{kind}{number}"),
                ]
                words = [sys.executable, __file__, "--one", kind, *place, "--threads", str(options.threads)]
                found[kind] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
                one = found[kind]
                print(
                    f"{kind:8s} {one['seconds']:7.1f} s, {options.count / one['seconds']:6.2f} pictures/s, "
                    f"{one['cpu']:.1f} s of the processor; memory: peak {one['peak_mb']:.0f} MB, "
                    f"second quarter {one['second_mb']:.0f}, last quarter {one['last_mb']:.0f}"
                )
            written = len(list((root / f"command{number}").glob(f"*.{KIND}")))
            command = found["command"]
            print(f"command: exit code {command['code']}, {written} results, {len(command['named'])} named as failed")
            good &= (command["code"], written, len(command["named"])) == (
                int(options.broken > 0),
                options.count - options.broken,
                options.broken,
            )
            ratios.append(found["loop"]["seconds"] / command["seconds"])
        print(f"{max(ratios):.2f} × the plain loop (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
