"""Silhouettes that fill the boxes of people."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitruvian import Sapiens2ImageProcessor
from vitruvian.errors import InputError
from vitruvian.models.sapiens2.outputs import Sapiens2SemanticSegmenterOutput
from vitruvian.models.sapiens2.silhouette import TIMID, expected_margin, fill_boxes, places_in_crops, span

BOX = (8, 72, 12, 52)  # first and last row, first and last column of the box, in a crop of 80 × 64
PLACE = torch.tensor([[12 / 64, 8 / 80, 52 / 64, 72 / 80]])


def crop(sure: float, *, elsewhere: float = -9.0, rows: tuple[int, int] = (8, 72)) -> Tensor:
    """Logits [1, 4, 80, 64] with a body of class 2 in some rows and all columns of the box, beside class 1."""
    logits = torch.zeros(1, 4, 80, 64)
    logits[:, 1:] = elsewhere
    logits[:, 2, rows[0] : rows[1], BOX[2] : BOX[3]] = sure
    return logits


def test_who_fills_the_box_stays_as_they_are():
    logits = crop(1.0)
    assert torch.equal(fill_boxes(logits, PLACE), logits)


def test_a_silhouette_grows_to_the_sides_of_its_box_and_no_further():
    logits = crop(4.0, elsewhere=-12.0, rows=(8, 40))  # the legs are there, but background is likelier
    logits[:, 3, 40:72, 28:36] = -2.0
    logits[:, 3, 72:] = 0.0  # as likely as background, and outside the box
    before = logits.clone()
    found = fill_boxes(logits, PLACE)
    assert torch.equal(logits, before)
    assert torch.equal(found[:, 1:], logits[:, 1:])  # which part it would be does not change
    labels = found.argmax(1)[0]
    assert (labels[8:40, 12:52] == 2).all()
    assert (labels[40:72, 28:36] == 3).float().mean() > 0.9
    assert (labels[68:72] == 3).any()
    assert (labels[40:72, :28] == 0).all()
    outside = torch.ones(80, 64, dtype=torch.bool)
    outside[BOX[0] : BOX[1], BOX[2] : BOX[3]] = False
    assert torch.equal(found[0, :, outside], logits[0, :, outside])


def test_parts_that_share_a_pixel_count_together():
    logits = torch.zeros(1, 4, 80, 64)
    logits[:, 1:] = -0.5  # each of three parts is less likely than background, all together are likelier
    logits[:, :, :, :20] = torch.tensor([0.0, -9, -9, -9])[None, :, None, None]
    assert (logits.argmax(1) == 0).all()
    labels = fill_boxes(logits, PLACE).argmax(1)[0]
    assert (labels[30:50, 24:40] > 0).all()


def test_nobody_is_made_of_nothing():
    logits = crop(-2 * TIMID, elsewhere=-2 * TIMID)
    assert (fill_boxes(logits, PLACE).argmax(1) == 0).all()


def test_people_are_expected_in_the_middle():
    expected = expected_margin(torch.zeros(40, 30))
    assert expected.argmax() in (19 * 30 + 14, 19 * 30 + 15, 20 * 30 + 14, 20 * 30 + 15)
    torch.testing.assert_close(expected, expected.flip(0).flip(1))
    assert expected[20, 15] > 0.5 > 0 > expected[20, 0] > expected[0, 0]


@pytest.mark.parametrize(("start", "stop"), [(-0.2, 0.1), (0.4, 0.4), (0.9, 1.3), (1.2, 1.4)])
def test_a_span_holds_a_pixel_and_stays_inside(start: float, stop: float):
    found = range(20)[span(start, stop, 20)]
    assert len(found) >= 1


def test_a_box_lies_in_the_middle_of_its_crop():
    places = places_in_crops(torch.tensor([[10.0, 20, 30, 80], [0, 0, 200, 20]]), (128, 96))
    torch.testing.assert_close(places[0], torch.tensor([0.3, 0.1, 0.7, 0.9]))  # 80 × 1.25 tall, so 75 wide
    torch.testing.assert_close(places[1, [0, 2]], torch.tensor([0.1, 0.9]))


def test_the_processor_takes_boxes_of_all_pictures():
    processor = Sapiens2ImageProcessor(size={"height": 80, "width": 64})
    timid = torch.cat([crop(4.0, elsewhere=-12.0, rows=(8, 40)), crop(1.0)])
    timid[0, 3, 40:72, 28:36] = -2.0
    outputs = Sapiens2SemanticSegmenterOutput(logits=timid)
    # Crops of 80 × 64 pixels: boxes of 64 × 40.
    boxes = [[[10, 10, 40, 64]], [[5, 5, 40, 64]]]
    plain = processor.post_process_semantic_segmentation(outputs)
    found = processor.post_process_semantic_segmentation(outputs, boxes=boxes)
    assert (plain[0][40:72] == 0).all()
    assert (found[0][40:72, 28:36] == 3).float().mean() > 0.9
    assert torch.equal(found[1], plain[1])
    scored = processor.post_process_semantic_segmentation(outputs, boxes=boxes, return_segmentation_scores=True)
    assert torch.equal(scored[0]["segmentation"], found[0])
    with pytest.raises(InputError, match="boxes"):
        processor.post_process_semantic_segmentation(outputs, boxes=boxes[:1])
