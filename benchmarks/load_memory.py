"""Peak memory of loading a checkpoint, as a multiple of its size, next to transformers.

    python benchmarks/load_memory.py [--layers 16] [--limit 1.15]

A Sapiens2 pose checkpoint of about 1 GB is written to a temporary folder, as one file and as shards. Each row loads it
in a new process. Memory is the peak resident memory, mapped pages of the file included, above that after imports. Every
weight is read once, so that pages that are only mapped count too.

Prints the gigabytes, the multiple of the checkpoint's size and the seconds of each row. The exit code is 1 if ours
exceeds the limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from common.measure import run_in_new_process

# name, library, folder, keywords of from_pretrained
CELLS = (
    ("vitruvian", "vitruvian", "single", {}),
    ("vitruvian, shards", "vitruvian", "shards", {}),
    ("vitruvian, to bfloat16", "vitruvian", "single", {"dtype": "bfloat16"}),
    ("transformers", "transformers", "single", {}),
    ("transformers, shards", "transformers", "shards", {}),
    ("transformers, to bfloat16", "transformers", "single", {"dtype": "bfloat16"}),
)


def write_checkpoints(folder: Path, layers: int) -> int:
    """Write the checkpoint in both layouts and return the bytes of its weights."""
    import torch

    from vitruvian import Sapiens2Config, Sapiens2ForPoseEstimation
    from vitruvian.weights import save_weights

    config = Sapiens2Config.variant("0.4b", task="pose", num_hidden_layers=layers)
    config.architectures, config.dtype = ["Sapiens2ForPoseEstimation"], "float32"
    with torch.device("meta"):
        shapes = Sapiens2ForPoseEstimation(config).state_dict()
    state = {name: torch.rand(tensor.shape) for name, tensor in shapes.items()}
    for name, size in (("single", "50GB"), ("shards", "200MB")):
        config.save_pretrained(folder / name)
        save_weights(state, folder / name, max_shard_size=size)
    return (folder / "single" / "model.safetensors").stat().st_size


def status_bytes(name: str) -> int:
    """Return a memory field of `/proc/self/status` in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def reset_peak() -> int:
    """Reset the peak resident memory if the system can, and return the present resident memory."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return status_bytes("VmRSS")
    except OSError:
        return peak_bytes()


def peak_bytes() -> int:
    """Return the peak resident memory in bytes."""
    try:
        return status_bytes("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def load_checkpoint(library: str, folder: str, options: dict[str, str]) -> dict[str, float]:
    """Load the checkpoint in this process; return bytes and seconds."""
    import torch

    if library == "transformers":
        from transformers import Sapiens2ForPoseEstimation
        from transformers.utils import logging

        logging.disable_progress_bar()
    else:
        from vitruvian import Sapiens2ForPoseEstimation
    torch.ones(8, 8) @ torch.ones(8, 8)  # initialize torch first
    before = reset_peak()
    start = time.perf_counter()
    model = Sapiens2ForPoseEstimation.from_pretrained(folder, **options)
    for parameter in model.parameters():
        parameter.detach().sum()
    return {"bytes": peak_bytes() - before, "seconds": time.perf_counter() - start}


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--limit", type=float, default=1.15)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(load_checkpoint(**json.loads(args.cell))))
        return 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoints(Path(folder), args.layers)
        print(f"checkpoint: {size / 1e9:.2f} GB of float32\n")
        print(f"{'':28}{'peak GB':>9}{'× size':>9}{'seconds':>9}")
        for name, library, inner, options in CELLS:
            cell = {"library": library, "folder": str(Path(folder) / inner), "options": options}
            found = run_in_new_process(__file__, "--cell", json.dumps(cell))
            if "error" in found:
                print(f"{name:28}failed: {found['error']}")
                worst = max(worst, float("inf") if library == "vitruvian" else 0.0)
                continue
            ratio = found["bytes"] / size
            print(f"{name:28}{found['bytes'] / 1e9:9.2f}{ratio:9.2f}{found['seconds']:9.2f}")
            worst = max(worst, ratio if library == "vitruvian" else 0.0)
    print(f"\nours at most {worst:.2f} × the size, limit {args.limit}")
    return int(worst > args.limit)


if __name__ == "__main__":
    raise SystemExit(main())
