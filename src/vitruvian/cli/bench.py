"""`vitruvian bench`: how fast the models run here, next to transformers where that is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

EXAMPLE = "vitruvian bench --model sapiens2-pose-0.4b --batch 1"


def bench(
    model: Annotated[
        list[str] | None, typer.Option(help="What to measure, such as mask2former-swin-small. Repeat for more.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Pictures at once. Repeat for a curve.", min=1)] = None,
    size: Annotated[list[str] | None, typer.Option(help="Height and width of pictures. Repeat for a curve.")] = None,
    prompts: Annotated[list[int] | None, typer.Option(help="Prompts a picture, for decoders. Repeat.", min=1)] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16 or float16. Repeat for more.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. By default cuda where there is one.")] = None,
    reference: Annotated[bool | None, typer.Option(help="Compare with transformers. By default where it is.")] = None,
    seconds: Annotated[float, typer.Option(help="About how long each call is timed.", min=0.0)] = 1.0,
    graphs: Annotated[bool, typer.Option(help="Record calls with small batches as CUDA graphs.")] = True,
    cold: Annotated[bool, typer.Option("--cold", help="Flush the GPU's cache before each sample.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers into this file too.")] = None,
    available: Annotated[bool, typer.Option("--list", help="Print what can be measured and stop.")] = False,
) -> None:
    """Time models with random weights, in turns with transformers on the same weights, and compare the results."""
    import json

    import torch
    from rich.console import Console

    from vitruvian.benchmarking.models import (
        DTYPES,
        Cell,
        Plan,
        Workload,
        has_reference,
        measure,
        names,
        subject,
        table,
    )
    from vitruvian.benchmarking.timing import machine, product_ceiling
    from vitruvian.devices import checked_device
    from vitruvian.errors import InputError, near_matches

    if available:
        typer.echo("\n".join(names()))
        return
    place = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    kinds = dtype or ["bfloat16" if place.type == "cuda" else "float32"]
    for kind in kinds:
        if kind not in DTYPES:
            raise InputError(f"--dtype: expected one of {', '.join(DTYPES)}.{near_matches(kind, DTYPES)}")
    subjects = [subject(name) for name in model or ["mask2former-swin-small"]]
    plan = Plan(seconds, has_reference() if reference is None else reference, cold=cold, cuda_graphs=graphs)
    console = Console(stderr=True)
    console.print(machine(place))
    cells: list[Cell] = []
    for kind in kinds:
        ceiling = product_ceiling(place, DTYPES[kind])
        for one in subjects:
            sizes = [parse_size(text) for text in size] if size else [one.size_hw]
            counts = (prompts or [one.prompts]) if one.prompts else [0]
            for pictures, size_hw, count in ((b, s, p) for b in batch or [1] for s in sizes for p in counts):
                given = Workload(pictures, size_hw, count, DTYPES[kind], place)
                with console.status(f"{one.name}, batch {pictures}, {size_hw[0]}×{size_hw[1]}, {kind}"):
                    cells.append(measure(one, given, plan, ceiling=ceiling))
    typer.echo(table(cells))
    if json_file is not None:
        found = {"machine": machine(place), "cells": [cell.to_dict() for cell in cells]}
        json_file.write_text(json.dumps(found, indent=2), encoding="utf-8")


def parse_size(text: str) -> tuple[int, int]:
    """Read a height and a width."""
    from vitruvian.errors import InputError

    found = re.fullmatch(r"(\d+)[x×](\d+)", text)
    if not found:
        raise InputError(f"--size: expected height x width such as 800x1088, got {text!r}.")
    return int(found[1]), int(found[2])
