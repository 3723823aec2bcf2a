"""Ablation: the time and memory of whole models with one optimization switched off at a time.

    python benchmarks/ablation.py --out results                      # all models below, on the GPU
    python benchmarks/ablation.py --models sapiens2-pose-0.4b --batches 8 --out results
    python benchmarks/ablation.py --device cpu --dtype float32 --models sapiens2-pose-0.4b --out results

A row has one optimization off: the Triton or CPU version of an operation (`vitruvian.ops.dispatch`), CUDA graphs, or
all of `optimize()`. Time and peak memory are those of the whole model, and the shares are what the optimization saves.
An optimization stays in the library if it saves at least 5 % of the time or 10 % of the memory of a model. Writes
ablation.json and ablation.md into the folder after every row. Prints the table.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import numpy as np  # noqa: E402
from common.random_inputs import smooth_image  # noqa: E402
from track import open_stream  # noqa: E402

from vitruvian import Sam2VideoConfig, Sam2VideoModel, Sapiens2ImageProcessor, pipeline  # noqa: E402
from vitruvian.bench.timing import describe_machine, peak_bytes, time_interleaved  # noqa: E402
from vitruvian.bench.workloads import BenchmarkModel, Workload, benchmark_model  # noqa: E402
from vitruvian.ops import dispatch  # noqa: E402

# model -> (batch, prompts); prompts are the objects of a video, and the people of an image of 1920×1080
WORKLOADS = {
    "sapiens2-pose-0.4b": ((8, 0), (1, 0)),
    "sapiens2-normal-0.4b": ((8, 0),),
    "sapiens2-pointmap-0.4b": ((8, 0), (1, 0)),
    "sam2-tiny-encoder": ((1, 0),),
    "sam2-large-encoder": ((1, 0),),
    "sam2-tiny-decoder": ((1, 1024), (1, 1)),
    "mask2former-swin-small": ((1, 0),),
    "maskformer-swin-small": ((1, 0),),
    "sapiens2-pose-1b": ((8, 0),),
    "sam2_video-tiny": ((1, 1), (1, 16)),
    "pose_pipeline-0.4b": ((1, 2), (1, 16)),
}
# family -> names of operations, as `use_triton` takes them
OPERATIONS = {
    "sapiens2": ("rms_norm", "rope", "unshifted_attention", "swiglu", "instance_norm", "winograd"),
    "sam2": ("layer_norm", "window_attention", "two_way_attention", "mask_upscaling"),
    "maskformer": ("layer_norm", "window_attention"),
    "mask2former": ("layer_norm", "window_attention", "deformable_attention", "masked_attention"),
    "sam2_video": ("axial_rope", "narrow_value_attention"),
    "pose_pipeline": ("crop", "heatmap_peaks"),
}
# names of operations with a version for the CPU, as `use_cpu_version` takes them
CPU_OPERATIONS = {
    "sapiens2": ("swiglu", "winograd", "pointwise_conv"),
    "sam2_video": ("narrow_value_attention", "axial_key_attention"),
}
GRAPHS, OPTIMIZE, NOTHING = "CUDA graphs", "optimize()", "nothing"


@dataclass
class Row:
    """A model with one optimization off: milliseconds, and peak bytes above the weights."""

    model: str
    batch: int
    prompts: int
    off: str
    milliseconds: float
    memory: int | None


def switches(name: str, device: torch.device) -> list[str]:
    """Return what can be switched off for a model."""
    family = name.partition("-")[0]
    more = (GRAPHS, *OPERATIONS[family]) if device.type == "cuda" else CPU_OPERATIONS.get(family, ())
    return [NOTHING, OPTIMIZE, *more]


def find_model(name: str) -> BenchmarkModel:
    """Return a model of `vitruvian bench`, SAM 2 on the frames of a video, or the whole pose pipeline on an image."""
    family, _, size = name.partition("-")
    if family == "sam2_video":
        build_video = partial(_build_video, size)
        return BenchmarkModel(name, build_video, _next_frame, (1024, 1024), _clip)
    if family == "pose_pipeline":
        build_pose = benchmark_model(f"sapiens2-pose-{size}").build
        return BenchmarkModel(name, build_pose, _estimate_poses, (1024, 768), _image_with_people)
    return benchmark_model(name)


def _build_video(size: str, workload: Workload) -> Sam2VideoModel:
    torch.manual_seed(0)
    model = Sam2VideoModel(Sam2VideoConfig.variant(size, image_size=workload.size_hw[0]))
    return model.eval().to(workload.device, workload.dtype)


def _clip(workload: Workload) -> dict[str, Any]:
    return {"frames": workload.pixels(), "objects": workload.prompts}


def _next_frame(model: Sam2VideoModel, inputs: dict[str, Any]) -> torch.Tensor:
    """Segment the next frame. The first call opens a session and fills its memory."""
    if "stream" not in inputs:
        inputs["stream"] = open_stream({"ours": model}, "ours", inputs["objects"], inputs["frames"])
        inputs["stream"].run(20)
    masks: torch.Tensor = inputs["stream"].run(1)
    return masks


def _image_with_people(workload: Workload) -> dict[str, Any]:
    lefts = np.linspace(0, 1600, workload.prompts)
    boxes = [[left, 100.0, left + 300, 900.0] for left in lefts.tolist()]
    return {"image": smooth_image((1080, 1920), np.random.default_rng(0)), "boxes": boxes}


def _estimate_poses(model: Any, inputs: dict[str, Any]) -> Any:
    if "pipeline" not in inputs:
        optimize = model.optimized
        inputs["pipeline"] = pipeline(
            "pose", model, processor=Sapiens2ImageProcessor(), keep_image=False, optimize=optimize
        )
    return inputs["pipeline"](inputs["image"], boxes=inputs["boxes"])


@contextlib.contextmanager
def switched_off(model: Any, off: str) -> Iterator[None]:
    """Optimize a model with one optimization off."""
    with contextlib.nullcontext() if off in (NOTHING, OPTIMIZE, GRAPHS) else dispatch.disable_triton(off):
        if off != OPTIMIZE:
            model.optimize(cuda_graphs=off != GRAPHS)
        yield


@torch.no_grad()
def measure(one: BenchmarkModel, workload: Workload, off: str, *, seconds: float) -> Row:
    """Build a model and measure it with one optimization off."""
    model, inputs = one.build(workload), one.inputs(workload)
    with switched_off(model, off):
        memory = peak_bytes(lambda: one.call(model, inputs), workload.device)
        times = time_interleaved({"": lambda: one.call(model, inputs)}, device=workload.device, seconds=seconds)
    return Row(one.name, workload.batch, workload.prompts, off, times[""].median, memory)


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown, with what each optimization saves."""
    lines = ["| model | off | ms | time saved | memory, MiB | memory saved |", "|---|---|---|---|---|---|"]
    for row in rows:
        key = (row.model, row.batch, row.prompts)
        base = next(one for one in rows if (one.model, one.batch, one.prompts) == key and one.off == NOTHING)
        name = f"{row.model}, batch {row.batch}" + (f", {row.prompts} prompts" if row.prompts else "")
        saved = 1 - base.milliseconds / row.milliseconds
        memory = "" if row.memory is None else f"{row.memory / 2**20:.0f}"
        memory_saved = "" if not row.memory or not base.memory else f"{1 - base.memory / row.memory:.0%}"
        first = row.off == NOTHING
        lines.append(
            f"| {name if first else ''} | {row.off} | {row.milliseconds:.2f} | {'' if first else f'{saved:.0%}'} "
            f"| {memory} | {'' if first else memory_saved} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="see `vitruvian bench --list`; by default those above")
    parser.add_argument("--batches", type=int, nargs="+", default=[1], help="with --models")
    parser.add_argument("--prompts", type=int, default=0, help="with --models, for prompt decoders")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--seconds", type=float, default=0.5, help="measuring time of each row, about")
    parser.add_argument("--limit", type=float, default=0.0, help="start no new row after this many seconds")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    device, begun = torch.device(options.device), time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    workloads = WORKLOADS
    if options.models:
        workloads = {name: tuple((batch, options.prompts) for batch in options.batches) for name in options.models}
    rows: list[Row] = []
    for name, batch, prompts in ((name, *one) for name, several in workloads.items() for one in several):
        one = find_model(name)
        workload = Workload(batch, one.size_hw, prompts, getattr(torch, options.dtype), device)
        for off in switches(name, device):
            if options.limit and time.perf_counter() - begun > options.limit:
                print(f"{name}, {off}: skipped, --limit is over", flush=True)
                continue
            rows.append(measure(one, workload, off, seconds=options.seconds))
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            print(asdict(rows[-1]), flush=True)
            written = {"machine": describe_machine(device), "rows": [asdict(row) for row in rows]}
            (options.out / "ablation.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
            (options.out / "ablation.md").write_text(f"{describe_machine(device)}\n\n{table(rows)}\n", encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
