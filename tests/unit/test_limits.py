"""Limits of the process: environment, changes, errors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vitruvian.errors import ImageError, InputError
from vitruvian.limits import Limits, get_limits, parse_limits, set_limits, use_limits


def test_changes_end_with_the_block() -> None:
    before = get_limits()
    with use_limits(image_pixels=100) as changed:
        assert get_limits() is changed
        assert changed.image_pixels == 100
        assert changed.people == before.people
        with pytest.raises(ImageError, match=r"^a\.png: expected at most 100 pixels, got 101\. .*VITRUVIAN_MAX_"):
            get_limits().check("image_pixels", 101, subject="a.png", error=ImageError)
        get_limits().check("image_pixels", 100, subject="a.png")
    assert get_limits() is before


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "9"])
def test_bad_values(value: int) -> None:
    with pytest.raises(InputError, match="limit people: expected a positive integer"):
        Limits(people=value)


def test_unknown_names() -> None:
    with pytest.raises(InputError, match=r"the name of a limit, got 'peple'\. Did you mean people"):
        set_limits(peple=1)


def test_texts() -> None:
    assert parse_limits({"image_pixels": "4e8", "people": "7"}) == {"image_pixels": 400_000_000, "people": 7}


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1", "0", "1.5", "1e400"])
def test_bad_texts(text: str) -> None:
    with pytest.raises(InputError, match="--limit people: expected a positive integer"):
        parse_limits({"people": text}, subject="--limit")


def test_environment() -> None:
    code = "import vitruvian; print(vitruvian.get_limits().tiles)"
    environment = os.environ | {"VITRUVIAN_MAX_TILES": "12"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "12"
