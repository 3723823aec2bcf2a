"""1×1 convolutions in the memory of their maps say what convolutions say."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.pointwise import mix_channels

CHANNELS_LAST = torch.channels_last


def maps(batch: int, channels: int, size_hw: tuple[int, int]) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(batch, channels, *size_hw).contiguous(memory_format=CHANNELS_LAST)


@pytest.mark.parametrize(
    "widths", [(24, 16, 16, 9), (8, 8, 8), (8, 7, 5), (8, 5, 8), (8, 3, 2), (6, 12, 12), (5, 4, 4)]
)
@pytest.mark.parametrize("size_hw", [(7, 5), (1, 1), (4, 6)])
@pytest.mark.parametrize("batch", [1, 3])
def test_chains_equal_convolutions(widths: tuple[int, ...], size_hw: tuple[int, int], batch: int) -> None:
    x = maps(batch, widths[0], size_hw)
    want = x.clone()
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        weight = torch.randn(after, before, 1, 1, generator=torch.Generator().manual_seed(number))
        x, want = mix_channels(x, weight), F.conv2d(want, weight)
        assert x.is_contiguous(memory_format=CHANNELS_LAST)
        torch.testing.assert_close(x, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("after", "same"), [(24, True), (16, True), (13, True), (12, False), (8, False), (25, False)])
def test_memory_is_used_again_unless_half_of_it_is_idle(after: int, same: bool) -> None:
    x = maps(1, 24, (6, 6))
    memory = x.untyped_storage().data_ptr()
    out = mix_channels(x, torch.randn(after, 24, 1, 1))
    assert (out.untyped_storage().data_ptr() == memory) is same
    assert same or out.untyped_storage().nbytes() == out.nbytes


def test_no_second_copy_where_an_end_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a third of the memory has become free, results go back and forth without being moved."""
    x = mix_channels(maps(1, 24, (6, 6)), torch.randn(16, 24, 1, 1))
    direct: list[int] = []
    product = torch.mm

    def mm(given: Tensor, matrix: Tensor, *, out: Tensor) -> Tensor:
        direct.append(len(given))
        return product(given, matrix, out=out)

    monkeypatch.setattr(torch, "mm", mm)
    for turn in (1, 2, 3):
        x = mix_channels(x, torch.randn(16, 16, 1, 1))
        assert sum(direct) == 36 * turn
        assert (x.storage_offset() > 0) is (turn % 2 == 1)
