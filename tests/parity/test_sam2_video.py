"""SAM 2 for videos against the reference, live: the same weights, the same masks."""

from __future__ import annotations

import copy
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from tests.families.sam2 import SIDE, video_fields
from tests.parity.test_sam2 import close, randomise
from vitruvian.models.sam2.video_modeling import Sam2VideoModel
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor, Sam2VideoVideoProcessor
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession

FRAMES = 30


class Pair:
    """A session of the reference and one of ours, driven alike; every result is compared."""

    def __init__(self, tmp_path: Path, *, streaming: bool = False, **fields: Any) -> None:
        transformers = pytest.importorskip("transformers")
        config = transformers.Sam2VideoConfig(**copy.deepcopy(video_fields(SIDE) | fields))
        self.theirs = randomise(transformers.Sam2VideoModel(config))
        with torch.no_grad():  # about a third of the frames have no object
            self.theirs.mask_decoder.pred_obj_score_head.proj_out.weight.mul_(4)
        self.theirs.save_pretrained(tmp_path)
        self.ours = Sam2VideoModel.from_pretrained(tmp_path)
        self.frames = torch.randn(FRAMES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
        options: dict[str, Any] = {"video_height": SIDE, "video_width": SIDE, "dtype": torch.float32}
        video = None if streaming else self.frames
        self.their_session = transformers.Sam2VideoInferenceSession(video=video, **options)
        self.session = Sam2VideoInferenceSession(video=video, **options)
        size = {"height": SIDE, "width": SIDE}
        self.processor = Sam2VideoProcessor(video_processor=Sam2VideoVideoProcessor(size=size), target_size=SIDE)

    def add(self, frame_idx: int, obj_ids: list[int], **prompts: Any) -> None:
        self.processor.add_inputs_to_inference_session(self.session, frame_idx, obj_ids, **prompts)
        for obj_id in obj_ids:  # what the processor of the reference, which needs torchvision, would store
            index = self.their_session.obj_id_to_idx(obj_id)
            mine = self.session.obj_id_to_idx(obj_id)
            if frame_idx in self.session.point_inputs_per_obj[mine]:
                self.their_session.add_point_inputs(
                    index, frame_idx, self.session.point_inputs_per_obj[mine][frame_idx]
                )
                self.their_session.remove_mask_inputs(index, frame_idx)
            else:
                self.their_session.add_mask_inputs(index, frame_idx, self.session.mask_inputs_per_obj[mine][frame_idx])
                self.their_session.remove_point_inputs(index, frame_idx)
        self.their_session.obj_with_new_inputs = list(obj_ids)

    def compare(self, got: Any, want: Any) -> None:
        assert (got.frame_idx, got.object_ids) == (want.frame_idx, want.object_ids)
        close(got.pred_masks, want.pred_masks, 1e-4)
        close(got.object_score_logits, want.object_score_logits, 1e-4)

    def frame(self, **options: Any) -> None:
        self.compare(self.ours(self.session, **options), self.theirs(self.their_session, **options))

    def propagate(self, **options: Any) -> int:
        both = zip(
            self.ours.propagate_in_video_iterator(self.session, **options),
            self.theirs.propagate_in_video_iterator(self.their_session, **options),
            strict=True,
        )
        count = 0
        for got, want in both:
            self.compare(got, want)
            count += 1
        return count


@pytest.mark.reference
def test_outputs_that_are_computed_when_they_are_read(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.add(0, [1], input_points=[[[[20, 30]]]], input_labels=[[[1]]])
    pair.frame(frame_idx=0)
    pair.add(1, [2], input_masks=[torch.ones(SIDE, SIDE).tril()])
    pair.frame(frame_idx=1)
    pair.propagate(start_frame_idx=2, max_frame_num_to_track=0)
    for index, frame, conditioning in ((0, 0, True), (1, 1, True), (0, 2, False)):
        for name in ("pred_masks", "high_res_masks", "maskmem_pos_enc", "object_pointer"):
            want = pair.their_session.get_output(index, frame, name, conditioning)
            close(pair.session.get_output(index, frame, name, conditioning), want, 1e-4)
    assert pair.session.get_output(0, 5, "high_res_masks") is None


SAM_2_0 = {"enable_occlusion_spatial_embedding": False, "enable_temporal_pos_encoding_for_object_pointers": False}


@pytest.mark.reference
@pytest.mark.parametrize("fields", [{}, SAM_2_0, {"max_cond_frame_num": 2, "num_maskmem": 3}])
def test_two_objects_corrections_and_both_directions(tmp_path: Path, fields: dict[str, Any]) -> None:
    pair = Pair(tmp_path, **fields)
    pair.add(10, [5, 2], input_points=[[[[20, 30]], [[44, 50]]]], input_labels=[[[1], [1]]])
    pair.frame(frame_idx=10)
    assert pair.propagate() == FRAMES - 10
    assert pair.propagate(reverse=True) == 11
    pair.add(15, [2], input_points=[[[[40, 20], [10, 12]]]], input_labels=[[[1, 0]]])
    pair.frame(frame_idx=15)
    pair.propagate(start_frame_idx=16)
    mask = torch.zeros(SIDE, SIDE)
    mask[10:40, 20:50] = 1
    pair.add(20, [5], input_masks=[mask])
    pair.frame(frame_idx=20)
    pair.propagate(start_frame_idx=20, max_frame_num_to_track=5)
    pair.propagate(start_frame_idx=25, max_frame_num_to_track=8, reverse=True)


@pytest.mark.reference
def test_stream_with_a_box_a_mask_and_a_later_object(tmp_path: Path) -> None:
    pair = Pair(tmp_path, streaming=True)
    pair.add(0, [1], input_boxes=[[[10, 12, 40, 50]]])
    for index in range(6):
        pair.frame(frame=pair.frames[index])
    pair.add(6, [2], input_masks=[torch.ones(SIDE, SIDE)])
    for index in range(6, FRAMES):
        pair.frame(frame=pair.frames[index])


def random_prompts(random: Random, objects: int) -> dict[str, Any]:
    def point() -> list[float]:
        return [random.uniform(0, SIDE), random.uniform(0, SIDE)]

    kind = random.choice(["points", "boxes", "both", "masks"])
    if kind == "masks":
        generator = torch.Generator().manual_seed(random.randrange(1000))
        return {"input_masks": [torch.rand(SIDE, SIDE, generator=generator) > 0.5 for _ in range(objects)]}
    prompts: dict[str, Any] = {}
    if kind != "boxes":
        counts = [random.randint(1, 3) for _ in range(objects)]
        prompts["input_points"] = [[[point() for _ in range(count)] for count in counts]]
        prompts["input_labels"] = [[[random.randint(0, 1) for _ in range(count)] for count in counts]]
        prompts["clear_old_inputs"] = kind == "both" or random.random() < 0.5
    if kind != "points":
        corners = [point() for _ in range(objects)]
        prompts["input_boxes"] = [[[x, y, x + 20, y + 10] for x, y in corners]]
    return prompts


@pytest.mark.reference
@pytest.mark.parametrize("seed", range(8))
def test_random_calls(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    pair = Pair(tmp_path, **random.choice([{}, SAM_2_0, {"max_cond_frame_num": 2}, {"num_maskmem": 1}]))
    frames = 12
    for _ in range(8):
        unread = set(pair.their_session.obj_with_new_inputs)  # the reference would forget them
        ids = random.sample([3, 7, 1, 12], random.randint(1, 3))
        action = random.choice(["add", "forward", "propagate", "propagate", "reset"])
        if not pair.session.obj_ids or (action == "add" and unread <= set(ids)):
            frame_idx = random.randrange(frames)
            pair.add(frame_idx, ids, **random_prompts(random, len(ids)))
            pair.frame(frame_idx=frame_idx)
        elif action == "forward":
            pair.frame(frame_idx=random.randrange(frames), reverse=random.random() < 0.3)
        elif action == "propagate":
            start, count = random.randrange(frames), random.randint(0, 6)
            pair.propagate(start_frame_idx=start, max_frame_num_to_track=count, reverse=random.random() < 0.4)
        elif action == "reset":
            name = random.choice(["reset_tracking_data", "reset_inference_session"])
            getattr(pair.session, name)()
            getattr(pair.their_session, name)()
        for index, outputs in pair.their_session.output_dict_per_obj.items():
            assert {kind: sorted(of) for kind, of in pair.session.output_dict_per_obj[index].items()} == {
                kind: sorted(of) for kind, of in outputs.items()
            }
        assert pair.session.frames_tracked_per_obj == pair.their_session.frames_tracked_per_obj


@pytest.mark.reference
def test_checkpoints_open_in_both_and_the_image_model_opens_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pair = Pair(tmp_path / "theirs")
    pair.ours.save_pretrained(tmp_path / "ours")
    again = transformers.Sam2VideoModel.from_pretrained(tmp_path / "ours").eval()
    for name, value in pair.theirs.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    from vitruvian import AutoModel, AutoModelForMaskGeneration, Sam2Model

    assert isinstance(AutoModel.from_pretrained(tmp_path / "ours"), Sam2VideoModel)
    image = AutoModelForMaskGeneration.from_pretrained(tmp_path / "ours")
    assert isinstance(image, Sam2Model)
    close(image.get_image_embeddings(pair.frames[:1])[-1], pair.ours.get_image_embeddings(pair.frames[:1])[-1])
