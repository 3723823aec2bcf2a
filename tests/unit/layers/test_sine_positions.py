from __future__ import annotations

import math

import torch

from vitruvian.layers.sine_positions import sine_positions

CPU = torch.device("cpu")


def test_positions_turn_once_over_the_grid() -> None:
    found = sine_positions((2, 4), 8, torch.float32, CPU).unflatten(0, (2, 4))  # [h, w, 8]
    place = torch.arange(1, 5) / 4 * 2 * math.pi
    torch.testing.assert_close(found[0, :, 4], place.sin(), atol=1e-5, rtol=0)  # the x half comes second
    torch.testing.assert_close(found[0, :, 5], place.cos(), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[0, :, 6], (place / 100).sin(), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[1, :, 0], torch.full((4,), math.sin(2 * math.pi)), atol=1e-4, rtol=0)


def test_low_precision_is_rounded_once_and_kept() -> None:
    exact = sine_positions((64, 64), 16, torch.float32, CPU)
    rounded = sine_positions((64, 64), 16, torch.bfloat16, CPU)
    assert torch.equal(rounded, exact.bfloat16())
    assert sine_positions((64, 64), 16, torch.bfloat16, CPU) is rounded
