"""`vitruvian doctor`: what works on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from vitruvian.cli.console_report import print_json, printable
from vitruvian.cli.option_groups import Debug, Json
from vitruvian.cpu_threads import usable_cores
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.limits import Limits, get_limits
from vitruvian.serving.settings import ServerLimits, read_limits
from vitruvian.version import __version__

EXAMPLE = "vitruvian doctor"
_CORE = ("torch", "numpy", "pillow", "safetensors", "huggingface-hub", "typer", "rich")
# extra -> (modules it brings, what it enables)
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "video": (("av",), "videos and cameras"),
    "serve": (("fastapi", "uvicorn", "python_multipart", "prometheus_client"), "vitruvian serve"),
    "scale": (("ray", "pyarrow", "fsspec"), "jobs on a Ray cluster"),
    "heif": (("pillow_heif",), "HEIC/HEIF images"),
    "jpeg": (("simplejpeg",), "faster decoding of JPEG files"),
    "exr": (("OpenEXR",), "EXR files"),
    "detect": (("onnxruntime",), "detecting people with ONNX models"),
    "supervision": (("supervision",), "results for supervision"),
    "train": (("accelerate", "scipy", "tensorboard"), "training, models over several GPUs"),
    "adapters": (("peft",), "adapters such as LoRA"),
    "export": (("onnx", "onnxruntime", "onnxscript", "openvino"), "ONNX and OpenVINO"),
    "synthetic": (("anny", "scipy"), "asset packs of synthetic people"),
}


def doctor(
    as_json: Json = False,
    speed: Annotated[bool, typer.Option(help="Time the built-in pose model.")] = True,
    debug: Debug = False,
) -> None:
    """Check the installation: versions, devices, extras, kernels, caches, limits, and the speed of the built-in model.

    Exits with 1 if a required component is missing.
    """
    problems: list[str] = []
    details: JsonObject = {"versions": _versions(problems), "devices": _devices(problems), "extras": _extras()}
    details |= {"kernels": _kernels(), "caches": _caches(), "temporary": _temporary(problems)}
    details["limits"] = dataclasses.asdict(get_limits())
    details["server_limits"] = dataclasses.asdict(read_limits({}, subject="limits")[1])
    details |= {"speed": _time_builtin(problems) if speed and not problems else None, "problems": problems}
    if as_json:
        print_json(details)
    else:
        _show(details)
    if problems:
        raise typer.Exit(1)


def _has(module: str) -> bool:
    """Return whether a module is installed; it is not imported."""
    return importlib.util.find_spec(module) is not None


def _versions(problems: list[str]) -> dict[str, str]:
    details = {"vitruvian": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in _CORE:
        try:
            details[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name}: not installed. Install it with: pip install {name}")
    return details


def _devices(problems: list[str]) -> list[JsonObject]:
    """Return what models can run on, the best first."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken torch raises anything
        problems.append(f"torch: cannot be imported ({' '.join(str(error).split())[:120]}). Reinstall it.")
        return []
    details: list[JsonObject] = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        name = torch.cuda.get_device_name(index)
        details.append({"device": f"cuda:{index}", "name": name, "memory": total, "free": free, "bfloat16": bf16})
    if torch.backends.mps.is_available():
        details.append({"device": "mps", "name": "Metal"})
    name = torch.backends.cpu.get_cpu_capability()
    return [*details, {"device": "cpu", "name": name, "cores": usable_cores(), "threads": torch.get_num_threads()}]


def _extras() -> dict[str, JsonObject]:
    """Return which extras are installed, and what an incomplete one lacks."""
    details: dict[str, JsonObject] = {}
    for name, (modules, purpose) in EXTRAS.items():
        missing = [module for module in modules if not _has(module)]
        details[name] = {"installed": not missing, "for": purpose}
        if 0 < len(missing) < len(modules):
            details[name]["missing"] = missing
    return details


def _kernels() -> dict[str, bool]:
    """Return which fast kernels can be used."""
    if not _has("torch"):
        return {}
    import torch

    from vitruvian.ops.dispatch import HAS_TRITON

    cuda = torch.cuda.is_available()
    return {
        "triton (ours)": HAS_TRITON and cuda,
        "flash attention (torch)": cuda and torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        "cuDNN attention (torch)": cuda and torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "flash_attn": _has("flash_attn"),
        "torch.compile": _has("triton") or not cuda,
    }


def _caches() -> dict[str, JsonObject]:
    """Return where downloads and compiled kernels are, and their size; links are not counted twice."""
    from huggingface_hub import constants

    folders = {
        "checkpoints (HF_HOME)": Path(constants.HF_HUB_CACHE),
        "kernels (TRITON_CACHE_DIR)": Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache")),
    }
    details: dict[str, JsonObject] = {}
    for name, folder in folders.items():
        details[name] = {"path": str(folder), "exists": folder.is_dir(), "bytes": 0}
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                details[name]["bytes"] += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    return details


def _temporary(problems: list[str]) -> JsonObject:
    """Return whether temporary files can be written."""
    folder = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(prefix="vitruvian-") as file:
            file.write(b"ready")
    except OSError as error:
        problems.append(f"{folder}: temporary files cannot be written ({error.strerror}). Set TMPDIR.")
        return {"path": folder, "writable": False}
    return {"path": folder, "writable": True}


def _time_builtin(problems: list[str]) -> JsonObject | None:
    """Time the built-in pose model on the best device, for one person."""
    try:
        import torch

        from vitruvian.auto import AutoModelForPoseEstimation
        from vitruvian.devices import default_placement
        from vitruvian.hub import BUILTIN

        kinds = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        device = next((kind for kind, there in kinds.items() if there), "cpu")
        dtype = default_placement(None, None)["dtype"]
        model = AutoModelForPoseEstimation.from_pretrained(BUILTIN, device=device, dtype=dtype).eval()
        pixels = torch.rand(1, 3, *model.config.image_hw, device=device, dtype=dtype)
        times = []
        with torch.inference_mode():
            for _ in range(4):
                start = time.perf_counter()
                float(model(pixels).heatmaps.float().sum())  # synchronizes the device
                times.append(time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        problems.append(f"the built-in model: does not run here ({' '.join(str(error).split())[:160]}).")
        return None
    name = str(dtype).removeprefix("torch.")
    return {"device": device, "dtype": name, "milliseconds": round(min(times[1:]) * 1000, 2)}


def _show(details: JsonObject) -> None:
    """Print everything for people."""

    def section(title: str) -> None:
        typer.secho(f"\n{title}", bold=True)

    def row(name: str, text: str, good: bool | None = None) -> None:
        typer.echo(f"  {' ' if good is None else '✓' if good else '–'} {name:<28} {printable(text)}")

    section("Versions")
    for name, version in details["versions"].items():
        row(name, version)
    section("Devices")
    for device in details["devices"]:
        memory = f", {decimal(device['free'])} of {decimal(device['memory'])} free" if "memory" in device else ""
        threads = f", cores: {device['cores']}, threads: {device['threads']}" if "cores" in device else ""
        row(device["device"], f"{device['name']}{memory}{threads}", True)
    section("Extras")
    for name, extra in details["extras"].items():
        advice = "" if extra["installed"] else f'   pip install "vitruvian[{name}]"'
        row(name, f"{extra['for']}{advice}", extra["installed"])
    section("Kernels")
    for name, there in details["kernels"].items():
        row(name, "yes" if there else "no", there)
    section("Folders")
    for name, cache in details["caches"].items():
        row(name, f"{cache['path']} ({decimal(cache['bytes']) if cache['exists'] else 'empty'})")
    row("temporary files", details["temporary"]["path"], details["temporary"]["writable"])
    for title, key, limits in (
        ("Limits (docs/limits.md)", "limits", Limits()),
        ("Limits of vitruvian serve (docs/serving.md)", "server_limits", ServerLimits()),
    ):
        section(title)
        for name, limit in details[key].items():
            default = getattr(limits, name)
            row(name, f"{limit:,}" + ("" if limit == default else f"   (by default {default:,})"))
    if (speed := details["speed"]) is not None:
        section("Speed of the built-in pose model")
        row(speed["device"], f"{speed['milliseconds']} ms in {speed['dtype']}", True)
    typer.echo()
    for problem in details["problems"]:
        typer.secho(printable(f"Problem: {problem}"), fg="red")
    if not details["problems"]:
        typer.secho("No problems found.", fg="green")
