"""Which stages a backbone returns, and which backbone a model has: the rules that configurations share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitruvian.config import Config, read_config_dict
from vitruvian.errors import ConfigError, near_matches
from vitruvian.hub import HubOptions


def stage_names(count: int) -> list[str]:
    """Names of what a backbone of `count` stages can return: the stem, then each stage."""
    return ["stem"] + [f"stage{number}" for number in range(1, count + 1)]


def align_stages(
    owner: str, names: Sequence[str], features: Sequence[str] | None, indices: Sequence[int] | None
) -> tuple[list[str], list[int]]:
    """Return the stages by name and by index from either, both (which must agree) or neither (the last stage)."""
    if indices is not None and any(not -len(names) <= index < len(names) for index in indices):
        raise ConfigError(f"{owner}.out_indices: expected indices of {len(names)} stages, got {list(indices)}.")
    places = None if indices is None else [index % len(names) for index in indices]
    if features is None:
        places = [len(names) - 1] if places is None else places
    else:
        for name in features:
            if name not in names:
                raise ConfigError(
                    f"{owner}.out_features: expected names among {', '.join(names)}, got {name!r}."
                    f"{near_matches(name, names)}"
                )
        found = [list(names).index(name) for name in features]
        if places is not None and places != found:
            raise ConfigError(
                f"{owner}: expected out_features and out_indices to name the same stages, "
                f"got {list(features)} and {list(indices or [])}. Give one of the two."
            )
        places = found
    if places != sorted(set(places)):
        raise ConfigError(
            f"{owner}.out_features: expected different stages in order, got {[names[place] for place in places]}."
        )
    return [names[place] for place in places], places


def drop_other_spelling(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Forget the stages of a file in the spelling that the caller did not override, which would contradict it."""
    pairs = (("out_features", "out_indices"), ("out_indices", "out_features"))
    stale = {other for given, other in pairs if given in overrides and other not in overrides}
    return {key: value for key, value in values.items() if key not in stale}


def drop_backbone_name(values: dict[str, Any]) -> dict[str, Any]:
    """Forget the name of a file's backbone where its configuration, read from there once, stands beside it."""
    stale = {"backbone", "backbone_kwargs", "use_pretrained_backbone"} if values.get("backbone_config") else set()
    return {key: value for key, value in values.items() if key not in stale}


def read_backbone(
    owner: str,
    given: Any,
    *,
    kinds: Mapping[str, type[Config]],
    default: Config,
    name: str | None,
    use_timm: bool,
    options: Mapping[str, Any] | None,
) -> Any:
    """Return the configuration of a model's backbone.

    Args:
        owner: Name of the model's configuration class, for messages.
        given: `backbone_config`: a configuration, a JSON object or None. Other things are left to the type check.
        kinds: The configuration class of each model_type that may be a backbone here.
        default: What to use when nothing is given.
        name: `backbone`: a folder or Hub name to read the configuration from.
        use_timm: `use_timm_backbone`, which must be off.
        options: `backbone_kwargs`: fields to change in the configuration that `name` gives.
    """
    if use_timm:
        raise ConfigError(
            f"{owner}.use_timm_backbone: expected False, got True. timm is not used here: "
            f"give a backbone_config of type {' or '.join(kinds)}."
        )
    if given is not None and (name or options):
        raise ConfigError(f"{owner}: expected backbone_config or backbone (with backbone_kwargs), got both. Drop one.")
    if given is None and name is None:
        return default
    values = given
    if given is None:
        values = read_config_dict(str(name), HubOptions())
        if values is None:
            raise ConfigError(f"{owner}.backbone: expected a folder or Hub name with a config.json, got {name!r}.")
    if not isinstance(values, Mapping):
        return values
    kind = str(values.get("model_type"))
    if kind not in kinds:
        raise ConfigError(f"{owner}.backbone_config: expected a model_type of {', '.join(kinds)}, got {kind!r}.")
    config = kinds[kind].from_dict(values)
    if given is not None:
        return config
    wanted = dict(options or {})
    if not {"out_features", "out_indices"} & set(wanted):
        wanted["out_features"] = config.stage_names[1:]
    return kinds[kind].from_dict(config.to_dict(), **wanted)
