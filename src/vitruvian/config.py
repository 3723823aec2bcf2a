"""Typed settings that live in JSON files: model configurations and, through the same base, image processors.

    config.json ── from_dict ──▶ Config (checked, typed fields; unknown keys kept in `extra`) ── to_dict ──▶ config.json

Reading is tolerant of what other writers add, strict on what we know: a wrong type or an impossible value is a
`ConfigError` that names the field, the value and what is allowed. A constructor call takes known names only.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from vitruvian.atomic import write_text
from vitruvian.errors import CheckpointError, ConfigError, InputError, near_matches
from vitruvian.hub import CONFIG_FILE, HubOptions, find_file, json_file, require_file, upload
from vitruvian.version import __version__

T = TypeVar("T")


@typing.dataclass_transform(kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """Make a class of typed fields into a keyword-only dataclass whose constructor explains unknown names."""
    made = dataclasses.dataclass(kw_only=True, repr=False, eq=False)(cls)
    build = made.__init__
    known = {field.name for field in dataclasses.fields(made) if field.init}  # type: ignore[arg-type]

    @functools.wraps(build)
    def init(self: Any, **values: Any) -> None:
        for name in values:
            if name not in known:
                raise ConfigError(f"{cls.__name__}: has no field {name!r}.{near_matches(name, known)}")
        build(self, **values)

    made.__init__ = init  # type: ignore[method-assign]
    return made


@settings
class Settings:
    """Fields ⇄ JSON. Subclasses are written with `@settings` and may normalise themselves in `__post_init__`."""

    file_name: ClassVar[str] = CONFIG_FILE
    not_saved: ClassVar[frozenset[str]] = frozenset({"extra"})

    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self)
        self.validate()

    def validate(self) -> None:
        """Raise `ConfigError` for values that have the right type but cannot work. Subclasses extend it."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a JSON object; unknown keys are kept, `overrides` must be known fields."""
        known = {field.name for field in dataclasses.fields(cls) if field.init}
        values = cls.upgrade(dict(values))
        fields = {key: value for key, value in values.items() if key in known}
        extra = {key: value for key, value in values.items() if key not in known}
        return cls(**(fields | {"extra": extra} | overrides))

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Translate spellings of older or foreign files into today's fields."""
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object: every field, then the unknown keys that were read."""
        fields = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {key: value for key, value in fields.items() if key not in self.not_saved} | self.extra

    def to_json_string(self) -> str:
        """Return the text that `save_pretrained` writes."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
        subfolder: str = "",
        **overrides: Any,
    ) -> Self:
        """Read from a folder, a file or the Hub; further keywords override fields."""
        options = HubOptions(
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            local_files_only=local_files_only,
            force_download=force_download,
            subfolder=subfolder,
        )
        source = pretrained_model_name_or_path
        return cls.from_dict(read_json(json_file(source) or require_file(source, cls.file_name, options)), **overrides)

    def save_pretrained(self, save_directory: str | Path) -> list[Path]:
        """Write the JSON file into a folder (made if needed) and return what was written."""
        folder = Path(save_directory).expanduser()
        if folder.is_file():
            raise InputError(f"{folder}: expected a folder to save into, got a file. Choose another path.")
        path = folder / self.file_name
        write_text(path, self.to_json_string())
        return [path]

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Save to a Hub repository (made if needed) and return the commit's address; keywords as in `hub.upload`."""
        with tempfile.TemporaryDirectory() as folder:
            return upload(self.save_pretrained(folder), repo_id, **options)

    def __getattr__(self, name: str) -> Any:
        extra = self.__dict__.get("extra", {})
        if name in extra:
            return extra[name]
        known = [field.name for field in dataclasses.fields(self)]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}.{near_matches(name, known)}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string().rstrip()}"


@settings
class Config(Settings):
    """What every model configuration has, beside the fields of its family.

    Args:
        architectures: Names of the classes the checkpoint was saved from; `AutoModel` opens the first.
        num_labels: Number of classes, keypoints or channels a head predicts; follows from `id2label` if that is given.
        id2label: Class index to name.
        label2id: Class name to index.
        dtype: Data type of the weights, such as ``"bfloat16"``.
        output_hidden_states: Return the hidden states of all layers unless a call says otherwise.
        output_attentions: Return attention weights unless a call says otherwise.
        return_dict: Return a `ModelOutput` rather than a tuple unless a call says otherwise.
        name_or_path: Where the checkpoint was opened; not saved.
        attn_implementation: How attention is computed: ``"sdpa"`` (the default), ``"eager"`` …; not saved.
    """

    model_type: ClassVar[str] = ""
    not_saved: ClassVar[frozenset[str]] = frozenset({"extra", "num_labels", "name_or_path", "attn_implementation"})
    written_unless_default: ClassVar[frozenset[str]] = frozenset(
        {"output_hidden_states", "output_attentions", "return_dict"}
    )
    # A field that a caller overrides -> fields of the file that said the same thing in another way.
    supersedes: ClassVar[dict[str, tuple[str, ...]]] = {
        "id2label": ("label2id", "num_labels"),
        "out_features": ("out_indices",),
        "out_indices": ("out_features",),
    }

    architectures: list[str] | None = None
    num_labels: int = 0
    id2label: dict[int, str] | None = None
    label2id: dict[str, int] | None = None
    dtype: str | None = None
    output_hidden_states: bool = False
    output_attentions: bool = False
    return_dict: bool = True
    name_or_path: str = ""
    attn_implementation: str | None = None

    def __post_init__(self) -> None:
        self.id2label = by_index(self.id2label, type(self).__name__)
        if self.dtype is not None:
            self.dtype = str(self.dtype).removeprefix("torch.")
        super().__post_init__()
        if self.id2label is None or (self.num_labels and self.num_labels != len(self.id2label)):
            set_label_count(self, self.num_labels or 2)
        else:
            set_label_names(self, self.id2label, self.label2id)

    def __setattr__(self, name: str, value: Any) -> None:
        ready = "_ready" in self.__dict__  # the constructor sets fields one by one and makes them agree at its end
        if ready and name == "num_labels" and value != self.num_labels:
            set_label_count(self, value)
        elif ready and name == "id2label" and value is not None:
            set_label_names(self, by_index(value, type(self).__name__) or {})
        else:
            object.__setattr__(self, name, value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a JSON object; unknown keys are kept, `overrides` must be known fields and win over the file."""
        stale = {old for new in overrides for old in cls.supersedes.get(new, ()) if old not in overrides}
        return super().from_dict({key: value for key, value in values.items() if key not in stale}, **overrides)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Accept `torch_dtype`, the older spelling of `dtype`; `model_type` belongs to the class."""
        stated = values.pop("model_type", cls.model_type)
        if cls.model_type and stated and stated != cls.model_type:
            raise ConfigError(
                f"{cls.__name__}: expected model_type {cls.model_type!r}, got {stated!r}. "
                "Open it with AutoConfig, or with the classes of its own family."
            )
        older = values.pop("torch_dtype", None)
        if older is not None and values.get("dtype") is None:
            values["dtype"] = older
        for name in ("_attn_implementation", "attn_implementation"):
            if isinstance(values.get(name), str):
                values["attn_implementation"] = values.pop(name)
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a `config.json` that transformers reads too."""
        values = super().to_dict()
        for field in dataclasses.fields(self):
            if field.name in self.written_unless_default and values.get(field.name) == field.default:
                values.pop(field.name)
        return values | {"model_type": self.model_type, "vitruvian_version": __version__}

    @property
    def use_return_dict(self) -> bool:
        """Same as `return_dict`."""
        return self.return_dict


def by_index(names: Any, owner: str) -> Any:
    """Read a table of class names, whose keys JSON keeps as text; leave other values to the type check."""
    if not isinstance(names, Mapping):
        return names
    try:
        return {int(key): name for key, name in names.items()}
    except ValueError as error:
        raise ConfigError(f"{owner}.id2label: expected class numbers as keys, got {list(names)[:8]}.") from error


def set_label_count(config: Config, count: int) -> None:
    """Give `config` `count` labels with neutral names, replacing what it had."""
    if count < 1:
        raise ConfigError(f"{type(config).__name__}.num_labels: expected at least 1, got {count}.")
    set_label_names(config, {index: f"LABEL_{index}" for index in range(count)})


def set_label_names(config: Config, names: dict[int, str], indices: dict[str, int] | None = None) -> None:
    """Give `config` these labels; what says the same thing in another way follows."""
    if indices is None:
        indices = {name: index for index, name in names.items()}
    config.__dict__.update(id2label=names, label2id=indices, num_labels=len(names), _ready=True)


def nested(value: Any, cls: type[Settings]) -> Any:
    """Turn a JSON object into the settings class it describes; leave other values to the type check."""
    return cls.from_dict(value) if isinstance(value, Mapping) else value


def plain(value: Any) -> Any:
    """Turn a field's value into what JSON holds."""
    if isinstance(value, Settings):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file, with errors that name the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: expected JSON, but {error}. Download or write the file again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}. Is this the right file?")
    return value


def read_config_dict(source: str | Path, options: HubOptions, file_name: str = CONFIG_FILE) -> dict[str, Any] | None:
    """Return the JSON object of a checkpoint's settings file, or None where it has none."""
    path = find_file(source, file_name, options)
    return None if path is None else read_json(path)


def check_types(record: Settings) -> None:
    """Raise `ConfigError` for the first field whose value does not have the annotated type."""
    for name, (hint, accepts) in field_checks(type(record)).items():  # type: ignore[arg-type]
        value = getattr(record, name)
        if not accepts(value):
            raise ConfigError(f"{type(record).__name__}.{name}: expected {spell(hint)}, got {value!r}.")


@functools.cache
def field_checks(cls: type[Settings]) -> dict[str, tuple[Any, Callable[[Any], bool]]]:
    """Return for each field its annotation and a function that tells whether a value fits it."""
    hints = typing.get_type_hints(cls)
    return {f.name: (hints[f.name], functools.partial(fits, hint=hints[f.name])) for f in dataclasses.fields(cls)}


def fits(value: Any, hint: Any) -> bool:
    """Tell whether `value` has the type `hint`, reading int as float and lists as tuples as JSON does."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, (list, tuple)) and all(fits(item, arguments[0]) for item in value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            return False
        kinds = arguments[:1] * len(value) if arguments[-1:] == (...,) else arguments
        return len(value) == len(kinds) and all(map(fits, value, kinds))
    if origin is dict:
        return isinstance(value, Mapping) and all(
            fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items()
        )
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint or type(None))


def spell(hint: Any) -> str:
    """Write an annotation the way a person reads it."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")
