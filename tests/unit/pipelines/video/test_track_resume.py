"""Videos of tracked objects that are stopped and continue: the outcome is that of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av")

from tests.helpers.pipelines import parts_of, sample_image, write_clip
from vitruvian import InputError, PromptError, Sam2SessionOptions, Sam2VideoInferenceSession, TrackPrompt, pipeline
from vitruvian.models.sam2.session_state import restore_session, session_state
from vitruvian.pipelines import sources
from vitruvian.pipelines.sources import Failure
from vitruvian.pipelines.video import frame_processor, run_video
from vitruvian.results.base import People

HW = (40, 56)
COUNT = 24
LENGTH = 0.5  # seconds of a segment: five frames
PROMPTS = [
    TrackPrompt(object_id=3, points=[[20, 15]]),
    TrackPrompt(object_id=9, frame=8, box=[5, 6, 40, 30]),
    TrackPrompt(object_id=3, frame=13, points=[[30, 20]]),
]


class OnePerson:
    """Detects a person from the seventh frame on."""

    name = "one person"

    def detect(self, image: Any, /) -> People:
        return self.detect_in(image, source="", frame=0)

    def detect_in(self, image: Any, /, *, source: str, frame: int | None) -> People:
        boxes = np.array([[10, 5, 30, 35]] if (frame or 0) >= 7 else [], np.float32).reshape(-1, 4)
        return People(boxes_xyxy=boxes, scores=np.ones(len(boxes), np.float32), detector=self.name)


@pytest.fixture(scope="module")
def pipe() -> Any:
    model, processor = parts_of("track")
    return pipeline("track", model, processor=processor, device="cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frames = [np.roll(sample_image(1, HW), 2 * number, 1) for number in range(COUNT)]
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", frames)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def track(pipe: Any, clip: Path, out: Path, *, stop: int | None = None, **options: Any) -> Any:
    """Track in segments of five frames; with `stop` the process ends while that frame is recorded."""
    chosen = {"prompts": options.pop("prompts", PROMPTS), "interactive": False}
    if "detect" in options:
        chosen |= {"detect": options.pop("detect"), "detect_every": options.pop("every", 0)}

    def record(result: Any) -> Any:
        if result.frame == stop:
            raise KeyboardInterrupt
        return result.to_dict()

    task = frame_processor(pipe, **chosen)
    return run_video(clip, task, records=out, record=record, segment_seconds=LENGTH, smooth=False, **options)


@pytest.mark.parametrize("stop", [7, 16, 23])
def test_a_stopped_video_continues_with_the_same_outcome(pipe: Any, clip: Path, tmp_path: Path, stop: int) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    track(pipe, clip, whole)
    with pytest.raises(KeyboardInterrupt):
        track(pipe, clip, parts, stop=stop)
    assert track(pipe, clip, parts).resumed_at == stop // 5 * 5
    assert lines(parts) == lines(whole)
    assert len({len(line["objects"]) for line in lines(whole)}) == 2


@pytest.mark.parametrize("every", [0, 2])
def test_people_that_were_detected_are_not_looked_for_again(pipe: Any, clip: Path, tmp_path: Path, every: int) -> None:
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    options = {"detect": OnePerson(), "prompts": [], "every": every}
    track(pipe, clip, whole, **options)
    for stop in (6, 12):
        with pytest.raises(KeyboardInterrupt):
            track(pipe, clip, parts, stop=stop, **options)
    track(pipe, clip, parts, **options)
    assert lines(parts) == lines(whole)
    counts = [len(line["objects"]) for line in lines(whole)]
    assert counts[:9] == ([0] * 7 + [1] * 2 if every == 0 else [0] * 8 + [1])
    assert every > 0 or counts[7:] == [1] * (COUNT - 7)


def test_ids_of_removed_people_are_part_of_the_state(pipe: Any) -> None:
    options: dict[str, Any] = {"prompts": [], "detect": lambda _: [[10, 5, 30, 35]], "detect_every": 1}
    first = pipe([sample_image(0, HW)] * 2, **options)
    assert next(first).object_ids.tolist() == [1]
    first.remove(1)
    restored = pipe([sample_image(0, HW)], **options)
    restored.restore(first.state_before(1), 0)
    assert next(restored).object_ids.tolist() == next(first).object_ids.tolist() == [2]


def test_the_state_before_frames_that_failed(pipe: Any, tmp_path: Path) -> None:
    frames: list[Any] = [sample_image(number, HW) for number in range(8)]
    want = pipe(frames[:2], prompts=PROMPTS[:1])
    assert len(list(want)) == 2
    frames[2:5] = [tmp_path / "no.png"] * 3
    results = pipe(frames, prompts=PROMPTS[:1], interactive=False)
    results.set_snapshot_interval(2)
    assert [isinstance(result, Failure) for result in results] == [2 <= number < 5 for number in range(8)]
    for before in (2, 4):
        got = results.state_before(before)
        assert {name: value.tolist() for name, value in got.items()} == {
            name: value.tolist() for name, value in want.state_before(2).items()
        }


def test_kept_segments_before_a_change_are_used_again(pipe: Any, clip: Path, tmp_path: Path) -> None:
    whole, refined, state = tmp_path / "whole.jsonl", tmp_path / "refined.jsonl", tmp_path / "kept"
    track(pipe, clip, whole)
    track(pipe, clip, refined, prompts=PROMPTS[:2], keep_state=state, settings={"prompts": 2})
    options = {"keep_state": state, "refine": (state, 13), "settings": {"prompts": 3}}
    with pytest.raises(KeyboardInterrupt):
        track(pipe, clip, refined, stop=17, **options)
    assert track(pipe, clip, refined, **options).resumed_at == 15  # and not 10, where it began before it was stopped
    assert lines(refined) == lines(whole)
    assert track(pipe, clip, tmp_path / "refined.jsonl", **options | {"refine": (state, 3)}).resumed_at == 0
    with pytest.raises(InputError, match="expected segments of the same video and outputs, got those of another video"):
        track(pipe, clip, tmp_path / "other.jsonl", **options)
    with pytest.raises(InputError, match="got a folder without segments"):
        track(pipe, clip, refined, **options | {"refine": (tmp_path / "no", 3)})


def test_people_keep_their_ids_when_a_video_is_refined(pipe: Any, clip: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "track.jsonl", tmp_path / "kept"
    options = {"detect": OnePerson(), "keep_state": state}
    track(pipe, clip, out, prompts=[], settings={"prompts": 0}, **options)
    person = TrackPrompt(object_id=1, frame=9, points=[[20, 15]])
    others = [TrackPrompt(object_id=number, frame=frame, box=[5, 6, 40, 30]) for number, frame in ((2, 13), (3, 8))]
    prompts: list[TrackPrompt] = []
    for prompt, resumed, ids in (
        (person, 5, [[], [1], [1], [1]]),  # before the person is detected
        (others[0], 10, [[], [1], [1], [1, 2]]),  # after it
        (others[1], 5, [[], [1], [1, 3], [1, 3, 2]]),
    ):
        prompts.append(prompt)
        refined = {"prompts": prompts, "refine": (state, prompt.frame), "settings": {"prompts": len(prompts)}}
        assert track(pipe, clip, out, **refined, **options).resumed_at == resumed
        assert [[one["id"] for one in lines(out)[frame]["objects"]] for frame in (6, 7, 8, 13)] == ids
        (state / "00000020.npz").write_bytes(b"damaged")  # the state before knows the person too


@pytest.mark.parametrize("refine", [False, True])
def test_prompts_that_do_not_fit_leave_finished_results(pipe: Any, clip: Path, tmp_path: Path, refine: bool) -> None:
    out, state = tmp_path / "track.jsonl", tmp_path / "kept"
    bad = TrackPrompt(object_id=3, frame=13, points=[[500, 20]])
    with pytest.raises(PromptError, match="object 3 in frame 13"):
        track(pipe, clip, out, prompts=[*PROMPTS[:1], bad])
    assert len(lines(out)) == 13  # the frames before are kept: there were no results
    track(pipe, clip, out, prompts=PROMPTS[:1], keep_state=state, settings={"prompts": 1}, overwrite=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    options = {"refine": (state, 13)} if refine else {"overwrite": True}
    with pytest.raises(PromptError, match="object 3 in frame 13"):
        track(pipe, clip, out, prompts=[*PROMPTS[:1], bad], keep_state=state, settings={"prompts": 2}, **options)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_refinement_with_more_failures_leaves_finished_results(pipe: Any, clip: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "track.jsonl", tmp_path / "kept"
    track(pipe, clip, out, prompts=PROMPTS[:1], keep_state=state)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fail(frames: Any, detector: Any) -> Any:
        yield from (Failure(name="clip.mp4", error=MemoryError("none"), frame=frame.frame) for frame in frames)

    options = {"records": out, "keep_state": state, "refine": (state, 13), "smooth": False}
    with pytest.raises(InputError, match=r"expected 0 failed frames as before, got 14: clip\.mp4: none"):
        run_video(clip, fail, segment_seconds=LENGTH, **options)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_camera_that_is_unplugged_keeps_its_frames(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unplugged(number: int) -> Iterator[tuple[float, Any]]:
        for index in range(6):
            yield index / 30, sample_image(index, HW)
        raise InputError(f"camera:{number}: expected a frame, got no such device.")

    monkeypatch.setattr(sources, "_camera_frames", unplugged)
    out = tmp_path / "camera.jsonl"
    with pytest.raises(InputError, match="got no such device"):
        track(pipe, "camera:0", out, prompts=PROMPTS[:1])  # type: ignore[arg-type]
    assert [[one["id"] for one in line["objects"]] for line in lines(out)] == [[3]] * 6
    results = list(pipe("camera:0", prompts=PROMPTS[:1], interactive=False))
    assert [isinstance(result, Failure) for result in results] == [False] * 6 + [True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_of_sessions(dtype: torch.dtype) -> None:
    model = parts_of("track")[0].eval().to(dtype)
    options = Sam2SessionOptions(keep_history=False)
    side = model.config.vision_config.backbone_config.image_size[0]
    frames = torch.randn(6, 3, side, side, generator=torch.Generator().manual_seed(0)).to(dtype)
    session = Sam2VideoInferenceSession(None, side, side, dtype=dtype, options=options)
    points = {"point_coords": torch.tensor([[[[9.0, 12.0]]]]), "point_labels": torch.ones(1, 1, 1).long()}
    session.add_point_inputs(session.obj_id_to_idx(5), 0, points)
    session.mark_new_inputs([5], 0)
    for frame in frames[:3]:
        model(session, frame=frame)
    state = session_state(session)
    other = Sam2VideoInferenceSession(None, side, side, dtype=dtype, options=options)
    restore_session(other, state)
    for frame in frames[3:]:
        assert torch.equal(model(other, frame=frame).pred_masks, model(session, frame=frame).pred_masks)
    with pytest.raises(InputError, match="got one in use"):
        restore_session(other, state)
    broken = Sam2VideoInferenceSession(None, side, side, dtype=dtype, options=options)
    with pytest.raises(InputError, match="expected what a session saved, got KeyError"):
        restore_session(broken, {name: value for name, value in state.items() if "maskmem" not in name})
