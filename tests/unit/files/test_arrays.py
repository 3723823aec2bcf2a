"""NPZ, JSON and EXR, read back by numpy, json and OpenEXR."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from vitruvian.errors import InputError, MissingExtraError
from vitruvian.files.arrays import write_exr, write_npz
from vitruvian.filesystem.json_files import write_json


def test_npz_opens_without_pickle(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", {"x": np.arange(6).reshape(2, 3), "text": np.array("größe")})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as data:
        assert data["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert str(data["text"]) == "größe"
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_npz(tmp_path / "b.npz", {"x": np.array([None])})
    assert not (tmp_path / "b.npz").exists()


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"größe": [1, 2.5, None]})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"größe": [1, 2.5, None]}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32(1), {1, 2}])
def test_json_refuses_what_it_cannot_hold(tmp_path: Path, bad: object) -> None:
    with pytest.raises(InputError, match="finite numbers and text"):
        write_json(tmp_path / "a.json", [bad])
    assert list(tmp_path.iterdir()) == []


def test_exr_keeps_every_bit(tmp_path: Path) -> None:
    exr = pytest.importorskip("OpenEXR")
    values = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32) * 1e6
    values[0, 0, 0] = np.nan
    write_exr(tmp_path / "a.exr", {"R": values[0], "Z": values[1], "A": values[2]}, comments="metres")
    with exr.File(str(tmp_path / "a.exr"), separate_channels=True) as file:
        channels, header = file.channels(), file.header()
        assert set(channels) == {"R", "Z", "A"}
        for name, expected in zip("RZA", values, strict=True):
            assert channels[name].pixels.dtype == np.float32
            np.testing.assert_array_equal(channels[name].pixels, expected)
        assert header["comments"] == "metres"


def test_exr_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with pytest.raises(MissingExtraError, match=r'writing a\.exr.*"vitruvian\[exr\]"'):
        write_exr(tmp_path / "a.exr", {"R": np.zeros((2, 2), np.float32)})
    assert list(tmp_path.iterdir()) == []
