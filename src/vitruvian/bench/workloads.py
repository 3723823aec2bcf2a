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
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vitruvian
from vitruvian.bench.timing import Timing, count_flops, peak_bytes, relative_difference, time_interleaved
from vitruvian.errors import InputError, check_choice
from vitruvian.hub import BUILTIN
from vitruvian.images.types import SizeHW
from vitruvian.model import Model
from vitruvian.models.mask_classification.configuration import ALL_STAGES
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES
from vitruvian.ops.dispatch import disable_triton

# Output field of each head.
_SAPIENS_HEADS = ("pose", "seg", "normal", "pointmap")
_SAPIENS_SIZES = ("0.1b", "0.4b", "0.8b", "1b", "5b")
_SAM_SIZES = ("tiny", "small", "base-plus", "large")
# Channels, layers and heads of the stages of Swin, and the side of its windows.
_SWINS: dict[str, tuple[int, list[int], list[int], int]] = {
    "tiny": (96, [2, 2, 6, 2], [3, 6, 12, 24], 7),
    "small": (96, [2, 2, 18, 2], [3, 6, 12, 24], 7),
    "base": (128, [2, 2, 18, 2], [4, 8, 16, 32], 12),
    "large": (192, [2, 2, 18, 2], [6, 12, 24, 48], 12),
}


@dataclass(frozen=True)
class Workload:
    """Batch, size and data type of a measurement.

    Attributes:
        batch: Images a call.
        size_hw: Height and width of the images.
        prompts: Prompts an image, for decoders of prompts.
        dtype: Data type of weights and inputs.
        device: Where to run.
    """

    batch: int
    size_hw: SizeHW
    prompts: int
    dtype: torch.dtype
    device: torch.device

    def pixels(self) -> Tensor:
        """Return random images [B, 3, H, W]."""
        return torch.randn(self.batch, 3, *self.size_hw, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class BenchmarkModel:
    """A model, how both libraries compute its results, and the size of images it was made for."""

    name: str
    build: Callable[[Workload], Model]
    call: Callable[[Any, dict[str, Any]], Any]  # of a model (ours or the reference's) and inputs
    size_hw: SizeHW
    inputs: Callable[[Workload], dict[str, Any]] = lambda workload: {"pixel_values": workload.pixels()}
    prompts: int = 0


def benchmark_names() -> list[str]:
    """Return all names that `benchmark_model` accepts."""
    models = [f"sapiens2-{task}-{size}" for task in _SAPIENS_HEADS for size in _SAPIENS_SIZES]
    models += ["builtin", *(f"builtin-{task}" for task in _SAPIENS_HEADS)]
    models += [f"sam2-{size}-{part}" for size in _SAM_SIZES for part in ("encoder", "decoder")]
    return models + [f"{family}-swin-{size}" for family in ("maskformer", "mask2former") for size in _SWINS]


def benchmark_model(name: str) -> BenchmarkModel:
    """Return the model of a name."""
    check_choice("--model", name, benchmark_names(), expected="the name of a model")
    if name == BUILTIN:
        return benchmark_model(f"{BUILTIN}-pose")
    family, rest = name.split("-", 1)
    if family == BUILTIN:
        size_hw = vitruvian.Sapiens2Config.from_pretrained(BUILTIN).image_hw
        build, output = partial(_build_builtin, rest), HEAD_CLASSES[rest].output_name
        return BenchmarkModel(name, build, lambda model, inputs: model(**inputs)[output], size_hw)
    middle, last = rest.rsplit("-", 1)
    if family == "sapiens2":
        build, output = partial(_build_sapiens2, middle, last), HEAD_CLASSES[middle].output_name
        return BenchmarkModel(name, build, lambda model, inputs: model(**inputs)[output], (1024, 768))
    if family == "sam2":
        build = partial(_build_sam2, middle)
        if last == "encoder":
            return BenchmarkModel(
                name, build, lambda model, inputs: tuple(model.get_image_embeddings(**inputs)), (1024, 1024)
            )
        call = partial(_call, ("pred_masks", "iou_scores"))
        return BenchmarkModel(name, build, call, (1024, 1024), inputs=_decoder_inputs, prompts=64)
    call = partial(_call, ("class_queries_logits", "masks_queries_logits"))
    return BenchmarkModel(name, partial(_build_segmenter, family, last), call, (800, 1088))


def _build_sapiens2(task: str, size: str, workload: Workload) -> Model:
    config = vitruvian.Sapiens2Config.variant(size, task=task, image_size=list(workload.size_hw))
    return random_model(HEAD_CLASSES[task], config, workload)


def _build_builtin(task: str, workload: Workload) -> Model:
    """Open the packaged model for one task, with its own weights."""
    return HEAD_CLASSES[task].from_pretrained(BUILTIN, dtype=workload.dtype, device=workload.device).eval()


def _build_sam2(size: str, workload: Workload) -> Model:
    config = vitruvian.Sam2Config.variant(size, image_size=workload.size_hw)
    return random_model(vitruvian.Sam2Model, config, workload)


def _build_segmenter(family: str, size: str, workload: Workload) -> Model:
    """Build MaskFormer or Mask2Former on Swin."""
    channels, depths, heads, window = _SWINS[size]
    swin = vitruvian.SwinConfig(
        embed_dim=channels, depths=depths, num_heads=heads, window_size=window, out_features=ALL_STAGES
    )
    if family == "maskformer":
        maskformer = vitruvian.MaskFormerConfig(backbone_config=swin)
        return random_model(vitruvian.MaskFormerForInstanceSegmentation, maskformer, workload)
    mask2former = vitruvian.Mask2FormerConfig(backbone_config=swin)
    return random_model(vitruvian.Mask2FormerForUniversalSegmentation, mask2former, workload)


def _decoder_inputs(workload: Workload) -> dict[str, Any]:
    """Return image embeddings and prompts of one point each, for the prompt encoder and mask decoder of SAM 2."""
    (height, width), batch, device = workload.size_hw, workload.batch, workload.device
    h, w = height // 16, width // 16
    shapes = ((32, 4 * h, 4 * w), (64, 2 * h, 2 * w), (256, h, w))
    points = torch.rand(batch, workload.prompts, 1, 2, device=device) * torch.tensor((width, height), device=device)
    return {
        "input_points": points,
        "input_labels": torch.ones(batch, workload.prompts, 1, dtype=torch.long, device=device),
        "image_embeddings": [torch.randn(batch, *shape, device=device, dtype=workload.dtype) for shape in shapes],
    }


def _call(outputs: tuple[str, ...], model: Any, inputs: dict[str, Any]) -> tuple[Tensor, ...]:
    """Run a model and return some of its outputs."""
    output = model(**inputs)
    return tuple(output[name] for name in outputs)


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
    """Return whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def reference_of(model: Model, workload: Workload) -> Any:
    """Return the reference's model with the same weights, opened from our files."""
    library = importlib.import_module("transformers")
    logging = importlib.import_module("transformers.utils.logging")
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(reference_config(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        theirs = getattr(library, type(model).__name__).from_pretrained(folder, dtype=workload.dtype)
    return theirs.eval().to(workload.device)


def reference_config(config: Any) -> Any:
    """Remove the keys of a configuration that some releases of the reference reject."""
    if not isinstance(config, dict):
        return config
    return {
        key: reference_config(value) for key, value in config.items() if key not in ("stage_names", "vitruvian_version")
    }


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Measurement:
    """What was measured of a model; times in milliseconds, memory in bytes beside the weights.

    Attributes:
        times: Timing of each variant: ``optimized``, ``plain`` (without `optimize()`), ``reference`` and others.
        difference: Largest relative difference and relative distance of the optimized results to the reference's.
        to_float32: The same of both to the reference in float32.
        tflop: Arithmetic of a call.
        ceiling: TFLOP/s of a large matrix product.
        memory: Peak of each variant.
        note: What else is worth knowing.
        compiled_difference: As `difference`, of the compiled reference's results.
    """

    model: str
    batch: int
    size_hw: SizeHW
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
        ours, theirs = self.times.get("optimized"), self.times.get("reference")
        return None if ours is None or theirs is None else ours.median / theirs.median

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return asdict(self) | {"ratio": self.ratio}


@torch.no_grad()
def measure(
    model: BenchmarkModel,
    workload: Workload,
    *,
    variants: Collection[str] = ("reference",),
    seconds: float = 1.0,
    cold: bool = False,
    cuda_graphs: bool = True,
    ceiling: float = 0.0,
    progress: Callable[[str], object] = lambda step: None,
) -> Measurement:
    """Measure a model.

    Args:
        model: What to measure.
        workload: Batch, size and data type.
        variants: What to measure beside our optimized model: ``plain`` (without `optimize()`), ``reference``
            (transformers), and of the reference ``compiled`` (which takes a minute) and ``float32`` (results only).
        seconds: About how long each variant is timed.
        cold: Flush the cache before each sample.
        cuda_graphs: Capture calls with small batches.
        ceiling: TFLOP/s of a large matrix product, for the table.
        progress: Called with the name of each step before it begins.
    """
    if "reference" in variants and not has_reference():
        raise InputError("--reference: needs transformers, which is not installed. Leave it out, or install it.")
    gc.collect()
    if workload.device.type == "cuda":
        torch.cuda.empty_cache()  # of the model before
    progress("building the model")
    ours = model.build(workload)
    theirs = reference_of(ours, workload) if "reference" in variants else None
    torch.manual_seed(1)
    inputs = their_inputs = model.inputs(workload)
    dtype = str(workload.dtype).removeprefix("torch.")
    measurement = Measurement(model.name, workload.batch, workload.size_hw, workload.prompts, dtype, ceiling=ceiling)
    with disable_triton():  # only operators of torch are counted
        measurement.tflop = count_flops(lambda: model.call(ours, inputs)) / 1e12
    calls = {"optimized": lambda: model.call(ours, inputs)}
    if "plain" in variants:
        unoptimized = copy.deepcopy(ours)
        calls["plain"] = lambda: model.call(unoptimized, inputs)
    if theirs is not None:
        theirs, their_inputs = _reference_that_runs(model, theirs, inputs, measurement)
        calls["reference"] = lambda: model.call(theirs, their_inputs)
        if "compiled" in variants:
            faster = torch.compile(theirs)
            calls["compiled"] = lambda: model.call(faster, their_inputs)
            measurement.compiled_difference = relative_difference(calls["compiled"](), calls["reference"]())
    progress("measuring memory")
    ours.optimize(cuda_graphs=cuda_graphs)
    # Ours comes last: its first call captures CUDA graphs, which hold memory.
    order = [name for name in ("reference", "compiled", "optimized") if name in calls]
    peaks: dict[str, int | None] = {name: peak_bytes(calls[name], workload.device) for name in order}
    measurement.memory = {name: used for name in calls if (used := peaks.get(name)) is not None}
    if theirs is not None:
        progress("comparing results")
        got, want = calls["optimized"](), calls["reference"]()
        measurement.difference = relative_difference(got, want)
        if "float32" in variants:
            wide = model.call(copy.deepcopy(theirs).float(), _as_dtype(inputs, torch.float32))
            measurement.to_float32 = {
                "optimized": relative_difference(got, wide),
                "reference": relative_difference(want, wide),
            }
        del got, want
    progress("timing")
    measurement.times = time_interleaved(calls, device=workload.device, seconds=seconds, cold=cold)
    return measurement


def _reference_that_runs(
    model: BenchmarkModel, theirs: Any, inputs: dict[str, Any], measurement: Measurement
) -> tuple[Any, dict[str, Any]]:
    """Return the reference in a data type in which it runs, with inputs of it: some of its models need float32."""
    try:
        model.call(theirs, inputs)
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        measurement.note = "the reference fails in this data type and runs in float32"
        return theirs.float(), _as_dtype(inputs, torch.float32)
    return theirs, inputs


def _as_dtype(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Convert the floating-point tensors of inputs."""

    def convert(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    converted: dict[str, Any] = torch.utils._pytree.tree_map(convert, inputs)
    return converted


def markdown_table(measurements: list[Measurement]) -> str:
    """Return measurements as a table in Markdown."""
    also = any("compiled" in measured.times for measured in measurements)  # the reference, compiled
    titles = ["model", "batch", "size", "dtype", "ours ms", "reference ms", "ratio", "difference", "memory", "TFLOP/s"]
    titles[7:7] = ["compiled ms", "ratio"] if also else []
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for measured in measurements:
        ours, compiled = measured.times.get("optimized"), measured.times.get("compiled")
        rate = 0.0 if ours is None else measured.tflop / ours.median * 1e3
        share = f" ({rate / measured.ceiling:.0%})" if measured.ceiling else ""
        parts = [
            measured.model,
            str(measured.batch),
            "×".join(map(str, measured.size_hw)) + (f", {measured.prompts} prompts" if measured.prompts else ""),
            measured.dtype,
            str(ours or "failed"),
            str(measured.times.get("reference", "")),
            "" if measured.ratio is None else f"{measured.ratio:.2f} ×",
            "" if measured.difference is None else f"{measured.difference[0]:.1e}",
            " / ".join(f"{used / 2**30:.2f}" for used in measured.memory.values()) + " GiB" * bool(measured.memory),
            "" if ours is None else f"{rate:.2f}{share}",
        ]
        if also:
            parts[7:7] = [str(compiled or ""), f"{ours.median / compiled.median:.2f} ×" if ours and compiled else ""]
        lines.append("| " + " | ".join(parts) + " |")
        if measured.note:
            lines.append(f"| | | | | {measured.note} |" + " |" * (len(titles) - 5))
    return "\n".join(lines)
