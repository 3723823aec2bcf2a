"""Every exception and warning that vitruvian raises: one small tree.

Messages follow one form: ``subject: expected X, got Y. What to do next.``

    VitruvianError
    ├── InputError (ValueError)          an argument, prompt, box, label or tensor that cannot be used
    │   └── ImageError                   a picture that cannot be read, or is too large to read safely
    ├── ConfigError (ValueError)         a configuration field with a wrong type or an impossible value
    ├── CheckpointError (OSError)        files of a checkpoint that are missing, truncated or unreadable
    │   └── WeightsError (ValueError)    readable weights that do not fit the model
    └── MissingExtraError (ImportError)  an optional dependency that is not installed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VitruvianError(Exception):
    """Base of all errors that vitruvian raises on purpose."""


class InputError(VitruvianError, ValueError):
    """An argument, prompt, box, label or tensor that cannot be used."""


class ImageError(InputError):
    """A picture that cannot be read, or is too large to read safely."""


class ConfigError(VitruvianError, ValueError):
    """A configuration field that has the wrong type or an impossible value."""


class CheckpointError(VitruvianError, OSError):
    """A checkpoint whose files are missing, truncated or unreadable."""


class WeightsError(CheckpointError, ValueError):
    """Weights that were read but do not fit the model they were meant for."""


class MissingExtraError(VitruvianError, ImportError):
    """An optional dependency that this call needs and that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose}: needs the package {package}. Install it with: pip install "vitruvian[{extra}]"')
        self.package, self.extra = package, extra


class VitruvianWarning(UserWarning):
    """Base of all warnings that vitruvian issues."""


class NewWeightsWarning(VitruvianWarning):
    """Some weights were not in the checkpoint and start from fresh random values."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean a, b?"`` for close spellings of `name`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" Did you mean {', '.join(close)}?" if close else ""
