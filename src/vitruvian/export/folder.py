"""The folder of an exported model.

model.onnx (and model.onnx.data where it is large), or model.xml and model.bin for OpenVINO
config.json      the model's configuration
export.json      what goes in and comes out: `Signature`
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitruvian.config import read_json
from vitruvian.errors import CheckpointError, MissingExtraError
from vitruvian.outputs import ModelOutput

SIGNATURE_FILE = "export.json"
ONNX_FILE = "model.onnx"
OPENVINO_FILE = "model.xml"


@dataclass(frozen=True)
class Signature:
    """What an exported model was, what it takes, and what it gives.

    Args:
        model: Class of the model, such as ``"Sapiens2ForPoseEstimation"``.
        output: Address of the class of its output, ``module:class``.
        inputs: Shape of each input in the example it was exported with.
        outputs: Names of its outputs: a field, followed by places in tuples and names in dicts, such as
            ``"feature_maps.0"``.
        single: Whether it takes one picture at a time.
        precision: ``"float32"`` or ``"int8"``.
    """

    model: str
    output: str
    inputs: dict[str, list[int]]
    outputs: list[str]
    single: bool = False
    precision: str = "float32"

    def write(self, folder: Path) -> Path:
        """Write it into a folder."""
        path = folder / SIGNATURE_FILE
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path

    @classmethod
    def read(cls, folder: Path) -> Signature:
        """Read it from a folder."""
        path = folder / SIGNATURE_FILE
        if not path.is_file():
            raise CheckpointError(
                f"{folder}: expected a folder that export_onnx or quantize_int8 wrote, found no {SIGNATURE_FILE}."
            )
        values = read_json(path)
        try:
            found = cls(**values)
            whole = all(isinstance(name, str) for name in (*found.inputs, *found.outputs, found.model, found.output))
        except TypeError:
            whole = False
        if not whole:
            raise CheckpointError(f"{path}: expected the fields of an export, got others. Export the model again.")
        return found

    def output_class(self) -> type[ModelOutput]:
        """Import the class of outputs."""
        module, _, name = self.output.partition(":")
        if module.split(".")[0] == "vitruvian":
            try:
                found = getattr(importlib.import_module(module), name, None)
            except ImportError:
                found = None
            if isinstance(found, type) and issubclass(found, ModelOutput):
                return found
        raise CheckpointError(f"{SIGNATURE_FILE}: expected an output class of vitruvian, got {self.output!r}.")


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Give the tensors inside an output with their names."""
    if isinstance(value, Tensor):
        yield name, value
        return
    pairs: Any = ()
    if isinstance(value, ModelOutput | dict):
        pairs = value.items()
    elif isinstance(value, tuple | list):
        pairs = enumerate(value)
    for key, part in pairs:
        yield from flatten(part, f"{name}.{key}" if name else str(key))


def unflatten(values: dict[str, Any]) -> dict[str, Any]:
    """Put named values back together: names that go on in numbers become tuples, others dicts."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if rest:
            fields.setdefault(first, {})[rest] = value
        else:
            fields[first] = value
    return {name: gather(value) if isinstance(value, dict) else value for name, value in fields.items()}


def gather(values: dict[str, Any]) -> Any:
    """Put the parts of one field together."""
    parts = unflatten(values)
    return tuple(parts.values()) if all(name.isdecimal() for name in parts) else parts


def need(package: str, purpose: str) -> Any:
    """Import a package of the extra, or say how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, "export", purpose) from error
