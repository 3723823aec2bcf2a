"""Video files → pictures: `VideoReader`, through PyAV (the extra `video`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import ImageError, InputError, MissingExtraError
from vitruvian.images.decode import one_line

Picture = NDArray[np.uint8]  # [H, W, 3], RGB

TALLEST_SD = 576  # rows; taller video that does not state its colours is BT.709, as players assume


def import_av() -> Any:
    """Return PyAV, or raise `MissingExtraError`."""
    try:
        import av
    except ImportError as error:
        raise MissingExtraError("av", "video", "video files") from error
    return av


def open_video(path: str | Path) -> VideoReader:
    """Open a video file, or raise `ImageError` where it holds no picture that can be decoded."""
    return VideoReader(path)


class VideoReader:
    """The frames of a video, upright and in order, one at a time: memory stays the same however long it is.

    Each pass over the reader opens the file afresh, so it can be iterated again, and from several threads.

    Attributes:
        path: The file.
        rate: Frames a second, exact.
        size_hw: Height and width, after rotation.
        count: How many frames the file says it has, or its length suggests; None where neither is known.
        duration: Length in seconds, where known.
        has_sound: Whether there is sound.
        rotation: Degrees counter-clockwise by which the stored pictures are turned, a multiple of 90.
        damaged: How many packets could not be decoded in the latest pass; they are left out, as players do.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damaged = 0
        self._times: list[int] | None = None
        if not self.path.is_file():
            raise ImageError(f"{self.path}: expected a video file, got no such file. Check the name.")
        with self._opened() as (container, stream):
            first = next(self._decoded(container, stream), None)
            if first is None:
                raise ImageError(f"{self.path}: expected frames that can be decoded, got none. Is the file whole?")
            rate = stream.average_rate or stream.guessed_rate or stream.base_rate
            self.rate = Fraction(rate) if rate else Fraction(25)
            self.rotation = round(first.rotation / 90) * 90
            sides = (first.height, first.width)
            self.size_hw = sides if self.rotation % 180 == 0 else (sides[1], sides[0])
            self.has_sound = bool(container.streams.audio)
            self.duration = length_of(container, stream)
            guess = None if self.duration is None else round(self.duration * self.rate)
            self.count: int | None = stream.frames or guess

    def __iter__(self) -> Iterator[tuple[int, float, Picture]]:
        return self.frames()

    def frames(self, start: int = 0) -> Iterator[tuple[int, float, Picture]]:
        """Give (number, seconds since the first frame, picture uint8 [H, W, 3]) from frame `start` on.

        Times are those of the file, so those of a variable rate are kept. A start in the middle is found exactly: by
        seeking where the file's timestamps allow it, by decoding and skipping where not.
        """
        if start < 0:
            raise InputError(f"start: expected a frame number of at least 0, got {start}.")
        self.damaged = 0
        found = self._sought(start) if start else None
        if found is None:
            found = self._skipped(start)
        for index, (time, frame) in enumerate(found, start):
            yield index, float(time) if time is not None else float(index / self.rate), self._picture(frame)

    def exact_count(self) -> int:
        """Count the frames by reading the file through, without decoding where its timestamps allow it."""
        times = self._timestamps()
        return len(times) if times is not None else sum(1 for _ in self._skipped(0))

    def close(self) -> None:
        """Nothing stays open between passes; here so that a reader can be used like a file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ inside

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        av = import_av()
        try:
            container = av.open(str(self.path))
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise ImageError(
                f"{self.path}: expected a video, got {one_line(error)}. Is it whole, and a video at all?"
            ) from error
        with container:
            if not container.streams.video:
                raise ImageError(f"{self.path}: expected a video, got a file without pictures.")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            yield container, stream

    def _packets(self, container: Any, stream: Any) -> Iterator[Any]:
        """Packets of the video; a file that breaks off ends where it does."""
        av = import_av()
        try:
            yield from container.demux(stream)
        except (av.error.FFmpegError, EOFError):
            self.damaged += 1

    def _decoded(self, container: Any, stream: Any) -> Iterator[Any]:
        av = import_av()
        for packet in self._packets(container, stream):
            try:
                yield from packet.decode()
            except (av.error.FFmpegError, EOFError):
                self.damaged += 1

    def _timed(self, container: Any, stream: Any) -> Iterator[tuple[Fraction | None, Any]]:
        """Frames with their time since the start of the stream."""
        beginning = stream.start_time or 0
        for frame in self._decoded(container, stream):
            yield (None if frame.pts is None else (frame.pts - beginning) * stream.time_base), frame

    def _skipped(self, start: int) -> Iterator[tuple[Fraction | None, Any]]:
        with self._opened() as (container, stream):
            for index, timed in enumerate(self._timed(container, stream)):
                if index >= start:
                    yield timed

    def _sought(self, start: int) -> Iterator[tuple[Fraction | None, Any]] | None:
        """Frames from `start` on after a seek, or None where the file cannot be sought exactly."""
        times = self._timestamps()
        if times is None or start >= len(times):
            return None
        found = self._from_timestamp(times[start])
        first = next(found, None)
        if first is None or first[1].pts != times[start]:
            return None
        return chained(first, found)

    def _from_timestamp(self, target: int) -> Iterator[tuple[Fraction | None, Any]]:
        av = import_av()
        with self._opened() as (container, stream):
            try:
                container.seek(target, stream=stream, backward=True)
            except av.error.FFmpegError:
                return
            for time, frame in self._timed(container, stream):
                if frame.pts is not None and frame.pts >= target:
                    yield time, frame

    def _timestamps(self) -> list[int] | None:
        """Timestamps of all frames in order, read without decoding; None where some have none or share one."""
        if self._times is None:
            with self._opened() as (container, stream):
                packets = (p for p in self._packets(container, stream) if p.size and not p.is_discard)
                times = [packet.pts for packet in packets]
            whole = None not in times and len(set(times)) == len(times)
            self._times = sorted(times) if whole else []
        return self._times or None

    def _picture(self, frame: Any) -> Picture:
        unstated = frame.colorspace not in (1, 4, 5, 6, 7, 9, 10)  # numbers of the standards that swscale knows
        space = "ITU709" if unstated and frame.height > TALLEST_SD else None
        picture: Picture = frame.reformat(format="rgb24", src_colorspace=space).to_ndarray()
        return np.ascontiguousarray(np.rot90(picture, self.rotation // 90)) if self.rotation else picture


def chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """Give `first`, then `rest`."""
    yield first
    yield from rest


def length_of(container: Any, stream: Any) -> float | None:
    """Length of a stream in seconds: from its own header, its tags (as Matroska has it), or the container's header."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    tag = re.fullmatch(r"(\d+):(\d+):([\d.]+)", stream.metadata.get("DURATION", ""))
    if tag:
        return int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3])
    return container.duration / 1_000_000 if container.duration else None
