"""Errors in the words of the command line, and texts that any terminal takes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from vitruvian.cli import _option_names, program
from vitruvian.cli.options import MessageGroup
from vitruvian.cli.report import Report, error_text, json_line, option_names, printable
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
        ("boxes and finder: got both.", "--boxes and --finder: got both."),
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


def test_progress_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (True, False):
        report = Report(MessageGroup(json=True, progress=progress, quiet=True))
        with report.bar("clip.mp4", None) as bar:
            for frame in range(1, 9):
                bar.update(frame, 8)
        lines = [json.loads(line)["progress"] for line in capsys.readouterr().out.splitlines()]
        assert bool(lines) is progress
        if lines:  # the first and the last; those between come once a second
            assert [line["done"] for line in (lines[0], lines[-1])] == [1, 8]
            assert lines[0] == {"source": "clip.mp4", "done": 1, "total": 8}
