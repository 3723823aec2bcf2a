"""Which stages a backbone returns, by name or by index: rules that the configurations of backbones share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from vitruvian.errors import ConfigError, near_matches

T = TypeVar("T")


def stage_names(count: int) -> list[str]:
    """Names of what a backbone of `count` stages can return: the stem, then each stage."""
    return ["stem"] + [f"stage{number}" for number in range(1, count + 1)]


def align_stages(
    owner: str, names: Sequence[str], features: Sequence[str] | None, indices: Sequence[int] | None
) -> tuple[list[str], list[int]]:
    """Return the stages by name and by index from either, both (which must agree) or neither (the last stage)."""
    if indices is not None and any(not -len(names) <= index < len(names) for index in indices):
        raise ConfigError(f"{owner}.out_indices: expected indices of {len(names)} stages, got {list(indices)}.")
    stages = None if indices is None else [index % len(names) for index in indices]
    if features is None:
        stages = [len(names) - 1] if stages is None else stages
    else:
        for name in features:
            if name not in names:
                raise ConfigError(
                    f"{owner}.out_features: expected names among {', '.join(names)}, got {name!r}."
                    f"{near_matches(name, names)}"
                )
        by_name = [list(names).index(name) for name in features]
        if stages is not None and stages != by_name:
            raise ConfigError(
                f"{owner}: expected out_features and out_indices to name the same stages, "
                f"got {list(features)} and {list(indices or [])}. Give one of the two."
            )
        stages = by_name
    if stages != sorted(set(stages)):
        raise ConfigError(
            f"{owner}.out_features: expected different stages in order, got {[names[stage] for stage in stages]}."
        )
    return [names[stage] for stage in stages], stages


def drop_overridden_stages(values: Mapping[str, T], overrides: Mapping[str, object]) -> dict[str, T]:
    """Drop a file's out_features where out_indices is overridden, and the other way round: they would disagree."""
    pairs = (("out_features", "out_indices"), ("out_indices", "out_features"))
    stale = {other for name, other in pairs if name in overrides and other not in overrides}
    return {key: value for key, value in values.items() if key not in stale}
