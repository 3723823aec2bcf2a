"""No result is lost, swapped, stale, outside the output folder, or written by two processes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitruvian.cli as cli
from tests.helpers.pipelines import sample_image
from tests.helpers.tiny_checkpoints import working_in
from tests.integration.cli_case import COMMANDS, command, json_lines, pixels, process, save_images, wait_until
from vitruvian.cli import run_task
from vitruvian.filesystem.atomic import find_temporary_files

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="sends signals")


pytestmark = pytest.mark.usefixtures("workspace")


def save_image(path: Path, size_hw: tuple[int, int], number: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sample_image(number, size_hw)).save(path, "PNG")
    return path


def files(folder: Path) -> set[str]:
    """The files below a folder, hidden ones left out."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts)}


def sizes(folder: Path) -> dict[str, tuple[int, int]]:
    """Height and width that each JSON result states, by the name of its source."""
    results = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    return {result["source"]: tuple(result["size_hw"]) for result in results}


# ------------------------------------------------------------------------------------------------ identity


def test_names_that_differ_in_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {str(save_image(tmp_path / "in" / "IMG  1.png", (30, 40))): (30, 40)}
    sources[str(save_image(tmp_path / "in" / "IMG 1.png", (50, 20)))] = (50, 20)
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", "--save", "json", "--json") == 0
    lines = json_lines(capsys.readouterr().out)
    assert {line["source"]: tuple(line["size_hw"]) for line in lines[:-1]} == sources
    assert files(tmp_path / "out") == {"IMG  1_pose.json", "IMG 1_pose.json"}
    assert sizes(tmp_path / "out") == sources


def test_names_like_numbers_of_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_image(tmp_path / "a_%05d.png", (20, 30))
    save_image(tmp_path / "b.png", (20, 30))
    out = tmp_path / "out"
    assert command("normals", tmp_path / "a_%05d.png", tmp_path / "b.png", "-o", out, "--save", "npz") == 0
    assert files(out) == {"a__05d_normals.npz", "b_normals.npz"}
    assert command("normals", tmp_path / "b.png", "-o", out / "%05d.npz") == 1
    assert "numbers the frames of a video, got an image" in capsys.readouterr().err


def test_names_under_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 90) / ("b" * 90)
    sources = {str(save_image(folder / f"{n}.png", (20 + n, 30), n)): (20 + n, 30) for n in range(3)}
    coco = tmp_path / "all.json"
    assert command("pose", folder, "-o", tmp_path / "out", "--save", "json", "--coco", coco, "-q") == 0
    assert sizes(tmp_path / "out") == sources
    images = json.loads(coco.read_text())["images"]
    found = {image["file_name"]: (image["height"], image["width"]) for image in images}
    assert found == {Path(name).name: size for name, size in sources.items()}  # relative to the folder


def test_two_data_addresses(tmp_path: Path) -> None:
    contents = [save_image(tmp_path / f"{n}.png", (20 + n, 30), n).read_bytes() for n in range(2)]
    sources = [f"data:image/png;base64,{base64.b64encode(content).decode()}" for content in contents]
    assert command("pose", *sources, "-o", tmp_path / "out", "--save", "json", "-q") == 0
    assert files(tmp_path / "out") == {"data_pose.json", "data_2_pose.json"}
    assert sorted(sizes(tmp_path / "out").values()) == [(20, 30), (21, 30)]


def test_two_addresses_with_a_long_common_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitruvian.images.download import redacted_url
    from vitruvian.pipelines import sources as module

    images = {n: save_image(tmp_path / f"{n}.png", (20 + n, 30), n).read_bytes() for n in range(2)}
    monkeypatch.setattr(module, "download", lambda url, **_: images[int(url[-1])])
    addresses = [f"https://example.org/photo.png?{'x' * 180}&n={n}" for n in range(2)]
    assert command("pose", *addresses, "-o", tmp_path / "out", "--save", "json", "-q") == 0
    stored = [redacted_url(address) for address in addresses]  # queries are not written, a digest tells them apart
    assert sizes(tmp_path / "out") == {stored[0]: (20, 30), stored[1]: (21, 30)}


def test_a_result_that_vanishes_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitruvian.cli.console_report import ConsoleReport

    done = ConsoleReport.done

    def vanish(self: ConsoleReport, name: str, paths: list[Path], **details: object) -> None:
        done(self, name, paths, **details)  # type: ignore[arg-type]
        if "001" in name:
            paths[0].unlink()

    monkeypatch.setattr(ConsoleReport, "done", vanish)
    save_images(tmp_path / "in", 3)
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", "--save", "json") == 1
    err = capsys.readouterr().err
    assert "2 done, 1 failed" in err
    assert "001_pose.json: written, but missing or changed since" in err


def test_a_result_that_vanishes_on_a_cluster_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitruvian.cli.commands.image_tasks import PoseCommand
    from vitruvian.cli.console_report import ConsoleReport
    from vitruvian.cli.run_on_cluster import _RecordingReport
    from vitruvian.cli.run_task import TaskRun

    report_done = _RecordingReport.done

    def vanish(self: _RecordingReport, name: str, paths: list[Path], **details: object) -> None:
        report_done(self, name, paths, **details)
        paths[0].unlink()

    monkeypatch.setattr(_RecordingReport, "done", vanish)
    (image,) = save_images(tmp_path / "in", 1)
    command = PoseCommand(sources=[str(image)], out=str(tmp_path / "out"), model="builtin", save="json", detect="whole")
    worker, driver = _RecordingReport(), ConsoleReport(command)
    with TaskRun(command, worker, writer="worker") as run:
        run.process(run.find_sources())
    for method, args, kwargs in worker.calls:
        getattr(driver, method)(*args, **kwargs)
    assert driver.finish() == 1
    assert "0 done, 1 failed" in capsys.readouterr().err


def test_an_empty_result_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitruvian.results import Pose

    monkeypatch.setattr(Pose, "save", lambda self, path: Path(path).touch())
    save_images(tmp_path / "in", 1)
    (tmp_path / "out").mkdir()
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", "--save", "json") == 1
    assert "got no file or an empty one" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ the journal


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files(folder)}


@POSIX
def test_killed_and_run_with_another_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(60):
        save_image(tmp_path / "in" / f"{n:03d}.png", (120, 160), n % 5)
    out = tmp_path / "out"
    running = process("normals", tmp_path / "in", *COMMANDS["normals"], "-o", out, "--save", "png,npz")
    wait_until(lambda: len(list(out.glob("*.npz"))) >= 6, running)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=60)
    for n in range(20, 60):
        (tmp_path / "in" / f"{n:03d}.png").unlink()
    other = (tmp_path / "in", "--save", "png,npz", "--convention", "opencv")
    assert command("normals", *other, "-o", out) == 0
    assert "20 done" in capsys.readouterr().err
    assert command("normals", *other, "-o", tmp_path / "fresh", "-q") == 0
    fresh = contents(tmp_path / "fresh")
    assert len(fresh) == 40
    assert {name: content for name, content in contents(out).items() if name in fresh} == fresh


def test_files_that_the_journal_does_not_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "in", 2)
    out = tmp_path / "out"
    arguments = (tmp_path / "in", "-o", out, "--save", "json")
    out.mkdir()
    (out / "000_pose.json").write_text("mine")
    assert command("pose", *arguments) == 1
    err = capsys.readouterr().err
    assert f"{out / '000_pose.json'}: exists and was not written by this command" in err
    assert "--overwrite" in err
    assert "1 done, 1 failed" in err
    assert (out / "000_pose.json").read_text() == "mine"
    assert command("pose", *arguments, "--overwrite") == 0
    assert command("pose", *arguments) == 0
    assert "0 done, 2 skipped" in capsys.readouterr().err
    with (out / "001_pose.json").open("a") as file:
        file.write("\n")
    assert command("pose", *arguments) == 1
    assert "001_pose.json: exists and was changed" in capsys.readouterr().err
    (out / ".vitruvian.jsonl").unlink()
    assert command("pose", *arguments) == 1
    assert "0 done, 2 failed" in capsys.readouterr().err


def test_a_journal_of_version_1_proves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = save_images(tmp_path / "in", 1)
    out = tmp_path / "out"
    out.mkdir()
    (out / "000_pose.json").write_text("{}")
    stat = path.stat()
    line = {"source": str(path), "stamp": [stat.st_size, stat.st_mtime_ns], "settings": "0" * 16}
    (out / ".vitruvian.jsonl").write_text(json.dumps(line | {"files": ["000_pose.json"]}) + "\n")
    assert command("pose", path, "-o", out, "--save", "json") == 1
    assert "was not written by this command" in capsys.readouterr().err


def test_other_weights_boxes_and_versions_are_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vitruvian.pipelines import digests

    (path,) = save_images(tmp_path / "in", 1)
    model = Path(shutil.copytree("facebook/sapiens2-pose-0.4b", tmp_path / "model"))
    boxes = tmp_path / "boxes.json"
    boxes.write_text(json.dumps({"000.jpg": [[2, 2, 20, 30]]}))

    def run() -> str:
        words = ["pose", str(path), "-m", str(model), "--boxes", str(boxes), "-o", str(tmp_path / "out"), "-s", "json"]
        assert cli.run(words) == 0
        return capsys.readouterr().err

    assert "1 done" in run()
    assert "1 skipped" in run()
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    stat = weights.stat()
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert "1 redone" in run()
    config = model / "config.json"
    config.write_text(config.read_text() + "\n")
    assert "1 redone" in run()
    boxes.write_text(json.dumps({"000.jpg": [[3, 2, 20, 30]]}))
    assert "1 redone" in run()
    monkeypatch.setattr(digests, "__version__", "99.0")
    assert "1 redone" in run()
    assert "1 skipped" in run()


# ------------------------------------------------------------------------------------------------ paths


def test_results_stay_in_the_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitruvian.pipelines import sources as module

    image = save_image(tmp_path / "x.png", (20, 30)).read_bytes()
    save_image(tmp_path / "work" / "x.png", (24, 30))
    monkeypatch.setattr(module, "download", lambda url, **_: image)
    before = files(tmp_path)
    model = str(Path(COMMANDS["normals"][1]).absolute())
    with working_in(tmp_path / "work"):
        assert cli.run(["normals", "../x.png", "x.png", "-m", model, "-o", "out", "-q"]) == 0
        addresses = ["https://a.org/../../../x.png", "https://a.org/x.png", "https://a.org/z..%2f..%2fx.png"]
        assert cli.run(["normals", *addresses, "-m", model, "-o", "web", "-q"]) == 0
    written = files(tmp_path) - before
    assert len(written) == 5
    assert all(name.startswith(("work/out/", "work/web/")) for name in written)


@POSIX
def test_a_link_in_the_output_folder_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_image(tmp_path / "in" / "a" / "x.png", (20, 30))
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "elsewhere")
    assert command("normals", tmp_path / "in", "-r", "-o", tmp_path / "out") == 1
    assert "outside of" in capsys.readouterr().err
    assert not files(tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["é" * 120, "x" * 240])
def test_names_of_240_bytes(name: str, tmp_path: Path) -> None:
    sources = [save_image(tmp_path / "in" / f"{name[:-1]}{end}.png", (20, 30 + ord(end))) for end in "ab"]
    assert command("pose", *sources, "-o", tmp_path / "out", "-q") == 0
    assert len(files(tmp_path / "out")) == 4
    assert sizes(tmp_path / "out") == {str(path): (20, 30 + ord(path.stem[-1])) for path in sources}
    assert command("pose", *sources, "-o", tmp_path / "out", "-q") == 0


def test_results_that_python_saves_by_a_pattern(tmp_path: Path) -> None:
    from vitruvian import pipeline

    sources = [save_image(tmp_path / folder / "x.png", (20 + n, 30)) for n, folder in enumerate("abc")]
    pipe = pipeline("normals", COMMANDS["normals"][1], device="cpu", detect="whole")
    for _ in range(2):  # the same names in every run
        with pipe(sources, save=str(tmp_path / "out" / "{stem}.npz"), workers=3, batch_size=1) as results:
            assert len(list(results)) == 3
        found = {}
        for name in files(tmp_path / "out"):
            with np.load(tmp_path / "out" / name) as values:
                found[name] = values["normals"].shape[0]
        assert found == {"x.npz": 20, "x_2.npz": 21, "x_3.npz": 22}


@pytest.mark.parametrize("pattern", ["{stem}.npz", "{stem}_{frame}.npz"])
def test_names_that_look_alike_in_a_pattern(pattern: str, tmp_path: Path) -> None:
    """Names that messages show alike, as white space is squeezed and long paths are cut, are different sources."""
    from vitruvian import pipeline

    folder = tmp_path / ("x" * 150)
    sources = [save_image(folder / name, (20, 30)) for name in ("a  b.png", "a b.png", "c?d.png", "c?e.png")]
    pipe = pipeline("normals", COMMANDS["normals"][1], device="cpu", detect="whole")
    with pipe(sources, save=str(tmp_path / "out" / pattern)) as results:
        assert len(list(results)) == 4
    expected = {pattern.format(stem=stem, frame=0) for stem in ("a  b", "a b", "c_d", "c_e")}
    assert files(tmp_path / "out") == expected


def test_temporary_files_of_killed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the results that are written again are removed; the output folder is listed once for all images."""
    save_images(tmp_path / "in", 4)
    out = tmp_path / "out"
    out.mkdir()
    for name in (".000_normals.npz.0123abcd.part", ".other_normals.npz.0123abcd.part"):
        (out / name).touch()
    listed = []

    def find(folder: Path) -> dict[str, list[Path]]:
        listed.append(folder)
        return find_temporary_files(folder)

    monkeypatch.setattr(run_task, "find_temporary_files", find)
    assert command("normals", tmp_path / "in", "-o", out, "--save", "npz", "--workers", "1") == 0
    assert [path.name for path in out.glob(".*.part")] == [".other_normals.npz.0123abcd.part"]
    assert listed == [out]


# ------------------------------------------------------------------------------------------------ locks


HOLD = """
import sys, time
from pathlib import Path
from vitruvian.filesystem.locks import OutputLock
lock = OutputLock(Path(sys.argv[1]), {sys.argv[2]: Path(sys.argv[2])})
print("locked", flush=True)
time.sleep(60)
"""


def test_another_process_has_an_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "in", 2)
    out = tmp_path / "out"
    arguments = (tmp_path / "in", "-o", out, "--save", "json")
    words = [sys.executable, "-c", HOLD, str(out), "000_pose.json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert command("pose", *arguments) == 1
        err = capsys.readouterr().err
        assert "1 done, 1 failed" in err
        assert f"000_pose.json: is being written by process {other.pid} on " in err
        assert files(out) == {"001_pose.json"}
        other.kill()
    assert command("pose", *arguments) == 0  # the lock of a dead process is free
    assert "1 done, 1 skipped" in capsys.readouterr().err
    assert not (out / ".vitruvian.locks").exists()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    pytest.importorskip("av")
    return make_short_clip(tmp_path / "clip.mp4", 6)


def make_short_clip(path: Path, count: int) -> Path:
    from tests.unit.files.clips import make_clip

    scene = sample_image(4, (48, 64))
    make_clip(path, [np.roll(scene, number, 1) for number in range(count)], rate=10)
    return path


def test_another_process_has_a_video(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-c", HOLD, str(out), "clip_parts.jsonl"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert command("parts", clip, "-o", out) == 1
        assert f"clip_parts.jsonl: is being written by process {other.pid} on " in capsys.readouterr().err
        assert not files(out)
        other.kill()


def test_a_video_that_is_not_in_the_journal_as_done(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = (clip, "-o", out, "--save", "mp4,json,npz")
    assert command("normals", *arguments) == 0
    first = contents(out)
    journal = out / ".vitruvian.jsonl"
    begin, _ = journal.read_text().splitlines()
    journal.write_text(begin + "\n")  # killed after the files were complete, before the journal said so
    assert command("normals", *arguments, "--convention", "opencv") == 0
    assert command("normals", clip, "-o", tmp_path / "fresh", *arguments[3:], "--convention", "opencv") == 0
    assert contents(out) == contents(tmp_path / "fresh") != first
    make_short_clip(clip, 4)
    assert command("normals", *arguments) == 0
    assert len([name for name in files(out) if name.endswith(".npz")]) == 4  # none of the longer video is left
    capsys.readouterr()
    assert command("normals", *arguments) == 0
    assert "0 done, 1 skipped" in capsys.readouterr().err


def test_two_processes_on_one_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    make_short_clip(tmp_path / "clip.mp4", 60)
    arguments = ("parts", tmp_path / "clip.mp4", *COMMANDS["parts"], "-o", tmp_path / "out", "--json")
    running = [process(*arguments) for _ in range(2)]
    outputs = [one.communicate(timeout=200)[0].decode() for one in running]
    codes = sorted(one.returncode for one in running)
    statuses = sorted(json_lines(output)[0]["status"] for output in outputs)
    assert (codes, statuses) in (([0, 1], ["done", "failed"]), ([0, 0], ["done", "skipped"])), outputs
    with av.open(str(tmp_path / "out" / "clip_parts.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) == 60
    assert len(json_lines((tmp_path / "out" / "clip_parts.jsonl").read_text())) == 60


# ------------------------------------------------------------------------------------------------ file names


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_names_that_are_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "in", 2)
    odd = os.fsdecode(os.fsencode(tmp_path / "in") + b"/caf\xe9.jpg")
    shutil.copy(tmp_path / "in" / "000.jpg", odd)
    broken = os.fsdecode(os.fsencode(tmp_path / "in") + b"/\xff\x1b[31m.jpg")
    Path(broken).write_bytes(b"nothing")
    arguments = (tmp_path / "in", "-o", tmp_path / "out", "--coco", tmp_path / "all.json")
    assert command("pose", *arguments, "--json") == 1
    captured = capsys.readouterr()
    assert {line["source"]: line["status"] for line in json_lines(captured.out)[:-1]} == {
        str(tmp_path / "in" / "000.jpg"): "done",
        str(tmp_path / "in" / "001.jpg"): "done",
        odd: "done",
        broken: "failed",
    }
    captured.err.encode()
    assert "\x1b" not in captured.err
    written = Path(os.fsdecode(os.fsencode(tmp_path / "out") + b"/caf\xe9_pose.json"))
    assert json.loads(written.read_text(encoding="utf-8"))["source"] == odd
    assert Path(odd).name in {image["file_name"] for image in json.loads((tmp_path / "all.json").read_text())["images"]}
    assert command("pose", *arguments) == 1
    assert "0 done, 3 skipped" in capsys.readouterr().err
    plot = Path(os.fsdecode(os.fsencode(tmp_path / "out") + b"/caf\xe9_pose_plot.png"))
    assert pixels(plot).shape == (40, 56, 3)


def test_the_name_of_an_image_is_that_of_the_drawing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photo,) = save_images(tmp_path, 1)
    assert command("normals", photo, "-o", tmp_path / "a.jpg", "-q") == 0
    with Image.open(tmp_path / "a.jpg") as image:
        assert (image.format, image.size) == ("JPEG", (56, 40))
    assert command("matte", photo, "-o", tmp_path / "b.jpg") == 2
    assert command("parts", photo, "-o", tmp_path / "c.obj") == 2
    errors = capsys.readouterr().err
    assert "--out b.jpg: expected a folder or a name that ends in .png" in errors
    assert "JPEG" in errors  # the advice
    assert not (tmp_path / "b.jpg").exists()
    assert not (tmp_path / "c.obj").exists()
