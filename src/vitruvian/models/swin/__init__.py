"""Swin: windowed attention in four stages, and its variant in MaskFormer checkpoints."""
