"""Keypoints from heatmaps: the definition, and every version against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.ops.versions import every_version
from vitruvian.errors import InputError
from vitruvian.losses.heatmap import draw_heatmaps
from vitruvian.ops import dispatch, heatmap_peaks
from vitruvian.ops.heatmap_peaks import _blur, _gaussian, decode_heatmaps, decodes_without_sync

SIZE_HW = (26, 18)
COUNT = (1, 2)  # images and keypoints; Triton's interpreter takes 0.2 s for each map


def spots(
    factor: float = 1.0,
    shift: float = 0.0,
    *,
    sigma: float = 2.5,
    at: list[float] | None = None,
    count: tuple[int, int] = COUNT,
) -> Tensor:
    """Maps [B, K, H, W] with a Gaussian each, at random or at one point."""
    (H, W), generator = SIZE_HW, torch.Generator().manual_seed(4)
    x, y = torch.rand(2, *count, 1, 1, generator=generator)
    if at is not None:
        x, y = torch.full_like(x, at[0]), torch.full_like(y, at[1])
    down, across = torch.arange(H)[:, None] - y * (H - 1), torch.arange(W) - x * (W - 1)
    return torch.exp(-(down**2 + across**2) / (2 * sigma**2)) * factor + shift


def noise(factor: float) -> Tensor:
    return torch.randn(*COUNT, *SIZE_HW, generator=torch.Generator().manual_seed(5)) * factor


def dots(row: int) -> Tensor:
    """Maps of one faint pixel in a line."""
    maps = torch.zeros(*COUNT, *SIZE_HW)
    maps[:, :, row, 7] = 1.1e-3  # brought back to its height, it is above the floor and its neighbors are below
    return maps


KINDS = {
    "plain": lambda: spots(count=(2, 3)),
    "top left": lambda: spots(at=[0.0, 0.0]),
    "bottom right": lambda: spots(at=[1.0, 1.0]),
    "narrow": lambda: spots(sigma=0.6),
    "dim": lambda: spots(4e-3),  # the logarithm's floor is met nearby
    "dimmer": lambda: spots(1e-4),
    "bright": lambda: spots(60.0),  # and its ceiling
    "noise": lambda: noise(0.5),
    "noise, bright": lambda: noise(40.0),
    "below zero": lambda: spots(shift=-3.0),
    "first line": lambda: dots(0),
    "last line": lambda: dots(SIZE_HW[0] - 1),
    "zero": lambda: torch.zeros(*COUNT, *SIZE_HW),
    "spot in noise": lambda: spots(0.9) + noise(2e-3),
}


def test_center_of_a_gaussian_between_pixels() -> None:
    points = torch.tensor([[[10.3, 7.6], [20.0, 5.25], [3.5, 12.5]]])
    maps, weights = draw_heatmaps(points, torch.ones(1, 3), size_hw=(24, 32), sigma=2.0)
    xy, scores = decode_heatmaps(maps)
    assert weights.tolist() == [[1, 1, 1]]
    torch.testing.assert_close(xy, points, rtol=0, atol=0.05)
    assert (scores > 0.9).all()


def decode_by_blurring(maps: torch.Tensor, kernel_size: int) -> torch.Tensor:
    """The definition: blur whole maps, then evaluate the stencil."""
    kernel = _gaussian(kernel_size, maps.device)
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
def test_equals_blurring_whole_maps(kernel_size: int, low: float) -> None:
    """Values far above the clamp, around it and below it."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(1, 40, 2, generator=generator) * torch.tensor([29.0, 21.0]) + 1
    maps, _ = draw_heatmaps(points, torch.ones(1, 40), size_hw=(24, 32), sigma=2.0)
    maps = maps * low + 0.05 * low * torch.rand(maps.shape, generator=generator)
    got, _ = decode_heatmaps(maps, kernel_size=kernel_size)
    torch.testing.assert_close(got[0].double(), decode_by_blurring(maps[0], kernel_size).double(), rtol=0, atol=2e-3)


def test_peaks_on_the_border_and_in_corners() -> None:
    points = torch.tensor([[[0.0, 0.0], [31.0, 23.0], [0.0, 23.0], [15.0, 0.0]]])
    maps, _ = draw_heatmaps(points, torch.ones(1, 4), size_hw=(24, 32), sigma=2.0)
    got, _ = decode_heatmaps(maps)
    torch.testing.assert_close(got[0].double(), decode_by_blurring(maps[0], 11).double(), rtol=0, atol=1e-3)


def test_empty_map_gives_minus_one_and_its_score() -> None:
    xy, scores = decode_heatmaps(torch.full((1, 2, 8, 8), -0.5))
    assert torch.equal(xy, torch.full((1, 2, 2), -1.0))
    assert torch.equal(scores, torch.full((1, 2), -0.5))


def test_blur_preserves_the_sum_inside_but_not_at_the_border() -> None:
    kernel = _gaussian(11, torch.device("cpu"))
    maps = torch.zeros(2, 32, 32)
    maps[0, 16, 16] = maps[1, 0, 0] = 1
    blurred = _blur(maps, kernel)
    assert blurred[0].sum() == pytest.approx(1, abs=1e-5)
    assert blurred[1].sum() == pytest.approx(float(kernel[5:].sum() ** 2), abs=1e-5)


@pytest.mark.parametrize("size", [2, 4, 1, 0, -3])
def test_bad_kernel_sizes(size: int) -> None:
    with pytest.raises(InputError, match="kernel_size"):
        decode_heatmaps(torch.rand(1, 1, 8, 8), kernel_size=size)


def on_device(maps: Tensor, version: str) -> Tensor:
    return maps.cuda() if version == "triton" else maps


@every_version
@pytest.mark.parametrize(
    ("kind", "kernel_size"), [*((kind, 11) for kind in KINDS), ("plain", 5), ("bottom right", 5), ("noise", 5)]
)
def test_versions_agree(version: str, kind: str, kernel_size: int) -> None:
    maps = KINDS[kind]()
    with dispatch.disable_triton():
        want, want_scores = decode_heatmaps(maps, kernel_size=kernel_size)
    xy, scores = decode_heatmaps(on_device(maps, version), kernel_size=kernel_size)
    torch.testing.assert_close(scores.cpu(), want_scores, rtol=0, atol=0)
    # Where noise turns the peak into a saddle, rounding is amplified.
    limit = (2e-3 if "noise" in kind else 2e-4) * (10 if version == "triton" else 1)
    torch.testing.assert_close(xy.cpu(), want, rtol=0, atol=limit)


@every_version
def test_the_first_of_several_peaks(version: str) -> None:
    maps = torch.zeros(1, 1, *SIZE_HW)
    for row, column in ((20, 3), (9, 12), (9, 5), (14, 1)):
        maps[0, 0, row, column] = 0.7
    assert decode_heatmaps(on_device(maps, version), kernel_size=3)[0].round().flatten().tolist() == [5, 9]


@every_version
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_other_layouts(version: str, dtype: torch.dtype) -> None:
    maps = spots(0.8, count=(2, 3)).to(dtype)
    with dispatch.disable_triton():
        want, _ = decode_heatmaps(maps.float())
    maps = on_device(maps, version).contiguous(memory_format=torch.channels_last)
    xy, scores = decode_heatmaps(maps)
    assert xy.dtype == scores.dtype == torch.float32
    torch.testing.assert_close(xy.cpu(), want, rtol=0, atol=2e-4)
    assert decode_heatmaps(maps[:0])[0].shape == (0, 3, 2)


def test_limits_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.zeros(0, 192)
    assert not decodes_without_sync(like, kernel_size=11)  # on the CPU
    monkeypatch.setattr(heatmap_peaks, "use_triton", lambda *_, **__: True)
    assert decodes_without_sync(like, kernel_size=11)
    assert not decodes_without_sync(like, kernel_size=13)
    assert not decodes_without_sync(torch.zeros(0, 1025), kernel_size=11)
    assert not decodes_without_sync(like.clone().requires_grad_(), kernel_size=11)
