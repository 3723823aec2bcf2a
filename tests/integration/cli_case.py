"""The command line on tiny checkpoints, in folders named like the Hub's: the examples of `--help` run as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.helpers.pipelines import parts_of, sample_image
from vitruvian.cli import run

# Hub name -> the pipeline whose tiny model stands for it
CHECKPOINTS = {
    "facebook/sapiens2-pose-0.4b": "pose",
    "facebook/sapiens2-seg-0.4b": "parts",
    "facebook/sapiens2-normal-0.4b": "normals",
    "facebook/sapiens2-pointmap-0.4b": "pointmap",
    "facebook/sapiens2-matting-1b": "matte",
    "my-albedo-model": "albedo",
    "facebook/sapiens2-pretrain-0.4b": "embed",
    "facebook/sam2.1-hiera-large": "segment",
    "facebook/sam2.1-hiera-tiny": "track",
    "facebook/mask2former-swin-small-coco-instance": "instance",
    "facebook/mask2former-swin-small-ade-semantic": "semantic",
    "facebook/mask2former-swin-small-cityscapes-panoptic": "panoptic",
}
WHOLE = ("--detect", "whole")  # no people are in images of noise
# command -> its model, and what it takes to find something with random weights
COMMANDS: dict[str, list[str]] = {
    "pose": ["-m", "facebook/sapiens2-pose-0.4b", *WHOLE],
    "parts": ["-m", "facebook/sapiens2-seg-0.4b", *WHOLE],
    "normals": ["-m", "facebook/sapiens2-normal-0.4b", *WHOLE],
    "pointmap": ["-m", "facebook/sapiens2-pointmap-0.4b", *WHOLE],
    "matte": ["-m", "facebook/sapiens2-matting-1b", *WHOLE],
    "albedo": ["-m", "my-albedo-model", *WHOLE],
    "embed": ["-m", "facebook/sapiens2-pretrain-0.4b"],
    "segment": ["-m", "facebook/sam2.1-hiera-large", "--points", "9,7"],
    "masks": [
        *("-m", "facebook/sam2.1-hiera-large", "--points-per-side", "3"),
        *("--quality", "-1", "--stability", "-1"),
    ],
    "track": ["-m", "facebook/sam2.1-hiera-tiny", "--points", "1@0:22,12"],
    "semantic": ["-m", "facebook/mask2former-swin-small-ade-semantic"],
    "instances": ["-m", "facebook/mask2former-swin-small-coco-instance", "--threshold", "0"],
    "panoptic": [
        *("-m", "facebook/mask2former-swin-small-cityscapes-panoptic", "--threshold", "0", "--keep-share", "0"),
    ],
}


def save_checkpoints(root: Path) -> None:
    """Write all tiny checkpoints."""
    for name, task in CHECKPOINTS.items():
        model, processor = parts_of(task)
        model.save_pretrained(root / name)
        processor.save_pretrained(root / name)


def save_images(folder: Path, count: int, *, size_hw: tuple[int, int] = (40, 56), first: int = 0) -> list[Path]:
    """Write numbered images."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{number:03d}.jpg" for number in range(first, first + count)]
    for number, path in enumerate(paths, first):
        Image.fromarray(sample_image(number, size_hw)).save(path, quality=92)
    return paths


def command(name: str, *arguments: object) -> int:
    """Run a command with its tiny model in this process and return its exit code."""
    options = COMMANDS[name]
    if "--boxes" in arguments:
        options = [word for word in options if word not in WHOLE]
    return run([name, *options, *(str(argument) for argument in arguments)])


def process(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start `vitruvian` in a process of its own."""
    code = "from vitruvian.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *(str(argument) for argument in arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | options.pop("env", {}),
        **({"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
    )


def json_lines(text: str) -> list[dict[str, Any]]:
    """Read lines of JSON."""
    return [json.loads(line) for line in text.splitlines()]


def truncate_file(path: Path) -> None:
    """Cut a file off in the middle."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def pixels(path: Path) -> np.ndarray:
    """The pixels of an image, read by Pillow."""
    with Image.open(path) as image:
        image.load()
        return np.asarray(image)


def wait_until(condition: Callable[[], object], running: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Wait until a condition holds while a process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert running.poll() is None, running.communicate()[1].decode()
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)
