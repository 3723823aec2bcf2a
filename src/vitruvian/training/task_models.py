"""From a configuration to a model, and from a trained model to checkpoints that open anywhere.

ModelConfig ── build_model ──▶ Sapiens2MultiTask ── save_models ──▶ RUN/model/ (one task) or RUN/model/TASK/ (several)

Training calls tasks by their public names ("parts"); Sapiens2 calls their heads otherwise ("seg"). This module
translates between them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.config import ConfigBase
from vitruvian.errors import CheckpointError, ConfigError, check_names
from vitruvian.hub import CONFIG_FILE, HubOptions
from vitruvian.models.sapiens2.configuration import Sapiens2Config, Sapiens2HeadConfig, head_fields
from vitruvian.models.sapiens2.encoder import Sapiens2Layer
from vitruvian.models.sapiens2.heads import DecodeHead
from vitruvian.models.sapiens2.modeling import Sapiens2Model, Sapiens2TaskModel
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES, Sapiens2MultiTask
from vitruvian.models.sapiens2.multitask_checkpoint import read_heads
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.tasks import TASKS, task_of_head
from vitruvian.training.config import ModelConfig

HEADS = {task.name: task.sapiens2_head for task in TASKS.values() if task.sapiens2_head is not None}


def build_model(settings: ModelConfig) -> Sapiens2MultiTask:
    """Build the tasks of a configuration over one encoder, at random or from a checkpoint, in float32.

    Tasks that the checkpoint does not have, and heads with another configuration, are initialized at random.
    """
    _check_names(settings.encoder, Sapiens2Config)
    common = {"image_size": list(settings.image_size), "use_loss_recipe": settings.loss_recipe, **settings.encoder}
    encoder: Sapiens2Model | None = None
    stored: dict[str, Sapiens2TaskModel] = {}
    if settings.pretrained is None:
        config = Sapiens2Config.variant(settings.variant, **common)
    else:
        config, encoder, stored = _open_pretrained(settings.pretrained, settings.tasks, common)
    heads = {
        HEADS[task]: _head_fields(settings, task, stored[task].config if task in stored else None)
        for task in settings.tasks
    }
    model = Sapiens2MultiTask(config, heads)
    if encoder is not None:
        model.encoder.load_state_dict(encoder.state_dict())
    for task, source in stored.items():
        target = model.task_model(HEADS[task])
        if target.config.head_config == source.config.head_config:
            target.load_state_dict(source.state_dict())
    if settings.gradient_checkpointing:
        model.encoder.gradient_checkpointing_enable()
    return model.train()


def _open_pretrained(
    source: str, tasks: list[str], common: dict[str, Any]
) -> tuple[Sapiens2Config, Sapiens2Model, dict[str, Sapiens2TaskModel]]:
    """Open a checkpoint of one or several tasks: its configuration with `common`, its encoder, those of `tasks`."""
    available_heads = read_heads(source, HubOptions())
    if available_heads is not None:
        opened = Sapiens2MultiTask.from_pretrained(
            source, tasks=[HEADS[task] for task in tasks if HEADS[task] in available_heads]
        )
        stored = {task_of_head(head).name: opened.task_model(head) for head in opened.tasks}
        return Sapiens2Config.from_pretrained(source, **common), opened.encoder, stored
    stored = {}
    folders: list[str | Path] = [*_task_folders(source).values()] or [source]
    for folder in reversed(folders):  # configuration and encoder are those of the first
        config = Sapiens2Config.from_pretrained(folder, **common)
        encoder = Sapiens2Model.from_pretrained(folder, config=config, strict=True, dtype=torch.float32)
        task = _stored_task(config)
        if task is not None and task in tasks:
            stored[task] = HEAD_CLASSES[HEADS[task]].from_pretrained(folder, strict=True, dtype=torch.float32)
    return config, encoder, stored


def compile_parts(model: nn.Module, *, heads: bool) -> None:
    """Compile the layers of encoders and, with `heads`, the heads, each separately.

    Layers are alike and share compiled code, which compiles much faster than the model as a whole.
    """
    # One graph for each kind of layer or head and each batch shape.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for module in model.modules():
        if isinstance(module, Sapiens2Layer) or (heads and isinstance(module, DecodeHead)):
            module.compile(dynamic=False)


def _task_folders(source: str | Path) -> dict[str, Path]:
    """Return the folders of the tasks that `save_models` wrote; none where `source` is a checkpoint itself."""
    folder = Path(source).expanduser()
    if not folder.is_dir() or (folder / CONFIG_FILE).is_file():
        return {}
    if (folder / "model").is_dir():  # the folder of a run
        inner = folder / "model"
        return _task_folders(inner) or {"": inner}
    return {task: folder / task for task in HEADS if (folder / task / CONFIG_FILE).is_file()}


def _stored_task(config: Sapiens2Config) -> str | None:
    """Return the task of a checkpoint; None for an encoder."""
    names = config.architectures or []
    return next((task_of_head(head).name for head, cls in HEAD_CLASSES.items() if cls.__name__ in names), None)


def _head_fields(settings: ModelConfig, task: str, stored: Sapiens2Config | None) -> dict[str, Any]:
    """Return the fields of a task's head: the checkpoint's or the published ones, with the configuration's changes."""
    if stored is not None and stored.head_config is not None:
        base = stored.head_config.to_dict()
    else:
        base = dict(head_fields(HEADS[task], settings.variant)["head_config"])
    base.pop("model_type", None)
    changes = settings.heads.get(task, {})
    _check_names(changes, Sapiens2HeadConfig)
    for stem in ("upsample", "conv", "scale_conv"):  # lists of kernel sizes go with the channels
        sizes = base.get(f"{stem}_kernel_sizes")
        if f"{stem}_out_channels" in changes and f"{stem}_kernel_sizes" not in changes and sizes:
            base[f"{stem}_kernel_size"] = sizes[0]
            base.pop(f"{stem}_kernel_sizes")
    fields = base | changes
    Sapiens2HeadConfig(**fields)  # raises for wrong values
    return fields


def _check_names(changes: dict[str, Any], config_class: type[ConfigBase]) -> None:
    """Raise `ConfigError` for a name that is not a field: configurations themselves keep unknown names."""
    known = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    check_names(config_class.__name__, changes, known, expected="the name of a field", error=ConfigError)


def head_strides(model: Sapiens2MultiTask) -> dict[str, int]:
    """Return the input pixels per output pixel of each task: 1 where a head predicts at full size."""
    strides: dict[str, int] = {}
    for name in model.tasks:
        task, config = task_of_head(name).name, model.task_model(name).config
        head = config.head_config
        size = 2 ** len((head.upsample_out_channels if head else None) or [])
        if config.token_hw[0] % size:
            raise ConfigError(
                f"model.heads.{task}.upsample_out_channels: expected at most {config.token_hw[0].bit_length() - 1} "
                f"blocks for tokens of {config.token_hw[0]} pixels, since outputs are no larger than the input."
            )
        strides[task] = config.token_hw[0] // size
    return strides


def run_tasks(
    model: Sapiens2MultiTask,
    pixel_values: Tensor,
    *,
    tasks: Sequence[str],
    labels: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Run tasks on normalized images [B, 3, H, W]: task → output, with a loss for tasks that have labels."""
    by_head = {HEADS[task]: values for task, values in (labels or {}).items()}
    outputs = model(pixel_values, tasks=[HEADS[task] for task in tasks], labels=by_head)
    return {task: outputs[HEADS[task]] for task in tasks}


def save_models(model: Sapiens2MultiTask, folder: Path, *, pad: bool = False) -> list[Path]:
    """Write each task as an ordinary checkpoint with its image processor; return their folders.

    A single task goes into `folder` itself, several into folders of their names.
    """
    height, width = model.config.image_hw
    processor = Sapiens2ImageProcessor(size={"height": height, "width": width}, do_pad=pad, label_resample=0)
    written = []
    for head in model.tasks:
        path = folder if len(model.tasks) == 1 else folder / task_of_head(head).name
        model.task_model(head).save_pretrained(path)
        processor.save_pretrained(path)
        written.append(path)
    return written


def open_models(source: str | Path) -> dict[str, Sapiens2TaskModel]:
    """Open what `save_models` wrote, or any checkpoint of one task: task → model, in evaluation mode."""
    folders, folder = _task_folders(source), Path(source).expanduser()
    if folder.is_dir() and not folders and not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(f"{source}: expected a checkpoint, or folders of tasks, got neither.")
    models: dict[str, Sapiens2TaskModel] = {}
    for path in folders.values() or [source]:
        config = Sapiens2Config.from_pretrained(path)
        task = _stored_task(config)
        if task is None:
            raise ConfigError(
                f"{path}: expected a Sapiens2 checkpoint of a task, got {', '.join(config.architectures or ['none'])}."
            )
        models[task] = HEAD_CLASSES[HEADS[task]].from_pretrained(path, strict=True)
    return models
