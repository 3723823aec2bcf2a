"""Rotary positions of neighbouring channels: every version against complex numbers."""

from __future__ import annotations

import pytest
import torch

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.axial_rope import axial_rotation, rotate_pairs
from vitruvian.ops.dispatch import disable_triton


@every_version
@pytest.mark.parametrize(("frames", "plain_tokens", "heads", "head_dim"), [(1, 0, 1, 8), (3, 5, 2, 12)])
def test_rotate_pairs(version: str, frames: int, plain_tokens: int, heads: int, head_dim: int) -> None:
    cells = 4 * 6
    x = randn(2, frames * cells + plain_tokens, heads * head_dim, version=version)
    rotation = axial_rotation((4, 6), head_dim, 100.0, x.device)
    number = torch.arange(cells)
    steps = 100.0 ** -(torch.arange(head_dim // 4) * 4 / head_dim)
    angles = torch.cat(((number % 6)[:, None] * steps, (number // 6)[:, None] * steps), dim=1)
    turns = torch.polar(torch.ones_like(angles), angles).repeat(frames, 1)
    pairs = torch.view_as_complex(x.float().cpu().view(2, -1, heads, head_dim // 2, 2)).transpose(1, 2)
    want = torch.cat((pairs[:, :, : frames * cells] * turns, pairs[:, :, frames * cells :]), dim=2)
    got = rotate_pairs(x, rotation, heads=heads, plain_tokens=plain_tokens)
    assert_close(got.cpu(), torch.view_as_real(want).flatten(-2))


def test_rotate_a_strided_view() -> None:
    x = randn(2, 24, 30)[:, :, ::3][:, :, :8]
    rotation = axial_rotation((4, 6), 8, 100.0, x.device)
    assert torch.equal(rotate_pairs(x, rotation, heads=1), rotate_pairs(x.contiguous(), rotation, heads=1))
    with torch.no_grad():
        got = rotate_pairs(x, rotation, heads=1)
        with disable_triton():
            assert_close(got, rotate_pairs(x, rotation, heads=1))


def test_tokens_without_a_position() -> None:
    x, rotation = randn(2, 3 * 24 + 5, 16), axial_rotation((4, 6), 8, 100.0, torch.device("cpu"))
    with torch.no_grad():
        got = rotate_pairs(x, rotation, heads=2, plain_tokens=5)
        with disable_triton():
            assert_close(got, rotate_pairs(x, rotation, heads=2, plain_tokens=5))
