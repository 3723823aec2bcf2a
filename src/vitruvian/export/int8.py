"""int8: an exported model with weights and activations of 8 bits, calibrated on pictures, for OpenVINO on CPUs.

NNCF looks at the values that pass through the model for the pictures given, smooths activations into the weights
before them, and chooses ranges for both. The few products that lose most by it stay in floating point.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import CheckpointError, InputError, near_matches
from vitruvian.export.folder import ONNX_FILE, OPENVINO_FILE, Signature, need
from vitruvian.export.sensitive import gated_products, names_of, outer_products
from vitruvian.hub import CONFIG_FILE
from vitruvian.processor import JOINT_FILE, PROCESSOR_FILE

MOST_PICTURES = 16


def quantize_int8(
    source: str | Path,
    folder: str | Path,
    samples: Iterable[Mapping[str, Tensor]],
    *,
    most: int = MOST_PICTURES,
    keep: Iterable[str] = (),
) -> Path:
    """Turn an exported model into an int8 one for `OpenVinoModel`; return the path of the file.

    Args:
        source: Folder that `export_onnx` wrote.
        folder: Folder to write into, made if needed.
        samples: Inputs by name, such as ``{"pixel_values": …}`` from a processor: pictures like those the model will
            see. A dozen or two do; with batches, each is taken apart.
        most: Use no more inputs than this.
        keep: Names of further operations in the graph to keep in floating point.
    """
    openvino = need("openvino", "int8")
    passes = need("openvino.passes", "int8")
    nncf = need("nncf", "int8")
    origin, place = Path(source).expanduser(), Path(folder).expanduser()
    signature = Signature.read(origin)
    if not (origin / ONNX_FILE).is_file():
        raise CheckpointError(f"{origin}: expected {ONNX_FILE}, found none. Export the model with export_onnx first.")
    if place.resolve() == origin.resolve():
        raise InputError(f"quantize_int8: expected another folder than {origin}, which stays as it is. Choose one.")
    chosen = list(singles(samples, signature, most))
    if not chosen:
        raise InputError("samples: expected at least one input to calibrate with, got none. Give it some pictures.")
    nncf.set_log_level(logging.ERROR)
    graph = openvino.Core().read_model(origin / ONNX_FILE)
    manager = passes.Manager()
    manager.register_pass(passes.ConstantFolding())  # NNCF wants weights in the shape in which they are multiplied
    manager.run_passes(graph)
    names = sorted({*outer_products(graph), *gated_products(graph), *checked_names(keep, graph)})
    with contextlib.redirect_stdout(sys.stderr):  # progress is no output
        quantized = nncf.quantize(
            graph,
            nncf.Dataset(chosen),
            subset_size=len(chosen),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            ignored_scope=nncf.IgnoredScope(names=names),
        )
    place.mkdir(parents=True, exist_ok=True)
    openvino.save_model(quantized, place / OPENVINO_FILE, compress_to_fp16=False)
    for name in (CONFIG_FILE, PROCESSOR_FILE, JOINT_FILE):
        if (origin / name).is_file():
            shutil.copyfile(origin / name, place / name)
    replace(signature, precision="int8").write(place)
    return place / OPENVINO_FILE


def checked_names(names: Iterable[str], graph: Any) -> list[str]:
    """Return the names of operations, all of which must be in the graph."""
    known, wanted = names_of(graph.get_ordered_ops()), list(names)
    for name in wanted:
        if name not in known:
            raise InputError(f"keep: expected names of operations, got {name!r}.{near_matches(name, known)}")
    return wanted


def singles(
    samples: Iterable[Mapping[str, Tensor]], signature: Signature, most: int
) -> Iterator[dict[str, np.ndarray]]:
    """Give the inputs of an export one by one, pictures of another size resized."""
    count = 0
    for sample in samples:
        missing = [name for name in signature.inputs if name not in sample]
        if missing:
            names = ", ".join(signature.inputs)
            raise InputError(f"samples: expected {names} in each, got none of {', '.join(missing)}.")
        for index in range(len(sample[next(iter(signature.inputs))])):
            if count == most:
                return
            count += 1
            one = {name: sample[name][index : index + 1] for name in signature.inputs}
            yield {name: fitted(name, value, signature.inputs[name]) for name, value in one.items()}


def fitted(name: str, value: Tensor, shape: list[int]) -> Any:
    """Return a tensor [1, …] as an array of the shape that was exported."""
    if name == "pixel_values" and list(value.shape[-2:]) != shape[-2:]:
        value = F.interpolate(value.float(), size=tuple(shape[-2:]), mode="bilinear", antialias=True)
    if list(value.shape[1:]) != shape[1:]:
        raise InputError(f"samples: expected {name} like {shape}, got {list(value.shape)}.")
    return value.to(torch.float32 if value.is_floating_point() else value.dtype).contiguous().numpy()
