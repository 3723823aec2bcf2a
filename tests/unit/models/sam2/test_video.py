"""Tracking through videos: objects together and alone, options one by one, memory, refusals."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.families.sam2 import SIDE, video_fields
from vitruvian.errors import InputError
from vitruvian.models.sam2 import history_files
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.mask_cleanup import clean_logits
from vitruvian.models.sam2.memory_bank import _closest, find_memories
from vitruvian.models.sam2.object_plans import ObjectPlan
from vitruvian.models.sam2.options import Sam2SessionOptions
from vitruvian.models.sam2.video_modeling import Sam2VideoModel, Sam2VideoSegmentationOutput
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor, Sam2VideoVideoProcessor
from vitruvian.models.sam2.video_session import CONDITIONING, TRACKED, Sam2VideoInferenceSession

SIZE = {"height": SIDE, "width": SIDE}
FRAMES = torch.randn(12, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
POINT_A, POINT_B = [[[[20, 30]]]], [[[[44, 50]]]]
ONE = [[[1]]]


def build(**fields: Any) -> Sam2VideoModel:
    torch.manual_seed(0)
    model = Sam2VideoModel(Sam2VideoConfig.from_dict(video_fields() | fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.copy_(torch.randn_like(parameter) * max(1, parameter[0].numel()) ** -0.5)
        model.mask_decoder.pred_obj_score_head.proj_out.bias.add_(1.0)  # the object is visible in most frames
    return model


MODEL = build()
PROCESSOR = Sam2VideoProcessor(video_processor=Sam2VideoVideoProcessor(size=SIZE), target_size=SIDE)
add = PROCESSOR.add_inputs_to_inference_session


def session(*, streaming: bool = False, **options: Any) -> Sam2VideoInferenceSession:
    chosen = Sam2SessionOptions.from_keywords(options)
    return Sam2VideoInferenceSession(None if streaming else FRAMES, SIDE, SIDE, options=chosen)


def track(state: Sam2VideoInferenceSession, **options: Any) -> dict[int, Sam2VideoSegmentationOutput]:
    return {output.frame_idx: output for output in MODEL.propagate_in_video_iterator(state, **options)}


def masks(output: Sam2VideoSegmentationOutput) -> Tensor:
    assert output.pred_masks is not None
    return output.pred_masks


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def clicked(**options: Any) -> Sam2VideoInferenceSession:
    """A session with a click on frame 0, already segmented."""
    state = session(**options)
    add(state, 0, 1, POINT_A, ONE)
    MODEL(state, frame_idx=0)
    return state


# ------------------------------------------------------------------------------------------------------------ tracking


def test_objects_together_are_as_each_alone() -> None:
    both, alone_a, alone_b = session(), session(), session()
    add(both, 2, [7, 3], [[POINT_A[0][0], POINT_B[0][0]]], [[[1], [1]]])
    add(alone_a, 2, 7, POINT_A, ONE)
    add(alone_b, 2, 3, POINT_B, ONE)
    for state in (both, alone_a, alone_b):
        MODEL(state, frame_idx=2)
    results = [track(state) for state in (both, alone_a, alone_b)]
    for frame, output in results[0].items():
        assert output.object_ids == [7, 3]
        close(masks(output), torch.cat([masks(results[1][frame]), masks(results[2][frame])]))


def test_outputs_have_scores_and_do_not_share_memory_with_the_session() -> None:
    state = clicked()
    output = MODEL(state, frame_idx=1)
    assert output.iou_scores.shape == output.object_score_logits.shape == (1, 1)
    stored = state.get_output(0, 1, "pred_masks", is_conditioning_frame=False)
    assert stored is not None
    output.pred_masks.zero_()
    assert stored.abs().max() > 0
    assert isinstance(MODEL(state, frame_idx=2, return_dict=False), tuple)


def test_prompts_of_two_objects_in_two_calls() -> None:
    state = session()
    add(state, 0, 1, POINT_A, ONE)
    add(state, 0, 2, POINT_B, ONE)
    together = session()
    add(together, 0, [1, 2], [[POINT_A[0][0], POINT_B[0][0]]], [[[1], [1]]])
    close(masks(MODEL(state, frame_idx=0)), masks(MODEL(together, frame_idx=0)))


def test_frames_without_memory_are_left_out() -> None:
    state = clicked()
    MODEL(state, frame_idx=1, run_mem_encoder=False)
    assert masks(MODEL(state, frame_idx=2)).isfinite().all()


def test_bfloat16_and_other_sizes() -> None:
    model = build().to(torch.bfloat16)
    state = Sam2VideoInferenceSession(FRAMES, SIDE, SIDE, dtype=torch.bfloat16)
    add(state, 0, 1, POINT_A, ONE)
    outputs = list(model.propagate_in_video_iterator(state, start_frame_idx=0, max_frame_num_to_track=3))
    assert all(masks(output).dtype == torch.bfloat16 and masks(output).isfinite().all() for output in outputs)
    wide = Sam2VideoModel(Sam2VideoConfig.from_dict(video_fields()).with_image_size((64, 96))).eval()
    state = Sam2VideoInferenceSession(torch.randn(3, 3, 64, 96), 64, 96)
    add(state, 0, 1, input_masks=torch.ones(64, 96))  # resized to the processor's size, then to the model's
    outputs = list(wide.propagate_in_video_iterator(state, start_frame_idx=0))
    assert [masks(output).shape for output in outputs] == [(1, 1, 16, 24)] * 3


def test_gradients_flow_through_memory_in_training() -> None:
    model = build().train()
    state = session()
    add(state, 0, 1, POINT_A, ONE)
    model(state, frame_idx=0)
    masks(model(state, frame_idx=1)).sum().backward()
    for part in (model.memory_encoder, model.memory_attention, model.vision_encoder):
        gradients = [value.grad for name, value in part.named_parameters() if "neck" not in name]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert not masks(model.eval()(state, frame_idx=2)).requires_grad


def test_conditioning_frames_that_are_attended_to() -> None:
    assert _closest([0, 3, 5, 7], 4, -1) == {0, 3, 5, 7}
    assert _closest([0, 3, 5, 7], 4, 2) == {3, 5}
    assert _closest([0, 3, 5, 7], 8, 2) == {5, 7}
    assert _closest([0, 3, 5, 7], 4, 3) == {3, 5, 7}
    assert _closest([0, 3, 6, 7], 4, 1) == {3}
    assert _closest([0, 1, 6, 7], 4, 1) == {6}


# ------------------------------------------------------------------------------------------------------------- options


def test_flat_memory_gives_the_same_masks() -> None:
    full, flat = session(streaming=True), session(streaming=True, keep_history=False)
    sizes = []
    for index in range(40):
        frame = FRAMES[index % len(FRAMES)]
        for state in (full, flat):
            if index == 0:
                add(state, 0, 1, POINT_A, ONE, original_size=(SIDE, SIDE))
        close(masks(MODEL(flat, frame=frame)), masks(MODEL(full, frame=frame)))
        stored = flat.output_dict_per_obj[0][TRACKED].values()
        sizes.append(sum(value.numel() for output in stored for value in output.values()))
    assert flat.num_frames == full.num_frames == 40
    assert flat.processed_frames is not None
    assert len(flat.processed_frames) == 1
    assert len(set(sizes[20:])) == 1
    assert len(flat.frames_tracked_per_obj[0]) == MODEL.config.max_object_pointers_in_encoder


def test_history_in_files_gives_the_same_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_files, "_FILE_BYTES", 1 << 17)  # several files
    full, spilled = session(streaming=True), session(streaming=True, history_folder=tmp_path)
    for state in (full, spilled):
        add(state, 0, 1, POINT_A, ONE, original_size=(SIDE, SIDE))
        for frame in FRAMES:
            MODEL(state, frame=frame)
        add(state, 3, 1, POINT_B, ONE, original_size=(SIDE, SIDE))  # in the past
    for got, want in zip(
        track(spilled, start_frame_idx=3).values(), track(full, start_frame_idx=3).values(), strict=True
    ):
        close(masks(got), masks(want))
    mapped = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else str(tmp_path)
    assert str(tmp_path) in mapped
    assert list(tmp_path.iterdir()) == []  # files without a name
    with pytest.raises(InputError, match="history_folder: expected an existing folder"):
        session(streaming=True, history_folder=tmp_path / "no")


@pytest.mark.parametrize("in_files", [False, True])
def test_a_streamed_frame_is_encoded_once_for_all_prompts(tmp_path: Path, in_files: bool) -> None:
    encoded: list[Any] = []
    hook = MODEL.vision_encoder.neck.register_forward_hook(lambda *call: encoded.append(call[-1]))
    state = session(streaming=True, history_folder=tmp_path if in_files else None)
    frame = FRAMES[:1].double()  # stored in the data type of the session
    for obj_id, point in enumerate((POINT_A, POINT_B)):
        add(state, 0, obj_id, point, ONE, original_size=(SIDE, SIDE))
        MODEL(state, frame=frame, frame_idx=0)
    assert len(encoded) == 1
    MODEL(state, frame=FRAMES[1], frame_idx=0)  # another one in its place
    assert len(encoded) == 2
    hook.remove()


def stored_bytes(value: Any, seen: dict[int, int]) -> int:
    """Bytes of the memory behind all tensors in nested containers, shared memory counted once."""
    if isinstance(value, Tensor):
        seen[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
    elif isinstance(value, dict):
        for one in value.values():
            stored_bytes(one, seen)
    elif isinstance(value, list | tuple | set):
        for one in value:
            stored_bytes(one, seen)
    return sum(seen.values())


@torch.inference_mode()
def test_bytes_of_a_session_do_not_grow() -> None:
    state = session(streaming=True, keep_history=False, corrections_as_conditioning=True, objects_start_at_prompt=True)
    add(state, 0, [1, 2], [[POINT_A[0][0], POINT_B[0][0]]], [[[1], [1]]], original_size=(SIDE, SIDE))
    sizes, entries = [], []
    for index in range(200):
        if index == 30:
            add(state, 30, 3, POINT_B, ONE, original_size=(SIDE, SIDE))
        MODEL(state, frame=FRAMES[index % len(FRAMES)])
        if index == 35:
            state.remove_object(2)
        if index in (60, 199):
            sizes.append(stored_bytes(vars(state), {}))
            entries.append([len(frames) for frames in state.frames_tracked_per_obj.values()])
    assert sizes[0] == sizes[1] > 0
    assert entries[0] == entries[1]


def test_a_conditioning_frame_holds_the_memory_of_its_object_alone() -> None:
    state = session(streaming=True, keep_history=False, corrections_as_conditioning=True)
    add(state, 0, [1, 2, 3], [[POINT_A[0][0]] * 3], [[[1]] * 3], original_size=(SIDE, SIDE))
    with torch.inference_mode():
        MODEL(state, frame=FRAMES[0])
    for value in state.output_dict_per_obj[1][CONDITIONING][0].values():
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size()


def test_sessions_can_be_copied_and_pickled() -> None:
    state = session(streaming=True)
    with torch.inference_mode():
        add(state, 0, 1, POINT_A, ONE, original_size=(SIDE, SIDE))
        MODEL(state, frame=FRAMES[0])
        want = masks(MODEL(copy.deepcopy(state), frame=FRAMES[1]))
        close(masks(MODEL(pickle.loads(pickle.dumps(state)), frame=FRAMES[1])), want)


def test_prior_logits_are_given_with_further_points() -> None:
    plain, prior = clicked(), clicked(prior_logits=True)
    before = prior.get_output(0, 0, "pred_masks")
    assert before is not None
    for state in (plain, prior):
        add(state, 0, 1, POINT_B, [[[0]]], clear_old_inputs=False)
    levels = prior.features(0, MODEL._encode_frame)
    image = [*levels[:-1], levels[-1] + MODEL.no_memory_embedding.reshape(1, -1, 1, 1)]
    points = tuple(prior.point_inputs_per_obj[0][0].values())
    with torch.no_grad():
        want = MODEL._decode_objects(image, 1, (points[0], points[1]), before.clamp(-32, 32), multimask_output=False)
    got = masks(MODEL(prior, frame_idx=0))
    close(got, want.low)
    assert not torch.allclose(got, masks(MODEL(plain, frame_idx=0)))


@pytest.mark.parametrize("segment_first", [True, False])
def test_corrections_as_conditioning_frames_are_not_undone(segment_first: bool) -> None:
    kept, undone = clicked(corrections_as_conditioning=True), clicked()
    for state in (kept, undone):
        first = track(state)
        add(state, 4, 1, POINT_B, ONE)
        corrected = masks(MODEL(state, frame_idx=4)) if segment_first else None
        again = track(state)
        is_corrected = not torch.allclose(masks(again[4]), masks(first[4]), atol=1e-4)
        assert is_corrected == (state is kept)
        if state is kept and corrected is not None:
            close(masks(again[4]), corrected)
    assert set(kept.output_dict_per_obj[0][CONDITIONING]) == {0, 4}
    assert 4 not in kept.output_dict_per_obj[0][TRACKED]


def test_independent_objects_are_not_changed_by_prompts_of_others() -> None:
    alone = track(clicked())
    for independent in (True, False):
        state = clicked(independent_objects=independent)
        track(state, max_frame_num_to_track=3)
        add(state, 4, 2, POINT_B, ONE)
        MODEL(state, frame_idx=4)
        after = track(state, start_frame_idx=5)
        same = all(torch.allclose(masks(after[i])[:1], masks(alone[i]), atol=1e-4) for i in after)
        assert same == independent


def test_a_prompt_does_not_turn_the_other_objects_around() -> None:
    def backwards(*, prompted: bool, **options: Any) -> Tensor:
        """The second object in frame 4, tracked backwards, where the first may get a prompt."""
        state = session(**options)
        add(state, 6, [1, 2], [[POINT_A[0][0], POINT_B[0][0]]], [[[1], [1]]])
        MODEL(state, frame_idx=6)
        track(state, start_frame_idx=6, max_frame_num_to_track=1, reverse=True)
        track(state, start_frame_idx=1, max_frame_num_to_track=2)  # memories before frame 4 too
        if prompted:
            add(state, 4, 1, POINT_B, ONE)
        return masks(MODEL(state, frame_idx=4, reverse=True))[1]

    want = backwards(prompted=False)
    close(backwards(prompted=True, independent_objects=True), want)
    assert not torch.allclose(backwards(prompted=True), want, atol=1e-4)


def test_objects_start_at_their_first_prompt() -> None:
    state = clicked(objects_start_at_prompt=True)
    add(state, 3, 2, POINT_B, ONE)
    results = track(state)
    alone = session()
    add(alone, 3, 2, POINT_B, ONE)
    MODEL(alone, frame_idx=3)
    assert all((masks(results[i])[1] == -1024).all() for i in range(3))
    assert set(state.output_dict_per_obj[1][CONDITIONING]) == {3}
    close(masks(results[3])[1:], masks(MODEL(alone, frame_idx=3)))
    assert all(masks(results[i])[1].max() != -1024 or results[i].object_score_logits[1] <= 0 for i in range(3, 12))


def test_padding_is_not_counted_as_points() -> None:
    alone = session()
    add(alone, 0, 1, POINT_A, ONE)
    want = masks(MODEL(alone, frame_idx=0))
    for ignore in (True, False):
        state = session(ignore_padding=ignore)
        add(state, 0, [1, 2], [[POINT_A[0][0], [[44, 50], [10, 12]]]], [[[1], [1, 0]]])
        assert torch.allclose(masks(MODEL(state, frame_idx=0))[:1], want, atol=1e-4) == ignore


def test_holes_are_filled_and_islands_removed() -> None:
    logits = torch.full((1, 1, 8, 8), 3.0)
    logits[0, 0, 2, 2], logits[0, 0, :, 6:] = -3.0, -3.0
    logits[0, 0, 7, 7] = 3.0
    filled = clean_logits(logits, 1, 1, distance=0.1)
    assert filled[0, 0, 2, 2] == pytest.approx(0.1)
    assert filled[0, 0, 7, 7] == pytest.approx(-0.1)
    assert ((filled > 0) != (logits > 0)).sum() == 2
    assert clean_logits(logits, 0, 0, distance=0.1) is logits
    plain, cleaned = clicked(), clicked(max_hole_area=20, max_sprinkle_area=20)
    want = clean_logits(masks(MODEL(plain, frame_idx=0)), 20, 20, distance=0.1)
    close(masks(MODEL(cleaned, frame_idx=0)), want)


def test_masks_and_memories_without_overlap() -> None:
    results = {}
    for options in ({}, {"non_overlapping_masks": True}, {"non_overlapping_memory": True}):
        state = session(**options)
        add(state, 0, [1, 2], input_masks=[torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)])
        MODEL(state, frame_idx=0)
        results[next(iter(options), "")] = track(state)
    for output in results["non_overlapping_masks"].values():
        (large,) = PROCESSOR.post_process_masks([masks(output)], [(150, 90)])
        assert (large.sum(dim=0) <= 1).all()
    close(masks(results["non_overlapping_memory"][0]), masks(results[""][0]))
    assert not torch.allclose(masks(results["non_overlapping_memory"][1]), masks(results[""][1]), atol=1e-4)


@pytest.mark.parametrize("limit", [None, 2])
def test_conditioning_frames_are_limited(limit: int | None) -> None:
    limited, flat = (
        session(streaming=True, corrections_as_conditioning=True, max_cond_frame_num=limit, keep_history=keep)
        for keep in (True, False)
    )
    model = build(max_object_pointers_in_encoder=4)
    sizes = []
    for index in range(60):
        for state in (limited, flat):
            if index % 3 == 0:
                add(state, index, 1, POINT_A, ONE, original_size=(SIDE, SIDE))
        frame = FRAMES[index % len(FRAMES)]
        close(masks(model(flat, frame=frame)), masks(model(limited, frame=frame)))
        sizes.append(stored_bytes(vars(flat), {}))
    attended = find_memories(limited, ObjectPlan(0, False, True, False), 60, model.config, pointers=4)
    assert len(attended.frames) == (20 if limit is None else 2) + 4  # of the last six, two are conditioning frames
    assert (sizes[-1] == sizes[-13]) == (limit is not None)
    with pytest.raises(InputError, match="max_cond_frame_num: expected at least 1, got 0"):
        session(max_cond_frame_num=0)


def test_memory_around_a_prompt_is_cleared() -> None:
    state = clicked(clear_memory_around_prompts=True)
    track(state)
    add(state, 11, 1, POINT_B, ONE)
    MODEL(state, frame_idx=11)
    assert sorted(state.output_dict_per_obj[0][TRACKED]) == [1, 2, 3, 11]


def test_objects_can_be_removed() -> None:
    state = session()
    add(state, 0, [1, 2, 3], [[POINT_A[0][0], POINT_B[0][0], [[5, 60]]]], [[[1], [1], [1]]])
    before = masks(MODEL(state, frame_idx=0))
    state.remove_object(2)
    assert state.obj_ids == [1, 3]
    assert state.obj_id_to_idx(3) == 1
    close(masks(MODEL(state, frame_idx=0)), before[[0, 2]])
    assert masks(MODEL(state, frame_idx=1)).shape[0] == 2
    with pytest.raises(InputError, match="got 2"):
        state.remove_object(2)


def test_prompts_can_be_removed() -> None:
    state = clicked(corrections_as_conditioning=True, objects_start_at_prompt=True)
    before = track(state)
    add(state, 4, 1, POINT_B, ONE)
    MODEL(state, frame_idx=4)
    assert not torch.allclose(masks(track(state)[6]), masks(before[6]), atol=1e-4)
    state.remove_prompts(1, 4)
    after = track(state)
    for index, output in before.items():
        close(masks(after[index]), masks(output))
    state.remove_prompts(1, 0)
    assert (masks(MODEL(state, frame_idx=3)) == -1024).all()
    with pytest.raises(InputError, match=r"expected one of \[1\], got 7"):
        state.remove_prompts(7, 0)


@pytest.mark.parametrize("ids", [np.int64(4), np.array([4]), [np.int32(4)], torch.tensor(4), torch.tensor([4]), (4,)])
def test_ids_and_labels_of_any_integer_type(ids: Any) -> None:
    state, plain = session(), session()
    add(state, 0, ids, POINT_A, [[[True]]])
    add(plain, 0, 4, POINT_A, ONE)
    assert [(one, type(one)) for one in state.obj_ids] == [(4, int)]
    close(masks(MODEL(state, frame_idx=0)), masks(MODEL(plain, frame_idx=0)))
    add(state, 1, ids, input_masks=torch.ones(SIDE, SIDE))
    assert state.obj_ids == [4]


def test_the_list_of_the_caller_is_not_changed() -> None:
    state, ids = session(), [4, 2]
    add(state, 0, ids, [[POINT_A[0][0], POINT_B[0][0]]], [[[1], [1]]])
    MODEL(state, frame_idx=0)
    assert ids == [4, 2]


@pytest.mark.parametrize("limit", [1, 2])
def test_few_object_pointers(limit: int) -> None:
    model, state = build(max_object_pointers_in_encoder=limit), session()
    add(state, 0, 1, POINT_A, ONE)
    for output in model.propagate_in_video_iterator(state, start_frame_idx=0):
        assert masks(output).isfinite().all()
        assert output.object_score_logits is not None
        assert output.object_score_logits.isfinite().all()


def test_features_that_were_used_last_are_cached() -> None:
    state, encoded = session(), []

    def encode(pixels: Tensor) -> list[Tensor]:
        encoded.append(pixels)
        return [pixels]

    for index in (5, 4, 4, 3, 3):  # backwards
        assert torch.equal(state.features(index, encode)[0][0], FRAMES[index])
    assert len(encoded) == 3


def test_masks_and_memories_are_on_the_device_of_the_state() -> None:
    state = Sam2VideoInferenceSession(FRAMES, SIDE, SIDE, inference_state_device="meta")
    add(state, 0, 1, input_masks=torch.ones(SIDE, SIDE))
    with pytest.raises((NotImplementedError, RuntimeError)):  # masks of another device cannot be read back here
        MODEL(state, frame_idx=0)
    stored = state.output_dict_per_obj[0][CONDITIONING][0]
    on_state = {name for name, value in stored.items() if value.device.type == "meta"}
    assert on_state == {"pred_masks", "maskmem_features"}


# ---------------------------------------------------------------------------------------------------- videos, refusals


@pytest.mark.parametrize("form", ["array", "tensor", "pil", "list"])
def test_sessions_from_videos_of_any_form(form: str) -> None:
    clip = np.random.default_rng(0).integers(0, 256, (3, 40, 50, 3), dtype=np.uint8)
    video: Any = {
        "array": clip,
        "tensor": torch.from_numpy(clip).permute(0, 3, 1, 2),
        "pil": [Image.fromarray(frame) for frame in clip],
        "list": list(clip),
    }[form]
    state = PROCESSOR.init_video_session(video)
    assert (state.num_frames, state.video_height, state.video_width) == (3, 40, 50)
    assert state.get_frame(2).shape == (3, SIDE, SIDE)
    prepared = PROCESSOR.video_processor(videos=[video, video], return_tensors="pt")
    assert prepared["pixel_values_videos"].shape == (2, 3, 3, SIDE, SIDE)
    logits = torch.randn(1, 1, 16, 16)
    large = PROCESSOR.video_processor.post_process_masks([logits], [(40, 50)], [(64, 32)], binarize=False)
    assert large[0].shape == (1, 1, 40, 50)


def test_options_reach_the_image_and_the_video_processor(tmp_path: Path) -> None:
    Sam2VideoProcessor().save_pretrained(tmp_path)
    opened = Sam2VideoProcessor.from_pretrained(tmp_path, do_normalize=False, target_size=64)
    assert not opened.image_processor.do_normalize
    assert not opened.video_processor.do_normalize
    assert opened.target_size == 64


def test_processor_files(tmp_path: Path) -> None:
    PROCESSOR.save_pretrained(tmp_path)
    names = {"preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert Sam2VideoProcessor.from_pretrained(tmp_path) == PROCESSOR
    from vitruvian import AutoVideoProcessor

    assert AutoVideoProcessor.from_pretrained(tmp_path) == PROCESSOR.video_processor


def test_mistakes_are_refused() -> None:
    with pytest.raises(InputError, match="at least one object"):
        MODEL(session(), frame_idx=0)
    streamed = session(streaming=True)
    with pytest.raises(InputError, match="at least one object"):
        MODEL(streamed, frame=FRAMES[0])
    assert streamed.num_frames is None
    with pytest.raises(InputError, match="0 to 11, got 12"):
        add(session(), 12, 1, POINT_A, ONE)
    with pytest.raises(InputError, match="got neither"):
        MODEL(clicked())
    with pytest.raises(InputError, match="which has 12, got 20"):
        MODEL(clicked(), frame_idx=20)
    with pytest.raises(InputError, match=r"\[2, 64, 64\]"):
        add(session(), 0, 1, input_masks=torch.zeros(2, SIDE, SIDE))
    with pytest.raises(InputError, match="prior_logits"):
        PROCESSOR.init_video_session(prior_logit=True)
    with pytest.raises(InputError, match="got a path"):
        PROCESSOR.init_video_session("clip.mp4")
    flat = session(streaming=True, keep_history=False)
    add(flat, 0, 1, POINT_A, ONE, original_size=(SIDE, SIDE))
    for frame in FRAMES[:3]:
        MODEL(flat, frame=frame)
    for prompts in ({"input_points": POINT_A, "input_labels": ONE}, {"input_masks": torch.ones(SIDE, SIDE)}):
        with pytest.raises(InputError, match=r"expected a frame from 2 on, .* got 1\. Start .* keep_history=True"):
            add(flat, 1, 1, **prompts)
        for frame_idx in (2, 3):
            add(flat, frame_idx, 1, **prompts)
    late = clicked()
    late.obj_id_to_idx(9)
    with pytest.raises(InputError, match="object 9"):
        MODEL(late, frame_idx=1)


def test_image_pipelines_open_checkpoints_of_videos(tmp_path: Path) -> None:
    import vitruvian
    from vitruvian.cli.checkpoints import describe_checkpoint

    MODEL.save_pretrained(tmp_path)
    images = vitruvian.Sam2ImageProcessor(size=SIZE, mask_size={"height": SIDE // 4, "width": SIDE // 4})
    Sam2VideoProcessor(images, PROCESSOR.video_processor).save_pretrained(tmp_path)
    assert isinstance(vitruvian.AutoProcessor.from_pretrained(tmp_path), Sam2VideoProcessor)
    assert isinstance(vitruvian.AutoImageProcessor.from_pretrained(tmp_path), vitruvian.Sam2ImageProcessor)
    result = vitruvian.pipeline("segment", str(tmp_path))(Image.new("RGB", (40, 30)), points=[[9, 7]])
    assert result.masks.shape[-2:] == (30, 40)
    facts = describe_checkpoint(str(tmp_path))
    assert facts["class"] == "Sam2VideoModel"
    assert {"segment", "mask-generation"} & set(facts["commands"])
