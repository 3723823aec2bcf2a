"""Every exception and warning that vitruvian raises.

    VitruvianError
    ├── InputError (ValueError)          an argument, prompt, box, label or tensor that cannot be used
    │   ├── ImageError                   an image that cannot be read, or is too large to read safely
    │   │   └── PrivateAddressError      the URL of a host that is not public, where only public ones are allowed
    │   ├── InputTypeError (TypeError)   an argument of a wrong type
    │   └── PromptError                  a prompt that does not match the frame or video that it is for
    ├── ConfigError (ValueError)         a configuration field with a wrong type or an impossible value
    ├── CheckpointError (OSError)        files of a checkpoint that are missing, truncated or unreadable
    │   └── WeightsError (ValueError, RuntimeError)   readable weights that do not match the model
    └── MissingExtraError (ImportError)  an optional dependency that is not installed

Messages have the form ``subject: expected X, got Y. What to do next.``
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Collection, Iterable, Sized
from typing import Any

# `boxes`, `K and fov`, `boxes[0]`: a subject that names arguments, not a file
_ARGUMENTS = re.compile(r"[A-Za-z_]\w*(\[\d+\])?((, | and )[A-Za-z_]\w*(\[\d+\])?)*")

# A message with the name of a file before it or not
_FORM = re.compile(r"(?:\S.{0,400}?: )?expected (?P<expected>.+?), got (?P<got>.+?)\.(?: (?P<hint>.+))?", re.DOTALL)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class VitruvianError(Exception):
    """Base of all errors that vitruvian raises on purpose.

    The message is written out, ``InputError("boxes: expected …")``, or in fields,
    ``InputError(subject="boxes", expected="one or more", got="none", hint="Pass boxes or a detector.")``. Both have the
    fields. Errors can be pickled.

    Attributes:
        limit: The name of the limit (`vitruvian.limits`) that the input exceeds, if that is the error.

    Args:
        message: The whole message, or what follows `subject` where that is set.
        subject: What the error is about: the name of an argument, or a file. Found in `message` where it starts with
            the name of an argument and a colon.
        expected: What was expected.
        got: What was there instead.
        hint: What to do next: a sentence.
    """

    limit: str | None = None

    def __init__(
        self,
        message: str = "",
        *,
        subject: str | None = None,
        expected: str | None = None,
        got: str | None = None,
        hint: str | None = None,
    ) -> None:
        if subject is None and expected is None:
            name, colon, rest = str(message).partition(": ")
            if colon and _ARGUMENTS.fullmatch(name):
                subject, message = name, rest
        if expected is not None:
            message = f"expected {expected}." if got is None else f"expected {expected}, got {got}."
        self.detail = replace_control_characters(str(message) if hint is None else f"{message} {hint}".strip())
        if expected is None and hint is None and (form := _FORM.fullmatch(self.detail)):
            expected, got, hint = form["expected"], form["got"], form["hint"]
        self.subject, self.expected, self.got, self.hint = subject, expected, got, hint
        super().__init__(self.about(subject))

    def about(self, subject: str | None) -> str:
        """Return the message with another subject, such as ``--boxes`` for ``boxes``."""
        return self.detail if subject is None else f"{replace_control_characters(subject)}: {self.detail}"


class InputError(VitruvianError, ValueError):
    """An argument, prompt, box, label or tensor that cannot be used."""


class ImageError(InputError):
    """An image that cannot be read, or is too large to read safely."""


class PrivateAddressError(ImageError):
    """The URL of a host whose address is not public, where only public ones are allowed."""


class InputTypeError(InputError, TypeError):
    """An argument of a wrong type."""


class PromptError(InputError):
    """A prompt that does not match the frame or video that it is for."""


class ConfigError(VitruvianError, ValueError):
    """A configuration field that has the wrong type or an impossible value."""


class CheckpointError(VitruvianError, OSError):
    """A checkpoint whose files are missing, truncated or unreadable."""


class WeightsError(CheckpointError, ValueError, RuntimeError):
    """Weights that do not match the model, or that cannot be loaded into it."""


class MissingExtraError(VitruvianError, ImportError):
    """An optional dependency that this call needs and that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose}: needs the package {package}. Install it with: pip install "vitruvian[{extra}]"')
        self.package, self.extra, self.purpose = package, extra, purpose

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return type(self), (self.package, self.extra, self.purpose)


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module of an optional dependency; raise `MissingExtraError` if that is not installed."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if (error.name or package).partition(".")[0] != package:  # something else is missing, which it needs
            raise
        raise MissingExtraError(package, extra, purpose) from error


class VitruvianWarning(UserWarning):
    """Base of all warnings that vitruvian issues."""


class NewWeightsWarning(VitruvianWarning):
    """Some weights were not in the checkpoint and are initialized at random."""


def replace_control_characters(text: str) -> str:
    """Replace control characters, which terminals interpret, and marks that reverse text; lines and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_surrogates(text: str) -> str:
    """Escape bytes of file names that are not UTF-8 (lone surrogates), so that the text can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(text: object, *, limit: int = 160) -> str:
    """Return `text` on one line of at most `limit` characters, for a message."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def near_matches(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ``" Did you mean a, b?"`` for spellings at least as close as `cutoff`, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f" Did you mean {', '.join(close)}?" if close else ""


def check_choice(
    subject: str,
    value: object,
    choices: Collection[str],
    *,
    expected: str | None = None,
    error: type[VitruvianError] = InputError,
) -> None:
    """Raise `error` unless `value` is one of `choices`, which the message lists unless `expected` describes them."""
    if not isinstance(value, str) or value not in choices:
        raise error(
            subject=subject,
            expected=expected or f"one of {', '.join(choices) or 'none'}",
            got=repr(value),
            hint=near_matches(str(value), choices).strip() or None,
        )


def check_names(
    subject: str,
    names: Iterable[object],
    known: Collection[str],
    *,
    expected: str | None = None,
    error: type[VitruvianError] = InputError,
) -> None:
    """Raise `error` unless each of `names` is one of `known`; see `check_choice`."""
    for name in names:
        check_choice(subject, name, known, expected=expected, error=error)


def check_count(subject: str, entries: Sized | None, count: int) -> None:
    """Raise `InputError` unless `entries` is None or has one entry for each of `count` images."""
    if entries is not None and len(entries) != count:
        raise InputError(f"{subject}: expected one entry for each of the {count} images, got {len(entries)}.")
