"""int8: an exported model with weights and activations of 8 bits, calibrated on images, for OpenVINO on CPUs.

NNCF observes the activations of the calibration images, moves outliers into the weights (SmoothQuant) and chooses
ranges for both. Three kinds of matrix products and convolutions stay in floating point, since they lose most and save
little time: those that read the images, cheap ones that write the results, and those that read a gated layer, whose few
large values leave little resolution for the others. On the built-in model keypoints then move a fifth as far, and a
call takes a tenth longer.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import CheckpointError, InputError, check_names, import_extra
from vitruvian.export.comparison import task_errors
from vitruvian.export.onnx_export import example_inputs
from vitruvian.export.runtime import ONNX_FILE, OPENVINO_FILE, ExportedModel, Signature
from vitruvian.filesystem.media_files import IMAGE_SUFFIXES
from vitruvian.hub import CONFIG_FILE
from vitruvian.images import load_image
from vitruvian.images.types import SizeHW
from vitruvian.model import Model
from vitruvian.ops.interpolate import bilinear
from vitruvian.processor import COMBINED_PROCESSOR_FILE, IMAGE_PROCESSOR_FILE

HELD_OUT = 4  # images that are not calibrated with, to measure the errors on
_T = TypeVar("_T")
# Operations of OpenVINO that are called "matmuls" below: matrix products and convolutions.
_MATMUL_TYPES = ("MatMul", "Convolution", "GroupConvolution", "ConvolutionBackpropData")


def _input_and_output_matmuls(graph: Any) -> list[str]:
    """Return the names of the matmuls that read an input, and of the cheap ones before an output."""
    names = _node_names(_nearest_matmuls(graph.get_parameters(), _consumers))
    ends = _nearest_matmuls(graph.get_results())
    while ends:
        cheap = [node for node in ends if _is_cheap(node) and node.get_friendly_name() not in names]
        names |= _node_names(cheap)
        ends = _nearest_matmuls([before for node in cheap for before in _sources(node)])
    return sorted(names)


def _gated_matmuls(graph: Any) -> list[str]:
    """Return the names of the matmuls that read one matmul times another, as in gated feed-forward layers."""
    names = []
    for node in graph.get_ordered_ops():
        if node.get_type_name() != "MatMul" or _sources(node)[0].get_type_name() != "Multiply":
            continue
        factors = [_nearest_matmuls([factor]) for factor in _sources(_sources(node)[0])]
        if all(len(matmuls) == 1 for matmuls in factors) and len(_node_names(factors[0] + factors[1])) == 2:
            names.append(node.get_friendly_name())
    return names


def _sources(node: Any) -> list[Any]:
    """Return the nodes that a node reads."""
    return [value.get_node() for value in node.input_values()]


def _consumers(node: Any) -> list[Any]:
    """Return the nodes that read a node."""
    return [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]


def _nearest_matmuls(nodes: list[Any], neighbors: Callable[[Any], list[Any]] = _sources) -> list[Any]:
    """Return the first matmuls on every path from some nodes, themselves included, except through shapes."""
    matmuls, visited, todo = [], set(), list(nodes)
    while todo:
        node = todo.pop()
        name, kind = node.get_friendly_name(), node.get_type_name()
        if name in visited or kind == "ShapeOf":
            continue
        visited.add(name)
        if kind in _MATMUL_TYPES:
            matmuls.append(node)
        else:
            todo += neighbors(node)
    return matmuls


def _node_names(nodes: Iterable[Any]) -> set[str]:
    return {node.get_friendly_name() for node in nodes}


def _is_cheap(node: Any) -> bool:
    """Return whether a matmul is a 1×1 convolution, or one of a single vector for each image."""
    if node.get_type_name() == "MatMul":
        rank = node.get_output_partial_shape(0).rank
        return bool(rank.is_static and rank.get_length() == 2)
    kernel = node.get_input_partial_shape(1)
    return bool(node.get_type_name() == "Convolution" and kernel.is_static and list(kernel.to_shape())[2:] == [1, 1])


def calibration_samples(
    model: Model, processor: Any, folder: str | Path, *, size_hw: SizeHW | None = None, max_samples: int = 16
) -> list[dict[str, Tensor]]:
    """Preprocess the images of a folder as inputs of an export; prompts are those of `example_inputs`.

    Args:
        model: The model.
        processor: Its processor.
        folder: Folder of images, searched recursively; if there are more, `max_samples` of them, evenly spaced.
        size_hw: Size of the export, where it differs from the model's.
        max_samples: Largest number of images.
    """
    paths = sorted(path for path in Path(folder).expanduser().rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise InputError(f"{folder}: no images found to calibrate with.")
    example = example_inputs(model, size_hw=size_hw)
    wanted_hw = example["pixel_values"].shape[-2:]
    samples = []
    for path in _evenly_spaced(paths, max_samples):
        pixels = processor(images=load_image(path), return_tensors="pt")["pixel_values"]
        samples.append(example | {"pixel_values": bilinear(pixels.float(), wanted_hw, antialias=True)})
    return samples


def _evenly_spaced(items: Sequence[_T], count: int) -> list[_T]:
    """Return up to `count` of some items."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def held_out(samples: Sequence[dict[str, Tensor]]) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """Return the samples to calibrate with, and a few others to measure the errors on; of few samples, all for both."""
    if len(samples) < 2 * HELD_OUT:
        return list(samples), list(samples)
    chosen = _evenly_spaced(range(len(samples)), HELD_OUT)
    return [sample for i, sample in enumerate(samples) if i not in chosen], [samples[i] for i in chosen]


def print_errors(
    model: Model, exported: ExportedModel, samples: Iterable[Mapping[str, Any]], *, show: Callable[[str], Any]
) -> dict[str, float]:
    """Print the errors of an exported model on some inputs, in terms of its task; return their means by name."""
    errors: dict[str, list[float]] = {}
    with torch.inference_mode():
        for names_and_values in samples:
            sample: dict[str, Any] = dict(names_and_values)
            for name, value in task_errors(exported(**sample), model(**sample, return_dict=True)).items():
                errors.setdefault(name, []).append(value)
    means = {name: statistics.mean(values) for name, values in errors.items()}
    for name, value in means.items():
        show(f"{name}: {value:.4g}")
    return means


def quantize_int8(
    source: str | Path,
    folder: str | Path,
    samples: Iterable[Mapping[str, Tensor]],
    *,
    max_samples: int = 16,
    keep: Iterable[str] = (),
) -> Path:
    """Quantize an exported model to int8 for `OpenVinoModel`; return the path of the file.

    Args:
        source: Folder that `export_onnx` wrote.
        folder: Folder to write into, created if needed.
        samples: Inputs by name, such as ``{"pixel_values": …}`` from a processor: images like those that the model
            will read. A dozen or two suffice; batches are split.
        max_samples: Use no more inputs than this.
        keep: Names of further operations in the graph that stay in floating point.
    """
    openvino = import_extra("openvino", "export", "int8")
    passes = import_extra("openvino.passes", "export", "int8")
    nncf = import_extra("nncf", "export", "int8")
    origin, out = Path(source).expanduser(), Path(folder).expanduser()
    signature = Signature.read(origin)
    if not (origin / ONNX_FILE).is_file():
        raise CheckpointError(f"{origin}: {ONNX_FILE} not found. Export the model with export_onnx first.")
    if out.resolve() == origin.resolve():
        raise InputError(
            f"quantize_int8: the output folder must not be {origin}, whose files are kept. Choose another one."
        )
    chosen = list(_single_inputs(samples, signature, max_samples))
    if not chosen:
        raise InputError("samples: expected at least one input to calibrate with. Pass some images.")
    nncf.set_log_level(logging.ERROR)
    graph = openvino.Core().read_model(origin / ONNX_FILE)
    manager = passes.Manager()
    manager.register_pass(passes.ConstantFolding())  # NNCF wants weights in the shape in which they are multiplied
    manager.run_passes(graph)
    known, excluded = _node_names(graph.get_ordered_ops()), set(keep)
    check_names("keep", excluded, known, expected="names of operations")
    names = sorted({*_input_and_output_matmuls(graph), *_gated_matmuls(graph), *excluded})
    with contextlib.redirect_stdout(sys.stderr):  # progress is no output
        quantized = nncf.quantize(
            graph,
            nncf.Dataset(chosen),
            subset_size=len(chosen),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            ignored_scope=nncf.IgnoredScope(names=names),
        )
    out.mkdir(parents=True, exist_ok=True)
    openvino.save_model(quantized, out / OPENVINO_FILE, compress_to_fp16=False)
    for name in (CONFIG_FILE, IMAGE_PROCESSOR_FILE, COMBINED_PROCESSOR_FILE):
        if (origin / name).is_file():
            shutil.copyfile(origin / name, out / name)
    replace(signature, precision="int8").write(out)
    return out / OPENVINO_FILE


def _single_inputs(
    samples: Iterable[Mapping[str, Tensor]], signature: Signature, max_samples: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs of an export one by one, images of another size resized."""
    count = 0
    for sample in samples:
        missing = [name for name in signature.inputs if name not in sample]
        if missing:
            names = ", ".join(signature.inputs)
            raise InputError(f"samples: expected {names} in each, got none of {', '.join(missing)}.")
        for index in range(len(sample[next(iter(signature.inputs))])):
            if count == max_samples:
                return
            count += 1
            inputs = {name: sample[name][index : index + 1] for name in signature.inputs}
            if "pixel_values" in inputs:
                size_hw = signature.inputs["pixel_values"][-2:]
                inputs["pixel_values"] = bilinear(inputs["pixel_values"].float(), size_hw, antialias=True)
            for name, value in inputs.items():
                if list(value.shape[1:]) != signature.inputs[name][1:]:
                    raise InputError(
                        f"samples: expected {name} like {signature.inputs[name]}, got {list(value.shape)}."
                    )
            yield {name: (v.float() if v.is_floating_point() else v).contiguous().numpy() for name, v in inputs.items()}
