from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.models.sapiens2.decoding import blur, decode_heatmaps, draw_heatmaps, gaussian_kernel


def test_finds_the_centre_of_a_gaussian_between_pixels() -> None:
    points = torch.tensor([[[10.3, 7.6], [20.0, 5.25], [3.5, 12.5]]])
    maps, weights = draw_heatmaps(points, torch.ones(1, 3), size_hw=(24, 32), sigma=2.0)
    xy, scores = decode_heatmaps(maps)
    assert weights.tolist() == [[1, 1, 1]]
    torch.testing.assert_close(xy, points, rtol=0, atol=0.05)
    assert (scores > 0.9).all()


def straightforward(maps: torch.Tensor, kernel_size: int) -> torch.Tensor:
    """The same rule in the plainest way: blur everything, then look at seven places."""
    kernel = gaussian_kernel(kernel_size, maps.device)
    half = kernel_size // 2
    found = []
    for one in maps:
        wide = F.conv2d(one[None, None], torch.outer(kernel, kernel)[None, None], padding=half)[0, 0]
        if wide.max() > 0:
            wide = wide * (one.max() / wide.max())
        log = F.pad(wide.clamp(1e-3, 50).log()[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
        at = int(one.argmax())
        x, y = (at % one.shape[1], at // one.shape[1]) if one.max() > 0 else (-1, -1)
        v = {
            (i, j): log[y + 1 + j, x + 1 + i].double() if one.max() > 0 or (i >= 0 and j >= 0) else None
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
        }
        if one.max() <= 0:
            found.append(torch.tensor([-1.0, -1.0]))
            continue
        slope = torch.stack([(v[1, 0] - v[-1, 0]) / 2, (v[0, 1] - v[0, -1]) / 2])
        xx, yy = v[1, 0] - 2 * v[0, 0] + v[-1, 0], v[0, 1] - 2 * v[0, 0] + v[0, -1]
        xy = (v[1, 1] - v[1, 0] - v[0, 1] + 2 * v[0, 0] - v[-1, 0] - v[0, -1] + v[-1, -1]) / 2
        hessian = torch.stack([torch.stack([xx, xy]), torch.stack([xy, yy])]) + torch.eye(2) * 1.2e-7
        step = torch.linalg.solve(hessian, slope)
        found.append(torch.tensor([x, y]) - step)
    return torch.stack(found)


@pytest.mark.parametrize("kernel_size", [3, 7, 11])
@pytest.mark.parametrize("low", [1.0, 2e-3, 1e-4])
def test_short_cut_equals_blurring_everything(kernel_size: int, low: float) -> None:
    """Values far above the clamp, around it and below it."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(1, 40, 2, generator=generator) * torch.tensor([29.0, 21.0]) + 1
    maps, _ = draw_heatmaps(points, torch.ones(1, 40), size_hw=(24, 32), sigma=2.0)
    maps = maps * low + 0.05 * low * torch.rand(maps.shape, generator=generator)
    got, _ = decode_heatmaps(maps, kernel_size=kernel_size)
    torch.testing.assert_close(got[0].double(), straightforward(maps[0], kernel_size).double(), rtol=0, atol=2e-3)


def test_peaks_on_the_border_and_in_corners() -> None:
    points = torch.tensor([[[0.0, 0.0], [31.0, 23.0], [0.0, 23.0], [15.0, 0.0]]])
    maps, _ = draw_heatmaps(points, torch.ones(1, 4), size_hw=(24, 32), sigma=2.0)
    got, _ = decode_heatmaps(maps)
    torch.testing.assert_close(got[0].double(), straightforward(maps[0], 11).double(), rtol=0, atol=1e-3)


def test_empty_map_gives_minus_one_and_its_score() -> None:
    xy, scores = decode_heatmaps(torch.full((1, 2, 8, 8), -0.5))
    assert torch.equal(xy, torch.full((1, 2, 2), -1.0))
    assert torch.equal(scores, torch.full((1, 2), -0.5))


def test_blur_keeps_the_sum_inside_and_loses_it_at_the_border() -> None:
    kernel = gaussian_kernel(11, torch.device("cpu"))
    maps = torch.zeros(2, 32, 32)
    maps[0, 16, 16] = maps[1, 0, 0] = 1
    blurred = blur(maps, kernel)
    assert blurred[0].sum() == pytest.approx(1, abs=1e-5)
    assert blurred[1].sum() == pytest.approx(float(kernel[5:].sum() ** 2), abs=1e-5)


@pytest.mark.parametrize("size", [2, 4, 1, 0, -3])
def test_bad_kernel_sizes(size: int) -> None:
    with pytest.raises(InputError, match="kernel_size"):
        decode_heatmaps(torch.rand(1, 1, 8, 8), kernel_size=size)


def test_targets_leave_out_hidden_and_far_points() -> None:
    points = torch.tensor([[[5.0, 5.0], [5.0, 5.0], [500.0, 5.0], [-4.0, 5.0]]])
    maps, weights = draw_heatmaps(points, torch.tensor([[2, 0, 2, 1]]), size_hw=(16, 16), sigma=2.0)
    assert weights.tolist() == [[1, 0, 0, 1]]
    assert maps[0, 0].max() == 1
    assert maps[0, 1].max() == maps[0, 2].max() == 0
    assert 0 < maps[0, 3].max() < 1  # just outside: its flank is in the picture
    assert maps[0, 0, 5, 12] == 0  # cut off beyond three sigma
    assert maps[0, 0, 5, 11] > 0
