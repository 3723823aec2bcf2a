"""Many sources: bad ones do not stop the rest, names do not collide, and running again does only what is left."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import vitruvian.cli as cli
from tests.helpers.shared_folder import SHARED, needs_shared
from tests.integration.cli_case import COMMANDS, command, json_lines, pixels, save_images, truncate_file
from vitruvian.cli.console_report import ConsoleReport
from vitruvian.cli.resume_journal import JOURNAL
from vitruvian.results import Pose

HARD = SHARED / "photos" / "hard"


pytestmark = pytest.mark.usefixtures("workspace")


def names(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != JOURNAL
    }


def test_a_folder_with_broken_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = save_images(tmp_path / "in", 12)
    truncate_file(paths[3])
    paths[7].write_text("not a image")
    (tmp_path / "in" / "notes.txt").write_text("neither")
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", "--save", "json") == 1
    captured = capsys.readouterr()
    assert names(tmp_path / "out") == {f"{number:03d}_pose.json" for number in range(12) if number not in (3, 7)}
    assert "10 done, 2 failed" in captured.err
    lines = captured.err.splitlines()
    assert [line for line in lines if line.startswith(str(paths[3]))]
    assert [line for line in lines if line.startswith(str(paths[7]))]
    assert captured.out == ""
    for path in (tmp_path / "out").glob("*.json"):
        assert json.loads(path.read_text())["poses"]

    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", "--save", "json") == 1
    assert "0 done, 10 skipped" in capsys.readouterr().err


def test_machines_get_lines_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = save_images(tmp_path / "in", 3)
    truncate_file(paths[1])
    assert command("parts", tmp_path / "in", "-o", tmp_path / "out", "--save", "png", "--json", "--quiet") == 1
    captured = capsys.readouterr()
    lines = json_lines(captured.out)
    assert [line["status"] for line in lines[:-1]] == ["done", "failed", "done"]
    assert [line["source"] for line in lines[:-1]] == [str(path) for path in paths]
    assert lines[0]["files"] == [str(tmp_path / "out" / "000_parts.png")]
    assert lines[-1]["summary"]["done"] == 2
    assert lines[-1]["summary"]["failures"] == [lines[1]["error"]]
    assert len(captured.err.splitlines()) == 1  # quiet: the error alone


def test_what_is_done_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = save_images(tmp_path / "in", 1)
    out = tmp_path / "out"
    written = out / "000_pose.json"

    def run(*arguments: object) -> str:
        assert command("pose", path, "-o", out, "--save", "json", *arguments) == 0
        return capsys.readouterr().err

    assert "1 done" in run()
    stamp = written.stat().st_mtime_ns
    assert "0 done, 1 skipped" in run()
    assert "0 done, 1 skipped" in run("--batch-size", 2)  # does not change results
    assert "0 done, 1 skipped" in run("--no-sound", "--no-smooth", "--detect-every", 3)  # for videos
    assert written.stat().st_mtime_ns == stamp
    assert "1 done" in run("--overwrite")
    assert written.stat().st_mtime_ns > stamp
    assert "1 redone" in run("--boxes", "1,1,20,20")  # other settings
    os.utime(path, ns=(1, 1))
    assert "0 done, 1 skipped" in run("--boxes", "1,1,20,20")  # a small file is known by its content
    save_images(tmp_path / "other", 1, first=3)[0].replace(path)
    assert "1 redone" in run("--boxes", "1,1,20,20")  # another image under the same name
    written.unlink()
    assert "1 done" in run()


def test_results_of_another_source_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "one", 1)
    save_images(tmp_path / "two", 1, first=5)[0].rename(tmp_path / "two" / "000.jpg")
    out = tmp_path / "out"
    assert command("pose", tmp_path / "one", "-o", out, "--save", "json") == 0
    before = (out / "000_pose.json").read_bytes()
    assert command("pose", tmp_path / "two", "-o", out, "--save", "json") == 1
    assert "holds the result of" in capsys.readouterr().err
    assert (out / "000_pose.json").read_bytes() == before
    shutil.move(tmp_path / "one", tmp_path / "moved")  # the same file, elsewhere
    assert command("pose", tmp_path / "moved", "-o", out, "--save", "json") == 0
    assert "1 skipped" in capsys.readouterr().err


def test_names_do_not_collide(tmp_path: Path) -> None:
    (one,) = save_images(tmp_path / "a", 1)
    (two,) = save_images(tmp_path / "b", 1, first=0)
    shutil.copy(one, tmp_path / "a" / "000.png")  # JPEG inside; Pillow looks
    assert command("pose", one, two, "-o", tmp_path / "out", "--save", "json", "-q") == 0
    assert names(tmp_path / "out") == {"a/000_pose.json", "b/000_pose.json"}
    assert command("pose", tmp_path / "a", "-o", tmp_path / "out2", "--save", "json", "-q") == 0
    assert names(tmp_path / "out2") == {"000_jpg_pose.json", "000_png_pose.json"}
    assert command("pose", tmp_path, "-r", "-o", tmp_path / "out3", "--save", "json", "-q") == 0
    assert names(tmp_path / "out3") == {"a/000_jpg_pose.json", "a/000_png_pose.json", "b/000_pose.json"}


def test_results_in_the_folder_of_sources_are_no_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path, 2)
    for out in (tmp_path, tmp_path / "deeper"):
        for _ in range(2):
            assert command("parts", tmp_path, "-r", "-o", out) == 0
        assert "0 done, 2 skipped" in capsys.readouterr().err
    found = tmp_path / "000_parts_plot.png"
    assert command("pose", found, "-o", tmp_path, "--save", "json") == 0  # named, it is meant
    assert (tmp_path / "000_parts_plot_pose.json").exists()


def test_globs_sequences_and_a_file_as_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "in", 4)
    assert command("pose", tmp_path / "in" / "*2.jpg", "-o", tmp_path / "a", "--save", "json") == 0
    assert names(tmp_path / "a") == {"002_pose.json"}
    assert command("pose", tmp_path / "in" / "%03d.jpg", "-o", tmp_path / "b", "--save", "json") == 0
    assert len(names(tmp_path / "b")) == 4
    assert command("pose", tmp_path / "in" / "000.jpg", "-o", tmp_path / "one.json") == 0
    assert json.loads((tmp_path / "one.json").read_text())["task"] == "pose"
    capsys.readouterr()
    assert command("pose", tmp_path / "in", "-o", tmp_path / "one.json") == 2
    assert "expected a folder for 4 sources" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pose", "x.jpg", "-m", "facebook/sapiens2-pose-0.4b", "--save", "jsn"], "got 'jsn'. Did you mean json"),
        (["matte", "x.jpg", "-m", "facebook/sapiens2-matting-1b", "--save", "jpg"], "JPEG has no alpha"),
        (["pose", "x.jpg", "-m", "facebook/sapiens2-pose-0.4b", "--save", "mp4,webm"], "one video format"),
        (["pose", "here.jpg", "-m", "no-such-folder"], "no such file or folder"),
        (["pose", "here.jpg", "-m", "facebook/sapiens2-seg-0.4b"], "which is for parts, embed"),
        (["semantic", "here.jpg", "-m", "facebook/sapiens2-seg-0.4b"], "which is for parts, embed"),
        (["pose", "x.jpg", "--batch-size", "0"], "expected a number of at least 1"),
        (["pose", "x.jpg", "--layout", "crap"], "'crap' is not one of"),
        (["pose", "x.jpg", "--no-such-option"], "No such option"),
        (["pose"], "Missing argument 'SOURCE'. See vitruvian pose --help."),
        (["poze", "x.jpg"], "No such command 'poze'"),
        (["normals", "x.jpg", "--tile", "12 x"], "--tile: expected pixels"),
        (["pointmap", "x.jpg", "-K", "1,2"], "--intrinsics: expected 4 comma-separated numbers"),
        (
            ["pointmap", "x.jpg", "-m", "m", "-K", "9,9,5,5", "--fov", "60"],
            "--intrinsics and --fov: expected one of them, got both",
        ),
        (["segment", "x.jpg"], "expected --points or --boxes"),
        (["segment", "x.jpg", "--points", "1,2,3"], "--points: expected"),
        (["pose", "x.jpg", "--detect", "a", "--boxes", "1,2,3,4"], "--detect and --boxes: cannot be combined"),
        (["pose", "x.jpg", "--json", "-o", "-"], "--json and --out -"),
        (["pose", "x.jpg", "y.jpg", "-o", "-", "--save", "npz"], "expected one image for npz"),
        (["pose", "no-such-folder", "--watch"], "--watch: expected folders"),
        (["pose", "x.jpg", "--preview", "now.txt"], "--preview: expected a name"),
        (["normals", "x.jpg", "--overlap", "0.8"], "'--overlap': "),
        (["normals", "x.jpg", "--tile", "1"], "--tile: expected pixels"),
        (["semantic", "here.jpg"], "--model: expected a checkpoint for semantic. Pass, for example, f"),
        (["instances", "here.jpg"], "a checkpoint for instances"),
        (["pose", "x.jpg", "--on-empty", "crash"], "'crash' is not one of"),
        (["pose", "here.jpg", "-m", "facebook/sapiens2-pose-0.4b", "--device", "cuda:99"], "Error: --device: "),
        (["models", "list", "--task", "poses"], "Did you mean pose"),
        (["models", "info", "no-such-folder"], "no such file or folder"),
    ],
)
def test_what_is_wrong_with_a_command(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], workspace: Path
) -> None:
    if not (workspace / "here.jpg").exists():
        save_images(workspace, 1)[0].rename(workspace / "here.jpg")
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("Error: ")
    assert captured.out == ""


def test_what_is_wrong_with_a_image_is_said_of_options_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "in", 1)
    Image.new("RGB", (56, 40)).save(tmp_path / "in" / "000.jpg")  # without anyone
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", "--boxes", "1,2,30,20", "--boxes", "5,5,5,9") == 1
    assert "000.jpg: --boxes number 2: expected x1, y1, x2, y2" in capsys.readouterr().err
    strict = ("--detect", "builtin", "--on-empty", "error", "--json")
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", *strict) == 1
    (line, _) = json_lines(capsys.readouterr().out)
    assert line["error"].endswith("expected people, but builtin detected no one. Pass boxes.")


def test_the_widest_overlap_of_tiles(tmp_path: Path) -> None:
    save_images(tmp_path / "in", 1)
    tiles = ("--tile", "16", "--overlap", "0.75", "-q")
    assert command("normals", tmp_path / "in", "-o", tmp_path / "out", *tiles) == 0


def test_debug_shows_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["pose", "x.jpg", "-m", "no-such-folder", "--debug", "--save", "jsn"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_sources_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    save_images(tmp_path / "in", 1)
    sources = [tmp_path / "none.jpg", tmp_path / "empty", tmp_path / "*.gif", tmp_path / "in"]
    assert command("pose", *sources, "-o", tmp_path / "out", "--save", "json") == 1
    captured = capsys.readouterr().err
    assert "1 done, 3 failed" in captured
    assert f"{tmp_path / 'none.jpg'}: file not found" in captured
    assert "got no files" in captured
    assert "no file matches" in captured


def test_memory_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    done = ConsoleReport.done

    def counting(self: ConsoleReport, *arguments: object, **details: object) -> None:
        if self.done_count % 16 == 8:
            alive.append(sum(isinstance(one, Pose) for one in gc.get_objects()))
        done(self, *arguments, **details)  # type: ignore[arg-type]

    monkeypatch.setattr(ConsoleReport, "done", counting)
    save_images(tmp_path / "in", 80, size_hw=(24, 24))
    arguments = ("--save", "json", "--batch-size", 2, "--workers", 2, "-q")
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", *arguments) == 0
    assert len(alive) == 5
    assert max(alive) <= 12


@needs_shared
@pytest.mark.parametrize("name", ["pose", "matte"])
def test_every_hard_file_gives_a_result_or_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = json.loads((HARD / "index.json").read_text())
    entries = entries.get("files", entries) if isinstance(entries, dict) else entries
    files = sorted(path for path in HARD.rglob("*") if path.is_file() and path.name != "index.json")
    # A whole matte of the tall and the wide one costs more than all others.
    kind = "json" if name == "pose" else "png"
    code = command(name, *files, "-o", tmp_path, "--save", kind, "--json", "-q")
    captured = capsys.readouterr()
    lines = {line["source"]: line for line in json_lines(captured.out) if "source" in line}
    assert set(lines) == {str(path) for path in files}
    assert code == 1
    for path in files:
        line = lines[str(path)]
        if "invalid" in path.parts:
            assert line["status"] == "failed", path
            assert "\n" not in line["error"]
            assert "Traceback" not in line["error"]
            assert line["error"].startswith(str(path))
        else:
            assert line["status"] == "done", line
            (written,) = line["files"]
            if kind == "png":
                assert list(pixels(Path(written)).shape[:2]) == line["size_hw"]
    assert len(captured.err.splitlines()) == sum(line["status"] == "failed" for line in lines.values())


def test_help_of_every_command_has_an_example_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (*COMMANDS, "demo", "doctor", "synthesize", "train", "evaluate"):
        assert cli.run([name, "--help"]) == 0
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert f"Example: vitruvian {name}" in text
    assert cli.run(["pose", "--help"]) == 0
    text = capsys.readouterr().out
    for words in ("Results", "Model", "People", "Messages", "--help-all"):
        assert words in text
    for words in ("--batch-size", "--max-people", "--detect-every"):
        assert words not in text
    assert 10 <= len(set(re.findall(r"--[a-z-]+", text.partition("Options")[2]))) <= 16
    assert cli.run(["pose", "--help-all"]) == 0
    text = capsys.readouterr().out
    for words in ("Video and cameras", "--batch-size", "[default: auto]", "[default: 0.3]"):
        assert words in text
    assert cli.run(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 success; 1 some sources failed; 2 invalid command or model; 130" in text


def test_aliases_of_commands(tmp_path: Path) -> None:
    save_images(tmp_path, 1)
    arguments = ["--box-format", "xywh", "--boxes", "2,3,30,20", "--on-empty", "none", "--threshold", "0.2"]
    for name in ("pose", "keypoints", "keypoint-detection"):
        out = tmp_path / name
        assert cli.run([name, str(tmp_path / "000.jpg"), *COMMANDS["pose"][:2], *arguments, "-o", str(out), "-q"]) == 0
        people = json.loads((out / "000_pose.json").read_text())["people"]
        assert people["boxes_xyxy"] == [[2, 3, 32, 23]]
    whole = ["--detect", "whole", "-o", str(tmp_path / "whole"), "-q"]
    assert cli.run(["pose", str(tmp_path / "000.jpg"), *COMMANDS["pose"][:2], *whole]) == 0
    people = json.loads((tmp_path / "whole/000_pose.json").read_text())["people"]
    assert people["detector"] == "whole image"
