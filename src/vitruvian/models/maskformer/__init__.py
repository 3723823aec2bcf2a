"""MaskFormer: segmentation as the classification of masks, with a DETR decoder over a feature pyramid."""
