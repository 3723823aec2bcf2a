"""Jobs on a Ray cluster next to the same pipeline in one process; memory of the driver with a million sources.

    python benchmarks/scale.py                                   # 2,000 images, 1 and 2 workers, on this machine
    python benchmarks/scale.py --sources 1000000 --only driver   # the driver alone: sources are listed, nothing is run
    python benchmarks/scale.py --device cuda --workers 1 2 4     # one GPU shared by several workers

Workers share the cores of the machine: each has `cores / workers` threads, and so has the process that it is compared
with. Starting Ray and loading models is not timed; both are printed. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402
from random_inputs import smooth_image  # noqa: E402

from vitruvian import pipeline  # noqa: E402
from vitruvian.benchmarking.timing import describe_machine  # noqa: E402
from vitruvian.scale.job import JobSummary, _chunks, _not_done, run_on_ray  # noqa: E402
from vitruvian.scale.shards import ShardIndex  # noqa: E402
from vitruvian.scale.sources import list_sources  # noqa: E402
from vitruvian.scale.worker import PipelineSpec  # noqa: E402


def make_images(folder: Path, count: int, size_hw: tuple[int, int]) -> None:
    """Write JPEG files; a few distinct images, each under many names."""
    folder.mkdir(parents=True)
    for number in range(count):
        path = folder / f"{number:06d}.jpg"
        if number < 16:
            Image.fromarray(np.asarray(smooth_image(size_hw, np.random.default_rng(number)))).save(path, quality=90)
        else:
            os.link(folder / f"{number % 16:06d}.jpg", path)


def plain_seconds(spec: PipelineSpec, folder: Path, out: Path) -> float:
    """Return the seconds of the pipeline in this process, which writes a JSON file for each image."""
    pipe = pipeline(spec.task, spec.model, device=spec.device)
    pipe(str(folder / "000000.jpg"))  # warmup
    start = time.perf_counter()
    for _ in pipe(str(folder), save=str(out / "{stem}.json")):
        pass
    return time.perf_counter() - start


def ray_seconds(spec: PipelineSpec, folder: Path, out: Path, workers: int, gpus: float) -> tuple[float, JobSummary]:
    """Return the seconds from the first finished shard, scaled to all images, and the summary."""
    times: list[tuple[float, int]] = []

    def progress(summary: JobSummary) -> None:
        times.append((time.perf_counter(), summary.done))

    summary = run_on_ray(
        spec, [str(folder)], out, workers=workers, gpus_per_worker=gpus, save=["json"], chunk_size=50, progress=progress
    )
    (first, before), (last, after) = times[0], times[-1]
    return (last - first) * summary.done / max(after - before, 1), summary


def driver_memory(count: int) -> None:
    """Print the memory and time of listing a manifest, dividing it into chunks, and the index of a finished job."""
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "list.txt"
        with manifest.open("w") as file:
            file.writelines(f"/data/images/{number // 1000:06d}/{number:09d}.jpg\n" for number in range(count))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        start, summary = time.perf_counter(), JobSummary()
        remaining = _not_done(list_sources([str(manifest)]), ShardIndex(), summary, {}, retry_failed=False)  # type: ignore[arg-type]
        listed = sum(len(chunk) for chunk in _chunks(remaining, None, 8))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seconds = time.perf_counter() - start
        print(f"driver: {listed} sources listed in {seconds:.1f} s, peak {peak:.0f} MB ({before:.0f} MB before)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--task", default="pose")
    parser.add_argument("--model", default="builtin")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sources", type=int, default=1_000_000, help="sources of the driver's measurement")
    parser.add_argument("--only", choices=("speed", "driver"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    print(describe_machine(torch.device(options.device)))
    if options.only != "speed":
        driver_memory(options.sources)
    if options.only == "driver":
        return
    results: dict[str, Any] = {}
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make_images(root / "in", options.images, tuple(options.size))
        spec = PipelineSpec(task=options.task, model=options.model, device=options.device)
        plain = plain_seconds(spec, root / "in", root / "plain")
        results["plain"] = plain
        print(f"one process: {plain:.1f} s, {options.images / plain:.1f} images/s", flush=True)
        for workers in options.workers:
            os.environ["OMP_NUM_THREADS"] = str(max(1, cores // workers))
            gpus = 1 / workers if options.device.startswith("cuda") else 0.0
            seconds, summary = ray_seconds(spec, root / "in", root / f"ray{workers}", workers, gpus)
            results[f"ray-{workers}"] = seconds
            print(
                f"{workers} workers: {seconds:.1f} s, {summary.done / seconds:.1f} images/s, "
                f"{seconds / plain:.2f} of one process; {summary.shards} shards",
                flush=True,
            )
        shutil.rmtree(root)
        root.mkdir()
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
