"""What a checkpoint is, without its weights: for `models info`, and to refuse those of other tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitruvian.cli.kinds import TASKS, Task
from vitruvian.cli.shown import shown_bytes
from vitruvian.errors import CheckpointError, InputError


def facts_of(name: str, revision: str | None) -> dict[str, Any]:
    """Read a checkpoint's configuration, and what the files here tell."""
    from vitruvian.auto import AutoConfig, AutoModel, packed_tasks
    from vitruvian.hub import is_local, local_folder
    from vitruvian.layers.init import no_init_weights

    hub = {} if revision is None else {"revision": revision}
    config = AutoConfig.from_pretrained(name, **hub)
    values = config.to_dict()
    tasks = packed_tasks(name)
    with no_init_weights():
        model = read_packed(name) if tasks else AutoModel.find(values, name)(config)
    if is_local(name):
        folder = local_folder(name)
        weights = [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt", ".pth")]
        if not weights:
            raise CheckpointError(f"{folder}: expected weights (.safetensors), found none. Is the download whole?")
        size = sum(file.stat().st_size for file in weights)
    else:
        size = cached_sizes().get(name, 0)
    return {
        "name": name,
        "class": type(model).__name__,
        "family": values.get("model_type"),
        "commands": commands_of(model),
        "parameters": sum(value.numel() for value in set(model.parameters())),
        "dtype": stored_dtype(name, values),
        "size": shown_bytes(size) if size else "not downloaded",
        "size_bytes": size or None,
        "licence": licence_of(name, values.get("model_type")),
        "config": {key: value for key, value in values.items() if key not in ("id2label", "label2id")},
    }


def read_packed(name: str) -> Any:
    """Return the tasks that share one encoder in a folder, without their weights."""
    from vitruvian.hub import HubOptions
    from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
    from vitruvian.models.sapiens2.packed import read_multitask

    encoder, heads, _ = read_multitask(name, HubOptions(), tasks=None)
    return Sapiens2MultiTask(encoder, heads)


def commands_of(model: Any) -> list[str]:
    """Return the commands that take a model, or any of the tasks in it."""
    tasks = getattr(model, "tasks", None)
    names = [type(model).__name__] if tasks is None else [type(one).__name__ for one in tasks.values()]
    return list(dict.fromkeys(command for name in names for command in commands_for(name)))


def commands_for(class_name: str) -> list[str]:
    """Return the commands that take a model of this class."""
    return [task.command for task in TASKS.values() if takes(task, class_name)]


def takes(task: Task, class_name: str) -> bool:
    """Whether a command takes a model of this class; features come from any Sapiens2."""
    from vitruvian.pipelines import pipeline_class

    accepted = [accepted.__name__ for accepted in pipeline_class(task.pipeline).accepts]
    return class_name in accepted or (task.command == "embed" and class_name.startswith("Sapiens2"))


def stored_dtype(name: str, values: Mapping[str, Any]) -> str | None:
    """Return the data type of the weights as the configuration or the header of a local file states it."""
    stated = values.get("dtype") or values.get("torch_dtype")
    if stated is not None:
        return str(stated).removeprefix("torch.")
    from safetensors import safe_open

    folder = Path(name).expanduser()
    folder = folder.parent if folder.is_file() else folder
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is no dictionary
                return str(opened.get_slice(key).get_dtype())
    return None


def licence_of(name: str, family: str | None) -> str | None:
    """Return the licence of the model inside the package, or of a family's published weights, in short."""
    from vitruvian.cli.catalogue import LICENCES
    from vitruvian.hub import names_builtin

    if names_builtin(name):
        return next(one.short for one in LICENCES if one.family == "builtin")
    plain = {"sam2_video": "sam2"}.get(str(family), str(family))
    return next((f"{one.short} (if it is Meta's release)" for one in LICENCES if one.family == plain), None)


def cached_sizes() -> dict[str, int]:
    """Return the checkpoints in the Hub's cache and their sizes in bytes."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir()
    except (CacheNotFound, OSError):
        return {}
    return {repo.repo_id: repo.size_on_disk for repo in found.repos if repo.repo_type == "model" and repo.size_on_disk}


def check_model(name: str, task: Task, *, revision: str | None = None) -> None:
    """Refuse a checkpoint of another task: opened all the same, its head would answer at random."""
    from vitruvian.auto import AutoConfig, packed_tasks
    from vitruvian.hub import names_builtin

    if names_builtin(name) or packed_tasks(name) or Path(name).expanduser().is_file():
        return
    config = AutoConfig.from_pretrained(name, **({} if revision is None else {"revision": revision}))
    named = [str(one) for one in config.to_dict().get("architectures") or []]
    if not named or any(takes(task, one) for one in named):
        return
    able = list(dict.fromkeys(command for one in named for command in commands_for(one)))
    if able:
        raise InputError(
            f"{name}: expected a checkpoint for {task.command}, got {named[0]}, which is for {', '.join(able)}. "
            f"`vitruvian models list --task {task.command}` names some."
        )


def own_finder(name: str | None) -> str | None:
    """Return the model itself where it can find people too, as the built-in one does."""
    from vitruvian.auto import packed_tasks
    from vitruvian.hub import BUILTIN

    return (name or BUILTIN) if "people" in packed_tasks(name or BUILTIN) else None
