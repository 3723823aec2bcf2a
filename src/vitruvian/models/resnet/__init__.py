"""ResNet as a backbone, for the MaskFormer and Mask2Former checkpoints that have one."""
