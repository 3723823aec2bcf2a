"""Automatic masks: the grid, crops that cover the image, filters, suppression, bounded memory, outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from tests.families.sam2 import SIDE, tiny
from vitruvian.errors import InputError
from vitruvian.images.boxes import mask_boxes
from vitruvian.images.nms import box_nms
from vitruvian.images.rle import decode_rle
from vitruvian.models.sam2.automatic_masks import (
    AutomaticMaskOptions,
    MaskProposals,
    Sam2AutomaticMaskGenerator,
    _Candidates,
    _filter,
    _finish,
    _non_maximum_suppression,
)
from vitruvian.models.sam2.crops import overlapping_crops, point_grid, touches_crop_edge
from vitruvian.models.sam2.mask_decoder import ConfidentMasks
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2ImageProcessor, Sam2Processor

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))
EVERYTHING = {"pred_iou_thresh": 0.0, "stability_score_thresh": 0.0, "points_per_crop": 4}


@pytest.fixture(scope="module")
def parts() -> tuple[Sam2Model, Sam2Processor]:
    torch.manual_seed(0)
    config = tiny()
    config.initializer_range = 0.3
    return Sam2Model(config).eval(), Sam2Processor(Sam2ImageProcessor(size={"height": SIDE, "width": SIDE}))


def found_by(parts: tuple[Sam2Model, Sam2Processor], **options: Any) -> MaskProposals:
    found = Sam2AutomaticMaskGenerator(*parts, **(EVERYTHING | options))(IMAGE)
    assert isinstance(found, MaskProposals)
    return found


def test_grid_of_cell_centers() -> None:
    assert point_grid(2).tolist() == [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]


@pytest.mark.parametrize("size", [(100, 150), (7, 9), (640, 481)])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_crops_cover_the_image_and_overlap(size: tuple[int, int], layers: int) -> None:
    crops = list(overlapping_crops(size, layers, 0.3))
    for layer in range(layers + 1):
        covered = np.zeros(size, int)
        own = [crop for number, crop in crops if number == layer]
        assert len(own) == 4**layer
        for x1, y1, x2, y2 in own:
            assert 0 <= x1 < x2 <= size[1]
            assert 0 <= y1 < y2 <= size[0]
            covered[y1:y2, x1:x2] += 1
        assert covered.min() == 1
        assert layer == 0 or size == (7, 9) or covered.max() > 1


class Discs:
    """Stands in for the model: three discs around each point, larger ones with lower scores, on a grid of 64 × 64."""

    device = torch.device("cpu")
    prompt_encoder = SimpleNamespace(image_hw=(256, 256))

    def get_image_embeddings(self, pixel_values: torch.Tensor) -> list[torch.Tensor]:
        assert pixel_values.shape == (1, 3, 256, 256)
        return [pixel_values]

    def confident_masks(self, input_points: torch.Tensor, image_embeddings: Any, *, min_iou: float) -> ConfidentMasks:
        y, x = torch.meshgrid(torch.arange(64) + 0.5, torch.arange(64) + 0.5, indexing="ij")
        center = input_points[0, :, 0, :, None, None] / 4  # [P, 2, 1, 1]
        distance = ((x - center[:, 0]) ** 2 + (y - center[:, 1]) ** 2).sqrt()  # [P, 64, 64]
        radii = torch.tensor([3.0, 6.0, 9.0])[:, None, None]
        scores = torch.tensor([0.99, 0.95, 0.91]) - input_points[0, :, 0].sum(dim=-1, keepdim=True) * 1e-5
        prompt, kind = (scores > min_iou).nonzero(as_tuple=True)
        return ConfidentMasks(((radii - distance[:, None]) * 10)[prompt, kind], scores[prompt, kind], prompt)


SCENE = Image.new("RGB", (400, 300))


def discs(**options: Any) -> MaskProposals:
    processor = Sam2Processor(Sam2ImageProcessor(size={"height": 256, "width": 256}))
    chosen = EVERYTHING | {"points_per_crop": 6} | options
    found = Sam2AutomaticMaskGenerator(Discs(), processor, **chosen)(SCENE)  # type: ignore[arg-type]
    assert isinstance(found, MaskProposals)
    return found


def test_masks_are_those_of_the_plain_way() -> None:
    """Ask all points at once, enlarge every mask, and suppress: the same masks in the same order."""
    grid = point_grid(6)
    logits, scores, asked = Discs().confident_masks(grid[None, :, None] * 256, [], min_iou=0.0)
    large = F.interpolate(logits[:, None], size=(300, 400), mode="bilinear", align_corners=False)[:, 0] > 0
    kept = box_nms(mask_boxes(large), scores, 0.3)
    found = discs(points_per_batch=5, crops_nms_thresh=0.3)
    assert 36 <= len(found) < 108
    torch.testing.assert_close(found.scores, scores[kept])
    assert (found.masks != large[kept]).float().mean() < 1e-3
    assert torch.equal(found.boxes_xyxy, mask_boxes(found.masks))
    torch.testing.assert_close(found.points_xy, grid[asked[kept]] * torch.tensor([400, 300]))


def test_batches_and_stored_candidates_do_not_change_the_result(
    parts: tuple[Sam2Model, Sam2Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = found_by(parts, points_per_batch=None)
    for step in (1, 5, 64):
        got = found_by(parts, points_per_batch=step)
        assert torch.equal(got.masks, want.masks)
    monkeypatch.setattr("vitruvian.models.sam2.automatic_masks._STORED_BYTES", 1)
    thinned = found_by(parts, points_per_batch=4)
    assert set(thinned.scores.tolist()) >= set(want.scores[:3].tolist())
    monkeypatch.setattr("vitruvian.models.sam2.automatic_masks._RESIZED_PIXELS", 1)
    assert torch.equal(found_by(parts, points_per_batch=None).masks, want.masks)


def test_decoder_sees_no_more_points_than_a_batch(
    parts: tuple[Sam2Model, Sam2Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    encoded: list[int] = []
    decode = parts[0].mask_decoder.confident_masks

    def counted(*given: torch.Tensor, min_iou: float) -> ConfidentMasks:
        seen.append(given[2].shape[1])
        return decode(*given, min_iou=min_iou)  # type: ignore[arg-type]

    monkeypatch.setattr(parts[0].mask_decoder, "confident_masks", counted)
    handle = parts[0].vision_encoder.backbone.register_forward_hook(lambda *_: encoded.append(1))
    found_by(parts, points_per_batch=6, crops_n_layers=1, crop_n_points_downscale_factor=2)
    handle.remove()
    assert seen == [6, 6, 4] + [4] * 4
    assert len(encoded) == 5  # the whole and four crops, once each


def test_crops_put_masks_where_they_are() -> None:
    found = discs(crops_n_layers=2, crops_nms_thresh=0.9, crop_n_points_downscale_factor=2)
    layers = {
        layer: {crop for number, crop in overlapping_crops((300, 400), 2, 512 / 1500) if number == layer}
        for layer in (1, 2)
    }
    origin = [tuple(crop) for crop in found.crops_xyxy.tolist()]
    assert all(layers[layer] & set(origin) for layer in (1, 2))
    for mask, (x1, y1, x2, y2), point in zip(found.masks, origin, found.points_xy, strict=True):
        outside = mask.clone()
        outside[y1:y2, x1:x2] = False
        assert not outside.any()
        inner = mask_boxes(mask)
        if inner.min() > 0 and inner[2] < 400 and inner[3] < 300:  # a whole disc lies around its point
            torch.testing.assert_close((inner[:2] + inner[2:]) / 2, point, rtol=0, atol=2.0)


def candidates(masks: torch.Tensor, scores: list[float], crop: tuple[int, int, int, int]) -> _Candidates:
    places = torch.zeros(len(masks), 2)
    return _filter(masks.float() * 8 - 4, torch.tensor(scores), places, crop, (100, 100), AutomaticMaskOptions())


def blocks(*corners: tuple[int, int, int, int]) -> torch.Tensor:
    masks = torch.zeros(len(corners), 25, 25, dtype=torch.bool)
    for mask, (x1, y1, x2, y2) in zip(masks, corners, strict=True):
        mask[y1:y2, x1:x2] = True
    return masks


WHOLE = (0, 0, 100, 100)


def test_filters() -> None:
    masks = blocks((2, 2, 8, 8), (10, 10, 20, 20), (0, 0, 0, 0), (5, 5, 9, 9))
    found = candidates(masks, [0.95, 0.92, 0.99, 0.9], WHOLE)
    assert found.scores.tolist() == pytest.approx([0.95, 0.92, 0.9])  # the third is empty
    assert found.boxes_xyxy.tolist() == [[8, 8, 32, 32], [40, 40, 80, 80], [20, 20, 36, 36]]
    middle = candidates(blocks((11, 12, 14, 14)), [0.95], (10, 30, 60, 80))
    assert middle.boxes_xyxy.tolist() == [[32, 54, 38, 58]]  # in pixels of the image, not of the crop
    soft = torch.full((1, 25, 25), -0.5)
    soft[..., :3] = 0.5
    options = AutomaticMaskOptions()
    unstable = _filter(soft, torch.ones(1), torch.zeros(1, 2), WHOLE, (100, 100), options)
    assert len(unstable.scores) == 0


def test_masks_cut_by_a_crop_are_dropped_but_not_at_the_image_s_edge() -> None:
    boxes = torch.tensor([[0.0, 0, 10, 10], [30, 30, 50, 45], [25, 25, 30, 30]])
    assert touches_crop_edge(boxes, (0, 0, 60, 60), (100, 100)).tolist() == [False, True, False]
    assert touches_crop_edge(boxes, WHOLE, (100, 100)).tolist() == [False, False, False]


def test_suppression_by_boxes_and_by_pixels() -> None:
    ring = blocks((1, 1, 24, 24))
    ring[0, 3:22, 3:22] = False
    found = candidates(torch.cat((ring, blocks((3, 3, 22, 22), (2, 2, 22, 22)))), [0.99, 0.98, 0.97], WHOLE)
    by_box = _non_maximum_suppression([found], AutomaticMaskOptions(crops_nms_thresh=0.6))
    assert by_box.scores.tolist() == pytest.approx([0.99])
    by_pixel = _non_maximum_suppression([found], AutomaticMaskOptions(crops_nms_thresh=1.0, mask_nms_thresh=0.6))
    assert by_pixel.scores.tolist() == pytest.approx([0.99, 0.98])


def test_masks_are_cleaned_and_vanished_ones_dropped() -> None:
    masks = blocks((2, 2, 14, 14), (20, 20, 22, 22))
    masks[0, 6:8, 6:8] = False
    found = candidates(masks, [0.95, 0.9], WHOLE)
    plain = _finish(found, (100, 100), AutomaticMaskOptions())
    assert len(plain) == 2
    assert not plain.masks[0, 26:30, 26:30].any()
    tidy = _finish(found, (100, 100), AutomaticMaskOptions(max_hole_area=100, max_sprinkle_area=100))
    assert tidy.scores.tolist() == pytest.approx([0.95])
    assert tidy.masks[0, 26:30, 26:30].all()


def test_run_lengths_are_the_masks(parts: tuple[Sam2Model, Sam2Processor]) -> None:
    pixels, runs = found_by(parts), found_by(parts, output_rle_mask=True)
    assert runs.pixels is None
    assert pixels.stored_rles is None
    assert torch.equal(runs.masks, pixels.masks)
    assert pixels.rles == runs.rles
    assert torch.equal(decode_rle(runs.rles[0]), pixels.masks[0])
    assert torch.equal(runs.boxes_xyxy, pixels.boxes_xyxy)


def test_several_images_and_nothing_found(parts: tuple[Sam2Model, Sam2Processor]) -> None:
    generator = Sam2AutomaticMaskGenerator(*parts, **EVERYTHING)
    other = IMAGE.resize((33, 44))
    found = generator([IMAGE, other, np.array(other)])
    assert isinstance(found, list)
    assert [one.size_hw for one in found] == [(60, 90), (44, 33), (44, 33)]
    assert torch.equal(found[1].masks, found[2].masks)
    nothing = generator(IMAGE, pred_iou_thresh=2.0)
    assert isinstance(nothing, MaskProposals)
    assert len(nothing) == 0
    assert nothing.masks.shape == (0, 60, 90)
    assert nothing.rles == []
    empty = generator(IMAGE, pred_iou_thresh=2.0, output_rle_mask=True)
    assert isinstance(empty, MaskProposals)
    assert empty.masks.shape == (0, 60, 90)
    assert len(generator(IMAGE)) > 0  # the options of a call are for that call


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"points_per_batch": 0}, "points_per_batch: expected at least 1"),
        ({"points_per_crop": 0}, "points_per_crop"),
        ({"crops_n_layers": -1}, "crops_n_layers"),
        (
            {"crops_n_layers": 5},
            "crops_n_layers: expected at most 4, got 5: its last layer would have 1024 crops",
        ),
        ({"crop_overlap_ratio": 1.5}, "crop_overlap_ratio"),
        ({"max_hole_area": -1}, "max_hole_area"),
        ({"points_per_side": 32}, "options: .*got 'points_per_side'"),
    ],
)
def test_bad_options_are_refused(parts: tuple[Sam2Model, Sam2Processor], options: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        Sam2AutomaticMaskGenerator(*parts, **options)
