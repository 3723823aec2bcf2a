"""Finding people: targets, loss, the head's output and boxes out of it."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.tiny_models import pixels, tiny_config
from tests.helpers.tiny_multitask import tiny_multitask
from vitruvian import InputError
from vitruvian.losses.detection import PeopleTarget, draw_people, people_loss
from vitruvian.models.sapiens2.people_detection import Sapiens2ForPeopleDetection, decode_people

SIZE_HW, GRID_HW, STRIDE = (64, 96), (8, 12), 8
BOXES = torch.tensor([[[8.0, 4.0, 40.0, 60.0], [50.0, 10.0, 90.0, 50.0], [0.0, 0.0, 96.0, 64.0]]])
PRESENT = torch.tensor([[True, True, False]])
NOBODY = torch.zeros(1, 3, dtype=torch.bool)


def drawn(present: torch.Tensor = PRESENT, ignored: torch.Tensor = NOBODY) -> PeopleTarget:
    return draw_people(BOXES, present, ignored, grid_hw=GRID_HW, stride=STRIDE)


def sure(target: PeopleTarget) -> tuple[torch.Tensor, torch.Tensor]:
    """What a perfect head says: middles without doubt, sides as they are."""
    return torch.where(target.center > 0.999, 8.0, -8.0), target.sides.clamp_min(0.01)


class TestTargets:
    def test_each_person_has_one_middle(self) -> None:
        target = drawn()
        peaks = (target.center[0, 0] > 0.999).nonzero()
        assert sorted(peaks.tolist()) == [[3, 8], [4, 3]]  # (30, 70) and (32, 24) in cells of 8
        assert (target.center >= 0).all()

    def test_sides_lead_from_cells_to_the_box(self) -> None:
        left, top, right, bottom = drawn().sides[0, :, 4, 3].tolist()
        x, y = 3.5 * STRIDE, 4.5 * STRIDE
        assert (x - left * STRIDE, y - top * STRIDE) == pytest.approx((8, 4))
        assert (x + right * STRIDE, y + bottom * STRIDE) == pytest.approx((40, 60))

    def test_ignored_people_do_not_count_but_others_in_them_do(self) -> None:
        target = drawn(ignored=torch.tensor([[False, False, True]]))
        assert target.weight[0, 0, 4, 3] == 1
        assert target.weight[0, 0, 0, 6] == 0
        assert drawn().weight.all()

    def test_nobody(self) -> None:
        target = drawn(present=NOBODY)
        assert not target.center.any()


class TestLoss:
    def test_perfect_maps_cost_nothing_and_others_more(self) -> None:
        target = drawn()
        logits, sides = sure(target)
        best = people_loss(logits, sides, target)
        assert best.total < 1e-2
        assert people_loss(-logits, sides, target).terms["center"] > 1
        assert people_loss(logits, sides * 2, target).terms["box"] > best.terms["box"] + 0.3

    def test_nobody_is_learned_too(self) -> None:
        target = drawn(present=NOBODY)
        sides = torch.ones(1, 4, *GRID_HW)
        low, high = (people_loss(torch.full((1, 1, *GRID_HW), value), sides, target) for value in (-8.0, 8.0))
        assert low.total < 1e-3 < 1 < high.total
        assert low.terms["box"] == 0

    def test_gradients_reach_both_maps(self) -> None:
        target = drawn()
        logits = torch.zeros(1, 1, *GRID_HW, requires_grad=True)
        sides = torch.ones(1, 4, *GRID_HW, requires_grad=True)
        people_loss(logits, sides, target).total.backward()
        for grad in (logits.grad, sides.grad):
            assert grad is not None
            assert grad.isfinite().all()
            assert grad.abs().sum() > 0


class TestModel:
    def test_forward(self) -> None:
        model = tiny_multitask("people").task_model("people")
        assert isinstance(model, Sapiens2ForPeopleDetection)
        out = model(pixels(2))
        assert (out.logits.shape, out.sides.shape) == ((2, 1, 6, 4), (2, 4, 6, 4))
        assert (out.sides > 0).all()
        assert out.loss is None

    def test_training_step(self) -> None:
        model = tiny_multitask("people").task_model("people")
        target = draw_people(
            torch.tensor([[[2.0, 2.0, 30.0, 40.0]]]),
            torch.ones(1, 1, dtype=torch.bool),
            torch.zeros(1, 1, dtype=torch.bool),
            grid_hw=(6, 4),
            stride=8,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(4):
            out = model(pixels(1), labels=target)
            out.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(out.loss.detach()))
        assert losses[-1] < losses[0]
        assert set(out.loss_terms) == {"center", "box"}

    def test_other_numbers_of_channels_are_refused(self) -> None:
        config = tiny_config(num_labels=4, head_config={"conv_out_channels": [4]})
        with pytest.raises(InputError, match="expected 5"):
            Sapiens2ForPeopleDetection(config)(pixels(1))


class TestDecoding:
    def test_targets_come_back_as_boxes(self) -> None:
        ((boxes, scores),) = decode_people(*sure(drawn()), size_hw=SIZE_HW)
        assert torch.allclose(boxes[boxes[:, 0].argsort()], BOXES[0, :2], atol=1e-3)
        assert (scores > 0.99).all()

    def test_boxes_are_in_pixels_of_the_picture_they_are_for(self) -> None:
        ((boxes, _),) = decode_people(*sure(drawn()), size_hw=(128, 288))
        scale = torch.tensor([3.0, 2.0, 3.0, 2.0])
        assert torch.allclose(boxes[boxes[:, 0].argsort()], BOXES[0, :2] * scale, atol=1e-2)

    def test_boxes_end_at_the_picture(self) -> None:
        logits, sides = sure(drawn())
        ((boxes, _),) = decode_people(logits, sides * 10, size_hw=SIZE_HW, overlap=1.0)
        assert boxes.amin() == 0
        assert boxes[:, 2].amax() == 96
        assert boxes[:, 3].amax() == 64

    def test_best_first_and_the_same_person_once(self) -> None:
        logits, sides = torch.full((1, 1, *GRID_HW), -8.0), torch.full((1, 4, *GRID_HW), 3.0)
        logits[0, 0, 4, 4], logits[0, 0, 4, 6], logits[0, 0, 4, 11] = 1.0, 2.0, 0.0
        ((boxes, scores),) = decode_people(logits, sides, size_hw=SIZE_HW, overlap=0.4)
        assert scores.tolist() == pytest.approx([torch.sigmoid(torch.tensor(v)).item() for v in (2.0, 0.0)])
        assert boxes[0].tolist() == [28, 12, 76, 60]

    def test_only_peaks_count(self) -> None:
        logits, sides = torch.full((1, 1, *GRID_HW), -8.0), torch.full((1, 4, *GRID_HW), 0.4)  # boxes that do not touch
        logits[0, 0, 4, 4], logits[0, 0, 4, 5], logits[0, 0, 4, 7] = 2.0, 1.0, 1.5
        ((boxes, _),) = decode_people(logits, sides, size_hw=SIZE_HW)
        assert ((boxes[:, 0] + boxes[:, 2]) / 2).tolist() == [36, 60]

    def test_thresholds_and_pictures_of_their_own(self) -> None:
        one, other = sure(drawn()), sure(drawn(present=NOBODY))
        logits, sides = (torch.cat(pair) for pair in zip(one, other, strict=True))
        found = decode_people(logits, sides, size_hw=SIZE_HW)
        assert [len(boxes) for boxes, _ in found] == [2, 0]
        assert len(decode_people(logits - 9, sides, size_hw=SIZE_HW)[0][0]) == 0
        assert len(decode_people(logits - 9, sides, size_hw=SIZE_HW, threshold=0.1)[0][0]) == 2
