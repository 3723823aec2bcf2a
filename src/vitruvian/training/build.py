"""From a configuration to a model to train, and from a trained model to checkpoints that open anywhere.

ModelPart ── build_model ──▶ Sapiens2MultiTask ── save_models ──▶ RUN/model/ (one task) or RUN/model/TASK/ (several)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitruvian.errors import CheckpointError, ConfigError
from vitruvian.hub import CONFIG_FILE, HubOptions
from vitruvian.models.sapiens2.configuration import Sapiens2Config, Sapiens2HeadConfig, task_fields
from vitruvian.models.sapiens2.encoder import Layer
from vitruvian.models.sapiens2.heads import DecodeHead
from vitruvian.models.sapiens2.modeling import Sapiens2Model, Sapiens2TaskModel
from vitruvian.models.sapiens2.multitask import TASK_CLASSES, Sapiens2MultiTask
from vitruvian.models.sapiens2.packed import packed_table
from vitruvian.models.sapiens2.processing import Sapiens2ImageProcessor
from vitruvian.training.config import ModelPart
from vitruvian.training.views import TrainBatch, read_losses

PEOPLE_HEAD = {"upsample_out_channels": [256], "conv_out_channels": [128]}
STEMS = ("upsample", "conv", "scale_conv")


class TaskObjective(nn.Module):
    """Tasks over one encoder with the sum of their losses: what a run over a folder minimises.

    Args:
        model: The tasks.
        weights: What the loss of a task is multiplied by; 1 where none is given.
    """

    def __init__(self, model: Sapiens2MultiTask, weights: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self.model, self.weights = model, dict(weights or {})

    def forward(self, batch: TrainBatch, generator: torch.Generator | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its terms by name; no chance beside torch's own is needed, so `generator` is not read."""
        return read_losses(self.model(batch.pixel_values, labels=batch.labels), self.weights)


def build_model(part: ModelPart) -> Sapiens2MultiTask:
    """Build the tasks of a configuration over one encoder, fresh or from a checkpoint, in float32."""
    common = {"image_size": list(part.image_size), "use_loss_recipe": part.loss_recipe, **part.encoder}
    if part.pretrained is None:
        encoder = Sapiens2Config.variant(part.variant, **common)
        return finished(Sapiens2MultiTask(encoder, {task: head_fields(part, task, None) for task in part.tasks}), part)
    packed = packed_table(part.pretrained, HubOptions())
    if packed is not None:
        return finished(from_packed(part, part.pretrained, packed, common), part)
    source = several(part.pretrained) or {None: Path(part.pretrained)}
    encoder = Sapiens2Config.from_pretrained(next(iter(source.values())), **common)
    configs = {task: Sapiens2Config.from_pretrained(place, **common) for task, place in source.items()}
    stored = {task: head for config in configs.values() for task, head in stored_heads(config).items()}
    model = Sapiens2MultiTask(encoder, {task: head_fields(part, task, stored.get(task)) for task in part.tasks})
    for place, config in zip(source.values(), configs.values(), strict=True):
        load_pretrained(model, str(place), config, [task for task in stored_heads(config) if task in part.tasks])
    return finished(model, part)


def from_packed(part: ModelPart, source: str, packed: list[str], common: dict[str, Any]) -> Sapiens2MultiTask:
    """Start from tasks that share one encoder in one folder, as those of ``"builtin"`` do.

    Tasks that it does not have, and heads that were asked for otherwise, start fresh.
    """
    opened = Sapiens2MultiTask.from_pretrained(source, tasks=[task for task in part.tasks if task in packed])
    stored = {task: stored_heads(opened.task_model(task).config)[task] for task in opened.tasks}
    encoder = Sapiens2Config.from_pretrained(source, **common)
    model = Sapiens2MultiTask(encoder, {task: head_fields(part, task, stored.get(task)) for task in part.tasks})
    model.encoder.load_state_dict(opened.encoder.state_dict())
    for task in opened.tasks:
        mine, theirs = model.task_model(task), opened.task_model(task)
        if mine.config.head_config == theirs.config.head_config:
            mine.load_state_dict(theirs.state_dict())
    return model


def finished(model: Sapiens2MultiTask, part: ModelPart) -> Sapiens2MultiTask:
    """Make a model ready to be trained."""
    if part.gradient_checkpointing:
        model.encoder.gradient_checkpointing_enable()
    return model.train()


def compile_parts(model: nn.Module, *, heads: bool) -> None:
    """Compile the layers of encoders and, where asked, the heads, each by itself.

    Layers are alike, so that one is compiled and the others take its code: far quicker than the model as a whole.
    """
    # One program for each kind of layer or head and each shape of batch.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    for module in model.modules():
        if isinstance(module, Layer) or (heads and isinstance(module, DecodeHead)):
            module.compile(dynamic=False)


def several(source: str | Path) -> dict[Any, Path]:
    """Folders of the tasks that `save_models` wrote into one; none where `source` is a checkpoint itself."""
    folder = Path(source).expanduser()
    if not folder.is_dir() or (folder / CONFIG_FILE).is_file():
        return {}
    if (folder / "model").is_dir():  # the folder of a run
        inner = folder / "model"
        return several(inner) or {None: inner}
    return {task: folder / task for task in TASK_CLASSES if (folder / task / CONFIG_FILE).is_file()}


def stored_heads(config: Sapiens2Config) -> dict[str, dict[str, Any]]:
    """The heads that a checkpoint of one task holds: none, or one."""
    named = config.architectures or []
    found = [task for task, cls in TASK_CLASSES.items() if cls.__name__ in named]
    return {} if config.head_config is None else {task: config.head_config.to_dict() for task in found}


def head_fields(part: ModelPart, task: str, stored: dict[str, Any] | None) -> dict[str, Any]:
    """Fields of a task's head: the checkpoint's or the published ones, with the configuration's changes."""
    if stored is not None:
        base = dict(stored)
    else:
        base = dict(PEOPLE_HEAD if task == "people" else task_fields(task, part.variant)["head_config"])
    base.pop("model_type", None)
    changes = part.heads.get(task, {})
    for stem in STEMS:  # kernel sizes come in lists beside channels: other channels, other lists
        sizes = base.get(f"{stem}_kernel_sizes")
        if f"{stem}_out_channels" in changes and f"{stem}_kernel_sizes" not in changes and sizes:
            base[f"{stem}_kernel_size"] = sizes[0]
            base.pop(f"{stem}_kernel_sizes")
    fields = base | changes
    Sapiens2HeadConfig(**fields)  # names the field that is wrong
    return fields


def load_pretrained(model: Sapiens2MultiTask, source: str, encoder: Sapiens2Config, tasks: list[str]) -> None:
    """Put the weights of a checkpoint into the encoder, and into the head of a task that it was trained for."""
    opened = Sapiens2Model.from_pretrained(source, config=encoder, dtype=torch.float32)
    model.encoder.load_state_dict(opened.state_dict())
    for task in tasks:
        mine = model.task_model(task)
        asked, stored = mine.config.head_config, encoder.head_config
        if asked is not None and stored is not None and asked.to_dict() != stored.to_dict():
            continue  # another head was asked for, and starts fresh
        whole = TASK_CLASSES[task].from_pretrained(source, config=mine.config, dtype=torch.float32)
        mine.load_state_dict(whole.state_dict())


def head_strides(model: nn.Module) -> dict[str, int]:
    """Pixels of the picture for one of each task's output: 1 where a head predicts at full size."""
    found: dict[str, int] = {}
    if not isinstance(model, Sapiens2MultiTask):
        return found
    for task in model.tasks:
        config = model.task_model(task).config
        head = config.head_config
        size = 2 ** len((head.upsample_out_channels if head else None) or [])
        if config.token_hw[0] % size:
            raise ConfigError(
                f"model.heads.{task}.upsample_out_channels: expected at most {config.token_hw[0].bit_length() - 1} "
                f"blocks for tokens of {config.token_hw[0]} pixels, since the picture is no larger."
            )
        found[task] = config.token_hw[0] // size
    return found


def save_models(model: Sapiens2MultiTask, folder: Path, *, pad: bool = False) -> list[Path]:
    """Write each task as an ordinary checkpoint with its image processor; return their folders.

    A single task goes into `folder` itself, several into folders of their names.
    """
    height, width = model.config.image_hw
    processor = Sapiens2ImageProcessor(size={"height": height, "width": width}, do_pad=pad, label_resample=0)
    written = []
    for task in model.tasks:
        place = folder if len(model.tasks) == 1 else folder / task
        model.task_model(task).save_pretrained(place)
        processor.save_pretrained(place)
        written.append(place)
    return written


def open_models(source: str | Path) -> dict[str, Sapiens2TaskModel]:
    """Open what `save_models` wrote, or any checkpoint of one task: task → model, in evaluation mode."""
    folders = several(source)
    if Path(source).expanduser().is_dir() and not folders and not (Path(source).expanduser() / CONFIG_FILE).is_file():
        raise CheckpointError(f"{source}: expected a checkpoint, or folders of tasks, found neither.")
    found: dict[str, Sapiens2TaskModel] = {}
    for place in folders.values() or [source]:
        config = Sapiens2Config.from_pretrained(place)
        heads = list(stored_heads(config))
        if not heads:
            raise ConfigError(
                f"{place}: expected a Sapiens2 checkpoint of a task, got {', '.join(config.architectures or ['none'])}."
            )
        found[heads[0]] = TASK_CLASSES[heads[0]].from_pretrained(place)
    return found
