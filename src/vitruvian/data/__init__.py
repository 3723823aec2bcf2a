"""Datasets, augmentation and synthetic people."""
