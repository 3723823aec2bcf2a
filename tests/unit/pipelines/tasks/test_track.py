"""Objects tracked through videos: prompts in any frame, corrections, objects that come and go, bad input."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.pipelines import parts_of, sample_image, write_clip
from vitruvian import PromptError, Sam2SessionOptions, Sam2VideoModel, Sam2VideoProcessor, TrackPrompt, pipeline
from vitruvian.errors import InputError
from vitruvian.pipelines import Failure
from vitruvian.pipelines.tasks.track import TrackOptions
from vitruvian.results import Track

HW = (40, 56)
FRAMES = [sample_image(number, HW) for number in range(6)]
POINT = TrackPrompt(object_id=7, points=[[20, 15]])
BOX = TrackPrompt(object_id=2, frame=2, box=[5, 6, 40, 30])


@pytest.fixture(scope="module")
def parts() -> tuple[Sam2VideoModel, Sam2VideoProcessor]:
    model, processor = parts_of("track")
    return model, processor


@pytest.fixture
def track(parts: tuple[Sam2VideoModel, Sam2VideoProcessor]) -> Any:
    return pipeline("track", parts[0], processor=parts[1], device="cpu")


def same(one: Track, other: Track) -> None:
    assert one.object_ids.tolist() == other.object_ids.tolist()
    assert (one.masks == other.masks).all()
    np.testing.assert_allclose(one.presence, other.presence, atol=1e-5)


def test_results_are_those_of_a_session(parts: tuple[Sam2VideoModel, Sam2VideoProcessor], track: Any) -> None:
    model, processor = parts
    options = {field.name: getattr(TrackOptions(), field.name) for field in dataclasses.fields(Sam2SessionOptions)}
    session = processor.init_video_session(dtype=torch.float32, **options | {"keep_history": True})
    results = list(track(FRAMES, prompts=[POINT, BOX]))
    for number, (image, result) in enumerate(zip(FRAMES, results, strict=True)):
        for prompt in (POINT, BOX):
            if prompt.frame == number:
                prompt.add_to(session, processor, number, HW)
        frame = processor.video_processor(image[None], return_tensors="pt")["pixel_values_videos"][0, 0]
        with torch.inference_mode():
            out = model(session, frame=frame)
        (masks,) = processor.post_process_masks([out.pred_masks], [HW])
        assert result.frame == number
        assert result.object_ids.tolist() == out.object_ids == ([7] if number < 2 else [7, 2])
        assert (result.masks == masks[:, 0].numpy()).all()
        np.testing.assert_allclose(result.scores, out.iou_scores[:, 0].numpy(), atol=1e-5)
        np.testing.assert_allclose(result.presence, out.object_score_logits[:, 0].sigmoid().numpy(), atol=1e-5)
    assert any(result.masks.any() for result in results)


def test_sources_and_both_ways_to_run(track: Any, tmp_path: Path) -> None:
    wanted = list(track(FRAMES, prompts=POINT))
    for source in (np.stack(FRAMES), (image for image in FRAMES)):
        for one, other in zip(track(source, prompts=POINT, interactive=False), wanted, strict=True):
            same(one, other)
    clip = write_clip(tmp_path / "clip.mp4", FRAMES)
    results = track(clip, prompts=POINT)
    assert [result.frame for result in results] == list(range(6))
    assert results.video is not None
    (single,) = track(FRAMES[0], prompts=POINT)
    same(single, wanted[0])


def test_objects_are_corrected_added_and_removed_during_a_run(track: Any) -> None:
    plain = list(track(FRAMES, prompts=POINT))
    with track(FRAMES, prompts=[POINT]) as results:
        for number, result in enumerate(results):
            if number == 1:
                corrected = results.add(TrackPrompt(object_id=7, frame=1, points=[[40, 30]], labels=[0]))
                assert corrected.frame == 1
                assert (corrected.masks != plain[1].masks).any()
                again = results.add(TrackPrompt(object_id=3, frame=1, mask=np.arange(HW[1]) < np.full(HW, 20)))
                assert again.object_ids.tolist() == [7, 3]
                assert (again.of(7) == corrected.of(7)).all()
                assert again.of(3)[:, :19].all()
                assert results.add(TrackPrompt(object_id=9, frame=4, points=[[9, 9]])) is None
            if number == 3:
                results.remove(3)
            wanted = {0: [7], 1: [7], 2: [7, 3], 3: [7, 3], 4: [7, 9], 5: [7, 9]}[number]
            assert result.object_ids.tolist() == wanted
        assert results.object_ids == [7, 9]


def test_a_frame_without_objects_has_no_masks(track: Any) -> None:
    results = track(FRAMES, prompts=[])
    assert len(next(results)) == 0
    assert len(results.add(dataclasses.replace(POINT, frame=0))) == 1
    assert next(results).object_ids.tolist() == [7]
    results.remove(7)
    assert len(next(results)) == 0


@pytest.mark.parametrize(("every", "counts"), [(0, [0, 1, 1]), (2, [0, 0, 2])])
def test_people_are_tracked_from_a_detector(track: Any, every: int, counts: list[int]) -> None:
    seen: list[int] = []

    def detect(image: np.ndarray) -> list[list[float]]:
        seen.append(len(seen))
        number = next(number for number, frame in enumerate(FRAMES) if (frame == image).all())
        return [[4.0, 5.0, 30.0, 35.0], [35.0, 5.0, 50.0, 35.0]][: min(number, 2)]

    results = list(track(FRAMES, detect=detect, detect_every=every, max_people=2))
    assert [len(result) for result in results[:3]] == counts
    assert len(seen) == (2 if every == 0 else 3)
    assert results[2].object_ids.tolist() == list(range(1, counts[2] + 1))


def test_a_tracked_person_is_not_added_again(track: Any) -> None:
    box = list(track(FRAMES, prompts=POINT))[2].boxes_xyxy[0].tolist()
    assert box[2] - box[0] > 10
    for boxes, ids in (([box], [7]), ([box, [0, 0, 6, 6]], [7, 8])):
        found = iter([[], boxes, []])
        results = list(track(FRAMES, prompts=POINT, detect=lambda _, found=found: next(found), detect_every=2))
        assert results[-1].object_ids.tolist() == ids


def test_points_are_added_to_those_of_the_frame(track: Any) -> None:
    both = next(track(FRAMES, prompts=dataclasses.replace(POINT, points=[[20, 15], [50, 35]])))
    results = track(FRAMES, prompts=POINT, prior_logits=False)
    first = next(results)
    added = results.add(dataclasses.replace(POINT, points=[[50, 35]]))
    same(added, both)
    assert (first.masks != both.masks).any()
    replaced = results.add(dataclasses.replace(POINT, points=None, box=[5, 6, 40, 30]))
    same(replaced, next(track(FRAMES, prompts=dataclasses.replace(POINT, points=None, box=[5, 6, 40, 30]))))


def test_memory_is_constant_without_history(track: Any) -> None:
    def frames() -> Iterator[np.ndarray]:
        for number in range(40):
            yield FRAMES[number % 6]

    def stored(session: Any) -> int:
        outputs = [frame for each in session.output_dict_per_obj.values() for kind in each.values() for frame in kind]
        return len(outputs) + len(session.processed_frames)

    sizes = []
    results = track(frames(), prompts=POINT)
    for number, _ in enumerate(results):
        if number in (20, 39):
            sizes.append(stored(results.session))
    assert sizes[0] == sizes[1] == 1 + 16 + 1  # the prompted frame, recent outputs and the last frame
    results = track(frames(), prompts=POINT, keep_history=True)
    assert len(list(results)) == 40
    assert stored(results.session) == 80


class TestBadInput:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"object_id": 0, "box": [0, 0, 5, 5]}, "object_id: expected a number from 1"),
            ({"object_id": 1, "frame": -1, "box": [0, 0, 5, 5]}, "frame: expected a number from 0"),
            ({"object_id": 1}, "expected points, a box or both, or a mask, got none"),
            ({"object_id": 1, "box": [0, 0, 5, 5], "mask": np.ones(HW)}, "got box and mask"),
            ({"object_id": 1, "labels": [1], "box": [0, 0, 5, 5]}, "labels: expected points too"),
            ({"object_id": 1, "mask": np.zeros(HW)}, "got an empty mask"),
        ],
    )
    def test_invalid_prompts(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(PromptError, match=message):
            TrackPrompt(**fields)

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            (TrackPrompt(object_id=4, frame=2, points=[[500, 2]]), "object 4 in frame 2.*500"),
            (TrackPrompt(object_id=4, frame=2, points=[[5, 2]], labels=[1, 0]), "object 4 in frame 2"),
            (TrackPrompt(object_id=4, frame=2, box=[9, 9, 5, 5]), "x1 < x2"),
            (TrackPrompt(object_id=4, frame=2, mask=np.ones((3, 3))), "40×56 pixels"),
        ],
    )
    def test_a_prompt_that_does_not_fit_its_frame_ends_the_video(
        self, track: Any, prompt: TrackPrompt, message: str
    ) -> None:
        results = track(FRAMES, prompts=[POINT, prompt])
        assert [next(results).frame, next(results).frame] == [0, 1]
        with pytest.raises(PromptError, match=message):
            next(results)

    def test_a_prompt_on_a_frame_that_does_not_exist(self, track: Any) -> None:
        results = track(FRAMES, prompts=[POINT, TrackPrompt(object_id=5, frame=90, points=[[5, 5]])])
        assert [next(results).frame for _ in FRAMES] == list(range(6))
        with pytest.raises(PromptError, match="ends with frame 5, got 90 for object 5"):
            next(results)
        assert list(results) == []

    def test_prompts_of_frames_that_have_passed(self, track: Any) -> None:
        results = track(FRAMES, prompts=POINT)
        next(results), next(results)
        with pytest.raises(PromptError, match="expected frames from 1 on"):
            results.add(dataclasses.replace(POINT, frame=0))
        with pytest.raises(InputError, match="expected one of"):
            results.remove(99)

    def test_an_error_of_the_video(self, track: Any, tmp_path: Path) -> None:
        clip = write_clip(tmp_path / "clip.avi", FRAMES * 4)
        content = clip.read_bytes()
        clip.write_bytes(content[: len(content) * 2 // 3])
        results = track(clip, prompts=[POINT, dataclasses.replace(POINT, frame=23)])
        outcomes: list[Any] = []
        with pytest.raises(PromptError, match="got 23 for object 7"):
            outcomes.extend(results)
        *complete, failure = outcomes
        assert 4 < len(complete) < 24
        assert f"breaks off after frame {len(complete)} of 24" in failure.message
        assert all(result.object_ids.tolist() == [7] for result in complete)

    def test_a_size_that_changes_midway(self, track: Any) -> None:
        frames = [*FRAMES[:2], sample_image(3, (30, 30)), *FRAMES[3:]]
        results = list(track(frames, prompts=POINT))
        assert [isinstance(result, Failure) for result in results] == [False, False, True, False, False, False]
        assert "frame 2: expected 40×56 pixels as in the frames before, got 30×30" in results[2].message

    def test_a_frame_that_cannot_be_read(self, track: Any, tmp_path: Path) -> None:
        results = list(track([*FRAMES[:2], tmp_path / "no.png", *FRAMES[3:]], prompts=POINT))
        assert [isinstance(result, Failure) for result in results] == [False, False, True, False, False, False]

    def test_no_prompts(self, track: Any) -> None:
        with pytest.raises(InputError, match="expected prompts or a people detector"):
            track(FRAMES)
        with pytest.raises(InputError, match="expected TrackPrompt objects"):
            track(FRAMES, prompts=[{"points": [[1, 2]]}])
