"""Non-maximum suppression against a plain loop, and boxes around masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitruvian.images.boxes import mask_boxes
from vitruvian.images.nms import _shared_areas, box_nms, mask_iou, mask_nms


def iou(a: list[float], b: list[float]) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def plain_nms(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    chosen: list[int] = []
    for index in sorted(range(len(boxes)), key=lambda i: -scores[i].item()):
        if all(iou(boxes[index].tolist(), boxes[k].tolist()) <= threshold for k in chosen):
            chosen.append(index)
    return chosen


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7])
def test_boxes_as_a_plain_loop_keeps_them(threshold: float) -> None:
    torch.manual_seed(0)
    corners = torch.rand(60, 2) * 50
    boxes, scores = torch.cat((corners, corners + torch.rand(60, 2) * 30 + 1), dim=-1), torch.rand(60)
    assert box_nms(boxes, scores, threshold).tolist() == plain_nms(boxes, scores, threshold)


def test_equal_scores_keep_their_order() -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1], [5, 5, 6, 6], [9, 9, 10, 10]])
    assert box_nms(boxes, torch.ones(3), 0.5).tolist() == [0, 1, 2]


def test_masks_compete_by_pixels_not_by_boxes() -> None:
    ring = torch.ones(20, 20, dtype=torch.bool)
    ring[2:18, 2:18] = False
    core = torch.zeros(20, 20, dtype=torch.bool)
    core[3:17, 3:17] = True
    masks, scores = torch.stack((ring, core, core)), torch.tensor([0.9, 0.5, 0.8])
    assert mask_nms(masks, scores, 0.5).tolist() == [0, 2]
    assert box_nms(mask_boxes(masks), scores, 0.45).tolist() == [0]


def test_overlap_of_every_two_masks() -> None:
    masks = torch.zeros(3, 2, 4, dtype=torch.bool)
    masks[0, 0], masks[1, 0, :2] = True, True
    assert mask_iou(masks).tolist() == [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 0]]


def test_shared_areas_in_slices_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    masks = torch.rand(5, 13, 17) > 0.4
    want = torch.einsum("nhw,mhw->nm", masks.float(), masks.float())
    monkeypatch.setattr("vitruvian.images.nms._CHUNK_PIXELS", 50)
    assert torch.equal(_shared_areas(masks), want)


def test_boxes_around_masks() -> None:
    masks = torch.zeros(3, 8, 10, dtype=torch.bool)
    masks[0, 2:5, 3:9] = True
    masks[1, 7, 0] = True
    assert mask_boxes(masks).tolist() == [[3, 2, 9, 5], [0, 7, 1, 8], [0, 0, 0, 0]]
    assert mask_boxes(masks.reshape(3, 1, 8, 10)).shape == (3, 1, 4)


def test_nothing_in_nothing_out() -> None:
    assert box_nms(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []
    assert mask_nms(torch.zeros(0, 4, 4, dtype=torch.bool), torch.zeros(0), 0.5).tolist() == []
