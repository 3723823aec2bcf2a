"""Small clips to test with, made with PyAV alone."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

av = pytest.importorskip("av")

SIZE = (48, 64)


def shade(value: int, size_hw: tuple[int, int] = SIZE) -> np.ndarray:
    return np.full((*size_hw, 3), value, np.uint8)


def tone(seconds: float, rate: int = 44_100):
    wave = (np.sin(np.arange(int(seconds * rate)) * 440 * 2 * np.pi / rate) * 8000).astype(np.int16)
    frame = av.AudioFrame.from_ndarray(np.repeat(wave, 2)[None], format="s16", layout="stereo")
    frame.sample_rate, frame.pts = rate, 0
    return frame


def make_clip(
    path: Path, images, *, rate: Fraction | int = 25, sound: str | None = None, rotation: int = 0, start: int = 0
) -> Path:
    """Write images with H.264, sound of the same length with the codec `sound`, and a rotation as phones do."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=rate, options={"crf": "10"})
        video.height, video.width = images[0].shape[:2]
        video.pix_fmt = "yuv420p"
        if rotation:
            video.set_display_rotation(rotation)
        hertz = 48_000 if sound == "libopus" else 44_100
        audio = container.add_stream(sound, rate=hertz, layout="stereo") if sound else None
        for index, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image)
            frame.pts = index + start
            container.mux(video.encode(frame))
        container.mux(video.encode())
        if audio is not None:
            container.mux(audio.encode(tone(len(images) / float(rate), hertz)))
            container.mux(audio.encode(None))
    return path


def packets(path: Path, kind: str) -> list[bytes]:
    """The data of all packets of the first stream of a kind."""
    with av.open(str(path)) as container:
        stream = getattr(container.streams, kind)[0]
        return [bytes(packet) for packet in container.demux(stream) if packet.size]
