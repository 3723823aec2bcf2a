"""The demo: what it writes, which models it runs, and what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.pipelines import sample_image
from tests.helpers.tiny_multitask import tiny_multitask
from vitruvian import InputError
from vitruvian.cli.demo_sheet import DEMO_TASKS, _demo_images, _demo_models, run_demo
from vitruvian.errors import CheckpointError
from vitruvian.models.sapiens2.multitask import save_multitask

ENDINGS = (
    *("people.png", "pose.json", "pose_plot.png", "parts.png", "parts_plot.png", "normals.png"),
    *("pointmap.ply", "pointmap.png", "matte.png", "albedo.png"),
)


def test_images_ship_with_the_package(inside: Path) -> None:
    assert {path.name for path in _demo_images()} >= {"astronaut.jpg", "standing.jpg"}


def test_everything_is_written(inside: Path, tmp_path: Path) -> None:
    Image.fromarray(sample_image()).save(tmp_path / "one.png")
    told: list[str] = []
    report = run_demo([tmp_path / "one.png", sample_image(1)], tmp_path / "out", device="cpu", progress=told.append)
    assert report.sheet == tmp_path / "out" / "sheet.png"
    assert all(path.is_file() for path in report.files)
    names = {path.name for path in report.files}
    assert {f"one_{ending}" for ending in ENDINGS} <= names
    assert len(names) == len(report.files) == 2 * len(ENDINGS) + 1
    width, height = Image.open(report.sheet).size
    assert width > 5 * height / 2  # seven columns, two rows
    assert [line.split(":")[0] for line in told] == ["people", *DEMO_TASKS]
    assert report.people > 0
    assert not report.failures
    with Image.open(tmp_path / "out" / "one_pose_plot.png") as drawn:
        assert drawn.size == (56, 40)


def test_maps_of_a_packed_model_end_where_people_do(packed: Path, tmp_path: Path) -> None:
    run_demo([sample_image()], tmp_path, model=packed, device="cpu")
    (alpha,) = (np.asarray(Image.open(path))[..., 3] for path in tmp_path.glob("*_matte.png"))
    (albedo,) = (np.asarray(Image.open(path)) for path in tmp_path.glob("*_albedo.png"))
    outside = alpha < 120
    assert outside.any()
    assert (albedo[outside] == 128).all()
    assert (albedo != 128).any()


def test_a_image_that_cannot_be_read(inside: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"bad\.png"):
        run_demo(tmp_path / "bad.png", tmp_path / "out")
    report = run_demo([tmp_path / "bad.png", sample_image()], tmp_path / "out", device="cpu")
    assert [Path(name).name for name in report.failures] == ["bad.png"]
    assert report.sheet.is_file()


def test_which_models_are_run(packed: Path, tmp_path: Path) -> None:
    assert _demo_models(packed) == dict.fromkeys(DEMO_TASKS, packed)
    save_multitask(tiny_multitask("seg", "people"), tmp_path / "parts")
    assert _demo_models(tmp_path / "parts") == {"parts": tmp_path / "parts"}
    model = tiny_multitask("matting").task_model("matting")
    model.save_pretrained(tmp_path / "run" / "model" / "matte")
    alone = tmp_path / "run" / "model" / "matte"
    assert _demo_models(tmp_path / "run") == {"matte": alone}  # as training leaves it
    assert _demo_models(alone) == {"matte": alone}  # a checkpoint of one task
    assert list(_demo_models({"matte": "b", "pose": "a"})) == ["pose", "matte"]
    with pytest.raises(InputError, match=r"got 'poses'\. Did you mean pose"):
        _demo_models({"poses": "a"})
    with pytest.raises(CheckpointError, match="no such file or folder"):
        _demo_models("nothing-here")


def test_the_folder_must_be_one(inside: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="expected a folder to write into"):
        run_demo([sample_image()], tmp_path / "file")
