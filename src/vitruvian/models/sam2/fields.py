"""How settings of SAM 2 are given: by position as in published examples, sizes as a number or a pair, video names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from vitruvian.config import Settings
from vitruvian.errors import ConfigError

Size = int | list[int] | tuple[int, int]
SettingsT = TypeVar("SettingsT", bound=Settings)


def by_position(*names: str) -> Callable[[type[SettingsT]], type[SettingsT]]:
    """Let the first fields of a settings class be given by position too, as the published examples do."""

    def decorate(cls: type[SettingsT]) -> type[SettingsT]:
        build = cls.__init__

        @functools.wraps(build)
        def init(self: Any, *values: Any, **named: Any) -> None:
            if len(values) > len(names):
                raise ConfigError(
                    f"{cls.__name__}: expected at most {len(names)} values by position ({', '.join(names)})."
                )
            twice = [name for name in names[: len(values)] if name in named]
            if twice:
                raise ConfigError(f"{cls.__name__}: got {', '.join(twice)} by position and by name. Give it once.")
            build(self, **dict(zip(names, values, strict=False)), **named)

        cls.__init__ = init  # type: ignore[method-assign]
        return cls

    return decorate


def part(value: SettingsT | None, name: str) -> SettingsT:
    """Return a part's settings, which `__post_init__` has filled in."""
    if value is None:
        raise ConfigError(f"{name}: expected settings, got None.")
    return value


def pair(size: Size | None) -> tuple[int, int]:
    """Read a number (square) or (height, width)."""
    if isinstance(size, int):
        return size, size
    if size is None or len(size) != 2:
        raise ConfigError(f"size: expected a number or (height, width), got {size!r}.")
    return size[0], size[1]


def without_video(values: Mapping[str, Any]) -> dict[str, Any]:
    """Read the video model's `model_type` as the image model's: the shared parts are the same."""
    stated = str(values.get("model_type", ""))
    if not stated.startswith("sam2_video"):
        return dict(values)
    return dict(values) | {"model_type": stated.replace("sam2_video", "sam2", 1)}
