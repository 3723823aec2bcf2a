"""Rotary position embeddings: tables, and every version of the norm and rotation of heads."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.dispatch import disable_triton
from vitruvian.ops.rope import (
    augment_centers,
    axial_rope_tables,
    patch_centers,
    rms_norm_rope,
    rope_tables,
    rotate_pairs,
)


def test_centers_of_a_grid() -> None:
    want = [[-0.5, -2 / 3], [-0.5, 0.0], [-0.5, 2 / 3], [0.5, -2 / 3], [0.5, 0.0], [0.5, 2 / 3]]
    torch.testing.assert_close(patch_centers((2, 3)), torch.tensor(want))


def test_tables() -> None:
    cos, sin = rope_tables(torch.tensor([[0.25, -0.5]]), head_dim=8, theta=100.0, prefix=2)
    y, x = 2 * math.pi * 0.25, 2 * math.pi * -0.5
    want = torch.tensor([[0.0] * 4, [0.0] * 4, [y, y / 10, x, x / 10]])
    torch.testing.assert_close(cos, want.cos())
    torch.testing.assert_close(sin, want.sin())


def test_channels_half_a_head_apart_are_pairs() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).view(1, 1, 1, 4)
    angle = torch.tensor([[0.3, 0.7]])
    out = rms_norm_rope(x, None, (angle.cos(), angle.sin())).flatten()
    want = [math.cos(0.3), -math.sin(0.7), math.sin(0.3), math.cos(0.7)]
    torch.testing.assert_close(out, torch.tensor(want))


def test_scores_depend_on_distance_only() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(q_yx: list[float], k_yx: list[float]) -> torch.Tensor:
        tables = [rope_tables(torch.tensor([yx]), head_dim=8, theta=100.0) for yx in (q_yx, k_yx)]
        return (rms_norm_rope(q, None, tables[0]) * rms_norm_rope(k, None, tables[1])).sum()

    torch.testing.assert_close(score([0.1, 0.2], [0.4, -0.3]), score([-0.5, 0.6], [-0.2, 0.1]))


@every_version
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 16), (2, 24), (1, 64)])
@pytest.mark.parametrize("has_norm", [True, False])
def test_norm_and_rotation(version: str, heads: int, head_dim: int, has_norm: bool) -> None:
    both = randn(2, 8, heads + 2, head_dim, version=version, seed=1)
    weight = randn(head_dim, version=version, seed=2) if has_norm else None
    rope = tuple(
        table.to(both.device) for table in rope_tables(patch_centers((2, 3)), head_dim=head_dim, theta=100.0, prefix=2)
    )
    cos, sin = (table[:, None] for table in rope)
    for x in (both[:, :, :heads], both[:, :, :heads].contiguous()):  # a slice of joined projections, too
        normed = x.float() if weight is None else F.rms_norm(x.float(), (head_dim,), weight.float(), 1e-6)
        left, right = normed.chunk(2, dim=-1)
        want = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1) * 0.7
        out = rms_norm_rope(x, weight, (rope[0], rope[1]), eps=1e-6, scale=0.7)
        assert out.dtype == x.dtype
        assert_close(out, want.transpose(1, 2))


class TestAugmentation:
    def test_no_options(self) -> None:
        centers = patch_centers((2, 2))
        assert augment_centers(centers) is centers

    @pytest.mark.parametrize("seed", range(3))
    def test_shift_is_the_same_for_all_and_bounded(self, seed: int) -> None:
        torch.manual_seed(seed)
        moved = augment_centers(patch_centers((3, 4)), shift=0.1) - patch_centers((3, 4))
        torch.testing.assert_close(moved, moved[:1].expand_as(moved))
        assert moved.abs().max() <= 0.1
        assert moved[0, 0] != moved[0, 1]

    @pytest.mark.parametrize("seed", range(3))
    def test_jitter_stretches_each_axis(self, seed: int) -> None:
        torch.manual_seed(seed)
        factor = augment_centers(patch_centers((2, 2)), jitter=2.0) / patch_centers((2, 2))
        torch.testing.assert_close(factor, factor[:1].expand_as(factor))
        assert 0.5 <= factor.min() <= factor.max() <= 2
        assert factor[0, 0] != factor[0, 1]

    @pytest.mark.parametrize("seed", range(3))
    def test_rescale_is_one_factor(self, seed: int) -> None:
        torch.manual_seed(seed)
        factor = augment_centers(patch_centers((2, 2)), rescale=2.0) / patch_centers((2, 2))
        torch.testing.assert_close(factor, factor[0, 0].expand_as(factor))
        assert 0.5 <= factor[0, 0] <= 2
        assert factor[0, 0] != 1


@every_version
@pytest.mark.parametrize(("frames", "plain_tokens", "heads", "head_dim"), [(1, 0, 1, 8), (3, 5, 2, 12)])
def test_rotate_pairs(version: str, frames: int, plain_tokens: int, heads: int, head_dim: int) -> None:
    cells = 4 * 6
    x = randn(2, frames * cells + plain_tokens, heads * head_dim, version=version)
    rotation = axial_rope_tables((4, 6), head_dim, 100.0, x.device)
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
    rotation = axial_rope_tables((4, 6), 8, 100.0, x.device)
    assert torch.equal(rotate_pairs(x, rotation, heads=1), rotate_pairs(x.contiguous(), rotation, heads=1))
    with torch.no_grad():
        got = rotate_pairs(x, rotation, heads=1)
        with disable_triton():
            assert_close(got, rotate_pairs(x, rotation, heads=1))


def test_tokens_without_a_position() -> None:
    x, rotation = randn(2, 3 * 24 + 5, 16), axial_rope_tables((4, 6), 8, 100.0, torch.device("cpu"))
    with torch.no_grad():
        got = rotate_pairs(x, rotation, heads=2, plain_tokens=5)
        with disable_triton():
            assert_close(got, rotate_pairs(x, rotation, heads=2, plain_tokens=5))
