"""The file formats that `--save` names."""

from __future__ import annotations

import re

import pytest

from vitruvian.cli.commands.image_tasks import TASK_COMMANDS
from vitruvian.cli.output_plan import _read_save
from vitruvian.errors import InputError
from vitruvian.tasks import TASKS


@pytest.mark.parametrize("name", [name for name in TASK_COMMANDS if TASKS[name].takes_images])
def test_the_help_of_save_has_every_extension_of_the_result(name: str) -> None:
    # The classes of results know the extensions, but import torch, which `--help` does not.
    words = re.sub(r"\(.*?\)|\band\b", "", TASK_COMMANDS[name].save_help)
    extensions = [extension.lstrip(".") for extension in TASKS[name].result_class().extensions]
    assert sorted(re.findall(r"[\w.]+", words)) == sorted(extensions)


def test_formats_for_images_and_videos() -> None:
    assert _read_save(TASKS["pose"], "json, PLOT").image == ("json", "plot")
    assert _read_save(TASKS["pose"], "json,plot").video == ("json", "mp4")
    assert _read_save(TASKS["pose"], "plot,webm").video == ("webm",)
    assert _read_save(TASKS["normals"], "json,png").image == ("png",)
    assert _read_save(TASKS["normals"], "json,png").video == ("json", "png")


@pytest.mark.parametrize(
    ("save", "expected", "got", "hint"),
    [
        (" , ", "one or more of png, ", "an empty string", None),
        ("png,foo", "one or more of png, ", "'foo'", None),
        ("json,.Pgn", "one or more of png, ", "'pgn'", "Did you mean png"),
        ("jpg", "one or more of png, ", "'jpg'", "JPEG has no alpha"),
        ("mp4,png, WEBM", "one video format", "mp4 and webm", "Run the command once for each."),
    ],
)
def test_errors_about_formats(save: str, expected: str, got: str, hint: str | None) -> None:
    with pytest.raises(InputError) as caught:
        TASKS["matte"].read_formats(save)
    error = caught.value
    assert (error.subject, error.got, error.expected.startswith(expected)) == ("save", got, True)
    assert error.hint is None if hint is None else hint in error.hint
