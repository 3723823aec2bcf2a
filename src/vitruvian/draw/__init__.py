"""Draw results: skeletons, label maps, normals, depth, mattes, masks, boxes and contact sheets.

Functions take NumPy arrays that results have checked, return new RGB images (uint8 [H, W, 3]) and modify no input.
Line widths and text sizes follow the size of the image.
"""

from vitruvian.draw.boxes import draw_boxes, enclosing_boxes
from vitruvian.draw.contact_sheet import contact_sheet
from vitruvian.draw.dense import add_depth_bar, checkerboard, color_depth, color_normals, composite, principal_colors
from vitruvian.draw.palettes import class_colors, davis_colors
from vitruvian.draw.points import draw_points
from vitruvian.draw.pose import draw_pose
from vitruvian.draw.segmentation import draw_labels, draw_masks, draw_panoptic

__all__ = [
    "add_depth_bar",
    "checkerboard",
    "class_colors",
    "color_depth",
    "color_normals",
    "composite",
    "contact_sheet",
    "davis_colors",
    "draw_boxes",
    "draw_labels",
    "draw_masks",
    "draw_panoptic",
    "draw_points",
    "draw_pose",
    "enclosing_boxes",
    "principal_colors",
]
