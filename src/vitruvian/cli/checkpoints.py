"""Checkpoints: what one is without its weights, whether it suits a task, and downloading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitruvian.cli.report import format_bytes
from vitruvian.errors import CheckpointError, InputError
from vitruvian.tasks import PIPELINE_TASKS, TASKS, Task


def facts_of(name: str, revision: str | None) -> dict[str, Any]:
    """Return what configuration and local files say about a checkpoint."""
    from vitruvian.auto import AutoConfig, AutoModel, packed_tasks
    from vitruvian.hub import HubOptions, is_local, local_folder
    from vitruvian.layers.init import no_init_weights
    from vitruvian.models.sapiens2.multitask import Sapiens2MultiTask
    from vitruvian.models.sapiens2.packed import read_multitask

    hub = {} if revision is None else {"revision": revision}
    config = AutoConfig.from_pretrained(name, **hub)
    values = config.to_dict()
    tasks = packed_tasks(name)
    with no_init_weights():
        if tasks:
            encoder, heads, _ = read_multitask(name, HubOptions(), tasks=None)
        model = Sapiens2MultiTask(encoder, heads) if tasks else AutoModel.find(values, name)(config)
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
        "commands": _commands_for({type(one).__name__ for one in getattr(model, "tasks", {"": model}).values()}),
        "parameters": sum(value.numel() for value in set(model.parameters())),
        "dtype": _stored_dtype(name, values),
        "size": format_bytes(size) if size else "not downloaded",
        "size_bytes": size or None,
        "licence": _licence_of(name, values.get("model_type")),
        "config": {key: value for key, value in values.items() if key not in ("id2label", "label2id")},
    }


def _commands_for(class_names: Iterable[str]) -> list[str]:
    """Return the commands that take a model of any of these classes."""
    return [name for name in PIPELINE_TASKS if any(_accepts(TASKS[name], one) for one in class_names)]


def _accepts(task: Task, class_name: str) -> bool:
    """Whether a task takes a model of this class; features come from any Sapiens2."""
    accepted = [accepted.__name__ for accepted in task.pipeline_class().accepts()]
    class_name = "Sam2Model" if class_name == "Sam2VideoModel" else class_name  # it opens the same checkpoints
    return class_name in accepted or (task.name == "embed" and class_name.startswith("Sapiens2"))


def _stored_dtype(name: str, values: Mapping[str, Any]) -> str | None:
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


def _licence_of(name: str, family: str | None) -> str | None:
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
        cache = scan_cache_dir()
    except (CacheNotFound, OSError):
        return {}
    return {repo.repo_id: repo.size_on_disk for repo in cache.repos if repo.repo_type == "model" and repo.size_on_disk}


def check_model(name: str, task: Task, *, revision: str | None = None) -> None:
    """Raise `InputError` for a checkpoint of another task: its head would be initialized at random."""
    from vitruvian.auto import AutoConfig, packed_tasks
    from vitruvian.hub import names_builtin

    if names_builtin(name) or packed_tasks(name) or Path(name).expanduser().is_file():
        return
    config = AutoConfig.from_pretrained(name, **({} if revision is None else {"revision": revision}))
    named = [str(one) for one in config.to_dict().get("architectures") or []]
    if not named or any(_accepts(task, one) for one in named):
        return
    able = _commands_for(named)
    if able:
        raise InputError(
            f"{name}: expected a checkpoint for {task.name}, got {named[0]}, which is for {', '.join(able)}. "
            f"`vitruvian models list --task {task.name}` names some."
        )


def builtin_detector(name: str | None) -> str | None:
    """Return the checkpoint itself if it can detect people too, as the built-in one does."""
    from vitruvian.auto import packed_tasks
    from vitruvian.hub import BUILTIN

    return (name or BUILTIN) if "people" in packed_tasks(name or BUILTIN) else None


def download(name: str, *, revision: str | None = None, quiet: bool = False) -> Path:
    """Download a checkpoint with progress on standard error, and return its folder in the cache."""
    from huggingface_hub import HfApi, snapshot_download, utils

    from vitruvian.hub import hub_errors, offline

    if name.count("/") != 1 or Path(name).exists():
        raise InputError(f"{name}: expected a name on the Hub such as facebook/sapiens2-pose-0.4b.")
    if offline():
        raise CheckpointError(f"{name}: the network is switched off (HF_HUB_OFFLINE). Switch it on to download.")
    if quiet:
        utils.disable_progress_bars()  # type: ignore[attr-defined]
    with hub_errors(name, "downloading", revision):
        files = HfApi(library_name="vitruvian").list_repo_files(name, revision=revision)
        # Many repositories have the weights in both formats.
        safe = any(file.endswith(".safetensors") for file in files)
        patterns = ["*.json", "*.safetensors", *(() if safe else ("*.bin", "*.pth"))]
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, library_name="vitruvian"))
