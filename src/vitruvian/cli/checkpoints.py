"""Checkpoints: those on the Hub that are known to work, their licences, what one holds, and whether it suits a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from rich.filesize import decimal

from vitruvian.auto import AutoConfig, packed_tasks, saved_class
from vitruvian.devices import choose_dtype
from vitruvian.errors import CheckpointError, InputError
from vitruvian.hub import BUILTIN, WEIGHT_ENDINGS, HubOptions, is_builtin, is_local, local_folder
from vitruvian.layers.init import no_init_weights
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.models.sapiens2.packed import read_multitask
from vitruvian.tasks import PIPELINE_TASKS, TASKS, Task, find_task, task_of_head
from vitruvian.weights import open_weights


@dataclass(frozen=True)
class _Licence:
    """The licence of a family's weights; see docs/weight-licences.md."""

    names: str
    short: str
    text: str


# family -> licence
LICENCES = {
    "builtin": _Licence("builtin", "Apache-2.0", "Apache-2.0, like the code."),
    "sapiens2": _Licence(
        "facebook/sapiens2-*",
        "Meta's own for Sapiens2",
        "Meta's own licence for Sapiens2, linked from the page of each checkpoint. Check its terms for commercial use "
        "and for images of people.",
    ),
    "sam2": _Licence("facebook/sam2-*, facebook/sam2.1-*", "Apache-2.0", "Apache-2.0, according to the SAM 2 release."),
    "maskformer": _Licence(
        "facebook/maskformer-*",
        "other; assume non-commercial",
        '"other" on the Hub. The original code is licensed under CC BY-NC 4.0, so assume that the weights are for '
        "non-commercial use.",
    ),
    "mask2former": _Licence(
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


def cached_sizes() -> dict[str, int]:
    """Return the checkpoints in the Hub's cache and their sizes in bytes."""
    try:
        cache = scan_cache_dir()
    except (CacheNotFound, OSError):
        return {}
    return {repo.repo_id: repo.size_on_disk for repo in cache.repos if repo.repo_type == "model" and repo.size_on_disk}


def describe_checkpoint(name: str, revision: str | None = None) -> dict[str, Any]:
    """Return what configuration and local files say about a checkpoint; of one on the Hub, no weights are loaded."""
    config = AutoConfig.from_pretrained(name, **({} if revision is None else {"revision": revision}))
    values = config.to_dict()
    tasks = packed_tasks(name)
    with no_init_weights():
        if tasks:
            encoder, heads, _ = read_multitask(name, HubOptions(), tasks=None)
        model = Sapiens2MultiTask(encoder, heads) if tasks else saved_class(values, name)(config)
    size, dtype, family = (
        cached_sizes().get(name, 0),
        values.get("dtype") or values.get("torch_dtype"),
        config.model_type,
    )
    if is_local(name):
        size = sum(file.stat().st_size for file in local_folder(name).iterdir() if file.suffix in WEIGHT_ENDINGS)
        if not size:
            raise CheckpointError(f"{name}: expected weights (.safetensors), found none. Is the download whole?")
        dtype = dtype or (None if tasks else choose_dtype(None, None, open_weights(name, HubOptions())))
    licence = LICENCES.get("builtin" if is_builtin(name) else family.removesuffix("_video"))
    note = "" if is_builtin(name) else " (if it is Meta's release)"
    return {
        "name": name,
        "class": type(model).__name__,
        "family": family,
        "commands": _commands_for({type(one).__name__ for one in getattr(model, "tasks", {"": model}).values()}),
        "parameters": sum(value.numel() for value in set(model.parameters())),
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "size": decimal(size) if size else "not downloaded",
        "size_bytes": size or None,
        "licence": None if licence is None else licence.short + note,
        "config": {key: value for key, value in values.items() if key not in ("id2label", "label2id")},
    }


def _commands_for(class_names: Iterable[str]) -> list[str]:
    """Return the commands that take a model of any of these classes."""
    return [name for name in PIPELINE_TASKS if any(_accepts(TASKS[name], one) for one in class_names)]


def _accepts(task: Task, class_name: str) -> bool:
    """Whether a task takes a model of this class; features come from any Sapiens2."""
    accepted = [accepted.__name__ for accepted in task.pipeline_class().accepts()]
    if class_name == "Sam2VideoModel" and "Sam2Model" in accepted:  # it opens the same checkpoints
        return True
    return class_name in accepted or (task.name == "embed" and class_name.startswith("Sapiens2"))


def check_model(name: str, task: Task, *, revision: str | None = None) -> None:
    """Raise `InputError` for a checkpoint of another task: its head would be initialized at random."""
    if packed_tasks(name) or Path(name).expanduser().is_file():
        return
    config = AutoConfig.from_pretrained(name, **({} if revision is None else {"revision": revision}))
    named = [str(one) for one in config.to_dict().get("architectures") or []]
    if any(_accepts(task, one) for one in named):
        return
    if able := _commands_for(named):
        raise InputError(
            f"{name}: expected a checkpoint for {task.name}, got {named[0]}, which is for {', '.join(able)}. "
            f"`vitruvian models list --task {task.name}` names some."
        )


def detector_in_checkpoint(name: str | None) -> str | None:
    """Return the checkpoint (by default the built-in one) if it detects people too; else None."""
    return (name or BUILTIN) if "people" in packed_tasks(name or BUILTIN) else None
