"""Write arrays, images, videos, point clouds and COCO datasets atomically, in formats that other programs open.

Video needs PyAV, which is imported only when it is used.
"""

from vitruvian.files.arrays import json_text
from vitruvian.files.coco import CocoWriter
from vitruvian.files.images import write_image

__all__ = ["CocoWriter", "json_text", "write_image"]
