"""The configuration of a training run: typed tables, read from TOML or JSON, changed by ``--set optimizer.lr=1e-3``.

    run.toml ── read_training_config ──▶ TrainConfig ── with_changes(["optimizer.lr=1e-3"]) ──▶ TrainConfig

These files are written by people: unlike in the configuration of a checkpoint, an unknown name is an error.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from vitruvian import tasks
from vitruvian.config import ConfigBase, bounded, config_dataclass
from vitruvian.errors import ConfigError, InputError, check_names
from vitruvian.filesystem.atomic import write_text
from vitruvian.filesystem.json_files import read_json_object, read_text

TRAINED_TASKS = tuple(task.name for task in tasks.TASKS.values() if task.sapiens2_head is not None)


@config_dataclass
class _ConfigTable(ConfigBase):
    """A table of a training configuration. Unknown names raise `ConfigError`."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a table; tables inside it too."""
        built: Self = _build(cls, {**values, **overrides}, path="")
        return built


@config_dataclass
class ModelConfig(_ConfigTable):
    """What is trained.

    Args:
        tasks: One or more of pose, parts, normals, pointmap, matte, albedo, people, over one encoder.
        variant: Encoder of a published size: 0.1b, 0.4b, 0.8b, 1b, 5b.
        pretrained: Folder or Hub name of a checkpoint to start from: its encoder, and its head where the configuration
            is the same; or the folder of an earlier run. Without it all weights are random.
        image_size: Height and width of the input.
        encoder: Fields of `Sapiens2Config` to change, such as ``hidden_size``.
        heads: For a task, fields of its `Sapiens2HeadConfig` to change.
        loss_weights: For a task, the weight of its loss. By default 1 for one task, and for several, weights that
            bring them to one scale.
        loss_recipe: Train with the losses of the published recipe; otherwise with those of the built-in model, see
            `vitruvian.training.objectives.Objective`.
        gradient_checkpointing: Recompute layers in the backward pass, to save memory.
        compile: Compile the encoder's layers and the heads with torch.compile; "layers" leaves out the heads, which
            takes half of the compile time.
    """

    tasks: list[str] = dataclasses.field(default_factory=lambda: ["pose"])
    variant: str = "0.1b"
    pretrained: str | None = None
    image_size: list[int] = dataclasses.field(default_factory=lambda: [1024, 768])
    encoder: dict[str, Any] = dataclasses.field(default_factory=dict)
    heads: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    loss_weights: dict[str, float] = dataclasses.field(default_factory=dict)
    loss_recipe: bool = True
    gradient_checkpointing: bool = False
    compile: bool | Literal["layers"] = False

    def validate(self) -> None:
        """Check names of tasks and the image size."""
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise ConfigError(f"model.tasks: expected one or more different tasks, got {self.tasks}.")
        check_names("model.tasks", self.tasks, TRAINED_TASKS, error=ConfigError)
        for field in ("heads", "loss_weights"):
            check_names(f"model.{field}", getattr(self, field), self.tasks, error=ConfigError)
        if any(weight < 0 for weight in self.loss_weights.values()):
            raise ConfigError(f"model.loss_weights: expected numbers of at least 0, got {self.loss_weights}.")
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise ConfigError(f"model.image_size: expected [height, width], got {self.image_size}.")


@config_dataclass
class AugmentConfig(_ConfigTable):
    """Random changes of images. Zero everywhere disables them.

    Args:
        flip: Probability of mirroring; left and right labels are swapped.
        scale: Largest change of size: 0.25 is ÷1.25 to ×1.25.
        shift: Largest shift, as a fraction of the crop.
        color: Largest change of exposure, contrast and saturation, and half that of the tint of the light.
        gray: Probability of a grayscale image.
    """

    flip: float = bounded(0.5, ge=0, le=1)
    scale: float = bounded(0.25, ge=0, le=1)
    shift: float = bounded(0.08, ge=0, le=1)
    color: float = bounded(0.2, ge=0, le=1)
    gray: float = bounded(0.05, ge=0, le=1)


@config_dataclass
class StreamConfig(_ConfigTable):
    """Synthetic people that are rendered while training: see `vitruvian.training.datasets.stream`.

    Args:
        pack: File of an asset pack, or "procedural" for capsule people, which need no file; None for no stream.
        scenes: Whole images per batch, in addition to `data.batch_size` crops of one person; needed to detect people.
        ring: People in the ring buffer on the device.
        chunk: People rendered together.
        reuse: How often a person is used before it is replaced.
        tasks_per_step: How many of normals, pointmap, matte and albedo a step trains, at random; None for all.
        size: Height and width of the images where they differ from those of the model.
    """

    pack: str | None = None
    scenes: int = bounded(0, ge=0)
    ring: int = bounded(4096, ge=1)
    chunk: int = bounded(64, ge=1)
    reuse: float = bounded(6.0, gt=0)
    tasks_per_step: int | None = bounded(None, ge=1)
    size: list[int] | None = None

    def validate(self) -> None:
        """Check the size."""
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ConfigError(f"data.stream.size: expected [height, width], got {self.size}.")


@config_dataclass
class DataConfig(_ConfigTable):
    """Where batches come from.

    Args:
        folder: A dataset that `vitruvian synthesize` wrote, to train on.
        stream: People to render while training, instead of a folder.
        validation: Another dataset, to evaluate on.
        batch_size: Images per batch on each device.
        workers: Prefetching threads; 0 reads in the main thread.
        view: "person" crops each person, as for pose estimation; "image" takes whole images.
        heatmap_sigma: Sigma of keypoints in heatmap pixels; by default 6 at 256 rows, and in proportion.
        augment: Random changes of images.
    """

    folder: str | None = None
    stream: StreamConfig = dataclasses.field(default_factory=StreamConfig)
    validation: str | None = None
    batch_size: int = bounded(8, ge=1)
    workers: int = bounded(4, ge=0)
    view: Literal["person", "image"] = "person"
    heatmap_sigma: float | None = bounded(None, gt=0)
    augment: AugmentConfig = dataclasses.field(default_factory=AugmentConfig)

    def validate(self) -> None:
        """Check that there is one source, and the ring buffer."""
        if self.folder is not None and self.stream.pack is not None:
            raise ConfigError("data: folder and stream.pack cannot be combined. Leave one out.")
        stream = self.stream
        if stream.pack is not None and (stream.ring % stream.chunk or stream.ring < self.batch_size):
            raise ConfigError(
                f"data.stream.ring: expected a multiple of chunk={stream.chunk} of at least {self.batch_size}, got "
                f"{stream.ring}."
            )


@config_dataclass
class OptimizerConfig(_ConfigTable):
    """AdamW or Muon; the defaults are those of the published recipes.

    Args:
        kind: "adamw", or "muon", which turns the matrices of the encoder's layers into orthogonal steps and needs fewer
            of them; everything else gets AdamW, and both take the same learning rate and decay.
        lr: Learning rate of the heads at its highest.
        betas: Decay of the two moments.
        eps: Smallest divisor.
        weight_decay: For matrices; norms, biases, tokens and layer scales have none.
        layer_decay: Factor of the learning rate from one layer to the one below it; 1 treats all alike.
        clip: Largest norm of the gradient; None leaves it.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    lr: float = bounded(5e-4, ge=0)
    betas: tuple[float, float] = bounded((0.9, 0.999), ge=0, lt=1)
    eps: float = bounded(1e-8, ge=0)
    weight_decay: float = bounded(0.1, ge=0)
    layer_decay: float = bounded(0.8, gt=0, le=1)
    clip: float | None = bounded(2.0, gt=0)


@config_dataclass
class ScheduleConfig(_ConfigTable):
    """The schedule of the learning rate.

    Args:
        warmup: Steps of linear growth from `warmup_start`.
        warmup_start: Fraction of the learning rate at the first step.
        hold: Fraction of the remaining steps at the full learning rate.
        decay: "linear", "cosine" or "constant" from there on.
        final: Fraction of the learning rate after the last step.
    """

    warmup: int = bounded(500, ge=0)
    warmup_start: float = bounded(1e-3, ge=0, le=1)
    hold: float = bounded(0.0, ge=0, le=1)
    decay: Literal["linear", "cosine", "constant"] = "linear"
    final: float = bounded(0.0, ge=0, le=1)


@config_dataclass
class EMAConfig(_ConfigTable):
    """The exponential moving average of weights (EMA), which is evaluated and saved.

    Args:
        decay: Decay of the average at each step; 0 for no average.
        warmup: The decay is ``(1 + n) / (warmup + n)`` after n steps where that is lower; 0 for no warm-up.
    """

    decay: float = bounded(0.999, ge=0, lt=1)
    warmup: int = bounded(10, ge=0)


@config_dataclass
class CheckpointConfig(_ConfigTable):
    """Checkpoints to resume from.

    Args:
        every: Steps between checkpoints; there is always one at the end.
        keep: Number of checkpoints to keep.
        models: Write the models with every checkpoint, and not only at the end.
        resume: "auto" resumes from the last checkpoint of the run's folder, "never" raises for a folder that has one,
            and a path resumes from that checkpoint.
    """

    every: int = bounded(1000, ge=1)
    keep: int = bounded(2, ge=1)
    models: bool = True
    resume: str = "auto"


@config_dataclass
class LogConfig(_ConfigTable):
    """Logging.

    Args:
        every: Steps between lines.
        console: Show progress on the terminal.
        tensorboard: Write events for TensorBoard where that is installed. `metrics.jsonl` is always written.
    """

    every: int = bounded(20, ge=1)
    console: bool = True
    tensorboard: bool = True


@config_dataclass
class EvaluationConfig(_ConfigTable):
    """When to evaluate.

    Args:
        every: Steps between evaluations; there is always one at the end, if there is a validation dataset.
        images: Number of crops of the validation dataset; None for all.
        batch_size: Images per batch.
    """

    every: int = bounded(1000, ge=1)
    images: int | None = bounded(None, ge=1)
    batch_size: int = bounded(16, ge=1)


@config_dataclass
class TrainConfig(_ConfigTable):
    """A training run.

    Args:
        out: Folder of the run.
        steps: Number of optimizer steps.
        seed: Seed of initialization, data order and augmentation.
        precision: "bfloat16" runs the model in bfloat16 with weights in float32.
        accumulation: Batches for each step.
        device: "auto" for the device that accelerate selects, or "cpu".
        max_nonfinite_steps: Consecutive steps with gradients that are not finite, after which training stops.
        model: What is trained.
        data: Where batches come from.
        optimizer: AdamW or Muon.
        schedule: The schedule of the learning rate.
        ema: The exponential moving average of weights.
        checkpoint: Checkpoints to resume from.
        log: Logging.
        evaluation: When to evaluate.
    """

    file_name: ClassVar[str] = "train.json"

    out: str = "run"
    steps: int = bounded(10000, ge=1)
    seed: int = bounded(0, ge=0)
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    accumulation: int = bounded(1, ge=1)
    device: Literal["auto", "cpu"] = "auto"
    max_nonfinite_steps: int = bounded(20, ge=1)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = dataclasses.field(default_factory=ScheduleConfig)
    ema: EMAConfig = dataclasses.field(default_factory=EMAConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    evaluation: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)

    def validate(self) -> None:
        """Check what depends on several fields."""
        if not self.out:
            raise ConfigError("out: expected a folder for the run, got nothing.")
        if "people" in self.model.tasks and self.data.stream.pack is not None and not self.data.stream.scenes:
            raise ConfigError("data.stream.scenes: expected at least 1: people are detected in whole images.")


def read_training_config(path: str | Path, changes: Iterable[str] = ()) -> TrainConfig:
    """Read a configuration from a .toml or .json file, and apply changes such as ``optimizer.lr=1e-3``."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError(f"{file}: file not found. Check the path of the configuration.")
    if file.suffix == ".json":
        values = read_json_object(file)
    elif file.suffix == ".toml":
        try:
            values = tomllib.loads(read_text(file))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: expected TOML, but {error}. Correct the file.") from error
    else:
        raise InputError(f"{file}: expected a file that ends in .toml or .json, got {file.suffix or 'no ending'!r}.")
    return with_changes(values, changes)


def with_changes(values: TrainConfig | Mapping[str, Any], changes: Iterable[str]) -> TrainConfig:
    """Return a configuration with ``name.name=value`` applied; values are read as JSON, or as text."""
    table = values.to_dict() if isinstance(values, TrainConfig) else json.loads(json.dumps(dict(values)))
    for change in changes:
        path, equals, text = change.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise InputError(f"--set {change}: expected name=value, such as optimizer.lr=1e-3.")
        inner = table
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {change}: {key} is a value, not a table.")
        inner[keys[-1]] = _parse_value(text.strip())
    return TrainConfig.from_dict(table)


def write_config(config: TrainConfig, folder: Path) -> Path:
    """Write a configuration into the folder of its run."""
    path = folder / TrainConfig.file_name
    write_text(path, json.dumps(config.to_dict(), indent=2) + "\n")
    return path


def differences(old: Mapping[str, object], new: Mapping[str, object], path: str = "") -> list[str]:
    """Name the fields in which two configurations differ, as ``table.field: old → new``."""
    lines: list[str] = []
    for key in dict.fromkeys([*old, *new]):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{path}{key}.")
        elif a != b:
            lines.append(f"{path}{key}: {a!r} → {b!r}")
    return lines


def _parse_value(text: str) -> object:
    """Read ``1e-3``, ``true``, ``null``, ``[1, 2]`` or ``"quoted"`` as JSON, and anything else as text."""
    try:
        value: object = json.loads(text)
        return value
    except json.JSONDecodeError:
        return text


def _build(cls: type[Any], values: Mapping[str, Any], *, path: str) -> Any:
    """Build a table of the configuration and those inside it, with errors that name the whole path."""
    hints = typing.get_type_hints(cls)
    known = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.name != "extra"}
    fields: dict[str, Any] = {}
    check_names(path.rstrip(".") or "settings", values, known, error=ConfigError)
    for name, value in values.items():
        hint = known[name]
        inner = isinstance(hint, type) and issubclass(hint, _ConfigTable)
        if inner and isinstance(value, Mapping):
            value = _build(hint, value, path=f"{path}{name}.")
        elif inner and not isinstance(value, hint):
            raise ConfigError(f"{path}{name}: expected a table of settings, got {value!r}.")
        elif typing.get_origin(hint) is tuple and isinstance(value, list):
            value = tuple(value)
        fields[name] = value
    try:
        return cls(**fields)
    except ConfigError as error:  # say optimizer.lr, as the file does, and not OptimizerConfig.lr
        raise ConfigError(str(error).replace(f"{cls.__name__}.", path, 1)) from None
