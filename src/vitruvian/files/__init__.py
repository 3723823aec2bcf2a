"""Write arrays, images, videos, point clouds and COCO datasets atomically, in common formats; read videos.

Video needs PyAV, which is imported only when it is used.
"""

from vitruvian.files.coco import CocoWriter
from vitruvian.files.images import write_image
from vitruvian.json_files import json_text

__all__ = ["CocoWriter", "json_text", "write_image"]
