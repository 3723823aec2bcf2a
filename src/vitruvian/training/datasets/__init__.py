"""Batches for training: `folder` reads datasets, `stream` renders people; `augmentation` and `labels` serve both."""
