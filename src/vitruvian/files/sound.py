"""Sound that goes along with a new video: copied packet by packet, or encoded anew where the container needs that."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

from vitruvian.errors import ImageError
from vitruvian.files.video_reading import import_av
from vitruvian.images.decode import one_line

# What to encode to where a container cannot hold the codec of the source; Opus knows only 48 kHz (and parts of it).
REPLACEMENTS: dict[str, tuple[str, int | None]] = {
    "webm": ("libopus", 48_000),
    "mp4": ("aac", None),
    "mov": ("aac", None),
}

WARM_UP = Fraction(1, 10)  # seconds


class Sound:
    """The first sound track of a file, handed to an open output in step with its pictures.

    Times are counted from the start of the source's pictures, as those of the new video are.
    """

    def __init__(self, source: Any, output: Any, *, until: float | None) -> None:
        track = source.streams.audio[0]
        pictures = source.streams.video
        self._source, self._output, self._until = source, output, until
        self._shift = (pictures[0].start_time or 0) * pictures[0].time_base if pictures else Fraction(0)
        self.copied = track.codec_context.codec.canonical_name in output.supported_codecs
        if self.copied:
            self._stream = output.add_stream_from_template(track)
        else:
            name, rate = REPLACEMENTS[output.format.name]
            self._stream = output.add_stream(name, rate=rate or track.rate, layout=track.layout.name)
        self._pieces = self._packets(track) if self.copied else self._encoded(track)
        self._next: tuple[Fraction, Any] | None = next(self._pieces, None)

    @classmethod
    def open(cls, path: str | Path, output: Any, *, until: float | None = None) -> Self | None:
        """Open the sound of `path` for `output`; None where it has none."""
        av = import_av()
        try:
            source = av.open(str(path))
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise ImageError(f"{path}: expected a file with sound, got {one_line(error)}.") from error
        if not source.streams.audio:
            source.close()
            return None
        return cls(source, output, until=until)

    def advance(self, seconds: Fraction) -> None:
        """Hand over the sound up to this time."""
        while self._next is not None and self._next[0] <= seconds:
            self._output.mux(self._next[1])
            self._next = next(self._pieces, None)

    def finish(self) -> None:
        """Hand over the rest."""
        while self._next is not None:
            self.advance(self._next[0])

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _packets(self, track: Any) -> Iterator[tuple[Fraction, Any]]:
        for packet in self._source.demux(track):
            if packet.dts is None:
                continue
            shift = round(self._shift / packet.time_base)
            packet.dts -= shift
            packet.pts = packet.dts if packet.pts is None else packet.pts - shift
            start = packet.pts * packet.time_base
            if self._until is not None and start >= self._until:
                return
            # Sound from before the first picture goes, but for the little that decoders need to get going.
            if start > -WARM_UP:
                packet.stream = self._stream
                yield start, packet

    def _encoded(self, track: Any) -> Iterator[tuple[Fraction, Any]]:
        for frame in self._source.decode(track):
            if frame.pts is not None:
                frame.pts -= round(self._shift / frame.time_base)
                if frame.pts < 0:
                    continue
                if self._until is not None and frame.pts * frame.time_base >= self._until:
                    break
            yield from self._timed(self._stream.encode(frame))
        yield from self._timed(self._stream.encode(None))

    def _timed(self, packets: list[Any]) -> Iterator[tuple[Fraction, Any]]:
        for packet in packets:
            yield (packet.pts or 0) * packet.time_base, packet
