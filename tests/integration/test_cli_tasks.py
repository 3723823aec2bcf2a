"""Each command on a image: everything it can write is opened again by another reader."""

from __future__ import annotations

import importlib.util
import json
import shlex
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitruvian.cli as cli
from tests.helpers.pipelines import sample_image, write_clip
from tests.helpers.tiny_multitask import install
from tests.integration.cli_case import COMMANDS, command, pixels
from vitruvian import pipeline
from vitruvian.cli.commands import demo
from vitruvian.cli.commands.image_tasks import TASK_COMMANDS
from vitruvian.filesystem.locks import OutputLock
from vitruvian.tasks import TASKS

SCHEMA = Path(__file__).parents[2] / "docs/schemas/result-1.json"
SIZE = (90, 130)
COCO = ("pose", "parts", "segment", "masks", "semantic", "instances", "panoptic")


@pytest.fixture(scope="module", autouse=True)
def photo(workspace: Path) -> None:
    Image.fromarray(sample_image(3, SIZE)).save(workspace / "photo.jpg")
    if importlib.util.find_spec("av") is not None:
        write_clip(workspace / "clip.mp4", [sample_image(3, SIZE)] * 5)


# ------------------------------------------------------------------------------------------------ readers


def is_image(path: Path) -> None:
    assert pixels(path).shape[:2] == SIZE


def is_plot(path: Path) -> None:
    height, width = pixels(path).shape[:2]  # a legend may be beside it
    assert height >= SIZE[0]
    assert width >= SIZE[1]


def is_json(path: Path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    assert values["size_hw"] == list(SIZE)
    assert values["source"] == "photo.jpg"
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(values, json.loads(SCHEMA.read_text(encoding="utf-8")))


def is_npz(path: Path) -> None:
    with np.load(path, allow_pickle=False) as values:
        assert json.loads(str(values["info"]))["size_hw"] == list(SIZE)
        assert len(values.files) > 1


def is_exr(path: Path) -> None:
    openexr = pytest.importorskip("OpenEXR")
    with openexr.File(str(path)) as file:
        for channel in file.channels().values():
            assert channel.pixels.shape[:2] == SIZE


def is_cloud(path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    found = trimesh.load(path)
    points = found.vertices if path.suffix == ".ply" else next(iter(found.geometry.values())).vertices
    assert points.shape[1] == 3
    assert np.isfinite(points).all()


def is_labels(path: Path) -> None:
    """Lines of YOLO: a class, and shares of the image."""
    for line in path.read_text().splitlines():
        number, *shares = map(float, line.split())
        assert number == int(number) >= 0
        assert all(0 <= share <= 1 or share == 2 for share in shares)  # 2 is a visible keypoint


def is_zip_of_images(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            with archive.open(name) as file, Image.open(file) as image:
                assert image.width <= SIZE[1]
                assert image.height <= SIZE[0]


READERS: dict[str, Callable[[Path], None]] = {
    "json": is_json,
    "npz": is_npz,
    "exr": is_exr,
    "ply": is_cloud,
    "glb": is_cloud,
    "mesh.glb": is_cloud,
    "txt": is_labels,
    "crops.zip": is_zip_of_images,
    "parts.zip": is_zip_of_images,
    "plot": is_plot,
    "plot.jpg": is_plot,
}


@pytest.mark.parametrize("name", [name for name in COMMANDS if TASKS[name].default_image_formats])
def test_everything_that_a_command_writes_opens_elsewhere(name: str, tmp_path: Path) -> None:
    kinds = TASKS[name].image_formats()
    assert command(name, "photo.jpg", "--out", tmp_path, "--save", ",".join(kinds)) == 0
    found = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    endings = {kind: f".{kind}" for kind in kinds} | {"plot": "_plot.png", "plot.jpg": "_plot.jpg"}
    assert found == {f"photo_{name}{ending}" for ending in endings.values()}
    for kind, ending in endings.items():
        READERS.get(kind, is_image)(tmp_path / f"photo_{name}{ending}")


def test_images_mean_what_they_should(tmp_path: Path) -> None:
    assert command("parts", "photo.jpg", "-o", tmp_path) == 0
    with Image.open(tmp_path / "photo_parts.png") as image:
        assert image.mode == "P"
        assert np.asarray(image).max() < 4  # labels, not colours
    assert command("matte", "photo.jpg", "-o", tmp_path) == 0
    with Image.open(tmp_path / "photo_matte.png") as image:
        assert image.mode == "RGBA"
    assert command("pointmap", "photo.jpg", "-o", tmp_path, "--save", "16.png", "--fov", 60) == 0
    assert pixels(tmp_path / "photo_pointmap.16.png").dtype in (np.uint16, np.int32)


@pytest.mark.parametrize("name", COCO)
def test_datasets_open_with_pycocotools(name: str, tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco")
    masks = pytest.importorskip("pycocotools.mask")
    for number in range(2):
        Image.fromarray(sample_image(number, SIZE)).save(tmp_path / f"{number}.png")
    assert command(name, tmp_path, "-o", tmp_path / "out", "--coco", tmp_path / "all.json", "-q") == 0
    if name == "panoptic":
        values = json.loads((tmp_path / "all.json").read_text())
        assert [Path(image["file_name"]).name for image in values["images"]] == ["0.png", "1.png"]
        for record in values["annotations"]:
            assert pixels(tmp_path / "all" / record["file_name"]).shape == (*SIZE, 3)
        return
    found = coco.COCO(tmp_path / "all.json")
    assert [Path(image["file_name"]).name for image in found.loadImgs(found.getImgIds())] == ["0.png", "1.png"]
    annotations = found.loadAnns(found.getAnnIds())
    assert annotations
    for one in annotations:
        if name == "pose":
            assert len(one["keypoints"]) == 3 * 5  # the tiny model has five
        else:
            assert masks.area(one["segmentation"]) == one["area"]


def test_a_dataset_is_added_to(tmp_path: Path) -> None:
    arguments = ("-o", tmp_path / "out", "--coco", tmp_path / "all.json", "-q")
    for number in range(3):
        Image.fromarray(sample_image(number, SIZE)).save(tmp_path / f"{number}.png")
    assert command("instances", tmp_path / "0.png", tmp_path / "1.png", *arguments) == 0
    before = json.loads((tmp_path / "all.json").read_text())
    assert command("instances", tmp_path, *arguments) == 0
    after = json.loads((tmp_path / "all.json").read_text())
    assert [Path(image["file_name"]).name for image in after["images"]] == ["0.png", "1.png", "2.png"]
    assert after["annotations"][: len(before["annotations"])] == before["annotations"]
    assert [one["id"] for one in after["annotations"]] == list(range(1, len(after["annotations"]) + 1))
    assert {one["image_id"] for one in after["annotations"]} == {0, 1, 2}  # the numbers in the names
    assert [image["file_name"] for image in after["images"]] == ["0.png", "1.png", "2.png"]  # relative to the folder
    results = json.loads((tmp_path / "all_results.json").read_text())
    assert len(results) == len(after["annotations"])
    stamp = (tmp_path / "all.json").stat().st_mtime_ns
    assert command("instances", tmp_path, *arguments) == 0  # nothing new
    assert (tmp_path / "all.json").stat().st_mtime_ns == stamp


def test_a_dataset_has_no_results_of_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, coco = tmp_path / "out", tmp_path / "all.json"
    for number in range(3):
        Image.fromarray(sample_image(number, SIZE)).save(tmp_path / f"{number}.png")
    arguments = ("instances", tmp_path, "--save", "json", "-q")
    few = ("--threshold", "0.3")
    assert command(*arguments, *few, "-o", tmp_path / "other", "--coco", tmp_path / "expected.json") == 0
    expected = json.loads((tmp_path / "expected.json").read_text())
    assert command(*arguments, "-o", out, "--coco", coco) == 0
    before = json.loads(coco.read_text())
    assert before["annotations"] != expected["annotations"]
    assert command(*arguments, *few, "-o", out) == 0  # the files are done, the dataset has not changed
    assert command(*arguments, *few, "-o", out, "--coco", coco) == 0
    assert json.loads(coco.read_text()) == expected
    lock = OutputLock(tmp_path, {coco.name: coco})
    assert command("instances", tmp_path / "0.png", "-o", out, "--coco", coco) == 2
    assert "all.json: is being written by process" in capsys.readouterr().err
    lock.release()
    assert command("instances", tmp_path / "0.png", "-o", out, "--coco", coco, "-q") == 0


# ------------------------------------------------------------------------------------------------ examples and options


EXAMPLES = [
    *(pytest.param(command.example, id=name) for name, command in TASK_COMMANDS.items()),
    pytest.param(demo.EXAMPLE, id="demo"),
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_help_work(example: str, workspace: Path) -> None:
    words = shlex.split(example)
    assert words[0] == "vitruvian"
    assert cli.run([*words[1:], "--quiet"]) == 0
    assert any((workspace / "out" / "demo" if words[1] == "demo" else workspace / "out").iterdir())


def poses(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_options_about_people(tmp_path: Path) -> None:
    def run(*arguments: object, name: str) -> dict:
        out = tmp_path / f"{name}.json"
        assert command("pose", "photo.jpg", "-q", "-o", out, *arguments) == 0
        return poses(out)

    two = run("--boxes", "0,0,20,40", "--boxes", "20,0,56,40", name="two")
    assert two["people"]["boxes_xyxy"] == [[0, 0, 20, 40], [20, 0, 56, 40]]
    assert two["people"]["detector"] == "given"
    form = run("--boxes", "20,0,36,40", "--box-format", "xywh", name="form")
    assert form["people"]["boxes_xyxy"] == [[20, 0, 56, 40]]
    most = run("--boxes", "0,0,20,40", "--boxes", "20,0,56,40", "--max-people", 1, name="most")
    assert len(most["poses"]) == 1
    (tmp_path / "boxes.json").write_text(json.dumps({"photo.jpg": [[5, 5, 20, 30, 0.9]]}))
    listed = run("--boxes", tmp_path / "boxes.json", name="listed")
    assert listed["people"]["boxes_xyxy"] == [[5, 5, 25, 35]]
    (tmp_path / "others.json").write_text(json.dumps({"other.jpg": [[5, 5, 20, 30]]}))
    nobody = run("--boxes", tmp_path / "others.json", name="nobody")
    assert nobody["poses"] == []
    assert "no person detected" in nobody["people"]["note"]
    whole = run("--boxes", tmp_path / "others.json", "--on-empty", "whole", name="whole")
    assert len(whole["poses"]) == 1
    assert run("--detect", "whole", name="plain")["people"]["detector"] == "whole image"


def test_options_of_maps(tmp_path: Path) -> None:
    def points(*arguments: object, name: str) -> dict:
        out = tmp_path / f"{name}.npz"
        assert command("pointmap", "photo.jpg", "-q", "-o", out, *arguments) == 0
        with np.load(out) as values:
            return {key: values[key] for key in values.files}

    given = points("-K", "50,51,27,19", name="given")
    assert np.allclose(given["intrinsics"], [[50, 0, 27], [0, 51, 19], [0, 0, 1]])
    (tmp_path / "k.json").write_text(json.dumps({"intrinsics": given["intrinsics"].tolist()}))
    filed = points("-K", tmp_path / "k.json", name="filed")
    assert np.array_equal(filed["points"], given["points"])
    turned = points("-K", "50,51,27,19", "--convention", "opengl", name="turned")
    assert np.allclose(turned["points"][..., 1:], -given["points"][..., 1:])
    wide = points("--fov", 90, name="wide")
    assert np.isclose(wide["intrinsics"][0, 0], SIZE[1] / 2)
    assert not np.array_equal(points("--tile", "32x24", "--fov", 90, name="tiled")["points"], wide["points"])


def test_commands_and_python_agree_on_people_and_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "inside", monkeypatch)
    find_points = pipeline("pointmap", "builtin", device="cpu")
    for background in ("mask", "keep"):
        out = tmp_path / f"{background}.json"
        line = ["pointmap", "photo.jpg", "-q", "-o", str(out), "--save", "json", "--device", "cpu"]
        assert cli.run([*line, "--background", background, "--model", "builtin"]) == 0
        written = json.loads(out.read_text())
        expected = find_points("photo.jpg", background=background).to_dict()
        assert written["pixels"] == expected["pixels"]
        assert written["people"] == expected["people"]
        assert written["intrinsics"] == expected["intrinsics"]
        assert (written["metric"], written["note"]) == (expected["metric"], expected["note"])
    masked, kept = (json.loads((tmp_path / f"{name}.json").read_text())["pixels"] for name in ("mask", "keep"))
    assert 0 < masked < kept


def test_mattes_go_over_a_ground(tmp_path: Path) -> None:
    out = tmp_path / "over.png"
    assert command("matte", "photo.jpg", "-q", "-o", out, "--save", "plot", "--over", "#00ff00") == 0
    assert command("matte", "photo.jpg", "-q", "-o", tmp_path / "matte.npz") == 0
    with np.load(tmp_path / "matte.npz") as values:
        expected = values["foreground"] + (1 - values["alpha"][..., None]) * [0, 1, 0]
    assert np.abs(pixels(out) / 255.0 - expected.clip(0, 1)).max() < 0.01
    assert command("matte", "photo.jpg", "-q", "-o", tmp_path / "folder", "--over", "#00ff00") == 0
    assert np.array_equal(pixels(tmp_path / "folder" / "photo_matte_plot.png"), pixels(out))


def test_layouts_are_those_of_sapiens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The tiny model has five points of its own, of which no layout is known: it says so.
    assert command("pose", "photo.jpg", "-q", "-o", tmp_path, "--layout", "coco17") == 1
    assert "expected the 308 keypoints" in capsys.readouterr().err


def test_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "masks.json"
    model = ["-m", "facebook/sam2.1-hiera-large"]
    prompts = ["--points", "9,7 30,20,0", "--points", "40,30", "--boxes", "2,2,20,20", "--boxes", "30,20,50,38"]
    assert cli.run(["segment", "photo.jpg", *model, *prompts, "-q", "-o", str(out)]) == 0
    assert len(poses(out)["objects"]) == 2
    assert (
        cli.run(["segment", "photo.jpg", *model, "--points", "9,7", "--all-masks", "-q", "-o", str(out), "--overwrite"])
        == 0
    )
    assert len(poses(out)["objects"]) == 3
    for prompt, message in (("--points=9999,7", "--points: expected x"), ("--boxes=9,2,2,20", "--boxes: expected x")):
        assert cli.run(["segment", "photo.jpg", *model, prompt, "-q", "-o", str(out), "--overwrite"]) == 1
        assert message in capsys.readouterr().err
