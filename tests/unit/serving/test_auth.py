"""API keys: created once, stored as hashes, found by what a client sends."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitruvian.errors import InputError
from vitruvian.serving.auth import add_key, find_key, read_keys
from vitruvian.serving.settings import ServerLimits, Settings, is_loopback, read_limits


def test_a_key_is_stored_as_a_hash_and_found(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key, other = add_key(file, "alice"), add_key(file, "bob")
    assert key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    keys = read_keys(file)
    assert [find_key(keys, one) for one in (key, other)] == list(keys)
    assert [one.name for one in keys] == ["alice", "bob"]
    for wrong in ("", key[:-1], key + "x", keys[0].sha256, "\udcff"):
        assert find_key(keys, wrong) is None


@pytest.mark.parametrize("text", ["", "# nothing\n", "alice secret\n", "alice " + "0" * 63 + "\n"])
def test_files_that_are_no_keys(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(InputError, match="--add-key") as caught:
        read_keys(tmp_path / "keys")
    assert "secret" not in str(caught.value)


def test_a_file_of_another_user_is_not_said_to_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    add_key(file, "alice")
    with as_another_user(file), pytest.raises(InputError) as caught:
        read_keys(file)
    assert (caught.value.subject, caught.value.got) == (str(file), "no permission")
    assert "can read" in str(caught.value.expected)
    assert "--add-key" not in str(caught.value)
    with as_another_user(file), pytest.raises(InputError, match="can write, got no permission"):
        add_key(file, "bob")


@contextlib.contextmanager
def as_another_user(file: Path) -> Iterator[None]:
    """Take the permissions for a file away; root has them unless it becomes another user."""
    file.chmod(0)
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_names_of_keys(tmp_path: Path) -> None:
    add_key(tmp_path / "keys", "alice")
    with pytest.raises(InputError, match="already"):
        add_key(tmp_path / "keys", "alice")
    with pytest.raises(InputError, match="a name of letters"):
        add_key(tmp_path / "keys", "two words")


def test_keys_are_needed_except_on_loopback(tmp_path: Path) -> None:
    Settings(models={}, data=tmp_path, host="127.0.0.1")
    Settings(models={}, data=tmp_path, host="::1")
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.com"):
        assert not is_loopback(host)
        with pytest.raises(InputError, match="expected API keys"):
            Settings(models={}, data=tmp_path, host=host)


def test_limits_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRUVIAN_MAX_JOBS", "7")
    assert read_limits({"queue": "3", "image_pixels": "4e6"}, subject="--limit") == (
        {"image_pixels": 4_000_000},
        ServerLimits(queue=3, jobs=7),
    )
    with pytest.raises(InputError, match="Did you mean queue"):
        read_limits({"queu": "3"}, subject="--limit")
    with pytest.raises(InputError, match="positive integer"):
        read_limits({"queue": "0"}, subject="--limit")
