"""Write arrays, images, videos, point clouds and COCO datasets atomically, in common formats; read videos.

Video needs PyAV, which is imported only when it is used.
"""

from vitruvian.files.coco import CocoWriter
from vitruvian.files.images import write_image

__all__ = ["CocoWriter", "write_image"]
