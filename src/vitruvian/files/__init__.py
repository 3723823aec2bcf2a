"""Write arrays, images, videos, point clouds and COCO datasets atomically, in formats that other programs open.

Video needs PyAV, which is imported only when it is used.
"""

from vitruvian.files.arrays import json_text, write_exr, write_json, write_npz
from vitruvian.files.coco import CocoWriter
from vitruvian.files.images import write_image, write_label_png, write_png16
from vitruvian.files.point_clouds import write_glb, write_ply
from vitruvian.files.video import SequenceWriter, VideoReader, VideoWriter, open_video

__all__ = [
    "CocoWriter",
    "SequenceWriter",
    "VideoReader",
    "VideoWriter",
    "json_text",
    "open_video",
    "write_exr",
    "write_glb",
    "write_image",
    "write_json",
    "write_label_png",
    "write_npz",
    "write_ply",
    "write_png16",
]
