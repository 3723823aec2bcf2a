"""`vitruvian demo`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitruvian.cli as cli
from tests.helpers.tiny_multitask import install
from tests.integration.cli_case import pixels, save_images
from vitruvian.cli.demo_sheet import DEMO_TASKS

pytestmark = pytest.mark.usefixtures("workspace")


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = {"parts": "facebook/sapiens2-seg-0.4b", "matte": "facebook/sapiens2-matting-1b"}
    options = [word for task, name in models.items() for word in ("--model", f"{task}={name}")]
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"astronaut.jpg": [[100, 20, 300, 480]]}))
    assert cli.run(["demo", *options, "--detect", str(boxes), "-o", str(tmp_path / "out"), "-q"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(tmp_path / "out" / "sheet.png")
    assert captured.err == ""
    height, width = pixels(tmp_path / "out" / "sheet.png").shape[:2]
    assert height > 2 * 360  # two images
    assert width > 3 * 360  # people, parts, matte
    assert pixels(tmp_path / "out" / "astronaut_people.png").shape == (512, 512, 3)
    assert pixels(tmp_path / "out" / "astronaut_matte.png").shape == (512, 512, 4)
    assert cli.run(["demo", "--model", "poses=x"]) == 2
    assert "--model: expected one of" in capsys.readouterr().err
    assert cli.run(["demo", "--model", "pose=x", "--model", "y"]) == 2
    assert "TASK=CHECKPOINT for each, got 'y'" in capsys.readouterr().err


def test_demo_with_the_builtin_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "inside", monkeypatch)
    assert cli.run(["demo", "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(tmp_path / "out" / "sheet.png")
    lines = captured.err.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["people", *DEMO_TASKS]
    assert lines[-1].startswith(f"21 files in {tmp_path / 'out'}, in ")
    for image in ("astronaut", "standing"):
        assert (tmp_path / "out" / f"{image}_pointmap.ply").stat().st_size > 0
        assert json.loads((tmp_path / "out" / f"{image}_pose.json").read_text())["model"] == "builtin"
    assert pixels(tmp_path / "out" / "sheet.png").shape[1] > 7 * 360


def test_demo_with_an_image_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "inside", monkeypatch)
    save_images(tmp_path, 1)
    (tmp_path / "bad.jpg").touch()
    images = [str(tmp_path / name) for name in ("000.jpg", "bad.jpg")]
    assert cli.run(["demo", *images, "-o", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert captured.out.strip() == str(tmp_path / "out" / "sheet.png")
    assert captured.err.splitlines()[-1].startswith(images[1])
    assert (tmp_path / "out" / "000_pose.json").is_file()
