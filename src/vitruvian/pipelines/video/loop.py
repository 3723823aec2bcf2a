"""Runs a task over a video file or a camera: tracked, smoothed, drawn and recorded, in constant memory, and resumable.

    frames ── a pipeline with a `TrackedDetector` ──▶ results ── ResultSmoother ──▶ drawn and written ──▶ segments
    all segments ── joined, with the sound of the source ──▶ the video; one line of JSON per frame ──▶ the records

Work is stored in a folder beside the output, `NAME.parts`: every few seconds a segment (video, records, and the state
of tracker and filters) is completed there. A run over a file that was stopped resumes after the last complete segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError, PromptError
from vitruvian.files.video import SequenceReader, VideoReader, open_video
from vitruvian.images.types import RgbImage
from vitruvian.pipelines.output_options import CommonVideoOptions
from vitruvian.pipelines.people.detectors import PeopleDetector
from vitruvian.pipelines.sources import Failure, Frame, Source, open_source, video_source
from vitruvian.pipelines.video.people_tracking import TrackedDetector
from vitruvian.pipelines.video.resume_folder import ResumeFolder, SegmentFiles, VideoSegment
from vitruvian.pipelines.video.smoothing import ResultSmoother
from vitruvian.pipelines.video.state import State, prefixed, substate
from vitruvian.results import Result

Drawing = NDArray[np.uint8]  # [H, W, 3] or [H, W, 4]
# Takes frames in order and the people detector; yields a result or a `Failure` for each, in order.
FrameProcessor = Callable[[Iterator[Frame] | Source, PeopleDetector | None], Iterable[Result | Failure]]
_CAMERA_RATE = Fraction(30)
_MAX_QUEUED = 4  # frames that wait to be drawn and written


@runtime_checkable
class _ResumableResults(Protocol):
    """Results of a task with a state of its own, such as objects that are tracked."""

    def set_snapshot_interval(self, frames: int) -> None:
        """Store the state before each frame whose number is a multiple of `frames`."""
        ...

    def state_before(self, frame: int) -> State:
        """Return the state before a frame, and drop older ones."""
        ...

    def reuse_ids(self, state: State) -> None:
        """Give objects the ids that they have in an earlier run, which ended with `state`. Called before `restore`."""
        ...

    def restore(self, state: State, frame: int) -> None:
        """Continue with `frame` from a state that `state_before` returned. Called before the first result is taken."""
        ...


class _Pipeline(Protocol):
    def run(self, source: object, **options: object) -> object: ...


@dataclass(frozen=True, kw_only=True)
class VideoOptions(CommonVideoOptions):
    """What to write about a video, and how.

    Args:
        out: Video to write, or numbered images (``name_%05d.png``).
        records: File to write with one line of JSON per frame.
        detector: People detector, for tasks about people. Give it a low threshold, such as 0.1.
        detect_every: Run the detector every N frames, and predict boxes in between.
        smooth: Whether to smooth results over time; see `ResultSmoother`.
        draw: Makes the image of a result; by default what `plot_frame` draws. With `alpha` it returns RGBA.
        record: Makes the record of a result; by default `to_dict`.
        alpha: Whether the video has straight alpha (.webm, .mov).
        sound: Whether to copy the sound of the source.
        preview: Called in the background with each frame's number, drawing and result.
        progress: Called with the number of completed frames, and the total if known.
        segment_seconds: Length of a segment: what is lost, at most, when a run is stopped.
        settings: What the output depends on, such as the model's name; a run with other settings is not resumed.
        frame_files: Names of the files that `record` writes for each frame; a run with others is not resumed.
        on_start: Called with the first frame that is processed, before it is; those before it are taken over.
        overwrite: Start again. Existing output stays until it is replaced.
        max_frames: Stop after this many frames, or where an earlier run was stopped, if that is later.
        keep_state: Folder to keep segments and states in, for `refine`.
        refine: A folder that `keep_state` named, and the first frame that is to change: everything before the segment
            of that frame is taken over.
    """

    out: str | Path | None = None
    records: str | Path | None = None
    detector: PeopleDetector | None = None
    draw: Callable[[Result], Drawing] | None = None
    record: Callable[[Result], Mapping[str, object]] | None = None
    alpha: bool = False
    preview: Callable[[int, Drawing, Result], object] | None = None
    progress: Callable[[int, int | None], object] | None = None
    segment_seconds: float = 10.0
    settings: Mapping[str, object] | None = None
    frame_files: Sequence[str] = ()
    on_start: Callable[[int], object] | None = None
    overwrite: bool = False
    max_frames: int | None = None
    keep_state: Path | None = None
    refine: tuple[Path, int] | None = None

    def __post_init__(self) -> None:
        if self.out is None and self.records is None:
            raise InputError("out, records: expected at least one of them. Pass out=… or records=….")
        if not self.segment_seconds > 0:
            raise InputError(f"segment_seconds: expected seconds above 0, got {self.segment_seconds}.")


@dataclass(frozen=True, kw_only=True)
class VideoReport:
    """Summary of a run over a video.

    Attributes:
        frames: Frames in the output.
        failures: Frames without a result; the previous drawing is repeated, and their records have the error.
        resumed_at: The frame at which this run resumed earlier work; 0 if there was none.
        skipped: Whether the output existed already.
        out: The video, if requested.
        records: The file of records, if requested.
        interrupted: Whether Ctrl-C ended a camera.
    """

    frames: int
    failures: int
    resumed_at: int
    skipped: bool
    out: Path | None
    records: Path | None
    interrupted: bool = False


def frame_processor(pipe: _Pipeline, **options: object) -> FrameProcessor:
    """Return the frame processor of a pipeline and the options of its call."""

    def run(frames: Iterator[Frame] | Source, detector: PeopleDetector | None) -> Iterable[Result | Failure]:
        results = pipe.run(frames, **(options if detector is None else options | {"detect": detector}))
        assert isinstance(results, Iterable)  # frames are never a single image
        return results

    return run


def run_video(
    source: str | Path | int, process_frames: FrameProcessor, options: VideoOptions | None = None, **changes: Any
) -> VideoReport:
    """Process every frame of a video.

    If a prompt does not fit or the file breaks off, the error is raised after the frames before are written. Finished
    results are not replaced after the error of a prompt, by fewer frames, or with `refine` by more failures.

    Args:
        source: A video file; images at 25 frames a second: numbered ones (``name_%05d.png``) or those of a folder; or a
            camera: its number or ``"camera:0"``. A camera runs until Ctrl-C.
        process_frames: What to do with frames; `frame_processor` returns that of a pipeline. The results
            must hold their images.
        options: What to write, and how.
        changes: Fields of `VideoOptions`, which replace those of `options`.
    """
    options = VideoOptions(**changes) if options is None else replace(options, **changes)
    live = isinstance(source, int) or str(source).startswith("camera:")
    reader = None if live else open_video(str(source))
    folder = _open_folder(options, reader)
    if options.refine is not None:
        folder.copy_from(options.refine[0], before=options.refine[1])
    elif options.overwrite or live:
        folder.clear()
    elif folder.finished():
        return VideoReport(frames=0, failures=0, resumed_at=0, skipped=True, out=folder.out, records=folder.records)
    done = folder.resume()
    start = done[-1].stop if done else 0
    if options.on_start is not None:
        options.on_start(start)
    state = folder.state(done[-1]) if done else None
    writer = _SegmentWriter(folder, options, start)
    if state is not None:
        writer.restore(state)
    results = process_frames(open_source(source) if reader is None else video_source(reader, start), writer.detector)
    if isinstance(results, _ResumableResults):
        writer.store_states_of(results, state)
    ending = _consume(results, writer, live=live, total=None if reader is None else reader.count)
    segments, error = [*done, *writer.segments], ending.error
    if options.refine is not None and error is None:
        error = folder.new_failure(segments, options.refine[0])
    if segments and (
        live or error is None or _replaces_results(folder, segments, error, refined=options.refine is not None)
    ):
        folder.join(segments, sound=options.sound)
    else:
        folder.clear()
    if error is not None:
        raise error
    if not segments and not ending.interrupted:
        raise InputError(f"{source}: expected frames, got none after the first {start}.")
    return VideoReport(
        frames=segments[-1].stop if segments else 0,
        failures=sum(segment.failures for segment in segments),
        resumed_at=start,
        skipped=False,
        out=folder.out,
        records=folder.records,
        interrupted=ending.interrupted,
    )


def _replaces_results(
    folder: ResumeFolder, segments: Sequence[VideoSegment], error: Exception, *, refined: bool
) -> bool:
    """Return whether segments that end with an error replace the results of an earlier run."""
    earlier = folder.finished_frames()
    keeps_earlier = refined or isinstance(error, PromptError) or earlier > segments[-1].stop
    return not earlier or not keeps_earlier


def split_video(source: str | Path, options: VideoOptions, *, seconds: float) -> list[tuple[int, int | None]]:
    """Divide a video into ranges of frames for `run_video_range`, and prepare their common folder.

    Ranges are whole segments, about as long as `seconds`. Once all are done, `run_video` joins them. Only for tasks
    whose results do not depend on other frames: without tracking and smoothing.

    Returns:
        The first frame of each range, and that after its last one; None for the end of the video.
    """
    reader = open_video(str(source))
    folder = _open_folder(options, reader)
    if options.overwrite:
        folder.clear()
    if options.on_start is not None and not folder.is_begun():
        options.on_start(0)
    folder.resume()
    length = folder.length * max(1, round(seconds * reader.rate / folder.length))
    starts = range(0, reader.count or 1, length)
    return [(start, start + length if start != starts[-1] else None) for start in starts]


def run_video_range(
    source: str | Path, process_frames: FrameProcessor, options: VideoOptions, frame_range: tuple[int, int | None]
) -> None:
    """Process a range of frames that `split_video` returned; what was completed before is kept."""
    reader = open_video(str(source))
    folder = _open_folder(options, reader)
    start, stop = folder.first_missing(frame_range[0]), frame_range[1]
    if stop is not None and start >= stop:
        return
    writer = _SegmentWriter(folder, options, start)
    rest = video_source(reader, start)
    frames = replace(rest, loaders=lambda: islice(rest.loaders(), None if stop is None else stop - start))
    _consume(process_frames(frames, writer.detector), writer, live=False, total=None)
    if isinstance(reader, VideoReader) and reader.damaged:
        raise InputError(
            f"{source}: expected a video without damaged packets to split, got {reader.damaged}. Do not split it."
        )


def _open_folder(options: VideoOptions, reader: VideoReader | SequenceReader | None) -> ResumeFolder:
    """Return the resume folder of an output; without a reader the source is a camera."""
    rate = _CAMERA_RATE if reader is None else reader.rate
    return ResumeFolder(
        None if options.out is None else Path(options.out),
        None if options.records is None else Path(options.records),
        reader,
        rate=rate,
        length=max(1, round(options.segment_seconds * rate)),
        alpha=options.alpha,
        frame_files=options.frame_files,
        options={
            "caller_settings": dict(options.settings or {}),
            "detect_every": options.detect_every,
            "smooth": options.smooth,
        },
        keep=options.keep_state,
    )


class _Ending(NamedTuple):
    """How the frames of a source ended: after the last one by default."""

    interrupted: bool = False  # by Ctrl-C, which ends a camera
    error: Exception | None = None  # to raise once the frames before it are written


def _consume(results: Iterable[Result | Failure], writer: _SegmentWriter, *, live: bool, total: int | None) -> _Ending:
    """Write all results, and complete the last segment. `total` is the number of frames if it is known."""
    ending, options = _Ending(), writer.options
    try:
        try:
            count = None if options.max_frames is None else max(0, options.max_frames - writer.next_frame)
            for result in islice(results, count):
                if isinstance(result, Failure) and result.frame is None:  # the source failed, not a frame
                    ending = _Ending(error=result.error)
                    break
                writer.add(result)
                if options.progress is not None:
                    options.progress(writer.next_frame, options.max_frames if live else total)
        except KeyboardInterrupt:
            if not live:
                raise
            ending = _Ending(interrupted=True)
        except PromptError as error:  # the frames before are complete
            ending = _Ending(error=error)
        writer.complete()
    finally:
        writer.close()
        close = getattr(results, "close", None)
        if close is not None:
            close()
    return ending


def _plot(result: Result) -> RgbImage:
    """Draw a result by default."""
    return np.asarray(result.plot_frame().convert("RGB"))


class _SegmentWriter:
    """Writes results into segments: smoothed in the calling thread, drawn and written in a background thread.

    Attributes:
        options: The options.
        detector: The detector for the frames, which assigns identities; None for tasks without one.
        next_frame: Number of the next frame to add.
        segments: Complete segments.
    """

    def __init__(self, folder: ResumeFolder, options: VideoOptions, start: int) -> None:
        self._folder, self.options = folder, options
        self.detector: TrackedDetector | None = None
        if options.detector is not None:
            every = options.detect_every
            self.detector = TrackedDetector(options.detector, every=every, snapshot_every=folder.length)
        self._smoother = ResultSmoother() if options.smooth else None
        self._draw, self._record = options.draw or _plot, options.record or methodcaller("to_dict")
        self._preview = options.preview
        self._resumable: _ResumableResults | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="video")
        self._queued: deque[Future[None]] = deque()
        self._files: SegmentFiles | None = None  # of the segment that is being written
        self._drawing: Drawing | None = None  # of the last frame
        self._failed = False
        self._start = self.next_frame = start
        self.segments: list[VideoSegment] = []

    def restore(self, state: State) -> None:
        """Continue from the state at the end of a segment."""
        if self.detector is not None:
            self.detector.restore(substate("detector.", state))
        if self._smoother is not None:
            self._smoother.restore(substate("smoother.", state))

    def store_states_of(self, results: _ResumableResults, state: State | None) -> None:
        """Store the state of results with each segment; they continue from `state`, if there is one."""
        self._resumable = results
        results.set_snapshot_interval(self._folder.length)
        if self.options.refine is not None and (last := self._folder.last_state(self.options.refine[0])):
            results.reuse_ids(substate("task.", last))
        if state is not None:
            results.restore(substate("task.", state), self._start)

    def add(self, result: Result | Failure) -> None:
        """Add the result of the next frame, or its `Failure`."""
        if not isinstance(result, Result | Failure):
            raise InputError(
                f"process_frames: expected a Result or a Failure for each frame, got {type(result).__name__}."
            )
        number = self.next_frame
        if number % self._folder.length == 0:
            self._end_segment(number)
        if isinstance(result, Result) and self._smoother is not None:
            result = self._smoother(result)
        self._submit(partial(self._write, result, number))
        self.next_frame = number + 1

    def complete(self) -> None:
        """Complete the last segment."""
        if self.next_frame > self._start:
            self._end_segment(self.next_frame)
        while self._queued:
            self._queued.popleft().result()

    def close(self) -> None:
        """Discard what is not complete, and end the thread."""
        for future in self._queued:
            future.cancel()
        self._thread.shutdown(wait=True)
        if self._files is not None:
            self._files.discard()
            self._files = None

    def _end_segment(self, number: int) -> None:
        """Complete the segment that ends before a frame, with the state before that frame."""
        state: State = {}
        if self.detector is not None:  # it is ahead of the results
            state |= prefixed("detector.", self.detector.state_before(number))
        if self._smoother is not None:
            state |= prefixed("smoother.", self._smoother.state())
        if self._resumable is not None:
            state |= prefixed("task.", self._resumable.state_before(number))
        self._submit(partial(self._finish, number, state))

    def _submit(self, work: Callable[[], None]) -> None:
        """Run `work` in the background thread; block while too much is queued."""

        def run() -> None:
            if self._failed:  # a segment must not be completed with frames missing
                return
            try:
                work()
            except BaseException:
                self._failed = True
                raise

        while len(self._queued) >= _MAX_QUEUED:
            self._queued.popleft().result()
        self._queued.append(self._thread.submit(run))

    # ------------------------------------------------------------------------------------------- background thread

    def _write(self, result: Result | Failure, number: int) -> None:
        """Draw and write one frame."""
        time = float(number / self._folder.rate)
        if isinstance(result, Failure):
            line: dict[str, object] = {"error": result.message}
        else:
            time = time if result.time is None else result.time
            line = dict(self._record(result))
            if self._folder.out is not None or self._preview is not None:
                self._drawing = self._draw(result)
        if self._files is None:
            self._files = SegmentFiles(self._folder, number, time)
        line = line | {"frame": number, "time": round(time, 6)}
        self._files.write(self._drawing, line, time, failed=isinstance(result, Failure))
        if self._preview is not None and isinstance(result, Result) and self._drawing is not None:
            self._preview(number, self._drawing, result)

    def _finish(self, number: int, state: State) -> None:
        """Complete the files of a segment."""
        if self._files is not None:
            files, self._files = self._files, None
            self.segments.append(files.finish(number, state))
