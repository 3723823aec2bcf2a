"""Batches for training: `FolderBatches` reads a dataset from disk, `SyntheticStream` renders people during training.

folder        annotations.json, images and maps ─▶ LabeledImages
stream        AssetPack ─▶ rendered people in a ring buffer ─compose─▶ LabeledImages
compose       rendered people ─▶ new crops and whole images, with other backgrounds, people and occluders
crop_window   one crop of pixels, labels, keypoints, boxes and camera
augmentation  random changes of images
labels        LabeledImages ─▶ the arguments of each task's loss
"""
