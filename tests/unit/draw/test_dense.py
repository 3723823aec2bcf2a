"""Normals, depth, mattes and embeddings as colors."""

from __future__ import annotations

import numpy as np
import pytest

from vitruvian.draw import (
    checkerboard,
    color_depth,
    color_normals,
    composite,
    principal_colors,
)
from vitruvian.draw.palettes import turbo_map
from vitruvian.errors import InputError

NEUTRAL = [128, 128, 128]


@pytest.mark.parametrize(
    ("opencv", "color"),
    [
        ((0, 0, -1), [128, 128, 255]),  # towards the camera
        ((1, 0, 0), [255, 128, 128]),  # to the right
        ((-1, 0, 0), [0, 128, 128]),
        ((0, -1, 0), [128, 255, 128]),  # up
        ((0, 1, 0), [128, 0, 128]),
        ((0, 0, -7), [128, 128, 255]),  # any length
        ((0, 0, 0), NEUTRAL),
        ((np.nan, 0, 1), NEUTRAL),
        ((np.inf, 0, 1), NEUTRAL),
    ],
)
def test_normals(opencv: tuple[float, float, float], color: list[int]) -> None:
    field = np.broadcast_to(np.array(opencv, dtype=np.float32), (2, 3, 3))
    drawn = color_normals(field)
    assert drawn.shape == (2, 3, 3)
    assert drawn[1, 2].tolist() == color
    flipped = field * np.array([1, -1, -1], dtype=np.float32)
    np.testing.assert_array_equal(color_normals(flipped, convention="opengl"), drawn)


def test_normals_are_hidden_by_a_mask_in_every_band() -> None:
    field = np.zeros((400, 400, 3), dtype=np.float32)
    field[..., 2] = -1
    mask = np.zeros((400, 400), dtype=bool)
    mask[5, 5] = mask[390, 7] = True
    drawn = color_normals(field, mask)
    assert (drawn == 128).all(-1).sum() == 400 * 400 - 2
    assert drawn[390, 7].tolist() == [128, 128, 255]


def test_near_is_the_high_end_and_far_the_low_end() -> None:
    table = turbo_map()
    depth = np.array([[1.0, 2.0, 4.0, 9.0, 0.5]])
    drawn = color_depth(depth, near=1, far=4)
    assert drawn[0, 0].tolist() == table[-1].tolist()
    assert drawn[0, 2].tolist() == table[0].tolist()
    assert drawn[0, 3].tolist() == table[0].tolist()  # beyond far
    assert drawn[0, 4].tolist() == table[-1].tolist()  # before near
    assert drawn[0, 1].tolist() == table[341].tolist()  # 1/2 lies a third of the way from 1/4 to 1


def test_unknown_depth_is_neutral() -> None:
    depth = np.array([[1.0, np.nan, np.inf, 0.0, -3.0, 2.0]])
    drawn = color_depth(depth)
    assert [drawn[0, i].tolist() == NEUTRAL for i in range(6)] == [False, True, True, True, True, False]
    masked = color_depth(depth, np.array([[False, True, True, True, True, True]]))
    assert masked[0, 0].tolist() == NEUTRAL


@pytest.mark.parametrize("depth", [np.full((3, 4), np.nan), np.zeros((3, 4)), np.full((1, 1), -1.0)])
def test_no_depth_at_all(depth: np.ndarray) -> None:
    assert (color_depth(depth) == 128).all()


def test_constant_depth_and_limits_of_strays() -> None:
    assert len(np.unique(color_depth(np.full((4, 4), 3.0)).reshape(-1, 3), axis=0)) == 1
    depth = np.tile(np.linspace(2, 3, 1000), (4, 1))
    strays = depth.copy()
    strays[0, 0], strays[0, 1] = 1e-3, 1e6
    np.testing.assert_allclose(color_depth(strays)[1:], color_depth(depth)[1:], atol=3)


def test_the_color_map_is_smooth_and_distinct() -> None:
    table = turbo_map().astype(int)
    assert table.shape == (1024, 3)
    assert np.abs(np.diff(table, axis=0)).max() <= 4
    assert len(np.unique(table, axis=0)) >= 256


def test_depth_refuses_what_it_cannot_show() -> None:
    with pytest.raises(InputError, match="near below far"):
        color_depth(np.ones((2, 2)), near=3, far=2)
    with pytest.raises(InputError, match="near: expected a distance"):
        color_depth(np.ones((2, 2)), near=-1)


def test_checkerboard() -> None:
    board = checkerboard((12, 16))
    assert board.shape == (12, 16, 3)
    light, dark = board[0, 0].tolist(), board[0, 4].tolist()
    assert light > dark
    assert board[4, 4].tolist() == light
    assert board[3, 3].tolist() == light
    assert board[7, 1].tolist() == dark
    assert checkerboard((1, 1)).shape == (1, 1, 3)


def test_a_premultiplied_foreground_is_added_to_what_shows_through() -> None:
    foreground = np.full((4, 4, 3), 0.2, dtype=np.float32)
    ground = np.full((4, 4, 3), 200, dtype=np.uint8)
    drawn = composite(foreground, np.full((4, 4), 0.5, dtype=np.float32), ground)
    assert (drawn == 151).all()  # 51 + 100
    assert (composite(foreground, np.zeros((4, 4)), ground) == 251).all()
    assert (composite(foreground * 9, np.ones((4, 4)), ground) == 255).all()  # clipped, not wrapped


def patches() -> np.ndarray:
    """Three groups of patches in 64 directions, with a little noise."""
    random = np.random.default_rng(1)
    centers = random.normal(size=(3, 64)) * 5
    groups = np.zeros((12, 10), dtype=int)
    groups[:, 4:] = 1
    groups[6:, 6:] = 2
    return centers[groups] + random.normal(size=(12, 10, 64)) * 0.05


def test_alike_patches_have_alike_colors() -> None:
    drawn = principal_colors(patches(), (12, 10)).astype(int)
    assert drawn.shape == (12, 10, 3)
    for a, b in (((0, 0), (0, 6)), ((0, 0), (8, 8)), ((0, 6), (8, 8))):
        assert np.abs(drawn[a] - drawn[b]).max() > 80
    assert np.ptp(drawn[:, :4, :2].reshape(-1, 2), axis=0).max() < 25


def test_the_main_directions_are_those_of_a_full_decomposition() -> None:
    random = np.random.default_rng(5)
    rows = random.normal(size=(20, 15, 40)) * np.linspace(4, 0.2, 40)
    drawn = principal_colors(rows, (20, 15)).reshape(-1, 3).astype(float)
    centered = rows.reshape(-1, 40) - rows.reshape(-1, 40).mean(0)
    main = centered @ np.linalg.svd(centered, full_matrices=False)[2][:3].T
    for i in range(3):
        assert abs(np.corrcoef(main[:, i], drawn[:, i])[0, 1]) > 0.97


def test_embeddings_are_the_same_on_every_run_and_at_any_size() -> None:
    np.testing.assert_array_equal(principal_colors(patches(), (12, 10)), principal_colors(patches(), (12, 10)))
    assert principal_colors(patches(), (120, 100)).shape == (120, 100, 3)
    assert principal_colors(np.ones((1, 1, 5)), (7, 9)).shape == (7, 9, 3)


def test_flat_and_broken_patches_are_gray() -> None:
    assert (np.abs(principal_colors(np.ones((4, 4, 8)), (4, 4)).astype(int) - 128) <= 1).all()
    broken = patches()
    broken[2, 2, 0] = np.nan
    drawn = principal_colors(broken, (12, 10))
    assert drawn[2, 2].tolist() == NEUTRAL
    assert np.ptp(drawn) > 200
    assert (principal_colors(np.full((3, 3, 4), np.nan), (3, 3)) == 128).all()
