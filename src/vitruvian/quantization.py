"""`quantization_config` of `Model.from_pretrained`: quantize the weights of a loaded model with torchao."""

from __future__ import annotations

from typing import Any

from torch import nn

from vitruvian.errors import InputError


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

    kept = [f".{name}." for name in getattr(config, "modules_to_not_convert", None) or ()]

    def is_quantized(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and not any(part in f".{name}." for part in kept)

    quantize_(model, config.quant_type, filter_fn=is_quantized)
