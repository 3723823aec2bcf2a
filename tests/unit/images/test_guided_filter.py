"""Maps upsampled along the edges of an image, and colors of the foreground without those of the background."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images import guided_filter
from vitruvian.images.guided_filter import foreground_colors, guided_upsample

RED, BLUE = torch.tensor([0.9, 0.1, 0.1]), torch.tensor([0.1, 0.2, 0.8])


def two_colors(share: Tensor) -> Tensor:
    """Return an image [3, H, W] that mixes red, by a share [H, W], with blue."""
    return RED[:, None, None] * share + BLUE[:, None, None] * (1 - share)


def disc(side: int = 120) -> Tensor:
    """Return a disc, 0 and 1 [side, side]."""
    axis = torch.arange(side) - side / 2 + 0.5
    return ((axis[:, None] ** 2 + axis**2).sqrt() < 0.31 * side).float()


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(2))


class TestGuidedUpsample:
    def test_edges_of_the_map_are_those_of_the_image(self) -> None:
        mask = disc()
        image = two_colors(mask) + 0.02 * (noise(3, 120, 120) - 0.5)
        small = F.interpolate(mask[None, None], (20, 20), mode="bilinear", antialias=True)[0]
        bilinear = F.interpolate(small[None], (120, 120), mode="bilinear")[0, 0]
        guided = guided_upsample(small, image)[0]
        assert (guided - mask).abs().mean() < 0.2 * (bilinear - mask).abs().mean()
        assert ((guided > 0.5) == (mask > 0.5)).float().mean() > 0.995

    def test_an_image_without_edges_changes_nothing(self) -> None:
        small = F.interpolate(disc()[None, None], (20, 20), mode="bilinear", antialias=True)[0]
        guided = guided_upsample(small, torch.full((3, 120, 120), 0.4))[0]
        bilinear = F.interpolate(small[None], (120, 120), mode="bilinear")[0, 0]
        assert (guided - bilinear).abs().mean() < 0.05  # smoothed a little by the windows
        assert -1e-3 <= guided.min() <= guided.max() <= 1 + 1e-3

    @pytest.mark.parametrize("size_hw", [(1, 1), (1, 50), (37, 2), (61, 83)])
    @pytest.mark.parametrize("map_hw", [(1, 1), (5, 3), (70, 90)])
    def test_constants_stay_at_every_size(self, size_hw: tuple[int, int], map_hw: tuple[int, int]) -> None:
        values = torch.tensor([0.25, -3.0])[:, None, None].expand(2, *map_hw)
        out = guided_upsample(values, noise(3, *size_hw))
        assert out.shape == (2, *size_hw)
        torch.testing.assert_close(out, values[:, :1, :1].expand_as(out), atol=1e-3, rtol=1e-3)

    def test_eight_bits_and_memory_formats(self) -> None:
        image = (noise(3, 40, 30) * 255).to(torch.uint8)
        channels_last = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        expected = guided_upsample(noise(2, 10, 8), image)
        torch.testing.assert_close(guided_upsample(noise(2, 10, 8), channels_last), expected, atol=0.02, rtol=0)
        torch.testing.assert_close(guided_upsample(noise(2, 10, 8), image / 255), expected, atol=0.1, rtol=0)

    @pytest.mark.parametrize("pixels", [1, 100, 1000])
    def test_blocks_do_not_show(self, pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
        values, image = noise(2, 9, 7), noise(3, 50, 41)
        expected, colors = guided_upsample(values, image), foreground_colors(image, image[0])
        monkeypatch.setattr(guided_filter, "_BLOCK_PIXELS", pixels)
        torch.testing.assert_close(guided_upsample(values, image), expected)
        torch.testing.assert_close(foreground_colors(image, image[0]), colors)

    @pytest.mark.parametrize(("values", "image"), [((4, 4), (3, 8, 8)), ((1, 4, 4), (1, 8, 8)), ((1, 0, 4), (3, 8, 8))])
    def test_shapes(self, values: tuple[int, ...], image: tuple[int, ...]) -> None:
        with pytest.raises(InputError, match=r"expected the shapes \[C, h, w\] and \[3, H, W\]"):
            guided_upsample(torch.zeros(values), torch.zeros(image))


class TestForegroundColors:
    def test_opaque_pixels_are_those_of_the_image(self) -> None:
        alpha = disc()
        image = (noise(3, 120, 120) * 255).to(torch.uint8)
        inside = alpha == 1
        assert torch.equal(foreground_colors(image, alpha)[:, inside], image[:, inside] / 255)

    @pytest.mark.parametrize("side", [60, 1100])
    def test_the_fringe_has_the_color_of_the_foreground(self, side: int) -> None:
        alpha = F.avg_pool2d(disc(side)[None], 7, stride=1, padding=3)[0]
        found = foreground_colors(two_colors(alpha), alpha)
        fringe = (alpha > 0.02) & (alpha < 0.95)
        assert fringe.sum() > 100
        error = (found - RED[:, None, None]).abs()[:, fringe]
        assert error.max() < 0.12  # the image differs by up to 0.8
        assert error.mean() < 0.02

    @pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
    def test_an_image_without_opaque_or_clear_pixels(self, value: float) -> None:
        found = foreground_colors(noise(3, 30, 20), torch.full((30, 20), value))
        assert found.isfinite().all()
        assert 0 <= found.min() <= found.max() <= 1
