"""What commands print: errors in the words of the command line, progress, warnings, and texts for any terminal."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from PIL import Image

from vitruvian.cli.app import _names_in_messages, program, run
from vitruvian.cli.commands.image_tasks import TASK_COMMANDS
from vitruvian.cli.console_report import ConsoleReport, error_text, json_line, printable
from vitruvian.cli.option_groups import VerbosityGroup
from vitruvian.errors import InputError, MissingExtraError
from vitruvian.pipelines import _warn_about_builtin


@pytest.fixture
def names(request: pytest.FixtureRequest) -> dict[str, str]:
    """The options of a command with the source "people", as the program and the report have them."""
    found = _names_in_messages(program(request.param), [request.param, "people"])
    for name, option in TASK_COMMANDS[request.param](sources=["people"]).names_in_messages().items():
        assert name in ("sources", "help_all") or found[name] == option
    return found


@pytest.mark.parametrize("names", ["pose"], indirect=True)
@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("device: 'x' asked for. Use cpu.", "--device: 'x' asked for. Use cpu."),
        ("max_people: expected 1.", "--max-people: expected 1."),
        ("boxes and detect: got both.", "--boxes and --detect: got both."),
        ("boxes[2]: expected a box.", "--boxes number 3: expected a box."),
        ("people: expected an image.", "people: expected an image."),  # the source has that name
        ("photo.jpg: expected boxes, got none.", "photo.jpg: expected boxes, got none."),
        ("tile_hw: pose has no tiles.", "tile_hw: pose has no tiles."),
        ("two\n  lines", "two lines"),
    ],
)
def test_errors_about_arguments_are_about_options(names: dict[str, str], message: str, text: str) -> None:
    assert error_text(InputError(message), names) == text


@pytest.mark.parametrize("names", ["pointmap"], indirect=True)
def test_options_with_other_names(names: dict[str, str]) -> None:
    assert error_text(InputError("K and fov: expected one."), names) == "--intrinsics and --fov: expected one."
    assert error_text(InputError("tile_hw: too small."), names) == "--tile: too small."


def test_where_no_command_runs() -> None:
    assert error_text(InputError("device: expected a name.")) == "device: expected a name."
    assert error_text(KeyError()) == "KeyError"
    assert error_text(MissingExtraError("av", "video", "videos")).endswith('pip install "vitruvian[video]"')


def test_texts_for_terminals() -> None:
    odd = os.fsdecode(b"caf\xe9\x1b[31m\n.jpg")
    assert printable(odd) == "caf\\udce9�[31m .jpg"
    assert json_line({"a": os.fsdecode(b"\xe9")}) == '{"a": "\\udce9"}'


def test_the_first_result_does_not_count_for_the_remaining_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes the longest: the model warms up."""
    clock = [0.0]
    monkeypatch.setattr("vitruvian.cli.console_report.time.monotonic", lambda: clock[0])
    report = ConsoleReport(VerbosityGroup())
    with report.bar("images", 100) as bar:
        for count, clock[0] in ((1, 60.0), (2, 61.0), (11, 80.0), (21, 100.0)):
            bar.update(count)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["images: 1 of 100", "images: 11 of 100, 0:02:58 left", "images: 21 of 100, 0:02:38 left"]


def test_quiet_commands_print_no_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (32, 24)).save(tmp_path / "a.png")
    for words in (["-q"], ["--quiet"], []):
        _warn_about_builtin.cache_clear()
        out = str(tmp_path / f"out{len(words)}{words}")
        arguments = ["embed", str(tmp_path / "a.png"), "-o", out, "--device", "cpu", *words]
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            assert run(arguments) == 0
        text = capsys.readouterr().err
        assert ("Warning: --model: not given" in text) == (not words)
        assert text.count("Warning") <= 1
        assert words or "1 done" in text
        assert not words or text == ""


def test_a_warning_and_a_spinner_do_not_share_a_line() -> None:
    """On a terminal, which a pseudo terminal stands for."""
    pty = pytest.importorskip("pty")
    code = (
        "import functools, time, warnings\n"
        "from vitruvian.cli.app import _show_warning\n"
        "from vitruvian.cli.option_groups import VerbosityGroup\n"
        "from vitruvian.cli.console_report import ConsoleReport\n"
        "from vitruvian.errors import VitruvianWarning\n"
        "warnings.showwarning = functools.partial(_show_warning, {})\n"
        "with ConsoleReport(VerbosityGroup()).busy('opening'):\n"
        "    time.sleep(0.5)\n"
        "    warnings.warn('model: small', VitruvianWarning)\n"
        "    time.sleep(0.3)\n"
    )
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdout=theirs, env=env)
    os.close(theirs)
    content = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            content += part
    assert process.wait() == 0
    text = content.decode()
    before, warning, after = text.partition("Warning: model: small")
    assert warning, text
    assert "opening" in before
    assert before.endswith("\x1b[2K")  # the line of the spinner is erased first
    assert after.startswith("\r\n")


def test_progress_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    for progress in (True, False):
        report = ConsoleReport(VerbosityGroup(json=True, progress=progress, quiet=True))
        with report.bar("clip.mp4", None) as bar:
            for frame in range(1, 9):
                bar.update(frame, 8)
        lines = [json.loads(line)["progress"] for line in capsys.readouterr().out.splitlines()]
        assert bool(lines) is progress
        if lines:  # the first and the last; those between come once a second
            assert [line["done"] for line in (lines[0], lines[-1])] == [1, 8]
            assert lines[0] == {"source": "clip.mp4", "done": 1, "total": 8}
