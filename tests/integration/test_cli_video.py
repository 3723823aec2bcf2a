"""Videos and cameras on the command line: rate, frames and sound are preserved, and interrupted runs resume."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

av = pytest.importorskip("av")

from PIL import Image  # noqa: E402

from tests.helpers.pipelines import sample_image  # noqa: E402
from tests.integration.cli_case import command, json_lines, pixels  # noqa: E402
from tests.unit.files.clips import make_clip, packets  # noqa: E402
from vitruvian.images.rle import decode_rle  # noqa: E402
from vitruvian.pipelines import sources  # noqa: E402
from vitruvian.pipelines.video import loop  # noqa: E402

COUNT, RATE, SIZE = 12, Fraction(30000, 1001), (48, 64)


@pytest.fixture(scope="module", autouse=True)
def clip(workspace: Path) -> None:
    scene = sample_image(4, SIZE)
    make_clip(workspace / "clip.mp4", [np.roll(scene, number, 1) for number in range(COUNT)], rate=RATE, sound="aac")


def details(path: Path) -> tuple[int, Fraction, tuple[int, int], bool]:
    """Frames, rate, size and whether there is sound, by PyAV."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        count = sum(1 for _ in container.decode(stream))
        return count, stream.average_rate, (stream.height, stream.width), bool(container.streams.audio)


@pytest.mark.parametrize("name", ["parts", "semantic", "normals", "segment", "embed", "track"])
def test_a_video_keeps_its_frames_rate_and_sound(name: str, tmp_path: Path) -> None:
    assert command(name, "clip.mp4", "-o", tmp_path, "-q") == 0
    assert details(tmp_path / f"clip_{name}.mp4") == (COUNT, RATE, SIZE, True)
    assert packets(tmp_path / f"clip_{name}.mp4", "audio") == packets(Path("clip.mp4"), "audio")
    records = json_lines((tmp_path / f"clip_{name}.jsonl").read_text())
    assert [record["frame"] for record in records] == list(range(COUNT))
    assert not list(tmp_path.glob("*.parts"))


def test_again_and_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plain.mp4"
    assert command("normals", "clip.mp4", "-o", out, "--no-sound", "--preview", tmp_path / "now.jpg") == 0
    assert not details(out)[3]
    assert pixels(tmp_path / "now.jpg").shape == (*SIZE, 3)
    capsys.readouterr()
    assert command("normals", "clip.mp4", "-o", out, "--no-sound") == 0
    assert "0 done, 1 skipped" in capsys.readouterr().err
    assert command("normals", "clip.mp4", "-o", out) == 0
    assert "1 redone" in capsys.readouterr().err
    assert details(out)[3]
    stamp = out.stat().st_mtime_ns
    assert command("normals", "clip.mp4", "-o", out, "--convention", "opencv") == 0  # other settings
    assert "1 redone" in capsys.readouterr().err
    assert out.stat().st_mtime_ns > stamp
    assert command("normals", "clip.mp4", "-o", out, "--convention", "opencv", "--overwrite") == 0


def test_objects_are_tracked(tmp_path: Path) -> None:
    assert command("track", "clip.mp4", "-o", tmp_path, "--box", "300@3:4,6,40,30", "--save", "png,vis.json") == 0
    ids = [[one["id"] for one in line["objects"]] for line in json_lines((tmp_path / "clip_track.jsonl").read_text())]
    assert ids == [[1]] * 3 + [[1, 300]] * (COUNT - 3)
    maps = sorted((tmp_path / "clip_track").iterdir())
    assert len(maps) == COUNT
    assert {number for path in maps for number in np.unique(pixels(path))} == {0, 1, 300}
    dataset = json.loads((tmp_path / "clip_track.vis.json").read_text())
    assert (dataset["videos"][0]["length"], len(dataset["videos"][0]["file_names"])) == (COUNT, COUNT)
    for annotation, first in zip(dataset["annotations"], (0, 3), strict=True):
        for number, rle in enumerate(annotation["segmentations"]):
            drawn = pixels(maps[number]) == annotation["id"]
            assert (number < first) <= (rle is None)
            assert rle is None or (decode_rle(rle).numpy() >= drawn).all()
            assert rle is None or annotation["areas"][number] == decode_rle(rle).sum()
    assert command("track", "clip.mp4", "-o", tmp_path, "--cutout") == 0
    with av.open(str(tmp_path / "clip_track.webm")) as container:
        assert "alpha_mode" in {key.lower() for key in container.streams.video[0].metadata}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["clip.mp4", "--points", "5,4"], "--points: expected ID@FRAME:numbers"),
        (["clip.mp4", "--box", "1@0:5,4"], "--box: expected 4 comma-separated numbers"),
        (["photo.jpg"], "photo.jpg: expected a video or a camera for track"),
    ],
)
def test_track_says_what_is_wrong(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("track", *arguments, "-o", tmp_path) in (1, 2)
    assert message in capsys.readouterr().err


def test_mattes_have_alpha(tmp_path: Path) -> None:
    assert command("matte", "clip.mp4", "-o", tmp_path, "-q") == 0
    with av.open(str(tmp_path / "clip_matte.webm")) as container:
        assert container.streams.video[0].codec_context.name.startswith("vp9")
        assert "alpha_mode" in {key.lower() for key in container.streams.video[0].metadata}
    assert command("matte", "clip.mp4", "-o", tmp_path / "over.mp4", "--over", "white", "-q") == 0
    assert details(tmp_path / "over.mp4")[0] == COUNT


def test_files_a_frame(tmp_path: Path) -> None:
    assert command("pose", "clip.mp4", "-o", tmp_path, "--save", "npz", "-q") == 0
    found = sorted((tmp_path / "clip_pose").iterdir())
    assert [path.name for path in found] == [f"clip_pose_{number:05d}.npz" for number in range(COUNT)]
    with np.load(found[5]) as values:
        assert json.loads(str(values["info"]))["frame"] == 5
    assert len(json_lines((tmp_path / "clip_pose.jsonl").read_text())) == COUNT


def test_boxes_follow_people(tmp_path: Path) -> None:
    boxes = {"clip.mp4": {str(number): [[4 + number, 4, 20, 40, 0.9]] for number in range(COUNT)}}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    assert command("pose", "clip.mp4", "-o", tmp_path / "p.jsonl", "--boxes", tmp_path / "boxes.json", "-q") == 0
    records = json_lines((tmp_path / "p.jsonl").read_text())
    ids = [person["id"] for record in records for person in record["poses"]]
    assert len(ids) >= COUNT - 3
    assert len(set(ids)) == 1


def test_what_does_not_fit_a_video(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video at all")
    arguments = ("clip.mp4", tmp_path / "bad.mp4", tmp_path / "none.mp4")
    assert command("parts", *arguments, "-o", tmp_path, "--save", "mp4") == 1
    captured = capsys.readouterr().err
    assert "1 done, 2 failed" in captured
    assert "bad.mp4: expected a video" in captured
    assert command("instances", "clip.mp4", "-o", tmp_path, "--coco", tmp_path / "all.json") == 1
    assert "--coco collects images" in capsys.readouterr().err
    assert command("parts", "clip.mp4", "--out", "-") == 2
    assert "expected images, got a video" in capsys.readouterr().err


def test_ctrl_c_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGINT arrives in frame 20 of 30: the first segment of ten frames is on disk, as at most four frames wait."""
    add = loop._SegmentWriter.add

    def interrupt(self: Any, result: Any) -> None:
        if self.next_frame == 20:
            signal.raise_signal(signal.SIGINT)
        add(self, result)

    frames = [np.roll(sample_image(4, SIZE), number, 1) for number in range(30)]
    make_clip(tmp_path / "long.mp4", frames, rate=1, sound="aac")
    arguments = ("parts", tmp_path / "long.mp4", "-o", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(loop._SegmentWriter, "add", interrupt)
        assert command(*arguments) == 130
    assert "Interrupted" in capsys.readouterr().err
    assert not (tmp_path / "out" / "long_parts.mp4").exists()
    assert command(*arguments, "--json") == 0
    line = json_lines(capsys.readouterr().out)[0]
    assert (line["resumed_at"], line["frames"]) == (10, 30)
    assert details(tmp_path / "out" / "long_parts.mp4") == (30, Fraction(1), SIZE, True)


def test_a_camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def frames(number: int, *, stop: int = 1000) -> Iterator[tuple[float, Any]]:
        assert number == 2
        for index in range(stop):
            yield index / 30, sample_image(index, SIZE)

    monkeypatch.setattr(sources, "_camera_frames", frames)
    arguments = ("camera:2", "-o", tmp_path, "--frames", 6, "--preview", tmp_path / "now.png")
    assert command("parts", *arguments, "--json") == 0
    line = json_lines(capsys.readouterr().out)[0]
    assert line["frames"] == 6
    movie, records = (Path(file) for file in line["files"])
    assert movie.name.startswith("camera2_")
    assert details(movie)[0] == 6
    assert len(json_lines(records.read_text())) == 6
    assert pixels(tmp_path / "now.png").shape == (*SIZE, 3)


def test_a_camera_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("parts", "camera:77", "-o", tmp_path) == 1
    captured = capsys.readouterr().err
    assert "camera:77: expected a camera" in captured
    assert not list(tmp_path.glob("*.mp4"))


def test_numbered_images_as_a_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    for number in range(4):
        Image.fromarray(sample_image(number, (40, 56))).save(tmp_path / f"f_{number + 7:03d}.png")
    source = str(tmp_path / "f_%03d.png")
    assert command("pose", source, "-o", tmp_path / "video", "--save", "mp4,json", "-q") == 0
    with av.open(str(tmp_path / "video/f_pose.mp4")) as container:
        assert (container.streams.video[0].frames, container.streams.video[0].average_rate) == (4, 25)
    lines = json_lines((tmp_path / "video/f_pose.jsonl").read_text())
    assert [line["frame"] for line in lines] == [0, 1, 2, 3]
    assert command("pose", source, "-o", tmp_path / "images", "--save", "json,plot", "-q") == 0
    assert len(list((tmp_path / "images").glob("*.json"))) == 4
    (tmp_path / "f_010.png").unlink()  # another video, which is made again
    assert command("pose", source, "-o", tmp_path / "video", "--save", "mp4,json", "-q") == 0
    assert len(json_lines((tmp_path / "video/f_pose.jsonl").read_text())) == 3
