"""Exported models: the files of a folder, the runtimes that run them, and pipelines.

    model.onnx (and model.onnx.data where it is large), or model.xml and model.bin for OpenVINO
    config.json      the model's configuration
    export.json      its inputs and outputs: `Signature`

They are called like the torch models they were exported from, and return the same output classes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import AutoConfig, AutoProcessor, find_class
from vitruvian.config import Config
from vitruvian.errors import CheckpointError, InputError, import_extra
from vitruvian.filesystem.json_files import read_json_object
from vitruvian.models.sapiens2.modeling import flip_back
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines import pipeline_class
from vitruvian.tasks import find_task

SIGNATURE_FILE = "export.json"
ONNX_FILE = "model.onnx"
OPENVINO_FILE = "model.xml"


@dataclass(frozen=True)
class Signature:
    """The class of an exported model, its inputs and its outputs.

    Args:
        model: Class of the model, such as ``"Sapiens2ForPoseEstimation"``.
        output: Address of the class of its output, ``module:class``.
        inputs: Shape of each input in the example it was exported with.
        outputs: Names of its outputs: a field, followed by indices in tuples and names in dicts, such as
            ``"feature_maps.0"``.
        single: Whether it takes one image at a time.
        precision: ``"float32"`` or ``"int8"``.
    """

    model: str
    output: str
    inputs: dict[str, list[int]]
    outputs: list[str]
    single: bool = False
    precision: str = "float32"

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        (folder / SIGNATURE_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Signature:
        """Read it from a folder."""
        path = folder / SIGNATURE_FILE
        if not path.is_file():
            raise CheckpointError(
                f"{folder}: expected a folder that export_onnx or quantize_int8 wrote, got no {SIGNATURE_FILE}."
            )
        with contextlib.suppress(TypeError):
            signature = cls(**read_json_object(path))
            if all(
                isinstance(name, str)
                for name in (*signature.inputs, *signature.outputs, signature.model, signature.output)
            ):
                return signature
        raise CheckpointError(f"{path}: is not the description of an exported model. Export the model again.")

    def output_class(self) -> type[ModelOutput]:
        """Import the class of outputs."""
        module, _, name = self.output.partition(":")
        if module.split(".")[0] == "vitruvian":
            with contextlib.suppress(ImportError):
                output_class = getattr(importlib.import_module(module), name, None)
                if isinstance(output_class, type) and issubclass(output_class, ModelOutput):
                    return output_class
        raise CheckpointError(f"{SIGNATURE_FILE}: expected an output class of vitruvian, got {self.output!r}.")


def flatten_outputs(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors inside an output with their names."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, ModelOutput | dict | tuple | list):
        pairs = enumerate(value) if isinstance(value, tuple | list) else value.items()
        for key, part in pairs:
            yield from flatten_outputs(part, f"{name}.{key}" if name else str(key))


def _unflatten_outputs(values: dict[str, Any]) -> dict[str, Any]:
    """Undo `flatten_outputs`: names that continue with numbers become tuples, others dicts."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if rest:
            fields.setdefault(first, {})[rest] = value
        else:
            fields[first] = value
    for name, value in fields.items():
        if isinstance(value, dict):
            parts = _unflatten_outputs(value)
            fields[name] = tuple(parts.values()) if all(key.isdecimal() for key in parts) else parts
    return fields


class ExportedModel:
    """Base of exported models: called like the model they were exported from.

    Processors and pipelines accept it instead of the model. It runs on the CPU, for inference only.
    """

    optimized = True  # `Model.optimize` has no effect
    graphs = None

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.signature = Signature.read(self.folder)
        self.config: Config = AutoConfig.from_pretrained(self.folder)
        self.config.name_or_path = str(folder)
        self.output_class = self.signature.output_class()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """Open a folder that `export_onnx` or `quantize_int8` wrote; keywords are those of the class."""
        return cls(folder, **options)

    @property
    def model_class(self) -> type[Any]:
        """The class of the model that was exported."""
        model_class: type[Any] | None = find_class(self.signature.model)
        if model_class is None:
            raise CheckpointError(f"export.json: expected a model class of vitruvian, got {self.signature.model!r}.")
        return model_class

    @property
    def device(self) -> torch.device:
        """Device of the results: the CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Data type of inputs and results."""
        return torch.float32

    def eval(self) -> Self:
        """Return itself: it cannot be trained."""
        return self

    def __call__(
        self, *args: Any, flip_pairs: Tensor | None = None, return_dict: bool | None = None, **kwargs: Any
    ) -> Any:
        """Run the model.

        Args:
            args: Inputs in the order of the export.
            flip_pairs: As for `Sapiens2ForPoseEstimation`: images are mirrored, heatmaps are mirrored back.
            return_dict: Return the output class rather than a tuple.
            kwargs: Inputs by name. What was not exported may be None or False, and a `pixel_mask` without padding.
        """
        feeds = self._feeds(args, kwargs)
        with torch.inference_mode():
            outputs = dict(zip(self.signature.outputs, map(torch.from_numpy, self._run_batch(feeds)), strict=True))
            if flip_pairs is not None:
                if "heatmaps" not in outputs:
                    raise InputError("flip_pairs: expected a pose model; this model has no heatmaps.")
                outputs["heatmaps"] = flip_back(outputs["heatmaps"], flip_pairs)
        output: ModelOutput = self.output_class(**_unflatten_outputs(outputs))
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def _feeds(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the input arrays; raise `InputError` where inputs are missing or unknown."""
        known = self.signature.inputs
        if len(args) > len(known):
            raise InputError(f"{self.signature.model}: was exported with {', '.join(known)}, got {len(args)} inputs.")
        tensors = dict(zip(known, args, strict=False))
        for name, value in kwargs.items():
            if name in known and tensors.get(name) is None:
                tensors[name] = value
            elif value is None or value is False:
                continue
            elif not (name == "pixel_mask" and isinstance(value, Tensor) and bool(value.bool().all())):
                raise InputError(
                    f"{name}: this model was exported with {', '.join(known)} alone. Export it with {name} too."
                )
        feeds = {}
        for name, shape in known.items():
            value = tensors.get(name)
            if not isinstance(value, Tensor):
                raise InputError(f"{name}: expected a tensor like {shape}, got {type(value).__name__}.")
            if list(value.shape[1:]) != shape[1:]:
                raise InputError(
                    f"{name}: expected the shape {['batch', *shape[1:]]} of the export, got {list(value.shape)}."
                )
            dtype = torch.bool if value.dtype == torch.bool else torch.int64
            dtype = torch.float32 if value.is_floating_point() else dtype
            feeds[name] = value.detach().to("cpu", dtype).contiguous().numpy()
        return feeds

    def _run_batch(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run a batch, image by image where the export is for one."""
        batch = len(next(iter(feeds.values())))
        if not self.signature.single or batch == 1:
            return self._run(feeds)
        runs = [self._run({name: value[i : i + 1] for name, value in feeds.items()}) for i in range(batch)]
        return [np.concatenate(parts) for parts in zip(*runs, strict=True)]

    def _run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run the model; outputs are in the order of the signature."""
        raise NotImplementedError


class OnnxModel(ExportedModel):
    """An exported model in ONNX Runtime.

    Args:
        folder: What `export_onnx` wrote.
        threads: Number of threads; by default one for each core.
        providers: Where to run, by the names of ONNX Runtime; the CPU by default.
    """

    def __init__(self, folder: str | Path, *, threads: int | None = None, providers: list[str] | None = None) -> None:
        super().__init__(folder)
        runtime = import_extra("onnxruntime", "export", "OnnxModel")
        path = self.folder / ONNX_FILE
        if not path.is_file():
            raise CheckpointError(f"{folder}: {ONNX_FILE} not found. Open int8 models with OpenVinoModel.")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3
        try:
            self.session = runtime.InferenceSession(path, options, providers=providers or ["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common base
            raise CheckpointError(f"{path}: ONNX Runtime cannot open it: {error}") from error

    def _run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run the session."""
        outputs: list[np.ndarray] = self.session.run(self.signature.outputs, feeds)
        return outputs


class OpenVinoModel(ExportedModel):
    """An exported model in OpenVINO: the fastest runtime on CPUs, and the one for int8.

    Args:
        folder: What `export_onnx` or `quantize_int8` wrote.
        threads: Number of threads; by default one for each core.
        precision: What to compute with where weights are not int8, ``"f32"`` or ``"bf16"``. By default float32; for
            int8 models bfloat16, which rounds less than they do, on processors that have instructions for it.
    """

    _cache_size = 4  # compiled models, one for each batch size

    def __init__(self, folder: str | Path, *, threads: int | None = None, precision: str | None = None) -> None:
        super().__init__(folder)
        if precision not in (None, "f32", "bf16"):
            raise InputError(f'precision: expected "f32" or "bf16", got {precision!r}.')
        openvino = import_extra("openvino", "export", "OpenVinoModel")
        path = self.folder / (OPENVINO_FILE if (self.folder / OPENVINO_FILE).is_file() else ONNX_FILE)
        if not path.is_file():
            raise CheckpointError(f"{folder}: neither {OPENVINO_FILE} nor {ONNX_FILE} found.")
        self.core = openvino.Core()
        if precision is None:
            has_bf16 = "BF16" in self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            precision = "bf16" if has_bf16 and self.signature.precision == "int8" else "f32"
        self.options: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
        if threads is not None:
            self.options["INFERENCE_NUM_THREADS"] = threads
        try:
            self.graph = self.core.read_model(path)
        except RuntimeError as error:
            raise CheckpointError(f"{path}: OpenVINO cannot open it: {error}") from error
        self.compiled: OrderedDict[int, Any] = OrderedDict()

    def _run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run the model compiled for this batch size: kernels for fixed shapes are faster."""
        batch = len(next(iter(feeds.values())))
        if batch not in self.compiled:
            graph = self.graph.clone()
            graph.reshape({name: list(value.shape) for name, value in feeds.items()})
            self.compiled[batch] = self.core.compile_model(graph, "CPU", self.options)
            if len(self.compiled) > self._cache_size:
                self.compiled.popitem(last=False)
        self.compiled.move_to_end(batch)
        outputs = self.compiled[batch](feeds)
        return [np.array(outputs[name]) for name in self.signature.outputs]


_PROMPTED = ("segment", "masks")  # they call an encoder once and a decoder several times; an export is one call


def exported_pipeline(
    task: str, model: str | Path | ExportedModel, *, processor: Any = None, threads: int | None = None, **options: Any
) -> Any:
    """Open an exported model for a task; what `vitruvian.pipeline` is for models.

    Args:
        task: ``"pose"``, ``"parts"`` or another task of `vitruvian.pipeline`, but for those of SAM 2.
        model: A folder that `export_onnx`, `quantize_int8` or ``vitruvian export`` wrote, or an exported model. Folders
            run in OpenVINO where it is installed, else in ONNX Runtime.
        processor: The model's processor, where the folder has none: ``processor.save_pretrained(folder)`` writes it.
        threads: Number of threads; by default one for each core.
        options: Options of the task, as the pipeline's call takes them.
    """
    pipeline = pipeline_class(task)
    if find_task(task).name in _PROMPTED:
        raise InputError(
            f"task: expected a task that calls the model once for each image, got {task!r}. Use vitruvian.pipeline."
        )
    pipeline.check_options(options)
    opened = model
    if not isinstance(opened, ExportedModel):
        openvino = (Path(opened).expanduser() / OPENVINO_FILE).is_file() or importlib.util.find_spec("openvino")
        opened = (OpenVinoModel if openvino else OnnxModel)(opened, threads=threads)
    if not issubclass(opened.model_class, pipeline.accepts()):
        able = ", ".join(model_class.__name__ for model_class in pipeline.accepts())
        raise InputError(f"model: expected an export of {able} for {task}, got one of {opened.signature.model}.")
    if processor is None:
        processor = AutoProcessor.from_pretrained(opened.config.name_or_path)
    return pipeline(opened, processor, **options)
