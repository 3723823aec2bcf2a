"""What each kernel and trick brings to whole models: everything on, then one of them off at a time.

    python benchmarks/ablation.py --out results                      # all models of the tables, on the GPU
    python benchmarks/ablation.py --models sapiens2-pose-0.4b --batches 8 --out results
    python benchmarks/ablation.py --device cpu --dtype float32 --models sapiens2-pose-0.4b --out results

A row is one switch that is off: an operation's Triton version (`vitruvian.ops.dispatch`), CUDA graphs, or all of
`optimize()`. Time and peak memory are those of the whole model; the shares say what the switch brings. Writes
ablation.json and ablation.md into the folder after every row. What brings less than 5 % of the time and less than 10 %
of the memory of every model here does not stay in the library.
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
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

from vitruvian.benchmarking.models import Subject, Workload, subject  # noqa: E402
from vitruvian.benchmarking.timing import machine, peak_bytes, time_interleaved  # noqa: E402
from vitruvian.ops import dispatch  # noqa: E402

# Model, batch, prompts.
CELLS = (
    ("sapiens2-pose-0.4b", 8, 0),
    ("sapiens2-pose-0.4b", 1, 0),
    ("sapiens2-normal-0.4b", 8, 0),
    ("sapiens2-pointmap-0.4b", 8, 0),
    ("sapiens2-pointmap-0.4b", 1, 0),
    ("sam2-tiny-encoder", 1, 0),
    ("sam2-large-encoder", 1, 0),
    ("sam2-tiny-decoder", 1, 1024),
    ("sam2-tiny-decoder", 1, 1),
    ("mask2former-swin-small", 1, 0),
    ("maskformer-swin-small", 1, 0),
    ("sapiens2-pose-1b", 8, 0),
)
OPERATIONS = {
    "sapiens2": ("rms_norm", "rope", "bounded_attention", "swiglu", "instance_norm", "winograd"),
    "sam2": ("layer_norm", "window_attention", "two_way_attention", "mask_upscaling"),
    "maskformer": ("layer_norm", "window_attention"),
    "mask2former": ("layer_norm", "window_attention", "deformable_attention", "masked_attention"),
}
CPU_OPERATIONS = {"sapiens2": ("strassen", "winograd"), "sam2": (), "maskformer": (), "mask2former": ()}
GRAPHS, OPTIMIZE, EVERYTHING = "CUDA graphs", "optimize()", "nothing is off"


@dataclass
class Row:
    """A model with one switch off: milliseconds, and bytes beside the weights."""

    model: str
    batch: int
    prompts: int
    off: str
    milliseconds: float
    memory: int | None


def switches(name: str, device: torch.device) -> list[str]:
    """What can be switched off for a model."""
    family = name.partition("-")[0]
    if device.type != "cuda":
        return [EVERYTHING, OPTIMIZE, *CPU_OPERATIONS[family]]
    return [EVERYTHING, OPTIMIZE, GRAPHS, *OPERATIONS[family]]


@contextlib.contextmanager
def switched_off(model: Any, off: str) -> Iterator[None]:
    """Prepare a model with one switch off."""
    operations = () if off in (EVERYTHING, OPTIMIZE, GRAPHS) else (off,)
    with dispatch.disable_triton(*operations) if operations else contextlib.nullcontext():
        if off != OPTIMIZE:
            model.optimize(cuda_graphs=off != GRAPHS)
        yield


@torch.no_grad()
def measure(one: Subject, given: Workload, off: str, *, seconds: float) -> Row:
    """Build a model and time it with one switch off."""
    model, inputs = one.build(given), one.inputs(given)
    with switched_off(model, off):
        memory = peak_bytes(lambda: one.call(model, inputs), given.device)
        times = time_interleaved({"": lambda: one.call(model, inputs)}, device=given.device, seconds=seconds)
    return Row(one.name, given.batch, given.prompts, off, times[""].median, memory)


def table(rows: list[Row]) -> str:
    """The rows as Markdown, with what each switch brings."""
    lines = ["| model | off | ms | time it saves | memory, MiB | memory it saves |", "|---|---|---|---|---|---|"]
    for row in rows:
        key = (row.model, row.batch, row.prompts)
        base = next(one for one in rows if (one.model, one.batch, one.prompts) == key and one.off == EVERYTHING)
        name = f"{row.model}, batch {row.batch}" + (f", {row.prompts} prompts" if row.prompts else "")
        saved = 1 - base.milliseconds / row.milliseconds
        memory = "" if row.memory is None else f"{row.memory / 2**20:.0f}"
        lean = "" if not row.memory or not base.memory else f"{1 - base.memory / row.memory:.0%}"
        first = row.off == EVERYTHING
        lines.append(
            f"| {name if first else ''} | {row.off} | {row.milliseconds:.2f} | {'' if first else f'{saved:.0%}'} "
            f"| {memory} | {'' if first else lean} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", help="see `vitruvian bench --list`; by default those of docs/speed.md")
    parser.add_argument("--batches", type=int, nargs="+", default=[1], help="with --models")
    parser.add_argument("--prompts", type=int, default=0, help="with --models, for decoders of prompts")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each row is timed, about")
    parser.add_argument("--limit", type=float, default=0.0, help="start no new row after this many seconds")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    device, begun = torch.device(options.device), time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = CELLS
    if options.models:
        cells = tuple((name, batch, options.prompts) for name in options.models for batch in options.batches)
    rows: list[Row] = []
    for name, batch, prompts in cells:
        one = subject(name)
        given = Workload(batch, one.size_hw, prompts, getattr(torch, options.dtype), device)
        for off in switches(name, device):
            if options.limit and time.perf_counter() - begun > options.limit:
                print(f"{name}, {off}: left out, --limit is over", flush=True)
                continue
            rows.append(measure(one, given, off, seconds=options.seconds))
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            print(asdict(rows[-1]), flush=True)
            written = {"machine": machine(device), "rows": [asdict(row) for row in rows]}
            (options.out / "ablation.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
            (options.out / "ablation.md").write_text(f"{machine(device)}\n\n{table(rows)}\n", encoding="utf-8")
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
