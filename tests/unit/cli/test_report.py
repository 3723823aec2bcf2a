"""Errors in the words of the command line, and texts that any terminal takes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from vitruvian.cli import _option_names, program
from vitruvian.cli.report import error_text, json_line, option_names, printable
from vitruvian.errors import InputError, MissingExtraError


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Iterator[None]:
    """The options of a command, as they are while it runs."""
    token = option_names.set(_option_names(program(request.param), [request.param, "people"]))
    yield
    option_names.reset(token)


@pytest.mark.parametrize("names", ["pose"], indirect=True)
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("device: 'x' asked for. Use cpu.", "--device: 'x' asked for. Use cpu."),
        ("max_people: expected 1.", "--max-people: expected 1."),
        ("boxes and detect: got both.", "--boxes and --detect: got both."),
        ("boxes[2]: expected a box.", "--boxes number 3: expected a box."),
        ("people: expected an image.", "people: expected an image."),  # the source has that name
        ("photo.jpg: expected boxes, got none.", "photo.jpg: expected boxes, got none."),
        ("tile_hw: pose has no tiles.", "tile_hw: pose has no tiles."),
        ("two\n  lines", "two lines"),
    ],
)
def test_errors_about_arguments_are_about_options(names: None, message: str, text: str) -> None:
    assert error_text(InputError(message)) == text


@pytest.mark.parametrize("names", ["pointmap"], indirect=True)
def test_options_with_other_names(names: None) -> None:
    assert error_text(InputError("K and fov: expected one.")) == "--intrinsics and --fov: expected one."
    assert error_text(InputError("tile_hw: too small.")) == "--tile: too small."


def test_where_no_command_runs() -> None:
    assert error_text(InputError("device: expected a name.")) == "device: expected a name."
    assert error_text(KeyError()) == "KeyError"
    assert error_text(MissingExtraError("av", "video", "videos")).endswith('pip install "vitruvian[video]"')


def test_texts_for_terminals() -> None:
    odd = os.fsdecode(b"caf\xe9\x1b[31m\n.jpg")
    assert printable(odd) == "caf\\udce9�[31m .jpg"
    assert json_line({"a": os.fsdecode(b"\xe9")}) == '{"a": "\\udce9"}'
