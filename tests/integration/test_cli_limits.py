"""Limits, URLs and names of strangers on the command line."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_case import command, json_lines, save_images
from vitruvian.cli import run
from vitruvian.limits import get_limits, use_limits

pytestmark = pytest.mark.usefixtures("workspace")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that answers when the result of the local image is there, or after ten seconds."""
    monkeypatch.setenv("no_proxy", "*")
    (content,) = save_images(tmp_path / "served", 1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            for _ in range(200):
                if (tmp_path / "out" / "000_pose.json").exists():
                    break
                time.sleep(0.05)
            else:
                self.send_error(503)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content.read_bytes())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()


def test_local_files_come_first_and_secrets_are_not_printed(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (local,) = save_images(tmp_path / "in", 1)
    urls = [f"http://user:passw0rd@{server}/far{number}.jpg?signature=s3cret{number}#t0ken" for number in range(9)]
    options = ("-o", tmp_path / "out", "--save", "json", "--coco", tmp_path / "out" / "all.json", "--json")
    assert command("pose", *urls, local, *options, "--workers", 1) == 0
    assert command("pose", *urls, local, *options) == 0
    assert command("pose", f"http://user:passw0rd@{server}:x/?signature=s3cret", "-o", tmp_path / "bad") == 1
    captured = capsys.readouterr()
    lines = json_lines(captured.out)
    assert [line["status"] for line in lines if "status" in line][:20] == ["done"] * 10 + ["skipped"] * 10
    assert len({line["source"] for line in lines if "source" in line}) >= 10
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for text in (captured.out.encode(), captured.err.encode(), *written):
        assert not any(word in text for word in (b"passw0rd", b"s3cret", b"t0ken", b"signature", b"user:"))
    names = [image["file_name"] for image in json.loads((tmp_path / "out" / "all.json").read_text())["images"]]
    assert len(set(names)) == 10


def test_limits_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_images(tmp_path / "in", 1, size_hw=(40, 56))
    arguments = (tmp_path / "in", "-o", tmp_path / "out", "--save", "json")
    assert command("pose", *arguments, "--limit", "image_pixels=2239", "--limit", "people=5") == 1
    assert "expected at most 2,239 pixels, got 56×40 = 2,240" in capsys.readouterr().err
    assert get_limits().image_pixels > 2240
    assert command("pose", *arguments, "--limit", "image_pixels=2240") == 0
    assert command("pose", *arguments, "--limit", "image_pixel=1") == 2
    assert "the name of a limit, got 'image_pixel'. Did you mean image_pixels" in capsys.readouterr().err
    assert command("pose", *arguments, "--limit", "people") == 2
    assert "--limit people: expected a positive integer" in capsys.readouterr().err


def test_standard_input_is_limited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = save_images(tmp_path / "in", 1)
    with path.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert command("pose", "-", "-o", tmp_path / "a.json", "--limit", "file_bytes=100") == 1
    assert "standard input: expected at most 100 bytes" in capsys.readouterr().err


def test_doctor_prints_the_limits_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    with use_limits(people=7):
        run(["doctor", "--no-speed"])
        assert "people                       7   (by default 1,000)" in capsys.readouterr().out
        run(["doctor", "--no-speed", "--json"])
        assert json.loads(capsys.readouterr().out)["limits"]["people"] == 7


def test_escape_sequences_in_names_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (good,) = save_images(tmp_path / "in", 1)
    shutil.copy(good, tmp_path / "in" / "\x1b[31m\u009b31m\u202egood.jpg")
    (tmp_path / "in" / "\x1b]0;title\x07bad.jpg").write_bytes(b"no image")
    assert command("pose", tmp_path / "in", "-o", tmp_path / "out", "--save", "json", "--json", "--debug") == 1
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert not any(character in text for character in "\x1b\x07\u009b\u202e")
    assert {line["status"] for line in json_lines(captured.out)[:-1]} == {"done", "failed"}
