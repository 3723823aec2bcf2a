"""Errors: their messages, their fields, and pickling."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from vitruvian import errors
from vitruvian.errors import (
    CheckpointError,
    ConfigError,
    ImageError,
    InputError,
    MissingExtraError,
    VitruvianError,
    check_choice,
    check_names,
    import_extra,
)

FIELDS = {"subject": "boxes", "expected": "one or more", "got": "none", "hint": "Pass some."}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (FIELDS, "boxes: expected one or more, got none. Pass some."),
        ({"subject": "boxes", "expected": "some"}, "boxes: expected some."),
        ({"expected": "some", "got": "none"}, "expected some, got none."),
        ({"message": "needs boxes.", "subject": "tight_boxes"}, "tight_boxes: needs boxes."),
        ({"message": "a.jpg: broken."}, "a.jpg: broken."),
        ({"message": "broken.", "hint": "Repair it."}, "broken. Repair it."),
        ({}, ""),
    ],
)
def test_messages(fields: dict[str, str], text: str) -> None:
    assert str(InputError(**fields)) == text


def test_choices_and_names() -> None:
    known = ("nearest", "bilinear")
    check_choice("mode", "nearest", known)
    check_names("modes", known, known)
    with pytest.raises(InputError) as caught:
        check_choice("mode", "bilinaer", known)
    assert str(caught.value) == "mode: expected one of nearest, bilinear, got 'bilinaer'. Did you mean bilinear?"
    with pytest.raises(ConfigError, match=r"^modes: expected a mode, got \[\]\.$"):
        check_names("modes", ["nearest", []], known, expected="a mode", error=ConfigError)
    with pytest.raises(InputError, match="expected one of none, got 'x'"):
        check_choice("mode", "x", ())


@pytest.mark.parametrize("subject", ["boxes", "my photo.jpg", "https://a.org/x", None])
def test_the_parts_of_a_message(subject: str | None) -> None:
    written = InputError(f"{'' if subject is None else f'{subject}: '}expected a, b. or c, got d.e. Pass f. Or g.")
    fields = InputError(subject=subject, expected="a, b. or c", got="d.e", hint="Pass f. Or g.")
    assert str(written) == str(fields)
    for name in ("expected", "got", "hint"):
        assert getattr(written, name) == getattr(fields, name) == getattr(pickle.loads(pickle.dumps(written)), name)
    assert InputError("boxes: cannot be used.").expected is None


@pytest.mark.parametrize(
    ("message", "subject"),
    [
        ("boxes: expected some.", "boxes"),
        ("K and fov: expected one of them.", "K and fov"),
        ("boxes[2]: expected a box.", "boxes[2]"),
        ("photo.jpg: expected an image.", None),
        ("https://a.org/x: expected an image.", None),
        ("no colon", None),
    ],
)
def test_the_subject_of_a_message(message: str, subject: str | None) -> None:
    error = InputError(message)
    assert error.subject == subject
    assert str(error) == message
    if subject is not None:
        assert error.about("--boxes") == "--boxes: " + message.partition(": ")[2]


@pytest.mark.parametrize(
    "error",
    [
        *(kind(**FIELDS) for kind in (VitruvianError, InputError, ImageError, ConfigError)),
        *(kind("a/b: broken.") for kind in (CheckpointError, errors.WeightsError)),
        CheckpointError(**FIELDS),
        MissingExtraError("av", "video", "videos"),
    ],
)
def test_errors_can_be_pickled(error: VitruvianError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2066"])
def test_messages_hold_no_escape_sequences(character: str) -> None:
    for error in (
        InputError(subject=f"a{character}[31m.png", expected="an image", got=f"b{character}", hint=f"c{character}"),
        InputError(f"a{character}[31m.png: expected an image."),
    ):
        assert character not in str(error)
        assert "a\N{REPLACEMENT CHARACTER}[31m.png: expected an image" in str(error)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_extra("json.decoder", "export", "x").__name__ == "json.decoder"
    for module in ("package_that_is_not_there", "package_that_is_not_there.part"):
        with pytest.raises(MissingExtraError, match=r"package package_that_is_not_there.*vitruvian\[export\]"):
            import_extra(module, "export", "ONNX export")
    (tmp_path / "package_that_is_there.py").write_text("import package_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        import_extra("package_that_is_there", "export", "ONNX export")
