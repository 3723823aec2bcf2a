"""Adapters of peft, such as LoRA, inside a model: the methods that models of transformers have for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from vitruvian.errors import InputError, import_extra

_WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of the names of weights in files of peft


class AdapterMixin(nn.Module):
    """Base of `Model`: adds, saves and loads adapters.

    Adapters may be on linear layers. `peft.get_peft_model` works too. Where a layer has an adapter, it is not joined
    with others by `Model.optimize`.
    """

    peft_config: dict[str, Any]  # name -> configuration; peft sets it

    def add_adapter(self, adapter_config: Any, adapter_name: str | None = None) -> None:
        """Add and activate a new adapter; all other weights are frozen.

        Args:
            adapter_config: A configuration of peft, such as `peft.LoraConfig`.
            adapter_name: Its name; "default" by default.
        """
        name = adapter_name or "default"
        if name in self._adapter_configs():
            raise InputError(f"adapter_name: expected a new name, got {name!r}, which exists. Choose another.")
        functional = _peft_module("peft.functional")
        functional.inject_adapter_in_model(adapter_config, self, name)
        self.set_adapter(name)

    def load_adapter(self, source: str | Path, adapter_name: str | None = None, *, is_trainable: bool = False) -> None:
        """Add an adapter from a folder or a Hub repository that peft or `save_pretrained` wrote."""
        peft, name = _peft_module("peft"), adapter_name or "default"
        config = peft.PeftConfig.from_pretrained(str(source))
        config.inference_mode = not is_trainable
        self.add_adapter(config, name)
        weights = peft.load_peft_weights(str(source), device="cpu")
        weights = {key.removeprefix(_PREFIX): value for key, value in weights.items()}
        result = _peft_module("peft.functional").set_peft_model_state_dict(self, weights, adapter_name=name)
        if result.unexpected_keys:
            raise InputError(
                f"source: expected an adapter for {type(self).__name__}, got one with other layers, such as "
                f"{result.unexpected_keys[0]}. Load it into the model that it was trained on."
            )

    def set_adapter(self, adapter_name: list[str] | str) -> None:
        """Activate an adapter, or several, by name."""
        names = [adapter_name] if isinstance(adapter_name, str) else adapter_name
        if unknown := set(names) - set(self._adapter_configs()):
            raise InputError(
                f"adapter_name: expected one of {', '.join(self._adapter_configs()) or 'none'}, "
                f"got {', '.join(sorted(unknown))}. Add it with add_adapter."
            )
        self._change_layers(lambda layer: layer.set_adapter(adapter_name))

    def enable_adapters(self) -> None:
        """Use the active adapters in `forward` again."""
        self._change_layers(lambda layer: layer.enable_adapters(enabled=True))

    def disable_adapters(self) -> None:
        """Leave all adapters out of `forward`."""
        self._change_layers(lambda layer: layer.enable_adapters(enabled=False))

    def active_adapters(self) -> list[str]:
        """Return the names of the active adapters."""
        layers = self._adapter_layers()
        return list(layers[0].active_adapters) if layers else []

    def delete_adapter(self, adapter_names: list[str] | str) -> None:
        """Remove an adapter, or several."""
        for name in [adapter_names] if isinstance(adapter_names, str) else adapter_names:
            prefix = _peft_module("peft.mapping").PEFT_TYPE_TO_PREFIX_MAPPING[self.peft_config[name].peft_type]
            _peft_module("peft.functional").delete_adapter(self, adapter_name=name, prefix=prefix)
            del self.peft_config[name]

    def get_adapter_state_dict(
        self, adapter_name: str | None = None, state_dict: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return the weights of an adapter, by default of the active one, under their names in files of peft."""
        functional, name = _peft_module("peft.functional"), adapter_name or self.active_adapters()[0]
        weights = functional.get_peft_model_state_dict(self, state_dict=state_dict, adapter_name=name)
        return {_PREFIX + key: value for key, value in weights.items()}

    def save_adapter(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> list[Path]:
        """Write the active adapter to `adapter_config.json` and `adapter_model.safetensors`; return their paths."""
        active = self.active_adapters()
        if len(active) != 1:
            raise InputError(f"adapters: expected one active adapter to save, got {active}. Call set_adapter first.")
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.get_adapter_state_dict(active[0], state_dict)
        save_file({key: value.contiguous() for key, value in weights.items()}, folder / _WEIGHTS_FILE)
        self.peft_config[active[0]].save_pretrained(str(folder))
        return [folder / "adapter_config.json", folder / _WEIGHTS_FILE]

    def _reoptimize(self) -> None:
        """Repeat what `optimize` computes from the weights."""

    def _change_layers(self, change: Callable[[Any], None]) -> None:
        for layer in self._adapter_layers():
            change(layer)
        self._reoptimize()

    def _adapter_configs(self) -> dict[str, Any]:
        return getattr(self, "peft_config", {})

    def _adapter_layers(self) -> list[Any]:
        """Return the layers with adapters."""
        if not self._adapter_configs():
            return []
        kind = _peft_module("peft.tuners.tuners_utils").BaseTunerLayer
        return [module for module in self.modules() if isinstance(module, kind)]


def _peft_module(name: str) -> Any:
    return import_extra(name, "adapters", "adapters")
