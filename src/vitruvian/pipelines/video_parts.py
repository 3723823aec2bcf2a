"""The folder in which a video is made piece by piece, `NAME.parts` beside the output.

plan.json                          what is made of what; other plans are not gone on with
000000.mp4  .jsonl  .npz  .json    a segment by the number of its first frame; .json comes last and makes it count
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.atomic import atomic_write
from vitruvian.errors import InputError
from vitruvian.files.arrays import json_text, write_json, write_npz
from vitruvian.files.video import NUMBERED, SequenceWriter, Sound, VideoReader, VideoWriter, codec_for, import_av

PLAN = "plan.json"
VERSION = 1


@dataclass(frozen=True)
class Segment:
    """A finished piece: frames from `start` to before `stop`, of which the first is at `time` seconds."""

    start: int
    stop: int
    time: float
    failures: int


class PartsFolder:
    """Where the pieces of one output lie.

    Args:
        out: The video, or numbered pictures, if wanted.
        records: The file of records, if wanted.
        reader: The source.
        length: Frames in a segment.
        meaning: What the output depends on besides, ready for JSON.
    """

    def __init__(
        self, out: Path | None, records: Path | None, reader: VideoReader, *, length: int, meaning: Mapping[str, Any]
    ) -> None:
        self.out, self.records, self.reader, self.length = out, records, reader, length
        first = out or records
        assert first is not None  # run_video has made sure
        self.path = first.with_name(first.name + ".parts")
        self.numbered = out is not None and bool(NUMBERED.search(out.name))
        if out is not None and not self.numbered:
            codec_for(out, alpha=bool(meaning.get("alpha")))  # a wrong ending shows before any work
        facts = reader.path.stat()
        self.plan = {
            "version": VERSION,
            "source": [str(reader.path.resolve()), facts.st_size, facts.st_mtime_ns],
            "outputs": [None if path is None else path.name for path in (out, records)],
            "length": length,
            "meaning": json.loads(json.dumps(meaning, default=str)),
        }

    def finished(self) -> bool:
        """Whether all outputs are there already, and nothing is left to go on with."""
        wanted = [path for path in (self.out if not self.numbered else None, self.records) if path is not None]
        return bool(wanted) and all(path.exists() for path in wanted) and not self.path.exists()

    def resume(self) -> list[Segment]:
        """Return the segments that are whole, in order; a folder of another plan is cleared, and one that is not there
        is made."""
        found: list[Segment] = []
        if read_json(self.path / PLAN) == self.plan:
            for path in sorted(self.path.glob("*.json")):
                segment = None if path.name == PLAN else read_segment(path)
                if segment is None:
                    continue
                follows = segment.start == (found[-1].stop if found else 0) and segment.start % self.length == 0
                if not follows or not all(file.exists() for file in self.files(segment.start)[:-1]):
                    break
                found.append(segment)
            while found and not self.files(found[-1].start)[-1].exists():  # only the newest states are kept
                found.pop()
        else:
            self.clear()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / PLAN, self.plan)
        return found

    def files(self, start: int) -> list[Path]:
        """Return the files of the segment that starts with a frame: video, records, and what was known at its end."""
        name = f"{start:08d}"
        video = [] if self.out is None or self.numbered else [self.path / f"{name}{self.out.suffix.lower()}"]
        return [*video, self.path / f"{name}.jsonl", self.path / f"{name}.npz"]

    def state(self, segment: Segment) -> dict[str, NDArray[Any]]:
        """Return what was known at the end of a segment."""
        with np.load(self.files(segment.start)[-1], allow_pickle=False) as saved:
            return {name: saved[name] for name in saved.files}

    def open_segment(self, start: int, time: float, *, alpha: bool) -> SegmentFiles:
        """Open the files of a segment that starts with a frame."""
        return SegmentFiles(self, start, time, alpha=alpha)

    def clear(self, *, finished: bool = False) -> None:
        """Remove the folder if it is one of ours, and the finished output too if asked to."""
        if (self.path / PLAN).exists():
            shutil.rmtree(self.path)
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise InputError(f"{self.path}: expected a folder of this program, got another. Move it away.")
        if finished:
            for path in (self.out, self.records):
                if path is not None:
                    path.unlink(missing_ok=True)

    def join(self, segments: Sequence[Segment], *, alpha: bool, sound: bool) -> None:
        """Put all segments together, and remove the folder."""
        if self.records is not None:
            with atomic_write(self.records) as temporary, temporary.open("wb") as whole:
                for segment in segments:
                    with self.files(segment.start)[-2].open("rb") as part:
                        shutil.copyfileobj(part, whole)
        if self.out is not None and not self.numbered:
            pieces = [(self.files(segment.start)[0], segment.time) for segment in segments]
            join_videos(pieces, self.out, alpha=alpha, sound_from=self.reader.path if sound else None)
        shutil.rmtree(self.path)


class SegmentFiles:
    """The files of a segment while it is written."""

    def __init__(self, folder: PartsFolder, start: int, time: float, *, alpha: bool) -> None:
        self.folder, self.start, self.time, self.failures = folder, start, time, 0
        *video, lines, self.state_path = folder.files(start)
        self.writer: VideoWriter | SequenceWriter | None = None
        if video:
            self.writer = VideoWriter(video[0], folder.reader.rate, folder.reader.size_hw, alpha=alpha)
        elif folder.numbered and folder.out is not None:
            self.writer = SequenceWriter(folder.out, alpha=alpha, start=start)
        self.lines: IO[str] = lines.open("w", encoding="utf-8")

    def write(self, picture: NDArray[np.uint8], line: Mapping[str, Any], time: float, *, failed: bool) -> None:
        """Add a frame."""
        if self.writer is not None:
            self.writer.write(picture, time - self.time)
        self.lines.write(json_text(line) + "\n")
        self.failures += failed

    def finish(self, stop: int, state: Mapping[str, NDArray[Any]]) -> Segment:
        """Close the files and let the segment count."""
        segment = Segment(self.start, stop, self.time, self.failures)
        if self.writer is not None:
            self.writer.close()
        self.lines.close()
        write_npz(self.state_path, dict(state))
        write_json(self.state_path.with_suffix(".json"), asdict(segment))
        if self.start >= self.folder.length:
            self.folder.files(self.start - self.folder.length)[-1].unlink(missing_ok=True)
        return segment

    def discard(self) -> None:
        """Remove what was written."""
        if self.writer is not None:
            self.writer.discard()
        self.lines.close()


def join_videos(
    pieces: Sequence[tuple[Path, float]], out: Path, *, alpha: bool, sound_from: Path | None = None
) -> None:
    """Put videos of one kind behind each other without encoding anew, each from its time in seconds on."""
    av = import_av()
    kind = codec_for(out, alpha=alpha)
    options = {"movflags": "+faststart"} if kind.container == "mp4" else {}
    with atomic_write(out) as temporary, av.open(str(temporary), "w", format=kind.container, options=options) as whole:
        stream: Any = None
        sound: Sound | None = None
        last = -1
        try:
            for path, start in pieces:
                with av.open(str(path)) as part:
                    track = part.streams.video[0]
                    if stream is None:
                        stream = whole.add_stream_from_template(track)
                        stream.time_base = track.time_base
                        if alpha and kind.container == "webm":
                            stream.metadata["alpha_mode"] = "1"
                        sound = None if sound_from is None else Sound.open(sound_from, whole)
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
        finally:
            if sound is not None:
                sound.close()


def read_segment(path: Path) -> Segment | None:
    """Return the segment that a file tells of; None where it is broken."""
    facts = read_json(path)
    try:
        return Segment(**facts)
    except TypeError:
        return None


def read_json(path: Path) -> Any:
    """Return what is in a file of ours; None where it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
