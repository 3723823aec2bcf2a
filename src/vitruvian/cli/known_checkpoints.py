"""The table of checkpoints on the Hub that are known to work, and their licenses, for listings and completion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitruvian.tasks import find_task, task_of_head


@dataclass(frozen=True)
class _License:
    """The license of a family's weights; see docs/weight-licenses.md."""

    names: str
    short: str
    text: str


# family -> license
LICENSES = {
    "builtin": _License("builtin", "Apache-2.0", "Apache-2.0, like the code."),
    "sapiens2": _License(
        "facebook/sapiens2-*",
        "Meta's own for Sapiens2",
        "Meta's own license for Sapiens2, linked from the page of each checkpoint. Check its terms for commercial use "
        "and for images of people.",
    ),
    "sam2": _License("facebook/sam2-*, facebook/sam2.1-*", "Apache-2.0", "Apache-2.0, according to the SAM 2 release."),
    "maskformer": _License(
        "facebook/maskformer-*",
        "other; assume non-commercial",
        '"other" on the Hub. The original code is licensed under CC BY-NC 4.0, so assume that the weights are for '
        "non-commercial use.",
    ),
    "mask2former": _License(
        "facebook/mask2former-*",
        "other; see its datasets",
        '"other" on the Hub. Most of the original code is licensed under MIT; the datasets (COCO, ADE20K, Cityscapes, '
        "Mapillary) have their own terms.",
    ),
}
# Parameters in millions by variant, as our own models count them.
_SAPIENS2_SIZES: dict[str, dict[str, int]] = {
    "pretrain": {"0.1b": 114, "0.4b": 398, "0.8b": 818, "1b": 1462, "1b-4k": 1607, "5b": 5071},
    "pose": {"0.4b": 426, "0.8b": 849, "1b": 1520, "5b": 5120},
    "seg": {"0.4b": 407, "0.8b": 828, "1b": 1471, "5b": 5090},
    "normal": {"0.4b": 453, "0.8b": 885, "1b": 1539, "5b": 5316},
    "pointmap": {"0.4b": 529, "0.8b": 967, "1b": 1630, "5b": 5348},
    "matting": {"1b": 1539},
}
# As their papers and releases count them.
_SAM2_SIZES = {"tiny": 39, "small": 46, "base-plus": 81, "large": 224}
_MASKFORMER_SIZES = {"tiny": 42, "small": 63, "base": 102, "large": 212}
_MASK2FORMER_SIZES = {"tiny": 47, "small": 69, "base": 107, "large": 216}
_MASK2FORMER = {
    "coco-instance": ("tiny", "small", "large"),
    "coco-panoptic": ("tiny", "small", "base", "large"),
    "ade-semantic": ("tiny", "small", "base", "large"),
    "ade-panoptic": ("large",),
    "cityscapes-semantic": ("large",),
    "cityscapes-instance": ("large",),
    "cityscapes-panoptic": ("small", "large"),
    "mapillary-vistas-semantic": ("large",),
    "mapillary-vistas-panoptic": ("large",),
}


@dataclass(frozen=True)
class KnownCheckpoint:
    """A checkpoint that is known to work: its name, the commands that take it, its family, and its parameters."""

    name: str
    commands: tuple[str, ...]
    family: str
    millions: int


def known_checkpoints() -> Iterator[KnownCheckpoint]:
    """List the checkpoints that are known to work, family by family."""
    for head, sizes in _SAPIENS2_SIZES.items():
        command = "embed" if head == "pretrain" else task_of_head(head).name
        for variant, millions in sizes.items():
            yield KnownCheckpoint(f"facebook/sapiens2-{head}-{variant}", (command,), "sapiens2", millions)
    for release in ("sam2.1", "sam2"):
        for size, millions in _SAM2_SIZES.items():
            yield KnownCheckpoint(f"facebook/{release}-hiera-{size}", ("segment", "masks", "track"), "sam2", millions)
    for data, variants in _MASK2FORMER.items():
        for size in variants:
            command = find_task(data.rpartition("-")[2]).name
            name = f"facebook/mask2former-swin-{size}-{data}"
            yield KnownCheckpoint(name, (command,), "mask2former", _MASK2FORMER_SIZES[size])
    for data, commands in (("coco", ("instances", "panoptic")), ("ade", ("semantic",))):
        for size, millions in _MASKFORMER_SIZES.items():
            yield KnownCheckpoint(f"facebook/maskformer-swin-{size}-{data}", commands, "maskformer", millions)
