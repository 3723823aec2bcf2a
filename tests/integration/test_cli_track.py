"""`vitruvian track`: mask prompts, crops, states that are kept and refined, and what follows for tracked people."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.helpers.pipelines import sample_image
from tests.helpers.shared_folder import SHARED, needs_shared
from tests.integration.cli_case import command, json_lines, pixels
from tests.integration.test_cli_video import COUNT, SIZE, clip  # noqa: F401
from tests.unit.files.clips import make_clip
from vitruvian import TrackPrompt, pipeline
from vitruvian.cli import run
from vitruvian.cli.commands.track import TrackCommand
from vitruvian.files.video import VideoReader, VideoWriter
from vitruvian.pipelines.sources import Failure
from vitruvian.pipelines.video import loop

POINT, CORRECTION = "1@0:22,12", "1@5:30,20"
MODEL = ("-m", "facebook/sam2.1-hiera-tiny")


def records(folder: Path) -> list[dict[str, Any]]:
    lines = json_lines((folder / "clip_track.jsonl").read_text())
    return [{name: value for name, value in line.items() if name != "source"} for line in lines]


def test_mask_prompts_and_crops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = np.zeros(SIZE, np.uint8)
    mask[4:20, 6:30] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    arguments = ("track", "clip.mp4", *MODEL, "--mask", f"7@2:{tmp_path / 'mask.png'}", "--save", "crops,json")
    assert run([*arguments, "-o", str(tmp_path)]) == 0
    lines = records(tmp_path)
    assert [[one["id"] for one in line["objects"]] for line in lines] == [[]] * 2 + [[7]] * (COUNT - 2)
    assert lines[2]["objects"][0]["area"] == pytest.approx(16 * 24, abs=60)
    crop = pixels(tmp_path / "clip_track_crops" / "00002_7.png")
    assert crop.shape[2] == 4
    assert (crop[..., 3] > 0).sum() == lines[2]["objects"][0]["area"]
    visible = sum(one["area"] > 0 for line in lines for one in line["objects"])
    assert len(list((tmp_path / "clip_track_crops").iterdir())) == visible
    mask[:] = 0
    mask[30:, 30:] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")  # another mask: other results
    assert run([*arguments, "-o", str(tmp_path)]) == 0
    assert records(tmp_path) != lines
    assert run(["track", "clip.mp4", *MODEL, "--mask", "1@0:none.png", "-o", str(tmp_path)]) == 2
    assert "none.png: expected an image file, got none" in capsys.readouterr().err


def test_refine_gives_what_all_prompts_at_once_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    assert command("track", "clip.mp4", "-o", once, "--points", CORRECTION) == 0
    assert command("track", "clip.mp4", "-o", twice, "--keep-state") == 0
    before = records(twice)
    state = twice / "clip_track.state"
    assert (state / "plan.json").is_file()
    assert run(["track", "clip.mp4", *MODEL, "-o", str(twice), "--refine", str(state), "--points", CORRECTION]) == 0
    assert records(twice) == records(once) != before
    assert records(twice)[:5] == before[:5]
    capsys.readouterr()
    assert run(["track", "clip.mp4", *MODEL, "-o", str(twice), "--refine", str(state)]) == 2
    assert "--refine: expected further prompts" in capsys.readouterr().err
    arguments = ["-o", str(twice), "--refine", str(state), "--points", "1@6:3,4", "--no-overlap"]
    assert run(["track", "clip.mp4", *MODEL, *arguments]) == 2
    assert "--refine: use the same model and options as the first run" in capsys.readouterr().err
    arguments = ["-o", str(twice), "--refine", str(tmp_path), "--points", "1@6:3,4"]
    assert run(["track", "clip.mp4", *MODEL, *arguments]) == 2
    assert "--refine: expected a folder that vitruvian track --keep-state wrote" in capsys.readouterr().err


@pytest.fixture
def long_clip(tmp_path: Path) -> Path:
    """Make a video of two segments."""
    scene = sample_image(4, SIZE)
    make_clip(tmp_path / "clip.mp4", [np.roll(scene, number, 1) for number in range(COUNT)], rate=1)
    return tmp_path / "clip.mp4"


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files, without journals and kept states."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.parent.suffix != ".state"}


@pytest.mark.parametrize("before", [["--points", "2@0:60,40"], ["--save", "json"]])
def test_interrupted_with_other_prompts_or_files(
    before: list[str], long_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of frames that the first run wrote, or did not write, are those of the second in the end."""
    add = loop._SegmentWriter.add

    def interrupt(self: Any, result: Any) -> None:
        if self.next_frame == COUNT - 1:  # the first segment is complete
            signal.raise_signal(signal.SIGINT)
        add(self, result)

    arguments = ["track", long_clip, "--save", "json,png,crops"]
    assert command(*arguments, "-o", tmp_path / "expected", "-q") == 0
    with monkeypatch.context() as patch:
        patch.setattr(loop._SegmentWriter, "add", interrupt)
        assert command(*arguments, *before, "-o", tmp_path / "out", "-q") == 130
    assert command(*arguments, "-o", tmp_path / "out", "-q") == 0
    assert files(tmp_path / "out") == files(tmp_path / "expected")


def test_refine_leaves_the_files_of_earlier_frames(long_clip: Path, tmp_path: Path) -> None:
    arguments = ["track", long_clip, "--save", "json,png,crops", "-q"]
    correction = ["--points", "1@11:30,20"]
    assert command(*arguments, *correction, "-o", tmp_path / "expected") == 0
    assert command(*arguments, "-o", tmp_path / "out", "--keep-state") == 0
    words = ["track", long_clip, *MODEL, "--save", "json,png,crops", *correction, "-o", tmp_path / "out"]
    assert run([*map(str, words), "--refine", str(tmp_path / "out" / "clip_track.state")]) == 0
    assert files(tmp_path / "out") == files(tmp_path / "expected")


def test_states_of_videos_whose_names_have_dots(long_clip: Path, tmp_path: Path) -> None:
    for name in ("a.1.mp4", "a.2.mp4"):
        shutil.copy(long_clip, tmp_path / name)
    arguments = [
        "track",
        tmp_path / "a.1.mp4",
        tmp_path / "a.2.mp4",
        "--save",
        "png,json",
        "-q",
        "-o",
        tmp_path / "out",
    ]
    assert command(*arguments) == 0
    assert command(*arguments, "--keep-state") == 0  # all results are done, but no state was kept
    assert {path.name for path in (tmp_path / "out").glob("*.state")} == {"a.1_track.state", "a.2_track.state"}
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.state/*")}
    assert command(*arguments, "--keep-state") == 0
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.state/*")}


BAD_PROMPTS = [
    ("2@90:5,5", f"ends with frame {COUNT - 1}, got 90 for object 2"),
    ("1@4:5000,5", "object 1 in frame 4, got [[5000.0, 5.0]]"),
]


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS)
def test_prompts_that_do_not_fit_change_nothing(
    prompt: str, message: str, refine: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["track", "clip.mp4", *MODEL, "--save", "json,mp4,png,crops,vis.json", "-o", str(tmp_path)]
    assert run([*arguments, "--points", prompt]) == 1  # nothing is there yet
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
    first = [*arguments, "--points", POINT, "--keep-state"]
    assert run(first) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    options = ["--refine", str(tmp_path / "clip_track.state")] if refine else ["--points", POINT, "--keep-state"]
    assert run([*arguments, *options, "--points", prompt]) == 1
    assert message in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run(first) == 0
    assert "1 skipped" in capsys.readouterr().err


def test_the_same_refinement_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("track", "clip.mp4", "-o", tmp_path, "--save", "json,png", "--keep-state") == 0
    arguments = ["track", "clip.mp4", *MODEL, "--save", "json,png", "-o", str(tmp_path)]
    refine = [*arguments, "--refine", str(tmp_path / "clip_track.state"), "--points", CORRECTION]
    assert run(refine) == 0
    before = files(tmp_path)
    plan = (tmp_path / "clip_track.state" / "plan.json").read_text()
    capsys.readouterr()
    assert run(refine) == 0
    assert "1 skipped" in capsys.readouterr().err
    (tmp_path / "clip_track.jsonl").unlink()
    assert run(refine) == 0
    assert files(tmp_path) == before
    assert (tmp_path / "clip_track.state" / "plan.json").read_text() == plan


def test_objects_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    arguments = ["track", "clip.mp4", *MODEL, "--save", "json", "-o", str(tmp_path)]
    assert run([*arguments, "--box", "5@0:4,6,40,30", "--points", "3@0:22,12", "--points", "9@0:9,9"]) == 0
    assert [one["id"] for one in records(tmp_path)[0]["objects"]] == [3, 5, 9]


def test_a_folder_of_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one video, in the order of the numbers in the names; a frame that cannot be read does not end it."""
    images = [np.roll(sample_image(4, SIZE), 2 * number, 1) for number in range(12)]
    for name in ("frames", "numbered"):
        (tmp_path / name).mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "frames" / f"{number}.png")
        Image.fromarray(image).save(tmp_path / "numbered" / f"f_{number + 7:04d}.png")
    assert command("track", tmp_path / "frames", "--save", "json", "-o", tmp_path / "out") == 0
    lines = json_lines((tmp_path / "out" / "frames_track.jsonl").read_text())
    assert command("track", tmp_path / "numbered" / "f_%04d.png", "--save", "json", "-o", tmp_path / "out") == 0
    other = json_lines((tmp_path / "out" / "f_track.jsonl").read_text())
    assert [line["objects"] for line in lines] == [line["objects"] for line in other]
    assert [line["frame"] for line in lines] == list(range(12))
    for source in (tmp_path / "frames", tmp_path / "numbered" / "f_%04d.png"):
        python = list(pipeline("track", MODEL[1])(source, prompts=TrackPrompt(object_id=1, points=[[22, 12]])))
        assert [result.frame for result in python] == list(range(12))
        assert [dict(rle) for result in python for rle in result.rles] == [line["objects"][0]["rle"] for line in lines]
    (tmp_path / "frames" / "5.png").write_bytes(b"no image")
    (tmp_path / "frames" / "0.png").write_bytes(b"no image")
    capsys.readouterr()
    save = "json,mp4,vis.json"
    arguments = ("track", tmp_path / "frames", "--points", "1@1:22,12", "--save", save, "-o", tmp_path / "bad")
    assert run([*map(str, arguments), *MODEL]) == 1
    assert "2 of 12 frames failed" in capsys.readouterr().err
    lines = json_lines((tmp_path / "bad" / "frames_track.jsonl").read_text())
    assert [line["frame"] for line in lines if "error" in line] == [0, 5]
    dataset = json.loads((tmp_path / "bad" / "frames_track.vis.json").read_text())
    assert [rle is None for rle in dataset["annotations"][0]["segmentations"]] == [line in (0, 5) for line in range(12)]
    assert "5.png: expected an image" in lines[5]["error"]
    python = list(
        pipeline("track", MODEL[1])(tmp_path / "frames", prompts=TrackPrompt(object_id=1, frame=1, box=[4, 6, 40, 30]))
    )
    assert [isinstance(result, Failure) for result in python] == [number in (0, 5) for number in range(12)]
    assert command("track", tmp_path / "frames" / "1.png", "-o", tmp_path / "out") == 1
    assert "got an image. Pass its folder" in capsys.readouterr().err


def test_a_video_that_breaks_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noise = [np.random.default_rng(number).integers(0, 255, (*SIZE, 3), np.uint8) for number in range(24)]
    with VideoWriter(tmp_path / "cut.mp4", 1, SIZE) as writer:
        for image in noise:
            writer.write(image)
    data = (tmp_path / "cut.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) * 2 // 3])
    for _ in range(2):
        assert command("track", tmp_path / "cut.mp4", "-o", tmp_path) == 1
        message = re.search(r"cut.mp4: breaks off after frame (\d+) of 24. Get the", capsys.readouterr().err)
        assert message is not None
        assert 10 < int(message[1]) < 24
        assert len(json_lines((tmp_path / "cut_track.jsonl").read_text())) == int(message[1])
        assert sum(1 for _ in VideoReader(tmp_path / "cut_track.mp4")) == int(message[1])
    *_, last = pipeline("track", MODEL[1])(tmp_path / "cut.mp4", prompts=TrackPrompt(object_id=1, points=[[22, 12]]))
    assert isinstance(last, Failure)
    assert "breaks off after frame" in last.message


def test_no_one_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["track", "clip.mp4", *MODEL, "--everyone", "--detect-every", "50", "-o", str(tmp_path)]
    assert run([*arguments, "--save", "json,crops,vis.json"]) == 0
    assert "note: no object is visible in any frame, so there are no crops" in capsys.readouterr().err
    assert not any((tmp_path / "clip_track_crops").iterdir())
    assert run([*arguments, "--save", "json,crops,vis.json"]) == 0
    assert "1 skipped" in capsys.readouterr().err
    assert [line["objects"] for line in records(tmp_path)] == [[]] * COUNT
    assert json.loads((tmp_path / "clip_track.vis.json").read_text())["videos"][0]["length"] == COUNT


@needs_shared
def test_a_person_in_real_footage(tmp_path: Path) -> None:
    """The built-in detector finds the person; a few frames, since the detector is not fast."""
    path = tmp_path / "clip.mp4"
    source = VideoReader(SHARED / "photos" / "video" / "juggle.mp4")
    with VideoWriter(path, 8, source.size_hw) as writer:
        for _, _, image in itertools.islice(source, 0, 12, 3):
            writer.write(image)
    assert run(["track", str(path), *MODEL, "--everyone", "--points", "9@1:650,320", "-o", str(tmp_path)]) == 0
    assert [[one["id"] for one in line["objects"]] for line in records(tmp_path)] == [[1]] + [[1, 9]] * 3
    refined = tmp_path / "refined"
    arguments = ["track", str(path), *MODEL, "-o", str(refined), "--save", "json"]
    refine = [*arguments, "--refine", str(refined / "clip_track.state"), "--points"]
    assert run([*arguments, "--everyone", "--keep-state"]) == 0
    assert run([*refine, "1@1:650,320"]) == 0  # a correction: the person keeps the id
    assert run([*refine, "5@2:100,90"]) == 0
    assert [[one["id"] for one in line["objects"]] for line in records(refined)] == [[1]] * 2 + [[1, 5]] * 2


def test_poses_of_tracked_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("track", "clip.mp4", "-o", tmp_path, "--box", "300@3:4,6,40,30", "-q") == 0
    tracked = records(tmp_path)
    boxes = ("--boxes", tmp_path / "clip_track.jsonl")
    assert command("pose", "clip.mp4", "-o", tmp_path, *boxes, "--save", "json", "-q") == 0
    poses = json_lines((tmp_path / "clip_pose.jsonl").read_text())
    for line, objects in zip(poses, tracked, strict=True):
        expected = [one["id"] for one in objects["objects"] if one["presence"] >= 0.5 and one["area"]]
        assert sorted(person["id"] for person in line["poses"]) == sorted(expected)
    assert {person["id"] for line in poses for person in line["poses"]} <= {1, 300}
    (tmp_path / "broken.jsonl").write_text(json.dumps({"frame": 0, "objects": [{"id": 1}]}) + "\n")
    assert command("pose", "clip.mp4", "-o", tmp_path / "b", "--boxes", tmp_path / "broken.jsonl") != 0
    assert "broken.jsonl, line 1: expected a record of vitruvian track" in capsys.readouterr().err


def test_options_of_commands_that_follow(tmp_path: Path) -> None:
    shared = {"device": "cpu", "dtype": "bfloat16", "workers": 2, "overwrite": True, "sound": False, "smooth": False}
    shared |= {"preview": tmp_path / "preview.jpg", "progress": True, "quiet": True}
    own = {"model": "facebook/sam2.1-hiera-tiny", "revision": "abc", "save": "webm", "detect_every": 3}
    track = TrackCommand(sources=["clip.mp4"], then="pose=other,parts", **shared, **own)  # type: ignore[arg-type]
    following = track.following_commands("clip.mp4", tmp_path / "a.jsonl")
    assert [one.model for one in following] == ["other", None]
    for one in following:
        assert {name: getattr(one, name) for name in shared} == shared
        assert (one.revision, one.save, one.detect_every) == (None, None, 1)


def test_commands_that_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("clip.mp4", tmp_path / "clip.mp4")
    out = tmp_path / "out"
    then = "pose=facebook/sapiens2-pose-0.4b,parts=facebook/sapiens2-seg-0.4b"
    assert command("track", tmp_path / "clip.mp4", "-o", out, "--then", then, "-q") == 0
    assert len(json_lines((out / "clip_pose.jsonl").read_text())) == COUNT
    assert len(json_lines((out / "clip_parts.jsonl").read_text())) == COUNT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--then", "segment"], "--then: expected tasks among pose"),
        (["--then", "pose=./no-such"], "--then: pose: "),
        (["--then", f"pose={MODEL[1]}"], f"{MODEL[1]}: expected a checkpoint for pose, got Sam2VideoModel"),
        (
            ["--then", "pose", "-o", "x.mp4"],
            "--then: expected a folder as --out, for the records too, got the file x.mp4",
        ),
        (["--then", "pose", "camera:9"], "--then: expected videos, got a camera"),
        (["--cutout", "--save", "mp4"], "--cutout: expected a video with alpha (webm, mov), got --save mp4"),
        (["--cutout", "--save", "png,crops"], "--cutout: expected a video with alpha"),
        (["--cutout", "-o", "x.mp4"], "--cutout: expected a video with alpha (webm, mov), got --out x.mp4"),
        (["--detect-every", "5"], "--detect-every: requires --everyone"),
        (["--detect", "builtin"], "--detect: requires --everyone"),
        (["--max-people", "2"], "--max-people: requires --everyone"),
    ],
)
def test_options_that_would_be_ignored(
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are refused before any work."""
    folder = [] if "-o" in options else ["-o", str(tmp_path / "out")]
    assert command("track", "clip.mp4", *options, *folder) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_cutout_with_a_name(tmp_path: Path) -> None:
    assert command("track", "clip.mp4", "--cutout", "-o", tmp_path / "x.webm") == 0
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "x.webm")) as container:
        assert "alpha_mode" in {key.lower() for key in container.streams.video[0].metadata}


def test_commands_that_follow_have_records(tmp_path: Path) -> None:
    then = ("--then", "pose=facebook/sapiens2-pose-0.4b", "-q")
    assert command("track", "clip.mp4", "-o", tmp_path, "--save", "mp4", *then) == 0
    assert len(json_lines((tmp_path / "clip_pose.jsonl").read_text())) == COUNT
    for number in range(3):
        Image.fromarray(sample_image(number, SIZE)).save(tmp_path / f"f_{number}.png")
    assert command("track", tmp_path / "f_%d.png", "-o", tmp_path / "frames", *then) == 0
    poses = json_lines((tmp_path / "frames" / "f_pose.jsonl").read_text())
    tracked = json_lines((tmp_path / "frames" / "f_track.jsonl").read_text())
    for line, objects in zip(poses, tracked, strict=True):
        visible = [one["id"] for one in objects["objects"] if one["presence"] >= 0.5 and one["area"]]
        assert [person["id"] for person in line["poses"]] == visible


def test_annotations_are_those_of_davis(tmp_path: Path) -> None:
    assert command("track", "clip.mp4", "-o", tmp_path, "--box", "2@3:4,6,40,30", "--save", "png") == 0
    maps = sorted((tmp_path / "clip_track").iterdir())
    assert [path.name for path in maps] == [f"{number:05d}.png" for number in range(COUNT)]
    for path in maps:
        with Image.open(path) as image:
            assert image.mode == "P"
            assert image.getpalette()[:9] == [0, 0, 0, 128, 0, 0, 0, 128, 0]
            assert len(image.getpalette()) == 768
    assert np.unique(pixels(maps[5])).tolist() == [0, 1, 2]
    (tmp_path / "prompt.png").write_bytes(maps[5].read_bytes())  # several objects in one image
    arguments = ["track", "clip.mp4", *MODEL, "--mask", f"1@5:{tmp_path / 'prompt.png'}", "-o", str(tmp_path / "again")]
    assert run([*arguments, "--save", "png"]) == 0
    again = pixels(tmp_path / "again" / "clip_track" / "00005.png")
    assert np.unique(again).tolist() == [0, 1]
    assert ((again == 1) != (pixels(maps[5]) == 1)).sum() < 0.2 * (pixels(maps[5]) == 1).sum()
