"""The folder in which a video is written segment by segment, `NAME.parts` beside the output.

plan.json                          source, outputs and options; another plan is not resumed
00000000.mp4  .jsonl  .npz  .json  a segment, by the number of its first frame; .json comes last, with their digests

Only the last state is stored, unless the segments are kept for changes that start at some frame.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.files.arrays import write_npz
from vitruvian.files.video import (
    SequenceReader,
    SequenceWriter,
    Sound,
    VideoReader,
    VideoWriter,
    codec_for,
    open_container,
    open_video,
)
from vitruvian.filesystem.atomic import atomic_write, remove_temporary_files, write_errors
from vitruvian.filesystem.json_files import json_text, read_json, write_json
from vitruvian.filesystem.media_files import FRAME_PATTERN
from vitruvian.pipelines.video.state import State

_PLAN = "plan.json"
_VERSION = 8


@dataclass(frozen=True)
class VideoSegment:
    """A complete segment: frames from `start` to before `stop`; `time` of the first in seconds; SHA-256 of files."""

    start: int
    stop: int
    time: float
    failures: int
    digests: list[str | None]

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Read a description; None if it is missing or invalid."""
        values = _read_json(path)
        if not isinstance(values, dict) or values.keys() != cls.__annotations__.keys():
            return None
        numbers = [values[name] for name in ("start", "stop", "failures")]
        if not all(type(value) is int and value >= 0 for value in numbers):
            return None
        return cls(**values) if isinstance(values["time"], float) and isinstance(values["digests"], list) else None


def resume_path(output: Path) -> Path:
    """Return the folder with the segments of a video or a file of records that is being written."""
    return output.with_name(output.name + ".parts")


def read_caller_settings(folder: Path) -> dict[str, Any]:
    """Return the `VideoOptions.settings` with which the segments in a folder were written."""
    settings: dict[str, Any] = read_json(folder / _PLAN)["options"]["caller_settings"]
    return settings


class ResumeFolder:
    """The folder with the finished segments of one output, and their plan.

    Args:
        out: The video, or numbered images, if requested.
        records: The file of records, if requested.
        reader: The source; None for a camera.
        rate: Frames per second.
        length: Frames in a segment.
        alpha: Whether the video has an alpha channel.
        frame_files: Names of the files that are written for each frame, elsewhere.
        options: What else the output depends on, as JSON values; `VideoOptions.settings` are its "caller_settings".
        keep: Folder in which all segments stay, with their states; None to remove them when they are joined.
    """

    def __init__(
        self,
        out: Path | None,
        records: Path | None,
        reader: VideoReader | SequenceReader | None,
        *,
        rate: Fraction,
        length: int,
        alpha: bool,
        frame_files: Sequence[str] = (),
        options: Mapping[str, object],
        keep: Path | None = None,
    ) -> None:
        self.out, self.records, self.reader, self.keep = out, records, reader, keep
        self.rate, self.length, self.alpha = rate, length, alpha
        first = out or records
        assert first is not None  # run_video checks it
        self.path = resume_path(first)
        self.numbered = out is not None and bool(FRAME_PATTERN.search(out.name))
        if out is not None and not self.numbered:
            codec_for(out, alpha=alpha)  # raises for a wrong suffix
        self.plan = {
            "version": _VERSION,
            "source": None if reader is None else reader.version(),
            "outputs": [*(None if path is None else path.name for path in (out, records)), *frame_files],
            "length": length,
            "options": json.loads(json.dumps({**options, "alpha": alpha}, default=str)),
        }

    @property
    def _outputs(self) -> list[Path]:
        """The video and the file of records, those that are requested."""
        return [path for path in (self.out if not self.numbered else None, self.records) if path is not None]

    def finished(self) -> bool:
        """Return whether all outputs exist and there is nothing to resume."""
        outputs = self._outputs
        return bool(outputs) and all(path.exists() for path in outputs) and not self.path.exists()

    def finished_frames(self) -> int:
        """Return the number of frames in the results of an earlier run; 0 if an output is missing."""
        outputs = self._outputs
        if not outputs or not all(path.exists() for path in outputs):
            return 0
        if self.records is None:
            return open_video(outputs[0]).count or 0
        with self.records.open("rb") as file:
            return sum(1 for _ in file)

    def is_begun(self) -> bool:
        """Return whether an earlier run with the same plan was interrupted."""
        return bool(_read_json(self.path / _PLAN) == self.plan)

    def resume(self) -> list[VideoSegment]:
        """Return the complete segments, in order. Clears a folder of another plan, and creates a missing one."""
        segments: list[VideoSegment] = []
        if self.is_begun():
            while (segment := self._segment(segments[-1].stop if segments else 0)) is not None:
                segments.append(segment)
            while segments and segments[-1].digests != self._digests(segments[-1]):  # only the last states are stored
                segments.pop()
        else:
            self.clear()
        self.path.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(self.path)
        write_json(self.path / _PLAN, self.plan)
        return segments

    def _segment(self, start: int) -> VideoSegment | None:
        """Return the complete segment that starts with a frame, if there is one."""
        segment = VideoSegment.read(self.files(start)[-1].with_suffix(".json"))
        if segment is None or start % self.length or not segment.start == start < segment.stop:
            return None
        return segment if segment.digests[:-1] == self._digests(segment)[:-1] else None

    def first_missing(self, start: int) -> int:
        """Return the first frame from `start`, where a segment starts, that is in no complete segment."""
        while (segment := self._segment(start)) is not None:
            start = segment.stop
        return start

    def copy_from(self, earlier: Path, *, before: int) -> None:
        """Copy the segments of an earlier run that end at or before a frame.

        Does nothing if this output was begun already.
        """
        plan = _read_json(earlier / _PLAN)
        if not isinstance(plan, dict) or {**plan, "options": None} != {**self.plan, "options": None}:
            raise InputError(
                f"{earlier}: expected segments of the same video and outputs, got "
                f"{'those of another video or other outputs' if plan else 'a folder without segments'}. "
                "Run it again with the same source, --out and --save."
            )
        if self.is_begun():
            return
        self.clear()
        self.path.mkdir(parents=True)
        for segment in _read_segments(earlier):
            if segment.stop <= before and segment.digests == self._digests(segment, earlier):
                files = self.files(segment.start)
                for file in (*files, files[-1].with_suffix(".json")):
                    if (earlier / file.name).exists():  # there is no video if all of its frames failed
                        shutil.copyfile(earlier / file.name, self.path / file.name)
        write_json(self.path / _PLAN, self.plan)

    def new_failure(self, segments: Sequence[VideoSegment], earlier: Path) -> InputError | None:
        """Return an error with that of the first frame if more frames failed than in an earlier run."""
        before, now = (sum(segment.failures for segment in run) for run in (_read_segments(earlier), segments))
        if now <= before:
            return None
        lines = (line for segment in segments for line in self.files(segment.start)[-2].read_text("utf-8").splitlines())
        first = next(error for line in lines if (error := json.loads(line).get("error")))
        return InputError(f"{earlier}: expected {before} failed frames as before, got {now}: {first}")

    def files(self, start: int) -> list[Path]:
        """Return the files of the segment that starts with a frame: video, records, and the state at its end."""
        name = f"{start:08d}"
        video = [] if self.out is None or self.numbered else [self.path / f"{name}{self.out.suffix.lower()}"]
        return [*video, self.path / f"{name}.jsonl", self.path / f"{name}.npz"]

    def _digests(self, segment: VideoSegment, folder: Path | None = None) -> list[str | None]:
        """Return the SHA-256 of the files of a segment in this folder or another; None for missing ones."""
        return [_digest((folder or self.path) / file.name) for file in self.files(segment.start)]

    def state(self, segment: VideoSegment, folder: Path | None = None) -> State:
        """Return the state at the end of a segment in this folder or another."""
        with np.load((folder or self.path) / self.files(segment.start)[-1].name, allow_pickle=False) as saved:
            return {name: saved[name] for name in saved.files}

    def last_state(self, earlier: Path) -> State:
        """Return the state at the end of the last segment of an earlier run that is whole; an empty one without any."""
        for segment in reversed(_read_segments(earlier)):
            if segment.digests == self._digests(segment, earlier):
                return self.state(segment, earlier)
        return {}

    def clear(self) -> None:
        """Remove the folder if this program created it."""
        if (self.path / _PLAN).exists():
            _remove_segments(self.path)
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise _unknown_folder(self.path)

    def join(self, segments: Sequence[VideoSegment], *, sound: bool) -> None:
        """Join all segments, and remove or keep the folder."""
        if self.records is not None:
            with atomic_write(self.records) as temporary, temporary.open("wb") as whole:
                for segment in segments:
                    with self.files(segment.start)[-2].open("rb") as part:
                        shutil.copyfileobj(part, whole)
        if self.out is not None and not self.numbered:
            videos = [(self.files(segment.start)[0], segment.time) for segment in segments]
            videos = [(path, time) for path, time in videos if path.exists()]  # a camera may fail in all its frames
            sound_from = self.reader.path if sound and self.reader is not None and self.reader.has_sound else None
            _join_videos(videos, self.out, alpha=self.alpha, sound_from=sound_from)
        if self.keep is None:
            _remove_segments(self.path)
            return
        replaced = self.keep.with_name(self.keep.name + ".replaced")
        if replaced.is_dir():  # a process was killed here
            _remove_segments(replaced)
        if self.keep.is_dir() and any(self.keep.iterdir()):
            if not (self.keep / _PLAN).exists():
                raise _unknown_folder(self.keep)
            self.keep.rename(replaced)
        self.path.rename(self.keep)
        if replaced.is_dir():
            _remove_segments(replaced)


class SegmentFiles:
    """The files of a segment while it is written."""

    def __init__(self, folder: ResumeFolder, start: int, time: float) -> None:
        self._folder, self._start, self._time, self._failures = folder, start, time, 0
        *video, lines, self._state_path = folder.files(start)
        self._video = video[0] if video else None
        self._writer: VideoWriter | SequenceWriter | None = None  # created with the first image, which has its size
        self._lines: IO[str] = lines.open("w", encoding="utf-8")

    def write(self, image: NDArray[np.uint8] | None, line: Mapping[str, object], time: float, *, failed: bool) -> None:
        """Add a frame; without an image a black one, if the size of the video is known."""
        folder = self._folder
        if image is None and folder.reader is not None:
            image = np.zeros((*folder.reader.size_hw, 4 if folder.alpha else 3), np.uint8)
        if image is not None and folder.out is not None:
            if self._writer is None and self._video is not None:
                size_hw = image.shape[:2] if folder.reader is None else folder.reader.size_hw
                self._writer = VideoWriter(self._video, folder.rate, (size_hw[0], size_hw[1]), alpha=folder.alpha)
            elif self._writer is None:
                self._writer = SequenceWriter(folder.out, start=self._start)
            self._writer.write(image, time - self._time)
        with write_errors(self._folder.path):
            self._lines.write(json_text(line) + "\n")
        self._failures += failed

    def finish(self, stop: int, state: State) -> VideoSegment:
        """Close the files and complete the segment."""
        if self._writer is not None:
            self._writer.close()
        with write_errors(self._folder.path):
            self._lines.close()
        write_npz(self._state_path, state)
        digests = [_digest(file) for file in self._folder.files(self._start)]
        segment = VideoSegment(self._start, stop, float(self._time), self._failures, digests)
        write_json(self._state_path.with_suffix(".json"), asdict(segment))
        if self._start >= self._folder.length and self._folder.keep is None:
            self._folder.files(self._start - self._folder.length)[-1].unlink(missing_ok=True)
        return segment

    def discard(self) -> None:
        """Remove the video, and close the records."""
        if self._writer is not None:
            self._writer.discard()
        with contextlib.suppress(OSError):  # what is buffered may not fit the disk
            self._lines.close()


def _unknown_folder(folder: Path) -> InputError:
    return InputError(f"{folder}: expected a folder that vitruvian wrote, got another one. Move or delete it.")


def _read_segments(folder: Path) -> list[VideoSegment]:
    """Return the complete segments of a folder in order."""
    segments = map(VideoSegment.read, sorted(folder.glob("[0-9]*.json")))
    return [segment for segment in segments if segment is not None]


def _remove_segments(folder: Path) -> None:
    """Remove a folder of segments, its plan last: without one, what a killed process leaves would not be known."""
    for file in folder.iterdir():
        if file.name != _PLAN:
            file.unlink()
    shutil.rmtree(folder)


def _join_videos(
    videos: Sequence[tuple[Path, float]], out: Path, *, alpha: bool, sound_from: Path | None = None
) -> None:
    """Concatenate videos of one codec without encoding them again; each starts at its time in seconds."""
    kind = codec_for(out, alpha=alpha)
    options = {"movflags": "+faststart"} if kind.container == "mp4" else {}
    stream: Any = None
    sound: Sound | None = None
    last = -1
    with (
        atomic_write(out) as temporary,
        open_container(temporary, "w", format=kind.container, options=options) as whole,
        ExitStack() as opened,
    ):
        for path, start in videos:
            with open_container(path) as part:
                track = part.streams.video[0]
                if stream is None:
                    stream = whole.add_stream_from_template(track)
                    stream.time_base = track.time_base
                    if alpha and kind.container == "webm":
                        stream.metadata["alpha_mode"] = "1"
                    sound = None if sound_from is None else Sound.open(sound_from, whole)
                    if sound is not None:
                        opened.callback(sound.close)
                shift = round(Fraction(start) / track.time_base)
                for packet in part.demux(track):
                    if packet.dts is None:
                        continue
                    packet.dts = last = max(packet.dts + shift, last + 1)
                    packet.pts = max(packet.pts + shift, packet.dts)
                    packet.stream = stream
                    at = packet.pts * track.time_base
                    whole.mux(packet)
                    if sound is not None:
                        sound.advance(at)
        if sound is not None:
            sound.finish()


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or invalid."""
    try:
        return read_json(path)
    except (OSError, InputError):
        return None


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
