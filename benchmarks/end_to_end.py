"""GPU utilization of the pose pipeline, from JPEG files to keypoint files.

    python benchmarks/end_to_end.py                               # 256 images of 1920 × 1080, two people in each
    python benchmarks/end_to_end.py --grain 6 --before            # larger files; and without an upload stream
    python benchmarks/end_to_end.py --device cpu --model tiny --images 8     # tests the script

The model has random weights. After a warmup run, which compiles kernels, captures CUDA graphs and pins memory, one run
is timed and a second one is profiled. Utilization is the union of the times of kernels, without copies, over the time
from the first request to the last file: of the second run, and of the first, which the profiler did not slow down; the
goal is for the first. Submitting a batch includes waiting while the device's queue is full. Torch calls are counted for
one call of each step, since each holds the GIL. Prints all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

from common.random_inputs import add_noise, small_sapiens2, smooth_image  # noqa: E402

from vitruvian import Sapiens2ImageProcessor, pipeline  # noqa: E402
from vitruvian.bench.timing import describe_machine  # noqa: E402
from vitruvian.bench.workloads import DTYPES, Workload, benchmark_model  # noqa: E402
from vitruvian.cuda.graphs import no_capture  # noqa: E402
from vitruvian.cuda.streams import HostCopy  # noqa: E402
from vitruvian.images.read import load_rgb  # noqa: E402
from vitruvian.pipelines import Failure, base  # noqa: E402
from vitruvian.pipelines.engine import runner  # noqa: E402
from vitruvian.pipelines.engine.batches import BatchQueue, BatchSize  # noqa: E402
from vitruvian.pipelines.sources import Frame  # noqa: E402
from vitruvian.pipelines.tasks import pose  # noqa: E402

PHOTOS = HERE.parent.parent / "shared" / "photos"
GOAL = 0.85
NOT_KERNELS = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait")
Interval = tuple[int, int]


# ------------------------------------------------------------------------------------------------------ inputs


def write_images(folder: Path, options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Write JPEG files, half of them photographs if there are any; return boxes (x, y, w, h) of each."""
    height, width = (int(side) for side in options.size.split("x"))
    folder.mkdir(parents=True)
    photos = sorted(path for path in PHOTOS.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:16]
    generator = np.random.default_rng(0)
    smooth = [smooth_image((height, width), generator) for _ in range(16)]

    def write(number: int) -> None:
        if photos and number % 2:
            with Image.open(photos[number // 2 % len(photos)]) as opened:
                image = np.asarray(opened.convert("RGB").resize((width, height), Image.Resampling.BICUBIC))
        else:
            image = smooth[number % 16]
        if options.grain:
            image = add_noise(image, options.grain, np.random.default_rng(number))
        Image.fromarray(image).save(folder / f"{number:04d}.jpg", quality=90)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(options.images)))
    boxes = {}
    for number in range(options.images):
        people = []
        for person in range(options.people):
            tall = generator.uniform(0.5, 0.95) * height
            wide = min(tall * generator.uniform(0.3, 0.6), width / options.people)
            left = width * person / options.people + generator.uniform(0, max(1.0, width / options.people - wide))
            people.append([round(value, 1) for value in (left, generator.uniform(0, height - tall), wide, tall)])
        boxes[f"{number:04d}.jpg"] = people
    return boxes


def open_pipeline(options: argparse.Namespace, device: torch.device) -> Any:
    """Return a pose pipeline with random weights."""
    dtype = DTYPES[options.dtype] if device.type == "cuda" else torch.float32
    if options.model == "tiny":
        model = small_sapiens2("pose", (128, 96), channels=(32, 32)).to(device, dtype)
        processor = Sapiens2ImageProcessor(size={"height": 128, "width": 96})
    else:
        one = benchmark_model(f"sapiens2-{options.model}")
        model = one.build(Workload(1, one.size_hw, 0, dtype, device))
        processor = Sapiens2ImageProcessor()
    chosen = {} if options.batch_size is None else {"batch_size": options.batch_size}
    return pipeline("pose", model, processor=processor, keep_image=False, workers=options.workers, **chosen)


# ------------------------------------------------------------------------------------------------------ time of threads


class TimedEngine(runner.InferenceEngine[Any]):
    """An engine that measures the time of its steps."""

    spent: ClassVar[defaultdict[str, list[float]]] = defaultdict(list)
    sizes: ClassVar[Counter[int]] = Counter()  # of batches

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        wait, forward = self.wakeup.wait, self._steps.forward

        def timed_forward(inputs: list[Any]) -> list[Any]:
            self.sizes[len(inputs)] += 1
            with timed_step("consumer: submits batches"):
                return forward(inputs)

        def timed(timeout: float | None = None) -> bool:
            with timed_step(self.wait_reason()):
                return wait(timeout)

        self.wakeup.wait = timed  # type: ignore[method-assign]
        self._steps.forward = timed_forward  # type: ignore[method-assign]  # the steps are the copy for this call

    def wait_reason(self) -> str:
        """Return what the consumer is about to wait for."""
        items = self._items
        if items and items[0].past_model and sum(item.past_model for item in items) > self._max_ahead:
            return "consumer: waits for results, far enough ahead"
        if items and all(item.past_model for item in items) and self._source_ended and not self._loading:
            return "consumer: waits for the last results"
        return "consumer: waits for images"

    def advance(self) -> None:
        with timed_step("consumer: advances images"):
            super().advance()

    def _load(self, loader: Any, index: int) -> Any:
        with timed_step("workers: read and prepare"):
            return super()._load(loader, index)

    def _prepare(self, frame: Any, people: Any) -> Any:
        with timed_step("workers:   of that, prepare"):
            return super()._prepare(frame, people)

    def _decode(self, prepared: Any, outputs: list[Any]) -> Any:
        with timed_step("workers: decode"):
            return super()._decode(prepared, outputs)

    def _finish(self, prepared: Any, decode: Callable[[], Any]) -> Any:
        with timed_step("workers: wait for the device"):
            decoded = decode()
            decoded.wait()
        with timed_step("workers: finish and write"):
            return super()._finish(prepared, lambda: decoded)


@contextlib.contextmanager
def timed_step(what: str) -> Iterator[None]:
    """Record the duration of a step."""
    start = time.perf_counter()
    try:
        yield
    finally:
        TimedEngine.spent[what].append(time.perf_counter() - start)


def breakdown(seconds: float) -> None:
    """Print the recorded durations."""
    total = sum(sum(times) for what, times in TimedEngine.spent.items() if what.startswith("consumer"))
    for what, times in sorted(TimedEngine.spent.items()):
        each = f"{1e3 * statistics.median(times):7.2f} ms median, {1e3 * max(times):7.1f} ms max"
        print(f"    {what:46s} {sum(times):7.3f} s in {len(times):5d}; {each}")
    print(f"    {'consumer: other':46s} {seconds - total:7.3f} s")


class CallCounter(TorchDispatchMode):
    """Counts torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def count_calls(pipe: Any, path: Path, boxes: list[list[float]], size: int) -> float:
    """Print the number of torch calls of each step; return the seconds of a full batch on the device."""
    frame = Frame(image=load_rgb(path), name=path.name, path=path)
    pipe = pipe.for_call({"boxes": boxes, "box_format": "xywh"})
    counts = {}
    with torch.inference_mode():
        with CallCounter() as calls:
            prepared = pipe.prepare(frame, None)
        counts["prepare an image"] = calls.count
        size = max(size, len(prepared.inputs))
        inputs = (prepared.inputs * size)[:size]
        batch = BatchSize(size, fixed=True)
        graphs = pipe.graphs
        with CallCounter() as calls:
            outputs = BatchQueue[None](pipe, batch, graphs).run(None, inputs)
        counts[f"submit a batch of {size}"] = calls.count
        outputs = outputs[: len(prepared.inputs)]
        with CallCounter() as calls:
            decoded = HostCopy(pipe.decode(prepared, outputs)).wait()
        counts["decode an image"] = calls.count
        with CallCounter() as calls:
            pipe.finish(prepared, decoded)
        counts["finish it"] = calls.count
        print("torch calls to", ", ".join(f"{what}: {count}" for what, count in counts.items()), flush=True)
        if pipe.device.type != "cuda":
            return 0.0
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(8):
            BatchQueue[None](pipe, batch, graphs).run(None, inputs)
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 8e3


def pinned_allocations() -> int | None:
    """Return the number of allocations of pinned memory, which take milliseconds each; None if torch does not tell."""
    try:
        return int(torch.cuda.host_memory_stats()["num_host_alloc"])
    except Exception:
        return None


# ------------------------------------------------------------------------------------------------------ utilization


class DriverUtilization:
    """GPU utilization by the driver, if available: the share of its sampling periods with a kernel."""

    def __enter__(self) -> DriverUtilization:
        self.samples: list[int] = []
        self.process: subprocess.Popen[str] | None = None
        words = ["nvidia-smi", "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        with contextlib.suppress(OSError):
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            time.sleep(1.0)  # until it starts
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(Exception):
                lines = self.process.communicate(timeout=5)[0].split()
                self.samples = [int(line) for line in lines if line.isdigit()][10:]  # without the second of startup

    def __str__(self) -> str:
        inner = self.samples[len(self.samples) // 5 :]  # the driver's average lags
        return f"{statistics.mean(inner):.0f} % ({len(inner)} samples)" if inner else "not available"


def device_times(profiler: Any) -> tuple[list[Interval], list[Interval]]:
    """Return the intervals of kernels and of copies, in nanoseconds."""
    kernels: list[Interval] = []
    copies: list[Interval] = []
    for name, start, stop in device_events(profiler):
        if name.startswith("Mem"):
            copies.append((start, stop))
        elif not name.startswith(NOT_KERNELS):
            kernels.append((start, stop))
    return kernels, copies


def device_events(profiler: Any) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and end in nanoseconds of all GPU events, with old and new releases of torch."""
    try:
        events = [event for event in profiler.profiler.kineto_results.events() if "CUDA" in str(event.device_type())]
        times = [(event.name(), event.start_ns(), event.start_ns() + event.duration_ns()) for event in events]
    except AttributeError:
        events = [event for event in profiler.events() if "CUDA" in str(event.device_type)]
        spans = [event.time_range for event in events]
        times = [(e.name, int(1e3 * s.start), int(1e3 * s.end)) for e, s in zip(events, spans, strict=True)]
    yield from times


def union(intervals: list[Interval]) -> tuple[int, list[int]]:
    """Return the length of the union of intervals, and the gaps in it."""
    total, gaps, reached = 0, [], None
    for start, stop in sorted(intervals):
        if reached is not None and start > reached:
            gaps.append(start - reached)
        begin = start if reached is None else max(start, reached)
        total += max(0, stop - begin)
        reached = stop if reached is None else max(reached, stop)
    return total, gaps


def print_utilization(profiler: Any, seconds: float, plain: float) -> float:
    """Print the GPU utilization of the profiled run; return that of the timed run."""
    kernels, copies = device_times(profiler)
    if not kernels:
        print("GPU utilization: the profiler recorded no kernels")
        return 0.0
    busy, gaps = union(kernels)
    span = max(stop for _, stop in kernels) - min(start for start, _ in kernels)
    long = [gap for gap in gaps if gap > 1_000_000]
    share = busy / 1e9 / seconds
    print(f"GPU utilization {100 * share:.1f} % of {seconds:.3f} s: {len(kernels)} kernels in {busy / 1e9:.3f} s")
    print(f"    with copies {union(kernels + copies)[0] / 1e7 / seconds:.1f} %, {len(copies)} copies")
    print(f"    before the first kernel and after the last {seconds - span / 1e9:.3f} s; between them idle")
    print(
        f"    {sum(gaps) / 1e9:.3f} s, of that {sum(long) / 1e9:.3f} s in {len(long)} gaps of more than a millisecond"
    )
    timed = busy / 1e9 / plain
    print(f"    the same kernels in the {plain:.3f} s of the timed run: {100 * timed:.1f} %")
    print(f"    goal {100 * GOAL:.0f} %: {'met' if timed > GOAL else 'MISSED'}", flush=True)
    return timed


# ------------------------------------------------------------------------------------------------------ runs


def run(pipe: Any, images: Any, boxes: dict[str, Any], out: Path, device: torch.device) -> float:
    """Process images from files to files; return seconds. An image that fails ends the program."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    TimedEngine.spent.clear()
    TimedEngine.sizes.clear()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    results = pipe(images, boxes=boxes, box_format="xywh", save=str(out / "{stem}.json"))
    for result in results:
        if isinstance(result, Failure):
            traceback.print_exception(result.error)
            raise SystemExit(result.message)
    seconds = time.perf_counter() - start
    written = sorted(out.glob("*.json"))
    if len(written) != results.count:
        raise SystemExit(f"expected {results.count} files, got {len(written)}")
    last = json.loads(written[-1].read_text(encoding="utf-8"))
    if [len(person["keypoints"]) for person in last["poses"]] != [308] * len(boxes[f"{written[-1].stem}.jpg"]):
        raise SystemExit(f"{written[-1].name}: expected 308 keypoints of each person")
    return seconds


def print_differences(pipe: Any, path: Path, boxes: list[list[float]]) -> None:
    """Print the difference of inputs and keypoints computed on the device and on the CPU."""
    frame = Frame(image=load_rgb(path), name=path.name, path=path)
    pixels, table = torch.from_numpy(frame.image).permute(2, 0, 1), [torch.tensor(boxes)]
    with torch.inference_mode():
        wanted = pipe.processor.prepare_images([pixels], table)  # [P, 3, h, w]
        there = pipe.processor.prepare_images([pixels.to(pipe.device)], table)
        inputs = pipe.for_call({"boxes": boxes, "box_format": "xywh"}).prepare(frame, None).inputs
        for one in inputs:
            if one.pending is not None:
                one.pending.wait()
        found = torch.stack([one.pixels for one in inputs])
        rounded = "" if torch.equal(found, there.to(found.dtype)) else "; DIFFERENT in the model's data type"
        with no_capture():
            heatmaps = pipe.model(found.to(pipe.model.dtype), return_dict=True).heatmaps
        points = pose._decode(heatmaps, None, None, 11)[0].cpu()  # [P, J, 3]
        expected = pose._decode(heatmaps.cpu().float(), None, None, 11)[0]
    difference = (there.cpu() - wanted).abs().max()
    print(f"inputs computed on {found.device}: at most {difference:.1e} from the CPU's, in a range of ±2.5{rounded}")
    # Random heatmaps have saddle points, which magnify rounding: a few keypoints may differ a lot.
    off = (points - expected)[..., :2].abs().amax(-1)  # [P, J]
    print(
        f"keypoints decoded there: median difference {float(off.median()):.1e} heatmap pixels, "
        f"{100 * float((off > 0.1).float().mean()):.1f} % more than 0.1",
        flush=True,
    )


def print_batches(pipe: Any, replays: Counter[int]) -> None:
    """Print the sizes of batches, and which replayed a CUDA graph."""
    ran = ", ".join(f"{count} of {size}" for size, count in sorted(TimedEngine.sizes.items()))
    graphs = pipe.model.graphs
    replayed = Counter() if graphs is None else graphs.replays - replays
    how = ", ".join(f"{count} of {size}" for size, count in sorted(replayed.items())) or "none"
    refused = "" if graphs is None or not graphs.failed else f"; failed: {next(iter(graphs.failed.values()))}"
    print(f"batches: {ran}; replayed as CUDA graphs: {how}{refused}", flush=True)


def run_profiled(pipe: Any, folder: str, boxes: dict[str, Any], out: Path, device: torch.device, plain: float) -> float:
    """Run with torch's profiler; return the GPU utilization of the run that took `plain` seconds."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            seconds = run(pipe, folder, boxes, out, device)
            torch.cuda.synchronize()
        return print_utilization(profiler, seconds, plain)
    except Exception as error:  # earlier measurements stay valid
        traceback.print_exception(error)
        return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="pose-0.4b", help="pose-0.1b, pose-0.4b, … or tiny")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--people", type=int, default=2, help="in each image")
    parser.add_argument("--size", default="1080x1920", help="height x width of the images")
    parser.add_argument("--grain", type=float, default=0.0, help="noise in the images, which makes files larger")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--switch", type=float, help="switch interval of Python threads in milliseconds")
    parser.add_argument(
        "--before", action="store_true", help="also run without an upload stream, on a quarter of the images"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device. --device cpu --model tiny --images 8 tests the script.")
    if options.switch:
        sys.setswitchinterval(options.switch / 1e3)
    runner.InferenceEngine = TimedEngine  # type: ignore[misc]
    print(f"{os.cpu_count()} cores; {describe_machine(device)}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        start = time.perf_counter()
        boxes = write_images(root / "images", options)
        paths = sorted((root / "images").glob("*.jpg"))
        size = statistics.mean(path.stat().st_size for path in paths) / 1e3
        print(f"{len(paths)} images {options.size}, {size:.0f} kB each, written in {time.perf_counter() - start:.1f} s")
        start = time.perf_counter()
        pipe = open_pipeline(options, device)
        print(f"{options.model} on {device}, built in {time.perf_counter() - start:.1f} s", flush=True)
        # At least as many as are ever in flight, so that later runs allocate nothing.
        warm = run(pipe, paths[: max(4, min(len(paths), 96))], boxes, root / "warm", device)
        print(f"warmup, not counted: {warm:.1f} s", flush=True)
        print_differences(pipe, paths[0], boxes[paths[0].name])
        alone = 0.0
        try:
            alone = count_calls(pipe, paths[0], boxes[paths[0].name], max(TimedEngine.sizes))
        except Exception as error:  # the runs stay valid
            traceback.print_exception(error)
        folder = str(root / "images")
        replays = Counter() if pipe.model.graphs is None else Counter(pipe.model.graphs.replays)
        cpu, pinned = time.process_time(), pinned_allocations()
        seconds = run(pipe, folder, boxes, root / "out", device)
        cpu = time.process_time() - cpu
        people = sum(len(found) for found in boxes.values())
        print(
            f"{seconds:.3f} s: {len(paths) / seconds:.1f} images/s, {people / seconds:.1f} people/s, "
            f"{1e3 * seconds / people:.2f} ms a person; {cpu:.1f} CPU seconds, optimized {pipe.model.optimized}"
        )
        breakdown(seconds)
        print_batches(pipe, replays)
        if alone:
            whole = people / max(TimedEngine.sizes) * alone
            print(
                f"a batch of {max(TimedEngine.sizes)} takes {1e3 * alone:.1f} ms on an idle device: "
                f"{whole:.3f} s for all, {100 * whole / seconds:.1f} % of the run",
                flush=True,
            )
        met = True
        if device.type == "cuda":
            if pinned is not None:
                print(f"allocations of pinned memory in that run: {(pinned_allocations() or 0) - pinned}", flush=True)
            print(f"peak device memory so far: {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB", flush=True)
            met = run_profiled(pipe, folder, boxes, root / "profiled", device, seconds) > GOAL
            with DriverUtilization() as driver:
                again = run(pipe, folder, boxes, root / "again", device)
            print(f"GPU utilization by the driver: {driver}, in a third run of {again:.3f} s", flush=True)
        if options.before:
            few = paths[: max(4, len(paths) // 4)]
            # Images are preprocessed on the CPU and decoded in the thread of the consumer.
            with mock.patch.object(base, "upload_stream", return_value=None):
                run(pipe, few, boxes, root / "before", device)
                before = run(pipe, few, boxes, root / "before", device)
            ratio = (before / len(few)) / (seconds / len(paths))
            print(f"without an upload stream {len(few) / before:.1f} images/s; {ratio:.2f} × as fast with it")
            breakdown(before)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
