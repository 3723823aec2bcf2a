"""One measurement: a model with a batch, a size and a data type, ours and the reference in turns."""

from __future__ import annotations

import copy
import gc
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from vitruvian.errors import InputError
from vitruvian.evaluation.speed.subjects import Given, Subject, has_reference, reference_of
from vitruvian.evaluation.speed.timing import Timing, count_flops, difference, peak_bytes, time_in_turns

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = {kind: name for name, kind in DTYPES.items()}


@dataclass
class Cell:
    """What was measured; times in milliseconds, memory in bytes beside the weights.

    Attributes:
        times: Timing of each way: ``optimized``, ``plain`` (without `optimize()`), ``reference`` and others.
        difference: Largest relative difference and relative distance of the optimised results to the reference's.
        to_float32: The same of both to the reference in float32.
        tflop: Arithmetic of a call.
        ceiling: TFLOP/s of a large matrix product.
        memory: Peak of each way.
        note: What else is worth knowing.
        compiled_difference: As `difference`, of the compiled reference's results.
    """

    model: str
    batch: int
    size_hw: tuple[int, int]
    prompts: int
    dtype: str
    times: dict[str, Timing] = field(default_factory=dict)
    difference: tuple[float, float] | None = None
    to_float32: dict[str, tuple[float, float]] = field(default_factory=dict)
    tflop: float = 0.0
    ceiling: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)
    note: str = ""
    compiled_difference: tuple[float, float] | None = None

    @property
    def ratio(self) -> float | None:
        """Our time over the reference's."""
        if "reference" not in self.times or "optimized" not in self.times:
            return None
        return self.times["optimized"].median / self.times["reference"].median

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a JSON file."""
        return asdict(self) | {"ratio": self.ratio}


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        seconds: About how long each way is timed.
        reference: Compare with transformers.
        truth: Also compare both with the reference in float32.
        cold: Flush the cache before each sample.
        cuda_graphs: Record calls with small batches.
        plain: Time our model without `optimize()` too.
        compiled: Time the reference after `torch.compile` too, which takes a minute to compile.
    """

    seconds: float = 1.0
    reference: bool = True
    truth: bool = False
    cold: bool = False
    cuda_graphs: bool = True
    plain: bool = False
    compiled: bool = False


def measure(subject: Subject, given: Given, plan: Plan, *, ceiling: float = 0.0) -> Cell:
    """Measure one cell, and give its memory back."""
    try:
        return measured(subject, given, plan, ceiling)
    finally:
        gc.collect()
        if given.device.type == "cuda":
            torch.cuda.empty_cache()


@torch.no_grad()
def measured(subject: Subject, given: Given, plan: Plan, ceiling: float) -> Cell:
    """Do the work of `measure`."""
    if plan.reference and not has_reference():
        raise InputError("--reference: needs transformers, which is not installed. Leave it out, or install it.")
    ours = subject.build(given)
    theirs = reference_of(ours, given) if plan.reference else None
    plain = copy.deepcopy(ours) if plan.plain else None
    torch.manual_seed(1)
    inputs = subject.inputs(given)
    cell = Cell(subject.name, given.batch, given.size_hw, given.prompts, NAMES[given.dtype], ceiling=ceiling)
    cell.tflop = count_flops(lambda: subject.ask(ours, inputs)) / 1e12
    calls = {"optimized": lambda: subject.ask(ours, inputs)}
    if plain is not None:
        calls["plain"] = lambda: subject.ask(plain, inputs)
    model = their_inputs = None
    if theirs is not None:
        model, their_inputs = runnable(subject, theirs, inputs, cell)
        calls["reference"] = lambda: subject.ask(model, their_inputs)
        if plan.compiled:
            quick = torch.compile(model)
            calls["compiled"] = lambda: subject.ask(quick, their_inputs)
            cell.compiled_difference = difference(calls["compiled"](), calls["reference"]())
    ours.optimize(cuda_graphs=plan.cuda_graphs)
    peaks: dict[str, int | None] = {}
    for way in ("reference", "compiled", "optimized"):  # ours comes last: its first call records, and holds memory then
        peaks[way] = peak_bytes(calls[way], given.device) if way in calls else None
    cell.memory = {way: used for way in calls if (used := peaks.get(way)) is not None}
    got = subject.ask(ours, inputs)
    if theirs is not None:
        compare(subject, got, model, inputs, calls["reference"](), cell, truth=plan.truth)
    del got
    cell.times = time_in_turns(calls, device=given.device, seconds=plan.seconds, cold=plan.cold)
    return cell


def compare(
    subject: Subject, got: Any, theirs: Any, inputs: dict[str, Any], want: Any, cell: Cell, *, truth: bool
) -> None:
    """Note how far our results lie from the reference's, and both from the reference in float32."""
    cell.difference = difference(got, want)
    if truth:
        wide = subject.ask(copy.deepcopy(theirs).float(), as_dtype(inputs, torch.float32))
        cell.to_float32 = {"optimized": difference(got, wide), "reference": difference(want, wide)}


def runnable(subject: Subject, theirs: Any, inputs: dict[str, Any], cell: Cell) -> tuple[Any, dict[str, Any]]:
    """Return the reference in a data type in which it runs, with inputs of it: some of its models need float32."""
    try:
        subject.ask(theirs, inputs)
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        cell.note = "the reference fails in this data type and runs in float32"
        return theirs.float(), as_dtype(inputs, torch.float32)
    return theirs, inputs


def as_dtype(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Convert the floating-point tensors of inputs."""

    def convert(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    converted: dict[str, Any] = torch.utils._pytree.tree_map(convert, inputs)
    return converted


def table(cells: list[Cell]) -> str:
    """Write cells as a table in Markdown."""
    also = any("compiled" in cell.times for cell in cells)  # the reference, compiled
    titles = ["model", "batch", "size", "dtype", "ours ms", "reference ms", "ratio", "difference", "memory", "TFLOP/s"]
    titles[7:7] = ["compiled ms", "ratio"] if also else []
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for cell in cells:
        size = "×".join(map(str, cell.size_hw)) + (f", {cell.prompts} prompts" if cell.prompts else "")
        ours = cell.times.get("optimized")
        rate = "" if ours is None else rate_text(cell, ours)
        parts = [
            cell.model,
            str(cell.batch),
            size,
            cell.dtype,
            str(ours or "failed"),
            str(cell.times.get("reference", "")),
            "" if cell.ratio is None else f"{cell.ratio:.2f} ×",
            "" if cell.difference is None else f"{cell.difference[0]:.1e}",
            " / ".join(f"{used / 2**30:.2f}" for used in cell.memory.values()) + (" GiB" if cell.memory else ""),
            rate,
        ]
        if also:
            quick = cell.times.get("compiled")
            parts[7:7] = [str(quick or ""), f"{ours.median / quick.median:.2f} ×" if ours and quick else ""]
        lines.append("| " + " | ".join(parts) + " |")
        if cell.note:
            lines.append(f"| | | | | {cell.note} |" + " |" * (len(titles) - 5))
    return "\n".join(lines)


def rate_text(cell: Cell, timing: Timing) -> str:
    """Achieved arithmetic, and its share of the ceiling."""
    rate = cell.tflop / timing.median * 1e3
    return f"{rate:.2f}" + (f" ({rate / cell.ceiling:.0%})" if cell.ceiling else "")
