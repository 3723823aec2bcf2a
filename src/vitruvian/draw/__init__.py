"""Results as pictures one would put in a paper: skeletons, label maps, normals, depth, mattes, masks, boxes, sheets.

Numpy in, pictures (uint8 [H, W, 3], RGB) out; what comes in is never changed. Lines and letters fit the picture.
"""

from vitruvian.draw.boxes import draw_boxes
from vitruvian.draw.embeddings import principal_colours
from vitruvian.draw.fields import colour_depth, colour_normals
from vitruvian.draw.labels import draw_labels
from vitruvian.draw.layout import sheet, side_by_side
from vitruvian.draw.legend import add_legend
from vitruvian.draw.masks import draw_masks, draw_panoptic
from vitruvian.draw.mattes import checkerboard, lay_over, over_checkerboard
from vitruvian.draw.palettes import class_colours, colour_map
from vitruvian.draw.skeleton import draw_pose

__all__ = [
    "add_legend",
    "checkerboard",
    "class_colours",
    "colour_depth",
    "colour_map",
    "colour_normals",
    "draw_boxes",
    "draw_labels",
    "draw_masks",
    "draw_panoptic",
    "draw_pose",
    "lay_over",
    "over_checkerboard",
    "principal_colours",
    "sheet",
    "side_by_side",
]
