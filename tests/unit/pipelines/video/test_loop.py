"""A task over a whole video: everything is kept, people keep their numbers, and a stopped run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

av = pytest.importorskip("av")

from tests.helpers.pipelines import opened, parts_of  # noqa: E402
from tests.helpers.shared_folder import SHARED  # noqa: E402
from tests.unit.files.clips import make_clip, packets  # noqa: E402
from vitruvian.errors import InputError  # noqa: E402
from vitruvian.files.video import VideoReader  # noqa: E402
from vitruvian.images.types import RgbImage  # noqa: E402
from vitruvian.pipelines import Failure, sources  # noqa: E402
from vitruvian.pipelines.people import PeopleDetector, detect_people, open_detector  # noqa: E402
from vitruvian.pipelines.people.detectors import FunctionDetector  # noqa: E402
from vitruvian.pipelines.sources import Frame  # noqa: E402
from vitruvian.pipelines.tasks.pose import PosePipeline  # noqa: E402
from vitruvian.pipelines.video import frame_processor, resume_folder, run_video, smoothing  # noqa: E402
from vitruvian.pipelines.video.people_tracking import TrackedDetector  # noqa: E402
from vitruvian.pipelines.video.smoothing import ResultSmoother  # noqa: E402
from vitruvian.results import Albedo, Matte, Normals, Parts, Pointmap, Pose, Result  # noqa: E402
from vitruvian.results.base import People  # noqa: E402

SIZE = (64, 96)
COUNT = 24


def scene(number: int) -> RgbImage:
    """Two bright people on a dark ground, one walking right and one standing."""
    image = np.full((*SIZE, 3), 30, np.uint8)
    image[16:56, 8 + 2 * number : 20 + 2 * number] = 220
    image[10:40, 76:90] = 160
    return image


def bright(image: RgbImage) -> NDArray[np.float32]:
    """Find the two by their brightness."""
    boxes = []
    for low, high in ((190, 255), (130, 189)):
        rows, columns = np.nonzero((image[..., 0] >= low) & (image[..., 0] <= high))
        if len(rows) > 150:
            boxes.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1, 0.9])
    return np.array(boxes, np.float32).reshape(-1, 5)


DETECTOR = FunctionDetector(bright)


def pose_of(frame: Frame, people: People | None) -> Pose:
    """Four keypoints a person: the corners of their box."""
    assert people is not None
    x1, y1, x2, y2 = people.boxes_xyxy.T
    points = np.stack([np.stack(p, -1) for p in ((x1, y1), (x2, y1), (x2, y2), (x1, y2))], axis=1)
    return Pose(
        size_hw=frame.size_hw,
        image=frame.image,
        source=frame.name,
        people=people,
        frame=frame.frame,
        time=frame.time,
        keypoints=points.astype(np.float32),
        scores=np.ones(points.shape[:2], np.float32),
        names=("a", "b", "c", "d"),
    )


class Task:
    """Poses of boxes; stops, or fails in one frame, where it is told to."""

    def __init__(self, stop_at: int | None = None, fail_at: int | None = None) -> None:
        self.stop_at, self.fail_at = stop_at, fail_at
        self.seen: list[int] = []

    def __call__(self, frames: Iterator[Frame], detector: PeopleDetector | None) -> Iterable[Any]:
        ahead: list[Any] = []
        for frame in frames:
            assert frame.frame is not None
            self.seen.append(frame.frame)
            if frame.frame == self.stop_at:
                raise KeyboardInterrupt
            people = None
            if detector is not None:
                people = detect_people(detector, frame.image, source=frame.name, frame=frame.frame, on_empty="none")
            if frame.frame == self.fail_at:
                ahead.append(Failure(name=frame.name, error=ValueError("no luck"), frame=frame.frame))
            else:
                ahead.append(pose_of(frame, people))
            if len(ahead) > 3:  # as the runner does, look at some frames before giving results
                yield ahead.pop(0)
        yield from ahead


def draw(result: Result) -> RgbImage:
    assert result.image is not None
    return 255 - result.image


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_clip(tmp_path / "clip.mp4", [scene(n) for n in range(COUNT)], rate=Fraction(24), sound="aac")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(records: list[dict[str, Any]]) -> list[list[int]]:
    return [sorted(record["people"]["ids"]) for record in records]


def test_everything_is_kept(clip: Path, tmp_path: Path) -> None:
    out, records = tmp_path / "out.mp4", tmp_path / "out.jsonl"
    seen: list[int] = []
    steps: list[tuple[int, int | None]] = []
    report = run_video(
        clip, Task(), out=out, records=records, detector=DETECTOR, draw=draw, segment_seconds=0.3,
        preview=lambda number, image, result: seen.append(number), progress=lambda done, of: steps.append((done, of)),
    )  # fmt: skip
    assert (report.frames, report.failures, report.resumed_at, report.skipped) == (COUNT, 0, 0, False)
    source, made = VideoReader(clip), VideoReader(out)
    assert (made.rate, made.size_hw, len(list(made)), made.has_sound) == (source.rate, SIZE, COUNT, True)
    assert packets(out, "audio") == packets(clip, "audio")
    for (number, time, image), (_, other, before) in zip(made, source, strict=True):
        assert time == pytest.approx(number / 24, abs=1e-4) == other
        assert np.abs(image.astype(int) - (255 - before)).mean() < 3
    found = lines(records)
    assert [record["frame"] for record in found] == list(range(COUNT)) == seen
    assert numbers(found) == [[1, 2]] * COUNT
    assert np.shape([pose["keypoints"] for pose in found[0]["poses"]]) == (2, 4, 2)
    assert steps[-1] == (COUNT, COUNT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clip.mp4", "out.jsonl", "out.mp4"]


def test_a_stopped_run_goes_on_after_the_last_whole_segment(clip: Path, tmp_path: Path) -> None:
    def run(name: str, task: Task, **options: Any) -> Any:
        return run_video(
            clip, task, out=tmp_path / f"{name}.mp4", records=tmp_path / f"{name}.jsonl", detector=DETECTOR, draw=draw,
            detect_every=3, segment_seconds=5 / 24, **options,
        )  # fmt: skip

    run("whole", Task())
    with pytest.raises(KeyboardInterrupt):
        run("parts", Task(stop_at=17))
    assert not (tmp_path / "parts.mp4").exists()
    assert not (tmp_path / "parts.jsonl").exists()
    again = Task()
    report = run("parts", again)
    assert again.seen == list(range(10, COUNT))  # frames 10 to 13 were out, but their segment was not whole
    assert (report.resumed_at, report.frames) == (10, COUNT)
    whole, parts = lines(tmp_path / "whole.jsonl"), lines(tmp_path / "parts.jsonl")
    assert whole == parts  # identities, positions, smoothing: all as if nothing had happened
    for (_, time, image), (_, other, before) in zip(
        VideoReader(tmp_path / "parts.mp4"), VideoReader(tmp_path / "whole.mp4"), strict=True
    ):
        assert time == pytest.approx(other)
        assert np.abs(image.astype(int) - before).mean() < 1
    assert not (tmp_path / "parts.mp4.parts").exists()
    assert run("parts", Task()).skipped
    assert run("parts", Task(), overwrite=True).resumed_at == 0


def test_other_settings_start_afresh(clip: Path, tmp_path: Path) -> None:
    for model, expected in (("a", 0), ("a", 10), ("b", 0)):
        task = Task(stop_at=17)
        with pytest.raises(KeyboardInterrupt):
            run_video(
                clip, task, records=tmp_path / "r.jsonl", detector=DETECTOR, segment_seconds=5 / 24,
                settings={"model": model},
            )  # fmt: skip
        assert task.seen[0] == expected


def test_all_segments_whole_but_not_joined(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*values: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(resume_folder, "_join_videos", fail)
        with pytest.raises(KeyboardInterrupt):
            run_video(clip, Task(), out=tmp_path / "o.mp4", detector=DETECTOR, draw=draw, segment_seconds=0.5)
    task = Task()
    report = run_video(clip, task, out=tmp_path / "o.mp4", detector=DETECTOR, draw=draw, segment_seconds=0.5)
    assert task.seen == []
    assert len(list(VideoReader(tmp_path / "o.mp4"))) == report.frames == COUNT


@pytest.mark.parametrize("removed", range(4))
def test_stopped_while_segments_are_removed(
    removed: int, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of the folder is recognized, and the next run has the same outcome."""
    left = [removed]
    unlink = Path.unlink

    def stop(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "o.mp4.parts" and (tmp_path / "o.mp4").exists():
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        unlink(path, missing_ok=missing_ok)

    options: dict[str, Any] = {"detector": DETECTOR, "draw": draw, "segment_seconds": 0.5}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop)
        with pytest.raises(KeyboardInterrupt):
            run_video(clip, Task(), out=tmp_path / "o.mp4", **options)
    assert (tmp_path / "o.mp4.parts" / "plan.json").exists()
    run_video(clip, Task(), out=tmp_path / "o.mp4", **options)
    assert len(list(VideoReader(tmp_path / "o.mp4"))) == COUNT
    assert not (tmp_path / "o.mp4.parts").exists()


@pytest.mark.parametrize("suffix", [".json", ".mp4", ".jsonl", ".npz"])
def test_a_damaged_segment_is_made_again(clip: Path, tmp_path: Path, suffix: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_video(clip, Task(stop_at=17), out=tmp_path / "o.mp4", detector=DETECTOR, draw=draw, segment_seconds=5 / 24)
    file = max((tmp_path / "o.mp4.parts").glob("*.npz")).with_suffix(suffix)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    task = Task()
    run_video(clip, task, out=tmp_path / "o.mp4", detector=DETECTOR, draw=draw, segment_seconds=5 / 24)
    assert task.seen[0] == 0  # its state is gone with it: only the newest is kept
    assert len(list(VideoReader(tmp_path / "o.mp4"))) == COUNT


def test_a_frame_that_fails_is_told_and_the_video_stays_whole(clip: Path, tmp_path: Path) -> None:
    out, records = tmp_path / "out.mp4", tmp_path / "out.jsonl"
    report = run_video(clip, Task(fail_at=7), out=out, records=records, detector=DETECTOR, draw=draw)
    assert (report.frames, report.failures) == (COUNT, 1)
    assert len(list(VideoReader(out))) == COUNT
    assert set(lines(records)[7]) == {"frame", "time", "error"}
    assert lines(records)[7]["error"].endswith("no luck")


def test_an_error_while_drawing_stops_the_run_and_leaves_whole_segments(clip: Path, tmp_path: Path) -> None:
    def bad(result: Result) -> RgbImage:
        if result.frame == 9:
            raise ZeroDivisionError
        return draw(result)

    with pytest.raises(ZeroDivisionError):
        run_video(clip, Task(), out=tmp_path / "o.mp4", detector=DETECTOR, draw=bad, segment_seconds=5 / 24)
    task = Task()
    run_video(clip, task, out=tmp_path / "o.mp4", detector=DETECTOR, draw=draw, segment_seconds=5 / 24)
    assert task.seen[0] == 5


@pytest.mark.parametrize(("name", "decoder"), [("o.webm", "libvpx-vp9"), ("o.mov", None)])
def test_alpha_survives_the_joints(clip: Path, tmp_path: Path, name: str, decoder: str | None) -> None:
    def rgba(result: Result) -> NDArray[np.uint8]:
        assert result.image is not None
        return np.dstack((result.image, np.where(result.image[..., 0] > 190, 255, 0).astype(np.uint8)))

    run_video(clip, Task(), out=tmp_path / name, detector=DETECTOR, draw=rgba, alpha=True, segment_seconds=0.4)
    with av.open(str(tmp_path / name)) as container:
        stream = container.streams.video[0]
        if decoder is None:
            frames = [frame.to_ndarray(format="rgba") for frame in container.decode(stream)]
        else:
            context = av.CodecContext.create(decoder, "r")
            found = [frame for packet in container.demux(stream) if packet.size for frame in context.decode(packet)]
            frames = [frame.to_ndarray(format="rgba") for frame in [*found, *context.decode(None)]]
    assert len(frames) == COUNT
    for number in (0, COUNT // 2, COUNT - 1):
        want = scene(number)[..., 0] > 190
        assert np.abs(frames[number][..., 3].astype(int) - 255 * want).mean() < 10


def test_numbered_images(clip: Path, tmp_path: Path) -> None:
    out = tmp_path / "frames" / "f_%03d.png"
    with pytest.raises(KeyboardInterrupt):
        run_video(clip, Task(stop_at=17), out=out, detector=DETECTOR, draw=draw, segment_seconds=5 / 24)
    report = run_video(clip, Task(), out=out, detector=DETECTOR, draw=draw, segment_seconds=5 / 24)
    assert report.resumed_at == 10
    assert sorted(path.name for path in out.parent.iterdir()) == [f"f_{n:03d}.png" for n in range(COUNT)]


def test_a_real_pipeline(clip: Path, tmp_path: Path) -> None:
    """A tiny pose model, batched by the runner, with detection in every fourth frame."""
    model, processor = parts_of("pose")
    looked: list[int] = []

    def counted(image: RgbImage) -> NDArray[np.float32]:
        looked.append(1)
        return bright(image)

    task = frame_processor(PosePipeline(model, processor, batch_size=3))
    records = tmp_path / "r.jsonl"
    report = run_video(clip, task, records=records, detector=FunctionDetector(counted), detect_every=4)
    assert (report.frames, report.failures) == (COUNT, 0)
    found = lines(records)
    assert [sorted(record["people"]["ids"]) for record in found] == [[1, 2]] * COUNT
    assert len(looked) == COUNT // 4


class TestTrackedDetector:
    def test_boxes_between_looks_follow_the_walker(self) -> None:
        detector = TrackedDetector(DETECTOR, every=4)
        for number in range(COUNT):
            people = detector.detect_in(scene(number), source="", frame=number)
            assert people.ids is not None
            walker = people.boxes_xyxy[people.ids.tolist().index(1)]
            if number >= 8:
                assert walker[[0, 2]].mean() == pytest.approx(14 + 2 * number, abs=2.5)
                assert 12 <= walker[2] - walker[0] < 15  # a little larger where no one looked

    def test_a_cut_is_looked_at_at_once_and_gives_new_numbers(self) -> None:
        detector = TrackedDetector(DETECTOR, every=100)
        for number in range(5):
            assert detector.detect(scene(number)).ids is not None
        other = np.full((*SIZE, 3), 255, np.uint8)
        other[:, 20:] = 100
        people = detector.detect(other)
        assert people.ids is not None
        assert people.ids.tolist() == [3]
        np.testing.assert_array_equal(people.boxes_xyxy, [[0, 0, 20, 64]])

    def test_snapshots_where_frames_failed(self) -> None:
        detector = TrackedDetector(DETECTOR, snapshot_every=2)
        states = []
        for number in (0, 1, 5, 6):  # 2 to 4 have failed
            states.append(detector.state())
            detector.detect_in(scene(number), source="", frame=number)
        for before, index in ((2, 2), (4, 2), (6, 3)):
            assert (
                detector.state_before(before)["_tracker.tracks"].tobytes() == states[index]["_tracker.tracks"].tobytes()
            )

    def test_snapshots(self) -> None:
        detector = TrackedDetector(DETECTOR, snapshot_every=4)
        for number in range(10):
            detector.detect_in(scene(number), source="", frame=number)
        assert int(detector.state_before(4)["_number"]) == 4
        assert list(detector._snapshots._states) == [8]

    def test_bad_options_are_refused(self) -> None:
        with pytest.raises(InputError, match="at least 1"):
            TrackedDetector(DETECTOR, every=0)


class TestResultSmoother:
    def base(self, time: float) -> dict[str, Any]:
        return {"size_hw": SIZE, "image": scene(0), "time": time, "frame": round(24 * time)}

    def test_maps_are_steadied(self) -> None:
        smoother, rng = ResultSmoother(), np.random.default_rng(0)
        for t in range(20):
            raw = rng.uniform(0, 1, (*SIZE, 3)).astype(np.float32)
            albedo = smoother(Albedo(**self.base(t / 24), albedo=raw))
        assert isinstance(albedo, Albedo)
        assert albedo.albedo.std() < 0.6 * raw.std()

        for t in range(20):
            vectors = rng.normal(size=(*SIZE, 3))
            vectors = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
            normals = smoother(Normals(**self.base(1 + t / 24), normals=vectors))
        assert isinstance(normals, Normals)
        np.testing.assert_allclose(np.linalg.norm(normals.normals, axis=-1), 1, atol=1e-5)

    def test_mattes_stay_premultiplied(self) -> None:
        smoother = ResultSmoother()
        for t in range(6):
            alpha = np.full(SIZE, t % 2, np.float32)
            matte = smoother(Matte(**self.base(t / 24), alpha=alpha, foreground=np.dstack([alpha * 0.5] * 3)))
        assert isinstance(matte, Matte)
        assert 0.2 < matte.alpha.mean() < 0.8
        np.testing.assert_allclose(matte.foreground, np.dstack([matte.alpha * 0.5] * 3), atol=1e-6)

    def test_scale_of_points(self) -> None:
        smoother = ResultSmoother()
        camera = np.array([[50, 0, 48], [0, 50, 32], [0, 0, 1]], np.float32)
        for t in range(12):
            scale = 2.0 if t % 2 else 1.0  # the model's points do not change, but their scale does
            points = np.full((*SIZE, 3), 4.0 / scale, np.float32)
            result = smoother(
                Pointmap(
                    **self.base(t / 24), points=points, mask=np.ones(SIZE, np.bool_), intrinsics=camera,
                    intrinsics_from="given", metric=True, scale=scale,
                )
            )  # fmt: skip
        assert isinstance(result, Pointmap)
        assert result.scale is not None
        assert 1.0 < result.scale < 1.9
        assert 2.2 < result.points.mean() < 3.9

    def test_a_cut_starts_everything_anew(self, monkeypatch: pytest.MonkeyPatch) -> None:
        smoother = ResultSmoother()
        monkeypatch.setattr(smoothing, "_STILL", 254.0)  # the maps themselves ignore motion
        monkeypatch.setattr(smoothing, "_MOVING", 255.0)
        other = np.full((*SIZE, 3), 250, np.uint8)
        found = []
        for image, value in ((scene(0), 0.0), (scene(0), 1.0), (other, 1.0)):
            base = self.base(0.0) | {"image": image}
            albedo = smoother(Albedo(**base, albedo=np.full((*SIZE, 3), value, np.float32)))
            assert isinstance(albedo, Albedo)
            found.append(albedo.albedo.mean())
        assert found == [0, 0, 1]

    def test_labels_stay_and_images_are_needed(self) -> None:
        smoother = ResultSmoother()
        parts = Parts(**self.base(0.0), labels=np.zeros(SIZE, np.uint8))
        assert smoother(parts) is parts
        with pytest.raises(InputError, match="keep_image"):
            smoother(parts.without_image())


def test_bad_calls_are_refused(clip: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="out, records"):
        run_video(clip, Task())
    with pytest.raises(InputError, match="segment_seconds"):
        run_video(clip, Task(), records=tmp_path / "r.jsonl", segment_seconds=0)
    with pytest.raises(InputError, match="expected"):
        run_video(clip, Task(), out=tmp_path / "o.avi")
    with pytest.raises(InputError, match="Result or a Failure"):
        run_video(clip, lambda frames, detector: [3 for _ in frames], records=tmp_path / "r.jsonl")
    other = tmp_path / "x.jsonl.parts"
    other.mkdir()
    (other / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="a folder that vitruvian wrote"):
        run_video(clip, Task(), records=tmp_path / "x.jsonl", detector=DETECTOR)
    assert (other / "mine.txt").exists()


@pytest.mark.skipif(not (SHARED / "photos/video/juggle.mp4").is_file(), reason="the shared clip is not here")
def test_a_real_clip_keeps_its_length_and_rate(tmp_path: Path) -> None:
    source = SHARED / "photos/video/juggle.mp4"

    def task(frames: Iterator[Frame], detector: PeopleDetector | None) -> Iterable[Any]:
        for frame in frames:
            people = None if detector is None else detect_people(detector, frame.image, frame=frame.frame)
            yield pose_of(frame, people)

    records = tmp_path / "r.jsonl"
    report = run_video(
        source, task, records=records, detector=open_detector("whole"), detect_every=10, segment_seconds=4
    )
    assert report.frames == 247
    assert numbers(lines(records)) == [[1]] * 247


@pytest.mark.parametrize("max_frames", [10, 12, 8])
def test_a_number_of_frames_of_a_video_that_was_stopped(clip: Path, tmp_path: Path, max_frames: int) -> None:
    options: dict[str, Any] = {"out": tmp_path / "o.mp4", "detector": DETECTOR, "draw": draw, "segment_seconds": 5 / 24}
    with pytest.raises(KeyboardInterrupt):
        run_video(clip, Task(stop_at=17), **options)
    report = run_video(clip, Task(), **options, max_frames=max_frames)
    assert (report.resumed_at, report.frames) == (10, max(10, max_frames))


class TestCamera:
    @staticmethod
    def plug_in(monkeypatch: pytest.MonkeyPatch, *, stop: int = 1000, error: Exception | None = None) -> None:
        def frames(number: int) -> Iterator[tuple[float, RgbImage]]:
            assert number == 2
            for index in range(stop):
                yield index / 30, scene(index % COUNT)
            if error is not None:
                raise error

        monkeypatch.setattr(sources, "_camera_frames", frames)

    @pytest.mark.parametrize("source", [2, "camera:2"])
    def test_a_number_of_frames(self, source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plug_in(monkeypatch)
        out, records = tmp_path / "out.mp4", tmp_path / "out.jsonl"
        for _ in range(2):  # replaces what is there
            report = run_video(
                source,
                Task(),
                out=out,
                records=records,
                detector=DETECTOR,
                draw=draw,
                max_frames=7,
                segment_seconds=0.1,
            )
            assert (report.frames, report.failures, report.interrupted) == (7, 0, False)
            assert len(list(VideoReader(out))) == len(lines(records)) == 7
            assert numbers(lines(records)) == [[1, 2]] * 7
        assert not list(tmp_path.glob("*.parts"))

    @pytest.mark.parametrize("stop_at", [0, 5])
    def test_ctrl_c_completes_the_video(self, stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plug_in(monkeypatch)
        out = tmp_path / "out.mp4"
        report = run_video(2, Task(stop_at=stop_at), out=out, detector=DETECTOR, draw=draw)
        assert report.interrupted
        assert report.frames == max(0, stop_at - 3)  # the task is three frames ahead
        assert out.exists() == (report.frames > 0)
        assert not list(tmp_path.glob("*.parts"))

    def test_a_camera_that_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plug_in(monkeypatch, stop=4, error=OSError("unplugged"))
        out = tmp_path / "out.mp4"
        with pytest.raises(OSError, match="unplugged"):
            run_video(2, frame_processor(opened("pose"), detect="whole"), out=out)
        assert len(list(VideoReader(out))) == 4
