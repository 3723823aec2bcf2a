"""Which kernels are left out."""

from __future__ import annotations

import pytest

from vitruvian.kernels.available import UNTRIED, switched_off


@pytest.mark.parametrize(
    ("unwanted", "tried", "off"),
    [
        ("", "", UNTRIED),
        ("", "1", set()),
        ("windows,deformable", "1", {"windows", "deformable"}),
        ("1", "", {"1", *UNTRIED}),
        ("", "summed,draw", UNTRIED - {"summed", "draw"}),
        ("draw", "draw", UNTRIED),  # who asks for neither gets neither
    ],
)
def test_kernels_that_no_gpu_has_run_wait_until_they_are_asked_for(unwanted: str, tried: str, off: set[str]) -> None:
    assert switched_off(unwanted, tried) == off
