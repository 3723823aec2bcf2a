"""JPEG files in, keypoints on disk: how much of the time the GPU is busy while pictures are read, cut and written.

    python benchmarks/end_to_end.py                               # 256 pictures of 1920 × 1080, two people in each
    python benchmarks/end_to_end.py --grain 6 --before            # larger files; and without preparing on the GPU
    python benchmarks/end_to_end.py --device cpu --model tiny --pictures 8     # tries the script out

The model has random weights. One run is timed as it is; a second one is watched by torch's profiler. Busy is the union
of the times in which kernels ran, copies not counted, over the time from asking for the first result to the last file
written: of the second run, and of the first, which the profiler did not slow down; the target is for that one. Kernels
are compiled, batches recorded and memory is pinned in a run before, which is timed too. Asking for a batch includes
waiting where the device's queue is full. Calls of torch are counted in the thread that makes them, one call of each
step; each takes Python's lock, which all threads share.
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
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

from measure import machine  # noqa: E402

from vitruvian import Sapiens2Config, Sapiens2ForPoseEstimation, Sapiens2ImageProcessor, pipeline  # noqa: E402
from vitruvian.benchmarking.models import (  # noqa: E402
    DTYPES,
    Workload,
    subject,
)
from vitruvian.ops.cuda_graphs import no_capture  # noqa: E402
from vitruvian.pipelines import Failure, base  # noqa: E402
from vitruvian.pipelines.engine import runner  # noqa: E402
from vitruvian.pipelines.engine.cuda_streams import copy_to_host  # noqa: E402
from vitruvian.pipelines.engine.memory import BatchSize  # noqa: E402
from vitruvian.pipelines.sources import Frame, load_rgb  # noqa: E402
from vitruvian.pipelines.tasks import pose  # noqa: E402

PHOTOS = HERE.parent.parent / "shared" / "photos"
GOAL = 0.85
NOT_KERNELS = ("Context Sync", "Stream Sync", "Event Sync", "Stream Wait")
Interval = tuple[int, int]


# ------------------------------------------------------------------------------------------------------ what it runs on


def make_pictures(folder: Path, options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Write JPEG files, photographs among them where there are some, and return boxes (x, y, w, h) of each."""
    height, width = (int(side) for side in options.size.split("x"))
    folder.mkdir(parents=True)
    photos = sorted(path for path in PHOTOS.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:16]
    generator = np.random.default_rng(0)
    coarse = [generator.uniform(0, 255, (9, 16, 3)).astype(np.uint8) for _ in range(16)]

    def write(number: int) -> None:
        if photos and number % 2:
            with Image.open(photos[number // 2 % len(photos)]) as opened:
                image = opened.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        else:
            image = Image.fromarray(coarse[number % 16]).resize((width, height), Image.Resampling.BICUBIC)
        if options.grain:
            own = np.random.default_rng(number)
            noisy = np.asarray(image, np.int16) + own.normal(0, options.grain, (height, width, 1)).astype(np.int16)
            image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
        image.save(folder / f"{number:04d}.jpg", quality=90)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(options.pictures)))
    boxes = {}
    for number in range(options.pictures):
        people = []
        for person in range(options.people):
            tall = generator.uniform(0.5, 0.95) * height
            wide = min(tall * generator.uniform(0.3, 0.6), width / options.people)
            left = width * person / options.people + generator.uniform(0, max(1.0, width / options.people - wide))
            people.append([round(value, 1) for value in (left, generator.uniform(0, height - tall), wide, tall)])
        boxes[f"{number:04d}.jpg"] = people
    return boxes


def open_pipeline(options: argparse.Namespace, device: torch.device) -> Any:
    """A pose pipeline with random weights."""
    dtype = DTYPES[options.dtype] if device.type == "cuda" else torch.float32
    if options.model == "tiny":
        config = Sapiens2Config(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_attention_heads=1,
            intermediate_size=128,
            image_size=[128, 96],
            num_labels=308,
            head_config={"upsample_out_channels": [32, 32], "conv_out_channels": [32]},
        )
        model = Sapiens2ForPoseEstimation.from_config(config, device=device).to(dtype)
        processor = Sapiens2ImageProcessor(size={"height": 128, "width": 96})
    else:
        one = subject(f"sapiens2-{options.model}")
        model = one.build(Workload(1, one.size_hw, 0, dtype, device))
        processor = Sapiens2ImageProcessor()
    chosen = {} if options.batch_size is None else {"batch_size": options.batch_size}
    return pipeline("pose", model, processor=processor, keep_image=False, workers=options.workers, **chosen)


# ------------------------------------------------------------------------------------------------------ who waits


class Watched(runner.InferenceEngine[Any]):
    """An engine that measures what its threads spend time on."""

    spent: ClassVar[defaultdict[str, list[float]]] = defaultdict(list)
    sizes: ClassVar[Counter[int]] = Counter()  # of batches

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        wait = self.wakeup.wait

        def timed(timeout: float | None = None) -> bool:
            with noted(self.waits_for()):
                return wait(timeout)

        self.wakeup.wait = timed  # type: ignore[method-assign]

    def waits_for(self) -> str:
        """Say what the caller is about to wait for."""
        items = self._items
        if items and items[0].past_model and sum(item.past_model for item in items) > self._max_ahead:
            return "caller: waits for results, far enough ahead"
        if items and all(item.past_model for item in items) and self._source_ended and not self._loading:
            return "caller: waits for the last results"
        return "caller: waits for pictures"

    def advance(self) -> None:
        with noted("caller: advances images"):
            super().advance()

    def run_batch(self) -> None:
        before = len(self._queued)
        with noted("caller: asks for batches"):
            super().run_batch()
        self.sizes[before - len(self._queued)] += 1

    def _load(self, loader: Any, index: int) -> Any:
        with noted("threads: read and prepare"):
            return super()._load(loader, index)

    def _prepare(self, frame: Any, people: Any) -> Any:
        with noted("threads:   of that, prepare"):
            return super()._prepare(frame, people)

    def _decode(self, prepared: Any, outputs: list[Any]) -> Any:
        with noted("threads: decode"):
            return super()._decode(prepared, outputs)

    def _finish(self, prepared: Any, decoded: Any) -> Any:
        with noted("threads: wait for the device"):
            for found, _ in decoded if isinstance(decoded, list) else ():
                found.get().wait()
        with noted("threads: finish and write"):
            return super()._finish(prepared, decoded)


@contextlib.contextmanager
def noted(what: str) -> Iterator[None]:
    """Note how long something took."""
    start = time.perf_counter()
    try:
        yield
    finally:
        Watched.spent[what].append(time.perf_counter() - start)


def breakdown(seconds: float) -> None:
    """Print what was noted."""
    total = sum(sum(times) for what, times in Watched.spent.items() if what.startswith("caller"))
    for what, times in sorted(Watched.spent.items()):
        each = f"{1e3 * statistics.median(times):7.2f} ms in the middle, {1e3 * max(times):7.1f} ms at most"
        print(f"    {what:46s} {sum(times):7.3f} s in {len(times):5d}; {each}")
    print(f"    {'caller: the rest':46s} {seconds - total:7.3f} s")


class Calls(TorchDispatchMode):
    """Counts calls of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def count_calls(pipe: Any, path: Path, boxes: list[list[float]], size: int) -> float:
    """Print how many calls of torch the steps make; return how many seconds the device needs for a whole batch."""
    frame = Frame(image=load_rgb(path), name=path.name, path=path)
    pipe = pipe._for_call({"boxes": boxes, "box_form": "xywh"})
    counts = {}
    with torch.inference_mode():
        with Calls() as calls:
            prepared = pipe.prepare(frame, None)
        counts["prepare a picture"] = calls.count
        size = max(size, len(prepared.units))
        units = (prepared.units * size)[:size]
        batch = BatchSize(size, fixed=True)
        graphs = pipe.model.graphs if pipe.device.type == "cuda" else None
        with Calls() as calls:
            outputs = runner._forward_units(pipe, units, batch, graphs)
        counts[f"ask for a batch of {size}"] = calls.count
        outputs = outputs[: len(prepared.units)]
        with Calls() as calls:
            decoded = copy_to_host(pipe.decode(prepared, outputs)).wait()
        counts["decode a picture whose batch is asked for"] = calls.count
        with Calls() as calls:
            pipe.finish(prepared, decoded)
        counts["finish it"] = calls.count
        print("calls of torch to", ", ".join(f"{what}: {count}" for what, count in counts.items()), flush=True)
        if pipe.device.type != "cuda":
            return 0.0
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(8):
            runner._forward_units(pipe, units, batch, graphs)
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 8e3


def pinned_so_far() -> int | None:
    """How often memory of the host was pinned, which takes milliseconds each time; None where torch does not say."""
    try:
        return int(torch.cuda.host_memory_stats()["num_host_alloc"])
    except Exception:
        return None


# ------------------------------------------------------------------------------------------------------ how busy


class Utilisation:
    """What the driver says of the GPU meanwhile, where it can be asked: share of its sampling periods with a kernel."""

    def __enter__(self) -> Utilisation:
        self.samples: list[int] = []
        self.done = threading.Event()
        words = ["nvidia-smi", "-i", "0", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        self.process: subprocess.Popen[str] | None = None
        self.thread: threading.Thread | None = None
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        except Exception:
            with contextlib.suppress(OSError):
                self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                time.sleep(1.0)  # until it answers
            return self

        def watch() -> None:
            with contextlib.suppress(Exception):
                while not self.done.wait(0.05):
                    self.samples.append(int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu))

        self.thread = threading.Thread(target=watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        if self.thread is not None:
            self.thread.join(5)
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(Exception):
                lines = self.process.communicate(timeout=5)[0].split()
                self.samples = [int(line) for line in lines if line.isdigit()][10:]  # less the second of waiting

    def __str__(self) -> str:
        inner = self.samples[len(self.samples) // 5 :]  # its own average lags behind
        return f"{statistics.mean(inner):.0f} % ({len(inner)} samples)" if inner else "not to be had here"


def device_times(profiler: Any) -> tuple[list[Interval], list[Interval]]:
    """Return when kernels ran and when copies did, in nanoseconds."""
    kernels: list[Interval] = []
    copies: list[Interval] = []
    for name, start, stop in device_events(profiler):
        if name.startswith("Mem"):
            copies.append((start, stop))
        elif not name.startswith(NOT_KERNELS):
            kernels.append((start, stop))
    return kernels, copies


def device_events(profiler: Any) -> Iterator[tuple[str, int, int]]:
    """Name, start and end in nanoseconds of all that ran on the GPU; torch has named this in several ways."""
    try:
        events = [event for event in profiler.profiler.kineto_results.events() if "CUDA" in str(event.device_type())]
        times = [(event.name(), event.start_ns(), event.start_ns() + event.duration_ns()) for event in events]
    except AttributeError:
        events = [event for event in profiler.events() if "CUDA" in str(event.device_type)]
        spans = [event.time_range for event in events]
        times = [(e.name, int(1e3 * s.start), int(1e3 * s.end)) for e, s in zip(events, spans, strict=True)]
    yield from times


def union(intervals: list[Interval]) -> tuple[int, list[int]]:
    """Return how long at least one of the intervals lasted, and the gaps between."""
    total, gaps, reached = 0, [], None
    for start, stop in sorted(intervals):
        if reached is not None and start > reached:
            gaps.append(start - reached)
        begin = start if reached is None else max(start, reached)
        total += max(0, stop - begin)
        reached = stop if reached is None else max(reached, stop)
    return total, gaps


def report_busy(profiler: Any, seconds: float, plain: float) -> float:
    """Print how busy the GPU was."""
    kernels, copies = device_times(profiler)
    if not kernels:
        print("busy: the profiler saw no kernels")
        return 0.0
    busy, gaps = union(kernels)
    span = max(stop for _, stop in kernels) - min(start for start, _ in kernels)
    long = [gap for gap in gaps if gap > 1_000_000]
    share = busy / 1e9 / seconds
    print(f"GPU busy {100 * share:.1f} % of {seconds:.3f} s: {busy / 1e9:.3f} s with a kernel, {len(kernels)} kernels")
    print(f"    with copies {union(kernels + copies)[0] / 1e7 / seconds:.1f} %, {len(copies)} copies")
    print(f"    before the first kernel and after the last {seconds - span / 1e9:.3f} s; between them idle")
    print(
        f"    {sum(gaps) / 1e9:.3f} s, of that {sum(long) / 1e9:.3f} s in {len(long)} gaps of more than a millisecond"
    )
    unwatched = busy / 1e9 / plain
    print(f"    the same kernels in the {plain:.3f} s of the run that was not watched: {100 * unwatched:.1f} %")
    print(f"    target {100 * GOAL:.0f} % of that: {'met' if unwatched > GOAL else 'MISSED'}", flush=True)
    return unwatched


# ------------------------------------------------------------------------------------------------------ runs


def run(pipe: Any, pictures: Any, boxes: dict[str, Any], out: Path, device: torch.device) -> float:
    """Take pictures from files to files; returns seconds, and fails where a picture does."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    Watched.spent.clear()
    Watched.sizes.clear()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    results = pipe(pictures, boxes=boxes, box_form="xywh", save=str(out / "{stem}.json"))
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


def check(pipe: Any, path: Path, boxes: list[list[float]]) -> None:
    """Print how far the inputs that the pipeline makes are from those that its processor makes on the CPU."""
    frame = Frame(image=load_rgb(path), name=path.name, path=path)
    pixels, table = torch.from_numpy(frame.image).permute(2, 0, 1), [torch.tensor(boxes)]
    with torch.inference_mode():
        wanted = pipe.processor.prepare_pictures([pixels], table)  # [P, 3, h, w]
        there = pipe.processor.prepare_pictures([pixels.to(pipe.device)], table)
        units = pipe._for_call({"boxes": boxes, "box_form": "xywh"}).prepare(frame, None).units
        for unit in units:
            if unit.pending is not None:
                unit.pending.wait()
        found = torch.stack([unit.pixels for unit in units])
        rounded = "" if torch.equal(found, there.to(found.dtype)) else "; NOT THE SAME in the model's data type"
        with no_capture():
            heatmaps = pipe.model(found.to(pipe.model.dtype), return_dict=True).heatmaps
        points = pose._decode(heatmaps, None, None, 11)[0].cpu()  # [P, J, 3]
        own = pose._decode(heatmaps.cpu().float(), None, None, 11)[0]
    difference = (there.cpu() - wanted).abs().max()
    print(f"inputs made on {found.device}, at most {difference:.1e} from the CPU's; they reach ±2.5{rounded}")
    # Random heatmaps have saddles where peaks should be, which magnify rounding: a few points may be far off.
    off = (points - own)[..., :2].abs().amax(-1)  # [P, J]
    print(
        f"points decoded there, {float(off.median()):.1e} pixels of a heatmap from the CPU's in the middle, "
        f"{100 * float((off > 0.1).float().mean()):.1f} % of them more than 0.1",
        flush=True,
    )


def how_batches_ran(pipe: Any, replays: Counter[int]) -> None:
    """Print the sizes of batches, and whether they came from a recording."""
    ran = ", ".join(f"{count} of {size}" for size, count in sorted(Watched.sizes.items()))
    graphs = pipe.model.graphs
    replayed = Counter() if graphs is None else graphs.replays - replays
    how = ", ".join(f"{count} of {size}" for size, count in sorted(replayed.items())) or "none"
    refused = "" if graphs is None or not graphs.failed else f"; failed: {next(iter(graphs.failed.values()))}"
    print(f"batches: {ran}; replayed from a recording: {how}{refused}", flush=True)


def watch(pipe: Any, folder: str, boxes: dict[str, Any], out: Path, device: torch.device, plain: float) -> float:
    """Run once more with torch's profiler, and return how busy the GPU was in the run that took `plain` seconds."""
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            watched = run(pipe, folder, boxes, out, device)
            torch.cuda.synchronize()
        return report_busy(profiler, watched, plain)
    except Exception as error:  # what was timed before counts all the same
        traceback.print_exception(error)
        return 0.0


@contextlib.contextmanager
def without_upload_stream() -> Iterator[None]:
    """Preprocess images on the CPU and decode in the caller's thread."""
    upload_stream = base.upload_stream
    base.upload_stream = lambda *_: None  # type: ignore[assignment]
    try:
        yield
    finally:
        base.upload_stream = upload_stream


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="pose-0.4b", help="pose-0.1b, pose-0.4b, … or tiny")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--people", type=int, default=2, help="in each picture")
    parser.add_argument("--size", default="1080x1920", help="height x width of the pictures")
    parser.add_argument("--grain", type=float, default=0.0, help="noise in the pictures, which makes files larger")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--switch", type=float, help="milliseconds after which Python's threads take turns")
    parser.add_argument(
        "--before", action="store_true", help="also run without an upload stream, on a quarter of the pictures"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device. --device cpu --model tiny --pictures 8 tries the script out.")
    if options.switch:
        sys.setswitchinterval(options.switch / 1e3)
    runner.InferenceEngine = Watched  # type: ignore[misc]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    print(f"{machine()}; {name}", flush=True)
    with tempfile.TemporaryDirectory() as held:
        root = Path(held)
        start = time.perf_counter()
        boxes_file = root / "boxes.json"
        boxes_file.write_text(json.dumps(make_pictures(root / "pictures", options)), encoding="utf-8")
        boxes = json.loads(boxes_file.read_text(encoding="utf-8"))
        paths = sorted((root / "pictures").glob("*.jpg"))
        size = statistics.mean(path.stat().st_size for path in paths) / 1e3
        print(f"{len(paths)} pictures {options.size}, {size:.0f} kB each, made in {time.perf_counter() - start:.1f} s")
        start = time.perf_counter()
        pipe = open_pipeline(options, device)
        print(f"{options.model} on {device}, built in {time.perf_counter() - start:.1f} s", flush=True)
        # As many as are ever on their way, so that no memory is new later.
        warm = run(pipe, paths[: max(4, min(len(paths), 96))], boxes, root / "warm", device)
        print(f"warm-up, not counted: {warm:.1f} s", flush=True)
        check(pipe, paths[0], boxes[paths[0].name])
        alone = 0.0
        try:
            alone = count_calls(pipe, paths[0], boxes[paths[0].name], max(Watched.sizes))
        except Exception as error:  # the runs count all the same
            traceback.print_exception(error)
        folder = str(root / "pictures")
        replays = Counter() if pipe.model.graphs is None else Counter(pipe.model.graphs.replays)
        cpu, pinned = time.process_time(), pinned_so_far()
        seconds = run(pipe, folder, boxes, root / "out", device)
        cpu = time.process_time() - cpu
        people = sum(len(found) for found in boxes.values())
        print(
            f"{seconds:.3f} s: {len(paths) / seconds:.1f} pictures/s, {people / seconds:.1f} people/s, "
            f"{1e3 * seconds / people:.2f} ms a person; {cpu:.1f} s of the processor, optimised {pipe.model.optimized}"
        )
        breakdown(seconds)
        how_batches_ran(pipe, replays)
        if alone:
            whole = people / max(Watched.sizes) * alone
            print(
                f"a batch of {max(Watched.sizes)} takes the device {1e3 * alone:.1f} ms where nothing else happens: "
                f"{whole:.3f} s for all, {100 * whole / seconds:.1f} % of the run",
                flush=True,
            )
        met = True
        if device.type == "cuda":
            if pinned is not None:
                print(f"memory pinned anew in that run: {(pinned_so_far() or 0) - pinned} times", flush=True)
            print(f"most memory of the device so far: {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB", flush=True)
            met = watch(pipe, folder, boxes, root / "watched", device, seconds) > GOAL
            with Utilisation() as driver:
                again = run(pipe, folder, boxes, root / "again", device)
            print(f"GPU utilisation as the driver has it: {driver}, in a third run of {again:.3f} s", flush=True)
        if options.before:
            few = paths[: max(4, len(paths) // 4)]
            with without_upload_stream():
                run(pipe, few, boxes, root / "before", device)
                before = run(pipe, few, boxes, root / "before", device)
            ratio = (before / len(few)) / (seconds / len(paths))
            print(f"without lanes {len(few) / before:.1f} pictures/s; {ratio:.2f} × as fast with them")
            breakdown(before)
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
