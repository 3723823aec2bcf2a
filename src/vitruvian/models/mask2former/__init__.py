"""Mask2Former: queries that look only where their last mask was, over deformable attention."""
