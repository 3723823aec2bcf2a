"""Images and tensors: read any image, resize, normalize, pad, and crop people."""

from vitruvian.images.read import ImageSource, image_to_tensor, load_image, load_images, tensor_to_image
from vitruvian.images.resize import (
    ResizeMode,
    center_on_canvas,
    fit_inside_hw,
    pad_bottom_right,
    resample_mode,
    resize,
    round_up_hw,
    shortest_edge_hw,
)
from vitruvian.ops.crop import crop_boxes, crop_windows
from vitruvian.ops.pixel_normalization import rescale_and_normalize

__all__ = [
    "ImageSource",
    "ResizeMode",
    "center_on_canvas",
    "crop_boxes",
    "crop_windows",
    "fit_inside_hw",
    "image_to_tensor",
    "load_image",
    "load_images",
    "pad_bottom_right",
    "resample_mode",
    "rescale_and_normalize",
    "resize",
    "round_up_hw",
    "shortest_edge_hw",
    "tensor_to_image",
]
