"""`models`, `doctor` and `demo`, and how results are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vitruvian
import vitruvian.cli as cli
from tests.hub_server import HubServer, Repository
from tests.integration.cli_case import one_thread, pixels, process, save_checkpoints, save_pictures
from tests.tiny_checkpoints import working_in
from tests.tiny_packed import install
from vitruvian import hub
from vitruvian.cli import doctor
from vitruvian.cli.catalogue import LICENCES, SAPIENS2_SIZES, known_checkpoints
from vitruvian.cli.items import find_items
from vitruvian.cli.kinds import TASKS, read_kinds
from vitruvian.errors import InputError
from vitruvian.models.sapiens2.multitask import TASK_CLASSES
from vitruvian.pipelines.demo import DEMO_TASKS
from vitruvian.tasks import PIPELINE_TASKS, find_task

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("cli")
    one_thread()
    save_checkpoints(root)
    with working_in(root):
        yield root


# ------------------------------------------------------------------------------------------------ models


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "list", "--task", "matte"]) == 0
    text = capsys.readouterr().out
    assert "facebook/sapiens2-matting-1b" in text
    assert "1.54 B" in text
    assert "sapiens2-pose" not in text
    assert cli.run(["models", "list", "--json"]) == 0
    inside, *rows = json.loads(capsys.readouterr().out)["checkpoints"]
    assert len(rows) == len({row["name"] for row in rows}) == len(list(known_checkpoints()))
    commands = {command for row in rows for command in row["commands"]}
    assert commands == set(TASKS) - {"albedo"}  # none is published
    assert (inside["name"], inside["licence"]) == ("builtin", "Apache-2.0")
    assert {"pose", "albedo"} <= set(inside["commands"])
    assert 20e6 < inside["cached_bytes"] < 25e6
    assert cli.run(["models", "list", "--task", "segment"]) == 0
    assert "builtin" not in capsys.readouterr().out


def test_sizes_in_the_list_are_those_of_our_models() -> None:
    for task, sizes in SAPIENS2_SIZES.items():
        for variant in sizes if task != "pretrain" else ():
            config = vitruvian.Sapiens2Config.variant(variant, task=task)
            with torch.device("meta"):
                model = TASK_CLASSES[task](config)
            assert round(model.num_parameters() / 1e6) == sizes[variant], (task, variant)


def test_every_task_is_a_command() -> None:
    assert {find_task(task.pipeline).name for task in TASKS.values()} == set(PIPELINE_TASKS)
    for task in TASKS.values():
        assert set(task.save) <= set(task.picture_kinds())
        assert set(task.video) <= set(task.kinds())


def test_licences_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "licenses"]) == 0
    told = capsys.readouterr().out
    page = " ".join((ROOT / "docs" / "weight-licences.md").read_text(encoding="utf-8").split()).replace("`", "")
    for licence in LICENCES:
        assert licence.text in told
        assert licence.names in page
        assert licence.text.rstrip(".").lower() in page.lower()


def test_what_is_in_the_model_inside(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "info", "builtin", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["commands"]) == {"pose", "parts", "normals", "pointmap", "matte", "albedo", "embed"}
    assert facts["licence"] == "Apache-2.0"
    assert facts["parameters"] == 23_215_628  # the shared encoder once
    assert facts["size_bytes"] < 25e6


def test_what_is_in_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "info", "facebook/sapiens2-seg-0.4b", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    model = vitruvian.AutoModel.from_pretrained("facebook/sapiens2-seg-0.4b")
    assert facts["class"] == "Sapiens2ForSemanticSegmentation"
    assert facts["commands"] == ["parts", "embed"]
    assert facts["parameters"] == model.num_parameters()
    assert facts["dtype"] == "float32"
    assert facts["size_bytes"] == (Path("facebook/sapiens2-seg-0.4b") / "model.safetensors").stat().st_size
    assert facts["config"]["hidden_size"] == 32
    assert cli.run(["models", "info", "facebook/sam2.1-hiera-large"]) == 0
    told = capsys.readouterr().out
    assert "Sam2Model" in told
    assert "segment, masks" in told


def test_downloads(tmp_path: Path) -> None:
    """Against a Hub on this machine; its address is read when huggingface_hub is imported, hence a process."""
    hub = HubServer()
    files = {path.name: path.read_bytes() for path in Path("facebook/sapiens2-pose-0.4b").iterdir()}
    hub.repositories["me/pose"] = Repository(branches={"main": files | {"pytorch_model.bin": b"the same again"}})
    env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    running = process("models", "download", "me/pose", "me/none", env=env)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 2
    folder = Path(out.decode().strip())
    assert {path.name for path in folder.iterdir()} == set(files)
    assert (folder / "config.json").read_bytes() == files["config.json"]
    told = err.decode().splitlines()[-1]
    assert told.startswith("Error: me/none: no such repository on the Hub")


# ------------------------------------------------------------------------------------------------ doctor and demo


def test_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["problems"] == []
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["devices"][-1]["device"] == "cpu"
    assert facts["speed"]["milliseconds"] > 0
    assert facts["temporary"]["writable"]
    assert facts["extras"]["video"]["for"] == "videos and cameras"
    assert cli.run(["doctor", "--no-speed"]) == 0
    assert "All is well." in capsys.readouterr().out


def test_the_doctor_finds_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", lambda **_: (tmp_path / "none" / "x").open("wb"))
    assert cli.run(["doctor", "--no-speed"]) == 1
    assert "temporary files cannot be written" in capsys.readouterr().out


def test_extras_are_those_of_the_package() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(doctor.EXTRAS) == set(project["optional-dependencies"]) - {"dev"}


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = {"parts": "facebook/sapiens2-seg-0.4b", "matte": "facebook/sapiens2-matting-1b"}
    options = [word for task, name in models.items() for word in ("--model", f"{task}={name}")]
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"astronaut.jpg": [[100, 20, 300, 480]]}))
    assert cli.run(["demo", *options, "--finder", str(boxes), "-o", str(tmp_path / "out"), "-q"]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == str(tmp_path / "out" / "sheet.png")
    assert told.err == ""
    height, width = pixels(tmp_path / "out" / "sheet.png").shape[:2]
    assert height > 2 * 360  # two pictures
    assert width > 3 * 360  # people, parts, matte
    assert pixels(tmp_path / "out" / "astronaut_people.png").shape == (512, 512, 3)
    assert pixels(tmp_path / "out" / "astronaut_matte.png").shape == (512, 512, 4)
    assert cli.run(["demo", "--model", "poses=x"]) == 2
    assert "--model: expected tasks of" in capsys.readouterr().err
    assert cli.run(["demo", "--model", "pose=x", "--model", "y"]) == 2
    assert "TASK=CHECKPOINT for each, got 'y'" in capsys.readouterr().err


def test_the_demo_with_a_model_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path / "inside", monkeypatch)
    assert cli.run(["demo", "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == str(tmp_path / "out" / "sheet.png")
    lines = told.err.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == ["people", *DEMO_TASKS]
    assert lines[-1].startswith(f"21 files in {tmp_path / 'out'}, in ")
    for picture in ("astronaut", "standing"):
        assert (tmp_path / "out" / f"{picture}_pointmap.ply").stat().st_size > 0
        assert json.loads((tmp_path / "out" / f"{picture}_pose.json").read_text())["model"] == "builtin"
    assert pixels(tmp_path / "out" / "sheet.png").shape[1] > 7 * 360


@pytest.mark.filterwarnings("always::vitruvian.errors.VitruvianWarning")
def test_the_demo_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub, "BUILTIN_FOLDER", tmp_path / "none")
    save_pictures(tmp_path, 1)
    (tmp_path / "bad.jpg").touch()
    pictures = [str(tmp_path / name) for name in ("000.jpg", "bad.jpg")]
    assert cli.run(["demo", *pictures, "-o", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert told.out.strip() == str(tmp_path / "out" / "sheet.png")
    first, *_, last = told.err.splitlines()
    assert first.startswith("Warning: --model: none was named and this installation has none inside")
    assert last.startswith(pictures[1])
    assert (tmp_path / "out" / "000_pose.json").is_file()
    assert cli.run(["demo", "--model", "builtin"]) == 2
    assert "this installation has none" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ names


def stems(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [item.stem for item in find_items([str(folder / name) for name in names])]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.jpg", "b.jpg"], ["a", "b"]),
        (["x/a.jpg", "y/a.jpg", "b.jpg"], ["x/a", "y/a", "b"]),
        (["1/x/a.jpg", "2/x/a.jpg"], ["1/x/a", "2/x/a"]),
        (["a.jpg", "a.png"], ["a_jpg", "a_png"]),
        (["x/a.jpg", "x/a.png", "y/a.jpg"], ["a_jpg", "a_png", "a"]),
        (["A.jpg", "x/a.jpg"], ["{here}/A", "x/a"]),
        (["a b.jpg", "ä.jpg", "no_ending"], ["a b", "ä", "no_ending"]),
    ],
)
def test_stems(names: list[str], expected: list[str], tmp_path: Path) -> None:
    assert stems(tmp_path, *names) == [stem.format(here=tmp_path.name) for stem in expected]


def test_stems_of_addresses_and_folders(tmp_path: Path) -> None:
    found = find_items(["https://a.org/x/photo.jpg?v=1", "https://b.org/photo.jpg", "camera:1", "-", "camera:1"])
    assert [item.stem for item in found] == ["x/photo", "b.org/photo", "camera1", "stdin"]
    assert [item.kind for item in found] == ["picture", "picture", "camera", "stdin"]
    for name in ("a.jpg", "b/c.jpg", ".hidden.jpg", ".b/d.jpg", "e.mp4", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [(item.stem, item.kind) for item in find_items([str(tmp_path)])] == [("a", "picture"), ("e", "video")]
    assert [item.stem for item in find_items([str(tmp_path)], recursive=True)] == ["a", "b/c", "e"]


def test_kinds() -> None:
    assert read_kinds(TASKS["pose"], "json, PLOT").picture == ("json", "plot")
    assert read_kinds(TASKS["pose"], "json,plot").video == ("json", "mp4")
    assert read_kinds(TASKS["pose"], "plot,webm").video == ("webm",)
    assert read_kinds(TASKS["normals"], "json,png").picture == ("png",)
    assert read_kinds(TASKS["normals"], "json,png").video == ("json", "png")
    with pytest.raises(InputError, match="one or more of"):
        read_kinds(TASKS["normals"], " , ")
