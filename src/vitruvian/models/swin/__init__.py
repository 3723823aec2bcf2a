"""Swin: windowed attention in four stages, and the flavour of it that MaskFormer checkpoints hold."""
