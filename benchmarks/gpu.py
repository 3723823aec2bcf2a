"""All families on a GPU next to transformers, in one process: model × batch × size × prompts × data type.

    python benchmarks/gpu.py --quick --out results         # the goals of the mask families, in a few minutes
    python benchmarks/gpu.py --out results                 # all families
    python benchmarks/gpu.py --models sam2-large-encoder --curves --out results
    python benchmarks/gpu.py --models sapiens2-pose-0.4b --curves --people 1 2 4 8 16 32 --out results
    python benchmarks/gpu.py --models mask2former-swin-small --profile --out results

Ours (after `optimize()`) and the reference run alternately with the same weights and inputs. The table has medians with
their range, the largest relative difference of the results, peak memory above the weights, and the achieved TFLOP/s as
a share of those of a large matrix product. A model that fails is measured again without CUDA graphs and without Triton,
so that one run shows what works. --people times the pose pipeline for that many people in an image of 1920 × 1080, next
to the network of the reference on as many crops. Prints the table, and writes results.json and results.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

from vitruvian import Sapiens2ImageProcessor, pipeline  # noqa: E402
from vitruvian.bench import workloads  # noqa: E402
from vitruvian.bench.timing import describe_machine, product_ceiling, time_interleaved  # noqa: E402
from vitruvian.bench.workloads import DTYPES, Measurement, Workload, benchmark_model  # noqa: E402
from vitruvian.ops.dispatch import disable_triton  # noqa: E402

# Model, batch, prompts, and the goal as a share of the reference's time.
GOALS = (
    ("mask2former-swin-small", 1, 0, 0.35),
    ("maskformer-swin-small", 1, 0, 0.35),
    ("sam2-tiny-encoder", 1, 0, 0.6),
    ("sam2-large-encoder", 1, 0, 0.6),
    ("sam2-tiny-decoder", 1, 1024, 0.4),
    ("sam2-tiny-decoder", 1, 1, None),
    ("sapiens2-pose-0.4b", 1, 0, 0.25),
    ("sapiens2-pose-0.4b", 8, 0, 0.42),
    ("sapiens2-normal-0.4b", 8, 0, 0.45),
    ("sapiens2-pointmap-0.4b", 8, 0, 0.45),
    ("sapiens2-pose-1b", 8, 0, 0.45),
)
QUICK = GOALS[:6]  # with --quick
MAX_BATCH = 8  # people of a batch
BATCHES, PROMPTS, SCALES = (1, 2, 4, 8, 16), (1, 8, 64, 256, 1024), (0.5, 1.0, 1.5)


def attempt(name: str, workload: Workload, options: dict[str, Any]) -> Measurement:
    """Measure a model; if that fails, without CUDA graphs, and then without Triton."""
    attempts = (
        ("", options, nullcontext()),
        ("without graphs", options | {"cuda_graphs": False}, nullcontext()),
        ("without Triton", options, disable_triton()),
    )
    notes = []
    for label, tried, context in attempts:
        try:
            with context:
                cell = workloads.measure(benchmark_model(name), workload, **tried)
        except Exception as error:
            traceback.print_exc()
            notes.append(f"{label or 'optimized'} failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            torch.cuda.empty_cache()
            continue
        cell.note = "; ".join(filter(None, [cell.note, *notes, f"measured {label}" if label else ""]))
        return cell
    kind = next(text for text, dtype in DTYPES.items() if dtype == workload.dtype)
    return Measurement(name, workload.batch, workload.size_hw, workload.prompts, kind, note="; ".join(notes))


@torch.no_grad()
def time_variants(name: str, workload: Workload) -> dict[str, float]:
    """Return the milliseconds of our optimized model with Triton and CUDA graphs on or off."""
    one = benchmark_model(name)
    model, inputs = one.build(workload), one.inputs(workload)
    found = {}
    for label, graphs, triton in (
        ("Triton", False, True),
        ("graphs", True, False),
        ("both", True, True),
    ):
        model.optimize(cuda_graphs=graphs)
        try:
            call = {"": lambda: one.call(model, inputs)}
            with nullcontext() if triton else disable_triton():
                found[label] = time_interleaved(call, device=workload.device, seconds=0.3)[""].median
        except Exception as error:
            print(f"{name}, {label}: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
    return found


@torch.no_grad()
def profile(name: str, workload: Workload) -> str:
    """Return the kernels that take most of our time, measured without CUDA graphs."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    one = benchmark_model(name)
    model, inputs = one.build(workload).optimize(cuda_graphs=False), one.inputs(workload)
    one.call(model, inputs)
    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        one.call(model, inputs)
        torch.cuda.synchronize()
    return str(found.key_averages().table(sort_by="cuda_time_total", row_limit=16, max_name_column_width=60))


@torch.no_grad()
def people_rows(name: str, counts: list[int], workload: Workload, *, seconds: float) -> Iterator[dict[str, Any]]:
    """Time an image with several people: our pipeline, and the network of the reference alone."""
    one = benchmark_model(name)
    model = one.build(workload)
    theirs = workloads.reference_of(model, workload) if workloads.has_reference() else None
    size = {"height": workload.size_hw[0], "width": workload.size_hw[1]}
    pipe = pipeline("pose", model, processor=Sapiens2ImageProcessor(size=size), keep_image=False, batch_size=MAX_BATCH)
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (1080, 1920, 3), dtype=np.uint8)
    for people in counts:
        corners = generator.uniform((0, 0), (1500, 400), (people, 2))
        boxes = np.concatenate((corners, corners + np.array([400, 600])), axis=1)  # x1, y1, x2, y2
        calls = {"optimized": functools.partial(pipe, image, boxes=boxes)}
        if theirs is not None:
            calls["reference"] = functools.partial(
                one.call, theirs, one.inputs(dataclasses.replace(workload, batch=people))
            )
        times = time_interleaved(calls, device=workload.device, seconds=seconds)
        milliseconds = {key: dataclasses.asdict(timing) for key, timing in times.items()}
        yield {"model": name, "people": people, "times": milliseconds}


def planned(options: argparse.Namespace) -> list[tuple[str, int, int, float | None]]:
    """Return what to measure."""
    listed = {(name, batch): (name, batch, prompts, goal) for name, batch, prompts, goal in reversed(GOALS)}
    if not options.models:
        return list(QUICK if options.quick else GOALS)
    if not options.curves:
        batches = dict(listed.keys())
        wanted = [(name, batch) for name in options.models for batch in options.batches or [batches.get(name, 1)]]
        return [listed.get(one, (*one, benchmark_model(one[0]).prompts, None)) for one in wanted]
    found: list[tuple[str, int, int, float | None]] = []
    for name in options.models:
        prompts = benchmark_model(name).prompts
        found += [(name, batch, prompts, None) for batch in options.batches or BATCHES]
        if prompts:
            found += [(name, 1, count, None) for count in options.prompts]
    return found


def sizes_of(name: str, options: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the image sizes to measure: as published, those of --sizes, or for curves some around it."""
    published = benchmark_model(name).size_hw
    if options.sizes:
        return [(int(h), int(w)) for h, w in (text.split("x") for text in options.sizes)]
    if options.curves:
        return [(round(published[0] * s / 64) * 64, round(published[1] * s / 64) * 64) for s in SCALES]
    return [published]


def verdict(cell: Measurement, goal: float | None) -> str:
    if goal is None or cell.ratio is None:
        return ""
    memory = cell.memory.get("optimized", 0) / 2**30
    heavy = f", memory {memory:.2f} GiB of 4" if cell.prompts >= 1024 else ""
    return f"goal {goal:.2f} ×: {'met' if cell.ratio <= goal else 'MISSED'}{heavy}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="see `vitruvian bench --list`")
    parser.add_argument("--quick", action="store_true", help="only the goals and profiles of the mask families")
    parser.add_argument("--curves", action="store_true", help="several batches, sizes and numbers of prompts")
    parser.add_argument("--batches", type=int, nargs="+", help="by default those of the goals, or several for curves")
    parser.add_argument("--sizes", nargs="+", help="height x width")
    parser.add_argument("--prompts", type=int, nargs="+", default=PROMPTS)
    parser.add_argument("--people", type=int, nargs="+", default=[], help="people in an image, for pose models")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"], choices=DTYPES)
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time of each, about")
    parser.add_argument("--compile", action="store_true", help="also the reference after torch.compile")
    parser.add_argument("--cold", action="store_true", help="flush the cache before each sample")
    parser.add_argument("--profile", action="store_true", help="also list the slowest kernels")
    parser.add_argument("--limit", type=float, default=0.0, help="start no new cell after this many seconds")
    parser.add_argument("--device", default="cuda", help="cpu to test the script")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device. --device cpu tests the script.")
    start, on_gpu = time.perf_counter(), device.type == "cuda"
    options.out.mkdir(parents=True, exist_ok=True)
    seconds = min(options.seconds, 0.5) if options.quick else options.seconds
    variants = ["plain", *(["reference", "float32"] if workloads.has_reference() else [])]
    variants += ["compiled"] if options.compile else []
    wanted = {"variants": variants, "seconds": seconds, "cold": options.cold}
    written: dict[str, Any] = {"machine": describe_machine(device), "cells": [], "people": []}
    written |= {"parts": {}, "profiles": {}}
    print(describe_machine(device), flush=True)
    cells: list[Measurement] = []

    def is_over() -> bool:
        return bool(options.limit) and time.perf_counter() - start > options.limit

    def save() -> None:
        written["cells"] = [cell.to_dict() for cell in cells]
        (options.out / "results.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
        (options.out / "results.md").write_text(
            f"{describe_machine(device)}\n\n{workloads.markdown_table(cells)}\n", encoding="utf-8"
        )

    for kind in options.dtypes:
        ceiling = product_ceiling(device, DTYPES[kind])
        print(f"matrix product in {kind}: {ceiling:.0f} TFLOP/s", flush=True)
        for name, batch, prompts, goal in planned(options):
            for size_hw in sizes_of(name, options):
                if is_over():
                    print(f"{name}: skipped, --limit is over", flush=True)
                    continue
                begun = time.perf_counter()
                cell = attempt(
                    name, Workload(batch, size_hw, prompts, DTYPES[kind], device), wanted | {"ceiling": ceiling}
                )
                cells.append(cell)
                save()
                print(
                    f"{name} b{batch} {size_hw} p{prompts} {kind}: ours {cell.times.get('optimized')} reference "
                    f"{cell.times.get('reference')} compiled {cell.times.get('compiled')} ratio {cell.ratio} "
                    f"difference {cell.difference} compiled {cell.compiled_difference} to float32 "
                    f"{cell.to_float32} {verdict(cell, goal)} {cell.note} [{time.perf_counter() - begun:.0f} s]",
                    flush=True,
                )
        for name in options.models or ():
            if not options.people or not name.startswith("sapiens2-pose") or is_over():
                continue
            workload = Workload(1, benchmark_model(name).size_hw, 0, DTYPES[kind], device)
            for row in people_rows(name, options.people, workload, seconds=seconds):
                written["people"].append(row | {"dtype": kind})
                print(f"{name}, {row['people']} people: {row['times']}", flush=True)
                save()
    if options.quick or options.profile:
        dtype = DTYPES[options.dtypes[0]]
        profiled = [
            (f"{name} {prompts}", name, Workload(batch, sizes_of(name, options)[0], prompts, dtype, device))
            for name, batch, prompts, _ in dict.fromkeys(planned(options))
        ]
        for key, name, workload in profiled:
            if is_over():
                break
            written["parts"][key] = time_variants(name, workload)
            print(f"{key}: {written['parts'][key]}", flush=True)
            save()
        for key, name, workload in profiled:  # at the end: after the first profile every launch of a kernel is slower
            if on_gpu and workload.prompts != 1 and not is_over():
                written["profiles"][key] = profile(name, workload)
                save()
        (options.out / "profiles.txt").write_text(
            "\n\n".join(f"{name}\n{text}" for name, text in written["profiles"].items()), encoding="utf-8"
        )
    print("\n" + workloads.markdown_table(cells), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
