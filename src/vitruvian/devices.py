"""Choose the data type that a model is loaded in and the devices that it is loaded on (`device`, `device_map`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from vitruvian.config import checked_dtype
from vitruvian.errors import InputError, WeightsError, check_names, import_extra
from vitruvian.weights import WeightFiles

Device = str | int | torch.device | None
DType = str | torch.dtype | None


def choose_dtype(requested: DType, configured: torch.dtype | None, files: WeightFiles) -> torch.dtype:
    """Return the data type to load in: the requested one, that of the configuration, or that of the first weight."""
    wanted = configured if requested in (None, "auto") else requested
    if wanted is not None:
        return checked_dtype(wanted)
    return next((tensor.dtype for _, tensor in files.tensors() if tensor.is_floating_point()), torch.float32)


def default_placement(device: Device, dtype: DType) -> dict[str, Any]:
    """Return the keywords of `from_pretrained` for a device and a data type, with defaults in place of None.

    The default is what a pipeline uses: the best device of this machine, in bfloat16 on a CUDA device that supports it
    and in float32 elsewhere.
    """
    chosen = None if device is None else checked_device(device)
    on_cuda = torch.cuda.is_available() if chosen is None else chosen.type == "cuda"
    if dtype is None:
        # Emulated bfloat16 is slower than float32. CPUs and Metal are fastest, or most exact, in float32.
        dtype = torch.bfloat16 if on_cuda and torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    return {"dtype": checked_dtype(dtype)} | placement(chosen)


def placement(device: Device) -> dict[str, Any]:
    """Return the keywords of `from_pretrained` for a device, by default the best one."""
    return {"device_map": "auto"} if device is None else {"device": device}


def choose_devices(
    model: nn.Module,
    device: Device,
    device_map: object,
    dtype: torch.dtype,
    no_split_modules: Sequence[str] = (),
    max_memory: dict[int | str, int | str] | None = None,
) -> dict[str, torch.device]:
    """Return the device of each module name; the empty name is the whole model."""
    if device is not None and device_map is not None:
        raise InputError("device and device_map: expected one of them, got both. Drop one.")
    if isinstance(device_map, dict):
        known = {name for name, _ in model.named_modules()} | set(model.state_dict())
        check_names("device_map", device_map, known, expected="the name of a part of the model")
        return {name: checked_device(value) for name, value in device_map.items()}
    if device_map == "auto":
        return _automatic_devices(model, dtype, no_split_modules, max_memory)
    if device is None and device_map is None:
        if (default := default_device()).type == "meta":
            raise WeightsError(
                subject="from_pretrained",
                expected="a device that stores weights",
                got="torch.device('meta') around it",
                hint="Leave that context, or use from_config for a model without weights.",
            )
        return {"": default}
    return {"": checked_device(device or device_map or 0)}


def default_device() -> torch.device:
    """Return the device of new tensors: that of a `torch.device` context, or of `torch.set_default_device`."""
    return torch.empty(0).device


def checked_device(value: object) -> torch.device:
    """Return a device that exists here."""
    try:
        chosen: torch.device = torch.device(f"cuda:{value}" if isinstance(value, int) else value)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: expected a name such as 'cuda', 'mps' or 'cpu', got {value!r}.") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: CUDA is not available on this machine, got {value!r}. Use cpu.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise InputError(
            f"device: only {'cuda:0 is' if not last else f'cuda:0 to cuda:{last} are'} available, got {value!r}."
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device: Metal is not available on this machine, got {value!r}. Use cpu.")
    return chosen


def _automatic_devices(
    model: nn.Module, dtype: torch.dtype, no_split_modules: Sequence[str], max_memory: dict[int | str, int | str] | None
) -> dict[str, torch.device]:
    """Return the best single device for the model, or let accelerate distribute it over several."""
    need = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        if need * 1.2 < free and max_memory is None:
            return {"": torch.device("cuda", torch.cuda.current_device())}
        accelerate = import_extra("accelerate", "train", "device_map='auto' over several devices")
        table = accelerate.infer_auto_device_map(
            model, max_memory=max_memory, no_split_module_classes=list(no_split_modules), dtype=dtype
        )
        if "disk" in table.values():
            raise InputError("device_map='auto': the model is too large for this machine. Use a smaller variant.")
        return {name: checked_device(value) for name, value in table.items()}
    if torch.backends.mps.is_available():
        return {"": torch.device("mps")}
    return {"": torch.device("cpu")}


def devices_of(model: nn.Module) -> set[torch.device]:
    """Return the devices of a model's parameters."""
    return {parameter.device for parameter in model.parameters()}


def check_one_device(model: nn.Module, caller: str) -> None:
    """Raise `InputError`, in the name of `caller`, for a model on several devices."""
    if len(chosen := devices_of(model)) > 1:
        names = ", ".join(sorted(map(str, chosen)))
        raise InputError(f"{caller}: expected a model on one device, got one on {names}. Load it without device_map.")


def device_for(name: str, devices: dict[str, torch.device]) -> torch.device:
    """Return the device of a parameter: that of the most specific entry of the device map for it."""
    under = [entry for entry in devices if _lies_under(name, entry)]
    if not under:
        raise InputError(f"device_map: no entry covers {name}. Add one, or an entry '' for the rest.")
    return devices[max(under, key=len)]


def add_device_hooks(model: nn.Module, devices: dict[str, torch.device], no_split_modules: Sequence[str]) -> None:
    """Let accelerate move activations between the devices of a model, and weights that are offloaded to the CPU."""
    if len(set(devices.values())) > 1:
        dispatch_model = import_extra("accelerate", "train", "a model over several devices").dispatch_model
        # accelerate identifies devices by number and by the word "cpu".
        table = {name: device.type if device.index is None else device.index for name, device in devices.items()}
        dispatch_model(model, device_map=table, preload_module_classes=_preloaded_classes(model, no_split_modules))


def _preloaded_classes(model: nn.Module, no_split_modules: Sequence[str]) -> list[str]:
    """Return the classes whose weights are loaded together, since they use weights of modules that they do not call.

    Those are the blocks that stay on one device, and all other modules of ours without such a block.
    """
    ours = [module for module in model.modules() if type(module).__module__.partition(".")[0] == "vitruvian"]
    containers = {
        type(module).__name__
        for module in ours
        if any(type(part).__name__ in no_split_modules for part in module.modules() if part is not module)
    }
    return sorted({type(module).__name__ for module in ours} - containers | set(no_split_modules))


def with_resident_modules(devices: dict[str, torch.device], residents: Sequence[str]) -> dict[str, torch.device]:
    """Move these parts of a model to its first accelerator, if it is on more than one device."""
    first = next((device for device in devices.values() if device.type not in ("cpu", "meta")), None)
    if first is None or len(set(devices.values())) == 1:
        return devices
    others = {
        name: device
        for name, device in devices.items()
        if not any(_lies_under(name, resident) for resident in residents)
    }
    return others | dict.fromkeys(residents, first)


def _lies_under(name: str, entry: str) -> bool:
    """Return whether a module is another one or a part of it; the empty name is the whole model."""
    return not entry or name == entry or name.startswith(f"{entry}.")
