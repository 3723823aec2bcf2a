"""Stored videos: uploaded once, prompted frame by frame, then processed by jobs.

    upload ─▶ DATA/videos/ID ─▶ a prompt in a frame: its mask, immediately ─▶ a job that tracks the objects

A prompted frame becomes a stored image with its embedding, so that a click costs one call of the mask decoder. Prompts
are in memory: videos end with the server, jobs do not.
"""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from vitruvian.files.video import VideoReader
from vitruvian.serving.errors import RequestError
from vitruvian.serving.lru_store import LruStore, StoredItem
from vitruvian.serving.settings import ServerLimits
from vitruvian.serving.task_requests import TrackPromptFields
from vitruvian.serving.upload_folder import UploadFolder

_FRAME_QUALITY = 95  # of JPEG


@dataclass(eq=False, kw_only=True)
class StoredVideo(StoredItem):
    """An uploaded video.

    Attributes:
        path: The file, in a folder of its own.
        file_bytes: Its size.
        frames: Number of frames, if known.
        rate: Frames per second.
        prompts: Prompts by frame and object.
        frame_images: Ids of stored images, by frame.
    """

    path: Path
    file_bytes: int
    frames: int | None
    rate: float
    prompts: dict[tuple[int, int], TrackPromptFields] = field(default_factory=dict)
    frame_images: dict[int, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.file_bytes

    def remove_prompts(self, object_id: int | None, frame: int | None) -> None:
        """Remove the prompts of an object, of a frame, of both, or all."""
        self.prompts = {
            key: prompt
            for key, prompt in self.prompts.items()
            if frame not in (None, key[0]) or object_id not in (None, key[1])
        }

    def read_frame(self, number: int) -> bytes:
        """Return a frame as a JPEG file."""
        _, _, image = next(VideoReader(self.path).frames(number), (0, 0.0, None))
        if image is None:
            raise RequestError(422, subject="frame", expected="one of the video", got=str(number))
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "JPEG", quality=_FRAME_QUALITY)
        return stream.getvalue()


def video_store(limits: ServerLimits) -> LruStore[StoredVideo]:
    """Return a store for videos, whose files are removed with them."""
    return LruStore(
        "video",
        max_items=limits.videos,
        max_bytes=limits.video_bytes,
        seconds=limits.video_seconds,
        on_remove=lambda video: shutil.rmtree(video.path.parents[1], ignore_errors=True),
    )


def open_upload(upload: UploadFolder, owner: str | None) -> StoredVideo:
    """Return the uploaded video, or raise an error for other files."""
    stored, name = next(iter(upload.sources.items()), ("", ""))
    if len(upload.sources) != 1 or not upload.is_video(stored):
        raise RequestError(415, subject="body", expected="one video", got=name or "none")
    path = upload.folder / "input" / stored
    reader = VideoReader(path)
    return StoredVideo(
        id=upload.id,
        name=name,
        owner=owner,
        path=path,
        file_bytes=upload.size,
        size_hw=reader.size_hw,
        frames=reader.count,
        rate=float(reader.rate),
    )
