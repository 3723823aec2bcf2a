"""Plain arrays → files that other programs open; each file appears whole or not at all.

Video lives in `vitruvian.files.video`, which needs PyAV only when it is used.
"""

from vitruvian.files.arrays import json_text, write_exr, write_json, write_npz
from vitruvian.files.atomic import replacing
from vitruvian.files.coco_writer import CocoWriter
from vitruvian.files.pictures import write_indexed_png, write_picture, write_png, write_png16, write_rgba
from vitruvian.files.points import write_glb, write_ply
from vitruvian.files.video import SequenceWriter, VideoReader, VideoWriter, create_video, open_video

__all__ = [
    "CocoWriter",
    "SequenceWriter",
    "VideoReader",
    "VideoWriter",
    "create_video",
    "json_text",
    "open_video",
    "replacing",
    "write_exr",
    "write_glb",
    "write_indexed_png",
    "write_json",
    "write_npz",
    "write_picture",
    "write_ply",
    "write_png",
    "write_png16",
    "write_rgba",
]
