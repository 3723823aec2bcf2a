"""Regions blended into one map: exact where they agree, without seams where they do not, in bounded memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.ops.crop import crop_boxes
from vitruvian.pipelines.region_blending import RegionBlender
from vitruvian.pipelines.regions import Region, crop_regions, plan_tiles
from vitruvian.results.base import People

SIZE = (300, 420)
BOXES = np.array([[40, 50, 120, 250], [90, 80, 200, 280], [300, 0, 380, 120], [380, 240, 420, 300]], np.float32)
REGIONS = [Region(25, 0, 250, 188), Region(55, 50, 245, 184), Region(0, 280, 150, 113), Region(230, 360, 70, 60)]


def ramp_map(size_hw: tuple[int, int] = SIZE) -> Tensor:
    """Three linear ramps in different directions: [3, H, W]."""
    rows, columns = np.indices(size_hw, dtype=np.float32)
    return torch.from_numpy(np.stack((columns, rows, 2 * columns - rows + 7)))


def arrays(blender: RegionBlender) -> Any:
    return SimpleNamespace(**{name: tensor.numpy() for name, tensor in blender.result().items()})


def blend(maps: list[Tensor], regions: list[Region], size_hw: tuple[int, int] = SIZE, **options: Any) -> Any:
    """Blend the maps of regions."""
    blender = RegionBlender(size_hw, regions, channels=len(maps[0]), **options)
    for index, one in enumerate(maps):
        blender.add(index, one)
    return arrays(blender)


def crop_and_blend(source: Tensor, regions: list[Region], **options: Any) -> Any:
    """Crop a map [C, H, W] and blend the crops."""
    size_hw = (source.shape[1], source.shape[2])
    return blend([region.crop(source) for region in regions], regions, size_hw, **options)


def people(boxes_xyxy: np.ndarray) -> People:
    return People(boxes_xyxy=boxes_xyxy, scores=np.ones(len(boxes_xyxy), np.float32), detector="given")


class TestCrops:
    @pytest.mark.parametrize(("input_hw", "error"), [((128, 96), 0.01), ((64, 48), 0.01), ((400, 300), 0.2)])
    def test_crops_of_the_processor_go_back(self, input_hw: tuple[int, int], error: float) -> None:
        """What `crop_boxes` samples from a ramp is that ramp again after blending: the geometry is the same."""
        source = ramp_map()
        boxes = BOXES[:3]
        sizes = torch.from_numpy(np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1))
        crops = crop_boxes(source, sizes, input_hw)  # [N, 3, h, w]
        inside = crop_boxes(torch.ones(1, *SIZE), sizes, input_hw) > 0.999  # [N, 1, h, w], False outside of the image
        maps = list(torch.where(inside, crops, torch.nan))
        blended = blend(maps, crop_regions(people(boxes), input_hw), boxes_xyxy=boxes)
        for box in boxes:
            x1, y1, x2, y2 = np.clip(box, 3, [417, 297, 417, 297]).astype(int)
            got, want = blended.values[y1:y2, x1:x2], source[:, y1:y2, x1:x2].permute(1, 2, 0).numpy()
            np.testing.assert_allclose(got, want, atol=error)


class TestExactness:
    @pytest.mark.parametrize("with_boxes", [True, False])
    def test_ramps_come_back(self, with_boxes: bool) -> None:
        source = ramp_map()
        blended = crop_and_blend(source, REGIONS, boxes_xyxy=BOXES if with_boxes else None)
        want = source.permute(1, 2, 0).numpy()
        np.testing.assert_allclose(blended.values[blended.cover], want[blended.cover], rtol=3e-6)
        assert (blended.values[~blended.cover] == 0).all()
        for region in REGIONS:
            assert region.crop(torch.from_numpy(blended.cover)[None]).all()

    def test_one_window_is_exact_to_the_bit(self) -> None:
        source = torch.randn(2, *SIZE, generator=torch.Generator().manual_seed(0))
        blended = crop_and_blend(source, [Region(0, 0, *SIZE)])
        np.testing.assert_array_equal(blended.values, source.permute(1, 2, 0).numpy())

    @pytest.mark.parametrize("resolution", [(40, 30), (500, 400), (100, 700)])
    def test_constants_come_back_from_any_resolution(self, resolution: tuple[int, int]) -> None:
        pasted = blend([torch.full((1, *resolution), 3.25)] * len(REGIONS), REGIONS, boxes_xyxy=BOXES)
        np.testing.assert_allclose(pasted.values[pasted.cover], 3.25, rtol=1e-6)

    def test_enlarging_is_bilinear(self) -> None:
        small = torch.rand(2, 30, 42, generator=torch.Generator().manual_seed(0))
        blender = RegionBlender(SIZE, [Region(0, 0, *SIZE)], channels=2)
        blender.add(0, small)
        want = torch.nn.functional.interpolate(small[None], SIZE, mode="bilinear")[0].permute(1, 2, 0)
        np.testing.assert_allclose(arrays(blender).values, want.numpy(), atol=3e-5)

    def test_shrinking_averages(self) -> None:
        fine = torch.rand(1, 90, 90, generator=torch.Generator().manual_seed(0))
        blender = RegionBlender(SIZE, [Region(10, 10, 6, 6)], channels=1)
        blender.add(0, fine)
        blocks = fine[0].reshape(6, 15, 6, 15).mean((1, 3)).numpy()
        np.testing.assert_allclose(arrays(blender).values[10:16, 10:16, 0], blocks, atol=0.08)

    def test_window_outside_the_image_changes_nothing(self) -> None:
        blender = RegionBlender(SIZE, [Region(-50, -50, 20, 20), Region(400, 500, 9, 9)], channels=1)
        blender.add(0, torch.ones((1, 4, 4)))
        blender.add(1, torch.ones((1, 4, 4)))
        pasted = arrays(blender)
        assert not pasted.cover.any()
        assert (pasted.values == 0).all()


class TestBlending:
    def test_no_seam_where_crops_disagree(self) -> None:
        """Two crops differ by one; the step is spread so that no two neighbouring pixels differ by much."""
        windows = [Region(0, 0, 300, 240), Region(0, 180, 300, 240)]
        blender = RegionBlender(SIZE, windows, channels=1, feather=0.25)
        blender.add(0, torch.zeros((1, 30, 30)))
        blender.add(1, torch.ones((1, 30, 30)))
        row = arrays(blender).values[150, :, 0]
        assert np.abs(np.diff(row)).max() < 2.0 / 60  # over an overlap of 60 pixels
        assert (row[:180] == 0).all()
        assert (row[240:] == 1).all()
        hard = RegionBlender(SIZE, windows, channels=1, feather=0.0)
        hard.add(0, torch.zeros((1, 30, 30)))
        hard.add(1, torch.ones((1, 30, 30)))
        assert np.abs(np.diff(arrays(hard).values[150, :, 0])).max() >= 0.5

    def test_each_persons_crop_decides_over_their_box(self) -> None:
        boxes = np.array([[60, 60, 140, 240], [180, 60, 260, 240]], np.float32)
        windows = [Region(40, 20, 220, 180), Region(40, 120, 220, 180)]  # overlap from 120 to 200
        blender = RegionBlender(SIZE, windows, channels=1, boxes_xyxy=boxes)
        blender.add(0, torch.zeros((1, 22, 18)))
        blender.add(1, torch.ones((1, 22, 18)))
        row = arrays(blender).values[150, :, 0]
        assert row[130] < 0.1
        assert row[190] > 0.9
        assert np.abs(np.diff(row[20:300])).max() < 0.06

    def test_vectors_keep_their_length(self) -> None:
        windows = [Region(0, 0, 300, 240), Region(0, 180, 300, 240)]
        blender = RegionBlender(SIZE, windows, channels=3, blend="unit", feather=0.25)
        blender.add(0, torch.tensor([1.0, 0, 0])[:, None, None].expand(3, 9, 9))
        blender.add(1, torch.tensor([0, 1.0, 0])[:, None, None].expand(3, 9, 9))
        values = arrays(blender).values
        np.testing.assert_allclose(np.linalg.norm(values, axis=-1), 1, atol=1e-6)
        assert 0.3 < values[150, 210, 0] < 0.95

    def test_mattes_keep_a_person_whom_the_neighbours_crop_does_not_see(self) -> None:
        windows = [Region(0, 0, 300, 240), Region(0, 180, 300, 240)]
        blender = RegionBlender(SIZE, windows, channels=4, blend="alpha", feather=0.25)
        blender.add(0, torch.full((4, 30, 24), 1.0))
        blender.add(1, torch.zeros((4, 30, 24)))
        values = arrays(blender).values
        assert values[150, 210].min() > 0.9  # in the middle of the overlap
        assert values[150, 239, 3] < 0.1  # and gone at the edge, where the first crop knows least

    def test_a_soft_edge_stays_soft(self) -> None:
        """How much a crop counts for what it sees must not move the edge of a matte that is enlarged."""
        small = torch.zeros(1, 30, 42)
        small[:, :, 20:] = 1
        whole = [Region(0, 0, *SIZE)]
        plain, matte = RegionBlender(SIZE, whole, channels=1), RegionBlender(SIZE, whole, channels=1, blend="alpha")
        plain.add(0, small)
        matte.add(0, small)
        np.testing.assert_allclose(arrays(matte).values, arrays(plain).values, atol=1e-6)

    def test_labels(self) -> None:
        """Class 0 is background: a crop that sees a part there wins over one that sees nothing."""
        windows = [Region(0, 0, 300, 240), Region(0, 180, 300, 240)]
        part, nothing = torch.zeros(3, 30, 24), torch.zeros(3, 30, 24)
        part[2], part[0] = 0.8, 0.2
        nothing[0] = 1.0
        blender = RegionBlender(SIZE, windows, channels=3, blend="labels", feather=0.25)
        blender.add(0, part)
        blender.add(1, nothing)
        pasted = arrays(blender)
        assert pasted.labels is not None
        assert pasted.labels.dtype == np.uint8
        assert (pasted.labels[:, :225] == 2).all()
        assert (pasted.labels[:, 240:] == 0).all()
        assert pasted.values.shape == (*SIZE, 1)
        assert pasted.values[0, 0, 0] == pytest.approx(0.8)
        assert pasted.values[0, 300, 0] == pytest.approx(1.0)

    def test_non_finite_pixels_have_no_weight(self) -> None:
        values = torch.full((1, 30, 42), 5.0)
        values[:, 10:20, 10:20] = torch.nan
        blended = blend([values], [Region(0, 0, *SIZE)])
        np.testing.assert_allclose(blended.values[blended.cover], 5, rtol=1e-6)
        assert not blended.cover[120:180, 120:180].any()
        assert blended.values[150, 150, 0] == 0


def test_memory_follows_the_crops() -> None:
    """Blocks live only until their last window: small people far apart never hold more than one crop's blocks."""
    size, boxes = (2048, 2048), np.array([[x, y, x + 60, y + 80] for y in (100, 900, 1700) for x in (100, 900, 1700)])
    windows = crop_regions(people(boxes.astype(np.float32)), (64, 48))
    blender = RegionBlender(size, windows, channels=1)
    most = 0
    for index in range(len(windows)):
        blender.add(index, torch.ones((1, 8, 6)))
        most = max(most, len(blender._sums))
    assert most == 0  # each block is closed with the only window in it
    crowd = RegionBlender(size, [windows[0]] * 5, channels=1)
    for index in range(5):
        crowd.add(index, torch.ones((1, 8, 6)))
        assert len(crowd._sums) <= 4
        assert all(max(block.shape[1:]) <= 256 for block in crowd._sums.values())
    assert arrays(crowd).cover.any()


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="expected a share"):
        RegionBlender(SIZE, [Region(0, 0, 9, 9)], channels=1, feather=0.6)
    for shape in ((3, 4, 4), (4, 4)):
        with pytest.raises(InputError, match="expected the shape"):
            RegionBlender(SIZE, [Region(0, 0, 9, 9)], channels=2).add(0, torch.ones(shape))


class TestTiles:
    def test_maps_come_back(self) -> None:
        source = torch.randint(0, 256, (3, 300, 500), generator=torch.Generator().manual_seed(1)).float()
        blended = crop_and_blend(source, plan_tiles((300, 500), (128, 160)), feather=0.25)
        np.testing.assert_allclose(blended.values, source.permute(1, 2, 0).numpy(), rtol=1e-6, atol=1e-4)
        assert blended.cover.all()

    @pytest.mark.parametrize("overlap", [0.25, 0.5])
    def test_no_seam_where_tiles_disagree(self, overlap: float) -> None:
        """Each tile has another constant; neighbouring pixels never differ by more than the overlap allows."""
        tiles = plan_tiles((400, 600), (160, 160), overlap=overlap)
        constants = torch.randperm(1000, generator=torch.Generator().manual_seed(2))[: len(tiles)] / 1000
        maps = [torch.full((1, 16, 16), float(value)) for value in constants]
        values = blend(maps, tiles, (400, 600), feather=overlap).values[..., 0]
        steepest = 2.2 / (overlap * 160)
        assert np.abs(np.diff(values, axis=0)).max() < steepest
        assert np.abs(np.diff(values, axis=1)).max() < steepest
        assert np.ptp(values) > 0.3

    def test_labels(self) -> None:
        inside = torch.zeros(200, 300)
        inside[50:150, 60:260] = 1
        tiles = plan_tiles((200, 300), (96, 96))
        blended = crop_and_blend(torch.stack((1 - inside, inside)), tiles, blend="labels", feather=0.25)
        np.testing.assert_array_equal(blended.labels, inside.numpy())
