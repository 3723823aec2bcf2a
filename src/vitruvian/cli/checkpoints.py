"""Checkpoints: which are on this machine, what one holds, and whether it suits a task."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound
from rich.filesize import decimal

from vitruvian.auto import AutoConfig, saved_class
from vitruvian.cli.known_checkpoints import LICENSES
from vitruvian.devices import choose_dtype
from vitruvian.errors import CheckpointError, InputError
from vitruvian.export.runtime import SIGNATURE_FILE
from vitruvian.hub import WEIGHT_ENDINGS, HubOptions, is_builtin, is_local, local_folder
from vitruvian.layers.init import no_init_weights
from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
from vitruvian.models.sapiens2.multitask_checkpoint import local_heads, read_multitask
from vitruvian.tasks import PIPELINE_TASKS, TASKS, Task
from vitruvian.weights import open_weights


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
    tasks = local_heads(name)
    with no_init_weights():
        if tasks:
            encoder, heads, _ = read_multitask(name, HubOptions(), heads=None)
        model = Sapiens2MultiTask(encoder, heads) if tasks else saved_class(values, name)(config)
    size, dtype, family = (
        cached_sizes().get(name, 0),
        values.get("dtype") or values.get("torch_dtype"),
        config.model_type,
    )
    if is_local(name):
        size = sum(file.stat().st_size for file in local_folder(name).iterdir() if file.suffix in WEIGHT_ENDINGS)
        if not size:
            raise CheckpointError(f"{name}: expected weights (.safetensors), found none. Is the download complete?")
        dtype = dtype or (None if tasks else choose_dtype(None, None, open_weights(name, HubOptions())))
    license = LICENSES.get("builtin" if is_builtin(name) else family.removesuffix("_video"))
    note = "" if is_builtin(name) else " (if it is Meta's release)"
    return {
        "name": name,
        "class": type(model).__name__,
        "family": family,
        "commands": _commands_for({type(part).__name__ for part in getattr(model, "tasks", {"": model}).values()}),
        "parameters": sum(value.numel() for value in set(model.parameters())),
        "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "size": decimal(size) if size else "not downloaded",
        "size_bytes": size or None,
        "license": None if license is None else license.short + note,
        "config": {key: value for key, value in values.items() if key not in ("id2label", "label2id")},
    }


def _commands_for(class_names: Iterable[str]) -> list[str]:
    """Return the commands that take a model of any of these classes."""
    return [name for name in PIPELINE_TASKS if any(_accepts(TASKS[name], cls) for cls in class_names)]


def _accepts(task: Task, class_name: str) -> bool:
    """Return whether a task takes a model of this class; features come from any Sapiens2."""
    accepted = [accepted.__name__ for accepted in task.pipeline_class().accepts()]
    if class_name == "Sam2VideoModel" and "Sam2Model" in accepted:  # it opens the same checkpoints
        return True
    return class_name in accepted or (task.name == "embed" and class_name.startswith("Sapiens2"))


def check_model(name: str, task: Task, *, revision: str | None = None) -> None:
    """Raise `InputError` for a checkpoint of another task: its head would be initialized at random."""
    if local_heads(name) or Path(name).expanduser().is_file() or is_exported(name):
        return
    config = AutoConfig.from_pretrained(name, **({} if revision is None else {"revision": revision}))
    named = [str(class_name) for class_name in config.to_dict().get("architectures") or []]
    if any(_accepts(task, class_name) for class_name in named):
        return
    if able := _commands_for(named):
        raise InputError(
            f"{name}: expected a checkpoint for {task.name}, got {named[0]}, which is for {', '.join(able)}. "
            f"`vitruvian models list --task {task.name}` lists some."
        )


def is_exported(name: str) -> bool:
    """Return whether a name is that of a folder that `vitruvian export` wrote."""
    return (Path(name).expanduser() / SIGNATURE_FILE).is_file()


def open_exported(task: str, folder: str, *, device: str | None, dtype: str | None, **options: Any) -> Any:
    """Open the pipeline of an exported model, which runs on the CPU in its own data type."""
    if device not in (None, "cpu"):
        raise InputError(f"device: expected cpu for an exported model, got {device!r}. Leave it out.")
    if dtype is not None:
        raise InputError("dtype: cannot be changed for an exported model. Leave it out.")
    from vitruvian.export import exported_pipeline

    return exported_pipeline(task, Path(folder).expanduser(), **options)
