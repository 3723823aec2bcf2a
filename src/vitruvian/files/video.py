"""Video through PyAV (the extra `video`): `open_video` reads, `VideoWriter` writes, `create_video` picks a writer."""

from vitruvian.files.video_reading import VideoReader, open_video
from vitruvian.files.video_writing import SequenceWriter, VideoWriter, create_video

__all__ = ["SequenceWriter", "VideoReader", "VideoWriter", "create_video", "open_video"]
