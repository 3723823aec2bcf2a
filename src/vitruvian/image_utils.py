"""`load_image` under the name that code written for transformers imports it from."""

from vitruvian.images.read import load_image

__all__ = ["load_image"]
