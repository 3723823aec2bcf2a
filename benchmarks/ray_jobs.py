"""Jobs on a Ray cluster next to the plain command on the same cores; memory of the driver with a million sources.

    python benchmarks/ray_jobs.py                                    # 2,000 images: plain, and 1 and 2 workers
    python benchmarks/ray_jobs.py --only driver --sources 1000000    # the driver alone: nothing is read, no model
    python benchmarks/ray_jobs.py --gpu-processes 1 2 4              # one GPU shared by processes, without Ray

Commands run as a user runs them, with a small Sapiens2 with random weights and a JSON file or row for each image. Rates
are those between the first tenth of the results and the last, from the modification times of what was written, so that
starting Python and Ray and loading the model do not count; the seconds of the whole command are printed too. CPU time
is that of all processes of a command in the same interval: on a machine with other load it says more than the rate.

GPU processes share the images; each has a pose model of its own with random weights and writes JSON files. They start
together once all have run a warmup.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common.measure import MemorySampler, describe_memory  # noqa: E402
from common.random_inputs import add_noise, save_checkpoint, small_sapiens2, smooth_image  # noqa: E402
from PIL import Image  # noqa: E402

from vitruvian.bench.timing import describe_machine  # noqa: E402
from vitruvian.scale.chunk_runner import ChunkActor, ChunkRunner, Stages  # noqa: E402
from vitruvian.scale.job import JobSummary, divide_into_chunks, remaining_sources  # noqa: E402
from vitruvian.scale.placement import Placement  # noqa: E402
from vitruvian.scale.rows import Row, crashed_table, rows_to_table  # noqa: E402
from vitruvian.scale.shards import ShardIndex, write_counted  # noqa: E402
from vitruvian.scale.sources import SourceItem, list_sources  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa

WARMUP = 0.1  # share of the results that is not timed
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
    "RAY_ADDRESS": "local",  # a new cluster, also where one runs
    "RAY_USAGE_STATS_ENABLED": "0",
}


# ------------------------------------------------------------------------------------------------------ commands


def write_images(folder: Path, count: int, size_hw: tuple[int, int]) -> None:
    """Write JPEG files; a few distinct images, each under many names."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number:06d}.jpg"
        if number < 16:
            Image.fromarray(add_noise(smooth_image(size_hw, generator), 6, generator)).save(path, quality=90)
        else:
            os.link(folder / f"{number % 16:06d}.jpg", path)


@dataclass(frozen=True)
class Run:
    """A command: its seconds; after the first results, images a second and milliseconds of CPU for each."""

    seconds: float
    images_per_second: float
    cpu_ms: float


def run_command(root: Path, name: str, options: Sequence[str]) -> Run:
    """Run a command on all images, and measure it with all processes that it starts."""
    import psutil

    out = root / name
    words = ["-m", "vitruvian", "pose", str(root / "in"), "-m", str(root / "model"), "--detect", "whole"]
    start = time.time()
    command = subprocess.Popen(
        [sys.executable, *words, "--save", "json", "--out", str(out), "--quiet", *options],
        env=os.environ | ENVIRONMENT,
    )
    spent: dict[int, float] = {}  # CPU seconds of each process
    samples: list[tuple[float, float]] = []  # time, and CPU seconds of all
    process = psutil.Process(command.pid)
    while command.poll() is None:
        with contextlib.suppress(psutil.Error):
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    spent[one.pid] = sum(one.cpu_times()[:2])
        samples.append((time.time(), sum(spent.values())))
        time.sleep(0.2)
    if command.returncode:
        raise SystemExit(f"{name}: exit code {command.returncode}")
    times = result_times(out)
    first, last = times[int(WARMUP * len(times))], times[-1]
    timed = sum(one > first for one in times)
    cpu = np.interp([first, last], *zip(*samples, strict=True))
    return Run(time.time() - start, timed / (last - first), float(cpu[1] - cpu[0]) / timed * 1e3)


def result_times(out: Path) -> list[float]:
    """Return when each result was written, in order."""
    import pyarrow.parquet as pq

    times = []
    for path in out.iterdir():
        if path.suffix == ".parquet":
            times += [path.stat().st_mtime] * pq.read_metadata(path).num_rows
        elif path.suffix == ".json":
            times.append(path.stat().st_mtime)
    return sorted(times)


def compare_commands(options: argparse.Namespace) -> dict[str, Any]:
    """Run the plain command and jobs in turn, and print and return medians."""
    jobs: dict[str, list[str]] = {"plain": []}
    for workers in options.workers:
        for shards in ("none", "parquet"):
            name = f"{workers} workers, {'files' if shards == 'none' else 'shards'}"
            jobs[name] = ["--ray", "--workers", str(workers), "--shards", shards]
    runs: dict[str, list[Run]] = {name: [] for name in jobs}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_images(root / "in", options.images, tuple(options.size))
        save_checkpoint(small_sapiens2("pose", (256, 192), layers=options.layers, hidden_size=256), root / "model")
        for number in range(options.rounds):
            for job, words in jobs.items():
                run = run_command(root, f"{job}-{number}", words)
                runs[job].append(run)
                print(f"{job}: {run}", flush=True)
    found = {}
    for job in jobs:
        medians = {field: statistics.median(getattr(run, field) for run in runs[job]) for field in Run.__annotations__}
        plain = found.setdefault("plain", medians)
        rate, cpu = medians["images_per_second"], medians["cpu_ms"]
        found[job] = medians
        print(
            f"{job:20s} {medians['seconds']:6.1f} s, {rate:6.1f} images/s ({rate / plain['images_per_second']:.2f} of "
            f"plain), {cpu:5.1f} ms of CPU ({cpu / plain['cpu_ms']:.2f} of plain)"
        )
    return found


# ------------------------------------------------------------------------------------------------------ driver


class EmptyActor(ChunkActor):
    """Returns rows without results."""

    def load(self) -> None:
        """Load nothing."""

    def process(self, items: Sequence[SourceItem], contents: None) -> tuple[bool, pa.Table]:
        """Return a row for each source."""
        rows = [
            Row(source=item.name, source_size=item.size, source_mtime_ns=item.mtime_ns, status="done") for item in items
        ]
        return True, rows_to_table(rows, ())


def driver_memory(count: int) -> dict[str, Any]:
    """Run a job over a manifest without reading and without a model, then resume it; print the driver's memory."""
    import ray

    ray.init(
        "local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]}},
    )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        manifest, out = Path(folder) / "list.txt", str(Path(folder) / "out")
        with manifest.open("w") as file:
            file.writelines(f"/data/images/{number // 1000:06d}/{number:09d}.jpg\n" for number in range(count))
        for name in ("first run", "resumed, all done"):
            with MemorySampler(0.05) as memory:
                index, summary = ShardIndex.read(out, settings="s"), JobSummary()
                stages = Stages(
                    actor=EmptyActor, arguments=(), read=None, write=write_counted,
                    write_arguments=(out, "s", "parquet"), crashed=partial(crashed_table, ()),
                )  # fmt: skip
                runner = ChunkRunner(stages, first_shard=0, placement=Placement(1, 1, 0), rows_per_shard=64)
                remaining = remaining_sources(list_sources([str(manifest)]), index, summary, {}, retry_failed=False)  # type: ignore[arg-type]
                done = sum(counts.done for counts in runner.run(divide_into_chunks(remaining, None, 1)))
            text, constant = describe_memory(memory.to_dict())
            print(f"{name}: {done} done, {summary.skipped} skipped in {memory.seconds:.0f} s; {text}", flush=True)
            found[name] = {"done": done, "skipped": summary.skipped, "constant": constant, **memory.to_dict()}
    ray.shutdown()
    return found


# ------------------------------------------------------------------------------------------------------ one GPU


def gpu_worker(
    number: int, share: list[str], boxes: dict[str, Any], out: Path, name: str, barrier: Any, ends: Any
) -> None:
    """Process a share of the images, and tell when."""
    from end_to_end import open_pipeline

    options = argparse.Namespace(dtype="bfloat16", model=name, batch_size=None, workers=None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pipe = open_pipeline(options, device)
    call = {"boxes": boxes, "box_format": "xywh"}
    for _ in pipe(share[:32], **call):
        pass
    barrier.wait()
    start = time.time()
    failures = sum(hasattr(result, "error") for result in pipe(share, save=str(out / "{stem}.json"), **call))
    memory = torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else 0.0
    ends.put((start, time.time(), failures, memory))


def share_gpu(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one GPU shared by several processes."""
    import end_to_end
    import torch.multiprocessing as multiprocessing

    context, found = multiprocessing.get_context("spawn"), {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        size = "x".join(str(side) for side in options.size)
        inputs = argparse.Namespace(size=size, images=options.images, people=2, grain=0)
        boxes = end_to_end.write_images(root / "in", inputs)
        paths = sorted(str(path) for path in (root / "in").iterdir())
        for count in options.gpu_processes:
            barrier, ends = context.Barrier(count), context.Queue()
            out = root / f"out{count}"
            processes = [
                context.Process(
                    target=gpu_worker, args=(one, paths[one::count], boxes, out, options.gpu_model, barrier, ends)
                )
                for one in range(count)
            ]
            for process in processes:
                process.start()
            times = [ends.get() for _ in processes]
            for process in processes:
                process.join()
            seconds = max(end for _, end, _, _ in times) - min(start for start, _, _, _ in times)
            written = sum(1 for _ in out.glob("*.json"))
            memory = sum(one for *_, one in times)
            found[str(count)] = {
                "images_per_second": written / seconds,
                "seconds": seconds,
                "failures": sum(one for _, _, one, _ in times),
                "gpu_gib": memory,
            }
            print(
                f"{count} processes: {written} files in {seconds:.1f} s, {written / seconds:.1f} images/s, "
                f"{memory:.1f} GiB of GPU memory",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, nargs=2, default=(480, 640), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--layers", type=int, default=4, help="of the model of commands")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sources", type=int, default=1_000_000, help="of the driver's measurement")
    parser.add_argument(
        "--gpu-processes", type=int, nargs="+", metavar="N", help="measure one GPU shared by N processes"
    )
    parser.add_argument("--gpu-model", default="pose-0.4b", help="size of Sapiens2, or tiny")
    parser.add_argument("--only", choices=("commands", "driver"))
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    options = parser.parse_args()
    cuda = options.gpu_processes is not None and torch.cuda.is_available()
    machine = describe_machine(torch.device("cuda" if cuda else "cpu"))
    print(machine)
    results: dict[str, Any] = {"machine": machine}
    if options.gpu_processes is not None:
        results["gpu_processes"] = share_gpu(options)
    else:
        if options.only != "driver":
            results["commands"] = compare_commands(options)
        if options.only != "commands":
            results["driver"] = driver_memory(options.sources)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
