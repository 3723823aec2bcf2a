r"""SAM 2 in videos next to the reference: frames a second with several objects, and memory of long videos.

    .venv-bench/bin/python benchmarks/track.py --frames 10000 --out track.json          # on a GPU
    .venv-bench/bin/python benchmarks/track.py --device cpu --model tiny --objects 1 --frames 0 --warmup 2 \
        --fill-memory --section 1                                                        # on a CPU

Both models have the same random weights and read the same prepared frames from memory, one at a time. Objects are
prompted with a click in the first frame. Sections of frames are timed alternately, after as many frames as fill the
memory of the model; with --fill-memory the memory of one frame is copied instead. Our sessions drop what the model does
not read any more; those of the reference keep everything, so its memory is measured for 200 frames at most. The
difference of the masks is that of the logits after the warmup, relative to the largest logit, with weights for which
every object is visible.

Prints, for each model and number of objects, milliseconds a frame and frames a second of both, our share of the
reference's time, the difference of the masks, and memory on the device and of the process after 100 frames and at the
end. With --drift also the difference of the masks of as many frames. With --video-frames also the frames a second of
the whole pipeline on a file. With --profile also the time of each stage of our model: on the device between its first
and last kernel, and of the host until the call returns; how often the host waits for the device in a frame; and what
the threads of the pipeline do in a frame. The thread that iterates over the results runs the model: in a frame it
should launch, and wait for results, but neither for frames nor for the device.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import importlib.util
import json
import statistics
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from common.random_inputs import smooth_image
from load_memory import status_bytes
from torch import Tensor

from vitruvian import Sam2ImageProcessor, Sam2VideoProcessor, Sam2VideoVideoProcessor, TrackPrompt, pipeline
from vitruvian.bench.timing import describe_machine, relative_difference
from vitruvian.cuda.streams import StreamEvent
from vitruvian.files.video import VideoReader, VideoWriter
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.models.sam2.video_session import Sam2SessionOptions, Sam2VideoInferenceSession
from vitruvian.pipelines import Failure
from vitruvian.pipelines.engine.runner import InferenceEngine
from vitruvian.pipelines.sources import FrameLoader
from vitruvian.pipelines.tasks.track import TrackPipeline

_VIDEO_WARMUP = 40  # frames of a file; by then kernels are compiled and CUDA graphs captured
_EARLY = 100  # frames after which memory is first measured
_MEMORY_FRAMES = 16  # frames whose object pointers the model reads; more than those whose memories it reads
_REFERENCE_FRAMES = 200  # most frames of the reference, which keeps all of them


class Stream:
    """A session of one implementation, which gets one frame after another.

    Args:
        model: The model.
        session: A session without frames.
        objects: Number of objects, each with a click in the first frame.
        frames: Prepared frames [T, 3, H, W], which repeat.
    """

    def __init__(self, model: Any, session: Any, objects: int, frames: Tensor) -> None:
        self._model, self._session, self._frames, self._next = model, session, frames, 0
        clicks = torch.rand(objects, 1, 1, 1, 2, generator=torch.Generator().manual_seed(2)) * frames.shape[-1]
        for number, click in enumerate(clicks):
            index = session.obj_id_to_idx(number)
            labels = torch.ones(1, 1, 1, dtype=torch.int64, device=frames.device)
            session.add_point_inputs(index, 0, {"point_coords": click.to(frames), "point_labels": labels})
        session.obj_with_new_inputs = list(range(objects))

    def run(self, count: int, *, synchronize: bool = True) -> Tensor:
        """Segment so many frames; return the masks of the last."""
        masks = torch.empty(0)
        with torch.inference_mode():
            for _ in range(count):
                frame = self._frames[self._next % len(self._frames)]
                masks = self._model(inference_session=self._session, frame=frame, frame_idx=self._next).pred_masks
                self._next += 1
        if synchronize:
            _synchronize(masks.device)
        return masks

    def fill_memory(self) -> None:
        """Copy the memory of the last frame to as many frames after it as the model reads, instead of running them."""
        last = self._next - 1
        for outputs in self._session.output_dict_per_obj.values():
            tracked = outputs["non_cond_frame_outputs"]
            tracked |= {last + 1 + number: tracked[last] for number in range(_MEMORY_FRAMES)}
        self._next += _MEMORY_FRAMES

    def seconds(self, count: int) -> float:
        """Return the seconds of a frame, the mean of so many."""
        start = time.perf_counter()
        self.run(count)
        return (time.perf_counter() - start) / count


def build_models(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return our model and that of the reference, if it is installed, with the same weights."""
    torch.manual_seed(0)
    config = Sam2VideoConfig.variant(name, image_size=options.size)
    ours = Sam2VideoModel(config).eval()
    _spread_weights(ours)
    ours = ours.to(options.device, getattr(torch, options.dtype))
    if options.no_reference or importlib.util.find_spec("transformers") is None:
        return {"ours": _optimized(ours)}
    import transformers

    theirs = transformers.Sam2VideoModel(transformers.Sam2VideoConfig(**copy.deepcopy(config.to_dict())))
    theirs.load_state_dict(ours.state_dict())
    return {"ours": _optimized(ours), "reference": theirs.eval().to(ours.device, ours.dtype)}


@torch.no_grad()
def _spread_weights(model: Sam2VideoModel) -> None:
    """Make random weights large enough that masks depend on the frame and the memory, and all objects visible."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            torch.nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
    model.mask_decoder.pred_obj_score_head.proj_out.bias.fill_(100.0)


def _optimized(model: Sam2VideoModel) -> Sam2VideoModel:
    return model.optimize() if model.device.type == "cuda" else model


def open_stream(models: dict[str, Any], whose: str, objects: int, frames: Tensor) -> Stream:
    """Return a new stream of an implementation."""
    size, device = frames.shape[-1], frames.device
    fields: dict[str, Any] = {"video_height": size, "video_width": size, "dtype": frames.dtype}
    fields |= dict.fromkeys(("inference_device", "inference_state_device", "video_storage_device"), device)
    if whose == "ours":
        session: Any = Sam2VideoInferenceSession(**fields, options=Sam2SessionOptions(keep_history=False))
    else:
        import transformers

        session = transformers.Sam2VideoInferenceSession(**fields)
    return Stream(models[whose], session, objects, frames)


def measure_speed(models: dict[str, Any], objects: int, frames: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of a frame of each implementation, and the difference of their masks."""
    streams = {whose: open_stream(models, whose, objects, frames) for whose in models}
    last = {whose: stream.run(options.warmup) for whose, stream in streams.items()}
    if options.fill_memory:
        for stream in streams.values():
            stream.fill_memory()
        last = {whose: stream.run(1) for whose, stream in streams.items()}
    taken: dict[str, list[float]] = {whose: [] for whose in models}
    for _ in range(options.rounds):
        for whose, stream in streams.items():
            taken[whose].append(stream.seconds(options.section))
    found: dict[str, Any] = {
        whose: {
            "ms": statistics.median(each) * 1e3,
            "fps": 1 / statistics.median(each),
            "range_ms": [min(each) * 1e3, max(each) * 1e3],
        }
        for whose, each in taken.items()
    }
    if "reference" in models:
        found["time_ratio"] = found["ours"]["ms"] / found["reference"]["ms"]
        found["mask_difference"] = relative_difference(last["ours"], last["reference"])[0]
    return found


def measure_memory(models: dict[str, Any], objects: int, frames: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Return the memory of each implementation after 100 frames and at the end, in MiB."""
    found: dict[str, Any] = {}
    for whose in models:
        most = options.frames if whose == "ours" else min(options.frames, _REFERENCE_FRAMES)
        early = min(_EARLY, most // 2)
        stream = open_stream(models, whose, objects, frames)
        rows = []
        for count, total in ((early, early), (most - early, most)):
            stream.run(count)
            rows.append({"frames": total} | _memory(frames.device))
        growth = {name: rows[1][name] - rows[0][name] for name in rows[0] if name != "frames"}
        found[whose] = {"after": rows, "growth_mib": growth}
        del stream
    return found


def measure_drift(models: dict[str, Any], frames: Tensor, count: int) -> dict[str, float]:
    """Return the difference of the masks of one object, relative to the largest logit: in parts of so many frames."""
    streams = [open_stream(models, whose, 1, frames) for whose in ("ours", "reference")]
    differences = [relative_difference(*(stream.run(1) for stream in streams))[0] for _ in range(count)]
    tenth = max(1, count // 10)
    return {f"{first}–{first + tenth - 1}": max(differences[first : first + tenth]) for first in range(0, count, tenth)}


def measure_video(model: Sam2VideoModel, options: argparse.Namespace) -> dict[str, Any]:
    """Return the frames a second of the pipeline on a 1080p file, with one object: from decoding to encoded masks."""
    size = {"height": options.size, "width": options.size}
    processor = Sam2VideoProcessor(Sam2ImageProcessor(size=size), Sam2VideoVideoProcessor(size=size))
    track = pipeline("track", model, processor=processor, interactive=False, keep_image=False)
    scene = smooth_image((1080, 1920), np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clip.mp4"
        with VideoWriter(path, 30, (1080, 1920)) as writer:
            for number in range(options.video_frames):
                writer.write(np.roll(scene, 8 * number, 1))
        start = time.perf_counter()
        reading = sum(1 for _ in VideoReader(path)) / (time.perf_counter() - start)
        runs: list[dict[str, Any]] = []
        timer = PipelineTimer()
        with timer.installed() if options.profile else contextlib.nullcontext():
            for _ in range(options.rounds):
                results = track(path, prompts=TrackPrompt(object_id=1, box=[400, 200, 900, 900]))
                for _ in range(min(_VIDEO_WARMUP, options.video_frames // 2)):
                    next(results)
                timer.clear()
                start = time.perf_counter()
                count = sum(not isinstance(result, Failure) for result in results)
                seconds = time.perf_counter() - start
                runs.append({"frames": count, "fps": count / seconds, "threads": timer.rows(count, seconds)})
    runs.sort(key=lambda run: run["fps"])
    every = [run["fps"] for run in runs]
    return runs[(len(runs) - 1) // 2] | {"range_fps": [every[0], every[-1]], "reading_fps": reading}


class PipelineTimer:
    """Times what each thread of the pipeline does, by wrapping methods of the pipeline and of the inference engine."""

    consumer = "the thread that runs the model"

    def __init__(self) -> None:
        self._spans: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap the methods within this context."""
        patches = [
            self._patch(TrackPipeline, "forward", lambda _: "launching the model"),
            self._patch(InferenceEngine, "advance", lambda _: "moving frames along"),
            self._patch(StreamEvent, "synchronize", lambda _: "waiting for the device"),
            self._patch(FrameLoader, "read", lambda _: "conversion to RGB"),
            self._patch(TrackPipeline, "prepare", lambda _: "resizing"),
            self._patch(TrackPipeline, "decode", lambda _: "launching the upsampling of masks"),
            self._patch(TrackPipeline, "finish", lambda _: "run lengths, result"),
        ]
        enter = InferenceEngine.__enter__

        def enter_timed(engine: InferenceEngine[Any]) -> InferenceEngine[Any]:
            wait = engine.wakeup.wait
            label = lambda _: f"waiting for {'results' if engine.batches else 'frames'}"  # noqa: E731
            engine.wakeup.wait = self._timed(wait, label)  # type: ignore[method-assign]
            return enter(engine)

        with contextlib.ExitStack() as stack:
            for patch in (*patches, mock.patch.object(InferenceEngine, "__enter__", enter_timed)):
                stack.enter_context(patch)
            yield

    def clear(self) -> None:
        """Forget what was timed so far."""
        self._spans.clear()

    def rows(self, frames: int, seconds: float) -> dict[str, dict[str, float]]:
        """Return the milliseconds of a frame by thread and label; those of workers are sums over all of them."""
        found: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for (thread, label), spans in sorted(self._spans.items()):
            found[thread][label] = sum(spans) * 1e3 / frames
        if found:
            found[self.consumer]["other"] = seconds * 1e3 / frames - sum(found[self.consumer].values())
        return dict(found)

    def _patch(self, owner: type, name: str, label: Callable[[Any], str]) -> Any:
        return mock.patch.object(owner, name, self._timed(getattr(owner, name), label))

    def _timed(self, function: Callable[..., Any], label: Callable[[Any], str]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            text, start = label(args), time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._spans[self._thread(), text].append(time.perf_counter() - start)

        return timed

    def _thread(self) -> str:
        current = threading.current_thread()
        return self.consumer if current is threading.main_thread() else current.name.rpartition("_")[0]


def print_threads(found: dict[str, Any]) -> None:
    """Print what the threads of the pipeline do, from `measure_video`."""
    print("  thread                            work                                  ms a frame")
    for thread, rows in found["threads"].items():
        for label, milliseconds in rows.items():
            print(f"  {thread:33} {label:36} {milliseconds:11.3f}")


class StageTimer:
    """Times the stages of a model, each of which is a call of `run_captured`, without synchronizing the device."""

    def __init__(self, model: Sam2VideoModel) -> None:
        self._run, self._on_cuda = model.run_captured, model.device.type == "cuda"
        self._host: dict[str, list[float]] = {}
        self._events: dict[str, list[tuple[Any, Any]]] = {}

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        name = function.__name__.strip("_").replace("_", " ")
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._on_cuda else []
        for event in events[:1]:
            event.record()
        start = time.perf_counter()
        result = self._run(function, *args, **kwargs)
        self._host.setdefault(name, []).append(time.perf_counter() - start)
        for event in events[1:]:
            event.record()
            self._events.setdefault(name, []).append((events[0], event))
        return result

    def rows(self, frames: int) -> dict[str, dict[str, float]]:
        """Return the milliseconds of a frame of each stage on the device and on the host; synchronize first."""
        return {
            name: {
                "device_ms": sum(first.elapsed_time(last) for first, last in self._events.get(name, [])) / frames,
                "host_ms": sum(host) * 1e3 / frames,
            }
            for name, host in self._host.items()
        }


def measure_stages(model: Sam2VideoModel, objects: int, frames: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of each stage of a frame, of the whole frame, and of the kernels that take longest."""
    stream = open_stream({"ours": model}, "ours", objects, frames)
    stream.run(options.warmup)
    timer = StageTimer(model)
    model.run_captured = timer  # type: ignore[method-assign]
    try:
        start = time.perf_counter()
        with torch.inference_mode():
            stream.run(options.section, synchronize=False)
        host = time.perf_counter() - start
        _synchronize(frames.device)
        total = time.perf_counter() - start
    finally:
        del model.run_captured
    found: dict[str, Any] = {"stages": timer.rows(options.section), "kernels": {}}
    found["host_ms"], found["total_ms"] = (seconds * 1e3 / options.section for seconds in (host, total))
    if frames.is_cuda:
        found["synchronizations"] = _count_synchronizations(lambda: stream.run(5, synchronize=False)) / 5
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            stream.run(5)
        kernels = sorted(profiler.key_averages(), key=lambda row: -row.self_device_time_total)[:20]
        found["kernels"] = {row.key[:90]: [row.self_device_time_total / 5e3, row.count / 5] for row in kernels}
    return found


def _count_synchronizations(run: Callable[[], object]) -> int:
    """Return how often the host waits for the device in a call, as torch reports it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def print_stages(found: dict[str, Any]) -> None:
    """Print what `measure_stages` returns."""
    print("  stage                      ms on the device   ms on the host")
    for name, row in found["stages"].items():
        print(f"  {name:24} {row['device_ms']:18.3f} {row['host_ms']:16.3f}")
    print(f"  {'a whole frame':24} {found['total_ms']:18.3f} {found['host_ms']:16.3f}")
    if "synchronizations" in found:
        print(f"  the host waits for the device {found['synchronizations']:.1f} times a frame")
    for name, (milliseconds, count) in found["kernels"].items():
        print(f"    {milliseconds:7.3f} ms, {count:5.1f} launches a frame: {name}")


def _memory(device: torch.device) -> dict[str, float]:
    """Return the resident memory of the process and the allocated memory of the device, in MiB."""
    gc.collect()
    found = {"process_mib": status_bytes("VmRSS") / 2**20}
    if device.type == "cuda":
        found["device_mib"] = torch.cuda.memory_allocated(device) / 2**20
        found["device_peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
        torch.cuda.reset_peak_memory_stats(device)
    return found


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def print_case(name: str, objects: int, found: dict[str, Any]) -> None:
    """Print the speed and memory of one model and number of objects."""
    print(f"\nSAM 2 {name}, {objects} objects")
    speed = found["speed"]
    for whose in ("ours", "reference"):
        if whose in speed:
            low, high = speed[whose]["range_ms"]
            print(f"  {whose:10} {speed[whose]['ms']:9.2f} ms a frame ({low:.2f}–{high:.2f}), ", end="")
            print(f"{speed[whose]['fps']:7.1f} frames a second")
    if "time_ratio" in speed:
        print(f"  {speed['time_ratio']:.3f} of the reference's time; masks differ by {speed['mask_difference']:.1e}")
    for whose, memory in found["memory"].items():
        for kind in memory["growth_mib"]:
            (first, then), text = memory["after"], kind.removesuffix("_mib").replace("_", " ")
            change = then[kind] / max(first[kind], 1e-9) - 1
            print(f"  {whose:10} {text:12} {first[kind]:9.1f} MiB after {first['frames']} frames, ", end="")
            print(f"{then[kind]:9.1f} MiB after {then['frames']} ({change:+.2%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["tiny", "large"], help="tiny, small, base-plus, large")
    parser.add_argument("--objects", nargs="*", type=int, default=[1, 4, 16])
    parser.add_argument("--size", type=int, default=1024, help="height and width of the model input")
    parser.add_argument("--frames", type=int, default=300, help="frames of the measurement of memory; 0 for none")
    parser.add_argument("--section", type=int, default=30, help="frames of a timed section")
    parser.add_argument(
        "--warmup", type=int, default=20, help="frames before; 17 fill the memory, 7 all of it but object pointers"
    )
    parser.add_argument("--fill-memory", action="store_true", help="copy memories after the warmup, at least 2 frames")
    parser.add_argument("--rounds", type=int, default=3, help="timed sections of each implementation")
    parser.add_argument("--video-frames", type=int, default=0, help="frames of a 1080p file for the pipeline; 0: none")
    parser.add_argument("--drift", type=int, default=0, help="compare the masks of so many frames; 0 for none")
    parser.add_argument(
        "--profile", action="store_true", help="time each stage of our model and thread of the pipeline"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", help="by default bfloat16 on a GPU, float32 on the CPU")
    parser.add_argument("--no-reference", action="store_true", help="measure only our model")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    options.dtype = options.dtype or ("float32" if options.device == "cpu" else "bfloat16")
    device = torch.device(options.device)
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(8, 3, options.size, options.size, generator=generator).to(
        device, getattr(torch, options.dtype)
    )
    print(f"{describe_machine(device)}, {options.dtype}, {options.size}²")
    measurements: list[dict[str, Any]] = []
    for name in options.model:
        models = build_models(options, name)
        if "reference" not in models:
            print("without the reference")
        for objects in options.objects:
            found = {"speed": measure_speed(models, objects, frames, options)}
            gc.collect()
            found["memory"] = measure_memory(models, objects, frames, options) if options.frames else {}
            print_case(name, objects, found)
            if options.profile:
                found["profile"] = measure_stages(models["ours"], objects, frames, options)
                print_stages(found["profile"])
            measurements.append({"model": name, "objects": objects} | found)
            save(options, measurements)
        if options.drift and "reference" in models:
            drift = measure_drift(models, frames, options.drift)
            print(
                "  largest difference of the masks in frames", *(f"{key}: {value:.1e}" for key, value in drift.items())
            )
            measurements.append({"model": name, "drift": drift})
        if options.video_frames:
            found = measure_video(models["ours"], options)
            low, high = found["range_fps"]
            print(
                f"  ours       {found['fps']:7.1f} ({low:.1f}–{high:.1f}) frames a second from a 1080p file, ", end=""
            )
            print(f"1 object; {found['reading_fps']:.1f} if it is only decoded, in one thread")
            if options.profile:
                print_threads(found)
            measurements.append({"model": name, "video": found})
        save(options, measurements)
        del models


def save(options: argparse.Namespace, measurements: list[dict[str, Any]]) -> None:
    """Write all measurements so far, if there is a file for them."""
    if options.out:
        settings = {
            "machine": describe_machine(torch.device(options.device)),
            "dtype": options.dtype,
            "size": options.size,
        }
        options.out.write_text(json.dumps(settings | {"measurements": measurements}, indent=2) + "\n")


if __name__ == "__main__":
    main()
