"""Pictures → video files: `VideoWriter` (MP4, WebM, ProRes) and `SequenceWriter` (numbered pictures)."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.files.atomic import place_for
from vitruvian.files.pictures import write_picture, write_rgba
from vitruvian.files.sound import Sound
from vitruvian.files.video_reading import import_av

FINEST_CLOCK = 20_000  # ticks a second, at least: fine enough for the timestamps of a variable rate
NUMBERED = re.compile(r"%0?\d*d")
BT709, LIMITED_RANGE = 1, 1  # the numbers that streams carry


@dataclass(frozen=True)
class Codec:
    """How an ending is written."""

    container: str
    name: str
    pixels: str
    options: dict[str, str] = field(default_factory=dict)
    even: bool = False  # whether both sides must be even


VP9 = {"deadline": "realtime", "cpu-used": "5", "row-mt": "1", "crf": "24", "b": "0"}
# (ending, alpha) → codec. H.264 without frames out of order: durations of a variable rate are then stored as they are.
CODECS: dict[tuple[str, bool], Codec] = {
    (".mp4", False): Codec("mp4", "libx264", "yuv420p", {"crf": "18", "preset": "veryfast", "bf": "0"}, even=True),
    (".webm", False): Codec("webm", "libvpx-vp9", "yuv420p", VP9),
    # Frames that VP9 hides from view cannot carry alpha, hence no auto-alt-ref.
    (".webm", True): Codec("webm", "libvpx-vp9", "yuva420p", VP9 | {"auto-alt-ref": "0"}),
    (".mov", False): Codec("mov", "prores_ks", "yuv422p10le", {"profile": "hq", "vendor": "apl0"}),
    (".mov", True): Codec(
        "mov", "prores_ks", "yuva444p10le", {"profile": "4444", "alpha_bits": "16", "vendor": "apl0"}
    ),
}


def create_video(
    path: str | Path,
    rate: Fraction | float,
    size_hw: tuple[int, int],
    *,
    alpha: bool = False,
    sound_from: str | Path | None = None,
) -> VideoWriter | SequenceWriter:
    """Open a writer by the name: numbered pictures for ``name_%05d.png``, else a video; see their pages."""
    if NUMBERED.search(Path(path).name):
        return SequenceWriter(path, alpha=alpha)
    return VideoWriter(path, rate, size_hw, alpha=alpha, sound_from=sound_from)


class VideoWriter:
    """Write pictures as a video; the ending says how, and the file appears only when it is whole.

    | ending | codec | alpha |
    |---|---|---|
    | .mp4 | H.264, 4:2:0 | no; odd sides grow by one pixel, which repeats the last |
    | .webm | VP9, 4:2:0 | straight, in VP9's second stream |
    | .mov | ProRes 422 HQ, or 4444 with alpha | straight, 10 bits for colour and alpha |

    Colours are BT.709, limited range, and tagged so. Memory stays the same however long the video is.

    Args:
        path: Where to write.
        rate: Frames a second; a `Fraction` such as 30000/1001 is kept exactly (WebM counts in milliseconds).
        size_hw: Height and width of the pictures.
        alpha: Whether pictures are RGBA with straight alpha.
        sound_from: A file whose first sound track goes along: copied packet by packet where the container can hold it
            (MP4 and MOV nearly always; WebM only Opus and Vorbis), else encoded anew.
        sound_until: Seconds after which no more sound is taken, for a video that was cut; by default all of it is.
    """

    def __init__(
        self,
        path: str | Path,
        rate: Fraction | float,
        size_hw: tuple[int, int],
        *,
        alpha: bool = False,
        sound_from: str | Path | None = None,
        sound_until: float | None = None,
    ) -> None:
        av = import_av()
        self.codec = codec_for(path, alpha=alpha)
        self.rate = exact_rate(rate)
        self.size_hw, self.alpha, self.count = size_hw, alpha, 0
        self._pixels = padded_size(size_hw) if self.codec.even else size_hw
        # A clock of whole ticks a second, of which each frame takes a whole number.
        self._clock = Fraction(1, self.rate.numerator * math.ceil(FINEST_CLOCK / self.rate.numerator))
        self._ticks = int(1 / self.rate / self._clock)
        self._last: int | None = None
        self._closed = False
        self._sound: Sound | None = None
        self.path, self._temporary = place_for(path)
        options = {"movflags": "+faststart"} if self.codec.container == "mp4" else {}
        try:
            self._container = av.open(str(self._temporary), "w", format=self.codec.container, options=options)
        except (av.error.FFmpegError, OSError) as error:
            raise InputError(f"{self.path}: expected a place to write, got {error}. Choose another.") from error
        try:
            self._stream = self._new_stream()
            if sound_from is not None:
                self._sound = Sound.open(sound_from, self._container, until=sound_until)
        except BaseException:
            self.discard()
            raise

    def write(self, picture: NDArray[np.uint8], time: float | None = None) -> None:
        """Add a picture, uint8 [H, W, 3], or [H, W, 4] with alpha.

        `time` is in seconds since the first frame and keeps a variable rate; by default frames follow the rate.
        """
        self._check(picture)
        tick = self._tick(time)
        for packet in self._stream.encode(self._frame(picture, tick)):
            self._mux(packet)
        self._last = tick
        self.count += 1
        if self._sound is not None:
            self._sound.advance(tick * self._clock)

    def close(self) -> None:
        """Finish the file and move it to its name; nothing is written without pictures."""
        if self._closed:
            return
        if not self.count:
            self.discard()
            raise InputError(f"{self.path}: expected at least one picture, got none. Nothing was written.")
        try:
            for packet in self._stream.encode():
                self._mux(packet)
            if self._sound is not None:
                self._sound.finish()
            self._release()
            os.replace(self._temporary, self.path)
            self._closed = True
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Give up: close and remove what was written so far."""
        if self._closed:
            return
        av = import_av()
        try:
            self._release()
        except (av.error.FFmpegError, OSError, ValueError):
            pass  # a file that goes away need not be finished
        finally:
            self._temporary.unlink(missing_ok=True)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    # ------------------------------------------------------------------------------------------------ inside

    def _new_stream(self) -> Any:
        stream = self._container.add_stream(self.codec.name, rate=self.rate, options=dict(self.codec.options))
        stream.height, stream.width = self._pixels
        stream.pix_fmt = self.codec.pixels
        context = stream.codec_context
        context.time_base = self._clock
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.color_range = LIMITED_RANGE
        if self.alpha and self.codec.container == "webm":
            stream.metadata["alpha_mode"] = "1"  # browsers look for alpha only where this says so; newer FFmpeg adds it
        return stream

    def _check(self, picture: Any) -> None:
        wanted = (*self.size_hw, 4 if self.alpha else 3)
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape != wanted:
            got = (
                f"{picture.dtype} {list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
            )
            raise InputError(f"picture: expected uint8 {list(wanted)}, got {got}. All frames of a video are alike.")
        if self._closed:
            raise InputError(f"{self.path.name}: expected an open writer, got a closed one. Open a new one.")

    def _tick(self, time: float | None) -> int:
        if self._last is None:
            return 0 if time is None else max(0, round(time / self._clock))
        tick = self._last + self._ticks if time is None else round(time / self._clock)
        return max(tick, self._last + 1)

    def _frame(self, picture: NDArray[np.uint8], tick: int) -> Any:
        av = import_av()
        extra = [(0, new - old) for new, old in zip(self._pixels, self.size_hw, strict=True)]
        if any(after for _, after in extra):
            picture = np.pad(picture, (*extra, (0, 0)), mode="edge")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgba" if self.alpha else "rgb24")
        frame = frame.reformat(
            format=self.codec.pixels, dst_colorspace="ITU709", dst_color_range="MPEG", interpolation="BICUBIC"
        )
        frame.pts, frame.time_base = tick, self._clock
        return frame

    def _mux(self, packet: Any) -> None:
        if not packet.duration:
            packet.duration = round(1 / self.rate / packet.time_base)  # players need an end of the last frame
        self._container.mux(packet)

    def _release(self) -> None:
        try:
            self._container.close()
        finally:
            if self._sound is not None:
                self._sound.close()


class SequenceWriter:
    """Write pictures as numbered files, ``name_%05d.png`` (or .jpg, .webp): each appears whole.

    With alpha they are straight RGBA. `time` is taken and not kept: numbers are all that such files hold.
    """

    def __init__(self, path: str | Path, *, alpha: bool = False, start: int = 0) -> None:
        self.path = Path(path)
        if len(NUMBERED.findall(self.path.name)) != 1:
            raise InputError(f"{self.path.name}: expected one number such as %05d in the name, got another form.")
        self.alpha, self.count, self._start = alpha, 0, start

    def write(self, picture: NDArray[np.uint8], time: float | None = None) -> None:
        """Write a picture, uint8 [H, W, 3], or [H, W, 4] with alpha, as the next file."""
        name = NUMBERED.sub(lambda found: found.group() % (self._start + self.count), self.path.name)
        (write_rgba if self.alpha else write_picture)(self.path.with_name(name), picture)
        self.count += 1

    def close(self) -> None:
        """Nothing is left to do: each picture is whole as soon as it is there."""

    def discard(self) -> None:
        """Keep the pictures that are whole; the same as `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def codec_for(path: str | Path, *, alpha: bool) -> Codec:
    """Return how to write a file of this name."""
    ending = Path(path).suffix.lower()
    endings = sorted({known for known, with_alpha in CODECS if with_alpha or not alpha})
    if (ending, alpha) not in CODECS:
        what = "video with alpha" if alpha else "video"
        raise InputError(f"{Path(path).name}: expected {', '.join(endings)} for {what}, got {ending or 'no ending'!r}.")
    return CODECS[ending, alpha]


def exact_rate(rate: Fraction | float) -> Fraction:
    """Return a rate as a fraction, 29.97 as 30000/1001, or raise `InputError`."""
    if not rate > 0 or not math.isfinite(rate):
        raise InputError(f"rate: expected frames a second above 0, got {rate}.")
    if isinstance(rate, Fraction):
        return rate
    ntsc = Fraction(round(rate * 1.001) * 1000, 1001)
    if abs(ntsc - Fraction(rate)) < Fraction(1, 100) and abs(rate - round(rate)) > 0.005:
        return ntsc
    return Fraction(rate).limit_denominator(1001)


def padded_size(size_hw: tuple[int, int]) -> tuple[int, int]:
    """Round both sides up to even numbers."""
    return size_hw[0] + size_hw[0] % 2, size_hw[1] + size_hw[1] % 2
