"""Draw results: skeletons, label maps, normals, depth, mattes, masks, boxes and contact sheets.

Functions take NumPy arrays, return new RGB images (uint8 [H, W, 3]) and modify nothing. Line widths and text sizes
follow the size of the image.
"""

from vitruvian.draw.boxes import draw_boxes
from vitruvian.draw.dense import checkerboard, colour_depth, colour_normals, lay_over, principal_colours
from vitruvian.draw.layout import add_legend, sheet
from vitruvian.draw.palettes import class_colours, turbo_map
from vitruvian.draw.pose import draw_pose
from vitruvian.draw.segmentation import draw_labels, draw_masks, draw_panoptic

__all__ = [
    "add_legend",
    "checkerboard",
    "class_colours",
    "colour_depth",
    "colour_normals",
    "draw_boxes",
    "draw_labels",
    "draw_masks",
    "draw_panoptic",
    "draw_pose",
    "lay_over",
    "principal_colours",
    "sheet",
    "turbo_map",
]
