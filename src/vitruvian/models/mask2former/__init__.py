"""Mask2Former: queries that attend inside their last mask, over deformable attention."""
