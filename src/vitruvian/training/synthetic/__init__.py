"""Synthetic people with exact ground truth."""
