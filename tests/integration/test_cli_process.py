"""`vitruvian` as a process of its own: pipes, Ctrl-C, --watch, and a help that does not wait for torch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests.integration.cli_case import COMMANDS, command, json_lines, pixels, process, save_images, wait_until
from vitruvian.cli import app

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")


pytestmark = pytest.mark.usefixtures("workspace")


def test_pipes(tmp_path: Path) -> None:
    (path,) = save_images(tmp_path, 1)
    running = process("matte", "-", *COMMANDS["matte"], stdin=path.open("rb"))
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    with Image.open(BytesIO(out)) as image:
        assert image.format == "PNG"
        assert image.mode == "RGBA"
        assert image.size == (56, 40)
    assert b"1 done" in err


def test_pipes_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    paths = save_images(tmp_path, 2)

    class Stdin:
        buffer = BytesIO(paths[0].read_bytes())

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert command("pose", "-", "--save", "json") == 0
    captured = json.loads(capsysbinary.readouterr().out)
    assert captured["source"] == "standard input"
    assert command("pose", *paths, "--out", "-", "--save", "json", "-q") == 0  # a line a image
    captured = capsysbinary.readouterr()
    assert [line["source"] for line in json_lines(captured.out.decode())] == [str(path) for path in paths]
    Stdin.buffer = BytesIO()
    assert command("pose", "-", "-q") == 1
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    assert b"standard input: expected an image, got no data" in captured.err
    Stdin.buffer = BytesIO(paths[1].read_bytes())
    assert command("pose", "-", "-q", "-o", tmp_path / "out", "--save", "json") == 0
    assert (tmp_path / "out" / "stdin_pose.json").exists()


@POSIX
def test_ctrl_c_leaves_what_is_done_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "in", 1, size_hw=(480, 640))
    for number in range(1, 150):
        shutil.copy(tmp_path / "in" / "000.jpg", tmp_path / "in" / f"{number:03d}.jpg")
    out = tmp_path / "out"
    arguments = (tmp_path / "in", *COMMANDS["normals"], "-o", out, "--save", "png,npz")
    running = process("normals", *arguments)
    wait_until(lambda: out.is_dir() and len(list(out.glob("*.npz"))) > 3, running)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert b"Interrupted" in err
    assert b"Traceback" not in err
    done = sorted(out.glob("*.npz"))
    assert 3 < len(done) < 150
    assert not list(out.glob(".*.part"))
    for path in out.glob("*.png"):
        assert pixels(path).shape == (480, 640, 3)
    records = json_lines((out / ".vitruvian.jsonl").read_text())
    proven = {Path(record["source"]).stem for record in records if record["event"] == "done"}
    assert 0 < len(proven) <= len(done)
    assert f"{len(proven)} done in".encode() in err  # also what was written ahead of the interruption
    for number in range(20, 150):  # the rest need not be all of it
        (tmp_path / "in" / f"{number:03d}.jpg").unlink()
    assert command("normals", tmp_path / "in", "-o", out, "--save", "png,npz") == 0
    text = capsys.readouterr().err
    assert "skipped (already done" in text
    assert f"{20 - min(20, len(proven))} done" in text


@POSIX
def test_ctrl_c_that_a_library_replaces_by_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ValueError("could not determine the shape")  # as torch does

    monkeypatch.setattr(app, "program", lambda name: interrupted)
    monkeypatch.setattr(app, "_names_in_messages", lambda *_: {})
    assert app.run(["pose", "a.jpg"]) == 130
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@POSIX
def test_watching_a_folder(tmp_path: Path) -> None:
    """Starting torch is most of it: one process shows all."""
    folder, out = tmp_path / "in", tmp_path / "out"
    (first,) = save_images(folder, 1)
    options = ("-o", out, "--save", "json", "--coco", tmp_path / "all.json", "--watch", "--json")
    running = process("pose", folder, *COMMANDS["pose"], *options)
    assert running.stdout is not None
    line = json.loads(running.stdout.readline())
    assert (line["source"], line["status"]) == (str(first), "done")
    content = first.read_bytes()
    with (folder / "slow.jpg").open("wb") as file:  # a copy that takes its time
        for start in range(0, len(content), len(content) // 3):
            file.write(content[start : start + len(content) // 3])
            file.flush()
            time.sleep(0.4)
    line = json.loads(running.stdout.readline())
    assert (line["source"], line["status"]) == (str(folder / "slow.jpg"), "done")  # not taken half
    (folder / "bad.jpg").write_bytes(content[:200])
    line = json.loads(running.stdout.readline())
    assert (line["source"], line["status"]) == (str(folder / "bad.jpg"), "failed")
    (folder / "bad.jpg").write_bytes(content)  # mended
    line = json.loads(running.stdout.readline())
    assert (line["source"], line["status"]) == (str(folder / "bad.jpg"), "done")
    first.write_bytes(content + b"changed")  # what follows the end of a JPEG is not read
    line = json.loads(running.stdout.readline())
    assert (line["source"], line["status"]) == (str(first), "done")
    running.send_signal(signal.SIGINT)
    rest, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert json.loads(rest)["summary"]["done"] == 4
    images = json.loads((tmp_path / "all.json").read_text())["images"]
    assert [Path(image["file_name"]).name for image in images] == ["slow.jpg", "bad.jpg", first.name]  # each once
    assert b"Traceback" not in err
    assert {path.name for path in out.glob("*.json")} == {"000_pose.json", "slow_pose.json", "bad_pose.json"}


def test_help_is_light() -> None:
    code = """
import sys
from vitruvian.cli import run
for arguments in (["--help"], ["pose", "--help"], ["--version"], ["models", "--help"]):
    assert run(arguments) == 0
heavy = {"torch", "numpy", "PIL", "huggingface_hub", "safetensors", "scipy", "av", "transformers"}
print("loaded:", sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_completion(tmp_path: Path) -> None:
    """What shells ask for: a script, and words to go on with."""
    code = "from vitruvian.cli import main; main()"

    def ask(words: str) -> str:
        variables = {"_VITRUVIAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()))}
        if not words.endswith(" "):
            variables["COMP_CWORD"] = str(len(words.split()) - 1)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PATH": ""} | variables
        )
        return done.stdout

    assert {"pose", "pointmap", "parts", "panoptic"} <= set(ask("vitruvian p").split())
    assert "--detect" in ask("vitruvian pose --det").split()
    assert {"builtin", "whole"} <= set(ask("vitruvian pose --detect ").split())
    models = set(ask("vitruvian pose --model ").split())
    assert {"builtin", "facebook/sapiens2-pose-0.4b"} <= models
    assert not any("matting" in name for name in models)
    assert {"cpu", "cuda"} <= set(ask("vitruvian pose --device ").split())
    done = subprocess.run(
        [sys.executable, "-c", code, "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},  # tests may have no shell above them
    )
    assert "_VITRUVIAN_COMPLETE" in done.stdout, done.stderr
