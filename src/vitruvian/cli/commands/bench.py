"""`vitruvian bench`: how fast models run, compared with transformers where that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitruvian.cli.option_groups import CudaDevice, cuda_or_cpu, read_size

EXAMPLE = "vitruvian bench --model sapiens2-pose-0.4b --batch 1"


def bench(
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model to measure, such as builtin or sam2-tiny-encoder. Repeat for more."),
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images in a batch. Repeat for a curve.", min=1)] = None,
    size: Annotated[list[str] | None, typer.Option(help="Height and width of images. Repeat for a curve.")] = None,
    prompts: Annotated[
        list[int] | None, typer.Option(help="Prompts for each image, for decoders. Repeat for a curve.", min=1)
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16 or float16. Repeat for more.")] = None,
    device: CudaDevice = None,
    reference: Annotated[
        bool | None, typer.Option(help="Compare with transformers. The default if it is installed.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds to time each configuration.", min=0.0)] = 1.0,
    graphs: Annotated[bool, typer.Option(help="Capture calls with small batches as CUDA graphs.")] = True,
    cold: Annotated[bool, typer.Option("--cold", help="Flush the GPU's cache before each sample.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write all numbers to this file.")] = None,
    available: Annotated[bool, typer.Option("--list", help="List the models that can be measured, and exit.")] = False,
) -> None:
    """Benchmark models (random weights) against Transformers, and compare the outputs."""
    import functools
    import json
    import time

    from rich.console import Console

    from vitruvian.bench import workloads
    from vitruvian.bench.timing import describe_machine, product_ceiling
    from vitruvian.cli.console_report import format_seconds
    from vitruvian.errors import check_choice

    if available:
        typer.echo("\n".join(workloads.benchmark_names()))
        return
    target = cuda_or_cpu(device)
    dtypes = dtype or ["bfloat16" if target.type == "cuda" else "float32"]
    for name in dtypes:
        check_choice("--dtype", name, workloads.DTYPES)
    chosen = [workloads.benchmark_model(wanted) for wanted in model or ["mask2former-swin-small"]]
    compare = workloads.has_reference() if reference is None else reference
    options: dict[str, Any] = {"seconds": seconds, "cold": cold, "cuda_graphs": graphs}
    options["variants"] = ("reference",) if compare else ()
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(describe_machine(target))
    started = time.monotonic()

    def show(text: str) -> None:
        """Show a step and the time so far: beside the spinner, or without a terminal on a line of its own."""
        line = f"{format_seconds(time.monotonic() - started)}: {text}"
        status.update(line)
        if not console.is_terminal:
            console.print(line)

    measured: list[workloads.Measurement] = []
    sizes = [read_size("--size", text, example="800x1088") for text in size or ()]
    runs = [
        (benchmark, workloads.Workload(images, size_hw, count, workloads.DTYPES[name], target))
        for name in dtypes
        for benchmark in chosen
        for images in batch or [1]
        for size_hw in sizes or [benchmark.size_hw]
        for count in ((prompts or [benchmark.prompts]) if benchmark.prompts else [0])
    ]
    with console.status("starting") as status:
        show("measuring the machine")
        ceilings = {name: product_ceiling(target, workloads.DTYPES[name]) for name in dtypes}
        for number, (benchmark, workload) in enumerate(runs, 1):
            name = str(workload.dtype).removeprefix("torch.")
            height, width = workload.size_hw
            title = f"{number} of {len(runs)}: {benchmark.name}, batch {workload.batch}, {height}×{width}, {name}"
            progress = functools.partial(lambda title, step: show(f"{title}, {step}"), title)
            measured.append(
                workloads.measure(benchmark, workload, ceiling=ceilings[name], progress=progress, **options)
            )
    typer.echo(workloads.markdown_table(measured))
    if json_file is not None:
        report = {"machine": describe_machine(target), "cells": [measurement.to_dict() for measurement in measured]}
        json_file.write_text(json.dumps(report, indent=2), encoding="utf-8")
