"""What MaskFormer and Mask2Former share: configuration, modeling, preprocessing and post-processing."""
