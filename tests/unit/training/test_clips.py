"""Training on clips: simulated prompts, gradients through the memory, and a clip that is learned by heart."""

from __future__ import annotations

import pytest
import torch

from tests.families.sam2 import video_fields
from vitruvian.errors import InputError
from vitruvian.losses.prompted_masks import MaskPrediction, clip_loss, prompted_mask_loss
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.training.clips import ClipObjective, PromptSimulation, error_points, noisy_boxes, random_points
from vitruvian.training.synthetic.moving_shapes import Clips, draw_clips

SIDE = 64


def build() -> Sam2VideoModel:
    torch.manual_seed(0)
    fields = video_fields(SIDE) | {
        "memory_attention_dropout": 0.0,
        "memory_attention_rope_dropout": 0.0,
        "memory_fuser_layer_scale_init_value": 0.1,
        "num_maskmem": 3,
        "max_object_pointers_in_encoder": 3,
    }
    model = Sam2VideoModel(Sam2VideoConfig.from_dict(fields)).train()
    with torch.no_grad():
        for parameter in model.parameters():  # layers are too narrow for weights of 0.02
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * max(1, parameter[0].numel()) ** -0.5)
    return model


def clips(length: int = 3, seed: int = 0, count: int = 1) -> Clips:
    drawn = draw_clips(torch.Generator().manual_seed(seed), count=count, size_hw=(SIDE, SIDE), length=length)
    return drawn._replace(frames=(drawn.frames - 0.5) / 0.25)


def clip(length: int = 3, seed: int = 0) -> Clips:
    return Clips(*(part[0] for part in clips(length, seed)))


@pytest.mark.parametrize(
    "prompts",
    [
        PromptSimulation(mask=1.0, box=0.0, clicks=1),
        PromptSimulation(mask=0.0, box=1.0, clicks=2, clicks_from_truth=1.0),
        PromptSimulation(mask=0.0, box=0.0, corrected_frames=0),
    ],
)
def test_gradients_of_a_clip(prompts: PromptSimulation) -> None:
    model, data = build(), clip()
    loss = ClipObjective(model, prompts)(data.frames, data.masks, torch.Generator().manual_seed(3))
    loss.total.backward()
    assert {"focal", "dice", "iou", "object_score"} == set(loss.terms)
    for part in (model.memory_encoder, model.memory_attention, model.object_pointer_proj, model.vision_encoder.neck):
        gradients = [value.grad for value in part.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
        assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize("kind", ["mask", "box"])
def test_several_clips_are_as_good_as_one_after_another(kind: str) -> None:
    model, data = build(), clips(count=3)
    prompts = PromptSimulation(mask=float(kind == "mask"), box=float(kind == "box"), box_noise=0.0, corrected_frames=0)
    objective = ClipObjective(model, prompts)
    together = objective(data.frames, data.masks)
    apart = [objective(frames, masks) for frames, masks in zip(*data, strict=True)]
    torch.testing.assert_close(together.total, sum(one.total for one in apart) / 3)
    weight = model.memory_encoder.projection.weight
    (whole,) = torch.autograd.grad(together.total, weight)
    (want,) = torch.autograd.grad(sum(one.total for one in apart) / 3, weight)
    assert (whole - want).norm() < 0.01 * want.norm()  # memories are rounded to bfloat16


def test_corrections_are_predictions_and_make_conditioning_frames() -> None:
    model, data = build(), clip()
    calls: list[tuple[int, int]] = []
    segment = model.segment_with_corrections

    def count(session, frame, correct):  # type: ignore[no-untyped-def]
        found = segment(session, frame, correct)
        calls.append((len(found), len(session.output_dict_per_obj[0]["cond_frame_outputs"])))
        return found

    model.segment_with_corrections = count  # type: ignore[method-assign]
    prompts = PromptSimulation(mask=0.0, box=0.0, corrected_frames=2, clicks=3)
    ClipObjective(model, prompts)(data.frames, data.masks, torch.Generator().manual_seed(0))
    assert sorted(several for several, _ in calls) == [1, 4, 4]
    assert calls[0] == (4, 1)
    assert calls[-1][1] == 2


def test_a_clip_is_learned_by_heart() -> None:
    model, data = build(), clip(length=2, seed=1)
    objective = ClipObjective(model, PromptSimulation(mask=0.0, box=1.0, box_noise=0.0, corrected_frames=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, dice = torch.Generator().manual_seed(0), []
    for _ in range(30):
        loss = objective(data.frames, data.masks, generator)
        optimizer.zero_grad()
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dice.append(loss.terms["dice"].item() / 2)
    assert dice[0] > 0.6
    assert min(dice[-5:]) < 0.25


def test_loss_of_a_clip_is_the_sum_over_its_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(3, 8, 8, generator=generator) > 0.5
    logits = [torch.randn(count, 8, 8, generator=generator) for count in (3, 1, 0)]
    ious = [torch.rand(count, generator=generator) for count in (3, 1, 0)]
    scores = torch.randn(3, 1, generator=generator)
    found = clip_loss([(MaskPrediction(logits, ious, scores), truth)] * 2)
    want = sum(
        prompted_mask_loss(
            logits[n][None, None], ious[n][None, None], scores[None, n : n + 1], truth[None, n : n + 1]
        ).total
        for n in (0, 1)
    )
    torch.testing.assert_close(found.total, 2 * want / 3)
    with pytest.raises(InputError, match="got none"):
        clip_loss([(MaskPrediction(logits[2:], ious[2:], scores[2:]), truth[2:])])


def test_points_on_errors() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.zeros(3, 8, 8, dtype=torch.bool)
    truth[:, 2:6, 2:6] = True
    predicted = truth.clone()
    predicted[0, 2, 3] = False  # missing
    predicted[1, 7, 1] = True  # too much
    points, labels = error_points(predicted, truth, generator)
    assert points[:2].tolist() == [[3.5, 2.5], [1.5, 7.5]]
    assert labels.tolist() == [1, 0, 0]  # the last has no errors: a point off the object
    inside = torch.stack([random_points(truth[:1], generator)[0] for _ in range(50)])
    assert inside.min() >= 2.5
    assert inside.max() <= 5.5
    truth[1] = False
    truth[1, 0, 3:] = True
    assert noisy_boxes(truth[:2], 0.0, generator).tolist() == [[2, 2, 6, 6], [3, 0, 8, 1]]
    moved = noisy_boxes(truth, 0.1, generator)
    assert moved[0].tolist() != [2, 2, 6, 6]
    assert (moved >= 0).all()
    assert (moved <= 8).all()


def test_clips_that_cannot_be_trained_on() -> None:
    objective, data = ClipObjective(build()), clip()
    with pytest.raises(InputError, match=r"\[T, O, H, W\]"):
        objective(data.frames, data.masks[:1])
    with pytest.raises(InputError, match="visible in the first frame"):
        objective(data.frames, torch.zeros_like(data.masks))
    with pytest.raises(InputError, match="mask: expected a probability"):
        PromptSimulation(mask=1.5)
    with pytest.raises(InputError, match="at most 1"):
        PromptSimulation(mask=0.7, box=0.7)


def test_shapes_cross_each_other() -> None:
    drawn = clips(length=9, seed=4, count=32)
    areas = drawn.masks.flatten(3).sum(3)  # [B, T, O]
    hidden = areas[:, 2:7].amin(1) < 0.8 * areas[:, 0]  # [B, O]
    assert hidden[:, 0].float().mean() > 0.7  # behind the second, halfway
    assert (areas[:, 0] > 0).all()
    assert (drawn.masks.sum(2) <= 1).all()
    assert draw_clips(torch.Generator().manual_seed(4), count=32, size_hw=(SIDE, SIDE), length=9).masks.equal(
        drawn.masks
    )
