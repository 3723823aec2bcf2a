import math

import pytest
import torch

from vitruvian.layers.rope import augment_centers, patch_centers, rope_table, rotate


def test_centers_of_a_grid() -> None:
    want = [[-0.5, -2 / 3], [-0.5, 0.0], [-0.5, 2 / 3], [0.5, -2 / 3], [0.5, 0.0], [0.5, 2 / 3]]
    torch.testing.assert_close(patch_centers((2, 3)), torch.tensor(want))


def test_angles() -> None:
    cos, sin = rope_table(torch.tensor([[0.25, -0.5]]), head_dim=8, theta=100.0)
    y, x = 2 * math.pi * 0.25, 2 * math.pi * -0.5
    want = torch.tensor([[y, y / 10, x, x / 10]])
    torch.testing.assert_close(cos, want.cos())
    torch.testing.assert_close(sin, want.sin())


def test_rotation_pairs_channels_half_a_head_apart() -> None:
    x = torch.tensor([1.0, 0.0, 0.0, 1.0]).view(1, 1, 1, 4)
    angle = torch.tensor([[0.3, 0.7]])
    out = rotate(x, angle.cos(), angle.sin()).flatten()
    want = [math.cos(0.3), -math.sin(0.7), math.sin(0.3), math.cos(0.7)]
    torch.testing.assert_close(out, torch.tensor(want))


def test_lengths_stay_and_first_tokens_too() -> None:
    x = torch.randn(2, 3, 2 + 6, 8)
    out = rotate(x, *rope_table(patch_centers((2, 3)), head_dim=8, theta=100.0))
    assert torch.equal(out[..., :2, :], x[..., :2, :])
    assert not torch.equal(out[..., 2:, :], x[..., 2:, :])
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_distance_alone() -> None:
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(at: list[float], other: list[float]) -> torch.Tensor:
        tables = [rope_table(torch.tensor([place]), head_dim=8, theta=100.0) for place in (at, other)]
        return (rotate(q, *tables[0]) * rotate(k, *tables[1])).sum()

    torch.testing.assert_close(score([0.1, 0.2], [0.4, -0.3]), score([-0.5, 0.6], [-0.2, 0.1]))


def test_type_of_the_tokens_is_kept() -> None:
    tables = rope_table(patch_centers((1, 2)), head_dim=4, theta=100.0)
    assert rotate(torch.ones(1, 1, 2, 4, dtype=torch.bfloat16), *tables).dtype == torch.bfloat16
    assert tables[0].dtype == torch.float32


class TestAugmentation:
    def test_nothing_asked_for(self) -> None:
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
