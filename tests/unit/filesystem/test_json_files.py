"""JSON files that are too large, too deep or no JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitruvian.errors import CheckpointError, InputError
from vitruvian.filesystem.json_files import read_json, read_json_object, read_text
from vitruvian.limits import use_limits
from vitruvian.pipelines.people.boxes_file import BoxesFile


@pytest.mark.parametrize("depth", [64, 65, 100_000])
@pytest.mark.parametrize("parts", [("[", "]"), ('{"a":', "}")])
def test_depth(tmp_path: Path, depth: int, parts: tuple[str, str]) -> None:
    path = tmp_path / "deep.json"
    path.write_text(parts[0] * depth + ("" if parts[1] == "]" else "1") + parts[1] * depth)
    if depth == 64:
        read_json(path)
        return
    with pytest.raises(CheckpointError, match=r"deep\.json: expected at most 64 levels of nesting, got"):
        read_json(path, error=CheckpointError)


def test_size(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_text("[" + " " * 98 + "]")
    with use_limits(json_bytes=100):
        assert read_json(path) == []
        path.write_text("[" + " " * 99 + "]")
        with pytest.raises(InputError, match=r"large\.json: expected at most 100 bytes, got 101\."):
            read_text(path)
        with pytest.raises(CheckpointError, match="expected at most 100 bytes"):
            read_json_object(path)
        with pytest.raises(InputError, match="expected at most 100 bytes"):
            BoxesFile(path)


def test_endless_files_end(tmp_path: Path) -> None:
    with use_limits(json_bytes=100), pytest.raises(InputError, match="expected at most 100 bytes"):
        read_json(Path("/dev/zero"))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" + b"1" * 5000 + b"]"])
def test_what_is_no_json(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json: expected JSON, but"):
        read_json(path)
