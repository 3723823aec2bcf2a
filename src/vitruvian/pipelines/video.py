"""A task over a whole video: people followed, results smoothed, drawn, recorded, in constant memory, and resumable.

    frames ── a pipeline with a `TrackedFinder` ──▶ results ── ResultSmoother ──▶ drawn and written behind ──▶ segments
    all segments ── joined, with the sound of the source ──▶ the video; one line of JSON a frame ──▶ the records

Work is kept in a folder beside the output, `NAME.parts`: every few seconds a segment (video, records, and what trackers
and filters know) is finished there. A run that was stopped goes on after the last whole segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.files.video import VideoReader, open_video
from vitruvian.pipelines.finders.tracked import TrackedFinder, part_of
from vitruvian.pipelines.people import PeopleFinder
from vitruvian.pipelines.runner import Failure
from vitruvian.pipelines.smoothing import DenseSmoother, ExponentialAverage, KeypointSmoother, SceneCuts
from vitruvian.pipelines.sources import Frame
from vitruvian.pipelines.video_parts import PartsFolder, Segment, SegmentFiles
from vitruvian.results import Albedo, Matte, Normals, Parts, Pointmap, Pose, Result, Semantic
from vitruvian.results.base import Picture

# Takes frames in order and who finds people in them; gives a result or a `Failure` for each, in order.
VideoTask = Callable[[Iterator[Frame], PeopleFinder | None], Iterable[Any]]
WAITING = 4  # frames that may wait to be drawn and written


@dataclass(frozen=True, kw_only=True)
class VideoReport:
    """What a run over a video did.

    Attributes:
        frames: Frames in the output.
        failures: Frames that gave no result; the picture before is shown in their place, and their records say why.
        resumed_at: The frame at which this run went on with earlier work; 0 where there was none.
        skipped: Whether the output was there already.
        out: The video, if one was asked for.
        records: The file of records, if one was asked for.
    """

    frames: int
    failures: int
    resumed_at: int
    skipped: bool
    out: Path | None
    records: Path | None


def pipeline_task(pipe: Any, **options: Any) -> VideoTask:
    """Make a task of a pipeline and the options of its call."""

    def run(frames: Iterator[Frame], finder: PeopleFinder | None) -> Iterable[Any]:
        chosen = options if finder is None else options | {"finder": finder}
        found: Iterable[Any] = pipe.run(frames, **chosen)
        return found

    return run


def run_video(
    source: str | Path,
    task: VideoTask,
    *,
    out: str | Path | None = None,
    records: str | Path | None = None,
    finder: PeopleFinder | None = None,
    detect_every: int = 1,
    smooth: bool = True,
    draw: Callable[[Result], NDArray[np.uint8]] | None = None,
    record: Callable[[Result], Mapping[str, Any]] | None = None,
    alpha: bool = False,
    sound: bool = True,
    preview: Callable[[int, NDArray[np.uint8], Result], Any] | None = None,
    progress: Callable[[int, int | None], Any] | None = None,
    segment_seconds: float = 10.0,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> VideoReport:
    """Run a task over every frame of a video.

    Args:
        source: The video.
        task: What to do with frames; `pipeline_task` makes one of a pipeline. Its results must hold their pictures.
        out: Video to write, or numbered pictures (``name_%05d.png``).
        records: File to write with one line of JSON a frame.
        finder: Who finds people, for tasks that look at people; give it a low threshold, such as 0.1.
        detect_every: Look for people in every so many frames, and follow them in between.
        smooth: Whether to steady results over time; see `ResultSmoother`.
        draw: Makes the picture of a result; by default what `plot` draws. With `alpha` it returns RGBA.
        record: Makes the record of a result; by default `to_dict`.
        alpha: Whether the video has straight alpha (.webm, .mov).
        sound: Whether the sound of the source goes along.
        preview: Called in the background with each frame's number, picture and result.
        progress: Called with how many frames are done, and how many there are if known.
        segment_seconds: How much of the video a segment holds: what is lost, at most, when a run is stopped.
        settings: What the result depends on, such as the model's name; work of a run with other settings is not gone
            on with.
        overwrite: Start afresh, and replace what is there.
    """
    target = Path(out) if out is not None else None
    listing = Path(records) if records is not None else None
    if target is None and listing is None:
        raise InputError("out, records: expected at least one of them, got none. Say where results shall go.")
    if not segment_seconds > 0:
        raise InputError(f"segment_seconds: expected seconds above 0, got {segment_seconds}.")
    reader = open_video(source)
    length = max(1, round(segment_seconds * reader.rate))
    meaning = {"settings": dict(settings or {}), "detect_every": detect_every, "smooth": smooth, "alpha": alpha}
    folder = PartsFolder(target, listing, reader, length=length, meaning=meaning)
    if overwrite:
        folder.clear(finished=True)
    elif folder.finished():
        return VideoReport(frames=0, failures=0, resumed_at=0, skipped=True, out=target, records=listing)
    done = folder.resume()
    tracked = None if finder is None else TrackedFinder(finder, every=detect_every, marks=length)
    smoother = ResultSmoother() if smooth else None
    if done:
        state = folder.state(done[-1])
        if tracked is not None:
            tracked.restore(part_of(state, "finder_"))
        if smoother is not None:
            smoother.restore(part_of(state, "smoother_"))
    start = done[-1].stop if done else 0
    run = Run(folder, tracked, smoother, draw or plotted, record or recorded, alpha, preview)
    results = task(video_frames(reader, start), tracked)
    try:
        for result in results:
            run.take(result, start + run.count)
            if progress is not None:
                progress(start + run.count, reader.count)
        run.end()
    finally:
        run.close()
        close = getattr(results, "close", None)
        if close is not None:
            close()
    segments = [*done, *run.segments]
    if not segments:
        raise InputError(f"{reader.path}: expected frames, got none after the first {start}.")
    folder.join(segments, alpha=alpha, sound=sound)
    return VideoReport(
        frames=segments[-1].stop,
        failures=sum(segment.failures for segment in segments),
        resumed_at=start,
        skipped=False,
        out=target,
        records=listing,
    )


def video_frames(reader: VideoReader, start: int) -> Iterator[Frame]:
    """Read a video from a frame on."""
    for number, time, picture in reader.frames(start):
        yield Frame(picture=picture, name=str(reader.path), path=reader.path, frame=number, time=time)


def recorded(result: Result) -> dict[str, Any]:
    """Tell of a result as its own `to_dict` does."""
    return result.to_dict()


def plotted(result: Result) -> Picture:
    """Draw a result as `plot` does, in the size of its picture: without a legend beside it."""
    options = {"legend": False} if isinstance(result, Parts | Semantic) else {}
    return np.asarray(result.plot(**options).convert("RGB"))


class Run:
    """Results on their way into segments: smoothed in order, drawn and written in a thread behind."""

    def __init__(
        self,
        folder: PartsFolder,
        tracked: TrackedFinder | None,
        smoother: ResultSmoother | None,
        draw: Callable[[Result], NDArray[np.uint8]],
        record: Callable[[Result], Mapping[str, Any]],
        alpha: bool,
        preview: Callable[[int, NDArray[np.uint8], Result], Any] | None,
    ) -> None:
        self.folder, self.tracked, self.smoother = folder, tracked, smoother
        self.draw, self.record, self.alpha, self.preview = draw, record, alpha, preview
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="video")
        self.waiting: deque[Future[Any]] = deque()
        self.files: SegmentFiles | None = None  # of the segment that is being written
        self.shown: NDArray[np.uint8] | None = None  # the last picture
        self.segments: list[Segment] = []
        self.count = self.number = 0
        self.broken = False

    def take(self, result: Any, number: int) -> None:
        """Take the result of a frame, or its `Failure`."""
        if number % self.folder.length == 0:
            self.end_segment(number)
        if isinstance(result, Result) and self.smoother is not None:
            result = self.smoother(result)
        self.submit(self.write, result, number)
        self.count += 1
        self.number = number + 1

    def end(self) -> None:
        """Finish the last segment."""
        if self.count:
            self.end_segment(self.number)
        while self.waiting:
            self.waiting.popleft().result()

    def close(self) -> None:
        """Drop what is not finished, and let the thread go."""
        for future in self.waiting:
            future.cancel()
        self.worker.shutdown(wait=True)
        if self.files is not None:
            self.files.discard()
            self.files = None

    def end_segment(self, number: int) -> None:
        """Finish the segment that ends before a frame, with what is known by then."""
        state: dict[str, NDArray[Any]] = {}
        if self.tracked is not None:
            # The finder is ahead of the results: what it knew before this frame is what counts.
            state |= {f"finder_{name}": value for name, value in self.tracked.taken_mark(number).items()}
        if self.smoother is not None:
            state |= {f"smoother_{name}": value for name, value in self.smoother.state().items()}
        self.submit(self.finish, number, state)

    def submit(self, function: Callable[..., None], *values: Any) -> None:
        """Do something behind, and wait where too much is waiting already."""
        while len(self.waiting) >= WAITING:
            self.waiting.popleft().result()
        self.waiting.append(self.worker.submit(self.guarded, function, *values))

    def guarded(self, function: Callable[..., None], *values: Any) -> None:
        """Do something in the thread, unless something before it failed: a segment must not end with frames missing."""
        if self.broken:
            return
        try:
            function(*values)
        except BaseException:
            self.broken = True
            raise

    def write(self, result: Any, number: int) -> None:
        """Draw and write one frame; called in the thread."""
        if isinstance(result, Result):
            time = result.time if result.time is not None else float(number / self.folder.reader.rate)
            line = dict(self.record(result)) | {"frame": number, "time": round(time, 6)}
            if self.folder.out is not None or self.preview is not None:
                self.shown = self.draw(result)
        elif isinstance(result, Failure):
            time = float(number / self.folder.reader.rate)
            line = {"frame": number, "time": round(time, 6), "error": result.message}
        else:
            raise InputError(f"task: expected a Result or a Failure for each frame, got {type(result).__name__}.")
        if self.files is None:
            self.files = self.folder.open_segment(number, time, alpha=self.alpha)
        shown = self.shown
        if shown is None:
            shown = np.zeros((*self.folder.reader.size_hw, 4 if self.alpha else 3), np.uint8)
        self.files.write(shown, line, time, failed=isinstance(result, Failure))
        if self.preview is not None and isinstance(result, Result):
            self.preview(number, shown, result)

    def finish(self, number: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Finish the files of a segment; called in the thread."""
        if self.files is not None:
            files, self.files = self.files, None
            self.segments.append(files.finish(number, state))


class ResultSmoother:
    """Steadies the results of any task, which must come in order and hold their pictures.

    Keypoints are smoothed for each identity; normals, albedo, mattes and points where the picture stands still; the
    scale of points over half a second. Labels and masks stay as they are. After a cut of the scene all start anew.
    """

    def __init__(self) -> None:
        self.cuts = SceneCuts()
        self.points = KeypointSmoother()
        self.scale = ExponentialAverage(0.5)
        self.maps = DenseSmoother()
        self.vectors = DenseSmoother(unit=True)

    def __call__(self, result: Result) -> Result:
        """Return a result steadied by those before it."""
        if result.image is None or result.time is None:
            raise InputError("smoothing: expected results with their picture and time. Use keep_image=True on a video.")
        if self.cuts(result.image):
            for filtered in (self.points, self.scale, self.maps, self.vectors):
                filtered.reset()
        picture, time = result.image, result.time
        if isinstance(result, Pose):
            ids = None if result.people is None else result.people.ids
            numbers = np.arange(len(result.keypoints)) if ids is None else ids
            return replace(result, keypoints=self.points(result.keypoints, result.scores, numbers, time))
        if isinstance(result, Normals):
            return replace(result, normals=self.vectors(result.normals, picture, time))
        if isinstance(result, Albedo):
            return replace(result, albedo=self.maps(result.albedo, picture, time))
        if isinstance(result, Matte):
            both = self.maps(np.dstack((result.foreground, result.alpha)), picture, time)  # [H, W, 4]
            return replace(result, foreground=both[..., :3].copy(), alpha=both[..., 3].copy())
        if isinstance(result, Pointmap):
            return self.steady_points(result, picture, time)
        return result

    def steady_points(self, result: Pointmap, picture: Picture, time: float) -> Pointmap:
        """Steady the scale of points, then the points."""
        points, scale = result.points, result.scale
        if scale is not None:
            steady = float(self.scale(scale, time))
            points, scale = points * np.float32(scale / steady), steady
        return replace(result, points=self.maps(points, picture, time), scale=scale)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all memory as arrays, for `restore`."""
        states = {
            "cuts": self.cuts.state(),
            "points": self.points.state(),
            "scale": self.scale.state(),
            "maps": self.maps.state(),
            "vectors": self.vectors.state(),
        }
        return {f"{name}_{key}": value for name, state in states.items() for key, value in state.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self.cuts.restore(part_of(state, "cuts_"))
        self.points.restore(part_of(state, "points_"))
        self.scale.restore(part_of(state, "scale_"))
        self.maps.restore(part_of(state, "maps_"))
        self.vectors.restore(part_of(state, "vectors_"))
