"""Peak memory of opening a checkpoint, as a multiple of its size, next to transformers, in one run.

    python benchmarks/load_memory.py [--layers 16] [--limit 1.15]

A Sapiens2 pose checkpoint of about 1 GB is written to a temporary folder, as one file and as shards. Each opening runs
in a fresh process; memory is the highest resident size, mapped pages of the file included, less that after imports.
Every weight is read once afterwards, so that pages that were only mapped so far count too.

Prints the gigabytes, the multiple of the checkpoint's size and the seconds of each opening. Ends with 1 where ours
takes more than the limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    """Write the checkpoint both ways and return the bytes of its weights."""
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


def status(name: str) -> int:
    """Read a size in bytes that Linux keeps of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def forget_peak() -> int:
    """Start the highest resident size anew where the system can, and return the present one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return status("VmRSS")
    except OSError:
        return peak()


def peak() -> int:
    """Highest resident size in bytes."""
    try:
        return status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def open_checkpoint(library: str, folder: str, options: dict[str, str]) -> dict[str, float]:
    """Open the checkpoint in this process and return what it took."""
    import torch

    if library == "transformers":
        from transformers import Sapiens2ForPoseEstimation
        from transformers.utils import logging

        logging.disable_progress_bar()
    else:
        from vitruvian import Sapiens2ForPoseEstimation
    torch.ones(8, 8) @ torch.ones(8, 8)  # what torch sets up on first use is no part of opening
    before = forget_peak()
    start = time.perf_counter()
    model = Sapiens2ForPoseEstimation.from_pretrained(folder, **options)
    for parameter in model.parameters():
        parameter.detach().sum()
    return {"bytes": peak() - before, "seconds": time.perf_counter() - start}


def main() -> int:
    """Measure every cell and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--limit", type=float, default=1.15)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(open_checkpoint(**json.loads(args.cell))))
        return 0
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoints(Path(folder), args.layers)
        print(f"checkpoint: {size / 1e9:.2f} GB of float32\n")
        print(f"{'':28}{'peak GB':>9}{'× size':>9}{'seconds':>9}")
        for name, library, inner, options in CELLS:
            cell = {"library": library, "folder": str(Path(folder) / inner), "options": options}
            command = [sys.executable, __file__, "--cell", json.dumps(cell)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name:28}failed: {done.stderr.strip().splitlines()[-1]}")
                worst = max(worst, float("inf") if library == "vitruvian" else 0.0)
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            ratio = found["bytes"] / size
            print(f"{name:28}{found['bytes'] / 1e9:9.2f}{ratio:9.2f}{found['seconds']:9.2f}")
            worst = max(worst, ratio if library == "vitruvian" else 0.0)
    print(f"\nours at most {worst:.2f} × the size, limit {args.limit}")
    return int(worst > args.limit)


if __name__ == "__main__":
    raise SystemExit(main())
