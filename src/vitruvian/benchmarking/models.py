"""Benchmarks of models: ours with random weights, the reference with the same weights, and inputs for both.

sapiens2-pose-0.4b · sam2-tiny-encoder · sam2-tiny-decoder · maskformer-swin-small · mask2former-swin-small · …

"""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitruvian.benchmarking.timing import Timing, count_flops, difference, peak_bytes, time_interleaved
from vitruvian.errors import InputError, near_matches
from vitruvian.model import Model

_SAPIENS_TASKS = {"pose": "PoseEstimation", "seg": "SemanticSegmentation", "normal": "NormalEstimation"}


_SAPIENS_TASKS |= {"pointmap": "PointmapEstimation"}


_SAPIENS_FIELDS = {"pose": "heatmaps", "seg": "logits", "normal": "normals", "pointmap": "pointmaps"}
_SAPIENS_SIZES = ("0.1b", "0.4b", "0.8b", "1b", "5b")
_SAM_SIZES = ("tiny", "small", "base-plus", "large")
# Channels, layers and heads of the stages of Swin, and the side of its windows.
_SWINS: dict[str, tuple[int, list[int], list[int], int]] = {
    "tiny": (96, [2, 2, 6, 2], [3, 6, 12, 24], 7),
    "small": (96, [2, 2, 18, 2], [3, 6, 12, 24], 7),
    "base": (128, [2, 2, 18, 2], [4, 8, 16, 32], 12),
    "large": (192, [2, 2, 18, 2], [6, 12, 24, 48], 12),
}
STAGES = ["stage1", "stage2", "stage3", "stage4"]


@dataclass(frozen=True)
class Workload:
    """Batch, size and data type of a measurement.

    Attributes:
        batch: Pictures at once.
        size_hw: Height and width of the image_inputs.
        prompts: Prompts a picture, for decoders of prompts.
        dtype: Data type of weights and inputs.
        device: Where to run.
    """

    batch: int
    size_hw: tuple[int, int]
    prompts: int
    dtype: torch.dtype
    device: torch.device

    def pixels(self) -> Tensor:
        """Random image_inputs [B, 3, H, W]."""
        return torch.randn(self.batch, 3, *self.size_hw, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class Subject:
    """A model, how both libraries are asked for its results, and the size of image_inputs it was made for."""

    name: str
    build: Callable[[Workload], Model]
    inputs: Callable[[Workload], dict[str, Any]]
    call: Callable[[Any, dict[str, Any]], Any]  # of a model (ours or the reference's) and inputs
    size_hw: tuple[int, int]
    prompts: int = 0


def names() -> list[str]:
    """Return all names that `subject` accepts."""
    found = [f"sapiens2-{task}-{size}" for task in _SAPIENS_TASKS for size in _SAPIENS_SIZES]
    found += [f"sam2-{size}-{part}" for size in _SAM_SIZES for part in ("encoder", "decoder")]
    return found + [f"{family}-swin-{size}" for family in ("maskformer", "mask2former") for size in _SWINS]


def subject(name: str) -> Subject:
    """Return the model of a name."""
    if name not in names():
        raise InputError(f"--model: there is no {name!r}.{near_matches(name, names())}")
    family, middle, last = name.split("-", 1)[0], *name.split("-", 1)[1].rsplit("-", 1)
    if family == "sapiens2":
        return _sapiens(name, middle, last)
    if family == "sam2":
        return _sam_encoder(name, middle) if last == "encoder" else _sam_decoder(name, middle)
    return segmenter(name, family, last)


def _sapiens(name: str, task: str, size: str) -> Subject:
    """A Sapiens2 model of a task."""

    def build(workload: Workload) -> Model:
        config = package().Sapiens2Config.variant(size, task=task, image_size=list(workload.size_hw))
        return random_model(getattr(package(), f"Sapiens2For{_SAPIENS_TASKS[task]}"), config, workload)

    return Subject(
        name, build, image_inputs, lambda model, inputs: model(**inputs)[_SAPIENS_FIELDS[task]], size_hw=(1024, 768)
    )


def _sam_encoder(name: str, size: str) -> Subject:
    """The vision encoder of SAM 2."""
    return Subject(
        name,
        lambda workload: sam(size, workload),
        image_inputs,
        lambda model, inputs: tuple(model.get_image_embeddings(**inputs)),
        size_hw=(1024, 1024),
    )


def _sam_decoder(name: str, size: str) -> Subject:
    """The prompt encoder and mask decoder of SAM 2, for prompts of one point each."""

    def inputs(workload: Workload) -> dict[str, Any]:
        h, w = workload.size_hw[0] // 16, workload.size_hw[1] // 16
        shapes = ((32, 4 * h, 4 * w), (64, 2 * h, 2 * w), (256, h, w))
        embeddings = [
            torch.randn(workload.batch, *shape, device=workload.device, dtype=workload.dtype) for shape in shapes
        ]
        span = torch.tensor((workload.size_hw[1], workload.size_hw[0]), device=workload.device)
        points = torch.rand(workload.batch, workload.prompts, 1, 2, device=workload.device) * span
        labels = torch.ones(workload.batch, workload.prompts, 1, dtype=torch.long, device=workload.device)
        return {"input_points": points, "input_labels": labels, "image_embeddings": embeddings}

    def call(model: Any, workload: dict[str, Any]) -> Any:
        out = model(**workload)
        return out.pred_masks, out.iou_scores

    return Subject(name, lambda workload: sam(size, workload), inputs, call, size_hw=(1024, 1024), prompts=64)


def segmenter(name: str, family: str, size: str) -> Subject:
    """MaskFormer or Mask2Former on Swin."""

    def build(workload: Workload) -> Model:
        channels, depths, heads, window = _SWINS[size]
        swin = package().SwinConfig(
            embed_dim=channels, depths=depths, num_heads=heads, window_size=window, out_features=STAGES
        )
        if family == "maskformer":
            config = package().MaskFormerConfig(backbone_config=swin)
            return random_model(package().MaskFormerForInstanceSegmentation, config, workload)
        config = package().Mask2FormerConfig(backbone_config=swin)
        return random_model(package().Mask2FormerForUniversalSegmentation, config, workload)

    def call(model: Any, inputs: dict[str, Any]) -> Any:
        out = model(**inputs)
        return out.class_queries_logits, out.masks_queries_logits

    return Subject(name, build, image_inputs, call, size_hw=(800, 1088))


def sam(size: str, workload: Workload) -> Model:
    """A SAM 2 for image_inputs of a size."""
    config = package().Sam2Config.variant(size, image_size=workload.size_hw)
    return random_model(package().Sam2Model, config, workload)


def package() -> Any:
    """Return our package, which imports its public names lazily."""
    return importlib.import_module("vitruvian")


def image_inputs(workload: Workload) -> dict[str, Any]:
    """Return images as the only input."""
    return {"pixel_values": workload.pixels()}


@torch.no_grad()
def random_model(cls: type[Model], config: Any, workload: Workload) -> Model:
    """Build a model with random weights: no zero biases, no unit scales, and activations that do not grow."""
    torch.manual_seed(0)
    model = cls.from_config(config, device=workload.device).eval()
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim == 1:
            parameter.add_(noise * 0.1)
        else:
            parameter.mul_(0.5).add_(noise * (0.5 * parameter[0].numel() ** -0.5))
    return model.to(workload.dtype).requires_grad_(False)


def has_reference() -> bool:
    """Tell whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def reference_of(model: Model, workload: Workload) -> Any:
    """The reference's model with the same weights, opened from our files."""
    library = importlib.import_module("transformers")
    logging = importlib.import_module("transformers.utils.logging")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(known_keys(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        theirs = getattr(library, type(model).__name__).from_pretrained(folder, dtype=workload.dtype)
    return theirs.eval().to(workload.device)


def known_keys(config: Any) -> Any:
    """Remove the keys of a configuration that some releases of the reference reject."""
    if not isinstance(config, dict):
        return config
    return {key: known_keys(value) for key, value in config.items() if key not in ("stage_names", "vitruvian_version")}


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


def measure(subject: Subject, workload: Workload, plan: Plan, *, ceiling: float = 0.0) -> Cell:
    """Measure one cell, and free its memory."""
    try:
        return measured(subject, workload, plan, ceiling)
    finally:
        gc.collect()
        if workload.device.type == "cuda":
            torch.cuda.empty_cache()


@torch.no_grad()
def measured(subject: Subject, workload: Workload, plan: Plan, ceiling: float) -> Cell:
    """Do the work of `measure`."""
    if plan.reference and not has_reference():
        raise InputError("--reference: needs transformers, which is not installed. Leave it out, or install it.")
    ours = subject.build(workload)
    theirs = reference_of(ours, workload) if plan.reference else None
    plain = copy.deepcopy(ours) if plan.plain else None
    torch.manual_seed(1)
    inputs = subject.inputs(workload)
    cell = Cell(
        subject.name, workload.batch, workload.size_hw, workload.prompts, NAMES[workload.dtype], ceiling=ceiling
    )
    cell.tflop = count_flops(lambda: subject.call(ours, inputs)) / 1e12
    calls = {"optimized": lambda: subject.call(ours, inputs)}
    if plain is not None:
        calls["plain"] = lambda: subject.call(plain, inputs)
    model = their_inputs = None
    if theirs is not None:
        model, their_inputs = runnable(subject, theirs, inputs, cell)
        calls["reference"] = lambda: subject.call(model, their_inputs)
        if plan.compiled:
            compiled = torch.compile(model)
            calls["compiled"] = lambda: subject.call(compiled, their_inputs)
            cell.compiled_difference = difference(calls["compiled"](), calls["reference"]())
    ours.optimize(cuda_graphs=plan.cuda_graphs)
    peaks: dict[str, int | None] = {}
    for way in (
        "reference",
        "compiled",
        "optimized",
    ):  # ours comes last: its first call records CUDA graphs, which hold memory
        peaks[way] = peak_bytes(calls[way], workload.device) if way in calls else None
    cell.memory = {way: used for way in calls if (used := peaks.get(way)) is not None}
    got = subject.call(ours, inputs)
    if theirs is not None:
        compare(subject, got, model, inputs, calls["reference"](), cell, truth=plan.truth)
    del got
    cell.times = time_interleaved(calls, device=workload.device, seconds=plan.seconds, cold=plan.cold)
    return cell


def compare(
    subject: Subject, got: Any, theirs: Any, inputs: dict[str, Any], want: Any, cell: Cell, *, truth: bool
) -> None:
    """Store the difference of our results to the reference's, and of both to the reference in float32."""
    cell.difference = difference(got, want)
    if truth:
        wide = subject.call(copy.deepcopy(theirs).float(), _as_dtype(inputs, torch.float32))
        cell.to_float32 = {"optimized": difference(got, wide), "reference": difference(want, wide)}


def runnable(subject: Subject, theirs: Any, inputs: dict[str, Any], cell: Cell) -> tuple[Any, dict[str, Any]]:
    """Return the reference in a data type in which it runs, with inputs of it: some of its models need float32."""
    try:
        subject.call(theirs, inputs)
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        cell.note = "the reference fails in this data type and runs in float32"
        return theirs.float(), _as_dtype(inputs, torch.float32)
    return theirs, inputs


def _as_dtype(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
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
        rate = "" if ours is None else _rate_text(cell, ours)
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


def _rate_text(cell: Cell, timing: Timing) -> str:
    """Achieved arithmetic, and its share of the ceiling."""
    rate = cell.tflop / timing.median * 1e3
    return f"{rate:.2f}" + (f" ({rate / cell.ceiling:.0%})" if cell.ceiling else "")
