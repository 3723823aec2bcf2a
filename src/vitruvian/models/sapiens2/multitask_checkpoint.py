"""Multi-task checkpoints: several tasks over one encoder in a small folder, as the built-in model.

    folder/
      config.json               the encoder's configuration, and "packed": {"version": 1, "tasks": ["pose", …]}
      encoder.safetensors       the encoder
      pose.json                 the configuration of a task
      pose.safetensors          its head
      preprocessor_config.json

Matrices and convolution kernels are int8 with a float16 scale for each output channel, other weights float16: a quarter
of the size of float32. `from_pretrained` of every Sapiens2 class reads its part of such a folder, as floating-point
weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vitruvian.config import ConfigBase, read_config_dict
from vitruvian.errors import CheckpointError, InputError
from vitruvian.filesystem.atomic import atomic_write, write_text
from vitruvian.filesystem.json_files import read_json_object
from vitruvian.hub import CONFIG_FILE, HubOptions, is_builtin, local_path, require_file, weight_file
from vitruvian.model import Model
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.weights import SafetensorsFile, WeightFiles, damaged_file_error, unshared

_KEY = "packed"  # in config.json
_VERSION = 1
_ENCODER = "encoder"
_SCALE = ":scale"  # suffix of the names of scales
_INT8_MAX = 127
_CLIP_STEPS = 26  # clipping thresholds that are tried for each channel
_FLOAT16_MAX = float(torch.finfo(torch.float16).max)


def write_multitask(
    folder: Path, encoder: Model, task_models: Mapping[str, Model], processor: ConfigBase
) -> list[Path]:
    """Write an encoder, task models around it and their image processor into a folder, and return the files."""
    if folder.is_file():
        raise InputError(f"{folder}: expected a folder to save into, got a file. Choose another path.")
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / CONFIG_FILE
    config.unlink(missing_ok=True)  # written last: a folder with it is complete
    written = [_write_int8(folder / f"{_ENCODER}.safetensors", encoder)]
    for task, model in task_models.items():
        fields = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
        written.append(folder / f"{task}.json")
        write_text(written[-1], json.dumps(fields, indent=1, sort_keys=True) + "\n")
        written.append(_write_int8(folder / f"{task}.safetensors", model, without="model."))
    written += processor.save_pretrained(folder)
    fields = encoder.config.to_dict() | {"architectures": None, "dtype": "float32"}
    fields[_KEY] = {"version": _VERSION, "tasks": list(task_models)}
    write_text(config, json.dumps(fields, indent=1, sort_keys=True) + "\n")
    return [*written, config]


def _write_int8(path: Path, module: nn.Module, *, without: str | None = None) -> Path:
    """Write the weights of a module, except those whose names start with `without`."""
    axes = _kernel_axes(module)
    tensors: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        if without is not None and name.startswith(without):
            continue
        value = value.detach().cpu().float()
        if not bool((value.abs() <= _FLOAT16_MAX).all()):
            raise InputError(
                f"{name}: expected finite weights of at most 65504, got larger or non-finite ones. Train it again."
            )
        if name in axes:
            tensors[name], tensors[name + _SCALE] = _quantize(value, axis=axes[name])
        else:
            tensors[name] = value.half()
    with atomic_write(path) as temporary:
        save_file({name: unshared(value) for name, value in tensors.items()}, temporary, metadata={"format": "pt"})
    return path


def _kernel_axes(module: nn.Module) -> dict[str, int]:
    """Return the names of the matrices and kernels of a module, and the dimension of their output channels."""
    axes = {}
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            axes[f"{name}.weight"] = 1 if isinstance(part, nn.ConvTranspose2d) else 0
    return axes


@torch.no_grad()
def _quantize(weight: Tensor, *, axis: int) -> tuple[Tensor, Tensor]:
    """Quantize a kernel to int8, with a scale for each output channel.

    Of several clipping thresholds, the one with the least squared error is used.

    Args:
        weight: A kernel [..., C, ...].
        axis: The dimension of its output channels.

    Returns:
        int8 of the same shape, and the scales as float16, which broadcast to it.
    """
    rows = weight.float().movedim(axis, 0).flatten(1)  # [C, n]
    peak = rows.abs().amax(dim=1, keepdim=True)  # [C, 1]
    best = torch.full_like(peak, torch.inf)
    codes, steps = torch.zeros_like(rows), torch.zeros_like(peak)
    for fraction in torch.linspace(0.5, 1.0, _CLIP_STEPS).tolist():
        step = _nonzero_half(peak * (fraction / _INT8_MAX))
        code = (rows / step).round().clamp(-_INT8_MAX, _INT8_MAX)  # [C, n]
        # The best scale of these codes, by least squares.
        step = _nonzero_half((rows * code).sum(1, keepdim=True) / code.square().sum(1, keepdim=True).clamp_min(1.0))
        error = (rows - code * step).square().sum(1, keepdim=True)  # [C, 1]
        better = error < best
        best, steps = torch.where(better, error, best), torch.where(better, step, steps)
        codes = torch.where(better, code, codes)
    shape = [1] * weight.ndim
    shape[axis] = len(rows)
    kernel = codes.view_as(weight.movedim(axis, 0)).movedim(0, axis)
    return kernel.to(torch.int8).contiguous(), steps.view(shape).half()


def _nonzero_half(values: Tensor) -> Tensor:
    """Round positive values to float16, and at least to its smallest number."""
    return values.clamp_min(2.0**-24).half().float()


class _Int8File(SafetensorsFile):
    """A file of int8 and float16 weights, read as float32 and float16 tensors.

    Args:
        path: The file.
        prefix: Prepended to each name.
    """

    def __init__(self, path: Path, *, prefix: str = "") -> None:
        super().__init__(path)
        self.prefix = prefix
        self.shapes = {prefix + name: shape for name, shape in self.shapes.items() if not name.endswith(_SCALE)}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield dequantized tensors."""
        with safe_open(self.path, framework="pt") as file:
            held = set(file.keys())
            for full_name in self.shapes:
                name = full_name.removeprefix(self.prefix)
                value = file.get_tensor(name)
                if name + _SCALE in held:
                    scale = file.get_tensor(name + _SCALE)
                    try:
                        value = value.float().mul_(scale.float())
                    except RuntimeError as error:
                        shapes = f"{tuple(scale.shape)} for {tuple(value.shape)}"
                        raise damaged_file_error(self.path, f"{name} has scales of the shape {shapes}") from error
                yield full_name, value


def local_heads(source: str | Path) -> tuple[str, ...]:
    """Return the heads of a multi-task checkpoint on this machine, such as ``"builtin"``.

    Empty for checkpoints of one task, and for those that are not on this machine: it does not use the network.
    """
    return tuple(read_heads(source, HubOptions()) or ()) if local_path(source).is_dir() else ()


def read_heads(source: str | Path, options: HubOptions) -> list[str] | None:
    """Return the heads of a multi-task checkpoint, downloaded if needed; None for a checkpoint of one task."""
    if not is_builtin(source) and weight_file(source) is not None:
        return None
    table = (read_config_dict(source, options) or {}).get(_KEY)
    if table is None:
        return None
    heads = table.get("tasks") if isinstance(table, Mapping) else None
    if not isinstance(heads, list) or table.get("version") != _VERSION:
        raise CheckpointError(
            f"{source}: expected a multi-task checkpoint of version {_VERSION}, got {table!r}. Use a newer vitruvian, "
            "or save it again with save_multitask."
        )
    return [str(head) for head in heads]


def multitask_config(source: str | Path, heads: list[str], head: str | None, options: HubOptions) -> Sapiens2Config:
    """Return the configuration for a head of a multi-task checkpoint, or of its encoder if `head` is None."""
    name = CONFIG_FILE if head is None else f"{_known_head(source, heads, head)}.json"
    return Sapiens2Config.from_dict(read_json_object(require_file(source, name, options)))


def multitask_files(source: str | Path, heads: list[str], head: str | None, options: HubOptions) -> WeightFiles:
    """Open the weights for a head of a multi-task checkpoint, or of its encoder if `head` is None."""
    encoder = require_file(source, f"{_ENCODER}.safetensors", options)
    if head is None:
        return WeightFiles((_Int8File(encoder),))
    path = require_file(source, f"{_known_head(source, heads, head)}.safetensors", options)
    return WeightFiles((_Int8File(encoder, prefix="model."), _Int8File(path)))


def _known_head(source: str | Path, heads: list[str], head: str) -> str:
    """Return `head`, or raise `CheckpointError` if the checkpoint lacks it."""
    if head not in heads:
        raise CheckpointError(
            f"{source}: expected a model for {head}, got one for {', '.join(heads)}. Use another checkpoint."
        )
    return head


def read_multitask(
    source: str | Path, options: HubOptions, *, heads: list[str] | None
) -> tuple[Sapiens2Config, dict[str, Sapiens2Config], WeightFiles]:
    """Read a multi-task checkpoint: the encoder's configuration, those of the heads, and all weights.

    Weights have the names of `Sapiens2MultiTask.weights`.
    """
    available = read_heads(source, options)
    if available is None:
        raise CheckpointError(
            f'{source}: expected a model of several tasks, got a checkpoint of one. Use "builtin" or a folder that '
            "save_multitask wrote, or open it with the class of its task."
        )
    chosen = available if heads is None else [_known_head(source, available, head) for head in heads]
    configs = {head: multitask_config(source, available, head, options) for head in chosen}
    readers = [_Int8File(require_file(source, f"{_ENCODER}.safetensors", options), prefix=f"{_ENCODER}.")]
    readers += [
        _Int8File(require_file(source, f"{head}.safetensors", options), prefix=f"tasks.{head}.") for head in chosen
    ]
    return multitask_config(source, available, None, options), configs, WeightFiles(tuple(readers))
