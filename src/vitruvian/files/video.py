"""Video files through PyAV (the extra `video`): `VideoReader`, `VideoWriter`, `SequenceWriter`, `Sound`."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import ImageError, InputError, import_extra, one_line
from vitruvian.files.images import write_image
from vitruvian.filesystem.atomic import Writer, temporary_path, write_errors
from vitruvian.filesystem.media_files import FRAME_PATTERN, sequence_files
from vitruvian.images import load_image
from vitruvian.images.types import RgbImage
from vitruvian.limits import get_limits

_Container = Any  # objects of PyAV, which is optional
_Stream = Any
_Packet = Any
_Frame = Any
_TimedFrame = tuple[Fraction | None, _Frame]  # seconds since the start of the stream

FRAME_FORMAT = "%05d"  # the number of a frame in file names that commands choose
_SEQUENCE_RATE = Fraction(25)  # frames per second of numbered images
_END_TOLERANCE = 2.5  # frames between the last one and the end that a header states, which may be rounded
_MAX_SD_HEIGHT = 576  # taller video without a stated color space is BT.709, as players assume


def import_av() -> ModuleType:
    """Return PyAV, or raise `MissingExtraError`."""
    av: ModuleType = import_extra("av", "video", "video files")
    return av


def open_container(path: str | Path, mode: str = "r", **options: Any) -> _Container:
    """Open a local file with PyAV; `options` are those of `av.open`.

    FFmpeg reads the part of a name before a colon as a protocol, and playlists may name URLs: the path is marked as a
    file, and no other protocol is available. Decoders refuse frames above `Limits.frame_pixels` before they allocate.
    """
    limits = {"protocol_whitelist": "file", "max_pixels": str(get_limits().frame_pixels)} if mode == "r" else {}
    return import_av().open(f"file:{path}", mode, options=limits | options.pop("options", {}), **options)


def open_video(path: str | Path) -> VideoReader | SequenceReader:
    """Open a video file, numbered images (``name_%05d.png``) or a folder of images.

    Raises:
        ImageError: No frame can be decoded.
    """
    if Path(path).is_dir() or (FRAME_PATTERN.search(Path(path).name) and not Path(path).exists()):
        return SequenceReader(path)
    return VideoReader(path)


# -------------------------------------------------------------------------------------------------------- reading


class DecodedFrame(NamedTuple):
    """A frame of a video as the decoder returns it.

    Attributes:
        number: Its number.
        time: Seconds since the first frame.
        nbytes: Bytes of its RGB image.
        to_rgb: Converts it to RGB, uint8 [H, W, 3]. May be called from any thread.
    """

    number: int
    time: float
    nbytes: int
    to_rgb: Callable[[], RgbImage]


class VideoReader:
    """Iterate over the frames of a video, upright and in order, with constant memory.

    Each iteration opens the file again, so a reader can be iterated many times, also from several threads. A file
    without a frame that can be decoded is an `ImageError`.

    Attributes:
        path: The file.
        rate: Frames per second, exact.
        size_hw: Height and width, after rotation.
        count: Number of frames by the header, or estimated from the duration; None where both are unknown.
        duration: Length in seconds, or None.
        has_sound: Whether there is an audio track.
        rotation: Degrees counter-clockwise by which the stored frames are rotated, a multiple of 90.
        damaged: Number of packets that could not be decoded in the latest iteration; they are skipped.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damaged = 0
        self._times: list[int] | None = None
        self._frames_read = 0  # number of the next frame in the latest iteration
        self._end_read = -math.inf  # of the last packet, in seconds of the stream
        if not self.path.is_file():
            raise ImageError(f"{self.path}: file not found. Check the path.")
        with self._open() as (container, stream):
            first = next(self._decoded(container, stream), None)
            if first is None:
                raise ImageError(
                    f"{self.path}: no frame can be decoded. Check that the file is complete, and "
                    f"that its frames have at most {get_limits().frame_pixels:,} pixels (the limit frame_pixels)."
                )
            rate = stream.average_rate or stream.guessed_rate or stream.base_rate
            self.rate = Fraction(rate) if rate else Fraction(25)
            self.rotation = round(first.rotation / 90) * 90
            sides = (first.height, first.width)
            self.size_hw = sides if self.rotation % 180 == 0 else (sides[1], sides[0])
            self.has_sound = bool(container.streams.audio)
            self.duration = _duration(container, stream)
            guess = None if self.duration is None else round(self.duration * self.rate)
            self.count: int | None = stream.frames or guess
            self._stated_end, self._stated_count = _stated_end(container, stream), stream.frames

    def __iter__(self) -> Iterator[tuple[int, float, RgbImage]]:
        return self.frames()

    def version(self) -> list[object]:
        """Return what changes with the content: path, size and modification time."""
        stat = self.path.stat()
        return [str(self.path.resolve()), stat.st_size, stat.st_mtime_ns]

    def count_packets(self, at_most: int | None = None) -> int:
        """Count the packets of video without decoding; `count` is what the header states, which may be wrong."""
        with self._open() as (container, stream):
            packets = (packet for packet in self._packets(container, stream) if packet.size)
            return sum(1 for _ in itertools.islice(packets, at_most))

    def frames(self, start: int = 0) -> Iterator[tuple[int, float, RgbImage]]:
        """Yield (number, seconds since the first frame, image uint8 [H, W, 3]) from frame `start` on.

        Times are the timestamps of the file, also for a variable frame rate. `start` is exact: by seeking where the
        timestamps of the file allow it, by decoding and skipping otherwise.
        """
        return ((frame.number, frame.time, frame.to_rgb()) for frame in self.decoded_frames(start))

    def decoded_frames(self, start: int = 0) -> Iterator[DecodedFrame]:
        """Yield the frames that `frames` yields before their conversion to RGB, which other threads may do."""
        if start < 0:
            raise InputError(f"start: expected a frame number of at least 0, got {start}.")
        self.damaged, self._frames_read = 0, start
        frames = self._seek(start) if start else None
        for index, (time, frame) in enumerate(frames or itertools.islice(self._timed(), start, None), start):
            self._frames_read = index + 1
            seconds = float(time) if time is not None else float(index / self.rate)
            yield DecodedFrame(index, seconds, 3 * frame.height * frame.width, partial(self._to_rgb, frame))

    def check_end(self) -> None:
        """Raise `ImageError` if the file ends before the time that its header states. Call it after the last frame."""
        if self._stated_end is None or self._stated_end - self._end_read <= _END_TOLERANCE / self.rate:
            return
        if self._stated_count and self.count_packets() >= self._stated_count:
            return
        raise ImageError(
            f"{self.path}: breaks off after frame {self._frames_read} of {self.count}. Get the complete file."
        )

    @contextmanager
    def _open(self) -> Iterator[tuple[_Container, _Stream]]:
        av = import_av()
        try:
            container = open_container(self.path)
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise ImageError(
                f"{self.path}: expected a video, got {one_line(error)}. Check that the file is complete."
            ) from error
        with container:
            if not container.streams.video:
                raise ImageError(f"{self.path}: expected a video, got a file without a video track.")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise ImageError(f"{self.path}: expected a video, got a video track of an unknown codec.")
            limits = get_limits()
            limits.check("frame_pixels", stream.width * stream.height, subject=str(self.path), error=ImageError)
            stream.codec_context.options = {"max_pixels": str(limits.frame_pixels)}  # frames may change their size
            stream.thread_type = "AUTO"
            yield container, stream

    def _packets(self, container: _Container, stream: _Stream) -> Iterator[_Packet]:
        """Yield the packets of the video; a truncated file ends early."""
        try:
            for packet in container.demux(stream):
                if packet.pts is not None:
                    end = float((packet.pts + (packet.duration or 0)) * stream.time_base)
                    self._end_read = max(self._end_read, end)
                yield packet
        except (import_av().error.FFmpegError, EOFError):
            self.damaged += 1

    def _decoded(self, container: _Container, stream: _Stream) -> Iterator[_Frame]:
        for packet in self._packets(container, stream):
            try:
                yield from packet.decode()
            except (import_av().error.FFmpegError, EOFError):
                self.damaged += 1

    def _timed(self, first_pts: int | None = None) -> Iterator[_TimedFrame]:
        """Yield frames with their time since the start of the stream, after a seek from a timestamp on."""
        with self._open() as (container, stream):
            if first_pts is not None:
                try:
                    container.seek(first_pts, stream=stream, backward=True)
                except import_av().error.FFmpegError:
                    return
            start = stream.start_time or 0
            for frame in self._decoded(container, stream):
                if first_pts is None or (frame.pts is not None and frame.pts >= first_pts):
                    yield (None if frame.pts is None else (frame.pts - start) * stream.time_base), frame

    def _seek(self, start: int) -> Iterator[_TimedFrame] | None:
        """Return the frames from `start` on after a seek, or None where an exact seek is not possible."""
        times = self._timestamps()
        if times is None:
            return None
        if start >= len(times):
            return iter(())
        frames = self._timed(times[start])
        first = next(frames, None)
        if first is None or first[1].pts != times[start]:
            return None
        return itertools.chain([first], frames)

    def _timestamps(self) -> list[int] | None:
        """Return the sorted timestamps of all frames, without decoding; None where some are missing or equal."""
        if self._times is None:
            with self._open() as (container, stream):
                packets = (p for p in self._packets(container, stream) if p.size and not p.is_discard)
                times = [packet.pts for packet in packets]
            unique = None not in times and len(set(times)) == len(times)
            self._times = sorted(times) if unique else []
        return self._times or None

    def _to_rgb(self, frame: _Frame) -> RgbImage:
        """Convert a decoded frame to upright RGB, uint8 [H, W, 3]."""
        unknown = frame.colorspace not in (1, 4, 5, 6, 7, 9, 10)  # the color spaces that swscale supports
        space = "ITU709" if unknown and frame.height > _MAX_SD_HEIGHT else None
        av = import_av()
        try:
            image: RgbImage = frame.reformat(format="rgb24", src_colorspace=space).to_ndarray()
        except (av.error.FFmpegError, OSError, ValueError) as error:  # a pixel format that swscale lacks
            raise ImageError(f"{self.path}: expected frames that convert to RGB, got {one_line(error)}.") from error
        return np.ascontiguousarray(np.rot90(image, self.rotation // 90)) if self.rotation else image


def _duration(container: _Container, stream: _Stream) -> float | None:
    """Return the length in seconds: from the header of the stream, its tags (Matroska), or the container."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    tagged = _tagged_end(stream)
    return container.duration / 1_000_000 if tagged is None and container.duration else tagged


def _tagged_end(stream: _Stream) -> float | None:
    """Return the end of a stream in seconds by its tags, as Matroska has them."""
    tag = re.fullmatch(r"(\d+):(\d+):([\d.]+)", stream.metadata.get("DURATION", ""))
    return int(tag[1]) * 3600 + int(tag[2]) * 60 + float(tag[3]) if tag else None


def _stated_end(container: _Container, stream: _Stream) -> float | None:
    """Return the end of a stream in seconds by its header; None where FFmpeg only estimates it, or there is none."""
    start = float((stream.start_time or 0) * stream.time_base)
    if container.format.name == "avi":  # the length of a truncated file is estimated from its size
        return start + float(stream.frames / stream.average_rate) if stream.frames and stream.average_rate else None
    if stream.duration and stream.frames:
        return start + float(stream.duration * stream.time_base)
    return _tagged_end(stream)


# ---------------------------------------------------------------------------------------------------------- sound

# Codec and sample rate by container, where it cannot hold the codec of the source. Opus needs 48 kHz.
_SOUND_CODECS: dict[str, tuple[str, int | None]] = {
    "webm": ("libopus", 48_000),
    "mp4": ("aac", None),
    "mov": ("aac", None),
}

_PREROLL = Fraction(1, 10)  # seconds of sound before the first frame, which decoders need


class Sound:
    """The first audio track of a file, muxed into an open output in step with its frames.

    Packets are copied where the container can hold the codec (MP4 and MOV nearly always; WebM only Opus and Vorbis),
    else encoded again. Times count from the start of the video track of the source.
    """

    def __init__(self, source: _Container, output: _Container) -> None:
        track = source.streams.audio[0]
        video = source.streams.video
        self._source, self._output = source, output
        self._shift = (video[0].start_time or 0) * video[0].time_base if video else Fraction(0)
        self.copied = track.codec_context.codec.canonical_name in output.supported_codecs
        if self.copied:
            self._stream = output.add_stream_from_template(track)
        else:
            name, rate = _SOUND_CODECS[output.format.name]
            self._stream = output.add_stream(name, rate=rate or track.rate, layout=track.layout.name)
        self._packets = self._copied(track) if self.copied else self._encoded(track)
        self._next: tuple[Fraction, _Packet] | None = next(self._packets, None)

    @classmethod
    def open(cls, path: str | Path, output: _Container) -> Self | None:
        """Open the sound of `path` for `output`; None where it has no audio track."""
        av = import_av()
        try:
            source = open_container(path)
        except (av.error.FFmpegError, OSError, ValueError) as error:
            raise ImageError(f"{path}: expected a file with sound, got {one_line(error)}.") from error
        if not source.streams.audio:
            source.close()
            return None
        return cls(source, output)

    def advance(self, seconds: Fraction) -> None:
        """Mux the sound up to this time."""
        while self._next is not None and self._next[0] <= seconds:
            self._output.mux(self._next[1])
            self._next = next(self._packets, None)

    def finish(self) -> None:
        """Mux the rest."""
        while self._next is not None:
            self.advance(self._next[0])

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _copied(self, track: _Stream) -> Iterator[tuple[Fraction, _Packet]]:
        for packet in self._source.demux(track):
            if packet.dts is None:
                continue
            shift = round(self._shift / packet.time_base)
            packet.dts -= shift
            packet.pts = packet.dts if packet.pts is None else packet.pts - shift
            start = packet.pts * packet.time_base
            if start > -_PREROLL:
                packet.stream = self._stream
                yield start, packet

    def _encoded(self, track: _Stream) -> Iterator[tuple[Fraction, _Packet]]:
        for frame in self._source.decode(track):
            if frame.pts is not None:
                frame.pts -= round(self._shift / frame.time_base)
                if frame.pts < 0:
                    continue
            yield from self._timed(self._stream.encode(frame))
        yield from self._timed(self._stream.encode(None))

    def _timed(self, packets: list[_Packet]) -> Iterator[tuple[Fraction, _Packet]]:
        for packet in packets:
            yield (packet.pts or 0) * packet.time_base, packet


# -------------------------------------------------------------------------------------------------------- writing

_MIN_TICKS = 20_000  # per second: fine enough for the timestamps of a variable frame rate
_BT709, _LIMITED_RANGE = 1, 1  # FFmpeg constants


@dataclass(frozen=True)
class _Codec:
    """The encoder for a file name suffix."""

    container: str
    name: str
    pixel_format: str
    options: dict[str, str] = field(default_factory=dict)
    even: bool = False  # whether height and width must be even


_VP9 = {"deadline": "realtime", "cpu-used": "5", "row-mt": "1", "crf": "24", "b": "0"}
# By suffix and alpha. H.264 has no B-frames, so that durations of a variable frame rate are stored exactly.
_CODECS: dict[tuple[str, bool], _Codec] = {
    (".mp4", False): _Codec("mp4", "libx264", "yuv420p", {"crf": "18", "preset": "veryfast", "bf": "0"}, even=True),
    (".webm", False): _Codec("webm", "libvpx-vp9", "yuv420p", _VP9),
    # Hidden reference frames of VP9 cannot carry alpha, hence no auto-alt-ref.
    (".webm", True): _Codec("webm", "libvpx-vp9", "yuva420p", _VP9 | {"auto-alt-ref": "0"}),
    (".mov", False): _Codec("mov", "prores_ks", "yuv422p10le", {"profile": "hq", "vendor": "apl0"}),
    (".mov", True): _Codec(
        "mov", "prores_ks", "yuva444p10le", {"profile": "4444", "alpha_bits": "16", "vendor": "apl0"}
    ),
}


class VideoWriter(Writer):
    """Write a video atomically, in the format of the file name's suffix.

    | suffix | codec | alpha |
    |---|---|---|
    | .mp4 | H.264, 4:2:0 | no; odd sides are padded by one pixel |
    | .webm | VP9, 4:2:0 | straight, in VP9's second stream |
    | .mov | ProRes 422 HQ, or 4444 with alpha | straight, 10 bits for color and alpha |

    Colors are BT.709, limited range, and tagged so. Memory is constant.

    Args:
        path: Where to write.
        rate: Frames per second; a `Fraction` such as 30000/1001 is exact (WebM rounds to milliseconds).
        size_hw: Height and width of the frames.
        alpha: Whether frames are RGBA with straight alpha.
    """

    def __init__(
        self, path: str | Path, rate: Fraction | float, size_hw: tuple[int, int], *, alpha: bool = False
    ) -> None:
        av = import_av()
        self.codec = codec_for(path, alpha=alpha)
        self.rate = _exact_rate(rate)
        self.size_hw, self.alpha, self.count = size_hw, alpha, 0
        height, width = size_hw
        self._coded_hw = (height + height % 2, width + width % 2) if self.codec.even else size_hw
        # A time base with a whole number of ticks per second and per frame.
        self._time_base = Fraction(1, self.rate.numerator * math.ceil(_MIN_TICKS / self.rate.numerator))
        self._frame_ticks = int(1 / self.rate / self._time_base)
        self._last: int | None = None
        self._closed = False
        self.path, self._temporary = temporary_path(path)
        options = {"movflags": "+faststart"} if self.codec.container == "mp4" else {}
        try:
            self._container = open_container(self._temporary, "w", format=self.codec.container, options=options)
        except (av.error.FFmpegError, OSError) as error:
            raise InputError(f"{self.path}: expected a writable path, got {error}. Choose another.") from error
        try:
            self._stream = self._new_stream()
        except BaseException:
            self.discard()
            raise

    def write(self, image: NDArray[np.uint8], time: float | None = None) -> None:
        """Add a frame, uint8 [H, W, 3], or [H, W, 4] with alpha.

        `time` in seconds since the first frame is for variable frame rates; by default frames follow the rate.
        """
        self._check(image)
        tick = self._tick(time)
        with write_errors(self.path):
            for packet in self._stream.encode(self._frame(image, tick)):
                self._mux(packet)
        self._last = tick
        self.count += 1

    def close(self) -> None:
        """Finish the file and move it to its name; without frames nothing is written."""
        if self._closed:
            return
        if not self.count:
            self.discard()
            raise InputError(f"{self.path}: expected at least one frame, got none. Nothing was written.")
        try:
            with write_errors(self.path):
                for packet in self._stream.encode():
                    self._mux(packet)
                self._container.close()
                os.replace(self._temporary, self.path)
            self._closed = True
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Close and remove what was written."""
        if self._closed:
            return
        try:
            self._container.close()
        except (import_av().error.FFmpegError, OSError, ValueError):
            pass  # the file is removed anyway
        finally:
            self._temporary.unlink(missing_ok=True)
            self._closed = True

    def _new_stream(self) -> _Stream:
        """Add the video stream, with its codec, time base and color tags, to the container."""
        stream = self._container.add_stream(self.codec.name, rate=self.rate, options=dict(self.codec.options))
        stream.height, stream.width = self._coded_hw
        stream.pix_fmt = self.codec.pixel_format
        context = stream.codec_context
        context.time_base = self._time_base
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        context.color_range = _LIMITED_RANGE
        if self.alpha and self.codec.container == "webm":
            stream.metadata["alpha_mode"] = "1"  # browsers need it to show alpha; newer FFmpeg adds it
        return stream

    def _check(self, image: object) -> None:
        """Raise `InputError` for an image of another size or type, and after `close`."""
        wanted = (*self.size_hw, 4 if self.alpha else 3)
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape != wanted:
            got = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
            raise InputError(f"image: expected uint8 {list(wanted)}, got {got}. All frames of a video have one size.")
        if self._closed:
            raise InputError(f"{self.path.name}: expected an open writer, got a closed one. Open a new one.")

    def _tick(self, time: float | None) -> int:
        """Return the time of the next frame in units of the time base, after that of the last one."""
        if self._last is None:
            return 0 if time is None else max(0, round(time / self._time_base))
        tick = self._last + self._frame_ticks if time is None else round(time / self._time_base)
        return max(tick, self._last + 1)

    def _frame(self, image: NDArray[np.uint8], tick: int) -> _Frame:
        """Convert an image [H, W, 3 or 4] to a frame of the encoder at this time, padded to even sides if needed."""
        av = import_av()
        padding = [(0, new - old) for new, old in zip(self._coded_hw, self.size_hw, strict=True)]
        image = np.pad(image, (*padding, (0, 0)), mode="edge") if self._coded_hw != self.size_hw else image
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgba" if self.alpha else "rgb24")
        frame = frame.reformat(
            format=self.codec.pixel_format, dst_colorspace="ITU709", dst_color_range="MPEG", interpolation="BICUBIC"
        )
        frame.pts, frame.time_base = tick, self._time_base
        return frame

    def _mux(self, packet: _Packet) -> None:
        if not packet.duration:
            packet.duration = round(1 / self.rate / packet.time_base)  # players need the duration of the last frame
        self._container.mux(packet)


def codec_for(path: str | Path, *, alpha: bool) -> _Codec:
    """Return the encoder for a file name."""
    extension = Path(path).suffix.lower()
    extensions = sorted({known for known, with_alpha in _CODECS if with_alpha or not alpha})
    if (extension, alpha) not in _CODECS:
        what = "video with alpha" if alpha else "video"
        got = extension or "no extension"
        raise InputError(f"{Path(path).name}: expected {', '.join(extensions)} for {what}, got {got!r}.")
    return _CODECS[extension, alpha]


def _exact_rate(rate: Fraction | float) -> Fraction:
    """Return a frame rate as a fraction, 29.97 as 30000/1001, or raise `InputError`."""
    if not rate > 0 or not math.isfinite(rate):
        raise InputError(f"rate: expected frames a second above 0, got {rate}.")
    if isinstance(rate, Fraction):
        return rate
    ntsc = Fraction(round(rate * 1.001) * 1000, 1001)
    if abs(ntsc - Fraction(rate)) < Fraction(1, 100) and abs(rate - round(rate)) > 0.005:
        return ntsc
    return Fraction(rate).limit_denominator(1001)


# ------------------------------------------------------------------------------------------------ numbered images


class SequenceReader:
    """Images as the frames of a video, numbered from 0: numbered ones (``name_%05d.png``), or all of a folder.

    Attributes:
        path: The pattern, or the folder.
        files: The images in order: by their numbers, those of a folder by name, where 2 comes before 10.
        rate: Frames per second: 25.
        size_hw: Height and width of the first image that can be read.
        count: Number of images.
        has_sound: False.
    """

    has_sound = False

    def __init__(self, path: str | Path) -> None:
        self.path, self.rate = Path(path), _SEQUENCE_RATE
        self.files = sequence_files(path)
        self.count: int | None = len(self.files)
        self.size_hw = self._find_size()

    def version(self) -> list[object]:
        """Return what changes with the content: path, total size and latest modification time."""
        stats = [file.stat() for file in self.files]
        latest = max(stat.st_mtime_ns for stat in stats)
        return [str(self.path.resolve()), sum(stat.st_size for stat in stats), latest]

    def count_packets(self) -> int:
        """Count the frames."""
        return len(self.files)

    def _find_size(self) -> tuple[int, int]:
        """Return the height and width of the first image that can be read; the error of the first if none can."""
        errors: list[InputError] = []
        for file in self.files:
            try:
                image = load_image(file)
                return image.height, image.width
            except InputError as error:
                errors.append(error)
        raise errors[0]


class SequenceWriter(Writer):
    """Write frames as numbered image files, ``name_%05d.png`` (or .jpg, .webp), each atomically.

    The `time` of frames is not stored. Each file is complete when `write` returns; `discard` keeps them.
    """

    def __init__(self, path: str | Path, *, start: int = 0) -> None:
        self.path = Path(path)
        if len(FRAME_PATTERN.findall(self.path.name)) != 1:
            raise InputError(f"{self.path.name}: expected one number such as %05d in the name.")
        self.count, self._start = 0, start

    def write(self, image: NDArray[np.uint8], time: float | None = None) -> None:
        """Write a frame, uint8 [H, W, 3] or [H, W, 4] with straight alpha, as the next file."""
        name = FRAME_PATTERN.sub(lambda match: match.group() % (self._start + self.count), self.path.name)
        write_image(self.path.with_name(name), image)
        self.count += 1
