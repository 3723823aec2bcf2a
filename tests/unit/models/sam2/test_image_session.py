"""A session: one encoding, many prompts, undo, several objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.families.sam2 import SIDE, tiny
from vitruvian.errors import InputError
from vitruvian.models.sam2.image_session import Sam2Session
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.processing import Sam2ImageProcessor, Sam2Processor

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 80, 3), dtype=np.uint8))


@pytest.fixture
def session() -> Sam2Session:
    torch.manual_seed(0)
    config = tiny()
    config.initializer_range = 0.3
    processor = Sam2Processor(Sam2ImageProcessor(size={"height": SIDE, "width": SIDE}))
    return Sam2Session(Sam2Model(config).eval(), processor).set_image(IMAGE)


def test_each_prompt_costs_the_decoder_only(session: Sam2Session) -> None:
    calls: list[str] = []
    session.model.vision_encoder.backbone.register_forward_hook(lambda *_: calls.append("encoder"))
    session.model.mask_decoder.register_forward_hook(lambda *_: calls.append("decoder"))
    session.set_image(IMAGE)
    session.click(10, 20)
    session.click(30, 20, positive=False)
    session.box(5, 5, 60, 35)
    session.undo()
    assert calls == ["encoder", "decoder", "decoder", "decoder"]


def test_a_prediction_is_the_model_s(session: Sam2Session) -> None:
    found = session.predict(points=[[[10, 20]], [[50, 30]]], labels=[[1], [1]])
    inputs = session.processor(
        images=IMAGE, input_points=[[[[10, 20]], [[50, 30]]]], input_labels=[[[1], [1]]], return_tensors="pt"
    )
    with torch.no_grad():
        out = session.model(**inputs)
    assert found.masks.shape == (2, 3, 40, 80)
    assert torch.equal(found.masks, session.processor.post_process_masks(out.pred_masks, [(40, 80)])[0])
    torch.testing.assert_close(found.scores, out.iou_scores[0])
    torch.testing.assert_close(found.object_scores, out.object_score_logits[0, :, 0].sigmoid())
    best = found.best()
    assert best.masks.shape == (2, 1, 40, 80)
    assert torch.equal(best.scores[:, 0], found.scores.amax(dim=1))


def test_later_steps_correct_the_mask_there_is(session: Sam2Session) -> None:
    first = session.click(10, 20)
    second = session.click(30, 25, positive=False)
    want = session.predict(points=[[[10, 20], [30, 25]]], labels=[[1, 0]], masks=first.logits[:, 0], multimask=False)
    torch.testing.assert_close(second.logits, want.logits)
    third = session.box(5, 5, 60, 35)
    want = session.predict(
        points=[[[10, 20], [30, 25]]],
        labels=[[1, 0]],
        boxes=[[5, 5, 60, 35]],
        masks=second.logits[:, 0],
        multimask=False,
    )
    torch.testing.assert_close(third.logits, want.logits)


def test_only_a_first_click_is_ambiguous(session: Sam2Session) -> None:
    asked: list[bool] = []
    session.model.register_forward_pre_hook(
        lambda model, given, named: asked.append(named["multimask_output"]), with_kwargs=True
    )
    session.click(10, 20)
    session.click(30, 20)
    session.next_object()
    session.box(5, 5, 60, 35)
    session.next_object()
    session.click(10, 20)
    assert asked == [True, False, False, True]


def test_undo_goes_back_step_by_step(session: Sam2Session) -> None:
    first = session.click(10, 20)
    second = session.click(30, 25, positive=False)
    session.click(50, 25)
    back = session.undo()
    assert back is not None
    assert torch.equal(back.logits, second.logits)
    again = session.undo()
    assert again is not None
    assert torch.equal(again.logits, first.logits)
    torch.testing.assert_close(session.click(30, 25, positive=False).logits, second.logits)
    session.undo()
    assert session.undo() is None
    with pytest.raises(InputError, match="no step"):
        session.undo()


def test_several_objects(session: Sam2Session) -> None:
    first = session.click(10, 20)
    with pytest.raises(InputError, match="no mask yet"):
        session.next_object() and session.next_object()
    second = session.box(20, 5, 70, 35)
    assert torch.equal(session.masks, torch.stack([first.masks[0, 0], second.masks[0, 0]]))
    session.undo()
    session.undo()  # the first object's only step, although the second had begun
    assert session.object_index == 0
    assert not session.steps


def test_start_from_a_mask(session: Sam2Session) -> None:
    mask = torch.zeros(40, 80, dtype=torch.bool)
    mask[10:30, 20:60] = True
    found = session.mask(mask)
    want = session.predict(masks=mask[None], multimask=False)
    torch.testing.assert_close(found.logits, want.logits)
    with pytest.raises(InputError, match=r"\[h, w\]"):
        session.mask(mask[None])


def test_clear_and_new_images_forget(session: Sam2Session) -> None:
    session.click(10, 20)
    session.clear()
    with pytest.raises(InputError, match="none yet"):
        _ = session.masks
    session.click(10, 20)
    session.set_image(IMAGE.resize((30, 30)))
    assert session.prediction is None
    assert session.click(10, 20).masks.shape[-2:] == (30, 30)


def test_bad_prompts_are_refused_and_change_nothing(session: Sam2Session) -> None:
    session.click(10, 20)
    for name, bad in (
        ("points", lambda: session.click(100, 20)),
        ("boxes", lambda: session.box(30, 5, 20, 35)),
        ("masks", lambda: session.predict(boxes=[[1, 2, 30, 30]], masks=torch.ones(2, 8, 8))),
    ):
        with pytest.raises(InputError, match=f"^{name}: "):
            bad()
    assert len(session.steps) == 1
    with pytest.raises(InputError, match="set_image"):
        Sam2Session(session.model, session.processor).click(1, 1)
    with pytest.raises(InputError, match="one image"):
        session.set_image([IMAGE, IMAGE])
