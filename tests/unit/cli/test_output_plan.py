"""The file formats that `--save` names."""

from __future__ import annotations

import pytest

from vitruvian.cli.output_plan import _read_save
from vitruvian.errors import InputError
from vitruvian.tasks import TASKS


def test_formats_for_images_and_videos() -> None:
    assert _read_save(TASKS["pose"], "json, PLOT").image == ("json", "plot")
    assert _read_save(TASKS["pose"], "json,plot").video == ("json", "mp4")
    assert _read_save(TASKS["pose"], "plot,webm").video == ("webm",)
    assert _read_save(TASKS["normals"], "json,png").image == ("png",)
    assert _read_save(TASKS["normals"], "json,png").video == ("json", "png")
    with pytest.raises(InputError, match="one or more of"):
        _read_save(TASKS["normals"], " , ")
