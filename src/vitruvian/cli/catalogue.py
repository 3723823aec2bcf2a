"""The checkpoints on the Hub that vitruvian opens: their tasks, sizes and licences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vitruvian.tasks import find_task, task_of_head


@dataclass(frozen=True)
class Licence:
    """What is known of the licence of a family's weights; see docs/weight-licences.md."""

    family: str
    names: str
    short: str
    text: str


LICENCES = (
    Licence("builtin", "builtin", "Apache-2.0", "Apache-2.0, like the code."),
    Licence(
        "sapiens2",
        "facebook/sapiens2-*",
        "Meta's own for Sapiens2",
        "A licence of Meta's own for Sapiens2, linked from each checkpoint's page; read what it says on commercial use "
        "and on pictures of people.",
    ),
    Licence("sam2", "facebook/sam2-*, facebook/sam2.1-*", "Apache-2.0", "Apache-2.0, as the SAM 2 release states."),
    Licence(
        "maskformer",
        "facebook/maskformer-*",
        "other; take as non-commercial",
        '"other" on the Hub; the original code is under CC BY-NC 4.0, so take the weights as non-commercial unless '
        "told otherwise.",
    ),
    Licence(
        "mask2former",
        "facebook/mask2former-*",
        "other; see its data sets",
        '"other" on the Hub; most of the original code is MIT, and the data sets (COCO, ADE20K, Cityscapes, Mapillary) '
        "have terms of their own.",
    ),
)


@dataclass(frozen=True)
class Known:
    """A checkpoint on the Hub.

    Attributes:
        name: Its name there.
        commands: The commands that take it.
        family: Whose weights they are, for the licence.
        millions: Parameters, in millions.
    """

    name: str
    commands: tuple[str, ...]
    family: str
    millions: int

    @property
    def licence(self) -> Licence:
        """The licence of its family."""
        return next(licence for licence in LICENCES if licence.family == self.family)


# Parameters in millions by variant, as our own models count them.
SAPIENS2_SIZES: dict[str, dict[str, int]] = {
    "pretrain": {"0.1b": 114, "0.4b": 398, "0.8b": 818, "1b": 1462, "1b-4k": 1607, "5b": 5071},
    "pose": {"0.4b": 426, "0.8b": 849, "1b": 1520, "5b": 5120},
    "seg": {"0.4b": 407, "0.8b": 828, "1b": 1471, "5b": 5090},
    "normal": {"0.4b": 453, "0.8b": 885, "1b": 1539, "5b": 5316},
    "pointmap": {"0.4b": 529, "0.8b": 967, "1b": 1630, "5b": 5348},
    "matting": {"1b": 1539},
}
# As their papers and releases count them.
SAM2_SIZES = {"tiny": 39, "small": 46, "base-plus": 81, "large": 224}
MASKFORMER_SIZES = {"tiny": 42, "small": 63, "base": 102, "large": 212}
MASK2FORMER_SIZES = {"tiny": 47, "small": 69, "base": 107, "large": 216}
MASK2FORMER = {
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


def known_checkpoints() -> Iterator[Known]:
    """List the checkpoints that are known to work, family by family."""
    for head, sizes in SAPIENS2_SIZES.items():
        command = "embed" if head == "pretrain" else task_of_head(head).name
        for variant, millions in sizes.items():
            yield Known(f"facebook/sapiens2-{head}-{variant}", (command,), "sapiens2", millions)
    for release in ("sam2.1", "sam2"):
        for size, millions in SAM2_SIZES.items():
            yield Known(f"facebook/{release}-hiera-{size}", ("segment", "masks"), "sam2", millions)
    for data, variants in MASK2FORMER.items():
        for size in variants:
            command = find_task(data.rpartition("-")[2]).name
            name = f"facebook/mask2former-swin-{size}-{data}"
            yield Known(name, (command,), "mask2former", MASK2FORMER_SIZES[size])
    for data, commands in (("coco", ("instances", "panoptic")), ("ade", ("semantic",))):
        for size, millions in MASKFORMER_SIZES.items():
            yield Known(f"facebook/maskformer-swin-{size}-{data}", commands, "maskformer", millions)
