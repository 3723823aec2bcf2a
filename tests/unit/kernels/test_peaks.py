"""Keypoints from heatmaps in one kernel: those of plain torch, for maps of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.ways import CAN_RUN, Way
from vitruvian.kernels import peaks
from vitruvian.models.sapiens2 import decoding
from vitruvian.ops.heatmap_peaks import decode_heatmaps

needs_kernel = pytest.mark.skipif(not CAN_RUN, reason="no CUDA and no interpreter")
SIZE_HW = (26, 18)


def spots(factor: float = 1.0, shift: float = 0.0, *, sigma: float = 2.5, at: list[float] | None = None) -> Tensor:
    """Maps [2, 3, H, W] with a Gaussian each, at random or at one place."""
    (H, W), generator = SIZE_HW, torch.Generator().manual_seed(4)
    x, y = torch.rand(2, 2, 3, 1, 1, generator=generator)
    if at is not None:
        x, y = torch.full_like(x, at[0]), torch.full_like(y, at[1])
    down, across = torch.arange(H)[:, None] - y * (H - 1), torch.arange(W) - x * (W - 1)
    return torch.exp(-(down**2 + across**2) / (2 * sigma**2)) * factor + shift


def noise(factor: float) -> Tensor:
    return torch.randn(2, 3, *SIZE_HW, generator=torch.Generator().manual_seed(5)) * factor


def dots(row: int) -> Tensor:
    """Maps of one faint pixel in a line."""
    maps = torch.zeros(2, 3, *SIZE_HW)
    maps[:, :, row, 7] = 1.1e-3  # brought back to its height, it is above the floor and its neighbours are below
    return maps


KINDS = {
    "plain": lambda: spots(),
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
    "zero": lambda: torch.zeros(2, 3, *SIZE_HW),
    "spot in noise": lambda: spots(0.9) + noise(2e-3),
}


@needs_kernel
@pytest.mark.parametrize("kernel_size", [11, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_points_are_those_of_torch(kind: str, kernel_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = KINDS[kind]()
    wanted, scores = decode_heatmaps(maps, kernel_size=kernel_size)  # on the CPU
    make = Way("kernel", peaks, monkeypatch)
    assert peaks.decodes_without_sync(maps.cuda() if make.on_gpu else maps, kernel_size=kernel_size)
    monkeypatch.setattr(decoding, "blur_at", None)  # the twin's
    found, found_scores = decode_heatmaps(maps.cuda() if make.on_gpu else maps, kernel_size=kernel_size)
    torch.testing.assert_close(found_scores.cpu(), scores, rtol=0, atol=0)
    assert found.shape == wanted.shape
    # Where noise makes a saddle of the peak, rounding is magnified.
    near = 2e-3 if "noise" in kind else 2e-4
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=10 * near if make.on_gpu else near)


@needs_kernel
def test_of_several_peaks_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way("kernel", peaks, monkeypatch)
    maps = torch.zeros(1, 1, *SIZE_HW)
    for row, column in ((20, 3), (9, 12), (9, 5), (14, 1)):
        maps[0, 0, row, column] = 0.7
    points = peaks.find_peaks(maps.cuda() if make.on_gpu else maps, kernel_size=3)
    assert points[0, 0, :2].round().tolist() == [5, 9]


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_other_layouts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way("kernel", peaks, monkeypatch)
    maps = spots(0.8).to(dtype)
    wanted, _ = decoding.decode_heatmaps(maps.float().requires_grad_(), kernel_size=11)  # gradients take the twin
    given = maps.to("cuda" if make.on_gpu else "cpu").contiguous(memory_format=torch.channels_last)
    found, scores = decode_heatmaps(given)
    assert found.dtype == scores.dtype == torch.float32
    torch.testing.assert_close(found.cpu(), wanted.detach(), rtol=0, atol=2e-4)
    assert peaks.find_peaks(given[:0], kernel_size=11).shape == (0, 3, 3)


def test_who_takes_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "takes_kernel", lambda *_, **__: True)
    like = torch.zeros(0, 192)
    assert peaks.decodes_without_sync(like, kernel_size=11)
    assert not peaks.decodes_without_sync(like, kernel_size=13)
    assert not peaks.decodes_without_sync(torch.zeros(0, 1025), kernel_size=11)
    assert not peaks.decodes_without_sync(like.clone().requires_grad_(), kernel_size=11)
    monkeypatch.undo()
    assert not peaks.decodes_without_sync(like, kernel_size=11)  # on a CPU
