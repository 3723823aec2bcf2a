"""Frames of a camera, through PyAV (the extra `video`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np

from vitruvian.errors import InputError, MissingExtraError
from vitruvian.images.decode import one_line
from vitruvian.results.base import Picture

# Platform → format of PyAV and the name of camera number n.
_FORMATS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}"), "win32": ("dshow", "video={}")}


def camera_frames(number: int) -> Iterator[tuple[float, Picture]]:
    """Yield (seconds since the first frame, image uint8 [H, W, 3]) of camera `number` for as long as it runs."""
    try:
        import av
    except ImportError as error:
        raise MissingExtraError("av", "video", "cameras") from error
    form, name = _FORMATS.get(sys.platform, _FORMATS["linux"])
    options = {"framerate": "30"} if form == "avfoundation" else {}
    try:
        container = av.open(name.format(number), format=form, options=options)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise InputError(
            f"camera:{number}: expected a camera, got {one_line(error)}. Check that it is plugged in and not in use."
        ) from error
    start = time.monotonic()
    with container:
        for frame in container.decode(video=0):
            image: Picture = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            yield time.monotonic() - start, image
