"""Filling a model that was built on the meta device: weights from files, new weights, buffers that are never saved.

A loaded model can be quantized with torchao: `quantization_config` of `Model.from_pretrained`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.devices import device_for
from vitruvian.errors import InputError
from vitruvian.weights import KeyMatch, WeightFiles, check_finite, check_floating


def fill_model(
    model: nn.Module,
    files: WeightFiles,
    match: KeyMatch,
    dtype: torch.dtype,
    devices: dict[str, torch.device],
    *,
    source: str,
    finite: bool = True,
    init_module: Callable[[nn.Module], None] | None = None,
) -> None:
    """Give a model its weights and buffers, and set it to evaluation mode.

    Args:
        model: A model on the meta device.
        files: The weights.
        match: Names in the files, and names of the weights.
        dtype: Data type of floating-point weights.
        devices: Device of each module by name; the empty name is the whole model.
        source: Where the files are from, for messages.
        finite: Raise `WeightsError` for weights that are not finite.
        init_module: Initializes all weights of one module, for weights that no file has.
    """
    for file_name, tensor in files.tensors():
        name = match.pairs.get(file_name)
        if name is None:
            continue
        if finite:
            check_finite(name, tensor, source)
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if getattr(module, leaf).is_floating_point():
            check_floating(name, tensor, source)
        target_dtype = dtype if tensor.is_floating_point() else tensor.dtype
        _set_tensor(module, leaf, tensor.to(device=device_for(name, devices), dtype=target_dtype))
    if init_module is not None:
        _init_missing(model, set(model.state_dict()) - set(match.pairs.values()), dtype, devices, init_module)
    compute_buffers(model, devices)
    model.eval()


def _init_missing(
    model: nn.Module,
    names: set[str],
    dtype: torch.dtype,
    devices: dict[str, torch.device],
    init_module: Callable[[nn.Module], None],
) -> None:
    """Initialize the weights `names` of a model by `init_module`."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        leaves = [leaf for leaf, value in module._parameters.items() if value is not None]
        leaves += [leaf for leaf in module._buffers if leaf not in module._non_persistent_buffers_set]
        if any(prefix + leaf in names for leaf in leaves):
            loaded: dict[str, Tensor] = {}
            for leaf in leaves:
                value: Tensor = getattr(module, leaf)
                if prefix + leaf not in names:
                    loaded[leaf] = value
                target_dtype = dtype if value.is_floating_point() else value.dtype
                device = device_for(prefix + leaf, devices)
                _set_tensor(module, leaf, torch.empty(value.shape, dtype=target_dtype, device=device))
            init_module(module)
            for leaf, value in loaded.items():
                _set_tensor(module, leaf, value)


def compute_buffers(model: nn.Module, devices: dict[str, torch.device]) -> None:
    """Compute the buffers that are never saved, by `reset_buffers` of the modules that have some."""
    for path, module in model.named_modules():
        if module._non_persistent_buffers_set:
            reset: Callable[[], None] = module.reset_buffers
            reset()
            for leaf in module._non_persistent_buffers_set:
                buffer, name = module._buffers[leaf], f"{path}.{leaf}" if path else leaf
                module._buffers[leaf] = None if buffer is None else buffer.to(device_for(name, devices))


def check_quantization(config: Any) -> None:
    """Raise `InputError` for a configuration other than `transformers.TorchAoConfig`, or an object like it."""
    method = str(getattr(config, "quant_method", "")).rpartition(".")[2].lower()  # an enum or text
    if method == "torchao" and hasattr(config, "quant_type"):
        return
    raise InputError(
        subject="quantization_config",
        expected="a TorchAoConfig",
        got=f"a configuration of {method}" if method else repr(config),
        hint="Other libraries replace layers while they are loaded, which is not supported. Pass a TorchAoConfig, such "
        "as TorchAoConfig(Int8WeightOnlyConfig()).",
    )


def quantize(model: nn.Module, config: Any) -> None:
    """Quantize the linear layers of a model in place.

    Args:
        model: A loaded model.
        config: An object with the attributes of `transformers.TorchAoConfig`: `quant_type`, a configuration of torchao,
            and `modules_to_not_convert`, names of modules whose layers stay as they are.
    """
    from torchao.quantization import quantize_  # installed where there is a TorchAoConfig

    excluded = [f".{name}." for name in getattr(config, "modules_to_not_convert", None) or ()]

    def is_quantized(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and not any(part in f".{name}." for part in excluded)

    quantize_(model, config.quant_type, filter_fn=is_quantized)


def _set_tensor(module: nn.Module, leaf: str, value: Tensor) -> None:
    """Replace a parameter or buffer of a module."""
    old = module._parameters.get(leaf)
    if old is not None:
        module._parameters[leaf] = nn.Parameter(value, requires_grad=old.requires_grad)
    else:
        module._buffers[leaf] = value
