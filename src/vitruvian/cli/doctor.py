"""`vitruvian doctor`: what works here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLE = "vitruvian doctor"
CORE = ("torch", "numpy", "pillow", "safetensors", "huggingface-hub", "typer", "rich")
# extra -> (modules it brings, what it enables)
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "video": (("av",), "videos and cameras"),
    "heif": (("pillow_heif",), "HEIC pictures of phones"),
    "exr": (("OpenEXR",), "EXR files"),
    "detect": (("onnxruntime",), "finding people with ONNX detectors"),
    "supervision": (("supervision",), "results for supervision"),
    "train": (("accelerate", "scipy", "tensorboard"), "training, models over several GPUs"),
    "export": (("onnx", "onnxruntime", "onnxscript", "openvino"), "ONNX and OpenVINO"),
    "synthetic": (("anny", "scipy"), "packs of synthetic bodies"),
}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
    speed: Annotated[bool, typer.Option(help="Time a tiny model.")] = True,
    debug: Annotated[bool, typer.Option("--debug", help="Show where errors came from.")] = False,
) -> None:
    """Tell what works here: versions, devices, extras, kernels, caches, and how quick a tiny model is.

    The exit code is 1 where something that everything needs is missing.
    """
    facts = examine(speed=speed)
    if as_json:
        from vitruvian.cli.shown import print_json

        print_json(facts)
    else:
        show(facts)
    if facts["problems"]:
        raise typer.Exit(1)


def examine(*, speed: bool) -> dict[str, Any]:
    """Look at everything; each part is looked at even where another is broken."""
    problems: list[str] = []
    facts: dict[str, Any] = {"versions": versions(problems)}
    facts["devices"] = devices(problems)
    facts["extras"] = {
        name: {"installed": all(has(module) for module in modules), "for": purpose}
        | ({"missing": [module for module in modules if not has(module)]} if any(map(has, modules)) else {})
        for name, (modules, purpose) in EXTRAS.items()
    }
    facts["kernels"] = kernels()
    facts["caches"] = caches()
    facts["temporary"] = temporary(problems)
    facts["speed"] = tiny_run(problems) if speed and not problems else None
    facts["problems"] = problems
    return facts


def has(module: str) -> bool:
    """Whether a module is installed; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def versions(problems: list[str]) -> dict[str, str]:
    """Versions of Python, of ours and of what we need."""
    from vitruvian.version import __version__

    found = {"vitruvian": __version__, "python": platform.python_version(), "system": platform.platform()}
    for name in CORE:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name}: not installed. Install it with: pip install {name}")
    return found


def devices(problems: list[str]) -> list[dict[str, Any]]:
    """What models can run on, the best first."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken torch raises anything
        problems.append(f"torch: cannot be imported ({' '.join(str(error).split())[:120]}). Install it anew.")
        return []
    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        name = torch.cuda.get_device_name(index)
        found.append({"device": f"cuda:{index}", "name": name, "memory": total, "free": free, "bfloat16": bf16})
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": "Metal"})
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor = {"device": "cpu", "name": torch.backends.cpu.get_cpu_capability(), "cores": cores}
    found.append(processor | {"threads": torch.get_num_threads()})
    return found


def kernels() -> dict[str, bool]:
    """Which quick kernels can be used."""
    if not has("torch"):
        return {}
    import torch

    from vitruvian.ops.dispatch import HAS_TRITON

    cuda = torch.cuda.is_available()
    return {
        "triton (ours)": HAS_TRITON and cuda,
        "flash attention (torch)": cuda and torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        "cuDNN attention (torch)": cuda and torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "flash_attn": has("flash_attn"),
        "torch.compile": has("triton") or not cuda,
    }


def caches() -> dict[str, dict[str, Any]]:
    """Where downloads and compiled kernels are kept, and how large that is."""
    from huggingface_hub import constants

    home = Path.home()
    folders = {
        "checkpoints (HF_HOME)": Path(constants.HF_HUB_CACHE),
        "kernels (TRITON_CACHE_DIR)": Path(os.environ.get("TRITON_CACHE_DIR", home / ".triton" / "cache")),
    }
    return {
        name: {"path": str(folder), "exists": folder.is_dir(), "bytes": size_of(folder)}
        for name, folder in folders.items()
    }


def size_of(folder: Path) -> int:
    """Bytes in a folder; links are not counted twice."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                try:
                    total += os.path.getsize(path)
                except OSError:
                    continue
    return total


def temporary(problems: list[str]) -> dict[str, Any]:
    """Whether the folder for temporary files can be written to."""
    folder = tempfile.gettempdir()
    try:
        with tempfile.NamedTemporaryFile(prefix="vitruvian-") as file:
            file.write(b"ready")
    except OSError as error:
        problems.append(f"{folder}: temporary files cannot be written ({error.strerror}). Set TMPDIR.")
        return {"path": folder, "writable": False}
    return {"path": folder, "writable": True}


def tiny_run(problems: list[str]) -> dict[str, Any] | None:
    """Time a small encoder on the best device: a 192 wide Sapiens2 of four layers on 256 x 192 pixels."""
    try:
        import torch

        from vitruvian.models.sapiens2.configuration import Sapiens2Config
        from vitruvian.models.sapiens2.modeling import Sapiens2Model
        from vitruvian.pipelines.base import default_placement

        place = default_placement(None, None)
        device = torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
        config = Sapiens2Config(
            hidden_size=192,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_attention_heads=2,
            intermediate_size=768,
            image_size=[256, 192],
        )
        model = Sapiens2Model(config).eval().to(device, place["dtype"])
        pixels = torch.rand(1, 3, 256, 192, device=device, dtype=place["dtype"])
        times = []
        with torch.inference_mode():
            for _ in range(4):
                start = time.perf_counter()
                float(model(pixels).last_hidden_state.float().sum())  # waits for the device
                times.append(time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        problems.append(f"a tiny model: does not run here ({' '.join(str(error).split())[:160]}).")
        return None
    dtype = str(place["dtype"]).removeprefix("torch.")
    return {"device": str(device), "dtype": dtype, "milliseconds": round(min(times[1:]) * 1000, 2)}


def show(facts: dict[str, Any]) -> None:
    """Print what was found for people."""
    from rich.console import Console

    from vitruvian.cli.shown import shown_bytes

    console = Console(highlight=False, soft_wrap=True)

    def title(text: str) -> None:
        console.print(f"\n{text}", style="bold", markup=False)

    def line(name: str, text: str, good: bool | None = None) -> None:
        mark = {True: "✓", False: "–", None: " "}[good]
        console.print(f"  {mark} {name:<28} {text}", markup=False)

    console.print(f"vitruvian {facts['versions']['vitruvian']} on Python {sys.version.split()[0]}", style="bold")
    title("Versions")
    for name, version in facts["versions"].items():
        line(name, version)
    title("Devices")
    for one in facts["devices"]:
        memory = f", {shown_bytes(one['free'])} of {shown_bytes(one['memory'])} free" if "memory" in one else ""
        threads = f", {one['cores']} cores, {one['threads']} threads" if "cores" in one else ""
        line(one["device"], f"{one['name']}{memory}{threads}", True)
    title("Extras")
    for name, extra in facts["extras"].items():
        advice = "" if extra["installed"] else f'   pip install "vitruvian[{name}]"'
        line(name, f"{extra['for']}{advice}", extra["installed"])
    title("Kernels")
    for name, there in facts["kernels"].items():
        line(name, "yes" if there else "no", there)
    title("Places")
    for name, place in facts["caches"].items():
        line(name, f"{place['path']} ({shown_bytes(place['bytes']) if place['exists'] else 'empty'})")
    line("temporary files", facts["temporary"]["path"], facts["temporary"]["writable"])
    if facts["speed"] is not None:
        title("Speed of a tiny model")
        line(facts["speed"]["device"], f"{facts['speed']['milliseconds']} ms in {facts['speed']['dtype']}", True)
    console.print()
    for problem in facts["problems"]:
        console.print(f"Problem: {problem}", style="red", markup=False)
    if not facts["problems"]:
        console.print("All is well.", style="green")
