"""Objects tracked through videos: prompts in any frame, corrections, objects that come and go, bad input."""

from __future__ import annotations

import dataclasses
import json
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
from vitruvian.pipelines.video import object_tracker
from vitruvian.results import Track

DATA = Path(__file__).parents[3] / "data"
HW = (40, 56)
FRAMES = [sample_image(number, HW) for number in range(6)]
POINT = TrackPrompt(object_id=7, points=[[20, 15]])
BOX = TrackPrompt(object_id=2, frame=2, box=[5, 6, 40, 30])


class Finder:
    """A detector that finds these boxes in one frame after another, and then those of the last."""

    def __init__(self, *boxes: list[list[float]]) -> None:
        self.boxes = list(boxes)

    def __call__(self, _: np.ndarray) -> list[list[float]]:
        return self.boxes.pop(0) if len(self.boxes) > 1 else self.boxes[0]


LEFT, RIGHT = [4.0, 5.0, 20.0, 35.0], [35.0, 5.0, 50.0, 35.0]


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


@pytest.mark.parametrize("pattern", ["{stem}_{frame:05d}.json", "{stem}.json"])
def test_corrected_frames_are_saved_again(track: Any, tmp_path: Path, pattern: str) -> None:
    clip = write_clip(tmp_path / "clip.mp4", FRAMES)
    final = {}
    for result in (results := track(clip, prompts=POINT, save=tmp_path / "out" / pattern)):
        final[result.frame] = result
        if result.frame in (1, 3):
            point = TrackPrompt(object_id=7, frame=result.frame, points=[[40, 30]], labels=[0])
            final[result.frame] = results.add(point)
            assert (final[result.frame].masks != result.masks).any()
    saved = [json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()]
    assert {one["frame"]: one["objects"] for one in saved} == {n: one.to_dict()["objects"] for n, one in final.items()}
    assert len(saved) == len(FRAMES)


def test_a_correction_that_is_known_before_is_as_one_by_hand(track: Any) -> None:
    """It corrects the mask that the object has in its frame, from memory."""
    correction = TrackPrompt(object_id=7, frame=3, points=[[40, 30]], labels=[0])
    in_advance = list(track(FRAMES, prompts=[POINT, correction]))
    results = track(FRAMES, prompts=POINT)
    by_hand = [results.add(correction) if result.frame == 3 else result for result in results]
    for one, other in zip(in_advance, by_hand, strict=True):
        same(one, other)
    alone = list(track(FRAMES, prompts=dataclasses.replace(correction, object_id=1)))
    assert (in_advance[3].of(7) != alone[3].of(1)).any()


def test_a_frame_is_corrected_twice_with_the_same_memory_as_once(track: Any) -> None:
    first, second = (TrackPrompt(object_id=7, frame=3, points=[point], labels=[0]) for point in ([40, 30], [9, 9]))
    rows = []
    for keep_history in (False, True):
        results = track(FRAMES, prompts=POINT, keep_history=keep_history)
        for result in results:
            rows += [results.add(first), results.add(second)] if result.frame == 3 else [result]
    for one, other in zip(rows[: len(FRAMES) + 1], rows[len(FRAMES) + 1 :], strict=True):
        same(one, other)


def test_prompts_are_added_all_or_none(track: Any, tmp_path: Path) -> None:
    good = TrackPrompt(object_id=3, frame=4, points=[[9, 9]])
    for source in (FRAMES, write_clip(tmp_path / "clip.mp4", FRAMES)):
        results = track(source, prompts=POINT)
        next(results)
        bad = [TrackPrompt(object_id=5, frame=frame, points=[[900, 9]]) for frame in (0, 5)]
        bad += [TrackPrompt(object_id=5, frame=90, points=[[9, 9]])] if results.video else []
        for one in bad:
            with pytest.raises(PromptError, match=f"{one.frame}"):
                results.add(good, one)
        assert [result.object_ids.tolist() for result in results] == [[7]] * 5


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
    results = list(track(FRAMES, prompts=POINT, detect=Finder([], [box], []), detect_every=2))
    assert results[-1].object_ids.tolist() == [7]


def test_prompts_of_any_integer_and_array_type(track: Any) -> None:
    points = np.array([[20, 15], [50, 35]], np.float32)
    plain = TrackPrompt(object_id=7, frame=1, points=points.tolist(), labels=[1, 0])
    wanted = list(track(FRAMES, prompts=plain))
    for integer, array in ((np.int64, np.asarray), (np.uint8, torch.tensor), (torch.tensor, tuple)):
        prompt = TrackPrompt(object_id=integer(7), frame=integer(1), points=array(points), labels=[True, False])
        for one, other in zip(track(FRAMES, prompts=prompt), wanted, strict=True):
            same(one, other)
    changed = TrackPrompt(object_id=7, frame=1, points=points, labels=[1, 0])
    points += 5
    same(list(track(FRAMES, prompts=changed))[1], wanted[1])


def test_an_id_is_never_used_again(track: Any) -> None:
    results = track(FRAMES, prompts=[], detect=Finder([LEFT, RIGHT]), detect_every=1)
    assert next(results).object_ids.tolist() == [1, 2]
    results.remove(2)
    results.remove(1)
    assert next(results).object_ids.tolist() == [3, 4]
    results.add(TrackPrompt(object_id=65535, frame=2, mask=np.arange(HW[1]) < np.full(HW, 3)))
    results.remove(3)
    results.remove(4)
    assert next(results).object_ids.tolist() == [65535, 5, 6]


def test_a_later_prompt_of_a_detected_person(track: Any) -> None:
    options: dict[str, Any] = {"detect": Finder([LEFT]), "prompts": TrackPrompt(object_id=1, frame=3, points=[[9, 9]])}
    assert [result.object_ids.tolist() for result in track(FRAMES, **options)] == [[2]] * 3 + [[2, 1]] * 3
    earlier = track(FRAMES, prompts=[], detect=Finder([LEFT]))
    assert [result.object_ids.tolist() for result in earlier] == [[1]] * 6
    again = track(FRAMES, **options)
    again.reuse_ids(earlier.state_before(6))
    assert [result.object_ids.tolist() for result in again] == [[1]] * 6


def test_a_prompt_before_the_person_with_its_id_was_detected(track: Any) -> None:
    earlier = track(FRAMES, prompts=[], detect=Finder([], [], [LEFT]))
    assert [result.object_ids.tolist() for result in earlier] == [[]] * 2 + [[1]] * 4
    prompt = TrackPrompt(object_id=1, frame=1, points=[[50, 35]])
    again = track(FRAMES, prompts=prompt, detect=Finder([LEFT]))  # now a person is found before the prompt
    again.reuse_ids(earlier.state_before(6))
    assert [result.object_ids.tolist() for result in again] == [[2]] + [[2, 1]] * 5


def test_points_are_added_to_those_of_the_frame(track: Any) -> None:
    both = next(track(FRAMES, prompts=dataclasses.replace(POINT, points=[[20, 15], [50, 35]])))
    results = track(FRAMES, prompts=POINT, prior_logits=False)
    first = next(results)
    added = results.add(dataclasses.replace(POINT, points=[[50, 35]]))
    same(added, both)
    assert (first.masks != both.masks).any()
    replaced = results.add(dataclasses.replace(POINT, points=None, box=[5, 6, 40, 30]))
    same(replaced, next(track(FRAMES, prompts=dataclasses.replace(POINT, points=None, box=[5, 6, 40, 30]))))


def test_masks_without_overlap_have_none_in_the_size_of_frames(track: Any) -> None:
    mask = np.arange(HW[1]) < np.full(HW, 20)
    touching = [TrackPrompt(object_id=1, mask=mask), TrackPrompt(object_id=2, mask=~mask), POINT]
    for result in track(FRAMES, prompts=touching, non_overlapping_masks=True):
        assert (result.masks.sum(0) <= 1).all()
    overlapping = next(track(FRAMES, prompts=touching)).masks
    disjoint = next(track(FRAMES, prompts=touching, non_overlapping_masks=True)).masks
    assert (overlapping.sum(0) > 1).any()
    assert (disjoint.any(0) == overlapping.any(0)).all()
    assert (disjoint <= overlapping).all()


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


class TestPeopleWhoComeAndGo:
    """With the model that tracks drawn shapes. It knows clicks, so people are marked by the middle of their boxes."""

    HIDDEN = range(8, 26)  # frames without the second person
    FRAMES = 40

    @pytest.fixture
    def track(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def click(box: np.ndarray, **fields: Any) -> TrackPrompt:
            return TrackPrompt(points=box.reshape(2, 2).mean(0), **fields)

        monkeypatch.setattr(object_tracker, "TrackPrompt", click)
        return pipeline("track", str(DATA / "moving-shapes"), dtype="float32", device="cpu")

    def people(self, number: int) -> list[list[float]]:
        """Center and radius of people in a frame."""
        first, second = [34.0 + number % 8, 64.0, 18.0], [92.0, 64.0 - number % 8, 18.0]
        return [first] if number in self.HIDDEN else [first, second]

    def start(self, track: Any, *, shift: float = 0.0, size: float = 18.0, **options: Any) -> Any:
        """Results with a detector whose boxes are shifted and have another size."""
        y, x = np.mgrid[:128, :128] + 0.5
        frames, found = [], []
        for number in range(self.FRAMES):
            image = np.random.default_rng(0).normal(120, 5, (128, 128, 3))
            for (cx, cy, r), color in zip(self.people(number), ((200, 40, 40), (40, 60, 200)), strict=False):
                image[np.hypot(x - cx, y - cy) < r] = color
            frames.append(image.astype(np.uint8))
            if number % 2 == 0:
                centers = ((cx + shift, cy) for cx, cy, _ in self.people(number))
                found.append([[cx - size, cy - size, cx + size, cy + size] for cx, cy in centers])
        return track(frames, prompts=[], detect=Finder(*found), detect_every=2, **options)

    def ids(self, track: Any, **options: Any) -> list[list[int]]:
        """Ids in each frame."""
        return [result.object_ids.tolist() for result in self.start(track, **options)]

    def test_those_who_stay_invisible_are_forgotten(self, track: Any) -> None:
        ids = self.ids(track, forget_after=6)
        assert ids == [[1, 2]] * 14 + [[1]] * 12 + [[1, 3]] * 14
        assert self.ids(track, forget_after=0) == self.ids(track) == [[1, 2]] * self.FRAMES

    def test_a_detection_of_part_of_a_person_is_that_person(self, track: Any) -> None:
        results = self.start(track, size=8.0, shift=3.0)
        assert [result.object_ids.tolist() for result in results] == [[1, 2]] * self.FRAMES
        assert results.state_before(self.FRAMES)["used_ids"].tolist() == [1, 2]

    def test_two_objects_with_one_mask_are_one_person(self, track: Any) -> None:
        found = Finder([[16, 46, 52, 82], [28, 58, 36, 66]], [])
        y, x = np.mgrid[:128, :128] + 0.5
        image = np.where((np.hypot(x - 34, y - 64) < 18)[..., None], (200, 40, 40), 120).astype(np.uint8)
        ids = [result.object_ids.tolist() for result in track([image] * 4, prompts=[], detect=found, detect_every=2)]
        assert ids == [[1, 2], [1, 2], [1], [1]]

    def test_who_has_a_prompt_is_not_forgotten(self, track: Any) -> None:
        results = self.start(track, forget_after=6)
        for result in results:
            if result.frame == 2:
                results.add(TrackPrompt(object_id=2, frame=2, points=self.people(2)[1][:2]))
            assert result.object_ids.tolist() == [1, 2]


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
            ({"object_id": 1.5, "box": [0, 0, 5, 5]}, "object_id: .* got 1.5"),
            ({"object_id": True, "box": [0, 0, 5, 5]}, "object_id: .* got True"),
            ({"object_id": 1, "frame": "2", "box": [0, 0, 5, 5]}, "frame: .* got '2' for object 1"),
            ({"object_id": 1, "points": []}, r"points: expected \[\[x, y\], …\] for object 1 in frame 0, got \[\]"),
            ({"object_id": 1, "points": [1, 2, 3, 4]}, "points: expected"),
            ({"object_id": 1, "points": [[1, 2], [3]]}, "points: expected an array of numbers for object 1"),
            ({"object_id": 1, "points": [["a", "b"]]}, "points: expected finite numbers"),
            ({"object_id": 1, "points": [[None, 2]]}, "points: expected finite numbers"),
            ({"object_id": 1, "points": [[1, np.nan]]}, "points: expected finite numbers for object 1 in frame 0"),
            ({"object_id": 1, "points": [[1, 2]], "labels": [1, 0]}, "labels: expected 0 or 1 for each of 1 points"),
            ({"object_id": 1, "points": [[1, 2]], "labels": [-1]}, r"labels: expected 0 or 1 .* got \[-1\]"),
            ({"object_id": 1, "points": [[1, 2]], "labels": [2]}, "labels: expected 0 or 1"),
            ({"object_id": 1, "box": [9, 9, 5, 5]}, "box: expected x1, y1, x2, y2 with x1 < x2"),
            ({"object_id": 1, "box": [[0, 0, 5, 5]]}, "box: expected x1, y1"),
            ({"object_id": 1, "box": [0, 0, 5, np.inf]}, "box: expected finite numbers"),
            ({"object_id": 1, "mask": np.ones((1, *HW))}, r"mask: expected \[H, W\] .* got \[1, 40, 56\]"),
            ({"object_id": 1, "mask": np.full(HW, np.nan)}, "mask: expected finite numbers"),
        ],
    )
    def test_invalid_prompts(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(PromptError, match=message):
            TrackPrompt(**fields)

    def test_a_mask_is_alone_in_its_frame(self, track: Any) -> None:
        mask = TrackPrompt(object_id=7, mask=np.ones(HW))
        with pytest.raises(PromptError, match="expected a mask alone for object 7 in frame 0, got 2 prompts"):
            track(FRAMES, prompts=[POINT, mask])
        results = track(FRAMES, prompts=[mask])
        next(results)
        with pytest.raises(PromptError, match="expected a mask alone for object 7 in frame 0"):
            results.add(POINT, mask)
        results.add(dataclasses.replace(mask, frame=2))
        with pytest.raises(PromptError, match="expected a mask alone for object 7 in frame 2"):
            results.add(dataclasses.replace(POINT, frame=2))
        results.add(POINT)  # refines the result of the mask
        assert [result.object_ids.tolist() for result in results] == [[7]] * 5

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            (TrackPrompt(object_id=4, frame=2, points=[[500, 2]]), "object 4 in frame 2.*500"),
            (
                TrackPrompt(object_id=4, frame=2, box=[90, 9, 95, 15]),
                "box: expected a box that meets .* object 4 in frame 2",
            ),
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
        assert list(results) == []

    def test_a_refused_prompt_adds_none_of_those_with_it(self, track: Any) -> None:
        results = track(FRAMES, prompts=POINT)
        next(results)
        good = dataclasses.replace(BOX, frame=0)
        with pytest.raises(PromptError, match="object 9 in frame 0"):
            results.add(good, TrackPrompt(object_id=9, points=[[500, 2]]))
        assert results.object_ids == [7]
        assert results.add(good).object_ids.tolist() == [7, 2]

    @pytest.mark.parametrize("interactive", [True, False])
    @pytest.mark.parametrize("bad", ["no.png", sample_image(3, (30, 30))])
    def test_a_prompt_on_a_frame_that_fails(self, track: Any, bad: Any, interactive: bool) -> None:
        frames = [*FRAMES[:2], bad, *FRAMES[3:]]
        results = track(frames, prompts=[POINT, BOX], interactive=interactive)
        assert [next(results).frame, next(results).frame] == [0, 1]
        with pytest.raises(PromptError, match=r"object 2 in frame 2, got an error: .*(no\.png|30×30)"):
            next(results)
        assert list(results) == []
        results = track(frames, prompts=[POINT])
        assert isinstance([next(results) for _ in range(3)][-1], Failure)
        with pytest.raises(PromptError, match="expected frames from 3 on"):
            results.add(BOX)

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

    def test_a_threshold_that_is_no_number(self, track: Any) -> None:
        with pytest.raises(InputError, match="mask_threshold: expected a number, got nan"):
            track(FRAMES, prompts=POINT, mask_threshold=np.nan)

    def test_no_prompts(self, track: Any) -> None:
        with pytest.raises(InputError, match="expected prompts or a people detector"):
            track(FRAMES)
        with pytest.raises(InputError, match="expected TrackPrompt objects"):
            track(FRAMES, prompts=[{"points": [[1, 2]]}])
