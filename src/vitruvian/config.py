"""Typed settings in JSON files: model configurations and, through the same base, image processors.

    config.json ── from_dict ──▶ Config (checked, typed fields; unknown keys in `extra`) ── to_dict ──▶ config.json

Unknown keys, of a file or of a constructor, are kept in `extra` and written back; a wrong type or an invalid value of a
known field is a `ConfigError`. So is an unknown name in a constructor that is one or two letters off a known one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import tempfile
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from vitruvian.errors import ConfigError, InputError, VitruvianError, check_names, near_matches
from vitruvian.filesystem.atomic import write_text
from vitruvian.filesystem.json_files import JsonObject, read_json_object
from vitruvian.hub import CONFIG_FILE, HubOptions, find_file, json_file, require_file, split_hub_options, upload
from vitruvian.limits import get_limits
from vitruvian.version import __version__

if TYPE_CHECKING:
    import torch

_TYPO_RATIO = 0.85  # similarity from which on an unknown name counts as a misspelled field

T = TypeVar("T")
Size = int | list[int] | tuple[int, int]  # a side, or height and width
# Words in the names of fields, and their limits.
_SIZE_LIMITS = (("layers|blocks|depths", "config_layers"), ("label", "config_labels"), ("queries", "config_queries"))


@typing.dataclass_transform(kw_only_default=True)
def config_dataclass(cls: type[T]) -> type[T]:
    """Decorate a class as a keyword-only dataclass whose constructor accepts aliases and keeps unknown names."""
    built = dataclasses.dataclass(kw_only=True, repr=False, eq=False)(cls)
    build = built.__init__
    known = {field.name for field in dataclasses.fields(built) if field.init}  # type: ignore[arg-type]

    @functools.wraps(build)
    def init(self: Any, **values: Any) -> None:
        values = self.upgrade(values)
        fields = {name: value for name, value in values.items() if name in known}
        extra = {name: value for name, value in values.items() if name not in known}
        typos = [name for name in extra if near_matches(name, known, cutoff=_TYPO_RATIO)]
        check_names(cls.__name__, typos, known, expected="the name of a field", error=ConfigError)
        if self.sizes_are_limited:
            for name in fields.keys() - {"extra"}:
                limit = next((limit for words, limit in _SIZE_LIMITS if re.search(words, name)), "config_size")
                _check_size(fields[name], limit, f"{cls.__name__}.{name}")
        build(self, **(fields | {"extra": values.get("extra", {}) | extra}))

    built.__init__ = init  # type: ignore[method-assign]
    return built


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `ge` or above `gt`, to `le` or below `lt`."""

    ge: float = -math.inf
    gt: float = -math.inf
    le: float = math.inf
    lt: float = math.inf

    def __contains__(self, number: float) -> bool:
        return self.ge <= number <= self.le and self.gt < number < self.lt

    def __str__(self) -> str:
        bounds = (("at least", self.ge), ("above", self.gt), ("at most", self.le), ("below", self.lt))
        return " and ".join(f"{word} {limit:g}" for word, limit in bounds if math.isfinite(limit)) or "a number"


def bounded(
    default: T, *, ge: float = -math.inf, gt: float = -math.inf, le: float = math.inf, lt: float = math.inf
) -> T:
    """Declare a field with a default and the range of its numbers, by default all; None is not checked."""
    declared: Any = dataclasses.field(default=default, metadata={"range": Range(ge, gt, le, lt)})
    return declared  # type: ignore[no-any-return]


@config_dataclass
class ConfigBase:
    """Typed fields in a JSON file. Subclasses use `@config_dataclass`; `__post_init__` may normalize their fields."""

    file_name: ClassVar[str] = CONFIG_FILE
    not_saved: ClassVar[frozenset[str]] = frozenset({"extra"})
    sizes_are_limited: ClassVar[bool] = False  # whether numbers are checked against `Limits` before anything is built
    attribute_map: ClassVar[dict[str, str]] = {}  # alias -> field
    sub_configs: ClassVar[dict[str, type[ConfigBase]]] = {}  # field that holds settings -> their class by default

    extra: JsonObject = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_fields()
        self.validate()

    def check_fields(self) -> None:
        """Raise `ConfigError` for a field with a value of the wrong type or out of its range.

        Where sizes are limited, an integer without a declared range is one: it is not negative.
        """
        _check_types(self)
        for field in dataclasses.fields(self):
            if "range" in field.metadata:
                self._check_range(field.name, field.metadata["range"])
            elif self.sizes_are_limited and type(getattr(self, field.name)) is int:
                self._check_range(field.name, Range(ge=0))

    def validate(self) -> None:
        """Raise `ConfigError` for fields that do not fit each other. Subclasses extend it."""

    def require_range(self, names: Iterable[str], lowest: float) -> None:
        """Raise `ConfigError` for the first of these fields with a number below `lowest`."""
        for name in names:
            self._check_range(name, Range(ge=lowest))

    def _check_range(self, name: str, allowed: Range) -> None:
        value = getattr(self, name)
        numbers = value if isinstance(value, list | tuple) else () if value is None else (value,)
        if not all(number in allowed for number in numbers):
            raise ConfigError(f"{type(self).__name__}.{name}: expected {allowed}, got {value}.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a JSON object; unknown keys are kept, `overrides` must be known fields.

        With `return_unused_kwargs`, the result is a pair: this, and the overrides that are not fields.
        """
        split = overrides.pop("return_unused_kwargs", False)
        known = {field.name for field in dataclasses.fields(cls) if field.init}
        renamed = {cls.attribute_map.get(name, name): value for name, value in overrides.items()}
        unused = {name: value for name, value in renamed.items() if name not in known}
        if not split:
            check_names(cls.__name__, unused, known, expected="the name of a field", error=ConfigError)
        values = cls.upgrade(dict(values)) | renamed
        extra = {name: value for name, value in values.items() if name not in known and name not in unused}
        built = cls(**{name: value for name, value in values.items() if name in known}, extra=extra)
        return (built, unused) if split else built  # type: ignore[return-value]

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Convert fields of older files and of other writers. A field has priority over its aliases."""
        for alias, name in cls.attribute_map.items():
            if alias in values:
                values.setdefault(name, values.pop(alias))
        return values

    def to_dict(self) -> JsonObject:
        """Return a JSON object: every field, then the unknown keys."""
        fields = {f.name: _to_json(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {key: value for key, value in fields.items() if key not in self.not_saved} | self.extra

    def to_diff_dict(self) -> JsonObject:
        """Return the part of `to_dict` that differs from the defaults."""
        defaults = type(self)().to_dict()
        return {k: v for k, v in self.to_dict().items() if k not in defaults or v != defaults[k]}

    def update(self, values: Mapping[str, Any]) -> None:
        """Set fields, and keep unknown keys."""
        for name, value in values.items():
            setattr(self, name, value)

    def to_json_string(self, use_diff: bool = False) -> str:
        """Return the text that `save_pretrained` writes, or only what differs from the defaults."""
        return json.dumps(self.to_diff_dict() if use_diff else self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | Path, use_diff: bool = False) -> None:
        """Write a JSON file, or only what differs from the defaults."""
        write_text(Path(json_file_path).expanduser(), self.to_json_string(use_diff))

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> Self:
        """Read a JSON file."""
        return cls.from_dict(read_json_object(Path(json_file).expanduser()))

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | Path, **keywords: Any
    ) -> tuple[JsonObject, dict[str, Any]]:
        """Return the JSON object of a checkpoint as it is, and the keywords that are not options of the Hub."""
        options, others = split_hub_options(keywords)
        source = pretrained_model_name_or_path
        return read_json_object(json_file(source) or require_file(source, cls.file_name, options)), others

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **keywords: Any) -> Self:
        """Read from a folder, a file or the Hub. Keywords are options of the Hub (`HubOptions`) or override fields.

        With `return_unused_kwargs`, the result is a pair: this, and the keywords that are neither.
        """
        values, overrides = cls.get_config_dict(pretrained_model_name_or_path, **keywords)
        return cls.from_dict(values, **overrides)

    def save_pretrained(self, save_directory: str | Path) -> list[Path]:
        """Write the JSON file into a folder, which is created if needed, and return its path in a list."""
        folder = Path(save_directory).expanduser()
        if folder.is_file():
            raise InputError(f"{folder}: expected a folder to save into, got a file. Choose another path.")
        path = folder / self.file_name
        write_text(path, self.to_json_string())
        return [path]

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to a Hub repository, created if needed, and return the commit URL; keywords of `hub.upload`."""
        with tempfile.TemporaryDirectory() as folder:
            return upload(self.save_pretrained(folder), repo_id, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        name = self.attribute_map.get(name, name)
        if name.startswith("_") or name in _type_hints(type(self)) or hasattr(type(self), name):  # type: ignore[arg-type]
            super().__setattr__(name, value)
        else:
            self.extra[name] = value  # kept and written back, as an unknown key of a file

    def __getattr__(self, name: str) -> Any:
        if name in self.attribute_map:
            return getattr(self, self.attribute_map[name])
        extra = self.__dict__.get("extra", {})
        if name in extra:
            return extra[name]
        known = [field.name for field in dataclasses.fields(self)]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}.{near_matches(name, known)}")

    def __iter__(self) -> Iterator[str]:
        return (name for name in [*_type_hints(type(self)), *self.extra] if name != "extra")  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string().rstrip()}"


@config_dataclass
class Config(ConfigBase):
    """The fields of every model configuration.

    Fields may change after the constructor, one by one. So `validate` runs where a model is built, rather than in the
    constructor.

    Args:
        architectures: Classes that the checkpoint was saved from.
        num_labels: Number of classes, keypoints or channels of a head; by default the length of `id2label`.
        id2label: Class index to name.
        label2id: Class name to index.
        dtype: Data type of the weights: a `torch.dtype`, or its name, which becomes one.
        output_hidden_states: Return the hidden states of all layers unless a call says otherwise.
        output_attentions: Return attention weights unless a call says otherwise.
        return_dict: Return a `ModelOutput` rather than a tuple unless a call says otherwise.
        name_or_path: Where the checkpoint was opened from; not saved.
        attn_implementation: How attention is computed: ``"sdpa"`` (the default), ``"eager"`` …; not saved. A table has
            an entry for each of `sub_configs`, and one under the empty name for the rest.
        is_encoder_decoder: Whether the model is an encoder and a decoder of sequences.
        problem_type: Loss of a classifier: ``"regression"``, ``"single_label_classification"`` or
            ``"multi_label_classification"``; by default it follows from the labels.
    """

    sizes_are_limited: ClassVar[bool] = True
    model_type: ClassVar[str] = ""
    not_saved: ClassVar[frozenset[str]] = frozenset({"extra", "num_labels", "name_or_path", "attn_implementation"})
    # Fields that `to_dict` leaves out where they have their default, since most files on the Hub are without them.
    written_unless_default: ClassVar[frozenset[str]] = frozenset(
        {"output_hidden_states", "output_attentions", "return_dict", "is_encoder_decoder", "problem_type"}
    )
    has_no_defaults_at_init: ClassVar[bool] = False
    # A field that a caller overrides -> fields of the file that it replaces.
    supersedes: ClassVar[dict[str, tuple[str, ...]]] = {
        "id2label": ("label2id", "num_labels"),
        "out_features": ("out_indices",),
        "out_indices": ("out_features",),
    }

    architectures: list[str] | None = None
    num_labels: int = bounded(0)  # `_set_label_count` checks it
    id2label: dict[int, str] | None = None
    label2id: dict[str, int | str] | None = None
    dtype: Any = None
    output_hidden_states: bool = False
    output_attentions: bool = False
    return_dict: bool = True
    name_or_path: str = ""
    attn_implementation: str | dict[str, str] | None = None
    is_encoder_decoder: bool = False
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None

    def __post_init__(self) -> None:
        self.id2label = _with_int_keys(self.id2label, type(self).__name__)
        self.check_fields()
        if self.id2label is None or (self.num_labels and self.num_labels != len(self.id2label)):
            _set_label_count(self, self.num_labels or 2)
        else:
            _set_label_names(self, self.id2label, self.label2id)
        if self.attn_implementation is not None:
            self._set_attn_implementation(self.attn_implementation)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.is_built and name == "num_labels" and value != self.num_labels:
            _set_label_count(self, value)
        elif self.is_built and name == "id2label" and value is not None:
            _set_label_names(self, _with_int_keys(value, type(self).__name__) or {})
        elif self.is_built and name in ("attn_implementation", "_attn_implementation"):
            self._set_attn_implementation(value)
        elif name == "dtype" and value is not None:
            super().__setattr__(name, checked_dtype(value, error=ConfigError))
        else:
            super().__setattr__(name, value)

    @property
    def is_built(self) -> bool:
        """Whether the constructor has finished."""
        return "_built" in self.__dict__

    def _set_attn_implementation(self, chosen: str | Mapping[str, str] | None) -> None:
        """Set the implementation of this configuration and of those inside it; a table sets those that it names."""
        table = chosen if isinstance(chosen, Mapping) else dict.fromkeys(["", *self.sub_configs], chosen)
        check_names("attn_implementation", [name for name in table if name], self.sub_configs, error=ConfigError)
        for name, value in table.items():
            part = self.__dict__.get(name)
            if not name:
                super().__setattr__("attn_implementation", value)
            elif isinstance(part, Config):
                part.attn_implementation = value

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a JSON object; unknown keys are preserved, `overrides` must be known fields and have priority."""
        stale = {old for new in overrides for old in cls.supersedes.get(new, ()) if old not in overrides}
        return super().from_dict({key: value for key, value in values.items() if key not in stale}, **overrides)

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Accept `torch_dtype`, the older name of `dtype`; check `model_type`, which belongs to the class."""
        stated = values.pop("model_type", cls.model_type)
        if cls.model_type and stated and stated != cls.model_type:
            parts = [part for part in values.values() if isinstance(part, Mapping)]
            inside = next((part for part in parts if part.get("model_type") == cls.model_type), None)
            if inside is not None:  # the file of a larger model
                return cls.upgrade(dict(inside))
            raise ConfigError(
                f"{cls.__name__}: expected model_type {cls.model_type!r}, got {stated!r}. "
                "Open it with AutoConfig, or with the classes of its family."
            )
        older = values.pop("torch_dtype", None)
        if older is not None and values.get("dtype") is None:
            values["dtype"] = older
        for name in ("_attn_implementation", "attn_implementation"):
            if isinstance(values.get(name), str | Mapping):
                values["attn_implementation"] = values.pop(name)
        return super().upgrade(values)

    def to_dict(self) -> JsonObject:
        """Return the JSON object of a `config.json` that transformers reads too."""
        values = super().to_dict()
        for field in dataclasses.fields(self):
            if field.name in self.written_unless_default and values.get(field.name) == field.default:
                values.pop(field.name)
        if self.dtype is not None:
            values["dtype"] = str(self.dtype).removeprefix("torch.")
        return values | {"model_type": self.model_type, "vitruvian_version": __version__}

    def to_diff_dict(self) -> JsonObject:
        """Return the part of `to_dict` that differs from the defaults, and the model type."""
        return super().to_diff_dict() | {"model_type": self.model_type}

    def validate(self) -> None:
        """Raise `ConfigError` for fields that do not fit each other, here or in a configuration inside."""
        for name in self.sub_configs:
            if isinstance(part := getattr(self, name), ConfigBase):
                part.validate()

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """Return the configuration of the part that reads text; models of images have none, and return their own."""
        return self

    @property
    def _attn_implementation(self) -> str | None:
        return None if isinstance(self.attn_implementation, Mapping) else self.attn_implementation

    @property
    def use_return_dict(self) -> bool:
        """Same as `return_dict`."""
        return self.return_dict


def _with_int_keys(names: Any, owner: str) -> Any:
    """Convert the keys of a table of class names from JSON's text to numbers; leave other values to the type check."""
    if not isinstance(names, Mapping):
        return names
    try:
        return {int(key): name for key, name in names.items()}
    except ValueError as error:
        raise ConfigError(f"{owner}.id2label: expected class numbers as keys, got {list(names)[:8]}.") from error


def as_hw(size: Size | None) -> tuple[int, int]:
    """Return (height, width) of a size that is a number (square) or a pair."""
    if isinstance(size, int):
        return size, size
    if size is None or len(size) != 2:
        raise ConfigError(f"size: expected a number or (height, width), got {size!r}.")
    return size[0], size[1]


def checked_dtype(value: torch.dtype | str, *, error: type[VitruvianError] = InputError) -> torch.dtype:
    """Return a floating-point type from itself or its name; raise `error` for anything else."""
    import torch  # configurations without a data type do not need it

    dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise error(f"dtype: expected a floating-point type such as 'float32' or 'bfloat16', got {value!r}.")
    return dtype


def _set_label_count(config: Config, count: int) -> None:
    """Set `count` labels with default names."""
    if count < 1:
        raise ConfigError(f"{type(config).__name__}.num_labels: expected at least 1, got {count}.")
    _check_size(count, "config_labels", f"{type(config).__name__}.num_labels")
    _set_label_names(config, {index: f"LABEL_{index}" for index in range(count)})


def _set_label_names(config: Config, names: dict[int, str], indices: dict[str, int | str] | None = None) -> None:
    """Set labels, and the fields that follow from them."""
    if indices is None:
        indices = {name: index for index, name in names.items()}
    config.__dict__.update(id2label=names, label2id=indices, num_labels=len(names), _built=True)


def nested(value: Any, cls: type[ConfigBase]) -> Any:
    """Convert a JSON object to a settings class; leave other values to the type check."""
    return cls.from_dict(value) if isinstance(value, Mapping) else value


def _to_json(value: Any) -> Any:
    """Convert the value of a field for JSON."""
    if isinstance(value, ConfigBase):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item) for item in value]
    return value


def read_config_dict(source: str | Path, options: HubOptions, file_name: str = CONFIG_FILE) -> JsonObject | None:
    """Return the JSON object of a checkpoint's settings file, or None where it has none."""
    path = find_file(source, file_name, options)
    return None if path is None else read_json_object(path)


def _check_size(value: object, limit: str, subject: str) -> None:
    """Raise `ConfigError` for an integer, the length of a table, or a number in a table that is above a limit."""
    if isinstance(value, int):
        get_limits().check(limit, value, subject=subject, error=ConfigError)
    elif isinstance(value, Mapping | list | tuple):
        get_limits().check("config_labels", len(value), subject=subject, error=ConfigError)
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_size(item, limit, subject)


def _check_types(record: ConfigBase) -> None:
    """Raise `ConfigError` for the first field whose value does not have the annotated type."""
    for name, hint in _type_hints(type(record)).items():  # type: ignore[arg-type]
        value = getattr(record, name)
        if not _has_type(value, hint):
            raise ConfigError(f"{type(record).__name__}.{name}: expected {_type_name(hint)}, got {value!r}.")


@functools.cache
def _type_hints(cls: type[ConfigBase]) -> dict[str, Any]:
    """Return the annotation of each field."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether `value` has the type `hint`; int counts as float and lists as tuples, as in JSON."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_has_type(value, option) for option in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, (list, tuple)) and all(_has_type(item, arguments[0]) for item in value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False
        kinds = arguments[:1] * len(value) if arguments[-1:] == (...,) else arguments
        return len(value) == len(kinds) and all(map(_has_type, value, kinds))
    if origin is dict:
        return isinstance(value, Mapping) and all(
            _has_type(key, arguments[0]) and _has_type(item, arguments[1]) for key, item in value.items()
        )
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint or type(None))


def _type_name(hint: Any) -> str:
    """Return an annotation as text."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")
